"""Reading a model's dimensions from metadata: checks types and bounds of keys, and collects all problems for one
error."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import ShapeError
from ..weights.accounting import Account, Inert, Reads, named

if TYPE_CHECKING:
    from ..weights.source import TensorSource

TOKENS_KEY, MERGES_KEY = "tokenizer.ggml.tokens", "tokenizer.ggml.merges"
EMBEDDING = "token_embd.weight"
MOST_NAMED = 5
"""Number of problems that an error message names; it gives only the count of the others."""

Bounds = Iterable[tuple[str, str, Any, Any]]
"""(field of a shape, metadata key, smallest value, largest value); for floats both limits are excluded."""


class Keys:
    """Reads the metadata keys of one family, whose names begin with ``prefix``. A key that is missing or has the wrong
    type is noted in ``faults`` (full key -> what is wrong), and reading goes on with a harmless default.
    """

    def __init__(self, source: TensorSource, prefix: str):
        self.source, self.metadata, self.prefix = source, Reads(source.metadata), prefix
        self.faults: dict[str, str] = {}

    def has(self, key: str) -> bool:
        """Return whether the file has the key, of whatever type."""
        return self.prefix + key in self.metadata

    def fault(self, key: str, wrong: str) -> None:
        """Note what is wrong with a key; ``wrong`` continues the sentence "KEY ..."."""
        self.faults[self.prefix + key] = f"{self.prefix}{key} {wrong}"

    def accepts(self, key: str, kinds: tuple[str, ...]) -> bool:
        """Return whether the value has one of the types ``kinds``, such as "u32"; if not, note it in ``faults``."""
        kind = self.metadata.type_of(self.prefix + key)
        if kind not in kinds:
            self.fault(key, "is missing" if kind is None else f"has type {kind}, wanted {' or '.join(kinds)}")
        return kind in kinds

    def typed(self, key: str, kinds: tuple[str, ...], otherwise: Any) -> Any:
        """Return the value if it has one of the types ``kinds``; if not, note it in ``faults`` and return
        ``otherwise``."""
        return self.metadata[self.prefix + key] if self.accepts(key, kinds) else otherwise

    def number(self, key: str, kinds: tuple[str, ...]) -> float:
        """Return a float: if stored as float32, the shortest decimal that rounds to it. If the type is not one of
        ``kinds``, note it in ``faults``."""
        value = self.typed(key, kinds, 0.5)
        return decimal(value) if self.metadata.type_of(self.prefix + key) == "f32" else float(value)

    def text(self, key: str) -> str:
        """Return the string value of a full key, "" if it is missing or not a string."""
        return self.metadata[key] if self.metadata.type_of(key) == "string" else ""

    def listed(self) -> int | None:
        """Return the number of tokens in the file's vocabulary, None if it has none."""
        kind = self.metadata.type_of(TOKENS_KEY)
        if kind not in (None, "string[]"):
            self.faults[TOKENS_KEY] = f"{TOKENS_KEY} has type {kind}, wanted string[]"
        return self.metadata.count(TOKENS_KEY) if kind == "string[]" else None

    def account(self, shape: Any, inert: tuple[Inert, ...]) -> Account:
        """Return which keys of the file are used, have no effect (``inert``) or are refused; raise ShapeError for
        ``faults``, or for problems of the shape."""
        check(self.source, list(self.faults.values()) or shape.problems())
        return self.metadata.account(inert)


def check(source: TensorSource, problems: list[str], before: str = "") -> None:
    """Raise a ShapeError that names the first problems, if there are any; its message begins with ``before``."""
    if problems:
        raise ShapeError(source.path, before + named(problems, MOST_NAMED))


def out_of_bounds(shape: Any, prefix: str, ints: Bounds, floats: Bounds) -> list[str]:
    """Return one sentence for each dimension of ``shape`` that is out of its bounds."""
    values = [(prefix + key, getattr(shape, field), low, high) for field, key, low, high in ints]
    problems = [f"{key} is {got}, wanted {low} to {high}" for key, got, low, high in values if not low <= got <= high]
    values = [(prefix + key, getattr(shape, field), low, high) for field, key, low, high in floats]
    return problems + [
        f"{key} is {value}, wanted between {low:g} and {high:g}"
        for key, value, low, high in values
        if not low < value < high
    ]


def decimal(value: float) -> float:
    """Return the shortest decimal that rounds to this float32 value: 1e-6, not 9.999999974752427e-07."""
    return float(str(np.float32(value)))
