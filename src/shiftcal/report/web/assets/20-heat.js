// Shift × severity: a metric of one method, or the difference of two. Without severities, shift × method.
const byMethod = !severities.length && data.methods.length > 1;

function heatValue(set, method) {
  const own = valueOf(method, set);
  if (state.versus < 0) return own;
  const other = valueOf(state.versus, set), size = data.metrics[state.metric].better === "zero" ? Math.abs : (v) => v;
  return known(own) && known(other) ? size(own) - size(other) : null;
}

// The span of a metric over all methods and sets, so that colours mean the same for each.
function span() {
  const values = [];
  for (const method of data.methods.keys()) {
    data.sets.forEach((set, index) => { if (set.kind !== "other") values.push(valueOf(method, index)); });
  }
  const found = values.filter(known);
  return [Math.min(...found), Math.max(...found)];
}

function shade(value, low, high, metric) {
  if (!known(value)) return "transparent";
  if (state.versus >= 0) {
    const size = Math.min(Math.abs(value) / (high - low || 1), 1);
    const worse = metric.better === "high" ? value < 0 : value > 0; // of a gap its size counts, see heatValue
    return `rgba(var(--${worse ? "over" : "good"}-rgb), ${(0.6 * Math.sqrt(size)).toFixed(3)})`;
  }
  const size = metric.better === "zero" ? Math.abs(value) / Math.max(Math.abs(low), Math.abs(high), 1e-9) : (value - low) / (high - low || 1);
  return `rgba(var(--over-rgb), ${(0.6 * (metric.better === "high" ? 1 - size : size)).toFixed(3)})`;
}

// Whether an ECE is no more than chance gives a calibrated model, where the records say what that is.
function withinChance(index, value, metric, method) {
  const floor = state.state === 0 && state.versus < 0 && metric.key === "ece" ? runsOf(method)[0]?.floor?.[index] : null;
  return known(floor) && value < 1.5 * floor;
}

function heatCell(index, low, high, metric, method = state.method) {
  const value = index < 0 ? null : heatValue(index, method);
  if (!known(value)) return element("td", {}, index < 0 ? "" : element("span", { class: "none", title: "not measured" }, "–"));
  const text = (state.versus >= 0 && value > 0 ? "+" : "") + number(value, metric);
  const chance = withinChance(index, value, metric, method);
  const label = `${byMethod ? `${data.methods[method]}, ` : ""}${nameOf(data.sets[index])}: ${metric.title} ${text}${chance ? ", within chance" : ""}`;
  const choose = () => { state.set = index; state.method = method; redraw(); };
  const pressed = state.set === index && state.method === method;
  return element("td", {}, element("button", {
    type: "button", "data-set": index, title: label, "aria-label": label, "aria-pressed": String(pressed),
    tabindex: pressed ? 0 : -1, style: `background: ${chance ? "transparent" : shade(value, low, high, metric)}`, onclick: choose,
  }, text.replace("-", "−")));
}

// Arrow keys go through the map; only the chosen cell is a stop of the Tab key.
function walk(event) {
  const step = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[event.key];
  if (!step || !event.target.dataset.set) return;
  event.preventDefault();
  const cell = event.target.closest("td"), rows = [...cell.closest("table").rows];
  const row = rows[rows.indexOf(cell.parentElement) + step[0]];
  row?.cells[cell.cellIndex + step[1]]?.querySelector("button")?.focus();
}

function heatMap() {
  const metric = data.metrics[state.metric], [low, high] = span();
  const columns = severities.length ? severities : [null], methods = byMethod ? [...data.methods.keys()] : [state.method];
  const titles = byMethod ? data.methods : columns.map((s) => (s === null ? metric.title : String(s)));
  const head = element("tr", {}, element("th", { scope: "col" }, severities.length ? "severity" : "test set"), ...titles.map((title) => element("th", { scope: "col" }, title)));
  const ofSet = (index) => methods.map((method) => {
    const cell = heatCell(index, low, high, metric, method);
    if (!byMethod && columns.length > 1) cell.colSpan = columns.length; // of no severity
    return cell;
  });
  const clean = element("tr", {}, element("th", { scope: "row" }, "clean"), ...ofSet(0));
  const rows = shiftsOf(data).map((shift) => {
    const at = (severity) => data.sets.findIndex((s) => s.kind === "shift" && s.shift === shift && s.severity === severity);
    const once = at(null), cells = once >= 0 ? ofSet(once) : columns.map((s) => heatCell(at(s), low, high, metric));
    return element("tr", {}, element("th", { scope: "row" }, words(shift)), ...cells);
  });
  const table = element("table", { class: "heat", onkeydown: walk }, element("thead", {}, head), element("tbody", {}, clean, ...rows));
  if (!table.querySelector('button[tabindex="0"]')) table.querySelector("button")?.setAttribute("tabindex", "0");
  return element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": byMethod ? "shift by method" : "shift by severity" }, table);
}

part("heat", true, ["method", "versus", "seed", "metric", "state", "set"], () => {
  const controls = [
    chosen(methodOptions(), state.method, (v) => { state.method = v; }, "method"),
    data.methods.length > 1 ? chosen([[-1, "nothing"], ...methodOptions()], state.versus, (v) => { state.versus = v; }, "minus") : null,
    chosen(metricOptions(), state.metric, (v) => { state.metric = v; }, "metric"),
    seedOptions().length > 2 ? chosen(seedOptions(), state.seed, (v) => { state.seed = v; }, "seed") : null,
    data.states.length > 1 ? chosen(stateOptions(), state.state, (v) => { state.state = v; }, "calibrator") : null,
  ];
  const metric = data.metrics[state.metric];
  const which = `${metric.title}, ${data.states[state.state].title}${state.seed < 0 ? "" : `, seed ${state.seed}`}`;
  const whose = byMethod ? "All methods" : data.methods[state.method];
  const note = state.versus < 0
    ? `${whose}: ${which}. ${metric.words} The redder, the worse; the scale is that of all methods.`
    : `${whose} minus ${data.methods[state.versus]}: ${which}. Red is worse, blue is better.`;
  return [element("div", { class: "controls" }, ...controls.filter(known)), heatMap(), element("p", { class: "note" }, note)];
});
