"""JSON parser for untrusted files: bounds size, depth and number of values, and refuses duplicate keys.

The standard parser is fast and exact, but unbounded: a few megabytes of brackets become gigabytes of lists, or a
RecursionError. So brackets and commas outside strings are counted first, and the file is refused if there are too many.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..errors import ModelFileError
from .cursor import quote
from .mapped import MappedFile

MAX_DEPTH = 64
MAX_VALUES = 1 << 20
"""Maximum number of values in a file: each may take some 200 bytes of Python objects."""

_BLOCK = 1 << 20
_STRUCTURE = np.isin(np.arange(256), np.frombuffer(b"[]{},", np.uint8))
_STEP = np.zeros(256, np.int32)
_STEP[[ord("["), ord("{")]] = 1
_STEP[[ord("]"), ord("}")]] = -1


def parse(
    path: str | os.PathLike[str], data: bytes, depth: int = MAX_DEPTH, values: int = MAX_VALUES, offset: int = 0
) -> Any:
    """Parse the JSON text ``data``; raise ModelFileError unless it is UTF-8 without NaN, Infinity or duplicate keys.

    path    file named in error messages
    depth   maximum nesting of arrays and objects
    values  maximum number of values
    offset  byte offset of ``data`` in the file, for error messages
    """
    count = 0
    for commas, deepest in _measure(np.frombuffer(data, np.uint8)):
        count += commas
        if deepest > depth:
            raise ModelFileError(path, f"JSON nested more than {depth} deep", offset)
        if count > values:
            raise ModelFileError(path, f"JSON of more than {values} values", offset)
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise ModelFileError(path, "JSON that is not UTF-8", offset + error.start) from None
    if text.startswith("\ufeff"):
        raise ModelFileError(path, "JSON that begins with a byte order mark", offset)

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        members = dict(pairs)
        if len(members) != len(pairs):
            names: set[str] = set()
            twice = next(key for key, _ in pairs if key in names or names.add(key))  # type: ignore[func-returns-value]
            raise ModelFileError(path, f"JSON key {quote(twice)} appears twice", offset)
        return members

    def never(name: str) -> None:
        raise ModelFileError(path, f"JSON with {name} for a number", offset)

    try:
        return json.loads(text, object_pairs_hook=once, parse_constant=never)
    except json.JSONDecodeError as error:
        where = offset + len(text[: error.pos].encode("utf-8", "surrogatepass"))
        raise ModelFileError(path, f"not JSON: {error.msg}", where) from None
    except ValueError:  # an integer of thousands of digits
        raise ModelFileError(path, "JSON with a number of too many digits", offset) from None


def _measure(data: np.ndarray) -> Iterator[tuple[int, int]]:
    """Yield, for each block of the text, its brackets and commas outside strings, and the deepest nesting."""
    inside, backslashes, depth = 0, 0, 0
    for start in range(0, data.size, _BLOCK):
        block = data[start : start + _BLOCK]
        quotes = block == ord('"')
        escapes = block == ord("\\")
        if backslashes or escapes.any():
            # a quote counts unless an odd number of backslashes stands before it
            place = np.arange(block.size)
            plain = np.maximum.accumulate(np.where(escapes, -1 - backslashes, place))
            before = np.concatenate([[-1 - backslashes], plain[:-1]])
            quotes &= (place - 1 - before) % 2 == 0
            backslashes = (block.size - 1 - int(plain[-1])) % 2
        outside = (np.cumsum(quotes) + inside) % 2 == 0
        steps = np.cumsum(np.where(outside, _STEP[block], 0)) + depth
        yield int(np.count_nonzero(outside & _STRUCTURE[block])), int(steps.max())
        inside, depth = (inside + int(np.count_nonzero(quotes))) % 2, int(steps[-1])


def read(path: str | os.PathLike[str], limit: int, **bounds: int) -> dict[str, Any]:
    """Read the JSON object in a file of at most ``limit`` bytes; raise ModelFileError. ``bounds`` are those of
    ``parse``."""
    file = MappedFile(path)
    try:
        if file.size > limit:
            raise ModelFileError(path, f"{file.size} bytes of JSON; the maximum is {limit}")
        value = parse(path, file.read(0, file.size), **bounds)
    finally:
        file.close()
    if not isinstance(value, dict):
        raise ModelFileError(path, "JSON, but not an object")
    return value
