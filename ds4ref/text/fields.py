"""Access to fields of JSON objects as raw JSON text; each function raises TextError naming the field if it has the
wrong type."""

from __future__ import annotations

from collections.abc import Iterable

from ..errors import TextError
from . import rawjson

Fields = dict[str, str]
"""Raw JSON text of an object's values by name; of duplicate names the last one counts."""


def array(raw: str, label: str) -> list[str]:
    """Return the items of the JSON array ``raw`` as raw text; ``label`` names it in errors."""
    try:
        return rawjson.items(raw)
    except ValueError as error:
        raise TextError(f"{label} is not a JSON array: {error}") from None


def fields(raw: str, label: str, needed: Iterable[str] = ()) -> Fields:
    """Return the members of the JSON object ``raw`` as raw text, without null values; of duplicates the last.

    label   names the object in errors
    needed  names of members that must not be null, though they may be absent
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
    """Return the value of the JSON string ``raw``, or ``default`` if it is None; ``label`` names it in errors."""
    if raw is None:
        return default
    if not rawjson.is_string(raw):
        raise TextError(f"{label} is not a string")
    return rawjson.string(raw)
