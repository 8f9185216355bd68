"""Typed values of a config.json; a missing, mistyped or out-of-range value is a ModelFileError that names the key."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from ..errors import ModelFileError
from .cursor import quote

_ABSENT: Any = object()
MAX_INTEGER = (1 << 32) - 1
_Finite = Annotated[float, Meta(ge=-sys.float_info.max, le=sys.float_info.max)]


class Config:
    """A JSON object of a config.json with typed access: each method checks the value's type and range.

    A null counts as a missing key. A missing key gives ``default``, or ModelFileError if the call has no default.

    path    file named in error messages
    values  the object
    where   dotted path of this object within the file, for error messages
    read    dotted paths of all keys that were asked for, in nested objects too: ``accounting`` reports the others
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        values: Mapping[str, Any],
        where: str = "",
        read: set[str] | None = None,
    ):
        self.path, self.values, self._where = path, values, where
        self.read: set[str] = set() if read is None else read

    def fail(self, key: str, reason: str) -> ModelFileError:
        """Return a ModelFileError for ``key`` with this reason, for the caller to raise."""
        return ModelFileError(self.path, f"{self._where}{key} {reason}")

    def has(self, key: str) -> bool:
        """Return whether the key exists and is not null."""
        return self.values.get(key) is not None

    def value(self, key: str, default: Any) -> Any:
        """Return the value under ``key``, of any type."""
        return self._value(key, default)

    def integer(self, key: str, default: int = _ABSENT, low: int = 0, high: int = MAX_INTEGER) -> int:
        """Return the whole number under ``key``, from ``low`` to ``high``; a float such as 4.0 counts as one."""
        return self._typed(key, default, Annotated[int, Meta(ge=low, le=high)], f"a whole number from {low} to {high}")

    def number(self, key: str, default: float = _ABSENT) -> float:
        """Return the finite number under ``key``."""
        return self._typed(key, default, _Finite, "a number")

    def flag(self, key: str, default: bool = _ABSENT) -> bool:
        """Return the boolean under ``key``."""
        return self._typed(key, default, bool, "true or false")

    def text(self, key: str, default: str = _ABSENT) -> str:
        """Return the string under ``key``."""
        return self._typed(key, default, str, "a text")

    def integers(self, key: str, most: int, default: list[int] = _ABSENT) -> list[int]:
        """Return the list of integers under ``key``; refuse any other value, and more than ``most`` items."""
        kind = Annotated[list[int], Meta(max_length=most)]
        return self._typed(key, default, kind, f"a list of at most {most} whole numbers")

    def texts(self, key: str, most: int, default: list[str] = _ABSENT) -> list[str]:
        """Return the list of strings under ``key``; refuse any other value, and more than ``most`` items."""
        return self._typed(key, default, Annotated[list[str], Meta(max_length=most)], f"a list of at most {most} texts")

    def agreed(self, *keys: str, default: str) -> str:
        """Return the common value of those ``keys`` that exist (several names for one setting); refuse different ones.

        default: returned if none of the keys exists.
        """
        given = {key: self.text(key) for key in keys if self.has(key)}
        first, *others = given or [""]
        for other in others:
            if given[other] != given[first]:
                raise self.fail(other, f"is {_brief(given[other])}, {first} is {_brief(given[first])}")
        return given.get(first, default)

    def part(self, key: str) -> Config:
        """Return the nested object under ``key``; an empty one if the key is missing."""
        value = self.values.get(key)
        if value is None:
            value = {}
        if not isinstance(value, dict):
            raise self.fail(key, f"is {_brief(value)}, wanted an object")
        return Config(self.path, value, f"{self._where}{key}.", self.read)

    def _typed(self, key: str, default: Any, kind: Any, wanted: str) -> Any:
        value = self._value(key, default)
        if type(value) is float and value.is_integer() and kind is not _Finite:
            value = int(value)
        try:
            return msgspec.convert(value, kind)
        except (msgspec.ValidationError, OverflowError):
            raise self.fail(key, f"is {_brief(value)}, wanted {wanted}") from None

    def _value(self, key: str, default: Any) -> Any:
        self.read.add(self._where + key)
        value = self.values.get(key)
        if value is None:
            if default is _ABSENT:
                raise self.fail(key, "is missing")
            return default
        return value


def _brief(value: Any) -> str:
    if isinstance(value, (list, dict)):
        return f"a list of {len(value)}" if isinstance(value, list) else "an object"
    return quote(str(value), 40) if isinstance(value, str) else str(value)[:40]
