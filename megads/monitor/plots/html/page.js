// What is around the curves: pointer, legend, controls, address. The curves are drawn by canvas.js.

// What follows the pointer: a line through all charts, a dot on each curve, the values.
function drawOver(chart) {
  const { pen } = clear(chart.over), frame = chart.frame;
  chart.tip.style.display = "none";
  if (!frame) return;
  if (state.drag && chart === state.drag.chart) {
    const left = Math.min(state.drag.from, state.drag.to);
    pen.fillStyle = css("--pale");
    pen.globalAlpha = 0.25;
    pen.fillRect(left, frame.top, Math.abs(state.drag.to - state.drag.from), frame.bottom - frame.top);
    pen.globalAlpha = 1;
  }
  if (state.at === null || state.at < frame.view[0] || state.at > frame.view[1]) return;
  const line = Math.round(frame.toX(state.at)) + 0.5;
  pen.strokeStyle = css("--pale");
  pen.beginPath(); pen.moveTo(line, frame.top); pen.lineTo(line, frame.bottom); pen.stroke();
  const found = shown(chart).map((curve) => [curve, nearest(curve, state.at)]).filter((each) => each[1] >= 0);
  for (const [curve, i] of found) {
    pen.fillStyle = colourOf(curve);
    pen.beginPath(); pen.arc(frame.toX(xOf(curve)[i]), frame.toY(curve.y[i]), 3, 0, 7); pen.fill();
  }
  if (chart === state.over && found.length) showTip(chart, found, line);
}

function nearest(curve, at) {
  const x = xOf(curve);
  if (!x.length || at < x[0] - (x[x.length - 1] - x[0]) * 0.02 || at > x[x.length - 1] * 1.02) return -1;
  let i = Math.min(place(x, at), x.length - 1);
  if (i > 0 && at - x[i - 1] < x[i] - at) i--;
  for (let away = 0; away < 50; away++) {
    for (const each of [i - away, i + away]) if (Number.isFinite(curve.y[each])) return each;
  }
  return -1;
}

function showTip(chart, found, line) {
  chart.tip.replaceChildren();
  element("div", chart.tip, "", `${data.axes[state.axis]} ${text(xOf(found[0][0])[found[0][1]])}`);
  for (const [curve, i] of found.slice(0, 14)) {
    const row = element("div", chart.tip);
    element("i", row).style.background = colourOf(curve);
    element("b", row, "", text(curve.base ? curve.y[i] - curve.base[i] : curve.y[i]));
    const names = [data.runs.length > 1 ? data.runs[curve.run].name : "", chart.keys.length > 1 ? chart.keys[curve.key].label : ""];
    const ends = curve.low && curve.size > 1 ? `  (${text(curve.low[i])} to ${text(curve.high[i])})` : "";
    row.append(`${ends}  ${names.filter(Boolean).join(" ")}`);
  }
  chart.tip.style.display = "block";
  const width = chart.tip.offsetWidth, left = line + 12 + width > chart.frame.width ? line - 12 - width : line + 12;
  chart.tip.style.left = `${Math.max(0, left)}px`;
  chart.tip.style.top = `${chart.frame.top + 4}px`;
}

function drawAll() {
  document.getElementById("reset").disabled = !state.view;
  for (const chart of data.charts) { drawChart(chart); drawOver(chart); }
  root.dataset.drawn = String(data.charts.length);
}

function element(kind, parent, name = "", words = "") {
  const made = document.createElement(kind);
  if (name) made.className = name;
  if (words) made.textContent = words;
  parent.append(made);
  return made;
}

function keyOf(chart, { label, colour: number }, key) {
  const curve = chart.curves.find((each) => each.key === key), whole = !curve || curve.base;
  const colour = data.runs.length > 1 && !whole ? css("--pale") : numbered(number);
  const width = whole ? 8 : 2, dashes = whole ? "" : dashOf(curve).join(" "), entry = document.createElement("span");
  entry.innerHTML = `<svg width="22" height="8"><path d="M0 4H22" stroke="${colour}" stroke-width="${width}" stroke-dasharray="${dashes}"/></svg>`;
  entry.append(label);
  return entry;
}

function makeChart(chart) {
  const card = element("div", document.getElementById(chart.large ? "large" : "charts"), "chart");
  card.id = `chart-${chart.name}`;
  element("h3", card, "", chart.title);
  element("span", card, "unit", chart.unit);
  const keys = element("div", card, "keys");
  if (chart.keys.length > 1) chart.keys.forEach((label, key) => keys.append(keyOf(chart, label, key)));
  if (MARKED.includes(chart.name)) {
    for (const name of new Set(data.runs.flatMap((run) => Object.keys(run.marks)))) {
      const count = data.runs.reduce((sum, run) => sum + (run.marks[name] ? run.marks[name].count : 0), 0);
      const entry = element("span", keys);
      element("span", entry, "", "\u25bc ").style.color = MARKS[name];
      entry.append(`${name} (${text(count)})`);
    }
  }
  if ((chart.large || MARKED.includes(chart.name)) && data.runs.some((run) => (run.bands[state.axis] || []).length)) {
    const entry = element("span", keys);
    element("span", entry, "band");
    entry.append("data skipped");
  }
  const plot = element("div", card, "plot");
  chart.canvas = element("canvas", plot);
  chart.over = element("canvas", plot);
  chart.tip = element("div", plot, "tip");
  follow(chart, plot);
}

