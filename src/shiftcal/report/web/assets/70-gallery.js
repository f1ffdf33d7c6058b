// Sample images of each shift, the most confident mistakes first.
state.sample = 0;
const galleries = [...new Set(data.gallery.map((one) => `${one.method} ${one.shift ?? ""} ${one.severity ?? ""}`))];

function sampleTitle(key) {
  const one = data.gallery.find((other) => `${other.method} ${other.shift ?? ""} ${other.severity ?? ""}` === key);
  return `${data.methods[one.method]}${known(one.seed) ? `, seed ${one.seed}` : ""}, ${one.shift ? words(one.shift) + (one.severity ? ` ${one.severity}` : "") : "clean"}`;
}

function sampleOf(one) {
  const text = one.right ? `${one.predicted}, right` : `${one.predicted}, but it is ${one.true}`;
  const image = element("img", { src: `data:image/png;base64,${one.png}`, alt: `${one.true}, predicted ${one.predicted}` });
  return element("figure", { class: one.right ? "right" : "wrong" }, image, element("figcaption", {}, `${percent(one.confidence)}: ${text}`));
}

part("gallery", data.gallery.length > 0, ["sample"], () => {
  const own = data.gallery.filter((one) => `${one.method} ${one.shift ?? ""} ${one.severity ?? ""}` === galleries[state.sample]);
  own.sort((a, b) => a.right - b.right || b.confidence - a.confidence);
  const controls = element("div", { class: "controls" }, chosen(galleries.map((key, k) => [k, sampleTitle(key)]), state.sample, (v) => { state.sample = v; }, "images"));
  return [controls, element("div", { class: "gallery" }, ...own.map(sampleOf)), element("p", { class: "note" }, "The most confident mistakes first (red frame), then some that are right.")];
});
