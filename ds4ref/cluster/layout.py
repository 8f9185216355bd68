"""Decides which worker has which layers.

parse("0-20@a,21-42@b", ...)     chosen by the user: layers, and names or addresses of workers
balanced(layer_bytes, 3, ...)    chosen by size, so that the largest number of bytes on a worker is as small as possible
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

from ..errors import UsageError


def parse(text: str, n_layers: int, starts: Sequence[int]) -> list[tuple[str, range]]:
    """Return (worker, layers) for each part of ``text``, which has the form "0-20@a,21-42@b".

    starts: layers at which a part can begin. Raise UsageError unless the parts begin there and cover all ``n_layers``
    layers in order, each on another worker.
    """
    parts: list[tuple[str, range]] = []
    done = 0
    for part in text.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,5})(?:-([0-9]{1,5}))?@(\S+)\s*", part)
        if match is None:
            raise UsageError(f"layers {part.strip()[:60]!r}: LAYERS@WORKER is needed, such as 0-20@a")
        layers = range(int(match[1]), int(match[2] or match[1]) + 1)
        if layers.start != done or not layers:
            raise UsageError(f"layers {part.strip()[:60]!r}: the next layer is {done}")
        if done < n_layers and done not in starts:
            near = [str(max(s for s in starts if s < done)), *map(str, [s for s in starts if s > done][:1])]
            where = f"not at layer {done}, but at {' or '.join(near)}"
            raise UsageError(f"layers {part.strip()[:60]!r}: a part of this model can begin {where}")
        done = layers.stop
        parts.append((match[3], layers))
    if done != n_layers:
        raise UsageError(f"layers {text[:60]!r} end at {done - 1}, the model's last is {n_layers - 1}")
    names = [name for name, _ in parts]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"layers {text[:60]!r}: worker {twice} has two parts, consecutive layers are one")
    return parts


def balanced(costs: Sequence[int], workers: int, starts: Sequence[int]) -> list[range]:
    """Return consecutive layers for each worker, at least one each, such that the largest cost is as small as possible.

    ``costs`` has the cost of each layer, with the embedding counted in the first and the output head in the last.
    starts: layers at which a worker's part can begin. Raise UsageError for more workers than there are such layers.
    """
    count = len(costs)
    ends = [*starts, count][1:]
    if workers > len(ends):
        raise UsageError(f"{workers} workers are more than the model has parts, {len(ends)}: name some with --layers")
    sums = list(itertools.accumulate(costs, initial=0))
    # number of layers on the workers so far -> the smallest possible largest cost, and the bounds between workers
    best: dict[int, tuple[int, tuple[int, ...]]] = {0: (0, (0,))}
    for _ in range(workers):
        best = {
            end: min((max(cost, sums[end] - sums[start]), (*bounds, end))
                     for start, (cost, bounds) in best.items() if start < end)
            for end in ends
            if end > min(best)
        }  # fmt: skip
    bounds = best[count][1]
    return [range(start, end) for start, end in zip(bounds, bounds[1:], strict=False)]
