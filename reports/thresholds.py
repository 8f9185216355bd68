"""What counts as the same and what fails a gate: defaults, and a TOML file that changes them.

[speed]                 per cent of tokens per second
margin = 1.0            a difference smaller than this is no difference: "same within 1 %"
fail = 3.0              a gate fails if B is worse by this much or more, and certainly worse
separate = 3.0          two runs not measured in turn must differ by more than this: drift between them
single = 5.0            the same with one repetition only: nothing is known about the spread between runs

[graded]                percentage points of score
confidence = 0.95       of its one statement; [gate] has that of the others
[vectors]               per cent of perplexity

[gate]
confidence = 0.98       of all statements of one comparison together
unclear = "pass"        or "fail"
differ = []             facts that may differ although results are compared: "model", "prompt", "numerics"
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
class Limits:
    """Margins of one kind of comparison, in per cent or points. ``confidence`` 0 is that of the gate."""

    margin: float = 1.0
    fail: float = 3.0
    separate: float = 0.0
    single: float = 0.0
    confidence: float = 0.0


@dataclass(frozen=True)
class Gate:
    """How sure, and what to do when not."""

    confidence: float = 0.98
    unclear: str = "pass"
    differ: tuple[str, ...] = ()


@dataclass(frozen=True)
class Thresholds:
    """All limits of a comparison."""

    speed: Limits = Limits(separate=3.0, single=5.0)
    graded: Limits = Limits(fail=2.0, confidence=CONFIDENCE)
    vectors: Limits = Limits(margin=0.5, fail=1.0)
    gate: Gate = field(default_factory=Gate)


def read_thresholds(path: str | os.PathLike[str] | None) -> Thresholds:
    """The file's settings over the defaults; DataError names the first entry that cannot be."""
    if path is None:
        return Thresholds()
    try:
        with open(path, "rb") as file:
            tables = tomllib.load(file)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: not TOML: {' '.join(str(error).split())}") from None
    found = Thresholds()
    for name, table in tables.items():
        if name not in {entry.name for entry in fields(Thresholds)} or not isinstance(table, dict):
            raise DataError(f"{path}: unknown table [{name}]: there are [speed], [graded], [vectors], [gate]")
        part = getattr(found, name)
        for key, value in table.items():
            part = replace(part, **{key: _checked(f"{path}: {name}.{key}", part, key, value)})
        found = replace(found, **{name: part})
    return found


def _checked(where: str, part: Limits | Gate, key: str, value: Any) -> Any:
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
