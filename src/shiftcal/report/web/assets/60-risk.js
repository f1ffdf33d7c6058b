// Risk–coverage: how often predictions are wrong among those at or above a confidence, and how many these are.
state.threshold = 0.8;
state.risk = "clean";

function stepsOf(method, name) {
  const sums = new Map();
  let of = 100;
  for (const run of runsOf(method)) {
    const packed = run.risk?.[name];
    if (!packed) continue;
    of = packed[0];
    for (let i = 1; i < packed.length; i += 3) {
      const [right, wrong] = sums.get(packed[i]) ?? [0, 0];
      sums.set(packed[i], [right + packed[i + 1], wrong + packed[i + 2]]);
    }
  }
  return { of, steps: [...sums.entries()].sort(([a], [b]) => b - a) };
}

function riskCurve(method, name) {
  const { of, steps } = stepsOf(method, name), points = [];
  const total = steps.reduce((sum, [, [right, wrong]]) => sum + right + wrong, 0);
  let right = 0, wrong = 0;
  for (const [step, [good, bad]] of steps) {
    right += good; wrong += bad;
    points.push({ confidence: step / of, coverage: (right + wrong) / total, risk: wrong / (right + wrong) });
  }
  return points;
}

function atThreshold(curve) {
  const passed = curve.filter((point) => point.confidence >= state.threshold - 1e-9);
  return passed[passed.length - 1] ?? null;
}

function riskTable(curves) {
  const rows = curves.map(({ method, curve }) => {
    const at = atThreshold(curve);
    return element("tr", {}, element("td", {}, data.methods[method]), element("td", {}, at ? percent(at.coverage) : "0.0 %"), element("td", {}, at ? percent(1 - at.risk) : "–"));
  });
  const head = element("tr", {}, ...["method", "kept", "right among them"].map((text) => element("th", { scope: "col" }, text)));
  return element("table", {}, element("thead", {}, head), element("tbody", {}, ...rows));
}

function riskPicture(curves) {
  const width = 420, height = 260, most = Math.max(0.01, ...curves.flatMap(({ curve }) => curve.map((point) => point.risk)));
  const frame = axes({ width, height, xs: [0, 1], ys: [0, most * 1.05], xTicks: [0, 0.25, 0.5, 0.75, 1], yText: (v) => `${short(100 * v)} %`, xText: (v) => `${100 * v} %` });
  const drawn = curves.map(({ method, curve }) => {
    const path = curve.map((point, i) => `${i ? "L" : "M"}${frame.x(point.coverage).toFixed(1)} ${frame.y(point.risk).toFixed(1)}`).join("");
    const at = atThreshold(curve);
    const dot = at ? [shape("circle", { cx: frame.x(at.coverage), cy: frame.y(at.risk), r: 5, fill: colour(method) })] : [];
    return shape("g", {}, shape("title", {}, data.methods[method]), shape("path", { d: path, fill: "none", stroke: colour(method), "stroke-width": 2, "stroke-dasharray": dash(method), "data-method": method }), ...dot);
  });
  return picture(width, height, `Risk–coverage curves of ${curves.length} methods`, ...frame.marks, ...drawn);
}

const riskParts = [...new Set(data.runs.flatMap((run) => Object.keys(run.risk ?? {})))];
const riskTitle = (name) => (name === "shifted" ? "all shifts" : words(name.replace(/^shift /, "")));

const riskBody = element("div", { class: "beside" });

function fillRisk() {
  const curves = shown().map((method) => ({ method, curve: riskCurve(method, state.risk) })).filter(({ curve }) => curve.length);
  const table = element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "at the chosen confidence" }, riskTable(curves));
  riskBody.replaceChildren(riskPicture(curves), table);
}

// The slider stays while it is moved: only the picture and the table are drawn anew.
part("risk", riskParts.length > 0, ["risk", "hidden", "seed"], () => {
  const told = element("output", {}, percent(state.threshold));
  const moved = (event) => { state.threshold = Number(event.target.value); told.textContent = percent(state.threshold); fillRisk(); };
  const slider = element("input", { type: "range", min: 0, max: 0.99, step: 0.01, value: state.threshold, oninput: moved });
  const controls = element("div", { class: "controls" },
    chosen(riskParts.map((name, k) => [k, riskTitle(name)]), riskParts.indexOf(state.risk), (v) => { state.risk = riskParts[v]; }, "images"),
    element("label", {}, "confidence at or above", slider), told);
  const note = "Keep only predictions at or above a confidence: how many are left (coverage, to the right), and how many of these are wrong (risk, upwards). The dots are at the chosen confidence.";
  fillRisk();
  return [controls, legend(), riskBody, element("p", { class: "note" }, note)];
});
