"""Sample images of test sets with their predictions: a small file beside a run's or an audit's record."""

from __future__ import annotations

import base64
import binascii
import json
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationError

from shiftcal._errors import DataError
from shiftcal._io import read_json, read_object, write_atomically
from shiftcal.records.files import CONFIG
from shiftcal.records.models import Fraction, Model

GALLERY = "gallery.json"
_PNG = b"\x89PNG\r\n\x1a\n"
_LARGEST = 2_000_000  # bytes of the file


def _picture(text: str) -> str:
    try:
        start = base64.b64decode(text, validate=True)[: len(_PNG)]
    except binascii.Error:
        raise ValueError("png should be in base64") from None
    if start != _PNG:
        raise ValueError("png should be a PNG")
    return text


class Sample(Model):
    """An image with its prediction.

    Attributes:
        shift: The shift; None for the clean test set.
        severity: Its severity.
        true: The true class.
        predicted: The predicted class.
        confidence: The prediction's.
        right: Whether it is right.
        png: The image, small, as PNG in base64.
    """

    shift: str | None = None
    severity: int | None = None
    true: str
    predicted: str
    confidence: Fraction
    right: bool
    png: Annotated[str, AfterValidator(_picture)]


class Gallery(Model):
    """Sample images of a run or of an audit."""

    schema_version: Literal[1] = Field(1, alias="schema")
    items: tuple[Sample, ...]


def read_gallery(directory: Path) -> tuple[Sample, ...]:
    """Read the samples beside a record; none if there is no such file."""
    path = directory / GALLERY
    if not path.is_file():
        return ()
    if path.stat().st_size > _LARGEST:
        raise DataError("gallery", f"at most {_LARGEST:,} bytes", f"{path} with {path.stat().st_size:,}")
    try:
        return Gallery.model_validate(read_json(path)).items
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "it"
        raise DataError(
            "gallery", "what `shiftcal analyse gallery` writes", f"{path}: {place}: {first['msg']}"
        ) from None


def galleries_of(places: Iterable[Path]) -> dict[str, tuple[Sample, ...]]:
    """Read the samples of runs, by what `key_of` says of their configs; damaged ones are told and left out."""
    found: dict[str, tuple[Sample, ...]] = {}
    for file in (file for place in places for file in (place / GALLERY, *sorted(place.glob(f"*/{GALLERY}")))):
        if not file.is_file() or not (file.parent / CONFIG).is_file():
            continue
        try:
            found[key_of(read_object(file.parent / CONFIG))] = read_gallery(file.parent)
        except ValueError as error:
            warnings.warn(f"Left out: {error}", stacklevel=2)
    return found


def key_of(config: Mapping[str, Any]) -> str:
    """Tell a run by its config."""
    return json.dumps(config, sort_keys=True)


def write_gallery(directory: Path, items: tuple[Sample, ...]) -> Path:
    """Write samples beside a record; returns the file's path."""
    path = directory / GALLERY
    data = Gallery(schema=1, items=items).model_dump_json(by_alias=True, exclude_none=True)
    write_atomically(path, (data + "\n").encode())
    return path
