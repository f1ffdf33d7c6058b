"""What every loss must satisfy; every public loss is found by itself."""

import inspect
from collections.abc import Callable

import pytest
import torch

from shiftcal import losses

Loss = Callable[..., torch.Tensor]
ALL: list[Loss] = [getattr(losses, name) for name in losses.__all__]
REDUCED = [loss for loss in ALL if "reduction" in inspect.signature(loss).parameters]
each_loss = pytest.mark.parametrize("loss", ALL, ids=lambda loss: loss.__name__)


def extremes() -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(5)
    huge = 1e4 * torch.randn(16, 10, generator=generator)
    targets = torch.randint(0, 10, (16,), generator=generator)
    return {
        "magnitude 1e4": (huge, targets),
        "all right and sure": (1e4 * torch.eye(10), torch.arange(10)),
        "all wrong and sure": (1e4 * torch.eye(10), (torch.arange(10) + 1) % 10),
        "all equal": (torch.zeros(6, 10), torch.arange(6)),
        "one sample": (torch.randn(1, 10, generator=generator), torch.tensor([3])),
        "two classes": (torch.randn(9, 2, generator=generator), torch.arange(9) % 2),
        "two classes, sure": (torch.tensor([[1e4, -1e4]] * 4), torch.tensor([0, 1, 0, 1])),
    }


@each_loss
@pytest.mark.parametrize("case", extremes())
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_finite_at_the_extremes(loss: Loss, case: str, dtype: torch.dtype) -> None:
    logits, targets = extremes()[case]
    logits = logits.to(dtype).requires_grad_()
    value = loss(logits, targets)
    value.backward()
    assert value.shape == ()
    assert value.dtype == torch.promote_types(dtype, torch.float32)
    assert value.isfinite()
    assert logits.grad.isfinite().all()


@each_loss
def test_right_under_autocast(loss: Loss) -> None:
    logits, targets = torch.randn(32, 10), torch.arange(32) % 10
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = loss(logits.bfloat16(), targets)
    torch.testing.assert_close(value, loss(logits.bfloat16().float(), targets))


@each_loss
def test_order_of_samples_is_irrelevant_and_inputs_stay(loss: Loss) -> None:
    logits, targets = torch.randn(32, 10, dtype=torch.float64), torch.arange(32) % 10
    before = logits.clone(), targets.clone()
    order = torch.randperm(32)
    torch.testing.assert_close(loss(logits[order], targets[order]), loss(logits, targets))
    assert torch.equal(logits, before[0])
    assert torch.equal(targets, before[1])


@pytest.mark.usefixtures("unchecked")
@each_loss
def test_can_be_traced(loss: Loss) -> None:
    torch.compiler.reset()
    logits, targets = torch.randn(8, 4), torch.arange(8) % 4
    torch.testing.assert_close(
        torch.compile(loss, fullgraph=True, backend="eager")(logits, targets), loss(logits, targets)
    )


@each_loss
def test_target_types(loss: Loss) -> None:
    logits, targets = torch.randn(8, 4), torch.arange(8) % 4
    torch.testing.assert_close(loss(logits, targets.to(torch.int32)), loss(logits, targets))


@pytest.mark.parametrize("loss", REDUCED, ids=lambda loss: loss.__name__)
def test_reductions_agree(loss: Loss) -> None:
    logits, targets = torch.randn(8, 4), torch.arange(8) % 4
    values = loss(logits, targets, reduction="none")
    assert values.shape == (8,)
    torch.testing.assert_close(loss(logits, targets), values.mean())
    torch.testing.assert_close(loss(logits, targets, reduction="sum"), values.sum())
    with pytest.raises(
        ValueError, match=r"`reduction` should be 'none', 'mean' or 'sum'. Found `reduction = 'median'`"
    ):
        loss(logits, targets, reduction="median")


@pytest.mark.usefixtures("unchecked")
@each_loss
@pytest.mark.parametrize(
    ("logits", "targets", "message"),
    [
        (
            torch.randn(4, 3),
            torch.zeros(4),
            "`targets` should be integer class indices. Found `targets = torch.float32`",
        ),
        (torch.randn(4, 3), torch.zeros(5, dtype=torch.int64), "`targets` should be of shape .4., one per sample"),
        (torch.randn(4), torch.zeros(4, dtype=torch.int64), "`logits` should be of shape .N, K."),
        (torch.randn(4, 1), torch.zeros(4, dtype=torch.int64), "K ≥ 2. Found `logits = .4, 1."),
        (torch.randn(0, 3), torch.zeros(0, dtype=torch.int64), "N ≥ 1 and K ≥ 2. Found `logits = .0, 3."),
        (torch.ones(4, 3, dtype=torch.int64), torch.zeros(4, dtype=torch.int64), "`logits` should be floating point"),
    ],
)
def test_bad_input(loss: Loss, logits: torch.Tensor, targets: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        loss(logits, targets)


@each_loss
def test_is_documented(loss: Loss) -> None:
    first = (loss.__doc__ or "").partition("\n")[0]
    assert "log p_y" in first or "(" in first, "the first line names the equation or the paper"
    assert "Example:" in loss.__doc__
