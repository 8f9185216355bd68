"""Saved sessions of a dense decoder.

Little endian. 10 u32 header words: magic "DSKV", version, context, tokens, layers, KV heads, head size, vocabulary,
bytes per value, 0. Then token ids u32, logits f32, and per layer the keys and the values of all tokens, (tokens,
width).

Loading is all or nothing: the cache is returned only after every check has passed.
"""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from typing import BinaryIO

import numpy as np

from ...errors import PayloadError, PayloadMismatch
from ...files import atomic_write
from .cache import Cache
from .shape import DenseShape

MAGIC = 0x564B5344
VERSION = 1
HEADER_WORDS = 10
_FIXED = {4: "layers", 5: "key-value heads", 6: "head size", 7: "vocabulary", 8: "bytes a value"}


def header(shape: DenseShape, half: bool, ctx: int, tokens: int) -> np.ndarray:
    """Return the 10 header words of a session of ``tokens`` tokens in a context of ``ctx``."""
    sizes = shape.n_layers, shape.n_kv_heads, shape.head_dim, shape.vocab, 2 if half else 4
    return np.array([MAGIC, VERSION, ctx, tokens, *sizes, 0], "<u4")


def size(shape: DenseShape, half: bool, tokens: int) -> int:
    """Return the size in bytes of the payload after ``tokens`` tokens."""
    return 4 * (HEADER_WORDS + tokens + shape.vocab) + shape.kv_bytes(tokens, 2 if half else 4)


def save(
    file: str | os.PathLike[str] | BinaryIO,
    shape: DenseShape,
    half: bool,
    tokens: Sequence[int],
    logits: np.ndarray,
    cache: Cache,
) -> None:
    """Write a session; a path is replaced atomically. ``half``: values are float16."""
    if isinstance(file, str | os.PathLike):
        with atomic_write(file) as stream:
            save(stream, shape, half, tokens, logits, cache)
        return
    file.write(header(shape, half, cache.ctx, len(tokens)).tobytes())
    file.write(np.asarray(tokens, "<u4").tobytes())
    file.write(np.asarray(logits, "<f4").tobytes())
    for layer in range(shape.n_layers):
        for rows in cache.rows(layer):
            file.write(np.ascontiguousarray(rows, "<f2" if half else "<f4").tobytes())


def load(
    file: str | os.PathLike[str] | BinaryIO, shape: DenseShape, half: bool, cache: Cache
) -> tuple[list[int], np.ndarray]:
    """Read a session into a new cache and return tokens and logits (V,); raise PayloadError for a bad file."""
    if isinstance(file, str | os.PathLike):
        try:
            with open(file, "rb") as stream:
                return load(stream, shape, half, cache)
        except OSError as error:
            raise PayloadError(f"{os.fspath(file)}: {error.strerror or error}") from error
    total = _length(file)
    words = _read(file, "header", (HEADER_WORDS,), "<u4")
    n = _check_header(words, header(shape, half, 0, 0), cache.ctx)
    if total is not None and total != size(shape, half, n):
        raise PayloadError(f"saved session is {total} bytes long, should be {size(shape, half, n)}")
    tokens = _read(file, "tokens", (n,), "<u4")
    if tokens.max() >= shape.vocab:
        raise PayloadError(f"saved token id {tokens.max()} is outside the vocabulary of {shape.vocab}")
    logits = _read(file, "logits", (shape.vocab,), "<f4")
    for layer in range(shape.n_layers):
        rows = []
        for part in ("keys", "values"):
            values = _read(file, f"{part} of layer {layer}", (n, shape.kv_width), "<f2" if half else "<f4")
            if not np.isfinite(values).all():
                raise PayloadError(f"saved session has a value that is not finite in its {part} of layer {layer}")
            rows.append(values)
        cache.put(layer, *rows)
    if file.read(1):
        raise PayloadError("saved session has bytes after its end")
    cache.reserve(n)
    cache.advance(n)
    return [int(t) for t in tokens], logits


def _check_header(words: np.ndarray, expected: np.ndarray, ctx: int) -> int:
    """Check a header and return the token count. PayloadMismatch for a session of another model or a larger context."""
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


def _length(stream: BinaryIO) -> int | None:
    """Return the bytes from here to the end, None for a stream that is not seekable."""
    if not stream.seekable():
        return None
    position = stream.tell()
    total = stream.seek(0, io.SEEK_END) - position
    stream.seek(position)
    return total


def _read(stream: BinaryIO, label: str, shape: tuple[int, ...], kind: str) -> np.ndarray:
    array = np.empty(shape, kind)
    view, done = memoryview(array).cast("B"), 0
    while done < len(view):
        got = stream.readinto(view[done:])  # type: ignore[attr-defined]
        if not got:
            raise PayloadError(f"saved session ends inside its {label}")
        done += got
    return array
