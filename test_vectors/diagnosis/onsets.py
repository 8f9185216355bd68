"""Positions at which parts of the model begin to have an effect, so that the first wrong position hints at a cause.

narrowed(shape, 3)     ("layers with ratio 4: the first compressed row is attended from here on",)
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ds4ref.archs.deepseek4.shape import CSA

LATE = 2
"""The effect of a part may exceed the noise only this many positions after the part's onset."""
EDGE = 16
"""Smallest power of two that may be an engine's chunk size."""


WINDOW = "the sliding window: from here on it drops its oldest row"


def onsets(shape: Any) -> list[tuple[int, str]]:
    """Return (position, which part of the model has an effect from there on) in ascending order of position.

    ``shape``: the model's dimensions.
    """
    dense = not hasattr(shape, "ratios")
    single = "head" if dense else "experts, hyper-connections, sinks, head"
    windows = {shape.window_of(layer) for layer in range(shape.n_layers)} - {0} if dense else {shape.window}
    ratios = set() if dense else set(shape.ratios) - {0}
    return sorted([
        (0, f"what acts on single tokens: embedding, norms, products, {single}"),
        (1, "what mixes tokens or turns with the position: rotary channels, attention over several rows"),
        *((window, WINDOW) for window in windows),
        *((at, f"layers with ratio {ratio}: {says}") for ratio in ratios for at, says in compressed(shape, ratio)),
    ])  # fmt: skip


def compressed(shape: Any, ratio: int) -> list[tuple[int, str]]:
    """Return the same as ``onsets``, only for layers that compress the KV cache by ``ratio``."""
    begins = [
        (ratio - 1, "the first compressed row is attended from here on"),
        (2 * ratio - 1, "the second compressed row, and what a compressor keeps of the window before"),
    ]
    if ratio == CSA or hasattr(shape, "index_sources"):
        begins.append((ratio * (shape.index_topk + 1) - 1, "the indexer selects from here on"))
    return begins


def narrowed(shape: Any, first: int, exactly: bool) -> list[str]:
    """Return what may be wrong if ``first`` is the first wrong position, the most specific first.

    ``exactly``: whether the positions before it are right to float precision. If they are only right to within a
    rounding's noise, parts with an earlier onset may be wrong, too.
    """
    near = [says for at, says in reversed(onsets(shape)) if at <= first <= at + LATE]
    if first >= EDGE and first & (first - 1) == 0:
        near.append(f"the edge of a chunk of {first} tokens, or a table of that size")
    if not near:
        near.append(
            f"something that first happens at position {first}: a clamp, a top-k tie, an overflow, the switch to decode"
        )
    if not exactly and first:
        near.append("anything that begins earlier but stays below the noise until here")
    return near if first else near[:1]


def change_point(excess: np.ndarray) -> int | None:
    """Return the index at which ``excess`` (R,), levels above those of a correct engine, steps up; None if nowhere.

    There the cumulative sum of deviations from the mean has its minimum. It reaches 1.63 sd sqrt(R) in one of a hundred
    series without a step (Kolmogorov); the sd is estimated from differences of neighbours, which a step hardly affects.
    """
    if len(excess) < 16:
        return None
    sums = np.cumsum(excess - excess.mean())
    sd = float(np.std(np.diff(excess))) / np.sqrt(2)
    at = int(np.argmin(sums))
    return at + 1 if at + 1 < len(excess) and -float(sums[at]) > 1.63 * max(sd, 1e-9) * np.sqrt(len(excess)) else None
