"""FGR in the Trainer of transformers, and calibration metrics for any Trainer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from shiftcal import losses
from shiftcal._errors import wrong
from shiftcal.gradients import ConstraintMomentum, GradientPair, gather
from shiftcal.gradients.rules import Rule, find_rule
from shiftcal.integrations._extras import missing
from shiftcal.metrics import CalibrationMeter

try:
    from transformers import EvalPrediction, Trainer, TrainingArguments

    from shiftcal.integrations.accelerate import check_not_sharding, scaled
except (ImportError, RuntimeError) as error:  # RuntimeError: it imports torchvision, which may be one for another torch
    raise missing("transformers", error) from error

__all__ = ["FGRTrainer", "compute_calibration_metrics"]

Loss = Callable[[Tensor, Tensor], Tensor]
MASK = "filtered"  # the column that tells which images were low-pass filtered


class FGRTrainer(Trainer):
    """A Trainer for image classifiers with a main loss and a constraint (FGR paper, algorithm 1).

    The model gets the inputs without `labels` and returns something with `.logits`. Rows whose column `filtered` is
    true (see `RandomLowPass(return_mask=True)`) have no part in the constraint, which is that of the whole batch of
    all ranks. Both gradients are averaged over ranks and accumulation steps before the rule; clipping, bf16 and
    schedules are the Trainer's. The share of steps in conflict is logged as `conflict`.

    Args:
        model: As for Trainer.
        args: As for Trainer; neither FSDP nor DeepSpeed.
        main_loss: A function of logits and targets, a mean over samples.
        constraint_loss: Another, of which the gradient must not be worsened.
        constrain_from: The epoch, or fraction of one, from which on there is a constraint.
        rule: A name in `shiftcal.gradients.RULES`, or a function of two flat gradients that returns one.
        constraint_momentum: Running mean of the constraint's gradient. It is not in the Trainer's checkpoints.
        options: All other arguments of Trainer.
    """

    def __init__(
        self,
        model: nn.Module | None = None,
        args: TrainingArguments | None = None,
        *,
        main_loss: Loss = losses.dual_focal,
        constraint_loss: Loss = losses.soft_ece,
        constrain_from: float = 0.0,
        rule: str | Rule = "rectify",
        constraint_momentum: ConstraintMomentum | None = None,
        **options: Any,
    ) -> None:
        find_rule(rule)
        _check_arguments(args, options)
        super().__init__(model, args, **options)
        check_not_sharding(self.accelerator)
        self.main_loss, self.constraint_loss, self.constrain_from = main_loss, constraint_loss, constrain_from
        self.rule, self.constraint_momentum = rule, constraint_momentum
        self._pair: GradientPair | None = None
        self._conflicts: list[Tensor] = []

    def both_losses(self, model: nn.Module, inputs: dict[str, Any]) -> tuple[Tensor, Tensor | None]:
        """Return the main loss and the constraint of a batch; None in its place trains with the main loss alone."""
        inputs = dict(inputs)
        labels, filtered = inputs.pop("labels"), inputs.pop(MASK, None)
        logits = model(**inputs).logits
        main_loss = self.main_loss(logits, labels)
        if (self.state.epoch or 0.0) < self.constrain_from:
            return main_loss, None
        kept = torch.ones_like(labels, dtype=torch.bool) if filtered is None else ~filtered.bool()
        all_logits, all_labels = gather(logits[kept], labels[kept])
        return main_loss, self.constraint_loss(all_logits, all_labels) if len(all_labels) else None

    def training_step(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        num_items_in_batch: Tensor | int | None = None,  # noqa: ARG002  (losses are means over samples)
    ) -> Tensor:
        """Add a micro-batch's gradients; at the last of an accumulation, apply the rule."""
        model.train()
        if callable(getattr(self.optimizer, "train", None)):  # schedule-free optimisers
            self.optimizer.train()
        inputs = self._prepare_inputs(inputs)
        with self.compute_loss_context_manager():
            main_loss, constraint_loss = self.both_losses(model, inputs)
        count: int = self.current_gradient_accumulation_steps
        main_loss = main_loss / count
        if constraint_loss is None:
            self.accelerator.backward(main_loss)
        else:
            self._pair = self._pair or GradientPair(model.parameters())
            self._pair.add(*scaled(self.accelerator, main_loss, constraint_loss / count, self.constraint_momentum))
        if self._pair is not None and self.accelerator.sync_gradients:
            report = self._pair.backward(rule=self.rule, state=self.constraint_momentum)
            self._conflicts.append(report.conflict)
            self._pair = None
        return main_loss.detach()

    def compute_loss(self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Compute the model's own loss, for evaluation."""
        return super().compute_loss(model, {k: v for k, v in inputs.items() if k != MASK}, *args, **kwargs)

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Log, with the share of optimiser steps in which the gradients were in conflict."""
        if "loss" in logs and self._conflicts:
            logs = {**logs, "conflict": float(torch.stack(self._conflicts).float().mean())}
            self._conflicts = []
        super().log(logs, *args, **kwargs)

    def _set_signature_columns_if_needed(self) -> None:
        # Columns that the model's forward pass does not take are removed, the mask must not be.
        super()._set_signature_columns_if_needed()
        if MASK not in self._signature_columns:
            self._signature_columns.append(MASK)


def compute_calibration_metrics(prediction: EvalPrediction, bins: int = 15) -> dict[str, float]:
    """Compute accuracy, NLL, Brier, ECE, MCE, classwise and adaptive ECE from logits, as a Trainer's `compute_metrics`.

    Args:
        prediction: What a Trainer hands over: logits, or a tuple that begins with them, and labels.
        bins: Number of bins.

    Example:
        >>> logits = np.log(np.array([[0.75, 0.25], [0.75, 0.25]]))
        >>> round(compute_calibration_metrics(EvalPrediction(logits, np.array([0, 1])))["ece"], 4)
        0.25
    """
    logits = prediction.predictions
    logits = logits[0] if isinstance(logits, tuple) else logits
    labels = prediction.label_ids
    labels = labels[0] if isinstance(labels, tuple) else labels
    rows = torch.from_numpy(np.asarray(logits)).double()
    if rows.ndim != 2:
        raise wrong("prediction", "logits of shape [N, K]", list(rows.shape))
    meter = CalibrationMeter(rows.shape[1], bins, adaptive=True)
    meter.update(rows.softmax(-1), torch.from_numpy(np.asarray(labels)).long())
    return meter.compute()


def _check_arguments(args: TrainingArguments | None, options: dict[str, Any]) -> None:
    for name in ("deepspeed", "fsdp"):
        if getattr(args, name, None):
            expected = "without FSDP and DeepSpeed: a rule needs the whole of every gradient (DistributedDataParallel)"
            raise wrong("args", expected, f"{name}={getattr(args, name)}")
    if options.get("compute_loss_func") is not None:
        raise wrong("compute_loss_func", "None: give `main_loss` and `constraint_loss`", options["compute_loss_func"])
