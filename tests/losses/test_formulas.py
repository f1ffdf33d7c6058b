"""The losses against their formulas, written out sample by sample in float64 NumPy."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from sklearn.metrics import log_loss

from shiftcal import losses
from shiftcal.losses.max_ent import multipliers


def case(classes: int = 6, n: int = 40, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(n, classes, generator=generator, dtype=torch.float64)
    return logits, torch.randint(0, classes, (n,), generator=generator)


def softmax(z: np.ndarray) -> np.ndarray:
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def each(function: Callable[[np.ndarray, int], float], logits: torch.Tensor, targets: torch.Tensor) -> np.ndarray:
    return np.array([function(softmax(z), int(y)) for z, y in zip(logits.numpy(), targets, strict=True)])


def one_hot(classes: int, y: int) -> np.ndarray:
    return np.eye(classes)[y]


@pytest.mark.parametrize("classes", [2, 6])
def test_cross_entropy_is_scikit_learns_log_loss(classes: int) -> None:
    logits, targets = case(classes)
    expected = log_loss(targets.numpy(), softmax(logits.numpy()), labels=range(classes))
    assert losses.cross_entropy(logits, targets).item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("smoothing", [0.0, 0.05, 0.3])
def test_label_smoothing(smoothing: float) -> None:
    logits, targets = case()
    expected = each(lambda p, y: -((1 - smoothing) * one_hot(6, y) + smoothing / 6) @ np.log(p), logits, targets)
    ours = losses.label_smoothing(logits, targets, smoothing=smoothing, reduction="none")
    np.testing.assert_allclose(ours, expected, rtol=1e-9)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0])
def test_focal(gamma: float) -> None:
    logits, targets = case()
    expected = each(lambda p, y: -((1 - p[y]) ** gamma) * np.log(p[y]), logits, targets)
    np.testing.assert_allclose(losses.focal(logits, targets, gamma=gamma, reduction="none"), expected, rtol=1e-9)


def test_flsd53_changes_its_exponent_at_a_fifth() -> None:
    logits, targets = case(n=200)
    expected = each(lambda p, y: -((1 - p[y]) ** (5 if p[y] < 0.2 else 3)) * np.log(p[y]), logits, targets)
    np.testing.assert_allclose(losses.flsd53(logits, targets, reduction="none"), expected, rtol=1e-9)
    shares = each(lambda p, y: float(p[y] < 0.2), logits, targets)
    assert 0.2 < shares.mean() < 0.9, "both exponents occur"
    for p, gamma in ((0.19, 5), (0.21, 3)):
        near = torch.tensor([[p, 1 - p]], dtype=torch.float64).log()
        assert losses.flsd53(near, torch.tensor([0])).item() == pytest.approx(-((1 - p) ** gamma) * math.log(p))


@pytest.mark.parametrize("norm", [1.0, 2.0])
@pytest.mark.parametrize("gamma", [1.0, 3.0])
def test_bsce_gra_and_its_gradient(gamma: float, norm: float) -> None:
    logits, targets = case()

    def weight(p: np.ndarray, y: int) -> float:
        return float(np.linalg.norm(one_hot(6, y) - p, norm) ** gamma)

    expected = each(lambda p, y: -weight(p, y) * np.log(p[y]), logits, targets)
    ours = losses.bsce_gra(logits, targets, gamma=gamma, norm=norm, reduction="none")
    np.testing.assert_allclose(ours, expected, rtol=1e-9)
    # The weight carries no gradient: it is the weight times cross-entropy's, (p − onehot).
    leaf = logits.clone().requires_grad_()
    losses.bsce_gra(leaf, targets, gamma=gamma, norm=norm, reduction="sum").backward()
    rows = [weight(p, int(y)) * (p - one_hot(6, int(y))) for p, y in zip(softmax(logits.numpy()), targets, strict=True)]
    np.testing.assert_allclose(leaf.grad, np.stack(rows), rtol=1e-8, atol=1e-12)


def test_brier() -> None:
    logits, targets = case()
    expected = each(lambda p, y: ((p - one_hot(6, y)) ** 2).sum(), logits, targets)
    np.testing.assert_allclose(losses.brier(logits, targets, reduction="none"), expected, rtol=1e-9)


@pytest.mark.parametrize("width", [0.1, 0.4])
def test_mmce(width: float) -> None:
    logits, targets = case()
    p = softmax(logits.numpy())
    c, a = p.max(1), (p.argmax(1) == targets.numpy()).astype(float)
    total = 0.0
    for i in range(len(c)):
        for j in range(len(c)):
            total += (a[i] - c[i]) * (a[j] - c[j]) * math.exp(-abs(c[i] - c[j]) / width)
    assert losses.mmce(logits, targets, kernel_width=width).item() == pytest.approx(total / len(c) ** 2, rel=1e-9)


@pytest.mark.parametrize(("temperature", "threshold"), [(0.01, 0.1), (0.5, 0.4)])
def test_soft_avuc(temperature: float, threshold: float) -> None:
    logits, targets = case()
    counts = dict.fromkeys(("AC", "AU", "IC", "IU"), 0.0)
    for p, y in zip(softmax(logits.numpy()), targets, strict=True):
        h = -(p * np.log(p)).sum()
        e = np.clip(h / np.log(6), 1e-5, 1 - 1e-5)
        inner = np.log(e * (1 - threshold) / ((1 - e) * threshold)) / temperature
        t = 1 / (1 + np.exp(-inner)) if inner > -700 else 0.0
        right = "A" if p.argmax() == int(y) else "I"
        counts[right + "C"] += (1 - t) * (1 - np.tanh(h))
        counts[right + "U"] += t * np.tanh(h)
    expected = np.log(1 + (counts["AU"] + counts["IC"]) / max(counts["AC"] + counts["IU"], 1e-5))
    ours = losses.soft_avuc(logits, targets, temperature=temperature, threshold=threshold)
    assert ours.item() == pytest.approx(expected, rel=1e-9)


def test_soft_avuc_cuts_entropy_and_denominator_off() -> None:
    sure = torch.tensor([[40.0, 0.0]], dtype=torch.float64)  # its entropy is below what is cut off
    h = float(-(sure.softmax(-1) * sure.log_softmax(-1)).sum())
    t = 1 / (1 + math.exp(-(math.log(1e-5 / (1 - 1e-5)) - math.log(0.1 / 0.9)) / 1.0))
    for target, bad, good in ((0, t * math.tanh(h), (1 - t) * (1 - math.tanh(h))), (1, 1 - t, t * math.tanh(h))):
        expected = math.log1p(bad / max(good, 1e-5))
        ours = losses.soft_avuc(sure, torch.tensor([target]), temperature=1.0)
        assert ours.item() == pytest.approx(expected, rel=1e-9)


def test_soft_avuc_has_a_gradient_where_classes_are_ruled_out() -> None:
    logits = torch.full((1, 10), -torch.inf)
    logits[0, 0], logits[0, 1] = 1.0, 0.5
    losses.soft_avuc(logits.requires_grad_(), torch.tensor([0])).backward()
    assert bool(logits.grad.isfinite().all())
    assert bool(logits.grad[0, :2].any())


@pytest.mark.parametrize("gamma", [0.5, 0.9])
def test_exponents_below_one_leave_gradients_finite(gamma: float) -> None:
    logits = torch.tensor([[1e4, 0.0], [0.0, 0.0]], requires_grad=True)
    losses.focal(logits, torch.tensor([0, 1]), gamma=gamma).backward()
    assert bool(logits.grad.isfinite().all())


def test_a_prior_that_is_no_number_is_refused() -> None:
    with pytest.raises(ValueError, match="`class_prior` should be 3 shares that sum to 1"):
        losses.max_ent(torch.zeros(2, 3), torch.tensor([0, 1]), class_prior=[0.5, 0.5, math.nan])


@pytest.mark.parametrize("name", [name for name in losses.__all__ if name != "label_smoothing"])
def test_a_class_that_is_ruled_out_leaves_losses_and_gradients_finite(name: str) -> None:
    logits, targets = case()
    logits[targets != 2, 2] = -torch.inf
    loss = getattr(losses, name)(logits.requires_grad_(), targets)
    loss.backward()
    assert bool(loss.isfinite())
    assert bool(logits.grad.isfinite().all())


PRIORS = {"equal": None, "unequal": (0.3, 0.1, 0.05, 0.25, 0.2, 0.1)}


@pytest.mark.parametrize("prior", PRIORS)
def test_max_ent_mean_and_variance(prior: str) -> None:
    logits, targets = case()
    share = np.full(6, 1 / 6) if PRIORS[prior] is None else np.array(PRIORS[prior])
    k = np.arange(6)
    for name, power in (("mean", 1), ("variance", 2)):
        s = k**power

        def value(p: np.ndarray, y: int, s: np.ndarray = s) -> float:
            target = math.e * (share @ s + s[y]) / 2
            lam = brentq(lambda v: (s * np.exp(-v * s)).sum() - target, -2, 5, xtol=1e-14)
            moment = p @ s
            return -(1 - p[y]) * np.log(p[y]) + lam * (abs(moment - share @ s) + abs(moment - s[y]))

        ours = losses.max_ent(logits, targets, constraint=name, class_prior=PRIORS[prior], reduction="none")
        np.testing.assert_allclose(ours, each(value, logits, targets), rtol=1e-8)


@pytest.mark.parametrize("classes", [3, 10, 100])
def test_max_ent_both_solves_its_system(classes: int) -> None:
    prior = (1 / classes,) * classes
    x = np.arange(classes)
    for y, (first, second) in enumerate(multipliers(prior, "both")):
        m = (x.mean() + y) / 2
        weight = np.exp(-first * x - second * (x - m) ** 2)
        spread = (((x - m) ** 2).mean() + (y - m) ** 2) / 2
        assert (x * weight).sum() == pytest.approx(math.e * m, rel=1e-7)
        assert ((x - m) ** 2 * weight).sum() == pytest.approx(math.e * spread, rel=1e-7)


def test_max_ent_both_is_its_formula() -> None:
    logits, targets = case()
    k, table = np.arange(6), multipliers((1 / 6,) * 6, "both")

    def value(p: np.ndarray, y: int) -> float:
        mean = p @ k
        spread = p @ (k - mean) ** 2
        first, second = table[y]
        term = first * (abs(mean - k.mean()) + abs(mean - y)) + second * (abs(spread - k.var()) + spread)
        return -(1 - p[y]) * np.log(p[y]) + term

    ours = losses.max_ent(logits, targets, constraint="both", reduction="none")
    np.testing.assert_allclose(ours, each(value, logits, targets), rtol=1e-8)


def test_max_ent_both_is_refused_for_two_classes() -> None:
    logits, targets = torch.zeros(4, 2), torch.tensor([0, 1, 1, 0])
    with pytest.raises(ValueError, match=r"`constraint` should be 'mean' or 'variance' for two classes.*'both'"):
        losses.max_ent(logits, targets, constraint="both")
    for constraint in ("mean", "variance"):
        assert losses.max_ent(logits, targets, constraint=constraint).isfinite()


def test_multipliers_may_be_negative_for_few_classes() -> None:
    assert multipliers((1 / 3,) * 3, "mean")[2][0] < 0


SMOOTH = {
    "label_smoothing": {},
    "focal": {"gamma": 0.5},
    "flsd53": {},
    "brier": {},
    "mmce": {},
    "soft_avuc": {"temperature": 0.5},
    "max_ent": {"constraint": "both"},
}


@pytest.mark.parametrize("name", SMOOTH)
def test_gradients(name: str) -> None:
    logits, targets = case(classes=4, n=8)
    loss = getattr(losses, name)
    assert torch.autograd.gradcheck(lambda z: loss(z, targets, **SMOOTH[name]), logits.requires_grad_())


@pytest.mark.parametrize("name", ["soft_ece", "soft_avuc", "mmce", "brier"])
def test_a_mask_is_a_selection_and_hides_nan(name: str) -> None:
    logits, targets = case()
    mask = torch.arange(40) % 3 != 0
    loss = getattr(losses, name)
    expected = loss(logits[mask], targets[mask])
    logits[0] = float("nan")
    torch.testing.assert_close(loss(logits, targets, mask=mask), expected)
    assert loss(logits, targets, mask=torch.zeros(40, dtype=torch.bool)).item() == 0


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("label_smoothing", {"smoothing": 1.0}, r"`smoothing` should be in \[0, 1\)"),
        ("focal", {"gamma": -1.0}, "`gamma` should be at least 0"),
        ("focal", {"gamma": float("nan")}, "`gamma` should be at least 0"),
        ("bsce_gra", {"gamma": -1.0}, "`gamma` should be at least 0"),
        ("bsce_gra", {"norm": 0.0}, "`norm` should be positive"),
        ("mmce", {"kernel_width": 0.0}, "`kernel_width` should be positive"),
        ("mmce", {"mask": torch.ones(3)}, "`mask` should be 40 booleans"),
        ("brier", {"mask": torch.ones(3)}, "`mask` should be 40 booleans"),
        ("soft_avuc", {"mask": torch.ones(3)}, "`mask` should be 40 booleans"),
        ("soft_avuc", {"temperature": 0.0}, "`temperature` should be positive"),
        ("soft_avuc", {"threshold": 1.0}, r"`threshold` should be in \(0, 1\)"),
        ("max_ent", {"constraint": "median"}, "`constraint` should be 'mean', 'variance' or 'both'"),
        ("max_ent", {"gamma": -1.0}, "`gamma` should be at least 0"),
        ("max_ent", {"class_prior": (0.5, 0.5)}, "`class_prior` should be 6 shares that sum to 1"),
        ("max_ent", {"class_prior": (0.5, 0.5, 0.5, 0.5, -0.5, -0.5)}, "`class_prior` should be 6 shares"),
    ],
)
def test_bad_parameters(name: str, options: dict[str, object], message: str) -> None:
    logits, targets = case()
    with pytest.raises(ValueError, match=message):
        getattr(losses, name)(logits, targets, **options)
