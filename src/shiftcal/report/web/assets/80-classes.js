// Reliability of each class, the worst first.
state.classPart = "clean";
state.allClasses = false;

part("classes", data.classes.length > 0, ["method", "classPart", "allClasses"], () => {
  const parts = [...new Set(data.classes.map((one) => one.part))];
  const own = data.classes.find((one) => one.method === state.method && one.part === state.classPart) ?? data.classes.find((one) => one.method === state.method) ?? data.classes[0];
  const controls = element("div", { class: "controls" },
    chosen(methodOptions(), state.method, (v) => { state.method = v; }, "method"),
    parts.length > 1 ? chosen(parts.map((name, k) => [k, name === "clean" ? "clean" : "all shifts"]), parts.indexOf(state.classPart), (v) => { state.classPart = parts[v]; }, "images") : "",
    own.rows.length > 8 ? checked(`all ${own.rows.length}`, state.allClasses, (v) => { state.allClasses = v; }) : "");
  const rows = state.allClasses ? own.rows : own.rows.slice(0, 8);
  const figures = rows.map(([name, error, packed]) => element("figure", {},
    element("figcaption", {}, `${name}: ${percent(error)}`), diagramOf(together([packed]), `Reliability of the class ${name}`, 240)));
  const left = own.of > own.rows.length ? ` ${own.rows.length} of ${own.of} classes, those with the largest error.` : "";
  const note = `${data.methods[own.method]}: all images by the probability of one class, and how often it is the true one; over seeds together.${left}`;
  return [controls, element("div", { class: "multiples" }, ...figures), element("p", { class: "note" }, note)];
});
