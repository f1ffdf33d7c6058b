"""An audit of the model in training, as a Lightning callback."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from lightning.pytorch import Callback
from torch import Tensor, nn

from shiftcal._errors import check_count, unknown, wrong
from shiftcal.auditing.audit import Images, audit
from shiftcal.auditing.grid import ShiftGrid, nearest_constants
from shiftcal.auditing.predictors import check_logits, first_rows, tensor_of
from shiftcal.data.preprocessing import Preprocessing
from shiftcal.data.split import MemorySplit
from shiftcal.experiments.environment import environment
from shiftcal.records.audit import AUDIT, AuditRecord, ModelSeen, write_audit
from shiftcal.report.audit import write_audit_page

Moment = Literal["fit", "validation", "test"]
_HINT = " `forward` should give them, or a mapping that has them as `logits`."


class AuditCallback(Callback):
    """Audit the model at the end of fitting, of validation or of testing: log the numbers, write the page.

    Logged are `audit/clean_accuracy`, `_nll` and `_ece` and, as means over the corruptions at five severities,
    `audit/shifted_…`; `record` holds everything. Of several ranks each predicts its share.

    Args:
        images: Images as they are stored: `shiftcal.Images`, a pair (uint8 images [N, 3, H, W], targets), or a loader
            of such pairs, which is read once and kept in memory.
        preprocess: What makes them the module's input.
        out: The directory for the page and the record, if they are wanted; later audits replace earlier ones.
        at: When: "fit", "validation" or "test".
        every: At every so many validations.
        corruptions: Names of corruptions, each at five severities.
        constants: Whose severities, see `shiftcal.corrupt`; by default those made for images nearest to this size.
        classes: The names of the classes in the order of the model's outputs, where `images` has none; by default
            they are numbers, as many as the module has outputs.
        bins: Number of bins.
        batch_size: Images at a time.
    """

    def __init__(
        self,
        images: Images | tuple[Tensor, Tensor] | Iterable[Any],
        preprocess: Preprocessing,
        *,
        out: str | Path | None = None,
        at: Moment = "fit",
        every: int = 1,
        corruptions: Sequence[str] = ("gaussian_noise", "defocus_blur", "contrast"),
        constants: str | None = None,
        classes: Sequence[str] = (),
        bins: int = 15,
        batch_size: int = 500,
    ) -> None:
        super().__init__()
        if at not in get_args(Moment):
            raise unknown("at", at, get_args(Moment))
        check_count("every", every)
        check_count("bins", bins)
        check_count("batch_size", batch_size)
        self.images = _as_images(images, tuple(classes))
        self._named = bool(classes) or isinstance(images, Images)
        self.preprocess, self.at, self.every = preprocess, at, every
        self.out = None if out is None else Path(out)
        self.corruptions = tuple(corruptions)
        self.constants = constants or nearest_constants(self.images.test.shape[-1])
        self.bins, self.batch_size = bins, batch_size
        ShiftGrid(self.corruptions, self.constants).check_images(self.images.test)
        self.record: AuditRecord | None = None
        self._validations = 0

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Look at some logits: an audit that cannot be is told before training, not after it."""
        self._check(trainer, pl_module)

    def _check(self, trainer: Any, pl_module: Any) -> None:
        rows = first_rows(_AsInTraining(pl_module, trainer.precision_plugin), self.images.test, self.preprocess)
        if not self._named and rows.shape[1] > len(self.images.classes):  # targets may lack the last classes
            self.images = replace(self.images, classes=tuple(map(str, range(rows.shape[1]))))
        check_logits(pl_module, rows, len(self.images.classes), _HINT)

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Audit at every so many validations."""
        if self.at != "validation" or trainer.sanity_checking:
            return
        self._validations += 1
        if self._validations % self.every == 0:
            pl_module.log_dict(self._audited(trainer, pl_module), sync_dist=trainer.world_size > 1)

    def on_test_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Audit after a test."""
        if self.at == "test":
            pl_module.log_dict(self._audited(trainer, pl_module), sync_dist=trainer.world_size > 1)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Audit at the end of fitting, where Lightning's own `log` does no longer work."""
        if self.at == "fit":
            numbers = self._audited(trainer, pl_module)
            trainer.callback_metrics.update({name: torch.tensor(value) for name, value in numbers.items()})
            for logger in trainer.loggers:
                logger.log_metrics(numbers, step=trainer.global_step)

    def _audited(self, trainer: Any, pl_module: Any) -> dict[str, float]:
        self._check(trainer, pl_module)  # before a test alone, nothing was fitted
        started = datetime.now(UTC).isoformat(timespec="seconds")
        seen = ModelSeen(name=type(pl_module).__name__, kind="module")
        with torch.inference_mode(False):  # calibrators may have to be fitted
            record = audit(
                _AsInTraining(pl_module, trainer.precision_plugin),
                self.images,
                preprocess=self.preprocess,
                corruptions=self.corruptions,
                constants=self.constants,
                bins=self.bins,
                batch_size=self.batch_size,
                about={**environment(), "started": started, "model": seen},
                progress=False,
            )
        self.record = record
        if self.out is not None and trainer.is_global_zero:
            self.out.mkdir(parents=True, exist_ok=True)
            write_audit(self.out / AUDIT, record)
            write_audit_page(self.out, record)
        cells = {"clean": record.clean, "shifted": record.shifted}
        return {
            f"audit/{name}_{metric}": float(getattr(cell, metric))
            for name, cell in cells.items()
            if cell is not None
            for metric in ("accuracy", "nll", "ece")
        }


class _AsInTraining(nn.Module):
    """A module with the precision that it is trained in."""

    def __init__(self, module: nn.Module, precision: Any) -> None:
        super().__init__()
        self.module, self.precision = module, precision

    def forward(self, images: Tensor) -> Tensor:
        """Return logits."""
        with self.precision.forward_context():
            return tensor_of(self.module(self.precision.convert_input(images)))


def _as_images(images: Any, classes: tuple[str, ...]) -> Images:
    if isinstance(images, Images):
        return images
    is_pair = isinstance(images, tuple | list) and len(images) == 2 and isinstance(images[0], Tensor)
    pairs = [images] if is_pair else list(images)
    found, targets = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    if not found:
        raise wrong("images", "at least one batch", "none")
    for batch in found:
        if not isinstance(batch, Tensor) or batch.dtype != torch.uint8:
            kind = batch.dtype if isinstance(batch, Tensor) else type(batch).__name__
            raise wrong("images", "uint8, as they are stored: corruptions come before normalisation", kind)
    split = MemorySplit(torch.cat(found), torch.cat(targets))
    count = int(split.targets.max()) + 1
    names = classes or tuple(map(str, range(count)))
    if len(names) < count:
        raise wrong("classes", f"{count} names at least, as targets are in 0..{count - 1}", f"{len(names)} of them")
    return Images("images", names, split)
