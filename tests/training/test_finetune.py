"""Training the classifier alone, on features kept from one pass."""

import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from stand_ins import write_class_folders
from torch import nn

from shiftcal import data
from shiftcal.data.dataset import Dataset
from shiftcal.data.epoch import MixedEpoch
from shiftcal.data.split import FeatureSplit
from shiftcal.experiments.config import Config, load_config
from shiftcal.experiments.finished import reevaluate
from shiftcal.experiments.run import complete
from shiftcal.experiments.setup import load_network, stage_of
from shiftcal.filtering import LowPassPolicy, dct_low_pass
from shiftcal.models import build, classifier_of
from shiftcal.training.finetune import HeadOnly, Stage, finetune, keep_features
from shiftcal.training.state import TrainState

SIZES = ["data.train=320", "data.validation=80", "data.test=80", "filter.ratio=0.1", "evaluation.corruptions=[]"]


def config(*words: str) -> Config:
    return load_config("demo", ["method=fgr", *SIZES, "finetune.epochs=3", "finetune.views=2", *words])


def stage(*words: str) -> Stage:
    return stage_of(config(*words))


def tuned(model: nn.Module, dataset: Dataset, *words: str) -> tuple[TrainState, float]:
    return finetune(model, dataset, stage(*words), progress=False)


def kept(model: nn.Module, dataset: Dataset, *words: str) -> FeatureSplit:
    return keep_features(HeadOnly(model), dataset, stage(*words), dataset.preprocess, progress=False)


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    return data.load("shapes", train=320, validation=80, test=80)


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    made = build("small", 8)
    for module in made.modules():
        if isinstance(module, nn.BatchNorm2d):  # statistics that training would change
            module.running_mean.normal_(std=0.1)
            module.running_var.uniform_(0.5, 1.5)
    return made


def test_only_the_classifier_changes(dataset: Dataset) -> None:
    for views in (0, 2):
        model = network()
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        tuned(model, dataset, f"finetune.views={views}")
        changed = {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}
        assert changed == {"classifier.weight", "classifier.bias"}


def test_features_are_what_the_classifier_gets(dataset: Dataset) -> None:
    model = network().eval()
    words = ["train.augment=none", "filter.qualities=[25]", "finetune.filtered_views=1", "evaluation.batch_size=77"]
    features = kept(model, dataset, *words)
    assert features.original.shape == (2, 320, 96)
    assert torch.equal(features.original[0], features.original[1]), "nothing is random without augmentation"
    assert torch.equal(features.targets, dataset.train.targets)
    head = classifier_of(model)[1]
    with torch.inference_mode():
        expected = model(dataset.preprocess(dataset.train.images))
        torch.testing.assert_close(head(features.original[0]), expected, rtol=1e-4, atol=1e-4)
        expected = model(dataset.preprocess(dct_low_pass(dataset.train.images, torch.full((320,), 25))))
        torch.testing.assert_close(head(features.filtered[0]), expected, rtol=1e-4, atol=1e-4)


def test_views_differ_and_depend_on_the_seed(dataset: Dataset) -> None:
    first, again, other = (kept(network(), dataset, f"seed={s}") for s in (0, 0, 1))
    assert torch.equal(first.original, again.original)
    assert torch.equal(first.filtered, again.filtered)
    assert not torch.equal(first.original, other.original)
    moved = (first.original[0] != first.original[1]).any(1).float().mean()
    assert moved > 0.9, "crops and flips differ from view to view"


def made_features() -> FeatureSplit:
    """Features that tell where they come from: kind, view and index."""
    original = torch.arange(3.0)[:, None, None] * 1000 + torch.arange(50.0)[None, :, None]
    filtered = 10_000 + torch.arange(2.0)[:, None, None] * 1000 + torch.arange(50.0)[None, :, None]
    return FeatureSplit(original, filtered, torch.arange(50) % 4)


