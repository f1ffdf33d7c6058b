import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import DistributedType
from torch.utils.data import DataLoader

from shiftcal import ConstraintMomentum, rectified_backward
from shiftcal.integrations.accelerate import accelerated_backward

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
import toy
from accelerate_loop import train
from starting import start


@pytest.fixture
def accelerator() -> Iterator[Accelerator]:
    yield Accelerator(cpu=True)
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def by_hand(case: str, clip: float = 0.5) -> torch.Tensor:
    """The same training without an accelerator."""
    net, count = toy.net(), toy.micro_batches(case)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.3, momentum=0.9, weight_decay=0.01)
    for _ in range(toy.EPOCHS):
        for number, (x, y) in enumerate(DataLoader(toy.data(), toy.GLOBAL_BATCH // count), 1):
            main, constraint = toy.both_losses(case, net(x), y)
            rectified_backward(main / count, constraint / count, net.parameters())
            if number % count == 0:
                torch.nn.utils.clip_grad_norm_(net.parameters(), clip)
                optimizer.step()
                optimizer.zero_grad()
    return toy.flat(net)


@pytest.mark.parametrize("case", toy.CASES)
def test_one_process_trains_as_the_plain_loop_does(case: str, accelerator: Accelerator) -> None:
    net, conflicts = train(case, accelerator)
    assert any(conflicts), "the rule had something to do"
    torch.testing.assert_close(toy.flat(net), by_hand(case), rtol=0, atol=1e-12)


@pytest.mark.slow
def test_two_ranks_train_as_one(tmp_path: Path) -> None:
    start(HERE / "accelerate_loop.py", tmp_path / "found.pt", ranks=2)
    found = torch.load(tmp_path / "found.pt", weights_only=True)
    for case in toy.CASES:
        assert found[case]["apart"] == 0
        assert any(found[case]["conflicts"])
        torch.testing.assert_close(found[case]["weights"], by_hand(case), rtol=0, atol=1e-5)


def test_a_scaler_changes_nothing(accelerator: Accelerator) -> None:
    """float16 needs a GPU, its scaler does not; without float16 the accelerator does not unscale before it clips."""
    accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
    net, _ = train("means", accelerator, clip=1e9)
    assert accelerator.scaler.get_scale() > 1024
    torch.testing.assert_close(toy.flat(net), by_hand("means", clip=1e9), rtol=0, atol=1e-10)


def test_with_a_running_mean_the_constraint_is_not_scaled(accelerator: Accelerator) -> None:
    accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    w, state = torch.ones(2, requires_grad=True), ConstraintMomentum(0.5)
    accelerated_backward(accelerator, w.sum(), w[0] - w[1], [w], state=state)
    assert state.mean.tolist() == [0.5, -0.5]
    assert w.grad.tolist() == [1024.0, 1024.0]


@pytest.mark.parametrize("kind", ["FSDP", "DEEPSPEED", "MEGATRON_LM"])
def test_sharding_is_refused(kind: str, accelerator: Accelerator) -> None:
    accelerator.state.distributed_type = DistributedType[kind]
    w = torch.ones(2, requires_grad=True)
    with pytest.raises(ValueError, match=f"`accelerator` should be one that leaves parameters whole.*{kind}"):
        accelerated_backward(accelerator, w.sum(), w.prod(), [w])
