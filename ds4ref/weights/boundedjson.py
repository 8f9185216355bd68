"""JSON parser for untrusted files: limits size and number of values, and refuses duplicate keys.

Python's own parser is fast and exact, but has no limits: a few megabytes of brackets become gigabytes of lists. So
brackets and commas are counted first, and the file is refused if there are too many.
"""

from __future__ import annotations

import json
import os
from typing import Any

from ..errors import ModelFileError
from .cursor import quote
from .mapped import MappedFile

MAX_DEPTH, MAX_VALUES = 64, 1 << 20
"""Maximum nesting, and maximum number of values in a file: each may take some 200 bytes of Python objects."""


def parse(path: str | os.PathLike[str], data: bytes, values: int = MAX_VALUES, offset: int = 0) -> Any:
    """Parse the JSON text ``data``; raise ModelFileError unless it is UTF-8 without NaN, Infinity or duplicate keys.

    path    file named in error messages
    values  maximum number of values; brackets and commas in strings count as one each
    offset  byte offset of ``data`` in the file, for error messages
    """
    if sum(map(data.count, b"[{,")) > values:
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
        value = json.loads(text, object_pairs_hook=once, parse_constant=never)
    except json.JSONDecodeError as error:
        where = offset + len(text[: error.pos].encode("utf-8", "surrogatepass"))
        raise ModelFileError(path, f"not JSON: {error.msg}", where) from None
    except RecursionError:
        raise ModelFileError(path, f"JSON nested more than {MAX_DEPTH} deep", offset) from None
    except ValueError:  # an integer of thousands of digits
        raise ModelFileError(path, "JSON with a number of too many digits", offset) from None
    level, depth = [value], 0
    while level:  # bound the depth too, since writing the value as JSON again recurses
        nested = [one.values() if isinstance(one, dict) else one for one in level if isinstance(one, (dict, list))]
        level, depth = [item for items in nested for item in items], depth + 1
        if depth > MAX_DEPTH + 1:
            raise ModelFileError(path, f"JSON nested more than {MAX_DEPTH} deep", offset)
    return value


def read(path: str | os.PathLike[str], limit: int, **bounds: int) -> dict[str, Any]:
    """Read the JSON object in a file of at most ``limit`` bytes; ``bounds`` are passed to ``parse``.

    Raise ModelFileError if the file is larger, unreadable, not valid JSON or not an object.
    """
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
