"""FLSD-53, value and gradient, against its two per-sample loops, interleaved in one run.

python benchmarks/flsd53.py [cpu|cuda]

The loss was published with a Python loop that picks each sample's γ by reading its probability back to the host; the
plain reading of the formula is a loop that computes each sample's loss.
"""

import statistics
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor

from shiftcal.losses import flsd53

BATCH, CLASSES, STEPS, ROUNDS = 512, 100, 10, 21


def gamma_by_loop(logits: Tensor, targets: Tensor) -> Tensor:
    """Pick γ sample by sample on the host, then compute all losses at once."""
    log_p_y = logits.log_softmax(-1).gather(1, targets[:, None]).squeeze(1)
    p_y = log_p_y.exp()
    gamma = [5.0 if p.item() < 0.2 else 3.0 for p in p_y]
    return (-((1 - p_y) ** torch.tensor(gamma, device=logits.device)) * log_p_y).mean()


def loss_by_loop(logits: Tensor, targets: Tensor) -> Tensor:
    """Compute each sample's loss by itself."""
    values = []
    for row, target in zip(logits, targets, strict=True):
        log_p_y = row.log_softmax(-1)[target]
        p_y = log_p_y.exp()
        values.append(-((1 - p_y) ** (5.0 if p_y.item() < 0.2 else 3.0)) * log_p_y)
    return torch.stack(values).mean()


def seconds(loss: Callable[[Tensor, Tensor], Tensor], logits: Tensor, targets: Tensor) -> float:
    if logits.is_cuda:
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(STEPS):
        torch.autograd.grad(loss(logits, targets), logits)
    if logits.is_cuda:
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / STEPS


def main() -> None:
    device = sys.argv[1] if len(sys.argv) > 1 else "cpu"
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    logits = (2 * torch.randn(BATCH, CLASSES, generator=generator)).to(device).requires_grad_()
    targets = torch.randint(0, CLASSES, (BATCH,), generator=generator).to(device)
    peers = {
        "shiftcal.losses.flsd53": flsd53,
        "γ by a loop over samples": gamma_by_loop,
        "loss by a loop over samples": loss_by_loop,
    }
    for loss in peers.values():
        torch.testing.assert_close(loss(logits, targets), flsd53(logits, targets))
    times: dict[str, list[float]] = {name: [] for name in peers}
    for _ in range(ROUNDS + 1):
        for name, loss in peers.items():
            times[name].append(seconds(loss, logits, targets))
    medians = {name: statistics.median(values[1:]) for name, values in times.items()}
    where = torch.cuda.get_device_name() if device == "cuda" else "one CPU core"
    print(
        f"Value and gradient, batch {BATCH}, {CLASSES} classes, {where}, "
        f"median of {ROUNDS} interleaved rounds of {STEPS} steps\n"
    )
    print("| | milliseconds | time, relative to ours |\n|---|---:|---:|")
    for name, median in medians.items():
        print(f"| {name} | {1e3 * median:.3f} | {median / medians['shiftcal.losses.flsd53']:.1f}× |")


if __name__ == "__main__":
    main()
