import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.plugins import MixedPrecision
from lightning.pytorch.strategies import FSDPStrategy, ModelParallelStrategy
from torch.utils.data import DataLoader

from shiftcal import ConstraintMomentum, GradientPair, Images, losses
from shiftcal.data import MemorySplit, Preprocessing, shapes
from shiftcal.integrations.lightning import AuditCallback, RectifiedModule
from shiftcal.records.audit import read_audit

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
import toy
from lightning_loop import QUIET, Classifier, Net, audited, fit
from starting import start

pytestmark = [
    # Lightning 2.6 with torch 2.13
    pytest.mark.filterwarnings("ignore:`isinstance\\(treespec, LeafSpec\\)` is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:The number of training batches"),
    pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no `val_dataloader`"),
]


def by_hand(case: str, remainder: int | None = None) -> torch.Tensor:
    """The same training without Lightning."""
    net = toy.net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.3, momentum=0.9, weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    count = toy.micro_batches(case) if remainder is None else remainder
    loader = list(DataLoader(toy.data(), toy.GLOBAL_BATCH // toy.micro_batches(case)))
    for _ in range(toy.EPOCHS):
        for first in range(0, len(loader), count):
            optimizer.zero_grad()
            pair, group = GradientPair(net.parameters()), loader[first : first + count]
            for x, y in group:
                main, constraint = toy.both_losses(case, net(x), y)
                pair.add(main / len(group), constraint / len(group))
            pair.backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            optimizer.step()
            scheduler.step()
    return toy.flat(net)


@pytest.mark.parametrize("case", toy.CASES)
def test_a_module_trains_as_the_plain_loop_does(case: str) -> None:
    """Clipping, accumulation and a scheduler that steps with the optimiser included."""
    module = fit(case)
    assert any(module.conflicts), "the rule had something to do"
    torch.testing.assert_close(toy.flat(module), by_hand(case), rtol=0, atol=1e-12)


def test_the_last_batches_of_an_epoch_are_averaged_over_their_number() -> None:
    module = Net("accumulated")  # four micro-batches an epoch, three at a time
    module.accumulate = 3
    loader = DataLoader(toy.data(), toy.GLOBAL_BATCH // 2)
    Trainer(max_epochs=toy.EPOCHS, **QUIET).fit(module, loader)
    torch.testing.assert_close(toy.flat(module), by_hand("accumulated", remainder=3), rtol=0, atol=1e-12)


@pytest.mark.slow
def test_two_ranks_train_as_one(tmp_path: Path) -> None:
    start(HERE / "lightning_loop.py", tmp_path / "found.pt", ranks=2)
    found = torch.load(tmp_path / "found.pt", weights_only=True)
    for case in toy.CASES:
        assert found[case]["apart"] == 0
        assert any(found[case]["conflicts"])
        torch.testing.assert_close(found[case]["weights"], by_hand(case), rtol=0, atol=1e-5)
    assert found["audited"] == pytest.approx(audited(), rel=1e-6)


class Single(Net):
    """The same in single precision."""

    def __init__(self) -> None:
        super().__init__()
        self.net.float()

    def both_losses(self, batch: Any, batch_idx: int) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = batch
        logits = self(x.float())
        self.seen = logits.dtype
        return toy.both_losses(self.case, logits, y)


def test_bf16_trains_nearly_as_float32() -> None:
    plain, half = fit("means", module=Single()), fit("means", module=Single(), precision="bf16-mixed")
    assert (plain.seen, half.seen) == (torch.float32, torch.bfloat16)
    assert all(p.dtype == torch.float32 for p in half.parameters())
    assert not torch.equal(toy.flat(half), toy.flat(plain))
    torch.testing.assert_close(toy.flat(half), toy.flat(plain), rtol=0, atol=0.02)


@pytest.mark.parametrize("momentum", [False, True])
def test_a_scaler_changes_nothing_and_clipping_sees_unscaled_gradients(momentum: bool) -> None:
    def trained(scale: float) -> torch.Tensor:
        module = Single()
        module.constraint_momentum = ConstraintMomentum(0.5) if momentum else None
        scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=2)  # the scale changes on the way
        fit("means", module=module, plugins=[MixedPrecision("16-mixed", "cpu", scaler=scaler)])
        assert module.seen == torch.float16
        return toy.flat(module.net)

    torch.testing.assert_close(trained(1.0), trained(1024.0), rtol=0, atol=2e-3)


def test_without_a_constraint_the_main_loss_trains_alone() -> None:
    class WarmUp(Net):
        def both_losses(self, batch: Any, batch_idx: int) -> tuple[torch.Tensor, torch.Tensor | None]:
            main, constraint = super().both_losses(batch, batch_idx)
            return main, None if self.current_epoch < 2 else constraint

    warm = fit("means", module=WarmUp())
    assert warm.conflicts[:4] == [False] * 4
    assert any(warm.conflicts[4:])

    class Plain(Net):
        def both_losses(self, batch: Any, batch_idx: int) -> tuple[torch.Tensor, None]:
            return super().both_losses(batch, batch_idx)[0], None

    class Automatic(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = toy.net()

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            return losses.dual_focal(self.net(batch[0]), batch[1])

        configure_optimizers = Net.configure_optimizers

    plain, automatic = Plain(), Automatic()
    fit("means", module=plain)
    Trainer(max_epochs=toy.EPOCHS, gradient_clip_val=0.5, **QUIET).fit(automatic, DataLoader(toy.data(), 24))
    torch.testing.assert_close(toy.flat(plain), toy.flat(automatic), rtol=0, atol=1e-12)


def test_schedulers_of_epochs_and_plateaus_step_as_under_automatic_optimisation() -> None:
    class Scheduled(Net):
        def __init__(self, kind: str) -> None:
            super().__init__()
            self.kind, self.rates = kind, []
            self.plateau_metric = "level" if kind == "plateau" else None

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.log("level", 1.0)

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=0.3)
            of = torch.optim.lr_scheduler
            scheduler = (
                of.StepLR(optimizer, 1, 0.5) if self.kind == "epoch" else of.ReduceLROnPlateau(optimizer, patience=0)
            )
            return [optimizer], [scheduler]

        def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
            self.rates.append(self.optimizers().param_groups[0]["lr"])

    def rates(kind: str) -> list[float]:
        module, loader = Scheduled(kind), DataLoader(toy.data(), 24)
        Trainer(max_epochs=3, num_sanity_val_steps=0, **QUIET).fit(module, loader, loader)
        return module.rates

    assert rates("epoch") == pytest.approx([0.3, 0.3, 0.15, 0.15, 0.075, 0.075])
    assert rates("plateau") == pytest.approx([0.3, 0.3, 0.3, 0.3, 0.03, 0.03])
    with pytest.raises(ValueError, match=r"`plateau_metric` should be a metric that is logged \(level\)"):
        rates("unknown")


def test_the_running_mean_is_in_the_checkpoint(tmp_path: Path) -> None:
    module = Net()
    module.constraint_momentum = ConstraintMomentum(0.9)
    trainer = Trainer(max_epochs=1, **QUIET)
    trainer.fit(module, DataLoader(toy.data(), 24))
    trainer.save_checkpoint(tmp_path / "kept.ckpt")
    kept = torch.load(tmp_path / "kept.ckpt", weights_only=False)["state_dict"]
    assert torch.equal(kept["constraint_momentum.mean"], module.constraint_momentum.mean)
    again = Net()
    again.constraint_momentum = ConstraintMomentum(0.9)
    again.load_state_dict(kept)
    assert torch.equal(again.constraint_momentum.mean, module.constraint_momentum.mean)


def test_wrong_use_is_answered() -> None:
    module = Net()
    module.automatic_optimization = True
    with pytest.raises(ValueError, match="`automatic_optimization` should be False: Lightning's automatic"):
        fit("means", module=module)
    with pytest.raises(MisconfigurationException, match="not supported for manual optimization"):
        fit("means", gradient_clip_val=1.0)
    nothing = Net()
    nothing.accumulate = 0
    with pytest.raises(ValueError, match="`accumulate` should be an integer of at least 1"):
        RectifiedModule.rectified_step(nothing, torch.zeros(()), None, 0)
    with pytest.raises(NotImplementedError, match="should define `both_losses"):
        RectifiedModule().both_losses(None, 0)

    class Two(Net):
        def configure_optimizers(self) -> Any:
            return [torch.optim.SGD(self.parameters(), lr=0.1) for _ in range(2)]

    with pytest.raises(ValueError, match="`configure_optimizers` should be a function that returns one optimiser"):
        fit("means", module=Two())


@pytest.mark.parametrize("strategy", [FSDPStrategy, ModelParallelStrategy])
def test_strategies_that_shard_are_refused(strategy: type) -> None:
    """On a CPU Lightning refuses them itself, so that the Trainer is given one afterwards."""
    module = Net()
    trainer = Trainer(max_epochs=1, **QUIET)
    trainer.strategy.connect(module)
    module.trainer = trainer
    trainer._accelerator_connector.strategy = strategy()
    with pytest.raises(ValueError, match=f"`strategy` should be one that leaves parameters whole.*{strategy.__name__}"):
        module.on_fit_start()


@pytest.fixture(scope="module")
def splits() -> tuple[MemorySplit, Preprocessing]:
    dataset = shapes(train=64, validation=8, test=8)
    return dataset.train, dataset.preprocess


@pytest.mark.parametrize("at", ["fit", "validation", "test"])
def test_an_audit_is_logged_and_written(at: str, splits: tuple[MemorySplit, Preprocessing], tmp_path: Path) -> None:
    split, preprocess = splits
    loader = DataLoader(list(zip(split.images, split.targets, strict=True)), 32)
    given = {"fit": (split.images, split.targets), "validation": loader, "test": Images("shapes", ("a",) * 8, split)}
    callback = AuditCallback(given[at], preprocess, out=tmp_path / "audit", at=at, corruptions=("contrast",))
    module = Classifier()
    trainer = Trainer(max_epochs=2, callbacks=[callback], precision="bf16-mixed" if at == "test" else None, **QUIET)
    if at == "test":
        trainer.test(module, loader, verbose=False)
    else:
        trainer.fit(module, loader, loader)
    logged = {name: float(value) for name, value in trainer.callback_metrics.items()}
    record = callback.record
    assert (record.clean.n, len(record.shifts)) == (64, 5)
    for name, cell in (("clean", record.clean), ("shifted", record.shifted)):
        for metric in ("accuracy", "nll", "ece"):
            assert logged[f"audit/{name}_{metric}"] == pytest.approx(getattr(cell, metric), rel=1e-5)
    assert "<html" in (tmp_path / "audit" / "audit.html").read_text(encoding="utf-8")
    assert read_audit(tmp_path / "audit").clean.ece == pytest.approx(record.clean.ece)
    logits = module(preprocess(split.images)).double()
    if at != "test":
        assert record.clean.accuracy == pytest.approx(float((logits.argmax(1) == split.targets).double().mean()))


@pytest.mark.parametrize(
    ("size", "given", "expected"), [(32, None, "cifar"), (64, None, "tiny-imagenet"), (64, "cifar", "cifar")]
)
def test_severities_are_those_of_the_nearest_image_size(size: int, given: str | None, expected: str) -> None:
    images = (torch.zeros(4, 3, size, size, dtype=torch.uint8), torch.arange(4))
    assert AuditCallback(images, Preprocessing((0.5,) * 3, (0.5,) * 3), constants=given).constants == expected


def test_an_audit_of_normalised_images_is_refused(splits: tuple[MemorySplit, Preprocessing]) -> None:
    split, preprocess = splits
    with pytest.raises(ValueError, match="`images` should be uint8, as they are stored"):
        AuditCallback((preprocess(split.images), split.targets), preprocess)
    with pytest.raises(ValueError, match="`images` should be at least one batch"):
        AuditCallback([], preprocess)


@pytest.mark.parametrize("fit", [True, False])
def test_targets_may_lack_the_last_classes(fit: bool, splits: tuple[MemorySplit, Preprocessing]) -> None:
    split, preprocess = splits
    few = split.take(split.targets < 6)
    callback = AuditCallback((few.images, few.targets), preprocess, at="fit" if fit else "test", corruptions=())
    trainer = Trainer(max_epochs=1, callbacks=[callback], **QUIET)
    module, loader = Classifier(), DataLoader(list(zip(few.images, few.targets, strict=True)), 32)
    if fit:
        trainer.fit(module, loader)
    else:
        trainer.test(module, loader, verbose=False)
    assert callback.record.clean.n == len(few)
    assert callback.images.classes == tuple("01234567")


def test_an_audit_that_cannot_be_is_told_before_training(splits: tuple[MemorySplit, Preprocessing]) -> None:
    split, preprocess = splits
    images = [split.images, split.targets]  # as a TensorDataset's collate gives them
    for options, message in (
        ({"corruptions": ("fogg",)}, "Did you mean 'fog'"),
        ({"constants": "mnist"}, "`constants` should be"),
        ({"bins": 0}, "`bins` should be an integer"),
        ({"batch_size": 0}, "`batch_size` should be an integer"),
        ({"classes": ("a", "b")}, "`classes` should be 8 names at least"),
    ):
        with pytest.raises(ValueError, match=message):
            AuditCallback(images, preprocess, **options)
    module = Classifier()
    before = toy.flat(module)
    trainer = Trainer(max_epochs=1, callbacks=[AuditCallback(images, preprocess, classes=tuple("abcdefghi"))], **QUIET)
    with pytest.raises(ValueError, match=r"an output for each of the 9 classes\. Found `model = 8 outputs"):
        trainer.fit(module, DataLoader(list(zip(*images, strict=True)), 32))
    assert torch.equal(toy.flat(module), before)


@pytest.mark.parametrize(("batches", "accumulate", "most", "steps"), [(4, 3, -1, 6), (4, 3, 5, 5), (4, 1, -1, 12)])
def test_steps_of_the_optimiser_are_known_before_the_fit(batches: int, accumulate: int, most: int, steps: int) -> None:
    class Planned(Net):
        def configure_optimizers(self) -> Any:
            self.planned = self.optimizer_steps
            return super().configure_optimizers()

    module = Planned()
    module.accumulate = accumulate
    trainer = Trainer(max_epochs=3, max_steps=most, **QUIET)
    trainer.fit(module, DataLoader(toy.data(), len(toy.data()) // batches))
    assert module.planned == trainer.global_step == steps


def test_steps_without_an_end_are_asked_for() -> None:
    class Planned(Net):
        def configure_optimizers(self) -> Any:
            return torch.optim.lr_scheduler.CosineAnnealingLR(super().configure_optimizers(), self.optimizer_steps)

    trainer = Trainer(max_epochs=-1, max_time={"seconds": 60}, **QUIET)
    with pytest.raises(ValueError, match="`max_steps` should be given"):
        trainer.fit(Planned(), DataLoader(toy.data(), 8))
