"""Detect the shape (kind) of a file and read its records."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from ds4ref.console.options import printable
from ds4ref.errors import DataError

from ..packs import Question
from . import aime, ds4, gpqa, lm_eval, supergpqa, tables
from .records import Found, Record, Shape, Skip

SHAPES = (lm_eval.SHAPE, gpqa.SHAPE, supergpqa.SHAPE, aime.SHAPE)
"""Shapes in the order in which they are tried: the last one needs the fewest columns."""
NAMES = (ds4.NAME, *sorted(shape.name for shape in SHAPES))


def detect(path: Path) -> str:
    """Return the name of the shape; DataError with the file's columns if none fits."""
    if path.suffix.lower() in ds4.SUFFIXES or _begins_as_c(path):
        return ds4.NAME
    cells = tables.columns(path)
    found = next((shape for shape in SHAPES if shape.fits(cells)), None)
    if found is None:
        has = printable(", ".join(sorted(cells)) or "nothing", 200)
        raise DataError(
            f"{path}: no known format has these columns ({has}): name one with --source: {', '.join(NAMES)}"
        )
    return found.name


def _begins_as_c(path: Path) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read(64).removeprefix(b"\xef\xbb\xbf").lstrip().startswith((b"/*", b"//", b"#include"))
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from None


def read(path: Path, name: str) -> Iterator[Found]:
    """Yield the records of a file of shape ``name``; DataError if it is damaged or lacks a column."""
    if name == ds4.NAME:
        yield from ds4.questions(path)
        return
    shape = next(shape for shape in SHAPES if shape.name == name)
    for record in tables.records(path, shape.needs):
        label = record.note("record id", "uuid", "id", "doc id")
        try:
            item = _question(shape, record)
        except Skip as wrong:
            yield Found(record.line, wrong, label)
        else:
            yield Found(record.line, item, label, record.note("canary string", "canary"))


def _question(shape: Shape, record: Record) -> Question:
    if record.torn:
        raise Skip("the row has not as many cells as the header", record.torn)
    licence = record.note("licence", "license") or shape.licence
    return msgspec.structs.replace(shape.question(record), licence=licence)


def title(name: str) -> str:
    """Return the title of a shape."""
    return next((shape.title for shape in SHAPES if shape.name == name), ds4.TITLE)
