"""Which candidates of a grid were chosen: a file beside its runs. Never imports torch."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from shiftcal._errors import RunDirectoryError
from shiftcal._io import read_json, write_atomically
from shiftcal.records.models import Model

SELECTION = "selection.json"


def choices_in(places: Iterable[Path]) -> list[str]:
    """Say which values were chosen in the grids of some places; a damaged file says nothing."""
    found = []
    for place in places:
        with suppress(ValueError):
            found += [choice.in_words() for choice in read_selection(place).choices if choice.chosen]
    return found


class Candidate(Model):
    """One candidate: its run's directory, the values of the selected keys, and its metric; None if it diverged."""

    run: str
    values: dict[str, Any]
    metric: float | None = None

    @property
    def in_words(self) -> str:
        """Its values."""
        return ", ".join(f"{key} = {value}" for key, value in self.values.items())


class Choice(Model):
    """The choice for one method, and for one combination of swept values where there are some.

    Attributes:
        method: The method.
        setting: The swept values.
        by: The metric on the validation images, such as "validation.ece".
        seed: The seed of the candidates.
        candidates: All of them.
        chosen: The run with the best metric; None where no candidate finished.
    """

    method: str
    setting: dict[str, Any] = {}
    by: str
    seed: int
    candidates: tuple[Candidate, ...]
    chosen: str | None = None

    def in_words(self) -> str:
        """Say what was chosen, of what, by what."""
        values = next((one.in_words for one in self.candidates if one.run == self.chosen), "")
        return (
            f"Chosen for {self.method}: {values}, of {len(self.candidates)} candidates by {self.by} (seed {self.seed})."
        )

    @property
    def stems(self) -> set[str]:
        """The names of its candidates' directories without the seed."""
        return {stem_of(candidate.run) for candidate in self.candidates}

    def hides(self, run: str) -> bool:
        """Tell whether a run has values that were not chosen, with whatever seed."""
        return self.chosen is not None and stem_of(run) in self.stems - {stem_of(self.chosen)}


class Selection(Model):
    """All choices of a grid's directory."""

    choices: tuple[Choice, ...] = ()

    def reason(self, run: str) -> str | None:
        """Tell why a report leaves a run out; None if it does not."""
        hiding = next((choice for choice in self.choices if choice.hides(run)), None)
        return None if hiding is None else f"not chosen by {hiding.by}, see {SELECTION}"

    def without(self, runs: Collection[str]) -> Selection:
        """Drop the choices that hide some of these runs."""
        return Selection(choices=tuple(c for c in self.choices if not any(c.hides(run) for run in runs)))

    def with_choices(self, new: Collection[Choice]) -> Selection:
        """Add choices; each replaces earlier ones that share a candidate, and keeps their other candidates hidden."""
        stems = {stem for choice in new for stem in choice.stems}
        kept = [choice for choice in self.choices if not choice.stems & stems]
        return Selection(choices=(*kept, *(self._merged(choice) for choice in new)))

    def _merged(self, new: Choice) -> Choice:
        earlier = [choice for choice in self.choices if choice.stems & new.stems]
        others = {
            one.run: one if (choice.by, choice.seed) == (new.by, new.seed) else one.model_copy(update={"metric": None})
            for choice in earlier
            for one in choice.candidates
            if stem_of(one.run) not in new.stems
        }
        return new.model_copy(update={"candidates": (*new.candidates, *others.values())})


def stem_of(run: str) -> str:
    """Return the name of a run's directory without its seed.

    Example:
        >>> stem_of("fgr-gamma.fgr=3-0")
        'fgr-gamma.fgr=3'
    """
    return run.rpartition("-")[0]


def read_selection(directory: Path) -> Selection:
    """Read the choices of a grid's directory; one without them has none."""
    path = directory / SELECTION
    if not path.is_file():
        return Selection()
    try:
        return Selection.model_validate(read_json(path))
    except ValidationError as error:
        first = error.errors()[0]
        found = f"{path}: {'.'.join(map(str, first['loc'])) or 'it'}: {first['msg']}"
    raise RunDirectoryError("selection", "what `shiftcal bench --select` wrote (or removed)", found)


def write_selection(directory: Path, selection: Selection) -> None:
    """Write the choices of a grid's directory, or remove the file where there are none."""
    if selection.choices:
        write_atomically(directory / SELECTION, (selection.model_dump_json(indent=1) + "\n").encode())
    else:
        (directory / SELECTION).unlink(missing_ok=True)
