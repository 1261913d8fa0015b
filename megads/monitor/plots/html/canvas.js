"use strict";
// Draws the charts of this page: one canvas each for the curves, one above it for what follows the pointer.
const data = JSON.parse(document.getElementById("data").textContent);
const root = document.documentElement;
const PAD = { left: 58, right: 12, top: 10, bottom: 24 };
const DASHES = [[], [6, 3], [2, 2], [8, 3, 2, 3]];
const MARKS = { skipped: "#d64545", rejected: "#b08500", "rolled back": "#8a63d2", branch: "#1f8a70" };
const MARKED = ["loss", "lm_loss", "grad_norm", "loss_scale"];
const state = { axis: data.axis, scale: "auto", view: null, hidden: new Set(), at: null, over: null };

const numbers = (packed) => {
  const bytes = Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0));
  return new Float32Array(bytes.buffer);
};
for (const x of data.xs) for (const axis of Object.keys(x)) x[axis] = numbers(x[axis]);
for (const chart of data.charts) {
  for (const curve of chart.curves) {
    for (const part of ["y", "low", "high", "base"]) if (curve[part]) curve[part] = numbers(curve[part]);
  }
}

const numbered = (number) => data.colours[number % data.colours.length];
const colourOf = (curve) => numbered(curve.colour);
const dashOf = (curve) => DASHES[curve.dash % DASHES.length];
const xOf = (curve) => data.xs[curve.x][state.axis];
const shown = (chart) => chart.curves.filter((curve) => !state.hidden.has(curve.run));
const css = (name) => getComputedStyle(root).getPropertyValue(name).trim();

const UNITS = [[1e12, 1e12, "T"], [1e9, 1e9, "B"], [1e6, 1e6, "M"], [1e4, 1e3, "k"], [0, 1, ""]]; // from where on
const unitOf = (size) => UNITS.find(([least]) => size >= least);

function text(value) {
  // A number as a person reads it: 1.23M, 0.00031, 4.2e-7.
  if (!Number.isFinite(value)) return "none";
  if (value && Math.abs(value) < 1e-3) return value.toExponential(2).replace(/\.?0+e/, "e");
  const [, unit, letter] = unitOf(Math.abs(value));
  return Number((value / unit).toPrecision(letter ? 4 : 5)) + letter;
}

// Labels of one kind for all ticks of an axis: one letter, one exponent, or equally many decimals.
function labels(values, log) {
  const most = Math.max(...values.map(Math.abs));
  if (log) {
    return values.map(values.length && Math.min(...values) < 1e-3 ? (value) => value.toExponential(0).replace("e+", "e") : text);
  }
  const power = most && most < 1e-3 ? Math.floor(Math.log10(most) + 1e-9) : 0;
  const [, unit, end] = power ? [0, 10 ** power, `e${power}`] : unitOf(most);
  const parts = values.map((value) => value / unit);
  let decimals = 0;
  while (decimals < 6 && parts.some((part) => Math.abs(part - Number(part.toFixed(decimals))) > 1e-7)) decimals++;
  return parts.map((part) => (part === 0 && end ? "0" : part.toFixed(decimals) + end));
}

// The first place in an ascending array whose value is not below.
function place(x, value) {
  let low = 0, high = x.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (x[middle] < value) low = middle + 1; else high = middle;
  }
  return low;
}

function wholeX() {
  let low = Infinity, high = -Infinity;
  for (const chart of data.charts) for (const curve of shown(chart)) {
    const x = xOf(curve);
    if (x.length) { low = Math.min(low, x[0]); high = Math.max(high, x[x.length - 1]); }
  }
  if (!(low <= high)) return [0, 1];
  return low === high ? [low - 0.5, high + 0.5] : [low, high];
}

// The curve's points to draw: those in view, and one more to each side.
function span(curve, view) {
  const x = xOf(curve);
  return [Math.max(0, place(x, view[0]) - 1), Math.min(x.length, place(x, view[1]) + 1)];
}

function rangeY(chart, view, log) {
  let low = Infinity, high = -Infinity;
  for (const curve of shown(chart)) {
    const [first, last] = span(curve, view), x = xOf(curve);
    for (let i = first; i < last; i++) {
      if (x[i] < view[0] || x[i] > view[1]) continue;
      for (const part of [curve.low || curve.y, curve.high || curve.y, curve.y]) {
        if (!Number.isFinite(part[i]) || (log && part[i] <= 0)) continue;
        low = Math.min(low, part[i]);
        high = Math.max(high, part[i]);
      }
    }
  }
  if (!(low <= high)) return log ? [0.1, 1] : [0, 1];
  if (chart.curves.some((curve) => curve.base)) return [0, Math.max(100, high)];
  if (!log && high - low <= 1e-6 * Math.abs(high)) return high > 0 ? [0, 1.3 * high] : high < 0 ? [1.3 * low, 0] : [0, 1];
  if (log) return low === high ? [low / 2, high * 2] : [low / (high / low) ** 0.04, high * (high / low) ** 0.04];
  const more = (high - low || Math.abs(high) || 1) * 0.05;
  return [low >= 0 && low < more * 4 && low !== high ? Math.min(low, 0) : low - more, high + more];
}