function follow(chart, plot) {
  if (chart.bars.length) return;
  const at = (event) => {
    const { left, right } = chart.frame;
    return Math.min(right, Math.max(left, event.clientX - plot.getBoundingClientRect().left));
  };
  const valueAt = (pixel) => {
    const { left, right, view } = chart.frame;
    return view[0] + ((pixel - left) / (right - left)) * (view[1] - view[0]);
  };
  const overAll = () => data.charts.forEach(drawOver);
  plot.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    state.drag = { chart, from: at(event), to: at(event) };
    plot.setPointerCapture(event.pointerId);
  });
  plot.addEventListener("pointermove", (event) => {
    state.at = valueAt(at(event));
    state.over = chart;
    if (state.drag) state.drag.to = at(event);
    overAll();
  });
  plot.addEventListener("pointerup", () => {
    const drag = state.drag;
    state.drag = null;
    if (drag && Math.abs(drag.to - drag.from) > 5) {
      state.view = [valueAt(Math.min(drag.from, drag.to)), valueAt(Math.max(drag.from, drag.to))];
      drawAll();
    } else overAll();
  });
  plot.addEventListener("pointercancel", () => { state.drag = null; overAll(); });
  plot.addEventListener("pointerleave", () => { if (!state.drag) { state.at = null; overAll(); } });
  plot.addEventListener("dblclick", () => { state.view = null; drawAll(); });
}

function makeLegend() {
  const legend = document.getElementById("legend");
  if (data.runs.length < 2) return;
  data.runs.forEach((run, number) => {
    const button = element("button", legend);
    element("i", button).style.background = data.colours[number % data.colours.length];
    button.append(run.name);
    button.title = "show or hide this run";
    button.setAttribute("aria-pressed", "true");
    button.addEventListener("click", () => {
      if (!state.hidden.delete(number)) state.hidden.add(number);
      button.classList.toggle("off", state.hidden.has(number));
      button.setAttribute("aria-pressed", String(!state.hidden.has(number)));
      drawAll();
    });
  });
}

function useTheme(name) {
  root.dataset.theme = name;
  document.getElementById("theme").textContent = name === "dark" ? "light" : "dark";
}

function makeControls() {
  const axis = document.getElementById("axis"), scale = document.getElementById("scale");
  for (const [name, words] of Object.entries(data.axes)) element("option", axis, "", words).value = name;
  axis.value = state.axis;
  scale.value = state.scale;
  axis.addEventListener("change", () => { state.axis = axis.value; state.view = null; drawAll(); });
  scale.addEventListener("change", () => { state.scale = scale.value; drawAll(); });
  document.getElementById("reset").addEventListener("click", () => { state.view = null; drawAll(); });
  document.getElementById("theme").addEventListener("click", () => {
    useTheme(root.dataset.theme === "dark" ? "light" : "dark");
    drawAll();
  });
}

function note() {
  const curves = data.charts.flatMap((chart) => chart.curves);
  const size = Math.max(...curves.map((curve) => curve.size));
  const parts = ["Drag to zoom, double-click to reset."];
  if (data.smooth > 1) parts.push(`Lines are centred means of ${data.smooth} rows; pale: the rows themselves.`);
  if (size > 1) parts.push(`A point stands for up to ${size} rows: the line is their mean, pale from the lowest to the highest.`);
  if (data.runs.some((run) => (run.bands[state.axis] || []).length)) parts.push("Grey: data skipped by SKIP_TRAIN_ITERATION_RANGE.");
  document.getElementById("note").textContent = parts.join(" ");
}

// What follows # in the address sets the page up, as in #dark&scale=log&x=tokens&zoom=100,200&at=150.
function useAddress() {
  const asked = new URLSearchParams(location.hash.slice(1));
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  useTheme(asked.has("dark") || (dark && !asked.has("light")) ? "dark" : "light");
  if (asked.get("x") in data.axes) state.axis = asked.get("x");
  if (["log", "linear"].includes(asked.get("scale"))) state.scale = asked.get("scale");
  const zoom = (asked.get("zoom") || "").split(",").map(Number);
  if (zoom.length === 2 && zoom[0] < zoom[1]) state.view = zoom;
  if (asked.has("at")) {
    state.at = Number(asked.get("at"));
    state.over = data.charts[0];
  }
}

useAddress();
makeLegend();
data.charts.forEach(makeChart);
makeControls();
note();
drawAll();
let waiting = 0;
addEventListener("resize", () => { cancelAnimationFrame(waiting); waiting = requestAnimationFrame(drawAll); });
let before = "light";
function print(is, theme) {
  useTheme(theme);
  root.toggleAttribute("data-print", is);
  state.fine = is ? 3 : 1;
  drawAll();
}
addEventListener("beforeprint", () => { before = root.dataset.theme; print(true, "light"); });
addEventListener("afterprint", () => print(false, before));
