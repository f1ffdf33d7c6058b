import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from accelerate.state import AcceleratorState, GradientState
from transformers import EvalPrediction, Trainer

from shiftcal import GradientPair, losses, metrics
from shiftcal.data import shapes
from shiftcal.integrations.transformers import FGRTrainer, compute_calibration_metrics

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
import toy
from starting import start
from trainer_loop import Columns, Net, against_brier, against_soft_ece, arguments, conflicts, tiny_vit, train


@pytest.fixture(autouse=True)
def fresh_state() -> Iterator[None]:
    yield
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def by_hand(case: str, filtered: torch.Tensor | None = None) -> torch.Tensor:
    """The same training without the Trainer."""
    net, count = toy.net(), toy.micro_batches(case)
    constraint_loss = against_soft_ece if case == "gathered" else against_brier
    optimizer = torch.optim.SGD(net.parameters(), lr=0.3)
    x, y = toy.data().tensors
    kept = torch.ones_like(y, dtype=torch.bool) if filtered is None else ~filtered
    micro = torch.arange(toy.SAMPLES).split(toy.GLOBAL_BATCH // count)
    for _ in range(toy.EPOCHS):
        for first in range(0, len(micro), count):
            pair = GradientPair(net.parameters())
            for rows in micro[first : first + count]:
                logits, some = net(x[rows]), kept[rows]
                constraint = constraint_loss(logits[some], y[rows][some])
                pair.add(losses.dual_focal(logits, y[rows]) / count, constraint / count)
            optimizer.zero_grad()
            pair.backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            optimizer.step()
    return toy.flat(net)


@pytest.mark.parametrize("case", toy.CASES)
def test_one_process_trains_as_the_plain_loop_does(case: str, tmp_path: Path) -> None:
    trainer = train(case, tmp_path)
    assert any(conflicts(trainer)), "the rule had something to do"
    torch.testing.assert_close(toy.flat(trainer.model), by_hand(case), rtol=0, atol=1e-10)


@pytest.mark.slow
def test_two_ranks_train_as_one(tmp_path: Path) -> None:
    start(HERE / "trainer_loop.py", tmp_path / "found.pt", ranks=2)
    found = torch.load(tmp_path / "found.pt", weights_only=True)
    for case in toy.CASES:
        assert found[case]["apart"] == 0
        assert any(found[case]["conflicts"])
        torch.testing.assert_close(found[case]["weights"], by_hand(case), rtol=0, atol=1e-5)


def test_filtered_images_have_no_part_in_the_constraint(tmp_path: Path) -> None:
    """And the mask is not removed as a column that the model does not take."""
    filtered = torch.arange(toy.SAMPLES) % 3 == 0
    trainer = train("gathered", tmp_path, data=Columns(filtered.tolist()), eval_dataset=Columns(filtered.tolist()))
    torch.testing.assert_close(toy.flat(trainer.model), by_hand("gathered", filtered), rtol=0, atol=1e-10)
    assert not torch.allclose(toy.flat(trainer.model), by_hand("gathered"), atol=1e-4)
    assert trainer.evaluate()["eval_loss"] > 0


def test_before_its_epoch_there_is_no_constraint(tmp_path: Path) -> None:
    def logged(first: float) -> list[bool]:
        trainer = train("means", tmp_path, constrain_from=first)
        return ["conflict" in entry for entry in trainer.state.log_history if "loss" in entry]

    assert logged(1.0) == [False, False, True, True, True, True]

    class Plain(Trainer):
        def compute_loss(self, model: torch.nn.Module, inputs: dict, **_: object) -> torch.Tensor:
            return losses.dual_focal(model(inputs["pixel_values"]).logits, inputs["labels"])

    trainer = Plain(Net(), arguments(tmp_path, per_device_train_batch_size=24), train_dataset=Columns())
    trainer.train()
    alone = train("means", tmp_path, constrain_from=toy.EPOCHS + 1.0)
    torch.testing.assert_close(toy.flat(alone.model), toy.flat(trainer.model), rtol=0, atol=1e-12)


@pytest.mark.parametrize("bf16", [False, True])
def test_a_tiny_vit_trains_and_is_evaluated(bf16: bool, tmp_path: Path) -> None:
    dataset = shapes(train=128, validation=64, test=8)

    def rows(split: object) -> list[dict]:
        images = dataset.preprocess(split.images)
        return [{"pixel_values": image, "labels": int(y)} for image, y in zip(images, split.targets, strict=True)]

    options = {"learning_rate": 3e-3, "optim": "adamw_torch", "per_device_train_batch_size": 32, "bf16": bf16}
    trainer = FGRTrainer(
        tiny_vit(8), arguments(tmp_path, **options), train_dataset=rows(dataset.train),
        eval_dataset=rows(dataset.validation), compute_metrics=compute_calibration_metrics,
    )  # fmt: skip
    before = losses.cross_entropy(trainer.model(dataset.preprocess(dataset.train.images)).logits, dataset.train.targets)
    trainer.train()
    after = losses.cross_entropy(trainer.model(dataset.preprocess(dataset.train.images)).logits, dataset.train.targets)
    assert after < before
    found = trainer.evaluate()
    trainer.model.eval()
    with torch.no_grad():
        logits = trainer.model(dataset.preprocess(dataset.validation.images)).logits.double()
    tolerance = 0.05 if bf16 else 1e-5
    assert found["eval_ece"] == pytest.approx(
        metrics.ece(logits.softmax(-1), dataset.validation.targets), abs=tolerance
    )
    assert {"eval_nll", "eval_classwise_ece", "eval_adaptive_ece", "eval_brier", "eval_mce"} <= set(found)


def test_metrics_take_what_trainers_hand_over() -> None:
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(50, 4)).astype(np.float32), rng.integers(0, 4, 50)
    plain = compute_calibration_metrics(EvalPrediction(logits, labels))
    assert plain == compute_calibration_metrics(EvalPrediction((logits, logits[:, :1]), labels))
    p = torch.from_numpy(logits).double().softmax(-1)
    assert plain["ece"] == pytest.approx(metrics.ece(p, torch.from_numpy(labels)))
    assert plain["adaptive_ece"] == pytest.approx(metrics.adaptive_ece(p, torch.from_numpy(labels)))
    with pytest.raises(ValueError, match=r"`prediction` should be logits of shape \[N, K\]"):
        compute_calibration_metrics(EvalPrediction(logits[:, :, None], labels))


def test_wrong_use_is_answered(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="`rule` should be one of"):
        FGRTrainer(Net(), arguments(tmp_path), rule="rectfy")
    with pytest.raises(ValueError, match="`compute_loss_func` should be None: give `main_loss`"):
        FGRTrainer(Net(), arguments(tmp_path), compute_loss_func=print)
    with pytest.raises(ValueError, match=r"`args` should be without FSDP and DeepSpeed.*fsdp"):
        FGRTrainer(Net(), arguments(tmp_path, fsdp="full_shard"))
    given = arguments(tmp_path)
    given.deepspeed = "zero.json"  # as the package deepspeed, if it is installed, leaves it
    with pytest.raises(ValueError, match=r"`args` should be without FSDP and DeepSpeed.*deepspeed=zero.json"):
        FGRTrainer(Net(), given)
