"""A batch as a model takes it, and its parts: micro-batches, and the rows that each of several processes computes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from shiftcal import _ranks


@dataclass(frozen=True)
class Inputs:
    """A batch as the model takes it: normalised images or features, classes, and which were low-pass filtered.

    AugMix appends its views to the images; mixup adds the classes of the partners and the share λ of the image itself.
    Where several processes train, each has the images that it computes (`local` says so if the batch came that way),
    but the classes of all.
    """

    images: Float[Tensor, "images ..."]
    targets: Int[Tensor, " batch"]
    filtered: Bool[Tensor, " batch"]
    partners: Int[Tensor, " batch"] | None = None
    share: Float[Tensor, ""] | None = None
    local: bool = False


def micro_batches(
    mix: Inputs, original: Inputs | None, size: int | None
) -> Iterator[tuple[Inputs, Inputs | None, float, bool]]:
    """Cut a batch and that of the constraint into as many parts; tell each one's share, and which is the last."""
    count = len(mix.targets)
    parts = -(-count // size) if size else 1
    bounds = [min(k * size, count) for k in range(parts + 1)] if size else [0, count]
    others = [round(k * len(original.targets) / parts) for k in range(parts + 1)] if original else []
    taken = of_original = 0
    for k in range(parts):
        first, taken = rows_of(mix, bounds[k], bounds[k + 1], taken)
        second = None
        if original is not None:
            second, of_original = rows_of(original, others[k], others[k + 1], of_original)
        yield first, second, (bounds[k + 1] - bounds[k]) / count, k == parts - 1


def rows_of(inputs: Inputs, start: int, end: int, taken: int) -> tuple[Inputs, int]:
    """Take the rows start..end of a batch, and of their images those that this process computes.

    `taken` counts the images of a local batch that earlier parts took.
    """
    if not _ranks.several() and end - start == len(inputs.targets):
        return inputs, taken
    here = _ranks.share(end - start)
    first = taken if inputs.local else start + _ranks.rows(end - start).start
    # More processes than rows: one image goes through for nothing, so that all take the same steps.
    chosen = slice(first, first + here) if here else slice(1)
    stored = max(_ranks.share(len(inputs.targets)), 1) if inputs.local else len(inputs.targets)
    views = inputs.images.view(-1, stored, *inputs.images.shape[1:])[:, chosen]
    partners = inputs.partners[start:end] if inputs.partners is not None else None
    part = Inputs(
        views.flatten(0, 1), inputs.targets[start:end], inputs.filtered[start:end], partners, inputs.share, local=True
    )
    return part, taken + here


def logits_of(model: nn.Module, inputs: Inputs) -> Float[Tensor, "images classes"]:
    """Compute the logits of a batch, each process those of its images, and put them together."""
    logits: Tensor = model(inputs.images)
    if not _ranks.several():
        return logits
    count, here = len(inputs.targets), _ranks.share(len(inputs.targets))
    views = logits.view(-1, max(here, 1), logits.shape[-1])[:, :here]
    return _ranks.gather_logits(views.transpose(0, 1), count).transpose(0, 1).flatten(0, 1)


def count_correct(logits: Float[Tensor, "batch classes"], mix: Inputs) -> Tensor:
    """Count right predictions; that of a mixed image counts for both its classes by their shares."""
    prediction = logits.detach().argmax(1)
    correct = (prediction == mix.targets).sum()
    if mix.partners is None or mix.share is None:
        return correct
    return mix.share * correct + (1 - mix.share) * (prediction == mix.partners).sum()
