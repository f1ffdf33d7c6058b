"""A model card: README.md with what was measured as front matter, and the same as Hugging Face's evaluation results."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shiftcal._errors import RunDirectoryError
from shiftcal._io import is_free, replacing, write_atomically
from shiftcal.records import CALIBRATOR, RunRecord
from shiftcal.records.audit import AuditRecord
from shiftcal.records.models import Cell, Mean
from shiftcal.report.audit import markdown as audit_table
from shiftcal.report.table import markdown as run_table
from shiftcal.report.text import for_markdown
from shiftcal.report.web.words import comparison_of
from shiftcal.report.yaml import to_yaml

README, RESULTS = "README.md", ".eval_results/shiftcal.yaml"
LIBRARY = "library_name"
_TAGS = ("image-classification", "calibration", "uncertainty", "distribution-shift")
_HUB = {"cifar10": "uoft-cs/cifar10", "cifar100": "uoft-cs/cifar100", "tiny-imagenet": "zh-plus/tiny-imagenet"}
_OTHERS = (".git", ".gitattributes", ".gitignore")  # what a clone of a repository on the Hub brings
_SHOWN = 50  # classes that the card lists
_LIMITS = (
    "It knows its classes alone: an image of something else gets one of them too, perhaps with high confidence.",
    "The shifts above were tried and no others; nothing is known of its confidence elsewhere. "
    "`shiftcal audit` measures it on your images.",
)


@dataclass(frozen=True)
class Told:
    """What a user says of a model that its record does not: its name, licence and data set on the Hub."""

    name: str
    license: str | None = None
    dataset: str | None = None
    calibrator: str | None = None


@dataclass(frozen=True)
class _Subject:
    """What runs and audits have in common: the data, the classes, what was measured, and when."""

    data: str
    classes: Sequence[str]
    clean: Cell
    shifted: Mean | None
    shifts: Sequence[Cell]
    bins: int
    started: str | None

    def measured(self) -> Iterator[tuple[str, str, str, float]]:
        """List metrics: an id, the test set in words, the metric's name, and its value."""
        shifts = len({cell.shift for cell in self.shifts})
        words = {"clean": "clean test set", "shifted": f"mean of {len(self.shifts)} shifted test sets, {shifts} shifts"}
        for part, of in (("clean", self.clean), ("shifted", self.shifted)):
            if of is not None:
                yield f"{part}_accuracy", words[part], "accuracy", of.accuracy
                yield f"{part}_ece", words[part], "ece", of.ece


def card_of_run(record: RunRecord, told: Told) -> str:
    """Write the card of a run."""
    sentences = [for_markdown(sentence) for sentence in comparison_of([record]).sentences()]
    body = [
        *_bullets(sentences),
        "",
        run_table([record]).strip(),
        *_calibrated(told),
        *_use(_is_foreign(record.config)),
        *_training(record),
        *_limits(_of_run(record), [f"This is one run, of seed {record.seed}: another differs."]),
    ]
    return _card(_of_run(record), told, body)


def card_of_audit(record: AuditRecord, told: Told) -> str:
    """Write the card of an audited model."""
    seen = record.model
    source = f"The audited model is {for_markdown(seen.name)} ({for_markdown(seen.kind)})"
    source += f", SHA-256 `{for_markdown(seen.sha256)}`." if seen.sha256 else "."
    body = [audit_table(record).strip(), "", source, *_calibrated(told), *_limits(_of_audit(record), [])]
    return _card(_of_audit(record), told, body)


def results_of(record: RunRecord | AuditRecord, told: Told) -> str:
    """Write what was measured as a file of `.eval_results`, one entry a metric."""
    of = _of_run(record) if isinstance(record, RunRecord) else _of_audit(record)
    date = {"date": of.started} if of.started else {}
    words = {"accuracy": "accuracy", "ece": f"expected calibration error, {of.bins} bins"}
    return to_yaml(
        [
            {
                "dataset": {"id": _dataset_id(of, told), "task_id": task},
                "value": value,
                **date,
                "notes": f"{words[metric]}, {where}",
            }
            for task, where, metric, value in of.measured()
        ]
    )


def write_folder(out: Path, files: Mapping[str, bytes | Path]) -> None:
    """Write a folder to be shared: new, empty, or one that was written before. Its README.md comes last."""
    _check_free(out, files)
    if CALIBRATOR not in files:
        (out / CALIBRATOR).unlink(missing_ok=True)  # of an earlier card
    for name, content in sorted(files.items(), key=lambda item: item[0] == README):
        path = out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            write_atomically(path, content)
        else:
            with replacing(path) as temporary:
                shutil.copyfile(content, temporary)


