// Wilson's 95 % interval of a share.
function wilson(hits, n) {
  const z = 1.96, p = hits / n, denominator = 1 + (z * z) / n;
  const middle = (p + (z * z) / (2 * n)) / denominator;
  const half = (z / denominator) * Math.sqrt((p * (1 - p)) / n + (z * z) / (4 * n * n));
  return [Math.max(0, middle - half), Math.min(1, middle + half)];
}

// ln Γ by Stirling's series, for arguments above 0.
function logGamma(x) {
  let shift = 0;
  for (; x < 10; x += 1) shift -= Math.log(x);
  return shift + (x - 0.5) * Math.log(x) - x + 0.5 * Math.log(2 * Math.PI) + 1 / (12 * x) - 1 / (360 * x ** 3);
}

// The ECE that a calibrated model with these bins shows on average: De Moivre's mean deviation of each binomial.
function noiseFloor(diagram) {
  let sum = 0, total = 0;
  for (const { n, says: p } of diagram.bins) {
    total += n;
    if (p <= 0 || p >= 1) continue;
    const k = Math.floor(n * p) + 1;
    const log = Math.log(2 * k) + logGamma(n + 1) - logGamma(k + 1) - logGamma(n - k + 1) + k * Math.log(p) + (n - k + 1) * Math.log(1 - p);
    sum += Math.exp(log);
  }
  return total ? sum / total : 0;
}

function errorOf(diagram) {
  const total = diagram.bins.reduce((sum, bin) => sum + bin.n, 0);
  return diagram.bins.reduce((sum, bin) => sum + Math.abs(bin.n * bin.says - bin.hits), 0) / total;
}

function diagramOf(diagram, label, size = 300) {
  const left = 34, top = 8, side = size - left - 8, width = side / diagram.of, y = (v) => top + side * (1 - v);
  const total = diagram.bins.reduce((sum, bin) => sum + bin.n, 0), most = Math.max(...diagram.bins.map((bin) => bin.n / total));
  const base = top + side + 62, marks = [];
  for (const value of [0, 0.25, 0.5, 0.75, 1]) {
    marks.push(shape("line", { class: "grid", x1: left, x2: left + side, y1: y(value), y2: y(value) }));
    marks.push(shape("text", { x: left - 5, y: y(value) + 4, "text-anchor": "end" }, value));
    marks.push(shape("text", { x: left + side * value, y: top + side + 14, "text-anchor": "middle" }, value));
  }
  for (const bin of diagram.bins) {
    const right = bin.hits / bin.n, x = left + bin.place * width, both = Math.min(right, bin.says), [low, high] = wilson(bin.hits, bin.n);
    const text = `${bin.n} images say ${percent(bin.says)} and are right ${percent(right)} (${percent(low)} to ${percent(high)})`;
    const gap = { x: x + 0.5, width: Math.max(width - 1, 0.5) };
    marks.push(shape("g", {}, shape("title", {}, text),
      shape("rect", { ...gap, y: y(both), height: side * both, fill: "var(--both)" }),
      shape("rect", { ...gap, y: y(Math.max(right, bin.says)), height: side * Math.abs(right - bin.says), fill: bin.says > right ? "var(--over)" : "var(--under)" }),
      shape("line", { x1: x + width / 2, x2: x + width / 2, y1: y(low), y2: y(high), stroke: "var(--ink)", "stroke-width": 1.5 }),
      shape("rect", { ...gap, y: base - 36 * (bin.n / total / most), height: 36 * (bin.n / total / most), fill: "var(--count)" })));
  }
  marks.push(shape("line", { x1: left, y1: y(0), x2: left + side, y2: y(1), stroke: "var(--soft)", "stroke-dasharray": "4 3" }));
  marks.push(shape("text", { x: left + side / 2, y: base + 14, "text-anchor": "middle" }, "confidence; grey: share of images"));
  return picture(size, base + 20, label, ...marks);
}

function reliabilityOf(method) {
  const set = data.sets[state.set], found = binsOf(method, state.set);
  const title = `${data.methods[method]}, ${nameOf(set)}`;
  const runs = runsOf(method);
  if (!runs.length) return element("p", { class: "note" }, `${data.methods[method]} has no run with seed ${state.seed}.`);
  if (!found.length) return element("p", { class: "note" }, `${title}: not measured, or the records hold no bins of it.`);
  const diagram = together(found);
  const index = data.metrics.findIndex((metric) => metric.key === "ece"), ece = valueOf(method, state.set, index);
  const floor = state.state === 0 ? runs[0]?.floor?.[state.set] : null;
  const each = mean(found.map((packed) => noiseFloor(together([packed]))));
  const interval = state.state === 0 && runs.length === 1 ? runs[0].interval?.[state.set] : null;
  const sure = known(interval?.[0]) ? ` (${percent(interval[0])} to ${percent(interval[1])})` : "";
  const n = runs[0]?.n?.[state.set];
  const text = `ECE ${percent(ece ?? errorOf(diagram))}${sure}; chance alone gives ${percent(floor ?? each)}${n ? ` on ${n} images` : ""}.`;
  return element("figure", {}, element("figcaption", {}, title), diagramOf(diagram, `Reliability diagram: ${title}`), element("p", { class: "note" }, text));
}

part("reliability", true, ["method", "versus", "seed", "state", "set"], () => {
  const sets = data.sets.map((set, number) => [number, nameOf(set)]);
  const controls = element("div", { class: "controls" }, chosen(sets, state.set, (v) => { state.set = v; }, "test set"));
  const methods = state.versus >= 0 && state.versus !== state.method ? [state.method, state.versus] : [state.method];
  const note = "Blue: what confidence and accuracy share. Red: claimed but not so. Yellow: right more often than claimed. Lines: 95 % intervals of the accuracy.";
  return [controls, ...methods.map(reliabilityOf), element("p", { class: "note" }, note)];
});
