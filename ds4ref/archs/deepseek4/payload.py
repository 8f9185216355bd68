"""Saved sessions in ds4's "DSV4" format (docs/explanation/model.md 12).

Little endian. 13 u32 header words; token ids u32; logits f32; compressed and indexer row counts u32 per layer; then
per layer: raw rows oldest first, compressed rows, compressor state (values, scores), indexer rows, indexer state.

Compressor state is what the compressors keep for incomplete windows. A session loads into a new cache, which replaces
its own only after every check has passed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ...errors import PayloadError, PayloadMismatch
from ..saved import File, Reader, check_finite, reading, writing
from .cache import EMPTY_SCORE, Cache, Projections
from .shape import ModelShape

VERSION = 1
PREFILL_CAP = 2048
HEADER_WORDS = 13


def header(shape: ModelShape, ctx: int, tokens: int) -> np.ndarray:
    """Return the 13 header words of a session of ``tokens`` tokens in a context of ``ctx``."""
    window = max(1, min(shape.window, ctx))
    return np.array(
        [
            shape.payload_magic, VERSION, ctx, min(ctx, PREFILL_CAP), window, window, shape.cache_rows(ctx)[1], tokens,
            shape.n_layers, shape.head_dim, shape.index_dim, shape.vocab, min(tokens, window),
        ],
        "<u4",
    )  # fmt: skip


def _counts(shape: ModelShape, tokens: int) -> tuple[list[int], list[int]]:
    """Return, for each layer, the numbers of compressed rows and of indexer rows after ``tokens`` tokens."""
    comp, index = (
        [tokens // r if kind in shape.row_widths(layer) else 0 for layer, r in enumerate(shape.ratios)]
        for kind in ("attn", "indexer")
    )
    return comp, index


def _kinds(shape: ModelShape, layer: int) -> tuple[tuple[str, str, int, int], ...]:
    """Return the kinds of compressed rows that a layer makes, in file order, each as (kind, name in errors, row width,
    width of the projections that it keeps, 0 if none)."""
    names, rings = {"attn": "compressor", "indexer": "indexer"}, shape.ring_widths(layer)
    return tuple((kind, names[kind], width, rings.get(kind, 0)) for kind, width in shape.row_widths(layer).items())


def _occupied(shape: ModelShape, layer: int, pos: int) -> slice:
    """Return which slots of a compressor's saved state hold tokens, when the sequence is at position ``pos``.

    Where windows overlap the previous window comes first, then the current one; else only the latter.
    """
    ratio, first = shape.ratios[layer], shape.overlap(layer)
    return slice(first - (first if pos >= ratio else 0), first + pos % ratio)


def _slots(shape: ModelShape, layer: int, kind: str, cache: Cache) -> tuple[np.ndarray, np.ndarray]:
    """Return a compressor's state as it is saved: values and scores, (slots, width) each; empty slots hold 0 and
    -1e30."""
    rows = cache.waiting(layer, kind)
    at, size = _occupied(shape, layer, cache.pos), (shape.state_rows(layer), rows.kv.shape[1])
    kv, score = np.zeros(size, np.float32), np.full(size, EMPTY_SCORE)
    kv[at], score[at] = rows
    return kv, score


def _sections(shape: ModelShape, cache: Cache) -> Iterator[np.ndarray]:
    """Yield, in file order, the float arrays that follow the row counts."""
    for layer in range(shape.n_layers):
        yield cache.raw_rows(layer)
        for kind, *_, projection in _kinds(shape, layer):
            yield cache.compressed(layer, kind)
            if projection:
                yield from _slots(shape, layer, kind, cache)


def save(file: File, shape: ModelShape, ctx: int, tokens: Sequence[int], logits: np.ndarray, cache: Cache) -> None:
    """Write a session with a context of ``ctx`` tokens to a path, which is replaced atomically, or to an open file."""
    with writing(file) as stream:
        stream.write(header(shape, ctx, len(tokens)).tobytes())
        stream.write(np.asarray(tokens, "<u4").tobytes())
        stream.write(np.asarray(logits, "<f4").tobytes())
        stream.write(np.asarray(_counts(shape, len(tokens)), "<u4").tobytes())
        for rows in _sections(shape, cache):
            stream.write(np.ascontiguousarray(rows, "<f4").data)


def load(file: File, shape: ModelShape, cache: Cache) -> tuple[list[int], np.ndarray]:
    """Read a session into a new cache and return tokens and logits (V,); raise PayloadError for a bad file."""
    with reading(file) as reader:
        return _read(reader, shape, cache)


def _read(reader: Reader, shape: ModelShape, cache: Cache) -> tuple[list[int], np.ndarray]:
    ctx = cache.ctx
    words = reader.words("header", HEADER_WORDS)
    n = _check_header(words, header(shape, ctx, 0), shape, ctx)
    reader.expect(shape.payload_bytes(n))
    tokens = reader.tokens(n, shape.vocab)
    logits = reader.logits(shape.vocab)
    wanted = np.array(_counts(shape, n), np.uint32)
    counts = reader.words("row counts", 2 * shape.n_layers).reshape(2, -1)
    if (counts != wanted).any():
        kind, layer = np.argwhere(counts != wanted)[0]
        raise PayloadError(
            f"layer {layer} has {counts[kind, layer]} {('compressed', 'indexer')[kind]} rows saved, "
            f"{n} tokens make {wanted[kind, layer]}"
        )
    cache.restart(n)
    for layer, ratio in enumerate(shape.ratios):
        raw = reader.finite(f"raw rows of layer {layer}", (int(words[12]), shape.head_dim))
        projections = {}
        for kind, name, width, projection in _kinds(shape, layer):
            rows = reader.finite(f"{name} rows of layer {layer}", (n // ratio, width))
            cache.put_compressed(layer, kind, rows)
            if not projection:
                continue
            slots = shape.state_rows(layer), projection
            kv = reader.finite(f"{name} values of layer {layer}", slots)
            score = _scores(reader, f"{name} scores of layer {layer}", slots)
            # ignore slots of tokens still to come: their contents depend on the program that wrote the file
            at = _occupied(shape, layer, n)
            projections[kind] = Projections(kv[at], score[at])
        cache.put(layer, raw, projections)
    reader.end()
    return [int(t) for t in tokens], logits


def _scores(reader: Reader, label: str, shape: tuple[int, int]) -> np.ndarray:
    """Read compressor scores, which must be finite, except -inf, which programs on a GPU write for an empty slot; it
    becomes -1e30."""
    scores = reader.array(label, shape, "<f4")
    scores[np.isneginf(scores)] = EMPTY_SCORE
    return check_finite(label, scores)


def _check_header(words: np.ndarray, expected: np.ndarray, shape: ModelShape, ctx: int) -> int:
    """Check a header by the rules of docs/explanation/model.md 12 and return the token count."""
    exact = {0: "magic", 1: "version", 3: "prefill cap", 5: "window", 8: "layers", 9: "row width"}
    exact |= {10: "indexer row width", 11: "vocabulary"}
    for at, label in exact.items():
        if words[at] != expected[at]:
            kind = PayloadError if label == "magic" else PayloadMismatch
            raise kind(f"saved session has {label} {words[at]}, this one {expected[at]}")
    n = int(words[7])
    if words[2] > ctx or words[6] > expected[6]:
        raise PayloadMismatch(f"saved session has a context of {words[2]}, this one {ctx}")
    if not 0 < n < ctx:
        kind = PayloadMismatch if n else PayloadError
        raise kind(f"saved session holds {n} tokens, a context of {ctx} takes 1 to {ctx - 1}")
    live = min(n, int(expected[5]))
    if words[12] != live or words[4] < live:
        raise PayloadError(f"saved session has {words[12]} raw rows of {words[4]}, {n} tokens make {live}")
    return n
