"""Choose learning rate, epochs and γ of the two-stage method on validation, and compare kept features with none kept.

    python results/finetune/measure.py runs/cifar10-ce OUT [KEY=VALUE ...]

writes OUT/selection.json (validation ECE of every choice, at a seed that is not reported) and the records of three
seeds each with kept features and without.
"""

import copy
import dataclasses
import json
import sys
import time
from pathlib import Path

from shiftcal.bench.run import complete
from shiftcal.evaluation import predict
from shiftcal.metrics import ece
from shiftcal.training.config import Config, config_of_run
from shiftcal.training.finetune import HeadOnly, HeadRun, head_config, keep_features, load_network
from shiftcal.training.loop import go_on
from shiftcal.training.run import adapted, load_dataset, resolve_device

RATES, EPOCHS, GAMMAS = (0.001, 0.01, 0.1, 1.0), (5, 20), (0.5, 1.0, 2.0, 3.0, 5.0)
SELECTION_SEED = 100


def select(config: Config) -> tuple[list[dict[str, float]], dict[str, float]]:
    config = dataclasses.replace(config, seed=SELECTION_SEED)
    dataset = load_dataset(config)
    network = load_network(config, len(dataset.classes)).to(resolve_device(config.device)).eval()
    dataset = adapted(dataset, config, network)
    frozen = HeadOnly(network)
    features = keep_features(config, frozen, dataset)
    before = copy.deepcopy(frozen.head.state_dict())

    def measured(rate: float, epochs: int, gamma: float) -> dict[str, float]:
        frozen.head.load_state_dict(before)
        own = dataclasses.replace(config.finetune, learning_rate=rate, epochs=epochs, gamma=gamma)
        go_on(
            HeadRun(head_config(dataclasses.replace(config, finetune=own)), dataset, frozen.head, features),
            progress=False,
        )
        logits, targets = predict(network, dataset, dataset.validation, config.evaluation.batch_size)
        accuracy = (logits.argmax(1) == targets).float().mean().item()
        row = {"learning_rate": rate, "epochs": epochs, "gamma": gamma, "accuracy": accuracy}
        row["ece"] = float(ece(logits.softmax(1), targets, bins=config.evaluation.bins))
        print(row, flush=True)
        return row

    rows = [measured(rate, epochs, config.finetune.gamma) for rate in RATES for epochs in EPOCHS]
    best = min(rows, key=lambda row: row["ece"])
    others = [gamma for gamma in GAMMAS if gamma != config.finetune.gamma]
    rows += [measured(best["learning_rate"], int(best["epochs"]), gamma) for gamma in others]
    return rows, min(rows, key=lambda row: row["ece"])


def main(checkpoint: Path, out: Path, words: list[str]) -> None:
    config = config_of_run(checkpoint, ["method=fgr", f"finetuned_from={checkpoint}", *words])
    out.mkdir(parents=True, exist_ok=True)
    path = out / "selection.json"
    if not path.is_file():
        clock = time.perf_counter()
        rows, best = select(config)
        path.write_text(json.dumps({"seed": SELECTION_SEED, "rows": rows, "best": best}, indent=1) + "\n")
        print(f"selection: {time.perf_counter() - clock:.0f} s, best {best}", flush=True)
    best = json.loads(path.read_text())["best"]
    own = dataclasses.replace(
        config.finetune, learning_rate=best["learning_rate"], epochs=int(best["epochs"]), gamma=best["gamma"]
    )
    for name, views in (("kept", own.views), ("none-kept", 0)):
        for seed in range(3):
            finetune = dataclasses.replace(own, views=views)
            record = complete(
                dataclasses.replace(config, seed=seed, finetune=finetune), out / f"{name}-{seed}", resume=True
            )
            result = record["evaluation"]
            print(name, seed, record["seconds"], result["id"]["ece"], result["shifted"]["ece"], flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
