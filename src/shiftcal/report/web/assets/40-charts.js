// Axes of a chart: a function for each direction, and what is drawn behind the data.
function axes({ width, height, xs, ys, xTicks, yText, xText = String }) {
  const left = 40, right = 16, top = 6, bottom = 20;
  const [x0, x1] = xs, [y0, y1] = ys[0] === ys[1] ? [ys[0], ys[0] + 1] : ys;
  const x = (v) => left + ((v - x0) / (x1 - x0 || 1)) * (width - left - right);
  const y = (v) => top + (1 - (v - y0) / (y1 - y0)) * (height - top - bottom);
  const marks = [];
  for (const value of ticks(y0, y1)) {
    marks.push(shape("line", { class: "grid", x1: left, x2: width - right, y1: y(value), y2: y(value) }));
    marks.push(shape("text", { x: left - 5, y: y(value) + 4, "text-anchor": "end" }, yText(value)));
  }
  for (const value of xTicks) marks.push(shape("text", { x: x(value), y: height - 5, "text-anchor": "middle" }, xText(value)));
  return { x, y, marks };
}

function ticks(low, high, wanted = 4) {
  const raw = (high - low) / wanted, size = 10 ** Math.floor(Math.log10(raw || 1));
  const step = [1, 2, 5, 10].map((m) => m * size).find((s) => s >= raw) ?? size;
  const found = [];
  for (let v = Math.ceil(low / step) * step; v <= high + step / 1e6; v += step) found.push(Math.abs(v) < step / 1e6 ? 0 : v);
  return found;
}

function spanOf(values, fromZero) {
  const found = values.filter(known);
  if (!found.length) return [0, 1];
  const low = Math.min(...found), high = Math.max(...found), room = (high - low) * 0.05;
  return [fromZero && low >= 0 ? 0 : low - room, high + room];
}

const short = (value) => (Math.abs(value) >= 100 ? value.toFixed(0) : String(Number(value.toPrecision(3))));

// A line chart; each line is { method, points: [[x, y], …] }.
function lines(title, all, { ys, xTicks, xText, yText = short, width = 260, height = 170 }) {
  const xs = all.flatMap((line) => line.points.map(([x]) => x));
  const frame = axes({ width, height, xs: [Math.min(...xs), Math.max(...xs)], ys, xTicks, yText, xText });
  const drawn = all.map(({ method, points }) => {
    const path = points.map(([x, y], i) => `${i ? "L" : "M"}${frame.x(x).toFixed(1)} ${frame.y(y).toFixed(1)}`).join("");
    const last = points[points.length - 1];
    const text = `${data.methods[method]}: ${short(points[0][1])} to ${short(last[1])}`;
    const line = shape("path", { d: path, fill: "none", stroke: colour(method), "stroke-width": 2, "stroke-dasharray": dash(method), "data-method": method });
    const dots = points.length <= 12 ? points.map(([x, y]) => shape("circle", { cx: frame.x(x), cy: frame.y(y), r: 2.5, fill: colour(method) })) : [];
    return shape("g", {}, shape("title", {}, text), line, ...dots);
  });
  return element("figure", {}, element("figcaption", {}, title), picture(width, height, `${title}: ${all.length} lines`, ...frame.marks, ...drawn));
}

function severityPoints(method, shift) {
  const metric = data.metrics[state.metric], points = [], clean = valueOf(method, 0);
  if (known(clean)) points.push([0, clean * metric.factor]);
  for (const severity of severities) {
    const sets = [...data.sets.keys()].filter((k) => data.sets[k].kind === "shift" && data.sets[k].severity === severity && (shift === null || data.sets[k].shift === shift));
    const value = mean(sets.map((set) => valueOf(method, set)).filter(known));
    if (known(value)) points.push([severity, value * metric.factor]);
  }
  return points;
}

