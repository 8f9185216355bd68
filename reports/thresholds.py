"""Margins within which runs count as the same, and limits of the gate: defaults, and a TOML file that overrides them.

[speed]                 per cent of tokens per second
margin = 1.0            a smaller difference is "same within 1 %"
fail = 3.0              the gate fails if B is worse by at least this, and the verdict is "worse"
separate = 3.0          minimum difference of runs that were not measured in turn, since the machine may drift
single = 5.0            the same for runs without repetitions, whose spread is unknown

[graded]                percentage points of score
confidence = 0.95       of its only statement; for other kinds see [gate]
[vectors]               per cent of perplexity

[gate]
confidence = 0.98       of all statements of one comparison together
unclear = "pass"        or "fail"
differ = []             facts that may differ between compared runs: "model", "prompt", "numerics"
"""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass, field, fields, replace
from typing import Any

from ds4ref.errors import DataError
from ds4ref.runs.scored import CONFIDENCE

DIFFER = ("model", "prompt", "numerics")


@dataclass(frozen=True)
class Margins:
    """Thresholds for one kind of comparison, in per cent or percentage points; ``confidence`` 0: that of the gate."""

    margin: float = 1.0
    fail: float = 3.0
    separate: float = 0.0
    single: float = 0.0
    confidence: float = 0.0


@dataclass(frozen=True)
class Gate:
    """Settings of the gate.

    confidence   of all statements of one comparison together
    unclear      whether an unclear verdict passes: "pass" or "fail"
    differ       facts that may differ between compared runs
    """

    confidence: float = 0.98
    unclear: str = "pass"
    differ: tuple[str, ...] = ()


@dataclass(frozen=True)
class Thresholds:
    """Thresholds of every kind of comparison, and of the gate."""

    speed: Margins = Margins(separate=3.0, single=5.0)
    graded: Margins = Margins(fail=2.0, confidence=CONFIDENCE)
    vectors: Margins = Margins(margin=0.5, fail=1.0)
    gate: Gate = field(default_factory=Gate)


def read_thresholds(path: str | os.PathLike[str] | None) -> Thresholds:
    """Return the defaults overridden by a TOML file, if any; raises DataError naming the first invalid entry."""
    if path is None:
        return Thresholds()
    try:
        with open(path, "rb") as file:
            tables = tomllib.load(file)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: not TOML: {' '.join(str(error).split())}") from None
    thresholds = Thresholds()
    for name, table in tables.items():
        if name not in {entry.name for entry in fields(Thresholds)} or not isinstance(table, dict):
            raise DataError(f"{path}: unknown table [{name}]: there are [speed], [graded], [vectors], [gate]")
        part = getattr(thresholds, name)
        for key, value in table.items():
            part = replace(part, **{key: _checked(f"{path}: {name}.{key}", part, key, value)})
        thresholds = replace(thresholds, **{name: part})
    return thresholds


def _checked(where: str, part: Margins | Gate, key: str, value: Any) -> Any:
    names = [entry.name for entry in fields(part)]
    if key not in names:
        raise DataError(f"{where} is unknown: choose from {', '.join(names)}")
    if key == "unclear":
        if value not in ("pass", "fail"):
            raise DataError(f"{where} must be 'pass' or 'fail'")
        return value
    if key == "differ":
        if not isinstance(value, list) or any(name not in DIFFER for name in value):
            raise DataError(f"{where} must be a list of {', '.join(DIFFER)}")
        return tuple(value)
    low, high = (0.5, 0.9999) if key == "confidence" else (0.0, 100.0)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        raise DataError(f"{where} must be a number from {low:g} to {high:g}")
    return float(value)
