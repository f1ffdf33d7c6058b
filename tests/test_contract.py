"""What every loss, rule, metric, calibrator and augmentation must satisfy; whatever the packages export is found.

A subject is a function of two tensors: (logits, targets), (probabilities, targets), (main gradient, constraint's
gradient), for calibrators (logits, targets) -> calibrated logits, and for augmentations (images, magnitude or nothing).
"""

import inspect
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import shiftcal
import shiftcal.gradients
from shiftcal import ConstraintMomentum, calibrators, losses, metrics

Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Subject:
    kind: str
    name: str
    call: Callable[..., Any]
    documented: Any

    def __str__(self) -> str:
        return f"{self.kind}-{self.name}"


def fit_and_apply(kind: type, logits: Tensor, targets: Tensor) -> Tensor:
    return kind().fit(logits, targets)(logits)


def augmented(function: Callable[..., Any], images: Tensor, _: Tensor) -> Tensor:
    """Call an augmentation with the same randomness each time and take its images."""
    torch.manual_seed(0)
    result = function(images)
    return result.images if isinstance(result, tuple) else result


def discover(package: Any) -> list[Subject]:
    found = [Subject("loss", n, getattr(package.losses, n), getattr(package.losses, n)) for n in package.losses.__all__]
    found += [Subject("rule", name, rule, rule) for name, rule in package.gradients.RULES.items()]
    for name in package.metrics.__all__:
        metric = getattr(package.metrics, name)
        signature = inspect.signature(metric) if inspect.isfunction(metric) else None
        if signature is None or signature.return_annotation == "Interval":
            continue  # drawn from samples: tests/metrics
        if list(signature.parameters)[:2] == ["probabilities", "targets"]:
            found.append(Subject("metric", name, metric, metric))
    for name in package.calibrators.__all__:
        kind = getattr(package.calibrators, name)
        if inspect.isclass(kind):
            found.append(Subject("calibrator", name, partial(fit_and_apply, kind), kind))
    for name in package.augment.__all__:
        function = getattr(package.augment, name)
        if inspect.isfunction(function) and "images" in inspect.signature(function).parameters:
            found.append(Subject("augmentation", name, partial(augmented, function), function))
    return found + [
        Subject("operation", n, operation, operation) for n, operation in package.augment.OPERATIONS.items()
    ]


ALL = discover(shiftcal)
OF_CLASSES = [s for s in ALL if s.kind in ("loss", "metric", "calibrator")]
OF_IMAGES = [s for s in ALL if s.kind in ("augmentation", "operation")]


