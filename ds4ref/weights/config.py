"""Typed values of a config.json; a missing, mistyped or out-of-range value is a ModelFileError that names the key."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any

from ..errors import ModelFileError
from .cursor import quote

_ABSENT: Any = object()
MAX_INTEGER = (1 << 32) - 1


class Config:
    """A JSON object with typed access.

    path   file named in error messages
    where  key path of this object within the file, for error messages
    read   key paths of all values that were asked for, in nested objects too (``accounting``)
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
        value = self._value(key, default)
        if type(value) is float and value.is_integer():
            value = int(value)
        if type(value) is not int or not low <= value <= high:
            raise self.fail(key, f"is {_brief(value)}, wanted a whole number from {low} to {high}")
        return value

    def number(self, key: str, default: float = _ABSENT) -> float:
        """Return the finite number under ``key``."""
        value = self._value(key, default)
        if type(value) not in (int, float) or not math.isfinite(_float(value)):
            raise self.fail(key, f"is {_brief(value)}, wanted a number")
        return float(value)

    def flag(self, key: str, default: bool = _ABSENT) -> bool:
        """Return the boolean under ``key``."""
        value = self._value(key, default)
        if type(value) is not bool:
            raise self.fail(key, f"is {_brief(value)}, wanted true or false")
        return value

    def text(self, key: str, default: str = _ABSENT) -> str:
        """Return the string under ``key``."""
        value = self._value(key, default)
        if not isinstance(value, str):
            raise self.fail(key, f"is {_brief(value)}, wanted a text")
        return value

    def integers(self, key: str, most: int, default: list[int] = _ABSENT) -> list[int]:
        """Return the list of integers under ``key``; refuse any other value, and more than ``most``."""
        return self._list(key, most, default, int, "whole numbers")

    def texts(self, key: str, most: int, default: list[str] = _ABSENT) -> list[str]:
        """Return the list of strings under ``key``; refuse any other value, and more than ``most``."""
        return self._list(key, most, default, str, "texts")

    def _list(self, key: str, most: int, default: list[Any], kind: type, named: str) -> list[Any]:
        value = self._value(key, default)
        if not isinstance(value, list) or len(value) > most or not all(type(item) is kind for item in value):
            raise self.fail(key, f"is {_brief(value)}, wanted a list of at most {most} {named}")
        return value

    def agreed(self, *keys: str, default: str) -> str:
        """Return the string that all of ``keys`` that exist have; refuse two that differ."""
        given = {key: self.text(key) for key in keys if self.has(key)}
        first, *others = given or [""]
        for other in others:
            if given[other] != given[first]:
                raise self.fail(other, f"is {_brief(given[other])}, {first} is {_brief(given[first])}")
        return given.get(first, default)

    def part(self, key: str) -> Config:
        """Return the nested object under ``key``, empty if there is none."""
        value = self.values.get(key)
        if value is None:
            value = {}
        if not isinstance(value, dict):
            raise self.fail(key, f"is {_brief(value)}, wanted an object")
        return Config(self.path, value, f"{self._where}{key}.", self.read)

    def _value(self, key: str, default: Any) -> Any:
        self.read.add(self._where + key)
        value = self.values.get(key)
        if value is None:
            if default is _ABSENT:
                raise self.fail(key, "is missing")
            return default
        return value


def _float(value: int | float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _brief(value: Any) -> str:
    if isinstance(value, (list, dict)):
        return f"a list of {len(value)}" if isinstance(value, list) else "an object"
    return quote(str(value), 40) if isinstance(value, str) else str(value)[:40]
