import copy
import dataclasses
import itertools
import pickle
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from running import finish, run_with, same_weights
from stand_ins import write_class_folders

from shiftcal import data, losses, methods
from shiftcal._errors import DivergedError, ImageError, ParameterError, UnfinishedError
from shiftcal.augment import crop_flip, jensen_shannon
from shiftcal.evaluation import predict
from shiftcal.experiments import checkpoint
from shiftcal.experiments.config import Config, load_config
from shiftcal.experiments.noise import measure_noise
from shiftcal.experiments.run import Trained, train
from shiftcal.experiments.setup import Setup, evaluate_with, load_dataset, set_up
from shiftcal.methods import METHODS, Constraint, Loss, Method
from shiftcal.models import load_weights
from shiftcal.records import Epoch
from shiftcal.report.figures.noise import MEASURED
from shiftcal.training import engine
from shiftcal.training.inputs import Inputs
from shiftcal.training.loop import Hooks, fit
from shiftcal.training.state import TrainState
from shiftcal.training.step import StepReport, training_step
from shiftcal.training.task import Task

TINY = ["data.train=256", "data.validation=64", "data.test=64", "train.epochs=4", "train.batch_size=32"]


def config(*overrides: str) -> Config:
    return load_config("demo", [*TINY, *overrides])


@pytest.fixture(scope="module")
def dataset() -> data.Dataset:
    return load_dataset(config())


def same(a: Trained, b: Trained) -> bool:
    return same_weights(a.model, b.model)


@pytest.fixture(scope="module")
def trained(dataset: data.Dataset) -> Callable[[str], Trained]:
    """Short runs of every method, each trained once."""
    options = ["train.epochs=6", "train.start=0.5", "train.learning_rate=0.02", "train.warmup=0.0"]
    options += ["gamma.perturbed=1.0"]  # 0 is cross-entropy
    return cache(lambda method: train(config(f"method={method}", *options), dataset, progress=False))


@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains_and_does_what_its_row_says(method: str, trained: Callable[[str], Trained]) -> None:
    row, history = METHODS[method], trained(method).history
    assert min(entry["loss"] for entry in history[1:]) < 0.97 * history[0]["loss"]
    assert [entry["active"] for entry in history] == [False] * 3 + [True] * 3
    assert [entry["filtered"] for entry in history] == [0] * 3 + [26 if row.low_pass else 0] * 3  # ρ = 0.1 of 256
    assert [("conflict_rate" in entry) for entry in history] == [False] * 3 + [row.constraint is not None] * 3
    if row.constraint and row.constraint.momentum == 0 and row.constraint.scope == "all":
        assert 0 < sum(entry["conflict_rate"] for entry in history[3:]) < 3
    if row.constraint:
        assert all(entry["skipped"] == 0 for entry in history[3:])


def test_methods_differ_where_their_rows_differ_and_nowhere_before(
    dataset: data.Dataset, trained: Callable[[str], Trained]
) -> None:
    warm = {
        m: train(config(f"method={m}", "train.epochs=2", "train.start=1"), dataset, progress=False)
        for m in ("fgr", "rect-only")
    }
    assert same(warm["fgr"], warm["rect-only"]), "the warm-up is the main loss alone"
    for a, b in itertools.combinations(METHODS, 2):
        idle = all(sum(e.get("conflict_rate", 0) for e in trained(m).history) == 0 for m in (a, b))
        rows = [replace(METHODS[m], constraint=None) for m in (a, b)]
        if not (idle and rows[0] == rows[1]):  # a rule without a conflict does nothing
            last = [trained(m).state.model for m in (a, b)]
            assert not same_weights(*last), f"{a} and {b} end with the same weights"


