"""Routed experts: count their use, and ask the operating system to read their weights ahead of time.

Experts are nine tenths of a model file and a fifth of what a token reads. If the file does not fit into memory they
stay on disk, and a page fault fetches only a few pages. So once routing is known, all pages of the chosen experts are
requested at once, while the shared expert is computed. With everything in memory that only costs a system call per
matrix, so it is done only for files larger than memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


class ExpertUse:
    """Counts of expert use, with prefetch of chosen experts if ``advise``. All layers have the same number of experts.

    Counts may miss uses when several threads share an engine.
    """

    def __init__(self, ops: Any, layers: Sequence[Any], experts: int, advise: bool = False):
        self.counts = ops.array(len(layers), experts, dtype=np.int64)
        """Number of times each expert of each layer was chosen, (layers, experts), an array of the backend."""
        ops.fill(self.counts, 0)
        self.advise = advise
        self._layers, self._host = layers, ops.host
        if getattr(ops, "fetching", False):
            ops.follow(self.counts, [(w.ffn_gate_exps, w.ffn_up_exps, w.ffn_down_exps) for w in layers])

    def chosen(self, ops: Any, layer: int, ids: np.ndarray) -> None:
        """Count the routing of a layer's tokens, expert ids (T, K), and prefetch these experts if enabled."""
        ops.count(ids, self.counts[layer])
        if self.advise:
            w = self._layers[layer]
            for matrix in (w.ffn_gate_exps, w.ffn_up_exps, w.ffn_down_exps):
                ops.advise(ids, matrix)

    def summary(self, most: int = 16) -> dict[str, Any]:
        """Return, for reports, the total of choices, the number of experts ever chosen, and the ``most`` frequent ones.

        Frequent experts are listed as [layer, expert, count].
        """
        return summary_of(self._host(self.counts), most, self.advise)


def summary_of(counts: np.ndarray, most: int, advised: bool) -> dict[str, Any]:
    """Return ``ExpertUse.summary`` of counts (layers, experts)."""
    order = np.argsort(-counts, axis=None, kind="stable")[:most]
    hottest = [[int(i // counts.shape[1]), int(i % counts.shape[1])] for i in order]
    return {
        "choices": int(counts.sum()),
        "experts_used": int(np.count_nonzero(counts)),
        "experts": counts.size,
        "hottest": [[*place, int(counts[*place])] for place in hottest if counts[*place]],
        "advised": advised,
    }
