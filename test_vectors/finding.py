"""The result of any check, a Finding: what was checked, the outcome, where, the evidence, and what to do next."""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np


class Outcome(enum.Enum):
    """Outcome of a check, worst first; the value is its name in JSON. No outcome claims that an engine is right."""

    WRONG = "wrong"
    UNEXPLAINED = "unexplained"
    FAILED = "failed"
    UNSURE = "unsure"
    DEPENDS = "depends"
    OK = "ok"
    IMPOSSIBLE = "impossible"
    SKIPPED = "skipped"

    @property
    def words(self) -> str:
        """Return the outcome in words for the report."""
        return WORDS[self]

    @property
    def rank(self) -> int:
        """Return the place of this outcome when they are ordered from worst (0) to best."""
        return RANKS[self]

    @property
    def spoils(self) -> bool:
        """Return whether this outcome makes an examination fail."""
        return self in (Outcome.WRONG, Outcome.UNEXPLAINED, Outcome.FAILED)


WORDS = dict(zip(Outcome, (
    "wrong", "unexplained", "error", "inconclusive", "depends on its batch or cache", "nothing wrong found",
    "not supported", "not run",
), strict=True))  # fmt: skip
RANKS = {outcome: rank for rank, outcome in enumerate(Outcome)}
OPEN = (Outcome.FAILED, Outcome.UNSURE, Outcome.IMPOSSIBLE, Outcome.SKIPPED)
"""Outcomes of checks that did not answer their question."""
CAUSES = ("engine", "checkpoint", "template", "quantization", "load")
"""What a check is about: where to look if its outcome is wrong."""


@dataclass(frozen=True)
class ShownToken:
    """A token as displayed in the report; ``marked``: the token that the finding is about."""

    text: str
    id: int | None = None
    marked: bool = False


@dataclass
class Finding:
    """The result of one check.

    name       short name of the check
    says       the result in one plain sentence without a full stop
    outcome    outcome of the check
    positions  positions in the token list that it concerns; empty: all
    tokens     token ids that it concerns; empty: all
    figures    measured values by name
    where      (label, tokens) that show the place in the text
    notes      remarks for the reader
    next       commands or steps for the reader
    limit      detection limit: which differences the check could have seen, and which not
    cause      the one of CAUSES that the finding is evidence about; "": none
    """

    name: str
    says: str
    outcome: Outcome
    positions: tuple[int, ...] = ()
    tokens: tuple[int, ...] = ()
    figures: dict[str, Any] = field(default_factory=dict)
    where: list[tuple[str, list[ShownToken]]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    next: list[str] = field(default_factory=list)
    limit: str = ""
    cause: str = ""

    def __post_init__(self) -> None:
        if self.cause not in ("", *CAUSES):
            raise ValueError(f"unknown cause {self.cause!r}: use one of {', '.join(CAUSES)}")

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object for a report."""
        rows = [{"row": label, "tokens": [vars(token) for token in tokens]} for label, tokens in self.where]
        return plain(vars(self) | {"outcome": self.outcome.value, "where": rows})

    @classmethod
    def from_json(cls, saved: dict[str, Any]) -> Finding:
        """Return the finding of a report's JSON object; its figures have the types of JSON."""
        rows = [(row["row"], [ShownToken(**token) for token in row["tokens"]]) for row in saved["where"]]
        places = {name: tuple(saved[name]) for name in ("positions", "tokens")}
        return cls(**saved | {"outcome": Outcome(saved["outcome"]), "where": rows} | places)


def counted(count: int, noun: str) -> str:
    """Return a number with its noun: "1 check", "2 checks"."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def plain(value: Any) -> Any:
    """Convert a value to strict JSON types: no NaN or infinity, arrays or bytes."""
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(each) for each in value]
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def distinct(raw: bytes) -> bool:
    """Whether bytes identify a token; APIs that return text give '' or U+FFFD for every token of invalid UTF-8."""
    return bool(raw) and b"\xef\xbf\xbd" not in raw


def visible(raw: bytes) -> str:
    """Return a token's bytes as visible text: spaces and line feeds as symbols, unprintable characters escaped."""
    text = raw.decode("utf-8", "backslashreplace").replace(" ", "\u2423").replace("\n", "\u21b5")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def row(tokens: Sequence[tuple[bytes, int | None]], at: int, around: int = 6) -> list[ShownToken]:
    """Return the tokens within ``around`` positions of ``at`` for display, the one at ``at`` marked.

    ``tokens``: (bytes, id) of all tokens.
    """
    first, last = max(0, at - around), at + around + 1
    shown = [ShownToken(visible(raw), number, first + i == at) for i, (raw, number) in enumerate(tokens[first:last])]
    more = ShownToken("\u2026")
    return [*([more] if first else []), *shown, *([more] if last < len(tokens) else [])]
