const data = JSON.parse(document.getElementById("data").textContent);
const LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
const bitsOf = new Map([...LETTERS].map((letter, bits) => [letter, bits]));

// Whole numbers as they were written: five bits in a letter, lowest first; the sixth says that more follow.
function decoded(text) {
  const numbers = [];
  let value = 0, unit = 1;
  for (const letter of text) {
    const bits = bitsOf.get(letter);
    value += (bits & 31) * unit;
    if (bits > 31) unit *= 32;
    else { numbers.push(value); value = 0; unit = 1; }
  }
  return numbers;
}

for (const run of data.runs) {
  for (const key of Object.keys(run.bins)) run.bins[key] = run.bins[key].map((text) => text && decoded(text));
  for (const key of Object.keys(run.risk ?? {})) run.risk[key] = decoded(run.risk[key]);
}
const COLOURS = ["#2f7ed8", "#d95f34", "#2a9d6f", "#b353c4", "#a98600", "#d6457f", "#1f97ad", "#75871a", "#8468dd", "#a5673c", "#6d7f90"];
const DASHES = ["", "6 3", "2 3", "9 3 2 3"];
const SVG = "http://www.w3.org/2000/svg";

// What is chosen; every control writes here, and every picture is drawn from it.
const state = { method: 0, versus: -1, seed: -1, metric: 0, state: 0, set: 0, hidden: new Set(), shared: true };
const drawings = [];

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