def _check_free(out: Path, files: Mapping[str, bytes | Path]) -> None:
    if is_free(out) and not out.is_file():
        return
    expected = "new, empty, or a folder that `shiftcal card` wrote"
    if not out.is_dir():
        raise RunDirectoryError("out", expected, f"{out}, a file")
    known = {Path(name).parts[0] for name in files} | {CALIBRATOR, *_OTHERS}
    others = sorted(path.name for path in out.iterdir() if path.name not in known and not path.name.endswith(".tmp"))
    if others:
        raise RunDirectoryError("out", expected, f"{out}, with {others[0]}")
    readme = out / README
    text = readme.read_text(encoding="utf-8", errors="replace") if readme.is_file() else ""
    if f'\n{LIBRARY}: "shiftcal"\n' not in text.partition("\n---\n")[0] + "\n":
        raise RunDirectoryError("out", expected, f"{out}, whose {README} is another's or missing")
    places = [out / name for name in files]
    if any(path.is_symlink() for name in places for path in (name, name.parent) if path != out):
        raise RunDirectoryError("out", expected, f"{out}, with links")
    if any(isinstance(file, Path) and (out / name).resolve() == file.resolve() for name, file in files.items()):
        raise RunDirectoryError("out", "another folder than what is shared", str(out))


def _card(of: _Subject, told: Told, body: Sequence[str]) -> str:
    title = f"# {for_markdown(told.name)}"
    classes = ", ".join(for_markdown(name) for name in of.classes[:_SHOWN])
    more = f" and {len(of.classes) - _SHOWN} more" if len(of.classes) > _SHOWN else ""
    known = f"An image classifier of {len(of.classes)} classes: {classes}{more}." if of.classes else ""
    lines = ["---", to_yaml(_front_matter(of, told)).rstrip(), "---", "", title, "", known, "", *body]
    return "\n".join(lines).rstrip() + "\n"


def _front_matter(of: _Subject, told: Told) -> dict[str, Any]:
    names = {"accuracy": "Accuracy", "ece": f"Expected calibration error ({of.bins} bins)"}
    results = [
        {
            "task": {"type": "image-classification", "name": "Image Classification"},
            "dataset": {"type": _dataset_id(of, told), "name": f"{of.data}, {where}", "split": "test"},
            "metrics": [
                {"type": metric, "value": value, "name": names[metric]}
                for _, place, metric, value in of.measured()
                if place == where
            ],
        }
        for where in dict.fromkeys(where for _, where, _, _ in of.measured())
    ]
    return {
        LIBRARY: "shiftcal",
        **({"license": told.license} if told.license else {}),
        "pipeline_tag": "image-classification",
        "tags": ["shiftcal", *_TAGS],
        "metrics": ["accuracy", "ece"],
        "model-index": [{"name": told.name, "results": results}],
    }


def _dataset_id(of: _Subject, told: Told) -> str:
    return told.dataset or _HUB.get(of.data, of.data)


def _of_run(record: RunRecord) -> _Subject:
    own, data = record.evaluation, record.data
    name = data.name if data is not None else str(record.config["data"].get("name"))
    bins = own.reliability.clean.count
    classes = data.classes if data is not None else ()
    return _Subject(name, classes, own.clean, own.shifted, own.shifts, len(bins), record.started)


def _of_audit(record: AuditRecord) -> _Subject:
    data = record.data
    return _Subject(data.name, data.classes, record.clean, record.shifted, record.shifts, record.bins, record.started)


def _bullets(sentences: Sequence[str]) -> list[str]:
    return [f"- {sentence}" for sentence in sentences]


def _calibrated(told: Told) -> list[str]:
    if told.calibrator is None:
        return []
    kind = for_markdown(told.calibrator)
    return ["", f"The folder holds a calibrator ({kind}). The numbers above are those of the model without it."]


def _is_foreign(config: Mapping[str, Any]) -> bool:
    """Tell whether a run needs code of another package than this one."""
    named = [config.get("method"), *(_in(config, s, k) for s, k in (("train", "model"), ("data", "name")))]
    return bool(config.get("plugins")) or any(":" in str(name) for name in named)


def _in(config: Mapping[str, Any], section: str, key: str) -> Any:
    place = config.get(section)
    return place.get(key) if isinstance(place, Mapping) else None


def _use(foreign: bool) -> list[str]:
    trust = ", trust=True" if foreign else ""
    note = ["", "It needs code that is not in shiftcal, named in config.json: read that first."] if foreign else []
    return [
        *("", "## Use", "", "```python", "import shiftcal", ""),
        f'model = shiftcal.load("this/folder"{trust})',
        'probabilities = model.predict("photos")  # a folder, a list of files, or uint8 images [N, 3, H, W]',
        *("model.classes", "```", *note),
    ]


def _training(record: RunRecord) -> list[str]:
    words = f"Method {for_markdown(record.method)}, recipe {for_markdown(record.recipe)}, seed {record.seed}, "
    words += f"{len(record.history)} epochs, with shiftcal {for_markdown(record.versions.get('shiftcal'))} and torch "
    words += f"{for_markdown(record.versions.get('torch'))}. The whole configuration:"
    # In JSON a backtick may be written so that no text can end the block.
    config = json.dumps(record.config, indent=1).replace("`", "\\u0060")
    return ["", "## How it was trained", "", words, "", "```json", config, "```"]


def _limits(of: _Subject, more: Sequence[str]) -> list[str]:
    shifts = ", ".join(dict.fromkeys(for_markdown(cell.shift) for cell in of.shifts)) or "none"
    tried = (
        f"Measured on {of.clean.n or 'some'} test images of {for_markdown(of.data)}. Shifts that were tried: {shifts}."
    )
    return ["", "## Limits", "", *_bullets([tried, *more, *_LIMITS])]
