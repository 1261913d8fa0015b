// Charts of the parts of a whole: areas on top of each other for one run, a bar for each of several.
function drawArea(pen, curve, frame) {
  const x = xOf(curve), [first, last] = span(curve, frame.view);
  pen.fillStyle = colourOf(curve);
  pen.globalAlpha = 0.75;
  pen.beginPath();
  for (let i = first; i < last; i++) pen.lineTo(frame.toX(x[i]), frame.toY(curve.y[i]));
  for (let i = last - 1; i >= first; i--) pen.lineTo(frame.toX(x[i]), frame.toY(curve.base[i]));
  pen.closePath();
  pen.fill();
  pen.globalAlpha = 1;
}

function drawBars(chart, pen, width, height) {
  const runs = data.runs.map((run, number) => number).filter((number) => !state.hidden.has(number));
  const left = PAD.left + 20, right = width - PAD.right, each = Math.min(34, (height - 30) / Math.max(1, runs.length));
  chart.frame = null; // nothing follows the pointer
  pen.font = "11px system-ui, Arial, sans-serif";
  pen.textBaseline = "middle";
  runs.forEach((run, row) => {
    const top = PAD.top + row * each, middle = top + each / 2;
    let at = left;
    pen.fillStyle = css("--pale");
    pen.textAlign = "right";
    const name = data.runs.length > 1 ? data.runs[run].name : "";
    pen.fillText(name.length > 11 ? `${name.slice(0, 10)}..` : name, left - 6, middle);
    pen.textAlign = "center";
    chart.bars[run].forEach((share, key) => {
      const wide = (share / 100) * (right - left);
      pen.globalAlpha = 0.85;
      pen.fillStyle = numbered(chart.keys[key].colour);
      pen.fillRect(at, top + 3, wide, each - 6);
      pen.globalAlpha = 1;
      pen.fillStyle = "#fff";
      if (wide > 34) pen.fillText(`${share.toFixed(0)}%`, at + wide / 2, middle);
      at += wide;
    });
  });
}