function shape(tag, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function picture(width, height, label, ...children) {
  return shape("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label }, ...children);
}

const byId = (id) => document.getElementById(id);
const words = (name) => (name === null || name === undefined ? "" : String(name).replaceAll("_", " "));
const colour = (method) => COLOURS[method % COLOURS.length];
const dash = (method) => DASHES[Math.floor(method / COLOURS.length) % DASHES.length];
const mean = (values) => (values.length ? values.reduce((a, b) => a + b, 0) / values.length : null);
const known = (value) => value !== null && value !== undefined;
const number = (value, metric) => (known(value) ? (value * metric.factor).toFixed(metric.decimals) : "–");
const percent = (value) => `${(100 * value).toFixed(1)} %`;
const nameOf = (set) => (set.kind === "clean" ? "clean" : words(set.shift) + (set.severity ? ` ${set.severity}` : ""));
const shiftsOf = (data) => [...new Set(data.sets.filter((s) => s.kind === "shift").map((s) => s.shift))];
const severities = [...new Set(data.sets.filter((s) => s.kind === "shift" && s.severity).map((s) => s.severity))].sort((a, b) => a - b);
const shown = () => data.methods.map((_, method) => method).filter((method) => !state.hidden.has(method));

// Runs of a method: those of the chosen seed, or all.
const runs = data.methods.map((_, method) => data.runs.filter((run) => run.method === method));

function runsOf(method, seed = state.seed) {
  return seed === -1 ? runs[method] : runs[method].filter((run) => run.seed === seed);
}

// A metric of a method on a test set: the mean over its runs that measured it.
function valueOf(method, set, metric = state.metric, key = data.states[state.state].key, seed = state.seed) {
  const found = runsOf(method, seed).map((run) => run.values[key]?.[metric]?.[set]).filter(known);
  return mean(found);
}

function unpacked(packed) {
  const bins = [];
  for (let i = 1; i < packed.length; i += 4) {
    bins.push({ place: packed[i], n: packed[i + 1], hits: packed[i + 2], says: packed[i + 3] / 10000 });
  }
  return { of: packed[0], bins };
}

// Several diagrams in one, weighted by their counts.
function together(many) {
  const sums = new Map();
  for (const packed of many) {
    for (const bin of unpacked(packed).bins) {
      const sum = sums.get(bin.place) ?? { place: bin.place, n: 0, hits: 0, claimed: 0 };
      sum.n += bin.n; sum.hits += bin.hits; sum.claimed += bin.n * bin.says;
      sums.set(bin.place, sum);
    }
  }
  const bins = [...sums.values()].sort((a, b) => a.place - b.place);
  return { of: many[0]?.[0] ?? 15, bins: bins.map((s) => ({ place: s.place, n: s.n, hits: s.hits, says: s.claimed / s.n })) };
}

function binsOf(method, set, key = data.states[state.state].key) {
  return runsOf(method).map((run) => run.bins[key]?.[set]).filter(known);
}

function chosen(options, value, choose, label) {
  const select = element("select", { onchange: (event) => { choose(Number(event.target.value)); redraw(); } });
  for (const [number, title] of options) select.append(element("option", { value: number }, title));
  select.value = String(value);
  return element("label", {}, label, select);
}

function checked(label, value, choose) {
  const box = element("input", { type: "checkbox", onchange: (event) => { choose(event.target.checked); redraw(); } });
  box.checked = value;
  return element("label", { class: "check" }, box, label);
}

const methodOptions = () => data.methods.map((name, number) => [number, name]);
const metricOptions = () => data.metrics.map((metric, number) => [number, metric.title]);
const stateOptions = () => data.states.map((one, number) => [number, one.title]);
const seedOptions = () => [[-1, "all"], ...[...new Set(data.runs.map((run) => run.seed))].filter(known).sort((a, b) => a - b).map((s) => [s, `seed ${s}`])];

function legend() {
  const buttons = data.methods.map((name, method) => {
    const line = picture(26, 10, "", shape("line", { x1: 1, x2: 25, y1: 5, y2: 5, stroke: colour(method), "stroke-width": 3, "stroke-dasharray": dash(method) }));
    line.removeAttribute("role"); line.removeAttribute("aria-label"); line.setAttribute("aria-hidden", "true");
    const toggle = () => { state.hidden.has(method) ? state.hidden.delete(method) : state.hidden.add(method); redraw(); };
    return element("button", { type: "button", "data-method": method, "aria-pressed": String(!state.hidden.has(method)), onclick: toggle }, line, name);
  });
  return element("div", { class: "legend", role: "group", "aria-label": "methods shown" }, ...buttons);
}

function redraw() {
  const active = document.activeElement?.id || document.activeElement?.closest("[id]")?.id;
  const again = document.activeElement?.getAttribute("data-method");
  const place = document.activeElement?.getAttribute("data-set");
  const label = document.activeElement?.closest("label")?.firstChild?.textContent;
  for (const draw of drawings) draw();
  restoreFocus(active, again, place, label);
}

// Controls are made anew when something changes: the one that was used keeps the keyboard's focus.
function restoreFocus(id, method, set, label) {
  const within = id && byId(id);
  if (!within || within.contains(document.activeElement)) return;
  let found = null;
  if (known(method)) found = within.querySelector(`.legend [data-method="${method}"]`);
  else if (known(set)) found = within.querySelector(`[data-set="${set}"][tabindex="0"]`) ?? within.querySelector(`[data-set="${set}"]`);
  else if (label) {
    const same = [...within.querySelectorAll("label")].find((one) => one.textContent.startsWith(label) || one.textContent.endsWith(label));
    found = same?.querySelector("select, input");
  }
  found?.focus();
}

// A part of the page, drawn anew when what it depends on was chosen otherwise; hidden where there is nothing to draw.
function part(id, has, depends, draw) {
  const place = byId(id);
  if (!place) return;
  if (!has) {
    place.closest("section").hidden = true;
    document.querySelector(`nav a[href="#${place.closest("section").id}"]`)?.remove();
    return;
  }
  let drawn = null;
  drawings.push(() => {
    const now = JSON.stringify(depends.map((key) => (state[key] instanceof Set ? [...state[key]] : state[key])));
    if (now !== drawn) place.replaceChildren(...draw());
    drawn = now;
  });
}
