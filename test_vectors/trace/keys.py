"""Which rows a wrong attention reads: a window or a mask shows as the keys of a position, not as wrong channels.

    attended(case, wrong)     ["position 16 reads positions 0 to 16, not 1 to 16", ...]

At a position where ``kqv_out`` is wrong, attention is computed from the other engine's query and rows over other sets
of rows: every range of positions, every number of compressed rows, and ours with one row more or less. The set that
gives their result is named, or none.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ds4ref.variants import Fault

from .blame import Blaming, WrongOp

POINT = "kqv_out"
LEFT = 0.1
"""Largest share of the distance that the right set of rows may leave, for rounding."""
TIE = 1e-9
"""Sets whose distances differ by less than this share of the result's size fit equally well: far below what float32
values can tell apart, far above rounding in float64."""


class _Set(NamedTuple):
    """A set of rows: what it is, in words, and a mask over positions and compressed rows."""

    says: str
    mask: np.ndarray


def attended(case: Blaming, wrong: WrongOp) -> list[str]:
    """Describe which rows theirs reads at the first and at the last wrong position; nothing if no set of rows fits."""
    fits = case.theirs.get(wrong.key, None)
    if wrong.key[0] != POINT or fits is None or fits[0].partial:
        return []
    taken: dict[str, Any] = {}

    def spy(value: Any, layer: int, chunk: Any, taps: dict[str, Any]) -> Any:
        if layer == wrong.key[1]:
            taken.update(taps)
        return value

    case.reading(wrong.rounding, [Fault("spy", "", edits={POINT: spy})], case.leading([wrong.key[1]]), until=wrong.key)
    rows = np.flatnonzero(wrong.judgement.beyond)
    said: dict[str, None] = {}
    for row in dict.fromkeys((int(rows[0]), int(rows[-1]))) if len(rows) else ():
        text = _read_at(taken, int(wrong.rows[row]), fits[0].values[row].astype(np.float64), case.engine.shape)
        said |= {text: None} if text else {}
    return list(said)


def _read_at(taken: dict[str, Any], t: int, theirs: np.ndarray, shape: Any) -> str:
    """Describe the rows with which attention at position ``t`` gives ``theirs`` (H, d); "" if none do."""
    q, raw = taken["Qcur"][t].astype(np.float64), taken["KVcur"].astype(np.float64)
    compressed = taken.get("KVcompress")
    compressed = np.zeros((0, raw.shape[1])) if compressed is None else compressed.astype(np.float64)
    first, count = (int(part[t]) for part in taken["raw_window"])
    ours = np.zeros(len(raw) + len(compressed), bool)
    ours[first : first + count] = True
    ours[len(raw) + _visible(taken, t, len(compressed))] = True
    values = np.concatenate((raw, compressed))
    scores = q @ values.T * shape.attn_scale
    sinks = taken["attn_sinks"].astype(np.float64)
    top = np.maximum(scores.max(axis=1), sinks)
    weights, sink = np.exp(scores - top[:, None]), np.exp(sinks - top)

    def apart(masks: np.ndarray) -> np.ndarray:
        """Return the rms distance from theirs, by mask (n,)."""
        total = masks @ weights.T + sink
        squares = np.zeros(len(masks))
        for head, weight in enumerate(weights):
            out = (masks * weight) @ values / total[:, head, None]
            squares += np.square(out - theirs[head]).sum(axis=1)
        return np.sqrt(squares / theirs.size)

    sets = list(_sets(ours, len(raw), t, first, count))
    with np.errstate(all="ignore"):
        distances = apart(np.stack([ours, *(each.mask for each in sets)]).astype(np.float64))
    # equal sets come out a rounding apart: how a product sums depends on the processor and on the row
    rounding = TIE * float(np.sqrt(np.square(theirs).mean()))
    best = int(np.argmax(distances[1:] <= np.nanmin(distances[1:]) + rounding))
    return f"position {t} reads {sets[best].says}" if distances[1 + best] < LEFT * distances[0] else ""


def _visible(taken: dict[str, Any], t: int, rows: int) -> np.ndarray:
    """Return the compressed rows that our op reads at position ``t``."""
    chosen = taken.get("indexer_topk")
    if chosen is not None:
        return np.asarray(chosen[t][chosen[t] >= 0], np.int64)
    count = taken.get("comp_count")
    return np.arange(0 if count is None else min(int(count[t]), rows))


def _sets(ours: np.ndarray, raw: int, t: int, first: int, count: int) -> list[_Set]:
    """List the sets of rows to try, the simplest first: ties go to the first."""
    sets = []
    for last in dict.fromkeys((t, t - 1, min(t + 1, raw - 1), raw - 1)):
        for begin in range(last + 1):
            mask = ours.copy()
            mask[:raw] = False
            mask[begin : last + 1] = True
            sets.append(_Set(f"positions {begin} to {last}, not {first} to {first + count - 1}", mask))
    rows = len(ours) - raw
    seen = int(ours[raw:].sum())
    for number in range(rows + 1):
        mask = ours.copy()
        mask[raw:] = np.arange(rows) < number
        sets.append(_Set(f"{number or 'no'} compressed rows, not {seen or 'any'}", mask))
    for at in range(len(ours)):
        mask = ours.copy()
        mask[at] = not mask[at]
        name = f"position {at}" if at < raw else f"compressed row {at - raw}"
        sets.append(_Set(f"{name}, too" if mask[at] else f"all that ours does but {name}", mask))
    return sets
