"""`rectified_backward` and `gather` in a user's loop on two ranks, and parameters that are shards."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from shiftcal import gather, losses, rectified_backward

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
from user_loops import CASES, train


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("ranks") / "found.pt"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "default"}
    done = subprocess.run(
        [*command, str(HERE / "user_loops.py"), str(out)],
        capture_output=True, text=True, check=False, timeout=120, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return torch.load(out, weights_only=True)


@pytest.mark.parametrize("case", CASES)
def test_ranks_stay_equal(case: str, two_ranks: dict[str, Any]) -> None:
    assert two_ranks[case]["apart"] == 0
    assert any(two_ranks[case]["conflicts"]), "the rule had something to do"


@pytest.mark.parametrize("case", [case for case in CASES if case not in ("ddp unused", "micro-batches")])
def test_two_ranks_are_one_process_with_the_global_batch(case: str, two_ranks: dict[str, Any]) -> None:
    net, conflicts = train(case, 0, 1)
    expected = torch.cat([p.detach().flatten() for p in net.parameters()])
    torch.testing.assert_close(two_ranks[case]["weights"], expected, rtol=0, atol=1e-9)
    assert two_ranks[case]["conflicts"] == conflicts


def test_micro_batches_collected_for_one_rule_are_the_whole_batch(two_ranks: dict[str, Any]) -> None:
    torch.testing.assert_close(two_ranks["micro-batches"]["weights"], two_ranks["plain"]["weights"], rtol=0, atol=1e-9)


def test_a_parameter_that_another_rank_uses_gets_its_gradient(two_ranks: dict[str, Any]) -> None:
    net, _ = train("plain", 0, 1)
    before = torch.cat([p.detach().flatten() for p in net.extra.parameters()])
    start = sum(p.numel() for p in net.hidden.parameters())
    assert not torch.equal(two_ranks["ddp unused"]["weights"][start : start + len(before)], before)


def test_a_group_of_one_averages_over_nothing(two_ranks: dict[str, Any]) -> None:
    assert two_ranks["alone"]


def test_without_a_group_nothing_is_gathered() -> None:
    logits, targets = torch.randn(4, 3), torch.arange(4) % 3
    assert gather(logits, targets) == (logits, targets)


class FlatParameter(torch.nn.Parameter):
    """Named as FSDP's."""


class DTensor(torch.Tensor):
    """Named as FSDP2's."""


def deepspeed() -> torch.nn.Parameter:
    shard = torch.nn.Parameter(torch.ones(2))
    shard.ds_id = 3
    return shard


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda: FlatParameter(torch.ones(2)), "FSDP"),
        (lambda: torch.ones(2).as_subclass(DTensor).requires_grad_(), "FSDP"),
        (deepspeed, "DeepSpeed"),
    ],
    ids=["FSDP", "FSDP2", "DeepSpeed"],
)
def test_shards_are_refused_with_what_to_do(make: Any, kind: str) -> None:
    shard = make()
    expected = rf"`parameters` should be whole on every rank.*DistributedDataParallel.*a shard of {kind}"
    with pytest.raises(ValueError, match=expected):
        rectified_backward(torch.ones(1, requires_grad=True).sum(), torch.ones(1, requires_grad=True).sum(), [shard])


def test_a_real_fsdp_shard_is_refused() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.distributed.init_process_group("gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
    try:
        model = torch.nn.Linear(4, 3)
        fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
        logits = torch.randn(5, 3, requires_grad=True)
        y = torch.arange(5) % 3
        with pytest.raises(ValueError, match="a shard of FSDP"):
            rectified_backward(losses.cross_entropy(logits, y), losses.soft_ece(logits, y), model.parameters())
    finally:
        torch.distributed.destroy_process_group()


def test_a_scaler_and_clipping_work_as_they_do_with_backward() -> None:
    """GradScaler on a CPU: the scaled gradient is unscaled, and a bad one skips the step."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    x, y = torch.randn(8, 4), torch.arange(8) % 3

    def gradient(scale: float) -> torch.Tensor:
        model.zero_grad()
        logits = model(x)
        rectified_backward(scale * losses.dual_focal(logits, y), scale * losses.soft_ece(logits, y), model.parameters())
        return model.weight.grad.clone()

    expected = gradient(1.0)
    torch.testing.assert_close(gradient(256.0) / 256, expected)
    scaler.scale(torch.zeros(()))  # the scaler makes its state with the first loss
    scaler.unscale_(optimizer)
    torch.testing.assert_close(model.weight.grad, expected)
    before = model.weight.detach().clone()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    scaler.step(optimizer)
    scaler.update()
    assert 0 < (model.weight - before).norm() <= 0.1 * 0.0101
    before = model.weight.detach().clone()
    gradient(float("inf"))
    scaler.step(optimizer)
    scaler.update()
    assert torch.equal(model.weight, before)


@pytest.fixture
def one_rank() -> Iterator[None]:
    torch.distributed.init_process_group("gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("inner", [False, True], ids=["root alone", "layers too"])
def test_fsdp2_is_refused_after_a_forward_pass(inner: bool) -> None:
    """Its parameters are then unsharded and look like any others."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 3))
    mesh = init_device_mesh("cpu", (1,))
    for module in ([model[0]] if inner else []) + [model]:
        fully_shard(module, mesh=mesh)
    y = torch.arange(5) % 3
    logits = model(torch.randn(5, 4))
    with pytest.raises(ValueError, match="a shard of FSDP"):
        rectified_backward(losses.cross_entropy(logits, y), losses.soft_ece(logits, y), model.parameters())
    rectified = torch.nn.Linear(4, 3)  # another model beside it is none of FSDP's business
    logits = rectified(torch.randn(5, 4))
    rectified_backward(losses.cross_entropy(logits, y), losses.soft_ece(logits, y), rectified.parameters())


@pytest.mark.usefixtures("one_rank")
def test_a_group_without_this_rank_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "get_rank", lambda group=None: 0 if group is None else -1)
    w = torch.ones(2, requires_grad=True)
    with pytest.raises(ValueError, match="`process_group` should be one that this rank is in"):
        rectified_backward(w.sum(), w.prod(), [w], process_group=object())
    with pytest.raises(ValueError, match="`process_group` should be one that this rank is in"):
        gather(torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64), object())


def test_parameters_of_fsdp1_with_use_orig_params_are_refused() -> None:
    w = torch.nn.Parameter(torch.ones(2))
    w._fsdp_flattened = True
    with pytest.raises(ValueError, match=r"a shard of FSDP \(with use_orig_params\)"):
        rectified_backward(w.sum(), w.prod(), [w])
