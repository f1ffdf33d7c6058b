"""How often intervals of the ECE contain the truth, ours and the bootstrap's, on the same draws.

python benchmarks/intervals.py

The peer is the basic bootstrap's interval, [2v − q_high, 2v − q_low], of the same resamples; beside it the percentile
bootstrap's, [q_low, q_high].
"""

import torch
from torch import Tensor

from shiftcal.metrics import ece
from shiftcal.metrics.bootstrap import interval_of
from shiftcal.metrics.ece_interval import gaps_of, interval_of_mean_ece

DRAWS, SAMPLES = 400, 4_000_000
KINDS = {  # how spread the logits are, by what factor they are too large, and where the first class is likeliest
    "calibrated": (2, 1.0, 1.0),
    "calibrated, 97 % right": (40, 1.0, 1.0),
    "sure by 1.05": (2, 1.05, 1.05),
    "sure by 1.3": (2, 1.3, 1.3),
    "one class sure by 2": (2, 1.0, 2.0),
}


def draw(n: int, generator: torch.Generator, spread: float, sharpness: float, of_one: float) -> tuple[Tensor, Tensor]:
    """Ten classes; logits are too large by a factor, by another one where the first class is likeliest."""
    honest = spread * torch.randn(n, 10, generator=generator)
    targets = torch.multinomial(honest.softmax(-1), 1, generator=generator).squeeze(1)
    factor = torch.where(honest.argmax(1) == 0, of_one, sharpness)
    return (factor[:, None] * honest).softmax(-1), targets


def main() -> None:
    """Print the share of 95 % intervals that contain the truth, and their mean width in points."""
    print(
        "| predictions | n | true ECE, % | ours: contain the truth, % | width | basic bootstrap | width | percentile |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for name, factors in KINDS.items():
        generator = torch.Generator().manual_seed(0)
        truth = 0.0 if factors[1:] == (1.0, 1.0) else ece(*draw(SAMPLES, generator, *factors))
        for n in (100, 500, 2000, 10_000):
            print(f"| {name} | {n} | {100 * truth:.2f} | {row(n, factors, truth, generator)} |", flush=True)


def row(n: int, factors: tuple[float, float, float], truth: float, generator: torch.Generator) -> str:
    """Draw sets of n predictions, and count."""
    hits, widths = torch.zeros(3), torch.zeros(3)
    for seed in range(DRAWS):
        gaps = gaps_of(*draw(n, generator, *factors), resamples=300, seed=seed)
        ours, eces = interval_of_mean_ece([gaps]), (gaps.observed + gaps.noise).abs().sum(1)
        theirs = [interval_of(ours.value, eces, method=method, bounds=(0, 1)) for method in ("basic", "percentile")]
        for k, (_, low, high) in enumerate((ours, *theirs)):
            hits[k] += low <= truth <= high
            widths[k] += 100 * (high - low)
    (a, b, c), (wide, basic, _) = (100 * hits / DRAWS).tolist(), (widths / DRAWS).tolist()
    return f"{a:.0f} | {wide:.2f} | {b:.0f} | {basic:.2f} | {c:.0f}"


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