def test_shared_batch_and_momentum_are_cells(dataset: data.Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    fgr = METHODS["fgr"]
    rows = {
        "shared": replace(fgr, constraint=replace(fgr.constraint, batch="shared")),
        "ema": replace(fgr, constraint=replace(fgr.constraint, momentum=0.9)),
    }
    monkeypatch.setattr(methods, "METHODS", METHODS | rows)
    runs = {m: train(config(f"method={m}", "train.start=0.5"), dataset, progress=False) for m in ("fgr", *rows)}
    assert not same(runs["fgr"], runs["shared"])
    assert not same(runs["fgr"], runs["ema"])
    assert runs["ema"].state.full.momentum.mean.norm() > 0


def test_same_seed_same_weights_other_seed_others(dataset: data.Dataset) -> None:
    first, second, other = (train(config("train.epochs=2", f"seed={s}"), dataset, progress=False) for s in (1, 1, 2))
    assert same(first, second)
    assert not same(first, other)


def test_views_without_high_bands_are_those_with_other_shares(dataset: data.Dataset) -> None:
    # Published records of ls+view+amplitude are of the second, which was run before the row had a name.
    short, shares = ["train.epochs=1", "train.warmup=0.0"], ["perturb.amplitude=0.2", "perturb.high_band=0"]
    row = train(config("method=ls+view+amplitude", *short), dataset, progress=False)
    assert same(row, train(config("method=ls+views", *shares, *short), dataset, progress=False))
    assert not same(row, train(config("method=ls+views", *short), dataset, progress=False))


def test_a_run_follows_its_recipe(dataset: data.Dataset) -> None:
    recipe = config(
        "train.epochs=2", "data.train=100", "train.nesterov=true", "train.momentum=0.8", "train.weight_decay=0.01"
    )
    run = train(recipe, progress=False)
    group = run.state.optimizer.param_groups[0]
    assert (group["nesterov"], group["momentum"], group["weight_decay"]) == (True, 0.8, 0.01)
    assert run.task.steps_per_epoch == 4  # 100 images in batches of 32, the last of 4
    rates = [entry["learning_rate"] for entry in run.history]  # the last step of each epoch, of 8 in all
    assert rates == pytest.approx([0.05 * 5 / 6.4, 0.05 * 1 / 6.4])
    assert 0.02 < run.history[-1]["accuracy"] <= 1
    first, other = (next(set_up(config(f"seed={s}"), dataset).state.model.parameters()) for s in (0, 1))
    assert not torch.equal(first, other)
    assert not set_up(config(), dataset).state.full.sum_reduction
    assert set_up(config("train.loss_reduction=sum"), dataset).state.full.sum_reduction


def test_batches_are_augmented_and_normalised(dataset: data.Dataset) -> None:
    task = set_up(config("method=ce"), dataset).task
    batch = next(task.epoch(0).batches(32))
    first, second = (torch.Generator().manual_seed(0) for _ in range(2))
    expected = dataset.preprocess(crop_flip(batch.images, second))
    assert torch.equal(task.prepare(batch, first, None).images, expected)


def test_a_constraint_does_not_change_what_the_main_loss_sees(
    dataset: data.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, list[torch.Tensor]] = {"dfl": [], "rect-only": []}
    for method, images in seen.items():

        def watched(*arguments: Any, images: list[torch.Tensor] = images) -> StepReport:
            images.append(arguments[3].images)
            return training_step(*arguments)

        monkeypatch.setattr(engine, "training_step", watched)
        train(config(f"method={method}", "train.epochs=1", "train.start=0"), dataset, progress=False)
    assert all(torch.equal(a, b) for a, b in zip(*seen.values(), strict=True))


def watch_steps(monkeypatch: pytest.MonkeyPatch) -> list[tuple[torch.nn.Module, Inputs, Inputs | None]]:
    """Keep what every step is given; the model is the one in training, so that its weights go on changing."""
    seen: list[tuple[torch.nn.Module, Inputs, Inputs | None]] = []

    def watched(*arguments: Any) -> StepReport:
        seen.append((arguments[0], arguments[3], arguments[4]))
        return training_step(*arguments)

    monkeypatch.setattr(engine, "training_step", watched)
    return seen


@pytest.mark.parametrize("method", [name for name, row in METHODS.items() if row.augment == "mixup"])
def test_mixup_mixes_two_images_with_a_share_that_varies(
    method: str, dataset: data.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = watch_steps(monkeypatch)
    train(
        config(f"method={method}", "train.epochs=2", "train.start=0.5", "train.augment=none"), dataset, progress=False
    )
    shares = torch.stack([mix.share for _, mix, _ in steps])
    assert shares.std() > 0.1
    assert ((shares >= 0) & (shares <= 1)).all()
    assert all((mix.partners != mix.targets).any() for _, mix, _ in steps)
    stored = dataset.preprocess(dataset.train.images)
    _, mix, original = steps[-1]
    nearest = torch.cdist(mix.images.flatten(1), stored.flatten(1)).min(1).values
    assert (nearest > 1).any() == bool(0.02 < mix.share < 0.98), "the main batch is mixed"
    if original is not None:
        assert torch.cdist(original.images.flatten(1), stored.flatten(1)).min(1).values.max() < 0.1
        assert original.partners is None


@pytest.mark.parametrize("method", [name for name, row in METHODS.items() if row.augment == "augmix"])
def test_augmix_adds_two_views_and_a_positive_divergence(
    method: str, dataset: data.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = watch_steps(monkeypatch)
    recipe = config(f"method={method}", "train.epochs=2", "train.start=0.5")
    run = train(recipe, dataset, progress=False)
    model, mix, original = steps[-1]
    clean, first, second = mix.images.chunk(3)
    assert len(clean) == len(mix.targets)
    assert not torch.equal(clean, first)
    assert not torch.equal(first, second)
    assert original is None or len(original.images) == len(original.targets), "the constraint sees clean images"
    with torch.no_grad():
        logits = model(mix.images)
        divergence = jensen_shannon(logits.view(3, -1, logits.shape[1]))
        main = run.state.full.main.args[0](logits[: len(clean)], mix.targets)
        assert divergence > 0
        torch.testing.assert_close(run.state.full.main(logits, mix), main + 12 * divergence)


def test_an_augmentation_changes_neither_order_nor_crops(
    dataset: data.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = watch_steps(monkeypatch)
    for method in ("ce", "augmix"):
        train(config(f"method={method}", "train.epochs=1"), dataset, progress=False)
    plain, augmented = steps[:8], steps[8:]
    assert all(
        torch.equal(a.images, b.images[: len(b.targets)]) for (_, a, _), (_, b, _) in zip(plain, augmented, strict=True)
    )


def test_mixup_cannot_share_its_batch_with_the_constraint() -> None:
    with pytest.raises(ValueError, match=r"`constraint.batch` should be 'independent' with mixup"):
        Method(Loss("cross_entropy"), constraint=Constraint(batch="shared"), augment="mixup")


def test_the_recipe_says_whether_images_are_cropped(dataset: data.Dataset) -> None:
    task = set_up(config("method=ce", "train.augment=none"), dataset).task
    batch = next(task.epoch(0).batches(32))
    prepared = task.prepare(batch, torch.Generator().manual_seed(0), None)
    assert torch.equal(prepared.images, dataset.preprocess(batch.images))
    with pytest.raises(ValueError, match=r"`train.augment` should be one of crop_flip, none"):
        config("train.augment=crop")


def test_weights_of_another_model_and_damaged_files_are_refused(dataset: data.Dataset, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    checkpoint.save_weights(path, torch.nn.Linear(2, 2))
    model = train(config("train.epochs=1"), dataset, progress=False).model
    with pytest.raises(ValueError, match="`weights` should be those of the configured model"):
        load_weights(path, model)
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(ValueError, match="`weights` should be a readable safetensors file"):
        load_weights(path, model)


def test_a_run_that_blows_up_stops_and_names_the_step(dataset: data.Dataset) -> None:
    with pytest.raises(FloatingPointError, match=r"method 'ce' was not finite at step 2 of epoch 1"):
        train(config("method=ce", "train.learning_rate=1e30", "train.warmup=0.0"), dataset, progress=False)


def test_logits_that_overflow_in_validation_are_divergence_too(dataset: data.Dataset) -> None:
    """Finite gradients, but an enormous step: it is seen after the epoch."""
    words = ["method=ce", "train.learning_rate=1e19", "train.warmup=0.0", "train.batch_size=256", "train.epochs=2"]
    with pytest.raises(DivergedError, match=r"The logits of method 'ce' were not finite after epoch 1") as caught:
        train(config(*words), dataset, progress=False)
    assert (caught.value.epoch, caught.value.step) == (1, None)
    assert "Lower the learning rate" in str(caught.value)


def test_what_a_worker_raises_arrives_whole() -> None:
    error = DivergedError("ce", 2, 3, {"indices": [1]})
    error.saved_to = Path("bad.json")
    arrived = pickle.loads(pickle.dumps(error))
    assert str(arrived) == str(error)
    assert (arrived.method, arrived.epoch, arrived.step, arrived.batch) == ("ce", 2, 3, {"indices": [1]})
    for other in (
        ParameterError("a", "b", "c", " d"),
        ImageError(Path("x.png"), "cut"),
        UnfinishedError({"a": "b"}, 2),
    ):
        again = pickle.loads(pickle.dumps(other))
        assert (type(again), str(again)) == (type(other), str(other))


def test_objectives_take_the_recipes_numbers(dataset: data.Dataset) -> None:
    words = ["method=weighted-sum", "gamma.fgr=4", "constraint.weight=0.25", "train.clip_norm=2"]
    state = set_up(config(*words), dataset).state
    plain, full = state.plain, state.full
    assert plain.constraint is None
    assert full.main.args[0].keywords == {"gamma": 4.0}
    assert full.rule.keywords == {"weight": 0.25}
    assert full.clip_norm == plain.clip_norm == 2
    dfl = set_up(config("method=dfl", "gamma.dfl=7"), dataset).state.plain
    assert dfl.main.args[0].keywords == {"gamma": 7.0}


def test_a_row_may_clip_where_the_recipe_does_not(dataset: data.Dataset) -> None:
    def clipped(*words: str) -> float | None:
        return set_up(config(*words), dataset).state.full.clip_norm

    assert clipped("method=fgr-released") == clipped("method=dfl-released") == 2.0
    assert clipped("method=fgr-released", "train.clip_norm=7") == 7
    assert clipped("method=fgr") is None
    released = [name for name, row in METHODS.items() if row.clip_norm is not None]
    assert released == ["fgr-released", "fgr-released-all", "filter-only-released", "dfl-released"]
    kept = {name for name, row in METHODS.items() if row.weights == "average"}
    assert kept == {name for name, row in METHODS.items() if row.perturb is not None}


def test_a_method_is_named_in_its_row_alone() -> None:
    package = Path(methods.__file__).parent
    for path in package.rglob("*.py"):
        if path.name != "methods.py":
            text = path.read_text()
            assert not [m for m in METHODS if f'== "{m}"' in text or f"== '{m}'" in text], path


def test_unavailable_device(dataset: data.Dataset) -> None:
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="`device` should be 'cpu' or 'auto', since torch finds no CUDA device"):
            train(config("device=cuda"), dataset, progress=False)


class Dropping(torch.nn.Module):
    """A model with randomness of its own."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Dropout(0.5), torch.nn.Linear(3072, num_classes))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.layers(images)


def test_a_models_own_randomness_depends_on_seed_and_epoch_alone(dataset: data.Dataset, tmp_path: Path) -> None:
    settings = config("method=ce", "train.epochs=3")

    def start() -> Setup:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = Dropping(8)
        return set_up(settings, dataset, model)

    whole = finish(start(), settings)
    torch.manual_seed(7)
    expected = torch.rand(2)
    torch.manual_seed(7)  # nothing that is drawn elsewhere matters, and nothing elsewhere is changed
    first = torch.rand(1)
    again = finish(start(), settings, tmp_path / "checkpoints")
    assert torch.equal(torch.cat([first, torch.rand(1)]), expected)
    assert same_weights(whole.state.model, again.state.model)
    shutil.rmtree(tmp_path / "checkpoints" / "epoch-0003")
    resumed = finish(start(), settings, tmp_path / "checkpoints", resume=True)
    assert same_weights(whole.state.model, resumed.state.model)


def test_a_batch_of_which_nothing_can_be_read_is_no_broken_gradient(tmp_path: Path) -> None:
    write_class_folders(tmp_path, 1, 201)
    files = sorted((tmp_path / "kind0").iterdir())
    words = ["data.name=folder", f"data.root={tmp_path}", "data.size=16", "data.loader=stream", "data.workers=0"]
    settings = load_config("demo", [*words, "train.epochs=1", "method=ce", "train.batch_size=1"])
    split = data.FileSplit(tuple(files), torch.arange(len(files)) % 2, 16, workers=0)
    files[3].write_bytes(b"no image")
    half = (0.5, 0.5, 0.5)
    made = data.Dataset("folder", ("a", "b"), data.Preprocessing(half, half), split, split, split)
    with pytest.warns(UserWarning, match="could not be read"):
        run = train(settings, made, progress=False)
    assert len(run.history) == 1


def test_crops_and_dropout_differ_from_epoch_to_epoch(dataset: data.Dataset) -> None:
    seen: dict[str, list[torch.Tensor]] = {"inputs": [], "dropped": []}

    class Seeing(Dropping):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            if self.training:
                seen["inputs"].append(images.clone())
                seen["dropped"].append(self.layers[1](torch.ones(200)))
            return super().forward(images)

    same_images = data.MemorySplit(dataset.train.images[:1].expand(64, -1, -1, -1), dataset.train.targets[:64])
    one = dataclasses.replace(dataset, train=same_images)
    settings = config("method=ce", "train.epochs=2", "train.batch_size=64")
    run_with(settings, one, Seeing(8))
    assert not torch.equal(seen["inputs"][0], seen["inputs"][1])
    assert not torch.equal(seen["dropped"][0], seen["dropped"][1])
    # And from seed to seed, with the same weights at first.
    first = {name: values[0] for name, values in seen.items()}
    run_with(settings.model_copy(update={"seed": 1}), one, Seeing(8))
    for name, values in seen.items():
        assert not torch.equal(values[2], first[name]), name


def test_order_and_filtered_images_depend_on_the_seed(dataset: data.Dataset) -> None:
    one, again, other = (set_up(config(f"seed={seed}", "train.start=0"), dataset).task.epoch(1) for seed in (0, 0, 1))
    for a, b, expected in ((one, again, True), (one, other, False)):
        assert torch.equal(torch.cat(list(a.indices(32))), torch.cat(list(b.indices(32)))) is expected
        assert torch.equal(a.filtered, b.filtered) is expected


def test_both_batches_have_crops_of_their_own(dataset: data.Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = watch_steps(monkeypatch)
    same_images = data.MemorySplit(dataset.train.images[:1].expand(64, -1, -1, -1), dataset.train.targets[:64])
    one = dataclasses.replace(dataset, train=same_images)
    train(config("method=rect-only", "train.epochs=1", "train.start=0", "train.batch_size=64"), one, progress=False)
    _, mix, original = steps[0]
    assert not torch.equal(mix.images, original.images)


def test_a_bad_step_before_a_pause_is_named_after_it() -> None:
    """Nothing is updated after it, whether the run was paused or not, and the error names it."""
    settings = load_config(
        "demo", ["method=ce", "data.train=160", "data.validation=32", "data.test=32", "train.batch_size=16"]
    )
    dataset = load_dataset(settings)

    def start(done: int = 0) -> tuple[TrainState, Task]:
        setup = set_up(settings, dataset)
        steps = itertools.count(done + 1)

        def prepare(*args: Any) -> Any:
            made = setup.task.prepare(*args)
            return replace(made, images=made.images * float("nan")) if next(steps) == 3 else made

        return setup.state, replace(setup.task, prepare=prepare)

    class PauseAtFive(Hooks):
        steps = 0

        def after_step(self) -> bool:
            self.steps += 1
            return self.steps == 5

    state, task = start()
    fit(state, task, hooks=PauseAtFive(), progress=False)
    saved = copy.deepcopy(state.state_dict())
    resumed, rest = start(5)
    resumed.model.load_state_dict(state.model.state_dict())
    resumed.load_state_dict(saved, [])
    with pytest.raises(DivergedError) as caught:
        fit(resumed, rest, progress=False)
    assert caught.value.step == 3
    pairs = zip(resumed.model.parameters(), state.model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs), "frozen since"


def test_validation_leaves_frozen_layers_as_they_are() -> None:
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.BatchNorm1d(12), torch.nn.Linear(12, 2)).train()
    model[1].eval()
    split = data.MemorySplit(torch.zeros(3, 3, 2, 2, dtype=torch.uint8), torch.zeros(3, dtype=torch.int64))
    predict(model, split, lambda images: images.float())
    assert [module.training for module in model] == [True, False, True]
    with pytest.raises(FloatingPointError, match="logits of 3 of 3 images are not finite"):
        predict(model, split, lambda images: images.float() + float("inf"))


def trained_alike(plain: Config, measuring: Config, dataset: data.Dataset, what: str) -> Trained:
    """Train with and without measuring something after epochs 2 and 4, to the same weights; returns the former."""
    without, seen = (train(one, dataset, progress=False) for one in (plain, measuring))
    assert same(without, seen)
    assert [entry["loss"] for entry in without.history] == [entry["loss"] for entry in seen.history]
    assert [entry["epoch"] for entry in seen.history if what in entry] == [2, 4]
    return seen


@pytest.mark.slow
def test_measuring_test_images_on_the_way_changes_nothing(dataset: data.Dataset) -> None:
    words = ["method=fgr", "train.start=0.25", 'evaluation.corruptions=["contrast", "gaussian_noise"]']
    config_with = config(*words, "evaluation.every=2")
    seen = trained_alike(config(*words), config_with, dataset, "test")
    last = seen.history[-1]["test"]
    assert last.keys() == {"clean", "shifted"}
    clean = predict(seen.model, dataset.test, seen.preprocess)
    assert last["clean"]["accuracy"] == pytest.approx((clean.logits.argmax(1) == clean.targets).double().mean().item())
    assert last["clean"]["confidence"] == pytest.approx(clean.logits.double().softmax(1).amax(1).mean().item())
    found = evaluate_with(config_with, seen.model, dataset, seen.preprocess, progress=False)
    middle = [
        sorted((c for c in found.shifts if c.shift == name), key=lambda c: c.severity)[2].ece
        for name in dict.fromkeys(cell.shift for cell in found.shifts)
    ]
    assert last["shifted"]["ece"] == pytest.approx(sum(middle) / len(middle), abs=1e-9)


def test_validation_images_need_not_be_measured_after_every_epoch(dataset: data.Dataset) -> None:
    seldom = config("method=ce", "evaluation.validate_every=3", "train.keep=best_nll", "train.epochs=5")
    each, rare = (train(one, dataset, progress=False) for one in (config("method=ce", "train.epochs=5"), seldom))
    assert [entry["epoch"] for entry in rare.history if "validation" in entry] == [3, 5], "the last one always"
    measured = {entry["epoch"]: entry["validation"] for entry in each.history}
    assert [entry["validation"] for entry in rare.history if "validation" in entry] == [measured[3], measured[5]]
    assert rare.epoch == min((3, 5), key=lambda epoch: measured[epoch]["nll"]), "the best of those measured"


@pytest.mark.parametrize("method", ["fgr", "fgr-released"])
def test_measuring_gradient_noise_on_the_way_changes_nothing(method: str, dataset: data.Dataset) -> None:
    words = [f"method={method}", "train.start=0.25", "train.keep=last"]
    config_with = config(*words, "evaluation.noise=[2, 4]")
    seen = trained_alike(config(*words), config_with, dataset, "noise")
    found = measure_noise(config_with, dataset, seen.model, pairs=16)
    for scope in ("all", "classifier"):
        last = seen.history[-1]["noise"][scope]
        assert last.keys() == {f"{n}{end}" for n in MEASURED for end in ("", "_error")}
        assert last["main_cosine"] == pytest.approx(found[scope].main_cosine.mean, abs=1e-6)
        assert last["cosine_error"] == pytest.approx(found[scope].cosine.error, abs=1e-6)
    assert Epoch.model_validate(seen.history[-1]).noise["all"]["norm"] > 0
    with pytest.raises(ParameterError, match=r"epochs in 1..4 .train.epochs.. Found `evaluation.noise = 9`"):
        config("evaluation.noise=[1, 9]")


@pytest.mark.slow
def test_what_was_measured_on_the_way_survives_an_interruption(dataset: data.Dataset, tmp_path: Path) -> None:
    words = ["method=ce", "evaluation.every=1", "evaluation.corruptions=[]"]
    whole = train(config(*words), dataset, progress=False)
    train(config(*words, "train.epochs=4"), dataset, checkpoints=tmp_path, progress=False)
    for path in sorted(tmp_path.glob("epoch-0004*")):
        shutil.rmtree(path)  # as if the process had been killed in the last epoch
    resumed = train(config(*words), dataset, checkpoints=tmp_path, resume=True, progress=False)
    assert [entry["test"] for entry in resumed.history] == [entry["test"] for entry in whole.history]


def test_max_ent_takes_the_class_prior_of_the_training_set(dataset: data.Dataset) -> None:
    few = dataset.train.targets != 0
    skewed = replace(dataset, train=dataset.train.take(few))
    setup = set_up(config("method=maxent"), skewed)
    logits, targets = torch.randn(6, 8, generator=torch.Generator().manual_seed(0)), torch.arange(6)
    inputs = Inputs(logits, targets, torch.zeros(6, dtype=torch.bool))
    shares = (torch.bincount(skewed.train.targets, minlength=8) / len(skewed.train)).double().tolist()
    assert shares[0] == 0
    expected = losses.max_ent(logits, targets, class_prior=[share / sum(shares) for share in shares])
    torch.testing.assert_close(setup.state.plain.main(logits, inputs), expected)
    assert not torch.isclose(expected, losses.max_ent(logits, targets))


def test_a_resumed_run_is_executed_as_the_whole_one(dataset: data.Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it is worth compiling is decided by the whole run's steps."""
    steps: list[int] = []

    class Watched(engine.Engine):
        def __init__(self, *args: Any, **options: Any) -> None:
            steps.append(options["steps"])
            super().__init__(*args, **options)

    monkeypatch.setattr("shiftcal.training.loop.Engine", Watched)
    setup = set_up(config("train.epochs=2"), dataset)
    fit(setup.state, setup.task, progress=False)
    setup.state.epochs_done = 1
    fit(setup.state, setup.task, progress=False)
    assert steps == [2 * setup.task.steps_per_epoch] * 2
