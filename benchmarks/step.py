"""A training step of shiftcal's engine against an eager PyTorch loop with autocast and foreach SGD, in one run.

python benchmarks/step.py [resnet50] [--no-compile]

Without a GPU batches are small, and nothing is captured or in half precision: what is left to see is compilation.
"""

import sys
import time

import torch

from shiftcal import models
from shiftcal.data import Dataset, MemorySplit, Preprocessing
from shiftcal.experiments.config import load_config
from shiftcal.experiments.setup import set_up
from shiftcal.training.engine import Engine
from shiftcal.training.schedule import set_learning_rate
from shiftcal.training.totals import Totals

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
BATCH, STEPS, ROUNDS = (128, 60, 5) if CUDA else (32, 4, 5)


def dataset(count: int) -> Dataset:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (count, 3, 32, 32), generator=generator, dtype=torch.uint8)
    split = MemorySplit(images, torch.arange(len(images)) % 10)
    preprocess = Preprocessing((0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
    return Dataset("noise", tuple(map(str, range(10))), preprocess, split, split, split)


def eager(name: str, data: Dataset, batch_size: int = BATCH, wrap=lambda model: model):
    """The peer: what people write, with the data on the device."""
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


def ours(name: str, data: Dataset, method: str, compile_: str):
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


def peak(make) -> tuple[object, float]:
    """Make the steps and take some; on a GPU, also tell the MiB that they took."""
    if not CUDA:
        steps = make()
        steps()
        return steps, float("nan")
    wait()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    steps = make()
    steps()
    wait()
    return steps, (torch.cuda.max_memory_allocated() - before) / 2**20


def main() -> None:
    name = next((word for word in sys.argv[1:] if not word.startswith("-")), "resnet50")
    kinds = ["off"] if "--no-compile" in sys.argv else ["off", "on"]
    torch.backends.cudnn.benchmark = True
    data = dataset(64 * BATCH)
    makers = {"eager": lambda: eager(name, data)}
    for kind in kinds:
        label = "compiled" if kind == "on" else "captured" if CUDA else "uncompiled"
        for method in ("ce", "fgr-shared", "fgr"):
            makers[f"{label} {method}"] = lambda method=method, kind=kind: ours(name, data, method, kind)
    loops, memory = {}, {}
    for key, make in makers.items():
        clock = time.perf_counter()
        loops[key], memory[key] = peak(make)
        built = time.perf_counter() - clock
        print(f"{key}: built in {built:.0f} s, {milliseconds(loops[key]):.2f} ms at first", file=sys.stderr, flush=True)
    times = {key: [] for key in loops}
    for _ in range(ROUNDS):
        for key, steps in loops.items():
            times[key].append(milliseconds(steps))
    best = {key: min(values) for key, values in times.items()}
    print(f"{name}, batch {BATCH}, {torch.cuda.get_device_name() if CUDA else DEVICE}, torch {torch.__version__}")
    for key, value in best.items():
        label = key.split()[0]
        plain = best.get(f"{label} ce")
        ratio = f"{value / plain:5.2f}x our plain step" if plain and key != f"{label} ce" else ""
        taken = f"{memory[key]:7.0f} MiB" if CUDA else ""
        print(f"{key:22} {value:7.2f} ms  {best['eager'] / value:5.2f}x eager  {taken}  {ratio}")


if __name__ == "__main__":
    main()
