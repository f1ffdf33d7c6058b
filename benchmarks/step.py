"""A training step of shiftcal's engine against an eager PyTorch loop with autocast and foreach SGD, in one run.

python benchmarks/step.py [resnet50] [--no-compile] [--against DIRECTORY]

Every contender is a process of its own: all are built at the same time, since compilation takes minutes, and then take
their steps in turn, one at a time. With --against the same steps of another checkout of this repository take part.
Without a GPU batches are small, and nothing is captured or in half precision: what is left to see is compilation.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

import torch

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
BATCH, STEPS, ROUNDS = (128, 60, 5) if CUDA else (32, 4, 5)
METHODS = ("ce", "fgr-shared", "fgr")


def dataset(count: int):
    from shiftcal.data import Dataset, MemorySplit, Preprocessing

    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (count, 3, 32, 32), generator=generator, dtype=torch.uint8)
    split = MemorySplit(images, torch.arange(len(images)) % 10)
    preprocess = Preprocessing((0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
    return Dataset("noise", tuple(map(str, range(10))), preprocess, split, split, split)


def eager(name: str, data, batch_size: int = BATCH, wrap=lambda model: model):
    """The peer: what people write, with the data on the device."""
    from shiftcal import models

    model = wrap(models.build(name, 10).to(DEVICE, memory_format=torch.channels_last))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4, foreach=True)
    images, targets = data.train.images.to(DEVICE), data.train.targets.to(DEVICE)
    order = torch.randperm(len(images), device=DEVICE).split(batch_size)

    def steps() -> None:
        for index in order[:STEPS]:
            batch = data.preprocess(images[index])
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(DEVICE, torch.bfloat16, enabled=CUDA):
                loss = torch.nn.functional.cross_entropy(model(batch), targets[index])
            loss.backward()
            optimizer.step()

    return steps


def ours(name: str, data, method: str, compile_: str):
    from shiftcal.experiments.config import load_config
    from shiftcal.experiments.setup import set_up
    from shiftcal.training.engine import Engine
    from shiftcal.training.schedule import set_learning_rate
    from shiftcal.training.totals import Totals

    words = [f"method={method}", f"train.model={name}", f"train.batch_size={BATCH}", "train.augment=none"]
    config = load_config("demo", [*words, "train.epochs=1", "train.start=0", f"engine.compile={compile_}"])
    setup = set_up(config, data)
    state, task = setup.state, setup.task
    totals = Totals(state.optimizer.found_inf)
    engine = Engine(state.model, state.optimizer, config.engine, step_size=BATCH, after_step=[totals.add])
    state.model.train()
    epoch, constraint = task.epoch(0), task.method.constraint
    independent = constraint is not None and constraint.batch == "independent"
    originals = epoch.original_batches(BATCH) if independent else None
    generator = torch.Generator(DEVICE).manual_seed(0)

    def steps() -> None:
        for count, batch in enumerate(epoch.batches(BATCH)):
            if count == STEPS:
                break
            set_learning_rate(state.optimizer, config.train, count, STEPS)
            mix = task.prepare(batch, generator, None)
            original = task.prepare(next(originals), generator, None) if originals else None
            engine.step(state.full, mix, original)

    return steps


def milliseconds(steps) -> float:
    wait()
    clock = time.perf_counter()
    steps()
    wait()
    return (time.perf_counter() - clock) / STEPS * 1000


def wait() -> None:
    if CUDA:
        torch.cuda.synchronize()


def child(name: str, method: str, compile_: str) -> None:
    """Build one contender and tell its memory; then, for every line that comes, take steps and tell their time."""
    torch.backends.cudnn.benchmark = True
    clock, data = time.perf_counter(), dataset(64 * BATCH)
    steps = eager(name, data) if method == "eager" else ours(name, data, method, compile_)
    steps()
    wait()
    taken = torch.cuda.max_memory_allocated() / 2**20 if CUDA else 0.0
    answer(f"{time.perf_counter() - clock:.1f} {taken:.0f}")
    for _ in sys.stdin:
        answer(f"{milliseconds(steps):.4f}")


def answer(text: str) -> None:
    print(f"\n> {text}", flush=True)


class Contender:
    """A child process, and what it told."""

    def __init__(self, tree: Path, name: str, method: str, compile_: str) -> None:
        command = [sys.executable, str(tree / "benchmarks" / "step.py"), "--child", name, method, compile_]
        path = os.pathsep.join([str(tree / "src"), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "PYTHONPATH": path, "TORCHINDUCTOR_COMPILE_THREADS": "2"}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self.times: list[float] = []

    def told(self) -> list[float]:
        for line in self.process.stdout:
            if line.startswith("> "):
                return [float(word) for word in line[2:].split()]
        sys.exit("a contender failed")

    def run(self) -> None:
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        self.times += self.told()


def main() -> None:
    words = sys.argv[1:]
    other = Path(words.pop(words.index("--against") + 1)).resolve() if "--against" in words else None
    name = next((word for word in words if not word.startswith("-")), "resnet50")
    kinds = ["off"] if "--no-compile" in words else ["off", "on"]
    here = Path(__file__).resolve().parents[1]
    trees = {"": here} if other is None else {"": here, "other ": other}
    contenders = {"eager": Contender(here, name, "eager", "off")}
    for kind in kinds:
        label = "compiled" if kind == "on" else "captured" if CUDA else "uncompiled"
        for method in METHODS:
            for prefix, tree in trees.items():
                contenders[f"{prefix}{label} {method}"] = Contender(tree, name, method, kind)
    built = {key: contender.told() for key, contender in contenders.items()}
    for _ in range(ROUNDS + 1):
        for contender in contenders.values():
            contender.run()
    best = {key: min(contender.times[1:]) for key, contender in contenders.items()}
    print(f"{name}, batch {BATCH}, {torch.cuda.get_device_name() if CUDA else DEVICE}, torch {torch.__version__}")
    for key, value in best.items():
        plain = best.get(f"{key.rpartition(' ')[0]} ce")
        ratio = f"{value / plain:5.2f}x our plain step" if plain and not key.endswith(" ce") else ""
        to_other = f"{value / best[f'other {key}']:6.3f}x the other's" if f"other {key}" in best else ""
        taken = f"{built[key][1]:7.0f} MiB" if CUDA else ""
        print(f"{key:28} {value:7.2f} ms  {best['eager'] / value:5.2f}x eager  {taken}  {ratio}  {to_other}")
    print("built in " + ", ".join(f"{key} {seconds[0]:.0f} s" for key, seconds in built.items()))
    for contender in contenders.values():
        contender.process.stdin.close()
        contender.process.wait()


if __name__ == "__main__":
    if "--child" in sys.argv:
        child(*sys.argv[2:])
    else:
        main()
