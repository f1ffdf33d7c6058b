"""Cells of an audit that are finished, one line each, so that an interrupted audit continues."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import ValidationError

from shiftcal import _distributed
from shiftcal._errors import RunDirectoryError
from shiftcal._io import write_atomically
from shiftcal.metrics.ece_interval import Gaps
from shiftcal.records.audit import AuditCell


class Journal:
    """Finished cells in a file; without a path in memory alone.

    The first line says what is audited and how: a file of something else that has cells is an error. A line that was
    cut off is left out. Of several ranks the first one writes, and all know what it knows.
    """

    def __init__(self, path: Path | None = None, about: Mapping[str, Any] | None = None) -> None:
        self.path, self.about = path, dict(about or {})
        self._about = json.dumps(self.about, sort_keys=True)
        self._cells: dict[tuple[str | None, int | None], tuple[AuditCell, Gaps]] = {}
        if path is None:
            return
        lines = path.read_text(encoding="utf-8").split("\n") if path.is_file() else []
        lines = _distributed.all_gather_object(lines)[0] if _distributed.is_distributed() else lines
        for line in lines[1:]:
            self._take(line)
        if lines[:1] != [self._about] and self._cells:
            found = f"{path}, with {len(self._cells)} test sets of another one"
            raise RunDirectoryError("out", "a new directory, or that of the same audit", found)
        if _distributed.rank() == 0:
            path.parent.mkdir(parents=True, exist_ok=True)
            kept = [self._line(*known) for known in self._cells.values()]
            write_atomically(path, "\n".join([self._about, *kept, ""]).encode())

    def __len__(self) -> int:
        return len(self._cells)

    def known(self, shift: str | None, severity: int | None) -> tuple[AuditCell, Gaps] | None:
        """Return a finished cell, and its gaps and their noise."""
        return self._cells.get((shift, severity))

    def finished(self, shift: str | None, severity: int | None) -> tuple[AuditCell, Gaps]:
        """Return a cell that is known to be finished."""
        return self._cells[shift, severity]

    def add(self, cell: AuditCell, gaps: Gaps) -> None:
        """Keep a finished cell."""
        self._cells[cell.shift, cell.severity] = cell, gaps
        if self.path is not None and _distributed.rank() == 0:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(self._line(cell, gaps) + "\n")

    def remove(self) -> None:
        """Remove the file: the audit is finished."""
        if self.path is not None and _distributed.rank() == 0:
            self.path.unlink(missing_ok=True)

    def _line(self, cell: AuditCell, gaps: Gaps) -> str:
        noise = base64.b64encode(gaps.noise.numpy().astype("<f4").tobytes()).decode()
        content = {"cell": cell.model_dump(mode="json", exclude_none=True)}
        return json.dumps(content | {"gaps": gaps.observed.tolist(), "noise": noise})

    def _take(self, line: str) -> None:
        try:
            content = json.loads(line)
            cell = AuditCell.model_validate(content["cell"])
            observed = torch.tensor(content["gaps"], dtype=torch.float64)
            noise = np.frombuffer(base64.b64decode(content["noise"]), "<f4").reshape(-1, len(observed))
        except (ValueError, KeyError, TypeError, ValidationError):
            return  # cut off, or written by something else
        self._cells[cell.shift, cell.severity] = cell, Gaps(observed, torch.from_numpy(noise.astype(np.float64)))
