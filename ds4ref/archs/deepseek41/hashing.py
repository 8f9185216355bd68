"""Which rows of Engram's tables a token reads: they are found by hashes of the newest n-grams.

A position's hashes depend on the ids of its token and of the n - 1 before it alone, so rows are read from the mapped
file on the host, before the pass needs them; they reach it as one of its inputs. The tables, a quarter of the model's
weights, are never read as a whole.

    h_j  = m_0 c_t xor m_1 c_(t-1) xor ... xor m_(j-1) c_(t-j+1)         j = 2 .. n;  c: ids by the token map
    row of column (j, head) = offset + h_j mod prime                      each column has rows and a prime of its own
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np

from ds4ref.kernels.formats import ApartRows, Matrix
from ds4ref.kernels.system import no_read_ahead, will_need

from ...errors import ModelFileError
from .shape import PREFIX

if TYPE_CHECKING:
    from ...weights.source import TensorSource
    from .shape import ModelShape

LARGE = 1 << 30
BEFORE = -1
"""Stands for the id of a position before the first token."""


def primes(least: int, layers: int, lengths: int, heads: int) -> np.ndarray:
    """Return the first primes from ``least`` on, ascending, int64 (layers, lengths, heads): the sizes of the
    columns."""
    wanted = layers * lengths * heads
    span = 64 * wanted
    for size in count(span, span):
        numbers = np.arange(least, least + size)
        composite = numbers < 2
        for factor in range(2, int((least + size) ** 0.5) + 1):
            composite[max(factor * factor, -(-least // factor) * factor) - least :: factor] = True
        result = numbers[~composite]
        if len(result) >= wanted:
            return result[:wanted].reshape(layers, lengths, heads)
    raise AssertionError


def multipliers(layers: Sequence[int], grams: int, tokens: int) -> np.ndarray:
    """Return the odd factors of the hash, int64 (layers, grams), for layers with these numbers and a token map of
    ``tokens`` different tokens; a product with one of them stays below 2^63."""
    most = (2**63 - 1) // tokens // 2
    draws = [np.random.Generator(np.random.PCG64(10007 * layer)).integers(0, most, grams) for layer in layers]
    return 2 * np.array(draws, np.int64) + 1


@dataclass(frozen=True)
class Hashing:
    """What hashes are computed with; L layers, n-grams of 2 .. n tokens, H columns for each length.

    numbers      number of each token, int64 (V,)
    pad          number of positions before the first token
    multipliers  int64 (L, n)
    primes       int64 (L, n - 1, H)
    offsets      first table row of each column, int64 (L, n - 1, H)
    """

    numbers: np.ndarray
    pad: int
    multipliers: np.ndarray
    primes: np.ndarray
    offsets: np.ndarray

    @classmethod
    def read(cls, source: TensorSource, shape: ModelShape) -> Hashing:
        """Read the arrays from a file's metadata; raise ModelFileError if they do not fit ``shape``."""
        layers, lengths = len(shape.engram_layers), shape.engram_grams - 1

        def array(key: str, size: int) -> np.ndarray:
            values = source.metadata.first(f"{PREFIX}engram.{key}", size + 1)
            if len(values) != size or not all(0 <= value < 1 << 63 for value in values):
                raise ModelFileError(source.path, f"{PREFIX}engram.{key} is not {size} whole numbers below 2^63")
            return np.array(values, np.int64)

        sizes = array("primes", layers * lengths * shape.engram_heads).reshape(layers, lengths, -1)
        factors = array("multipliers", layers * shape.engram_grams).reshape(layers, -1)
        listed = source.metadata.first(f"{PREFIX}engram.token_map", shape.vocab + 1)
        if not 1 <= len(listed) <= shape.vocab:
            raise ModelFileError(source.path, f"{PREFIX}engram.token_map has {len(listed)} ids of {shape.vocab}")
        # ids behind the tokenizer's last one are never part of a text: they count as the first token
        numbers = np.zeros(shape.vocab, np.int64)
        numbers[: len(listed)] = listed
        totals = sizes.reshape(layers, -1).sum(1)
        for problem in (
            "primes has a 0" if not sizes.all() else "",
            f"token_map is not numbers below {shape.engram_vocab}" if not _below(numbers, shape.engram_vocab) else "",
            f"pad_id {shape.engram_pad} is no token" if shape.engram_pad >= shape.vocab else "",
            f"rows is {list(shape.engram_rows)}, primes make {totals.tolist()}"
            if totals.tolist() != list(shape.engram_rows)
            else "",
            "multipliers overflow 63 bits" if int(factors.max()) * shape.engram_vocab >= 1 << 63 else "",
        ):
            if problem:
                raise ModelFileError(source.path, f"{PREFIX}engram.{problem}")
        ends = sizes.reshape(layers, -1).cumsum(1)
        offsets = (ends - sizes.reshape(layers, -1)).reshape(sizes.shape)
        return cls(numbers, int(numbers[shape.engram_pad]), factors, sizes, offsets)

    def of(self, tables: Sequence[int]) -> Hashing:
        """Return the same for some of the layers with Engram, given by their number among these."""
        some = list(tables)
        arrays = {name: getattr(self, name)[some] for name in ("multipliers", "primes", "offsets")}
        return replace(self, **arrays)

    def rows(self, which: int, ids: np.ndarray, before: np.ndarray) -> np.ndarray:
        """Return the table rows of tokens ids (T,) in the layer number ``which`` of those with Engram, int64 (T,
        columns).

        before: the n - 1 ids before the first one, ``BEFORE`` for positions that do not exist.
        """
        known = np.concatenate((before, ids))
        c = np.where(known == BEFORE, self.pad, self.numbers[known])
        past, factors = len(before), self.multipliers[which]
        mixed, columns = c[past:] * factors[0], []
        for back in range(1, past + 1):
            mixed = mixed ^ c[past - back : len(c) - back] * factors[back]
            columns.append(self.offsets[which, back - 1] + mixed[:, None] % self.primes[which, back - 1])
        return np.concatenate(columns, 1)


def _below(numbers: np.ndarray, limit: int) -> bool:
    return bool(((numbers >= 0) & (numbers < limit)).all())


class Lookup:
    """The table of one layer, with what finds rows in it.

    A table of more than ``LARGE`` bytes is taken to lie on disk: its rows are asked for together before the first is
    read, and no pages around them.
    """

    def __init__(self, hashing: Hashing, which: int, table: Matrix):
        self.hashing, self.which, self.table = hashing, which, table
        data = table.data
        arrays = (*data.codes, *data.scales) if isinstance(data, ApartRows) else (data,)
        self._asked = [array for array in arrays if table.nbytes > LARGE]
        for array in self._asked:
            no_read_ahead(array.ctypes.data, array.nbytes)

    def __call__(self, c: Any) -> tuple[np.ndarray]:
        """Return the rows of a chunk's tokens, joined, float32 (T, columns * width), as an input of the chunk
        (``archs.inputs``)."""
        parts = [self.hashing.rows(self.which, part.tokens, part.before) for part, _ in c.sequences()]
        return (self.rows(np.concatenate(parts).reshape(-1)).reshape(len(c.ids), -1),)

    def rows(self, numbers: np.ndarray) -> np.ndarray:
        """Return rows of the table, float32 (n, width); no others are read."""
        for array in self._asked:
            for row in numbers.tolist():
                will_need(array.ctypes.data + array.shape[1] * row, array.shape[1])
        some = self.table.data.take(numbers, axis=0)
        return Matrix(self.table.fmt, some, len(numbers), self.table.cols).dequantize()
