"""What the sections of a configuration are made of: frozen pydantic models whose fields say what they should be."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict
from pydantic_core import PydanticCustomError


class Section(BaseModel):
    """A section of the configuration: it does not change, and it has no other keys."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


def should(text: str, holds: Callable[[Any], bool]) -> AfterValidator:
    """Let a field hold only values of which something is true; `text` completes "should be …"."""

    def check(value: Any) -> Any:
        if not holds(value):
            raise PydanticCustomError("should", "{text}", {"text": text})
        return value

    return AfterValidator(check)


def _as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


List = BeforeValidator(_as_tuple)  # TOML and JSON have lists
Positive = Annotated[float, should("positive", lambda v: v > 0)]
NotNegative = Annotated[float, should("at least 0", lambda v: v >= 0)]
Fraction = Annotated[float, should("in [0, 1]", lambda v: 0 <= v <= 1)]
Share = Annotated[float, should("in [0, 1)", lambda v: 0 <= v < 1)]
Count = Annotated[int, should("positive", lambda v: v > 0)]
CountOrNone = Annotated[int, should("at least 0", lambda v: v >= 0)]
Names = Annotated[tuple[str, ...], List]
Numbers = Annotated[tuple[float, ...], List]
Integers = Annotated[tuple[int, ...], List]
Mean = Annotated[
    Numbers,
    should("three numbers in 0..1, as images are", lambda v: len(v) in (0, 3) and all(0 <= x <= 1 for x in v)),
]
Std = Annotated[
    Numbers, should("three positive numbers up to 1", lambda v: len(v) in (0, 3) and all(0 < x <= 1 for x in v))
]
Qualities = Annotated[
    Integers, should("integers in 1..100, at least one", lambda v: len(v) > 0 and all(1 <= q <= 100 for q in v))
]
Radii = Annotated[Numbers, should("positive, at least one", lambda v: len(v) > 0 and all(0 < r < math.inf for r in v))]
Epochs = Annotated[Integers, should("epochs, at least 1", lambda v: all(epoch >= 1 for epoch in v))]
