"""The verdict of an audit in plain words, from stated rules (docs/audit.md). Never imports torch."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence

from shiftcal.records.audit import AuditCell, AuditMean, AuditRecord

SHOWN = 1.5  # an ECE below so many noise floors is what chance may give
UNSURE, SURE = 2.0, 3.0  # standard errors of a gap that are not enough, and that are
TRUSTED = 0.10  # the largest ECE at which a confidence may still be used
NOTABLE = 0.01  # a gap or a change below is not worth a word
ENOUGH = 1000  # test images below which a warning says so
GRID_ENDS = (0.1, 5.0)  # of the temperatures that are tried
FAMILIES = {
    "noise": ("gaussian_noise", "shot_noise", "impulse_noise", "speckle_noise"),
    "blur": ("defocus_blur", "glass_blur", "motion_blur", "zoom_blur", "gaussian_blur"),
    "weather": ("snow", "frost", "fog", "brightness", "spatter"),
    "digital changes": ("contrast", "elastic_transform", "pixelate", "jpeg_compression", "saturate"),
}
_CORRUPTIONS = {name for members in FAMILIES.values() for name in members}
_FEW = 8  # test sets that have a sentence of their own
_SEEN = 5.0  # standard errors by which validation images may be classified better than test images


def verdict(record: AuditRecord) -> tuple[str, ...]:
    """Write the verdict in sentences."""
    found = [_in_distribution(record.clean)]
    if is_shown(record.clean) and record.clean.ece > TRUSTED:
        found.append("Do not use its confidence as it is, not even on images like these.")
    if record.shifted is not None:
        found += [_under_shift(record.shifted, record.shifts), *map(_under_named, _with_sentences(record.shifts))]
        found += [*_mended(record), *_limits(record.shifts), *_sets(record.shifted)]
    else:
        found += _mended(record)
    return tuple(found)


def is_shown(cell: AuditCell | AuditMean) -> bool:
    """Tell whether an ECE is more than chance gives a calibrated model.

    Where few bins are filled, the floor, a mean over draws, says little of how far chance goes: an error in one
    direction, which is the gap of mean confidence and accuracy, has to be two standard errors, and three are enough.
    """
    if not (errors := _standard_errors(cell)):
        return cell.ece > 0 and cell.ece >= SHOWN * cell.noise_floor
    if errors >= SURE:
        return True
    one_direction = cell.ece <= SHOWN * abs(cell.gap)
    return cell.ece > 0 and cell.ece >= SHOWN * cell.noise_floor and not (one_direction and errors < UNSURE)


def _standard_errors(cell: AuditCell | AuditMean) -> float:
    """Count how many standard errors of a calibrated model's accuracy the gap is; 0 where it cannot be told.

    A model that is right with probability c_i has an accuracy of variance Σ c_i(1 − c_i)/n², at most c̄(1 − c̄)/n.
    """
    n = getattr(cell, "n", None)
    spread = cell.confidence * (1 - cell.confidence)
    return abs(cell.gap) / math.sqrt(spread / n) if n and spread > 0 else 0.0


def _in_distribution(cell: AuditCell) -> str:
    says = f"Right {percent(cell.accuracy)} of the time, says {percent(cell.confidence)}"
    if not is_shown(cell):
        told = f"{says}: its calibration error of {percent(cell.ece)} is {_within(cell)}"
        return f"{told}. Nothing was shown against its confidence here."
    return f"{says}: {_direction(cell)} (ECE {percent(cell.ece)}, floor {percent(cell.noise_floor)})."


def _within(cell: AuditCell) -> str:
    chance = f"a calibrated model on {cell.n} images ({percent(cell.noise_floor)})"
    if cell.ece < SHOWN * cell.noise_floor or not cell.ece:
        return f"less than {SHOWN:g} times what chance gives {chance}"
    return f"in one direction and less than {UNSURE:g} standard errors, which chance may give {chance}"


def _under_shift(mean: AuditMean, cells: Sequence[AuditCell]) -> str:
    names = list(dict.fromkeys(str(cell.shift) for cell in cells))
    under = _under(_listed(names), mean)
    if not is_shown(mean):
        overall = "on average " if len(cells) > 1 else ""
        chance = f"(ECE {percent(mean.ece)}, less than {SHOWN:g} times the floor of {percent(mean.noise_floor)})"
        return f"{under}: {overall}no more off than chance may be {chance}."
    over, less = (sum(sign * cell.gap >= NOTABLE for cell in cells) for sign in (1, -1))
    both = f", overconfident in {over} and underconfident in {less} of {len(cells)} test sets" if over and less else ""
    return f"{under}: {_direction(mean)}{both} (ECE {percent(mean.ece)}, floor {percent(mean.noise_floor)})."


def named_shifts(cells: Sequence[AuditCell]) -> list[AuditCell]:
    """List the test sets that are no corruptions: each stands for itself, such as a camera or a hospital."""
    return [cell for cell in cells if cell.severity is None and str(cell.shift) not in _CORRUPTIONS]


def _with_sentences(cells: Sequence[AuditCell]) -> list[AuditCell]:
    """List those that deserve a sentence beside the one of the mean."""
    named = named_shifts(cells)
    return named if len(cells) > 1 and len(named) <= _FEW else []


def _under(name: str, cell: AuditCell | AuditMean) -> str:
    return f"Under {name} it says {percent(cell.confidence)} and is right {percent(cell.accuracy)}"


def _under_named(cell: AuditCell) -> str:
    """Tell of one test set; the mean over all would hide it."""
    under = _under(_and([str(cell.shift)]), cell)
    if not is_shown(cell):
        return f"{under}: its ECE of {percent(cell.ece)} is {_within(cell)}."
    return f"{under}: {_direction(cell)} (ECE {percent(cell.ece)}, floor {percent(cell.noise_floor)})."


def _direction(cell: AuditCell | AuditMean) -> str:
    if abs(cell.gap) < NOTABLE and cell.ece > SHOWN * abs(cell.gap):
        return "sure enough on average, but not image by image"
    return f"{'over' if cell.gap > 0 else 'under'}confident by {points(abs(cell.gap))}"


def _listed(names: Sequence[str]) -> str:
    """Name shifts: the families of corruptions that all of them belong to, or themselves if they are few."""
    families = [family for family, members in FAMILIES.items() if set(members) & set(names)]
    if set(names) <= _CORRUPTIONS and len(names) > 3:
        return _and(families)
    return _and(names) if len(names) <= 4 else f"{len(names)} shifts"


def _and(words: Sequence[str]) -> str:
    words = [word.replace("_", " ") for word in words]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def best_calibrator(record: AuditRecord) -> str | None:
    """Name the calibrator with the lowest ECE, under shift if there are shifts; None if none lowers it."""
    before = record.shifted.ece if record.shifted is not None else record.clean.ece
    after = {name: ece for name, ece in _errors_after(record) if ece < before}
    return min(after, key=lambda name: after[name]) if after else None


def _errors_after(record: AuditRecord) -> Iterator[tuple[str, float]]:
    for name, tried in record.calibrators.items():
        measured = tried.shifted if record.shifted is not None else tried.clean
        if measured is not None and measured.ece is not None:
            yield name, measured.ece


def _mended(record: AuditRecord) -> list[str]:
    """Tell what calibrators leave."""
    whole = record.shifted if record.shifted is not None else record.clean
    after, where = dict(_errors_after(record)), " under shift" if record.shifted is not None else ""
    if not after:
        reasons = sorted({str(tried.reason) for tried in record.calibrators.values() if tried.reason})
        return [f"Calibrators were not fitted: {'; '.join(reasons)}."] if reasons else []
    if not is_shown(whole) and not any(map(is_shown, _with_sentences(record.shifts))):
        return []
    words = {"temperature": "on clean data", "temperature (augmented)": "on augmented data"}
    told = [f"{words[name]} leaves {percent(after[name])}" for name in words if name in after]
    sentences = [f"A temperature fitted {'; fitted '.join(told)}{where}."] if told else []
    best = best_calibrator(record)
    if best is None:
        return [*sentences, f"No calibrator lowers its error{where}."]
    clean = record.calibrators[best].clean
    price = clean.ece if record.shifted is not None and clean is not None else None
    if price is not None and price >= record.clean.ece + NOTABLE:
        cost = f", at a clean ECE of {percent(price)} instead of {percent(record.clean.ece)}"
        sentences.append(f"Best{where}: {best}, {percent(after[best])}{cost}.")
    elif best not in words:
        sentences.append(f"Best{where}: {best}, {percent(after[best])}.")
    return sentences


def _limits(cells: Sequence[AuditCell]) -> list[str]:
    """Name the shifts, and the severities, where its confidence should not be used."""
    found: dict[str, list[str]] = {}
    for name, members in _groups(cells).items():
        bad = [severity for severity, (ece, floor) in members.items() if ece > max(TRUSTED, SHOWN * floor)]
        if bad:
            first = min(bad)
            beyond = "" if first == min(members) else f" beyond severity {first - 1}"
            found.setdefault(beyond, []).append(name)
    where = [f"under {_and(names)}{beyond}" for beyond, names in found.items()]
    return [f"Do not use its confidence {'; '.join(where)}."] if where else []


def _groups(cells: Sequence[AuditCell]) -> dict[str, dict[int, tuple[float, float]]]:
    """Average ECE and floor by family, where several of it were tried, and severity; others stand for themselves."""
    tried = {str(cell.shift) for cell in cells}
    several = {family: members for family, members in FAMILIES.items() if len(tried & set(members)) > 1}
    family_of = {name: family for family, members in several.items() for name in members}
    members: dict[str, dict[int, list[AuditCell]]] = {}
    for cell in cells:
        name = family_of.get(str(cell.shift), str(cell.shift))
        members.setdefault(name, {}).setdefault(cell.severity or 1, []).append(cell)
    return {name: {severity: _means(by[severity]) for severity in sorted(by)} for name, by in members.items()}


def _means(cells: Sequence[AuditCell]) -> tuple[float, float]:
    return statistics.fmean(cell.ece for cell in cells), statistics.fmean(cell.noise_floor for cell in cells)


def _sets(mean: AuditMean) -> list[str]:
    aps = mean.sets.get("aps")
    if aps is None or aps.coverage > 0.9 - 2 * NOTABLE:
        return []
    held = percent(aps.coverage)
    return [f"Conformal sets made to hold the true class 90 % of the time hold it {held} under shift."]


def warnings_of(record: AuditRecord) -> list[str]:
    """Say what a reader must know about the data."""
    found = []
    n, classes = record.clean.n or 0, len(record.data.classes)
    if classes > 2 and record.clean.accuracy < 1.5 / classes:
        found.append(
            f"It is right on {percent(record.clean.accuracy)} of the clean test images, hardly more than by chance: "
            "does it know other classes, or the same in another order? Does it take another normalisation (mean, std)?"
        )
    found += [*_swapped(record), *_never_found(record), *_seen(record)]
    if n < ENOUGH:
        limit = percent(SHOWN * record.clean.noise_floor)
        found.append(
            f"There are only {n} clean test images: an ECE below {limit}, {SHOWN:g} times what chance gives, is taken "
            "for chance."
        )
    few = [f"{c.shift} {c.severity or ''}".strip() for c in record.shifts if (c.n or 0) < ENOUGH]
    if few and n >= ENOUGH:
        sets = "test set has" if len(few) == 1 else "test sets have"
        found.append(f"{len(few)} shifted {sets} fewer than {ENOUGH} images each, such as {few[0]}.")
    if record.validation is not None and (record.validation.n or 0) < ENOUGH // 2:
        found.append(
            f"Calibrators were fitted on {record.validation.n} validation images alone: another draw may differ."
        )
    ends = [name for name, tried in record.calibrators.items() if tried.temperature in GRID_ENDS]
    if ends:
        low, high = GRID_ENDS
        found.append(
            f"The {_and(ends)} found {'is' if len(ends) == 1 else 'are'} at an end of the grid from {low:.2f} to "
            f"{high:.2f}: one beyond may do better (calibrators.TemperatureScaling(search='lbfgs'))."
        )
    return found


def _swapped(record: AuditRecord) -> list[str]:
    """Two classes the wrong way round are right less often than a coin."""
    cell = record.clean
    if len(cell.class_counts) != 2 or not cell.n or 0.5 - cell.accuracy < SURE * 0.5 / math.sqrt(cell.n):
        return []
    right = f"It is right on {percent(cell.accuracy)} of the clean test images"
    return [f"{right}, less often than a coin would be: are its two classes swapped?"]


def _never_found(record: AuditRecord) -> list[str]:
    """Name the classes of which not one image is classified right, which accuracy and ECE hide where they are rare."""
    cell, names = record.clean, record.data.classes
    by_chance = 0.01 / max(len(cell.class_counts), 1)  # of a class that is found as often as the others
    lost = [
        k for k, n in enumerate(cell.class_counts) if not cell.class_hits[k] and (1 - cell.accuracy) ** n < by_chance
    ]
    if not lost or cell.accuracy < 1.5 / len(cell.class_counts):
        return []
    first = [f"{names[k] if names else f'class {k}'} (0 of {cell.class_counts[k]} images)" for k in lost[:3]]
    more = f" and {len(lost) - 3} more classes" if len(lost) > 3 else ""
    return [f"It never finds {', '.join(first)}{more}: accuracy and ECE say nothing of rare classes."]


def _seen(record: AuditRecord) -> list[str]:
    """Validation images that are classified far better than test images were probably trained on."""
    one, other = record.validation, record.clean
    if one is None or not one.n or not other.n or one.accuracy < other.accuracy + 0.05:
        return []
    mean = (one.accuracy * one.n + other.accuracy * other.n) / (one.n + other.n)
    if one.accuracy - other.accuracy < _SEEN * math.sqrt(mean * (1 - mean) * (1 / one.n + 1 / other.n)):
        return []
    right = f"{percent(one.accuracy)} of the validation images and {percent(other.accuracy)} of the test images"
    return [f"It is right on {right}. Was it trained on the former? Calibrators fitted on such images do not help."]


def percent(value: float) -> str:
    """Write a fraction in per cent."""
    return f"{100 * value:.1f} %"


def points(value: float) -> str:
    """Write a difference of fractions in percentage points."""
    text = f"{100 * value:.1f}"
    return f"{text} point{'' if text == '1.0' else 's'}"
