"""Routed experts as a resource: which ones are used how often, and telling the operating system before they are read.

They are nine tenths of a model file and a fifth of what a token reads. When the file does not fit into memory they
stay on disk, and a page fault fetches a few pages at a time. As soon as routing is known all pages of the chosen
experts can be asked for at once, while the shared expert is being computed. Where everything is in memory that costs
a system call for each matrix and gains nothing, so it is done only for files larger than the memory there is.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .weights import LayerWeights


class ExpertUse:
    """Counts, and advice if ``advise``. Counting is not exact when several threads share an engine."""

    def __init__(self, ops: Any, layers: list[LayerWeights], experts: int, advise: bool = False):
        self.counts = ops.array(len(layers), experts, dtype=np.int64)
        """How often each expert of each layer was chosen, (layers, experts), where the ops live."""
        ops.fill(self.counts, 0)
        self.advise = advise
        self._layers, self._host = layers, ops.host

    def chosen(self, ops: Any, layer: int, ids: np.ndarray) -> None:
        """Routing of a layer is known: ids (T, K)."""
        ops.count(ids, self.counts[layer])
        if self.advise:
            w = self._layers[layer]
            for matrix in (w.ffn_gate_exps, w.ffn_up_exps, w.ffn_down_exps):
                ops.advise(ids, matrix)

    def summary(self, most: int = 16) -> dict[str, Any]:
        """For reports: choices in all, experts ever chosen, and the ``most`` used as [layer, expert, times]."""
        counts = self._host(self.counts)
        order = np.argsort(-counts, axis=None, kind="stable")[:most]
        hottest = [[int(i // counts.shape[1]), int(i % counts.shape[1])] for i in order]
        return {
            "choices": int(counts.sum()),
            "experts_used": int(np.count_nonzero(counts)),
            "experts": counts.size,
            "hottest": [[*place, int(counts[*place])] for place in hottest if counts[*place]],
            "advised": self.advise,
        }
