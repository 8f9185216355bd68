"""A cache of experts tried on recorded routing, without a model: what would be found in memory, what read.

    recent    the least recently used expert leaves
    fading    what ``resident`` does: the least used one, with uses that count half after 16 tokens
    oracle    the one that is needed again last: no order that does not see the future finds more

A recording is an .npz of ``ids`` integers (tokens, layers, experts chosen), ``prompts`` (numbers of tokens at which a
prompt begins), ``bytes`` (of an expert, by layer) and ``experts`` (number in a layer).
"""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..errors import DataError
from ..files import atomic_write
from .contents import Contents
from .policy import Fading, Order, Recent

NEVER = np.iinfo(np.int64).max >> 1
MOST_LAYERS, MOST_EXPERTS = 1 << 10, 1 << 14
_UNREADABLE = (OSError, ValueError, KeyError, TypeError, EOFError, RuntimeError, MemoryError, OverflowError,
               zipfile.BadZipFile, zlib.error)  # fmt: skip
"""What NumPy and zipfile raise for a file that is damaged, encrypted, or no archive."""


class Routing(NamedTuple):
    """Recorded routing, as in a file of it."""

    ids: np.ndarray
    prompts: np.ndarray
    bytes: np.ndarray
    experts: int

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write it to a file."""
        with atomic_write(path) as file:
            np.savez_compressed(file, **self._asdict())

    def counts(self) -> np.ndarray:
        """Return the number of uses of each expert, int64 (layers, experts)."""
        rows = self.ids.transpose(1, 0, 2).reshape(self.ids.shape[1], -1)
        return np.stack([np.bincount(row, minlength=self.experts) for row in rows])

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Routing:
        """Return the routing of a file; raise DataError unless it is one."""
        try:
            with np.load(path, allow_pickle=False) as file:
                routing = cls(file["ids"], file["prompts"], file["bytes"], int(file["experts"]))
        except _UNREADABLE as error:
            raise DataError(f"{os.fspath(path)}: not recorded routing: {error}") from None
        kinds = {array.dtype.kind for array in routing[:3]}
        ids = routing.ids
        if (
            not kinds <= {"i", "u"}
            or ids.ndim != 3
            or not ids.size
            or routing.bytes.shape != ids.shape[1:2]
            or routing.bytes.min() <= 0
            or routing.prompts.ndim != 1
            or not ((routing.prompts >= 0) & (routing.prompts < len(ids))).all()
            or ids.shape[1] > MOST_LAYERS
            or not 0 < routing.experts <= MOST_EXPERTS
            or not 0 <= int(ids.min()) <= int(ids.max()) < routing.experts
        ):
            raise DataError(f"{os.fspath(path)}: not recorded routing: sizes or numbers that do not fit together")
        return routing


class Oracle(Recent):
    """What is needed again last leaves first."""

    def __init__(self, routing: Routing):
        tokens, layers, _ = routing.ids.shape
        super().__init__(layers, routing.experts)
        self._next = np.full(routing.ids.shape, NEVER, np.int64)
        coming = np.full((layers, routing.experts), NEVER, np.int64)
        for token in range(tokens - 1, -1, -1):
            for layer in range(layers):
                ids = routing.ids[token, layer]
                self._next[token, layer] = coming[layer, ids]
                coming[layer, ids] = token * layers + layer
        self.last[:] = -coming
        self._token, self._ids = 0, routing.ids

    def used(self, layer: int, ids: np.ndarray) -> None:
        """Look up when these experts are used next."""
        own = self._ids[self._token, layer]
        self.last[layer, own] = -self._next[self._token, layer]

    def decoded(self, tokens: int) -> None:
        """Go on to the next token."""
        self._token += tokens


class Outcome(NamedTuple):
    """What became of all uses of experts: how many there were, found in memory, and bytes read."""

    uses: int
    hits: int
    bytes_read: int

    @property
    def rate(self) -> float:
        """Return the share of uses that were found in memory."""
        return self.hits / self.uses


def orders(routing: Routing) -> dict[str, Order]:
    """Return a new order of each kind, by name."""
    layers = routing.ids.shape[1]
    return {
        "recent": Recent(layers, routing.experts),
        "fading": Fading(layers, routing.experts),
        "oracle": Oracle(routing),
    }


def simulate(routing: Routing, budget: int, order: Order, warm: int = 0) -> Outcome:
    """Return what a cache of ``budget`` bytes, empty at first, finds of the experts of tokens from ``warm`` on."""
    tokens, layers, _ = routing.ids.shape
    sizes: Sequence[int] = [int(size) for size in routing.bytes]
    contents = Contents(sizes, routing.experts, budget, order)
    begins, kept = set(routing.prompts.tolist()), np.zeros((layers, routing.experts), bool)
    uses = hits = read = 0
    for token in range(tokens):
        if token in begins:
            order.new_prompt()
        for layer in range(layers):
            ids: Any = np.unique(routing.ids[token, layer])
            order.used(layer, ids)
            present = int(contents.present(layer, ids).sum())
            if token >= warm:
                uses, hits, read = uses + len(ids), hits + present, read + (len(ids) - present) * sizes[layer]
            kept[layer, ids] = True
            contents.admit(layer, ids.tolist(), kept)
            kept[layer, ids] = False
        order.decoded(1)
    return Outcome(uses, hits, read)
