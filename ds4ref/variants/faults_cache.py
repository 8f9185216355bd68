"""Injected bugs in caching and chunked prefill: cache slots off by one, ring buffers, chunk edges, positions."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..archs.deepseek4.cache import EMPTY_SCORE
from ..archs.deepseek4.chunk import Chunk
from .faults import Begin, Edit, Fault, _op, _rotated

EDGES = (32, 64, 128, 256, 512)
"""Prefill chunk sizes at which the chunk-edge faults are tried; a size above the prompt's length has no effect."""


def _self_missing(value: tuple, layer: int, chunk: Chunk, taps: dict) -> tuple:
    return value[0], value[1] - 1


def _ring(chunk: Chunk) -> None:
    """Overwrite the oldest row of the window's ring buffer too early: a full window has its newest row twice, and its
    oldest is lost."""
    window = chunk.shape.window

    def make(attention: Any) -> Any:
        def wrong(q, raw, first, count, *rest):
            at = first[:, None] + np.arange(window)
            full = count == window
            at[full, 0] = (first + count - 1)[full]
            rows = raw[at % len(raw)].reshape(-1, raw.shape[1])
            start = np.arange(len(q), dtype=np.int32) * window
            return attention(q, rows, start, count, *rest)

        return wrong

    _op("attention", make)(chunk)


def _early(chunk: Chunk) -> None:
    end = chunk.positions[-1] + 1
    chunk.visible = lambda ratio: np.minimum((chunk.positions + 2) // ratio, end // ratio).astype(np.int32)  # type: ignore[method-assign]


def _window_cut(size: int) -> Edit:
    def edit(value: tuple, layer: int, chunk: Chunk, taps: dict) -> tuple:
        first, count = value
        lost = np.maximum(count - 1 - chunk.positions % size, 0).astype(np.int32)
        return first + lost, count - lost

    return edit


def _state_lost(size: int) -> dict[str, Edit]:
    """Return edits with which a compression window that spans a chunk edge loses the tokens before that edge.

    size: tokens in a chunk.
    """

    def edit(value: tuple, layer: int, chunk: Chunk, taps: dict) -> tuple:
        kv, score = value
        ratio, slots = chunk.shape.ratios[layer], score.shape[1]
        ends = (chunk.pos0 // ratio + 1 + np.arange(len(score))) * ratio
        position = ends[:, None] - slots + np.arange(slots)
        lost = position < (ends[:, None] - 1) // size * size
        return kv, np.where(lost[:, :, None], EMPTY_SCORE, score)

    return {"attn_comp_candidates": edit, "indexer_comp_candidates": edit}


def _rows_late(size: int) -> Begin:
    def begin(chunk: Chunk) -> None:
        chunk.visible = lambda ratio: (chunk.positions // size * size // ratio).astype(np.int32)  # type: ignore[method-assign]

    return begin


def _tail_lost(point: str, size: int) -> dict[str, Edit]:
    """Return an edit that zeroes the intermediate ``point`` (T, D) for the last token of each chunk of ``size``."""

    def edit(value: np.ndarray, layer: int, chunk: Chunk, taps: dict) -> np.ndarray:
        return np.where((chunk.positions % size == size - 1)[:, None], np.float32(0), value)

    return {point: edit}


def _slots_late(prefix: str, own: bool) -> dict[str, Edit]:
    """Return an edit that shifts the inputs of a compressed row by one token: each slot of its window gets the token
    before its own, the first one nothing if that would be before the prompt.

    prefix: "attn" or "indexer". own: shift the row's own window too; at ratio 4 a row also pools the previous window,
    which is always shifted.
    """

    def edit(value: tuple, layer: int, chunk: Chunk, taps: dict) -> tuple:
        ratio, width = chunk.shape.ratios[layer], value[0].shape[2]
        start = chunk.pos0 // ratio * ratio
        # (first slot, first channel, position of the token before) of each run of ``ratio`` slots
        runs = [(0, 0, start - 5), (4, width, start - 1)] if ratio == 4 else [(0, 0, start - 1)]
        late = []
        for part, ring, empty in zip(value, chunk.cache.projections[prefix], (0.0, EMPTY_SCORE), strict=True):
            moved = part.copy()
            for slot, channel, position in runs[: None if own else int(ratio == 4)]:
                before = ring[position % len(ring), channel : channel + width]
                moved[0, slot] = before if position >= 0 else empty
                moved[1:, slot] = part[:-1, slot + ratio - 1]
                moved[:, slot + 1 : slot + ratio] = part[:, slot : slot + ratio - 1]
            late.append(moved)
        return tuple(late)

    return {f"{prefix}_comp_candidates": edit}


LIST = [
    Fault("self_missing", "a token does not attend to its own row", edits={"raw_window": _self_missing}),
    Fault("key_position_late", "cached rows rotated at the next position", edits={"KVrope": _rotated("KVnorm", 1)}),
    Fault("ring_wrap", "window ring overwrites its oldest row one token early", _ring),
    Fault("row_early", "compressed rows visible one token early", _early),
    Fault("no_compressed_rows", "compressed rows never attended", _rows_late(1 << 30)),
    Fault("state_late", "compressors' state one slot late: rows pool the tokens one before theirs",
          edits=_slots_late("attn", True) | _slots_late("indexer", True)),
    Fault("previous_window_late", "ratio 4: previous window moved one slot late, without its last token",
          edits=_slots_late("attn", False) | _slots_late("indexer", False)),
    *(
        Fault(f"chunk_{size}_window_cut", f"window does not reach back over chunk edges ({size})",
              edits={"raw_window": _window_cut(size)}, tokens=size)
        for size in EDGES
    ),
    *(
        Fault(f"chunk_{size}_state_lost", f"compressor state lost at chunk edges ({size})",
              edits=_state_lost(size), tokens=size)
        for size in EDGES
    ),
    *(
        Fault(f"chunk_{size}_rows_late", f"compressed rows visible only from the next chunk on ({size})",
              _rows_late(size), tokens=size)
        for size in EDGES
    ),
    *(
        Fault(f"chunk_{size}_{name}_lost", f"{says} left out for the last token of a chunk ({size})",
              edits=_tail_lost(point, size), tokens=size - 1)
        for name, says, point in (("shared", "shared expert", "ffn_shexp"), ("routed", "routed experts", "ffn_moe_out"))
        for size in EDGES
    ),
]  # fmt: skip
