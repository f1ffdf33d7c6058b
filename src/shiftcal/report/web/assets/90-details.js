// What differs between runs, what they share, and the data to take away.
function rowsOf(pairs) {
  return element("table", { class: "words" }, element("tbody", {}, ...pairs.map(([key, value]) => element("tr", {}, element("th", { scope: "row" }, key), element("td", {}, value)))));
}

const labelOf = (run) => data.methods[run.method] + (known(run.seed) ? `, seed ${run.seed}` : "") + (run.place ? `, ${run.place} held out` : "");

function differing() {
  const { differing: keys, own } = data.config;
  if (!keys.length) return element("p", { class: "note" }, "All runs have the same configuration.");
  const head = element("tr", {}, element("th", { scope: "col" }, "run"), ...keys.map((key) => element("th", { scope: "col" }, key)));
  const alike = new Map();
  data.runs.forEach((run, k) => {
    const key = JSON.stringify([run.method, own[k]]);
    alike.set(key, [...(alike.get(key) ?? []), k]);
  });
  const rows = [...alike.values()].map((some) => {
    const label = data.methods[data.runs[some[0]].method] + (some.length > 1 ? `, ${some.length} runs` : "");
    return element("tr", {}, element("th", { scope: "row" }, label), ...own[some[0]].map((text) => element("td", {}, text)));
  });
  return element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "what differs" }, element("table", {}, element("thead", {}, head), element("tbody", {}, ...rows)));
}

function save(name, text, type) {
  const link = element("a", { href: URL.createObjectURL(new Blob([text], { type })), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

const quoted = (value) => (known(value) ? (/[",\n]/.test(String(value)) ? `"${String(value).replaceAll('"', '""')}"` : String(value)) : "");

function csv() {
  const head = ["method", "seed", "held_out", "set", "severity", "n", "calibrator", ...data.metrics.map((metric) => metric.key)];
  const rows = [head];
  for (const run of data.runs) {
    for (const { key } of data.states) {
      data.sets.forEach((set, k) => {
        const values = data.metrics.map((_, m) => run.values[key]?.[m]?.[k]);
        if (values.some(known)) rows.push([data.methods[run.method], run.seed, run.place, set.kind === "clean" ? "clean" : set.shift, set.severity, run.n[k], key || "none", ...values]);
      });
    }
  }
  return rows.map((row) => row.map(quoted).join(",")).join("\n") + "\n";
}

part("details", true, [], () => {
  const buttons = element("div", { class: "controls" },
    element("button", { type: "button", class: "button", onclick: () => save("values.csv", csv(), "text/csv") }, "Download CSV"),
    element("button", { type: "button", class: "button", onclick: () => save("data.json", JSON.stringify(data), "application/json") }, "Download JSON"));
  const each = data.runs.map((run) => element("details", {}, element("summary", {}, labelOf(run)), rowsOf(Object.entries(run.about))));
  const common = Object.entries(data.config.common);
  return [buttons, ...(data.runs.length > 1 ? [element("h3", {}, "What differs"), differing()] : []),
    ...(common.length ? [element("details", {}, element("summary", {}, `What all share: ${common.length} keys`), rowsOf(common))] : []),
    element("h3", {}, data.runs.length > 1 ? "Runs" : "What it is"), ...(each.length > 8 ? [element("details", {}, element("summary", {}, `${each.length} runs`), ...each)] : each)];
});

for (const method of data.hidden) state.hidden.add(method);
redraw();
document.documentElement.dataset.ready = "true";
