"""Routed experts as a resource: which ones are used how often, and telling the operating system before they are read.

They are nine tenths of a model file and a fifth of what a token reads. When the file does not fit into memory they
stay on disk, and a page fault fetches a few pages at a time. As soon as routing is known all pages of the chosen
experts can be asked for at once, while the shared expert is being computed. Where everything is in memory that costs
a system call for each matrix and gains nothing, so it is done only for files larger than the memory there is.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from functools import cache
from typing import Any

import numpy as np

from ..weights.tensors import LayerWeights

MADV_WILLNEED = 3
ADVISED_BYTES = 512 << 20
"""Most that is asked for at once for a chunk of tokens: more would push itself out of memory before it is used."""


class ExpertUse:
    """Counts, and advice if ``advise``. Counting is not exact when several threads share an engine."""

    def __init__(self, layers: list[LayerWeights], experts: int, advise: bool = False):
        self.counts = np.zeros((len(layers), experts), np.int64)
        """How often each expert of each layer was chosen, (layers, experts)."""
        self.advise = advise
        self._layers = layers
        self._rows = np.arange(len(layers))[:, None]

    def used_by_chunk(self, layer: int, ids: np.ndarray) -> None:
        """Routing of a chunk is known: ids (T, K)."""
        count = np.bincount(ids.ravel(), minlength=self.counts.shape[1])
        self.counts[layer] += count
        if self.advise:
            chosen = np.flatnonzero(count)
            if len(chosen) * sum(w.rows * w.row_bytes for w in matrices(self._layers[layer])) <= ADVISED_BYTES:
                self.ask_for(layer, chosen)

    def ask_for(self, layer: int, chosen: np.ndarray) -> None:
        """Ask for the pages of the experts ``chosen`` (n,) of a layer."""
        for w in matrices(self._layers[layer]):
            for expert in chosen:
                if 0 <= expert < len(self.counts[layer]):
                    will_need(w.data[expert])

    def used_by_token(self, ids: np.ndarray) -> None:
        """One token has passed through all layers: ids (layers, K)."""
        self.counts[self._rows, ids] += 1

    def summary(self, most: int = 16) -> dict[str, Any]:
        """For reports: choices in all, experts ever chosen, and the ``most`` used as [layer, expert, times]."""
        order = np.argsort(-self.counts, axis=None, kind="stable")[:most]
        hottest = [[int(i // self.counts.shape[1]), int(i % self.counts.shape[1])] for i in order]
        return {
            "choices": int(self.counts.sum()),
            "experts_used": int(np.count_nonzero(self.counts)),
            "experts": self.counts.size,
            "hottest": [[*place, int(self.counts[*place])] for place in hottest if self.counts[*place]],
            "advised": self.advise,
        }


def matrices(w: LayerWeights) -> tuple[Any, Any, Any]:
    """The three expert tensors of a layer, in the order they are read."""
    return w.ffn_gate_exps, w.ffn_up_exps, w.ffn_down_exps


def will_need(rows: np.ndarray) -> None:
    """Ask for the pages of mapped ``rows`` without waiting for them. Where that is not possible nothing happens."""
    call = _madvise()
    if call is not None:
        start = rows.ctypes.data // mmap.PAGESIZE * mmap.PAGESIZE
        call(start, rows.ctypes.data + rows.nbytes - start, MADV_WILLNEED)


@cache
def _madvise() -> Any:
    if os.name != "posix":
        return None
    call = ctypes.CDLL(None).madvise
    call.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return call
