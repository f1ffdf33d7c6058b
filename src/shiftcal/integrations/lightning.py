"""FGR in a Lightning module, by manual optimisation, and an audit as a callback."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.optim.lr_scheduler import ReduceLROnPlateau

from shiftcal._errors import check_count, wrong
from shiftcal.gradients import ConstraintMomentum, GradientPair, Rectification
from shiftcal.gradients.rules import Rule
from shiftcal.integrations._extras import missing

try:
    from lightning.pytorch import LightningModule
    from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy

    from shiftcal.integrations._lightning_audit import AuditCallback
except (ImportError, RuntimeError) as error:  # RuntimeError: it imports torchvision, which may be one for another torch
    raise missing("lightning", error) from error

__all__ = ["AuditCallback", "RectifiedModule"]


class RectifiedModule(LightningModule):
    """A Lightning module that trains with a main loss and a constraint (FGR paper, algorithm 1).

    Subclass it, define `both_losses` and `configure_optimizers`, and leave `training_step` as it is. Lightning has no
    place for a second gradient, so that optimisation is manual, and what the Trainer does no more is done here:
    accumulation, clipping (after the scaler has unscaled the gradient) and the steps of learning-rate schedulers. Where
    there are several ranks, both gradients are averaged over them before the rule.

    Attributes:
        rule: A name in `shiftcal.gradients.RULES`, or a function of two flat gradients that returns one.
        accumulate: Batches per optimiser step, instead of `Trainer(accumulate_grad_batches=…)`. Both gradients are
            averaged over them, and the rule is applied once.
        clip_norm: The largest norm of the final gradient, instead of `Trainer(gradient_clip_val=…)`.
        constraint_momentum: Running mean of the constraint's gradient; it is saved in checkpoints.
        plateau_metric: The metric for `ReduceLROnPlateau`, instead of `monitor`, which Lightning drops.
        rectification: What happened in the last optimiser step that had a constraint.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.automatic_optimization = False
        self.rule: str | Rule = "rectify"
        self.accumulate = 1
        self.clip_norm: float | None = None
        self.constraint_momentum: ConstraintMomentum | None = None
        self.plateau_metric: str | None = None
        self.rectification: Rectification | None = None
        self._pair: GradientPair | None = None

    @property
    def optimizer_steps(self) -> int:
        """Steps of the optimiser in the whole fit, for `configure_optimizers`.

        `trainer.estimated_stepping_batches` knows nothing of `accumulate`: with it a schedule would be too long.
        """
        check_count("accumulate", self.accumulate)
        trainer = self.trainer
        _ = trainer.estimated_stepping_batches  # this loads the data, whose number of batches is known then
        batches, epochs, most = trainer.num_training_batches, trainer.max_epochs, int(trainer.max_steps)
        if epochs in (None, -1) or not math.isfinite(batches):
            if most == -1:
                raise wrong("max_steps", "given, where nothing else says how long training takes", most)
            return most
        steps = math.ceil(int(batches) / self.accumulate) * max(int(epochs), 1)
        return steps if most == -1 else min(steps, most)

    def both_losses(self, batch: Any, batch_idx: int) -> tuple[Tensor, Tensor | None]:
        """Return the main loss and the constraint of a batch; None in its place trains with the main loss alone."""
        raise NotImplementedError("A RectifiedModule should define `both_losses(batch, batch_idx)`.")

    def constrained_parameters(self) -> list[Tensor] | None:
        """Return the parameters whose gradient the rule changes; None means all."""
        return None

    def training_step(self, batch: Any, batch_idx: int) -> dict[str, Tensor]:
        """Train on one batch."""
        main_loss, constraint_loss = self.both_losses(batch, batch_idx)
        self.rectified_step(main_loss, constraint_loss, batch_idx)
        return {"loss": main_loss.detach()}

    def rectified_step(self, main_loss: Tensor, constraint_loss: Tensor | None, batch_idx: int) -> None:
        """Add a batch's gradients and, at the end of an accumulation, let the optimiser and schedulers step.

        `training_step` calls it; call it from a `training_step` of your own.
        """
        self._check_manual()
        check_count("accumulate", self.accumulate)
        optimizer = self.optimizers()
        if isinstance(optimizer, list):
            raise wrong("configure_optimizers", "a function that returns one optimiser", f"{len(optimizer)} of them")
        start, total = batch_idx - batch_idx % self.accumulate, self.trainer.num_training_batches
        if batch_idx == start:
            optimizer.zero_grad()
            self._pair = None
        count = min(self.accumulate, total - start) if math.isfinite(total) else self.accumulate
        # Autocast is for the forward pass; the backward pass and the rule's dot products are left as they are.
        with torch.autocast(self.device.type, enabled=False):
            self._add(optimizer, main_loss / count, None if constraint_loss is None else constraint_loss / count)
            last = batch_idx + 1 == total or self.trainer.is_last_batch
            if (batch_idx + 1) % self.accumulate and not last:
                return
            self._write()
            optimizer.step()
        self._step_schedulers("step", self.trainer.global_step)
        if last:
            self._step_schedulers("epoch", self.trainer.current_epoch + 1, plateau=False)

    def _add(self, optimizer: Any, main_loss: Tensor, constraint_loss: Tensor | None) -> None:
        if constraint_loss is None:
            self.manual_backward(main_loss)
            return
        if self._pair is None:
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            self._pair = GradientPair(parameters, constrained=self.constrained_parameters())
        scaler = getattr(self.trainer.precision_plugin, "scaler", None)
        if scaler is not None:
            main_loss = scaler.scale(main_loss)
            # The scale changes: gradients of different scales must not be averaged, and only the direction counts.
            constraint_loss = constraint_loss if self.constraint_momentum is not None else scaler.scale(constraint_loss)
        self._pair.add(main_loss, constraint_loss)

    def _write(self) -> None:
        if self._pair is not None:
            self.rectification = self._pair.backward(rule=self.rule, state=self.constraint_momentum)
            self._pair = None

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        """Clip the gradient; by now the scaler has unscaled it. Call this where you override it."""
        if self.clip_norm is not None:
            self.clip_gradients(optimizer, gradient_clip_val=self.clip_norm, gradient_clip_algorithm="norm")

    def on_fit_start(self) -> None:
        """Refuse what the rule cannot be applied to. Call this where you override it."""
        self._check_manual()
        strategy = self.trainer.strategy
        # FSDP, DeepSpeed and tensor parallelism derive from neither.
        if not isinstance(strategy, DDPStrategy | SingleDeviceStrategy):
            expected = (
                "one that leaves parameters whole on every rank, such as 'ddp': "
                "a rule needs dot products over all of them"
            )
            raise wrong("strategy", expected, type(strategy).__name__)

    def on_train_epoch_end(self) -> None:
        """Let schedulers that wait for a plateau step. Call this where you override it."""
        self._step_schedulers("epoch", self.trainer.current_epoch + 1, plateau=True)

    def _check_manual(self) -> None:
        if self.automatic_optimization:
            expected = "False: Lightning's automatic optimisation has no place for the constraint's gradient"
            raise wrong("automatic_optimization", expected, True)

    def _step_schedulers(self, interval: str, number: int, plateau: bool | None = None) -> None:
        """Step the schedulers of an interval, as Lightning does under automatic optimisation."""
        for config in self.trainer.lr_scheduler_configs:
            waits = isinstance(config.scheduler, ReduceLROnPlateau)
            if config.interval == interval and plateau in (None, waits) and number % config.frequency == 0:
                self.lr_scheduler_step(config.scheduler, self._level() if waits else None)

    def _level(self) -> Tensor:
        logged: dict[str, Tensor] = self.trainer.callback_metrics
        if self.plateau_metric not in logged:
            names = ", ".join(logged) or "nothing was logged"
            raise wrong("plateau_metric", f"a metric that is logged ({names})", repr(self.plateau_metric))
        return logged[self.plateau_metric]
