// Accuracy against ECE: a point for each method, its name where it hides least.
const ACCURACY = data.metrics.findIndex((metric) => metric.key === "accuracy"), ECE = data.metrics.findIndex((metric) => metric.key === "ece");

// Points have names, so that all can be shown; of very many, those that the legends show.
const pointed = () => (data.methods.length > 24 ? shown() : [...data.methods.keys()]);

function tradeoffPoints(kind) {
  const sets = [...data.sets.keys()].filter((k) => data.sets[k].kind === kind);
  const percentOf = (method, metric, key) => {
    const value = mean(sets.map((set) => valueOf(method, set, metric, key)).filter(known));
    return known(value) ? 100 * value : null;
  };
  const points = pointed().map((method) => ({ method, x: percentOf(method, ACCURACY, data.states[0].key), y: percentOf(method, ECE, data.states[state.state].key) }));
  return points.filter(({ x, y }) => known(x) && known(y));
}

const overlap = (a, b) => Math.max(Math.min(a.x1, b.x1) - Math.max(a.x0, b.x0), 0) * Math.max(Math.min(a.y1, b.y1) - Math.max(a.y0, b.y0), 0);
const DIRECTIONS = [[1, 0], [-1, 0], [0, -1], [0, 1], [1, -1], [1, 1], [-1, -1], [-1, 1]];

// Where a name may stand, near places first, and the room that it takes there.
function roomsFor(text, x, y) {
  const width = 6.6 * text.length, height = 13;
  return [8, 14, 22, 32].flatMap((far) => DIRECTIONS.map(([dx, dy]) => {
    const x0 = x + far * dx - (dx < 0 ? width : dx > 0 ? 0 : width / 2), y0 = y + far * dy - height / 2;
    const [anchor, from] = dx > 0 ? ["start", x0] : dx < 0 ? ["end", x0 + width] : ["middle", x0 + width / 2];
    return { far, anchor, from, x0, y0, x1: x0 + width, y1: y0 + height };
  }));
}

function namesOf(points, frame, width, height) {
  const all = { x0: 0, y0: 0, x1: width, y1: height };
  const taken = points.map(({ x, y }) => ({ x0: frame.x(x) - 6, x1: frame.x(x) + 6, y0: frame.y(y) - 6, y1: frame.y(y) + 6 }));
  return points.flatMap(({ method, x, y }) => {
    const cost = (room) => taken.reduce((sum, other) => sum + overlap(room, other), 0) + 4 * ((room.x1 - room.x0) * (room.y1 - room.y0) - overlap(room, all)) + room.far;
    const room = roomsFor(data.methods[method], frame.x(x), frame.y(y)).reduce((best, one) => (cost(one) < cost(best) ? one : best));
    taken.push(room);
    const leader = room.far > 8 ? [shape("line", { class: "grid", x1: frame.x(x), y1: frame.y(y), x2: room.from, y2: (room.y0 + room.y1) / 2 })] : [];
    return [...leader, shape("text", { class: "name", x: room.from, y: room.y1 - 3, "text-anchor": room.anchor }, data.methods[method])];
  });
}

function tradeoffPicture(title, points) {
  const width = Math.min(560, Math.max(320, document.documentElement.clientWidth - 40)), height = 320;
  const xs = spanOf(points.map(({ x }) => x), false), room = (xs[1] - xs[0] || 1) * 0.1;
  const span = [xs[0] - room, Math.min(xs[1] + room, 100)], ys = spanOf(points.map(({ y }) => y), true);
  const frame = axes({ width, height, xs: span, ys, xTicks: ticks(...span), yText: short, xText: short });
  const dots = points.map(({ method, x, y }) => shape("circle", { cx: frame.x(x), cy: frame.y(y), r: 5.5, fill: colour(method), "data-method": method },
    shape("title", {}, `${data.methods[method]}: right ${x.toFixed(1)} %, ECE ${y.toFixed(2)} %`)));
  const names = namesOf(points, frame, width, height);
  return element("figure", {}, element("figcaption", {}, title), picture(width, height, `${title}: accuracy and ECE of ${points.length} methods`, ...frame.marks, ...names, ...dots));
}

part("tradeoff", data.methods.length > 1, ["state", "seed", "hidden"], () => {
  const panels = [["In distribution", "clean"], ["Mean over shifts", "shift"]].map(([title, kind]) => ({ title, points: tradeoffPoints(kind) })).filter(({ points }) => points.length);
  const controls = data.states.length > 1 ? element("div", { class: "controls" }, chosen(stateOptions(), state.state, (v) => { state.state = v; }, "calibrator")) : "";
  const note = "To the right: how often the network is right, in %. Upwards: ECE, how far its confidence is off, in %. Best is at the bottom right. Means over seeds.";
  return [controls, element("div", { class: "halves" }, ...panels.map(({ title, points }) => tradeoffPicture(title, points))), element("p", { class: "note" }, note)];
});
