"""Saved sessions of a dense decoder.

Little endian. 10 u32 header words: magic "DSKV", version, context, tokens, layers, KV heads, head size, vocabulary,
bytes per value, 0. Then token ids u32, logits f32, and per layer the keys and the values of all tokens, (tokens,
width).

A session loads into a new cache, which replaces its own only after every check has passed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...errors import PayloadError, PayloadMismatch
from ..saved import File, reading, writing
from .cache import Cache
from .shape import DenseShape

MAGIC = 0x564B5344
VERSION = 1
HEADER_WORDS = 10
_FIXED = {4: "layers", 5: "key-value heads", 6: "head size", 7: "vocabulary", 8: "bytes a value"}


def header(shape: DenseShape, half: bool, ctx: int, tokens: int) -> np.ndarray:
    """Return the 10 header words of a session of ``tokens`` tokens in a context of ``ctx`` tokens; ``half``: values are
    float16."""
    sizes = shape.n_layers, shape.n_kv_heads, shape.head_dim, shape.vocab, 2 if half else 4
    return np.array([MAGIC, VERSION, ctx, tokens, *sizes, 0], "<u4")


def size(shape: DenseShape, half: bool, tokens: int) -> int:
    """Return the size in bytes of a saved session of ``tokens`` tokens; ``half``: float16 values."""
    return 4 * (HEADER_WORDS + tokens + shape.vocab) + shape.kv_bytes(tokens, 2 if half else 4)


def save(file: File, shape: DenseShape, half: bool, tokens: Sequence[int], logits: np.ndarray, cache: Cache) -> None:
    """Write a session to a path, which is replaced atomically, or to an open file; ``half``: keys and values are
    written as float16."""
    with writing(file) as stream:
        stream.write(header(shape, half, cache.ctx, len(tokens)).tobytes())
        stream.write(np.asarray(tokens, "<u4").tobytes())
        stream.write(np.asarray(logits, "<f4").tobytes())
        for layer in range(shape.n_layers):
            for rows in cache.rows(layer):
                stream.write(np.ascontiguousarray(rows, "<f2" if half else "<f4").tobytes())


def load(file: File, shape: DenseShape, half: bool, cache: Cache) -> tuple[list[int], np.ndarray]:
    """Read a session into a new cache and return tokens and logits (V,); raise PayloadError for a bad file."""
    with reading(file) as reader:
        words = reader.words("header", HEADER_WORDS)
        n = _check_header(words, header(shape, half, 0, 0), cache.ctx)
        reader.expect(size(shape, half, n))
        tokens = reader.tokens(n, shape.vocab)
        logits = reader.logits(shape.vocab)
        rows, kind = (n, shape.kv_width), "<f2" if half else "<f4"
        for layer in range(shape.n_layers):
            cache.put(layer, *(reader.finite(f"{part} of layer {layer}", rows, kind) for part in ("keys", "values")))
        reader.end()
    cache.reserve(n)
    cache.advance(n)
    return [int(t) for t in tokens], logits


def _check_header(words: np.ndarray, expected: np.ndarray, ctx: int) -> int:
    """Check a header and return the token count. Raise PayloadMismatch if the session is of another model or does not
    fit in the context, PayloadError if the header is invalid."""
    if words[0] != MAGIC:
        raise PayloadError(f"saved session has magic {words[0]:#x}, wanted {MAGIC:#x}")
    if words[1] != VERSION:
        raise PayloadMismatch(f"saved session has version {words[1]}, wanted {VERSION}")
    for at, label in _FIXED.items():
        if words[at] != expected[at]:
            raise PayloadMismatch(f"saved session has {words[at]} {label}, this one {expected[at]}")
    n = int(words[3])
    if n == 0 or words[9]:
        raise PayloadError("saved session holds no tokens" if n == 0 else f"saved session has a flag {words[9]}")
    if n >= ctx:
        raise PayloadMismatch(f"saved session holds {n} tokens, a context of {ctx} takes 1 to {ctx - 1}")
    return n
