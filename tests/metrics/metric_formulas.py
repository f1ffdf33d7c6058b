"""The metrics written from their formulas in float64 NumPy, one sample and one bin at a time."""

import numpy as np


def binned(confidence: np.ndarray, hits: np.ndarray, bins: int) -> list[tuple[float, float]]:
    """List (weight, |accuracy − confidence|) of the bins ((m−1)/M, m/M] that hold samples; 0 belongs to the first."""
    found = []
    for m in range(1, bins + 1):
        inside = (confidence > (m - 1) / bins) & (confidence <= m / bins)
        if m == 1:
            inside |= confidence == 0
        if inside.any():
            found.append((inside.mean(), abs(hits[inside].mean() - confidence[inside].mean())))
    return found


def top(p: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return p.max(1), (p.argmax(1) == y).astype(np.float64)


def ece(p: np.ndarray, y: np.ndarray, bins: int) -> float:
    return sum(weight * gap for weight, gap in binned(*top(p, y), bins))


def mce(p: np.ndarray, y: np.ndarray, bins: int) -> float:
    return max(gap for _, gap in binned(*top(p, y), bins))


def classwise_ece(p: np.ndarray, y: np.ndarray, bins: int) -> float:
    per_class = [
        sum(weight * gap for weight, gap in binned(p[:, k], (y == k).astype(np.float64), bins))
        for k in range(p.shape[1])
    ]
    return float(np.mean(per_class))


def adaptive_ece(p: np.ndarray, y: np.ndarray, bins: int) -> float:
    total = []
    for k in range(p.shape[1]):
        order = np.argsort(p[:, k], kind="stable")
        parts = np.array_split(order, min(bins, len(p)))
        total += [abs((y[part] == k).mean() - p[part, k].mean()) for part in parts]
    return float(np.mean(total))


def accuracy(p: np.ndarray, y: np.ndarray) -> float:
    return float(top(p, y)[1].mean())


def nll(p: np.ndarray, y: np.ndarray) -> float:
    return float(np.mean([-np.log(max(row[k], np.finfo(np.float64).tiny)) for row, k in zip(p, y, strict=True)]))


def brier(p: np.ndarray, y: np.ndarray) -> float:
    return float(np.mean([((row - np.eye(len(row))[k]) ** 2).sum() for row, k in zip(p, y, strict=True)]))
