// Training curves: the mean over the runs of a method, epoch by epoch.
const CURVES = { loss: "training loss", accuracy: "training accuracy", conflict_rate: "conflict rate of both gradients", mean_cosine: "cosine of both gradients", learning_rate: "learning rate" };

function epochsOf(method, name) {
  const sums = new Map();
  for (const run of runsOf(method)) {
    (run.history[name] ?? []).forEach((value, i) => {
      if (!known(value)) return;
      const epoch = run.history.epoch[i];
      sums.set(epoch, [...(sums.get(epoch) ?? []), value]);
    });
  }
  return [...sums.entries()].sort(([a], [b]) => a - b).map(([epoch, values]) => [epoch, mean(values)]);
}

part("training", data.runs.some((run) => (run.history.epoch ?? []).length > 1), ["hidden", "seed"], () => {
  const names = [...new Set(data.runs.flatMap((run) => Object.keys(run.history)))].filter((name) => name !== "epoch");
  const figures = names.map((name) => {
    const all = shown().map((method) => ({ method, points: epochsOf(method, name) })).filter((line) => line.points.length > 1);
    if (!all.length) return null;
    const xs = all.flatMap((line) => line.points.map(([x]) => x)), last = Math.max(...xs), first = Math.min(...xs);
    const ys = spanOf(all.flatMap((line) => line.points.map(([, y]) => y)), true);
    return lines(CURVES[name] ?? name, all, { ys, xTicks: [...new Set([first, Math.round((first + last) / 2), last])] });
  });
  return [legend(), element("div", { class: "multiples" }, ...figures.filter(known)), element("p", { class: "note" }, "By epoch, the mean over seeds.")];
});