def test_an_epoch_draws_views_of_originals_and_of_the_filtered_share() -> None:
    seen: dict[bool, set[int]] = {True: set(), False: set()}
    for epoch in range(20):
        mixed = MixedEpoch(made_features(), policy=LowPassPolicy(0.2, (15,)), seed=0, epoch=epoch)
        assert mixed.filtered.sum() == 10
        indices = []
        for batch in mixed.batches(16):
            values = batch.images.squeeze(1)
            assert torch.equal(values >= 10_000, batch.filtered)
            index = (values % 1000).long()
            assert torch.equal(batch.targets, index % 4)
            indices += index.tolist()
            for filtered in (True, False):
                seen[filtered] |= set((values[batch.filtered == filtered] // 1000).int().tolist())
        assert sorted(indices) == list(range(50))
        original = next(mixed.original_batches(16))
        assert (original.images < 10_000).all()
    assert seen == {True: {10, 11}, False: {0, 1, 2}}


def test_head_training_is_that_of_the_whole_loop_on_a_linear_model(dataset: Dataset) -> None:
    """With one view, no augmentation and no filter, kept features change nothing: weights agree with none kept."""
    words = ("method=rect-only", "train.augment=none", "finetune.views=1", "finetune.filtered_views=1")
    heads = []
    for views in (1, 0):
        model = network()
        run, seconds = tuned(model, dataset, *words, f"finetune.views={views}")
        assert (seconds > 0) == (views > 0)
        assert len(run.history) == 3
        heads.append(classifier_of(model)[1])
    torch.testing.assert_close(heads[0].weight, heads[1].weight, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(heads[0].bias, heads[1].bias, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("views", [0, 1])
def test_maxent_takes_the_prior_of_the_training_images(views: int, dataset: Dataset) -> None:
    rare = (dataset.train.targets < 2) | (torch.arange(320) < 160)
    uneven = replace(dataset, train=dataset.train.take(rare))
    words = ("method=maxent", "finetune.epochs=1", f"finetune.views={views}", "finetune.filtered_views=1")
    state, _ = tuned(network(), uneven, *words)
    counts = torch.bincount(uneven.train.targets, minlength=8) / len(uneven.train)
    assert state.full.main.args[0].keywords["class_prior"] == pytest.approx(counts.tolist())
    assert counts.max() > 1.5 * counts.min()


def test_settings_of_the_head(dataset: Dataset) -> None:
    words = ["finetune.gamma=5.0", "finetune.epochs=7", "finetune.learning_rate=0.3", "finetune.batch_size=32"]
    words += ["finetune.weight_decay=0.123", "train.optimizer=adamw", "train.momentum=0.5", "train.nesterov=true"]
    words += ["train.accumulate=4", "train.rectify_per=micro_batch", "train.clip_norm=2.0", "train.loss_reduction=sum"]
    own = stage(*words).train
    assert (own.weight_decay, own.optimizer, own.momentum, own.nesterov) == (0.123, "sgd", 0.9, False)
    assert (own.schedule, own.warmup) == ("cosine", 0.0)
    assert (own.accumulate, own.rectify_per) == (1, "batch")
    assert (own.epochs, own.learning_rate, own.batch_size) == (7, 0.3, 32)
    assert (own.start_epoch, own.loss_reduction, own.clip_norm) == (0, "mean", None)
    short = ["finetune.epochs=1", "finetune.gamma=5.0", "gamma.dfl=4.0", "engine.precision=bf16"]
    state, _ = tuned(network(), dataset, *short)
    assert state.full.main.args[0].keywords == {"gamma": 5.0}
    assert state.engine["precision"] == "fp32", "one small layer"
    state, _ = tuned(network(), dataset, *short, "finetune.views=0")
    assert state.engine["precision"] == "bf16"
    state, _ = tuned(network(), dataset, *short, "method=dfl")
    assert state.full.main.args[0].keywords == {"gamma": 4.0}


class Tail(nn.Module):
    """A model that does something after its last linear layer."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.inner = build("small", num_classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return 2 * self.inner(images)


def test_what_comes_after_the_classifier_is_an_error(dataset: Dataset) -> None:
    with pytest.raises(ValueError, match="`model` should be one whose logits are what its last linear layer returns"):
        kept(Tail(8), dataset)


def test_features_that_do_not_fit_are_an_error(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shiftcal.training.finetune.host_memory", lambda: 900_000)
    with pytest.raises(ValueError, match=r"`finetune.views` should be few enough that 320 images of 96 features"):
        kept(network(), dataset)


def test_a_method_that_mixes_images_is_refused(dataset: Dataset) -> None:
    with pytest.raises(ValueError, match="`method` should be one without mixup or AugMix, which need the images"):
        stage("method=fgr+augmix")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The checkpoint is right on")
def test_a_run_is_finetuned_resumed_and_evaluated_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = "train.mean=[0.1, 0.2, 0.3]"  # than the data set's
    base = complete(
        load_config("demo", ["method=ce", *SIZES, other, "train.epochs=2"]), tmp_path / "ce", progress=False
    )
    assert reevaluate(tmp_path / "ce", progress=False).evaluation.clean == base.evaluation.clean
    own = config(other, f"finetuned_from={tmp_path / 'ce'}")
    record = complete(own, tmp_path / "ft", progress=False)
    assert record.engine["loader"] == "memory"
    assert record.method == "fgr-finetuned"
    assert record.before.clean == base.evaluation.clean
    assert record.evaluation.clean != base.evaluation.clean
    assert record.seconds["features"] > 0
    assert [entry.active for entry in record.history] == [True] * 3
    again = reevaluate(tmp_path / "ft", progress=False)
    assert again.evaluation.clean == record.evaluation.clean

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("shiftcal.training.loop.describe", stop)  # after the first epoch's checkpoint
        with pytest.raises(KeyboardInterrupt):
            complete(own, tmp_path / "cut", progress=False)
    resumed = complete(own, tmp_path / "cut", resume=True, progress=False)
    assert resumed.evaluation.clean == record.evaluation.clean


def test_a_foreign_state_dict_and_a_wrong_one(tmp_path: Path, dataset: Dataset) -> None:
    torch.save({"state_dict": network(3).state_dict()}, tmp_path / "theirs.pt")
    own = config(f"finetuned_from={tmp_path / 'theirs.pt'}")
    loaded = load_network(own, dataset)
    assert torch.equal(classifier_of(loaded)[1].weight, classifier_of(network(3))[1].weight)
    few = dataset.train.take(dataset.train.targets < 5)
    with pytest.raises(ValueError, match=r"classifier.weight is \[8, 96\], the model's is \[5, 96\]"):
        load_network(own, replace(dataset, classes=("a", "b", "c", "d", "e"), train=few, validation=few, test=few))
    with pytest.warns(UserWarning, match=r"right on .* of the validation images, hardly more than by chance"):
        complete(own, tmp_path / "out", dataset=dataset, progress=False)


def test_a_timm_model_and_streamed_images(tmp_path: Path) -> None:
    timm = pytest.importorskip("timm")
    write_class_folders(tmp_path / "images", 3, 20)
    theirs = timm.create_model("resnet18", num_classes=3)
    torch.save(theirs.state_dict(), tmp_path / "theirs.pth")
    words = ["data.name=folder", f"data.root={tmp_path / 'images'}", "data.size=32", "data.loader=stream"]
    words += ["data.workers=0", "train.model=timm/resnet18", f"finetuned_from={tmp_path / 'theirs.pth'}"]
    made = load_config("demo", ["method=fgr", *words, "evaluation.corruptions=[]", "finetune.epochs=2"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its weights are random, as good as chance
        record = complete(made, tmp_path / "out", progress=False)
    assert len(record.history) == 2
    assert record.engine["loader"] == "stream"


def test_finetuning_lowers_the_loss_it_descends(dataset: Dataset) -> None:
    words = ["finetune.epochs=20", "finetune.learning_rate=0.5", "finetune.batch_size=32"]
    run, _ = tuned(network(), dataset, *words)
    assert run.history[-1]["loss"] < run.history[0]["loss"]


def test_the_seed_decides_the_order_of_features() -> None:
    epochs = [MixedEpoch(made_features(), policy=LowPassPolicy(0.1), seed=seed, epoch=0) for seed in (0, 0, 1)]
    first, again, other = (torch.cat(epoch.indices(10)) for epoch in epochs)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_an_interrupted_epoch_of_features_draws_what_is_left() -> None:
    whole, rest = (MixedEpoch(made_features(), policy=LowPassPolicy(0.2), seed=0, epoch=0) for _ in range(2))
    expected = [batch.images for batch in whole.batches(8)][3:]
    assert all(torch.equal(a, b.images) for a, b in zip(expected, rest.batches(8, skip=3), strict=True))


def test_two_classes_bring_no_word_about_chance(tmp_path: Path) -> None:
    write_class_folders(tmp_path / "images", 2, 20)
    torch.save(build("small", 2).state_dict(), tmp_path / "w.pt")
    words = ["data.name=folder", f"data.root={tmp_path / 'images'}", "data.size=16", "finetune.epochs=1"]
    made = load_config(
        "demo", ["method=fgr", *words, f"finetuned_from={tmp_path / 'w.pt'}", "evaluation.corruptions=[]"]
    )
    with pytest.warns(UserWarning, match="cut out of the training images") as told:
        complete(made, tmp_path / "out", progress=False)
    assert len(told) == 1


TWO_STAGES = ["method=fgr-released", "finetune.views=0", "finetune.filtered_views=0", "finetune.batch_statistics=true"]
TWO_STAGES += ["finetune.schedule=multi_step", "finetune.milestones=[2]", "finetune.clip_norm=2.0"]


def test_the_released_two_stages_move_batch_norms_statistics_and_nothing_else(dataset: Dataset) -> None:
    made = network()
    before = {name: tensor.clone() for name, tensor in made.state_dict().items()}
    state, _ = tuned(made, dataset, *TWO_STAGES)
    changed = {name for name, tensor in made.state_dict().items() if not torch.equal(tensor, before[name])}
    statistics = {name for name in before if "running" in name or "num_batches" in name}
    assert changed == statistics | {"classifier.weight", "classifier.bias"}
    assert stage(*TWO_STAGES).train.milestones == (2,)
    assert stage(*TWO_STAGES).train.clip_norm == 2.0
    assert state.history[-1]["learning_rate"] == pytest.approx(0.1 * state.history[0]["learning_rate"])


@pytest.mark.slow
def test_the_released_two_stages_keep_the_epoch_of_the_lowest_validation_ece(dataset: Dataset, tmp_path: Path) -> None:
    base = complete(config("method=ce", "train.epochs=2"), tmp_path / "ce", dataset=dataset, progress=False)
    words = [*TWO_STAGES, f"finetuned_from='{tmp_path / 'ce'}'", "finetune.learning_rate=0.3"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # two epochs are hardly better than chance
        record = complete(config(*words), tmp_path / "tuned", dataset=dataset, progress=False)
    errors = [entry.validation["ece"] for entry in record.history]
    assert record.weights.kept == "best_ece"
    assert record.weights.epoch == 1 + errors.index(min(errors))
    assert record.evaluation.validation.ece == pytest.approx(min(errors), abs=1e-6)
    assert record.before.clean.accuracy == base.evaluation.clean.accuracy


def test_what_needs_the_network_is_refused_where_features_are_kept() -> None:
    with pytest.raises(ValueError, match=r"`finetune.batch_statistics` should be false where features are kept"):
        stage("finetune.batch_statistics=true")
    with pytest.raises(ValueError, match=r"`train.keep` should be 'last' where features are kept"):
        stage("train.keep=best_ece")
    with pytest.raises(ValueError, match=r"`train.keep` should be the last epoch's or the best one's"):
        stage("train.keep=average")
