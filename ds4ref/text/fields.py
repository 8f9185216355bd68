"""Access to fields of JSON objects as raw text; each function raises TextError naming the field if it has another
type."""

from __future__ import annotations

from collections.abc import Iterable

from ..errors import TextError
from . import rawjson

Fields = dict[str, str]
"""Raw values of an object by name; of duplicate names the last one counts."""


def array(raw: str, label: str) -> list[str]:
    """Return the raw items of an array; ``label`` names it in errors."""
    try:
        return rawjson.items(raw)
    except ValueError as error:
        raise TextError(f"{label} is not a JSON array: {error}") from None


def fields(raw: str, label: str, needed: Iterable[str] = ()) -> Fields:
    """Return the raw members of an object, the last of duplicates, without null values.

    A null value of a name in ``needed`` is an error.
    """
    try:
        values = dict(rawjson.members(raw))
    except ValueError as error:
        raise TextError(f"{label} is not a JSON object: {error}") from None
    for name in needed:
        if values.get(name) == "null":
            raise TextError(f"{name} is null")
    return {name: value for name, value in values.items() if value != "null"}


def text(raw: str | None, label: str, default: str = "") -> str:
    """Return a string, or ``default`` if it is absent."""
    if raw is None:
        return default
    if not rawjson.is_string(raw):
        raise TextError(f"{label} is not a string")
    return rawjson.string(raw)
