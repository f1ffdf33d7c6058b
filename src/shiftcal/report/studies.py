"""The studies of the paper and others: what each shows, what it needs, and how it is made of records and arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from shiftcal._errors import ParameterError, unknown, wrong
from shiftcal._io import write_atomically
from shiftcal.records import CONFIG, RECORD, RunRecord, grids_in, load_finished
from shiftcal.records.arrays import Arrays, read_arrays
from shiftcal.report.choose import with_methods, with_weights
from shiftcal.report.figures import (
    boxes,
    conflicts,
    coverage,
    gradcam,
    heat,
    noise,
    reliability,
    sensitivity,
    strips,
    temperature,
    tradeoff,
    training,
    wasserstein,
)
from shiftcal.report.figures import severity as severities
from shiftcal.report.figures.canvas import save
from shiftcal.report.labels import labelled

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Material:
    """What a figure is made of.

    Attributes:
        places: Runs, directories of runs, files of records, and directories with arrays or the files themselves.
        key: The config's key that a study of sensitivity is about; found by default.
        temperature: Which temperature, "clean" or "shift_aware".
        weights: Which weights, where runs evaluated several; the kept ones by default.
        methods: Which methods, all by default.
    """

    places: tuple[Path, ...]
    key: str | None = None
    temperature: str = "clean"
    weights: str | None = None
    methods: tuple[str, ...] = ()

    def records(self) -> list[RunRecord]:
        """Read the records of all places that have some."""
        found = self.any_records()
        if not found:
            raise wrong("DIR", "finished runs, or directories that hold some", ", ".join(map(str, self.places)))
        return found

    def any_records(self) -> list[RunRecord]:
        """Read the records, if there are any."""
        found = [record for place in self.places if _has_records(place) for record in load_finished(place)[0]]
        found = with_methods(found, self.methods) if found and self.methods else found
        return with_weights(found, self.weights) if self.weights else found

    def arrays(self, kind: str) -> Arrays:
        """Read the arrays of a kind, which exactly one place has."""
        name = f"{kind}.npz"
        found = [file for place in self.places for file in _files(place, name)]
        if len(found) != 1:
            words = ", ".join(map(str, found or self.places))
            raise wrong("DIR", f"directories of which one has {name}", f"{words}, with {len(found) or 'none'}")
        return read_arrays(found[0], kind)


def _has_records(place: Path) -> bool:
    if place.is_file():
        return place.suffix != ".npz"
    if not place.is_dir():
        raise wrong("DIR", "a directory, a file of records or arrays", str(place))
    below = any((place / n).is_file() or any(place.glob(f"*/{n}")) for n in (RECORD, CONFIG))
    return below or bool(grids_in(place))


def _files(place: Path, name: str) -> list[Path]:
    if place.is_file():
        return [place] if place.name == name else []
    return [place / name] if (place / name).is_file() else sorted(place.glob(f"*/{name}"))


@dataclass(frozen=True)
class Made:
    """The figures of a study by the stems of their files, and tables by their names."""

    figures: Mapping[str, Figure]
    texts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Study:
    """One study.

    Attributes:
        name: Its name.
        shows: What it shows, and where in the paper.
        needs: What it is made of.
        command: What makes that.
        make: Makes it.
    """

    name: str
    shows: str
    needs: str
    command: str
    make: Callable[[Material], Made]


def _simple(
    name: str, data: Callable[[list[RunRecord]], object], draw: Callable[..., Figure]
) -> Callable[[Material], Made]:
    return lambda material: Made({name: draw(data(labelled(material.records())))})


def _temperature(material: Material) -> Made:
    data = temperature.temperature_data(labelled(material.records()), material.temperature)
    return Made({"temperature": temperature.draw_temperature(data)})


def _sensitivity(material: Material) -> Made:
    records = material.records()
    groups = {material.key: records} if material.key else sensitivity.keys_in(records)
    figures = {
        f"sensitivity-{key.replace('.', '-')}": sensitivity.draw_sensitivity(
            sensitivity.sensitivity_data(own, key), key
        )
        for key, own in groups.items()
    }
    return Made(figures)


def _heat(material: Material) -> Made:
    by_method: dict[str, list[RunRecord]] = {}
    for record in material.records():
        by_method.setdefault(record.method, []).append(record)
    figures, refused = {}, []
    for method, own in by_method.items():
        try:
            figures[f"heat-{method}"] = heat.draw_heat(heat.heat_data(own))
        except ParameterError as error:  # a baseline beside the grid, which has no filter
            refused.append(error)
    if not figures:
        raise refused[0]
    return Made(figures)


def _strips(material: Material) -> Made:
    data = strips.strip_data(material.arrays("strips"), material.any_records())
    return Made({"strips": strips.draw_strips(data)})


def _wasserstein(material: Material) -> Made:
    tables = wasserstein.distance_data(material.arrays("features"))
    texts = {
        "wasserstein.md": wasserstein.distances_markdown(tables),
        "wasserstein.tex": wasserstein.distances_latex(tables),
    }
    return Made({"wasserstein": wasserstein.draw_distances(tables)}, texts)


_GRID = "shiftcal bench quick-cifar10 --methods ce,dfl,fgr --seeds 0,1,2 --out runs/grid"
_SWEEP = "shiftcal bench demo --methods fgr --sweep gamma.fgr=0,1,3,5 --out runs/gamma"
_JOINT = (
    "shiftcal bench demo --methods fgr --sweep filter.ratio=0.03,0.05,0.1 --sweep 'filter.qualities=[15],[18],[25]' "
    "--out runs/joint"
)
_RECORDS = "records of runs with shifts"

_ALL = (
    Study(
        "tradeoff",
        "accuracy against ECE, clean and under shift: a point for each method, and the frontier",
        "records of runs",
        _GRID,
        _simple("tradeoff", tradeoff.tradeoff_data, tradeoff.draw_tradeoff),
    ),
    Study(
        "boxes",
        "accuracy and ECE by severity, a box over the shifts for each method (figure AccECE)",
        _RECORDS,
        _GRID,
        _simple("boxes", boxes.box_data, boxes.draw_boxes),
    ),
    Study(
        "reliability",
        "reliability diagrams of each method, clean and under shift (figure visual)",
        "records of runs",
        _GRID,
        _simple("reliability", reliability.reliability_data, reliability.draw_reliability),
    ),
    Study(
        "temperature",
        "reliability diagrams before and after temperature scaling (--temperature clean or shift_aware)",
        "records with bins of each test set",
        _GRID,
        _temperature,
    ),
    Study(
        "severity",
        "ECE by severity: the mean over shifts, and each shift",
        _RECORDS,
        _GRID,
        _simple("severity", severities.severity_data, severities.draw_severity),
    ),
    Study(
        "coverage",
        "risk–coverage curves: errors among the most confident images",
        "records with histograms of confidence",
        _GRID,
        _simple("coverage", coverage.coverage_data, coverage.draw_coverage),
    ),
    Study(
        "conflicts",
        "conflict rate, cosine, accuracy and ECE over epochs (figure both; with evaluation.every on test images)",
        "records of runs with a constraint",
        "shiftcal train quick-cifar10 --set method=fgr --set evaluation.every=1 --out runs/fgr",
        _simple("conflicts", conflicts.conflict_data, conflicts.draw_conflicts),
    ),
    Study(
        "training",
        "training curves: loss, accuracy and ECE over epochs",
        "records of runs",
        _GRID,
        _simple("training", training.training_data, training.draw_training),
    ),
    Study(
        "sensitivity",
        "accuracy and ECE against one numeric key: γ, ρ, λ, start epoch, batch size (figures start_epoch, "
        "gamma_analysis, hyperparam_sensitivity)",
        "records of runs of a method that differ in one numeric key",
        _SWEEP,
        _sensitivity,
    ),
    Study(
        "heat",
        "accuracy and ECE over ρ and λ together, clean and under shift (figures joint_sensitivity)",
        "records of runs of a method with several filter.ratio and single filter.qualities",
        _JOINT,
        _heat,
    ),
    Study(
        "strips",
        "images filtered with several λ, and reliability of runs trained with each (figure diffLambda)",
        "strips.npz, and records of runs with one quality each if there are any",
        "shiftcal analyse strips runs/ce --out studies",
        _strips,
    ),
    Study(
        "gradcam",
        "Grad-CAM maps of several models on the same images (figures motivation, gradcam)",
        "gradcam.npz",
        "shiftcal analyse gradcam runs/ce runs/fgr --shift fog --out studies",
        lambda m: Made({"gradcam": gradcam.draw_cams(gradcam.cam_data(m.arrays("gradcam")))}),
    ),
    Study(
        "wasserstein",
        "Wasserstein distances of features by λ, ρ and shift, as figure and tables (tables wasserstein_lambda, _rho)",
        "features.npz",
        "shiftcal analyse features runs/ce --out studies",
        _wasserstein,
    ),
    Study(
        "noise",
        "how far two batches agree on the constraint's gradient, and with the main one",
        "noise.npz",
        "shiftcal analyse noise runs/fgr --out studies",
        lambda m: Made({"noise": noise.draw_noise(noise.noise_data(m.arrays("noise")))}),
    ),
)
STUDIES: dict[str, Study] = {study.name: study for study in _ALL}


def make_study(name: str, material: Material) -> Made:
    """Make a study; what its records or arrays lack is an error that names what is needed and what makes it."""
    if name not in STUDIES:
        raise unknown("STUDY", name, STUDIES)
    study = STUDIES[name]
    try:
        return study.make(material)
    except ParameterError as error:
        hint = f"{error.hint} The study {name} needs {study.needs}, as made by: {study.command}"
        raise ParameterError(error.name, error.should, error.found, hint) from None


def write_study(made: Made, out: Path, formats: Sequence[str]) -> list[Path]:
    """Write a study's figures in each format, and its tables; returns the files."""
    out.mkdir(parents=True, exist_ok=True)
    files = []
    for stem, figure in made.figures.items():
        for kind in formats:
            file = out / f"{_plain(stem)}.{kind}"
            save(figure, file)
            files.append(file)
    for name, text in made.texts.items():
        write_atomically(out / name, text.encode())
        files.append(out / name)
    return files


def _plain(stem: str) -> str:
    """Keep of a name what any file system takes."""
    return "".join(c if c.isalnum() or c in "-_+." else "-" for c in stem)[:80]
