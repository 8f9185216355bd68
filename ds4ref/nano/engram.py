"""Engram tables of random models of DeepSeek V4.1: primes, token map, rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..archs.deepseek41.hashing import multipliers, primes
from ..archs.deepseek41.shape import ENCODING, PREFIX
from ..weights.container import TensorSpec
from .fill import Noise


def folded(tokens: Sequence[str]) -> dict[str, int]:
    """Return the number of each text that tokens are in lower case."""
    return {text: number for number, text in enumerate(dict.fromkeys(token.lower() for token in tokens))}


def sizes(least: int, layers: int, grams: int, heads: int) -> np.ndarray:
    """Return the primes (layers, lengths, heads), above ``least``, and so the numbers of rows of the columns."""
    return primes(least, layers, grams - 1, heads)


def entries(shape: Any, tokens: Sequence[str], least: int) -> list[tuple[str, str, Any]]:
    """Return the metadata that Engram needs beside the shape; the primes are those of ``sizes(least, ...)``."""
    if not shape.engram_layers:
        return []
    numbers, layers, grams = folded(tokens), shape.engram_layers, shape.engram_grams
    columns = sizes(least, len(layers), grams, shape.engram_heads)
    return [
        (f"{PREFIX}engram.encoding", "string", ENCODING),
        (f"{PREFIX}engram.token_map", "u32[]", [numbers[token.lower()] for token in tokens]),
        (f"{PREFIX}engram.primes", "u64[]", columns.reshape(-1).tolist()),
        (f"{PREFIX}engram.multipliers", "u64[]", multipliers(layers, grams, shape.engram_vocab).reshape(-1).tolist()),
    ]


def table(spec: TensorSpec, noise: Noise) -> Iterator[np.ndarray]:
    """Yield rows of a table: codes from 0.5 to 2 of either sign, scales of a half, one and two."""
    raw = noise.bytes(spec.nbytes).reshape(-1, spec.dims[0]).copy()
    raw[:, :256] = raw[:, :256] & 0x80 | 0x30 + (raw[:, :256] & 0x0F)
    raw[:, 256:] = 126 + raw[:, 256:] % 3
    yield raw.reshape(-1)