function ticks(low, high, most) {
  const rough = (high - low) / most, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((each) => each * power).find((each) => each >= rough);
  const found = [];
  for (let i = Math.ceil(low / step); i * step <= high + step * 1e-9; i++) found.push(i * step);
  return found;
}

function logTicks(low, high) {
  const found = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++) {
    for (const each of high / low < 30 ? [1, 2, 5] : high / low < 300 ? [1, 3] : [1]) {
      const value = each * 10 ** power;
      if (value >= low && value <= high) found.push(value);
    }
  }
  if (found.length < 2) return ticks(low, high, 4).filter((value) => value > 0);
  const every = Math.ceil(found.length / 7);
  return found.filter((_, number) => number % every === 0);
}

function clear(canvas) {
  const box = canvas.parentElement.getBoundingClientRect(), ratio = Math.max(window.devicePixelRatio || 1, state.fine || 1);
  const width = box.width || 440, height = box.height || 230;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  return { pen, width, height };
}

function drawChart(chart) {
  const { pen, width, height } = clear(chart.canvas);
  if (chart.bars.length) return drawBars(chart, pen, width, height);
  const view = state.view || wholeX();
  const log = state.scale === "log" || (state.scale === "auto" && chart.log);
  const [low, high] = rangeY(chart, view, log);
  const inner = { left: PAD.left, right: width - PAD.right, top: PAD.top, bottom: height - PAD.bottom };
  const toX = (x) => inner.left + ((x - view[0]) / (view[1] - view[0])) * (inner.right - inner.left);
  const part = log ? (y) => Math.log(y / low) / Math.log(high / low) : (y) => (y - low) / (high - low);
  const toY = (y) => inner.bottom - part(y) * (inner.bottom - inner.top);
  chart.frame = { ...inner, view, toX, toY, width, height, log };
  drawGrid(pen, chart.frame, log ? logTicks(low, high) : ticks(low, high, 5), log);
  pen.save();
  pen.beginPath();
  pen.rect(inner.left, inner.top - 2, inner.right - inner.left, inner.bottom - inner.top + 4);
  pen.clip();
  drawBands(pen, chart.frame);
  const drawn = shown(chart).map((curve) => [curve, pointsOf(curve, chart.frame)]);
  drawn.sort((a, b) => b[0].dots - a[0].dots); // few points of their own lie below
  for (const [curve, found] of drawn) {
    if (curve.base) drawArea(pen, curve, chart.frame);
    else if (found.spread) drawExtremes(pen, curve, found, chart.frame);
    else if (curve.low) {
      // The rows themselves, behind a line that is their moving mean.
      pen.globalAlpha = 0.35;
      pen.lineWidth = 1;
      drawLine(pen, curve, found.points, 2, chart.frame);
      pen.globalAlpha = 1;
    }
  }
  for (const [curve, found] of drawn) if (!curve.base) drawCurve(pen, curve, found, chart.frame);
  pen.restore();
  if (MARKED.includes(chart.name)) drawMarks(pen, chart.frame);
}

function drawGrid(pen, frame, valuesY, log) {
  pen.font = "11px system-ui, Arial, sans-serif";
  pen.strokeStyle = css("--grid");
  pen.fillStyle = css("--pale");
  pen.lineWidth = 1;
  pen.textAlign = "right";
  pen.textBaseline = "middle";
  const wordsY = labels(valuesY, log);
  for (const [number, value] of valuesY.entries()) {
    const y = Math.round(frame.toY(value)) + 0.5;
    pen.beginPath(); pen.moveTo(frame.left, y); pen.lineTo(frame.right, y); pen.stroke();
    pen.fillText(wordsY[number], frame.left - 6, y);
  }
  pen.textBaseline = "top";
  const valuesX = ticks(...frame.view, Math.max(2, Math.floor((frame.right - frame.left) / 75)));
  const wordsX = labels(valuesX);
  for (const [number, value] of valuesX.entries()) {
    const x = Math.round(frame.toX(value)) + 0.5;
    pen.beginPath(); pen.moveTo(x, frame.top); pen.lineTo(x, frame.bottom); pen.stroke();
    const shift = pen.measureText(wordsX[number]).width / 2;
    pen.textAlign = x + shift > frame.width ? "right" : "center";
    pen.fillText(wordsX[number], pen.textAlign === "right" ? frame.width - 1 : x, frame.bottom + 6);
  }
}

