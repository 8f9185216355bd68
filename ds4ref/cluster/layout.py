"""Which worker has which layers.

parse("0-20@a,21-42@b", 43)      by hand: layers and the names (or addresses) of workers
balanced(layer_bytes, speeds)    by bytes: the slowest worker needs as little time for its layers as can be
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..errors import UsageError


def parse(text: str, n_layers: int) -> list[tuple[str, range]]:
    """Return worker and layers of each part of ``text``; raise UsageError unless they are all layers, in order."""
    parts: list[tuple[str, range]] = []
    done = 0
    for part in text.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,5})(?:-([0-9]{1,5}))?@(\S+)\s*", part)
        if match is None:
            raise UsageError(f"layers {part.strip()[:60]!r}: LAYERS@WORKER is needed, such as 0-20@a")
        layers = range(int(match[1]), int(match[2] or match[1]) + 1)
        if layers.start != done or not layers:
            raise UsageError(f"layers {part.strip()[:60]!r}: the next layer is {done}")
        done = layers.stop
        parts.append((match[3], layers))
    if done != n_layers:
        raise UsageError(f"layers {text[:60]!r} end at {done - 1}, the model's last is {n_layers - 1}")
    names = [name for name, _ in parts]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"layers {text[:60]!r}: worker {twice} has two parts, consecutive layers are one")
    return parts


def balanced(
    costs: Sequence[float], speeds: Sequence[float], sizes: Sequence[int] = (), limits: Sequence[float] = ()
) -> list[range]:
    """Return consecutive layers for each worker, at least one each, such that the largest time is smallest.

    costs: of each layer, in any unit; embedding and head are counted with the first and the last one
    speeds: of each worker, in that unit per time
    sizes, limits: bytes of each layer, and bytes for which each worker has memory; kept where that is possible
    Raise UsageError for more workers than layers.
    """
    count, workers = len(costs), len(speeds)
    if workers > count:
        raise UsageError(f"{workers} workers are more than the model has layers, {count}: name some with --layers")
    for bounds in (limits, ()) if limits else ((),):
        # best[i]: (time, ends) of the first i layers on the workers so far
        best: list[tuple[float, tuple[int, ...]] | None] = [(0.0, ()), *[None] * count]
        for number, speed in enumerate(speeds):
            following: list[tuple[float, tuple[int, ...]] | None] = [None] * (count + 1)
            for start, known in enumerate(best):
                if known is None:
                    continue
                cost, size = 0.0, 0
                for end in range(start + 1, count + 1):
                    cost, size = cost + costs[end - 1], size + (sizes[end - 1] if sizes else 0)
                    if bounds and size > bounds[number]:
                        break
                    slowest = max(known[0], cost / speed)
                    best_here = following[end]
                    if best_here is None or slowest < best_here[0]:
                        following[end] = slowest, (*known[1], end)
            best = following
        last = best[count]
        if last is not None:
            return [range(start, end) for start, end in zip((0, *last[1]), last[1], strict=False)]
    raise AssertionError("without limits there is a layout")
