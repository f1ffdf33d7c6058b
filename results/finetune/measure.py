"""Choose learning rate, epochs and γ of the two-stage method on validation, and compare kept features with none kept.

    python results/finetune/measure.py runs/cifar10-ce OUT [KEY=VALUE ...]

writes OUT/selection.json (validation ECE of every choice, at a seed that is not reported) and the records of three
seeds each with kept features and without.
"""

import copy
import json
import sys
import time
from pathlib import Path

from shiftcal.evaluation import predict
from shiftcal.experiments.config import Config, config_of_run
from shiftcal.experiments.run import complete
from shiftcal.experiments.setup import load_dataset, load_network, preprocessing_of, stage_of
from shiftcal.metrics import ece
from shiftcal.training.finetune import HeadOnly, head_task, keep_features
from shiftcal.training.loop import fit

RATES, EPOCHS, GAMMAS = (0.001, 0.01, 0.1, 1.0), (5, 20), (0.5, 1.0, 2.0, 3.0, 5.0)
SELECTION_SEED = 100


def changed(config: Config, **finetune: object) -> Config:
    return config.model_copy(update={"finetune": config.finetune.model_copy(update=finetune)})


def select(config: Config) -> tuple[list[dict[str, float]], dict[str, float]]:
    config = config.model_copy(update={"seed": SELECTION_SEED})
    dataset = load_dataset(config)
    network = load_network(config, dataset).eval()
    preprocess = preprocessing_of(config, dataset, network)
    frozen = HeadOnly(network)
    features = keep_features(frozen, dataset, stage_of(config), preprocess)
    before = copy.deepcopy(frozen.head.state_dict())

    def measured(rate: float, epochs: int, gamma: float) -> dict[str, float]:
        frozen.head.load_state_dict(before)
        stage = stage_of(changed(config, learning_rate=rate, epochs=epochs, gamma=gamma))
        fit(*head_task(frozen.head, features, stage), progress=False)
        found = predict(network, dataset.validation, preprocess, batch_size=config.evaluation.batch_size)
        accuracy = (found.logits.argmax(1) == found.targets).float().mean().item()
        row = {"learning_rate": rate, "epochs": epochs, "gamma": gamma, "accuracy": accuracy}
        row["ece"] = float(ece(found.logits.softmax(1), found.targets, bins=config.evaluation.bins))
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
    best = {"learning_rate": best["learning_rate"], "epochs": int(best["epochs"]), "gamma": best["gamma"]}
    for name, views in (("kept", config.finetune.views), ("none-kept", 0)):
        for seed in range(3):
            own = changed(config, **best, views=views).model_copy(update={"seed": seed})
            record = complete(own, out / f"{name}-{seed}", resume=True)
            result = record.evaluation
            print(name, seed, record.seconds, result.clean.ece, result.shifted.ece, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