function drawBands(pen, frame) {
  pen.fillStyle = css("--pale");
  pen.globalAlpha = 0.2;
  data.runs.forEach((run, number) => {
    if (state.hidden.has(number)) return;
    for (const [first, last] of run.bands[state.axis] || []) {
      const x = frame.toX(first);
      pen.fillRect(x, frame.top, Math.max(1, frame.toX(last) - x), frame.bottom - frame.top);
    }
  });
  pen.globalAlpha = 1;
}

// The part of a curve in view as points [x pixel, y, least, greatest]; more than two to a pixel become one.
function pointsOf(curve, frame) {
  const x = xOf(curve), [first, last] = span(curve, frame.view), found = [];
  const { y, low = y, high = y } = curve, dense = last - first > 2 * (frame.right - frame.left) && !curve.dots;
  let point = null, sum = 0, count = 0;
  for (let i = first; i < last; i++) {
    const at = frame.toX(x[i]), column = dense ? Math.round(at) : at;
    if (dense && point && point[0] === column && Number.isFinite(y[i])) {
      sum += y[i]; count += 1;
      point[1] = sum / count;
      point[2] = Math.min(point[2], low[i], y[i]);
      point[3] = Math.max(point[3], high[i], y[i]);
    } else if (!dense || !point || point[0] !== column) {
      point = Number.isFinite(y[i]) || !dense ? [at, y[i], low[i], high[i]] : null;
      if (dense && point) point[0] = column;
      sum = y[i]; count = 1;
      found.push(point || [at, NaN, NaN, NaN]);
    }
  }
  return { points: found, spread: dense || Boolean(curve.low && curve.size > 1), dense };
}

// From the least to the greatest of the rows that a point stands for; what stands out is drawn in full.
function drawExtremes(pen, curve, { points, dense }, frame) {
  const bottom = (y) => (frame.log && !(y > 0) ? frame.bottom : frame.toY(y));
  const spans = points.map((point) => point[3] - point[2]).filter(Number.isFinite).sort((a, b) => a - b);
  const usual = spans.length ? spans[spans.length >> 1] : 0;
  const width = Math.max(1, dense ? 1 : (frame.right - frame.left) / points.length);
  for (const outside of [false, true]) {
    pen.strokeStyle = colourOf(curve);
    pen.globalAlpha = outside ? 0.9 : 0.3;
    pen.lineWidth = outside ? Math.max(1.2, width) : width;
    pen.beginPath();
    for (const [at, , low, high] of points) {
      if (!Number.isFinite(low) || high - low > 3 * usual !== outside) continue;
      pen.moveTo(at, bottom(low) + 0.5);
      pen.lineTo(at, bottom(high) - 0.5);
    }
    pen.stroke();
  }
  pen.globalAlpha = 1;
}

// A line through one part of the points, 1: their y, 2: the least; returns the points that get a dot.
function drawLine(pen, curve, points, part, frame) {
  const good = (point) => point && Number.isFinite(point[part]) && (!frame.log || point[part] > 0), lone = [];
  pen.strokeStyle = pen.fillStyle = colourOf(curve);
  pen.lineJoin = "round";
  pen.beginPath();
  points.forEach((point, i) => {
    if (!good(point)) return;
    const at = point[0], y = frame.toY(point[part]);
    if (good(points[i - 1])) pen.lineTo(at, y); else pen.moveTo(at, y);
    if (curve.dots ? points.length < 80 : !good(points[i - 1]) && !good(points[i + 1])) lone.push([at, y]);
  });
  pen.stroke();
  return lone;
}

function drawCurve(pen, curve, { points }, frame) {
  pen.lineWidth = 1.4 + 2.4 * curve.behind; // equal curves lie in each other
  pen.setLineDash(dashOf(curve));
  const lone = drawLine(pen, curve, points, 1, frame);
  pen.setLineDash([]);
  for (const [at, y] of lone) { pen.beginPath(); pen.arc(at, y, 2.4 + 1.2 * curve.behind, 0, 7); pen.fill(); }
}

function drawMarks(pen, frame) {
  data.runs.forEach((run, number) => {
    if (state.hidden.has(number)) return;
    for (const [name, mark] of Object.entries(run.marks)) {
      pen.fillStyle = MARKS[name];
      for (const value of mark.at[state.axis]) {
        const x = frame.toX(value);
        if (x < frame.left || x > frame.right) continue;
        pen.beginPath(); pen.moveTo(x - 4, 1); pen.lineTo(x + 4, 1); pen.lineTo(x, 9); pen.fill();
      }
    }
  });
}

// Parts of a whole: areas on top of each other for one run, a bar for each of several.
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