function severityCurves() {
  const panels = [null, ...shiftsOf(data)].map((shift) => {
    const all = shown().map((method) => ({ method, points: severityPoints(method, shift) })).filter((line) => line.points.length > 1);
    return { title: shift === null ? "mean over shifts" : words(shift), all };
  }).filter((panel) => panel.all.length);
  const heights = (all) => all.flatMap((line) => line.points.map(([, y]) => y));
  const whole = spanOf(panels.flatMap((panel) => heights(panel.all)), data.metrics[state.metric].better === "low");
  return panels.map(({ title, all }) => {
    const xs = [...new Set(all.flatMap((line) => line.points.map(([x]) => x)))];
    const ys = state.shared ? whole : spanOf(heights(all), data.metrics[state.metric].better === "low");
    return lines(title, all, { ys, xTicks: xs, xText: (v) => (v ? String(v) : "clean") });
  });
}

part("severity", severities.length > 0, ["metric", "state", "seed", "hidden", "shared"], () => {
  const controls = element("div", { class: "controls" },
    chosen(metricOptions(), state.metric, (v) => { state.metric = v; }, "metric"),
    data.states.length > 1 ? chosen(stateOptions(), state.state, (v) => { state.state = v; }, "calibrator") : "",
    checked("one scale for all", state.shared, (v) => { state.shared = v; }));
  const metric = data.metrics[state.metric];
  const curves = severityCurves(), none = curves.length ? "" : " Not measured after this calibrator.";
  return [controls, legend(), element("div", { class: "multiples" }, ...curves),
    element("p", { class: "note" }, `${metric.title} by severity, ${data.states[state.state].title}. ${metric.words}${none}`)];
});

function quantile(sorted, share) {
  const at = (sorted.length - 1) * share, low = Math.floor(at);
  return sorted[low] + (sorted[Math.min(low + 1, sorted.length - 1)] - sorted[low]) * (at - low);
}

function boxValues(method, severity) {
  const sets = [...data.sets.keys()].filter((k) => data.sets[k].kind === "shift" && data.sets[k].severity === severity);
  return sets.map((set) => valueOf(method, set)).filter(known).map((v) => v * data.metrics[state.metric].factor).sort((a, b) => a - b);
}

function box(method, values, x, width, y) {
  const [q0, q1, q2, q3, q4] = [0, 0.25, 0.5, 0.75, 1].map((share) => quantile(values, share));
  const text = `${data.methods[method]}: median ${short(q2)}, half of the shifts in ${short(q1)} to ${short(q3)}, all in ${short(q0)} to ${short(q4)}`;
  const middle = x + width / 2, paint = { stroke: colour(method), "stroke-width": 1.5 };
  return shape("g", { "data-method": method }, shape("title", {}, text),
    shape("line", { x1: middle, x2: middle, y1: y(q0), y2: y(q4), ...paint }),
    shape("rect", { x, width, y: y(q3), height: Math.max(y(q1) - y(q3), 1), fill: colour(method), "fill-opacity": 0.35, ...paint }),
    shape("line", { x1: x, x2: x + width, y1: y(q2), y2: y(q2), ...paint, "stroke-width": 2.5 }));
}

part("boxes", shiftsOf(data).length > 2, ["metric", "state", "seed", "hidden", "shared"], () => {
  const groups = severities.length ? severities : [null];
  const methods = shown(), all = groups.map((s) => methods.map((m) => boxValues(m, s)));
  const ys = spanOf(all.flat(2), data.metrics[state.metric].better === "low");
  const figures = groups.map((severity, k) => {
    const width = 260, height = 190, own = state.shared ? ys : spanOf(all[k].flat(), data.metrics[state.metric].better === "low");
    const frame = axes({ width, height, xs: [0, 1], ys: own, xTicks: [], yText: short });
    const room = (width - 58) / Math.max(methods.length, 1), wide = Math.min(room * 0.7, 34);
    const boxes = methods.map((method, i) => all[k][i].length ? box(method, all[k][i], 42 + room * i + (room - wide) / 2, wide, frame.y) : "");
    const title = severity === null ? "all shifts" : `severity ${severity}`;
    return element("figure", {}, element("figcaption", {}, title), picture(width, height, `Box plots, ${title}`, ...frame.marks, ...boxes.filter((b) => b !== "")));
  });
  const note = `Over the shifts${severities.length ? " of a severity" : ""}: the median, half of them in the box, all of them between the ends.`;
  return [element("div", { class: "multiples five" }, ...figures), element("p", { class: "note" }, `${data.metrics[state.metric].title}. ${note}`)];
});