def each(subjects: list[Subject]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("subject", subjects, ids=str)


def ordinary(kind: str, dtype: torch.dtype = torch.float32, n: int = 40) -> Pair:
    """An unremarkable input of a kind."""
    generator = torch.Generator().manual_seed(1)
    if kind == "rule":
        main, constraint = torch.randn(2, n, generator=generator, dtype=dtype)
        return main, constraint - main  # in conflict, so that no rule is idle
    if kind in ("augmentation", "operation"):
        images = torch.randint(20, 220, (n, 3, 16, 16), generator=generator, dtype=torch.uint8)
        return images, torch.full((n,), 3.0)
    logits = 2 * torch.randn(n, 5, generator=generator, dtype=dtype)
    targets = torch.multinomial((logits / 2).softmax(-1).double(), 1, generator=generator).squeeze(1)
    return (logits.softmax(-1) if kind == "metric" else logits), targets


def tensors(result: Any) -> Tensor:
    return result if isinstance(result, Tensor) else torch.tensor(result, dtype=torch.float64)


DEFAULTS: dict[Callable[..., Any], dict[str, Any]] = {  # what the papers and the specification give
    losses.label_smoothing: {"smoothing": 0.05},
    losses.bsce_gra: {"norm": 1.0},
    losses.max_ent: {"constraint": "mean", "gamma": 1.0, "class_prior": None},
    losses.soft_ece: {"bins": 15, "temperature": 0.1, "centres": "midpoints"},
    losses.soft_avuc: {"temperature": 0.01, "threshold": 0.1},
    losses.mmce: {"kernel_width": 0.4},
    losses.dual_focal: {"runner_up": "below"},
    shiftcal.gradients.rules.cagrad: {"c": 0.5},
    shiftcal.gradients.rules.add: {"weight": 1.0},
    shiftcal.dct_low_pass: {"subsampling": "4:4:4"},
    shiftcal.filtering.LowPassPolicy: {"ratio": 0.05, "strengths": (15, 18, 25), "filter": "dct", "redraw": True},
    shiftcal.WeightAverage: {"decay": 0.999},
    calibrators.TemperatureScaling: {"criterion": "nll", "search": "grid"},
    **{getattr(metrics, name): {"bins": 15} for name in ("ece", "mce", "classwise_ece", "adaptive_ece")},
    metrics.CalibrationMeter: {"bins": 15, "adaptive": False},
}


@pytest.mark.parametrize("subject", DEFAULTS, ids=lambda subject: subject.__name__)
def test_defaults_are_those_of_the_specification(subject: Callable[..., Any]) -> None:
    parameters = inspect.signature(subject).parameters
    assert {name: parameters[name].default for name in DEFAULTS[subject]} == DEFAULTS[subject]


def test_all_are_found() -> None:
    """Whatever a package exports; the search itself is tried on names that are sure to be there."""
    names = {kind: {s.name for s in ALL if s.kind == kind} for kind in {s.kind for s in ALL}}
    assert names["loss"] == set(shiftcal.losses.__all__) >= {"cross_entropy", "soft_ece"}
    assert names["rule"] == set(shiftcal.gradients.RULES) >= {"rectify", "pcgrad"}
    assert names["metric"] >= {"accuracy", "ece", "smooth_ece"}
    assert names["calibrator"] == set(shiftcal.calibrators.__all__) - {"load", "save"} >= {"TemperatureScaling"}
    assert names["augmentation"] >= {"crop_flip", "mixup", "augmix"}
    assert names["operation"] == set(shiftcal.augment.OPERATIONS) >= {"rotate", "posterize"}


def extremes() -> dict[str, Pair]:
    """Logits up to 1e4, one sample, two classes, all right, all wrong, all equal."""
    generator = torch.Generator().manual_seed(5)
    huge = 1e4 * torch.randn(16, 10, generator=generator)
    return {
        "magnitude 1e4": (huge, torch.randint(0, 10, (16,), generator=generator)),
        "tiny": (1e-8 * huge, torch.arange(16) % 10),
        "all right and sure": (1e4 * torch.eye(10), torch.arange(10)),
        "all wrong and sure": (1e4 * torch.eye(10), (torch.arange(10) + 1) % 10),
        "all equal": (torch.zeros(6, 10), torch.arange(6)),
        "one sample": (torch.randn(1, 10, generator=generator), torch.tensor([3])),
        "two classes": (torch.randn(9, 2, generator=generator), torch.arange(9) % 2),
        "two classes, sure": (torch.tensor([[1e4, -1e4]] * 4), torch.tensor([0, 1, 0, 1])),
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("case", extremes())
@each(OF_CLASSES)
def test_finite_at_the_extremes(subject: Subject, case: str, dtype: torch.dtype) -> None:
    first, targets = extremes()[case]
    first = first.to(dtype)
    if subject.kind == "metric":
        least = -1 if subject.name == "confidence_gap" else 0  # the only one with a sign
        assert least <= subject.call(first.softmax(-1), targets) < 1e4
    elif subject.kind == "calibrator":
        if len(targets) > 1:  # one class alone cannot be fitted to, which is an error
            result = subject.call(first, targets)
            assert result.isfinite().all()
            assert result.dtype == dtype
    else:
        logits = first.requires_grad_()
        value = subject.call(logits, targets)
        value.backward()
        assert value.shape == ()
        assert value.dtype == torch.promote_types(dtype, torch.float32)
        assert value.isfinite()
        assert logits.grad.isfinite().all()


@pytest.mark.parametrize("scale", [1e-15, 1.0, 1e15])
@each([s for s in ALL if s.kind == "rule"])
def test_rules_are_finite_at_the_extremes(subject: Subject, scale: float) -> None:
    main, constraint = ordinary("rule")
    for other in (constraint, main, -main, torch.zeros_like(main), constraint * 1e-12, constraint / 0):
        assert subject.call(scale * main, other).isfinite().all()
    assert torch.equal(subject.call(main, torch.zeros_like(main)), main), "without a constraint there is nothing to do"


@pytest.mark.parametrize("tone", [0, 255, 77])
@each(OF_IMAGES)
def test_images_of_one_colour_stay_in_range(subject: Subject, tone: int) -> None:
    images, magnitude = torch.full((4, 3, 8, 12), tone, dtype=torch.uint8), torch.full((4,), 3.0)
    result = subject.call(images, magnitude).float()
    assert result.isfinite().all()
    assert result.min() >= 0
    assert result.max() <= 255.01


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@each(ALL)
def test_keeps_type_shape_and_device(subject: Subject, dtype: torch.dtype) -> None:
    first, second = ordinary(subject.kind, dtype)
    result = subject.call(first, second)
    if subject.kind == "metric":
        assert isinstance(result, float)
        return
    assert result.device == first.device
    if subject.kind == "loss":
        assert (result.dtype, result.shape) == (dtype, ())
    elif subject.kind in ("rule", "calibrator", "operation") or subject.name in (
        *("crop_flip", "unchanged", "swap_amplitude", "swap_high_band"),
    ):
        assert (result.dtype, result.shape) == (first.dtype, first.shape)
    else:
        assert result.dtype == torch.float32
        assert result.shape[-4:] == first.shape


@each([s for s in ALL if "reduction" in inspect.signature(s.documented).parameters])
def test_reductions_agree(subject: Subject) -> None:
    logits, targets = ordinary("loss")
    values = subject.call(logits, targets, reduction="none")
    assert values.shape == targets.shape
    torch.testing.assert_close(subject.call(logits, targets), values.mean())
    torch.testing.assert_close(subject.call(logits, targets, reduction="sum"), values.sum())
    with pytest.raises(ValueError, match="`reduction` should be 'none', 'mean' or 'sum'"):
        subject.call(logits, targets, reduction="median")


@each([s for s in ALL if s.kind != "augmentation"])  # whose randomness goes by position
def test_order_is_irrelevant(subject: Subject) -> None:
    first, second = ordinary(subject.kind, torch.float64)
    order = torch.randperm(len(first), generator=torch.Generator().manual_seed(2))
    result, permuted = (tensors(subject.call(a, b)) for a, b in ((first, second), (first[order], second[order])))
    expected = result[order] if result.ndim else result
    # Solvers of calibrators stop at slightly different points.
    tolerance = {"rtol": 1e-5, "atol": 1e-5} if subject.kind == "calibrator" else {}
    torch.testing.assert_close(permuted, expected, **tolerance)


@each(ALL)
def test_inputs_stay_as_they_are(subject: Subject) -> None:
    inputs = ordinary(subject.kind)
    before = [tensor.clone() for tensor in inputs]
    subject.call(*inputs)
    assert all(torch.equal(a, b) for a, b in zip(inputs, before, strict=True))


@each([s for s in ALL if s.name != "IsotonicRegression"])  # whose knots differ in number from class to class
def test_can_be_traced(subject: Subject, untyped: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.compiler.reset()
    for name, module in untyped.plain.items():  # the compiler looks modules up by name
        monkeypatch.setitem(sys.modules, name, module)
    subject = next(s for s in discover(untyped) if str(s) == str(subject))
    first, second = ordinary(subject.kind)
    trace = partial(torch.compile, fullgraph=True, backend="eager")
    if subject.kind == "calibrator":
        fitted = subject.documented().fit(first, second)
        torch.testing.assert_close(trace(fitted.__call__)(first), fitted(first))
    elif subject.kind == "augmentation":
        expected = subject.call(first, second)
        torch.manual_seed(0)
        result = trace(subject.documented)(first)
        torch.testing.assert_close(result[0] if isinstance(result, tuple) else result, expected)
    else:
        expected = tensors(subject.call(first, second))
        torch.testing.assert_close(tensors(trace(subject.call)(first, second)), expected, check_dtype=False)


@each([s for s in ALL if s.kind != "metric"])
def test_right_under_autocast(subject: Subject) -> None:
    first, second = ordinary(subject.kind)
    if subject.kind == "loss":
        first = first.bfloat16().float()
    expected = subject.call(first, second)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(subject.call(first, second), expected)
        if subject.kind == "loss":
            torch.testing.assert_close(subject.call(first.bfloat16(), second), expected)


@each([s for s in ALL if s.kind == "metric"])
def test_metrics_are_right_under_autocast(subject: Subject) -> None:
    inputs = ordinary("metric")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = subject.call(*inputs)
    assert value == pytest.approx(subject.call(*inputs), rel=1e-9)


@pytest.mark.usefixtures("unchecked")
@each(OF_CLASSES)
def test_class_indices_may_be_of_any_integer_type(subject: Subject) -> None:
    first, targets = ordinary(subject.kind)
    for dtype in (torch.int32, torch.uint8):
        torch.testing.assert_close(
            tensors(subject.call(first, targets.to(dtype))), tensors(subject.call(first, targets))
        )


# These are plain enough to need no reference.
WITHOUT_REFERENCE = {"accuracy", "cross_entropy", "unchanged", "crop_flip", "none"}


@each([s for s in ALL if s.kind != "operation"])
def test_docstring_has_equation_reference_and_example(subject: Subject) -> None:
    text = subject.documented.__doc__
    if subject.name != "unchanged":
        assert "Example:" in text
    if subject.name not in WITHOUT_REFERENCE:
        assert re.search(r"[=+·Σ−∫/²]", text), "an equation"
        assert re.search(r"et al\.,|& [\w-]+, |FGR paper|\(\w+, \d{4}\)|et al\. \(", text), "a reference"


@pytest.mark.parametrize(
    "instance",
    [*(s.documented for s in ALL if s.kind == "calibrator"), metrics.CalibrationMeter, ConstraintMomentum],
    ids=lambda kind: kind.__name__,
)
def test_repr_can_be_read_back(instance: type) -> None:
    arguments = {"CalibrationMeter": (4,), "ConstraintMomentum": (0.5,)}.get(instance.__name__, ())
    made = instance(*arguments)
    assert repr(eval(repr(made), {instance.__name__: instance})) == repr(made)


LOGITS, TARGETS = torch.tensor([[0.5, 0.25, 0.25]] * 4), torch.tensor([0, 1, 2, 0])


@pytest.mark.usefixtures("unchecked")
@each(OF_CLASSES)
@pytest.mark.parametrize(
    ("first", "targets", "message"),
    [
        (LOGITS, TARGETS.float(), "`targets` should be integer class indices. Found `targets = torch.float32`"),
        (LOGITS, TARGETS > 0, "`targets` should be integer class indices. Found `targets = torch.bool`"),
        (LOGITS, TARGETS[:3], r"`targets` should be of shape \[4\], one per sample. Found `targets = \[3\]`"),
        (LOGITS[0], TARGETS, r"should be of shape \[N, K\] with N ≥ 1 and K ≥ 2. Found `\w+ = \[3\]`"),
        (LOGITS[:, :1], TARGETS, r"K ≥ 2. Found `\w+ = \[4, 1\]`"),
        (LOGITS[:0], TARGETS[:0], r"N ≥ 1 and K ≥ 2. Found `\w+ = \[0, 3\]`"),
        (LOGITS.long(), TARGETS, r"should be floating point. Found `\w+ = torch.int64`"),
    ],
    ids=["float targets", "boolean targets", "too few targets", "one row", "K=1", "empty batch", "integers"],
)
def test_bad_classes(subject: Subject, first: Tensor, targets: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        subject.call(first, targets)


@pytest.mark.usefixtures("unchecked")
@each([s for s in OF_CLASSES if s.kind != "loss"])  # losses do not read values, which would stall a GPU
def test_bad_values(subject: Subject) -> None:
    with pytest.raises(ValueError, match=r"`targets` should be in 0\.\.2. Found `targets = values in 0\.\.7`"):
        subject.call(LOGITS, torch.tensor([0, 1, 2, 7]))
    with pytest.raises(ValueError, match=r"should be finite. Found `.* = NaN or infinity`"):
        subject.call(LOGITS * torch.tensor(float("nan")), TARGETS)


@pytest.mark.usefixtures("unchecked")
@each([s for s in ALL if s.kind == "rule"])
def test_bad_gradients(subject: Subject) -> None:
    flat = torch.ones(3)
    for main, constraint, message in [
        (flat[None], flat, r"`main` should be a flat floating-point gradient. Found `main = torch.float32 \[1, 3\]`"),
        (flat[:0], flat[:0], "`main` should be a flat floating-point gradient"),
        (flat.long(), flat, "`main` should be a flat floating-point gradient. Found `main = torch.int64"),
        (flat, flat[:2], r"`constraint` should be torch.float32 \[3\], as `main`"),
        (flat, flat.double(), r"`constraint` should be torch.float32 \[3\], as `main`. Found `.* torch.float64"),
    ]:
        with pytest.raises(ValueError, match=message):
            subject.call(main, constraint)


BAD_IMAGES = [
    torch.zeros(2, 3, 8, 8),
    *(torch.zeros(shape, dtype=torch.uint8) for shape in ((2, 1, 8, 8), (3, 8, 8), (0, 3, 8, 8))),
]


@pytest.mark.usefixtures("unchecked")
@each([s for s in ALL if s.kind == "augmentation" and s.name != "unchanged"])
@pytest.mark.parametrize("images", BAD_IMAGES, ids=["float", "one channel", "no batch", "empty batch"])
def test_bad_images(subject: Subject, images: Tensor) -> None:
    with pytest.raises(ValueError, match=r"`images` should be uint8 of shape \[N, 3, H, W\]. Found `images = torch"):
        subject.call(images, torch.ones(1))


OUT_OF_RANGE: dict[str, list[tuple[str, Any]]] = {
    "loss": [
        *(("gamma", value) for value in (-1.0, float("nan"))),
        *(("smoothing", value) for value in (-0.1, 1.0)),
        *(("temperature", value) for value in (0.0, -1.0, float("nan"))),
        *(("threshold", value) for value in (0.0, 1.0)),
        *(("kernel_width", value) for value in (0.0, float("nan"))),
        *(("norm", value) for value in (0.0, float("nan"))),
        *(("bins", value) for value in (0, 2.5)),
        *(("constraint", value) for value in ("median",)),
        *(("runner_up", value) for value in ("above",)),
        *(("centres", value) for value in ("thirds",)),
        *(("class_prior", value) for value in ([0.5, 0.5], [0.5, 0.5, 0.5], [1.5, -0.5, 0.0])),
        *(("mask", value) for value in (torch.ones(4), torch.ones(3, dtype=torch.bool))),
    ],
    "metric": [
        *(("bins", value) for value in (0, -1, 2.5, True)),
        *(("coverage", value) for value in (0.0, 1.5, float("nan"))),
    ],
    "rule": [("c", 1.0), ("c", -0.1), ("weight", float("nan")), ("eps", -1.0)],
    "calibrator": [("criterion", "accuracy"), ("search", "adam"), ("bins", 0), ("bins", 1.5)],
    "augmentation": [
        *(("alpha", value) for value in (0.0, float("inf"), float("nan"))),
        *((name, value) for name in ("views", "width", "depth") for value in (0, 1.5)),
        *(("severity", value) for value in (0.0, 11.0, float("nan"))),
        *(("padding", value) for value in (-1, 0.5)),
        *(("qualities", value) for value in ((), (0,), (101,))),
    ],
}


def parameters_of(subject: Subject) -> set[str]:
    return {n for n, p in inspect.signature(subject.documented).parameters.items() if p.kind != p.VAR_KEYWORD}


def options_out_of_range() -> list[tuple[Subject, str, Any]]:
    return [
        (subject, name, value)
        for subject in ALL
        for name, value in OUT_OF_RANGE.get(subject.kind, [])
        if name in parameters_of(subject)
    ]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("subject", "name", "value"), options_out_of_range(), ids=lambda v: str(v) if isinstance(v, Subject | str) else ""
)
def test_parameters_out_of_range(subject: Subject, name: str, value: Any) -> None:
    inputs = (LOGITS, TARGETS) if subject in OF_CLASSES else ordinary(subject.kind)
    arguments = {"calibrator": (), "augmentation": inputs[:1]}.get(subject.kind, inputs)
    with pytest.raises(ValueError, match=f"Parameter `{name}` should be "):
        subject.documented(*arguments, **{name: value})


def test_every_parameter_has_a_case_out_of_range() -> None:
    plain = {"logits", "probabilities", "targets", "main", "constraint", "images", "generator", "reduction"}
    for subject in ALL:
        covered = {name for name, _ in OUT_OF_RANGE.get(subject.kind, [])}
        left = parameters_of(subject) - plain - covered
        assert subject.kind == "operation" or not left, f"{subject}: {left}"


@pytest.mark.usefixtures("unchecked")
@each([s for s in ALL if s.kind == "calibrator"])
def test_calibrators_say_when_they_cannot_be_fitted_or_used(subject: Subject) -> None:
    with pytest.raises(ValueError, match=f"{subject.name} should be fitted before use. Found nothing fitted"):
        subject.documented()(LOGITS)
    with pytest.raises(ValueError, match=r"`targets` should be of at least two classes. .*class 1 alone`"):
        subject.call(LOGITS, torch.ones_like(TARGETS))
    with pytest.raises(ValueError, match="`logits` should be finite"):
        subject.documented().fit(*ordinary("calibrator"))(LOGITS * torch.tensor(float("nan")))


@each([s for s in ALL if s.kind in ("loss", "metric")])
@pytest.mark.parametrize("value", [-100, -1, 5, 10**6])
def test_a_target_that_is_no_class_is_refused(subject: Subject, value: int) -> None:
    """Also -100, which torch's cross-entropy would leave out."""
    scores, targets = ordinary(subject.kind)
    targets = targets.clone()
    targets[3] = value
    with pytest.raises(ValueError, match=r"Parameter `targets` should be in 0\.\.4"):
        subject.call(scores, targets)
