"""Routed experts: count their use, and read their weights ahead of time where the file does not fit into memory.

Experts are nine tenths of a model file and a fifth of what a token reads. If the file does not fit into memory they
stay on disk, and each page fault would fetch only a few pages. So once routing is known, the chosen experts are read
while the shared expert is computed: either by a cache of experts, which reads those that it does not hold
(``residency``), or by telling the operating system which pages will be needed (``advise``).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ..errors import BackendError
from ..residency.resident import PARTS, ResidentExperts, Stack
from ..weights.gguf import GGUFFile

GATE_UP, DOWN = (0, 1), (2,)
"""Indices of an expert's matrices in ``PARTS``, in two groups in the order in which they are multiplied."""


class ExpertUse:
    """Counts how often each routed expert of a model is used, and gets its weights into memory in time.

    layers    weights of the model's layers, each with ``experts`` experts
    advise    tell the operating system which experts' pages will be read
    resident  cache of experts that reads them, used instead of ``advise``; without either, page faults read them

    Counts may miss uses when several threads share an engine.
    """

    def __init__(
        self,
        ops: Any,
        layers: Sequence[Any],
        experts: int,
        advise: bool = False,
        resident: ResidentExperts | None = None,
    ):
        self.counts = ops.array(len(layers), experts, dtype=np.int64)
        """Number of times each expert of each layer was chosen, (layers, experts), an array of the backend."""
        ops.fill(self.counts, 0)
        self.advise, self.resident = advise and resident is None and len(layers) > 0, resident
        self.uncached = ""
        """For reports: why an engine that chose by itself to use a cache of experts could not; "" otherwise."""
        if resident is not None:
            layer_numbers = range(len(layers))
            self._ask = [ops.callback(partial(resident.ask, layer)) for layer in layer_numbers]
            self._need = [ops.callback(partial(resident.need, layer)) for layer in layer_numbers]
            self._wait: dict[tuple[int, ...], list[Any]] = {
                parts: [ops.callback(_waiting(resident, layer, parts)) for layer in layer_numbers]
                for parts in (GATE_UP, DOWN)
            }
        self._layers, self._host = layers, ops.host

    def ahead(self, ops: Any, layer: int, ids: np.ndarray) -> None:
        """Count the experts ids (T, K) that tokens will use in a later layer, and begin to read them if enabled."""
        ops.count(ids, self.counts[layer])
        if self.resident is not None:
            ops.call(self._ask[layer], ids)
        self._advise(ops, layer, ids)

    def chosen(self, ops: Any, layer: int, ids: np.ndarray, known: bool = False) -> None:
        """Count the experts ids (T, K) that tokens use in a layer, and begin to read them if enabled.

        known: whether ``ahead`` was already called with the same experts in this pass.
        """
        if self.resident is not None:
            ops.call(self._need[layer], ids, before=self._tables(layer, GATE_UP[0], DOWN[0]))
        if not known:
            ops.count(ids, self.counts[layer])
            self._advise(ops, layer, ids)

    def read(self, ops: Any, layer: int, ids: np.ndarray, parts: tuple[int, ...], after: Any) -> None:
        """Make the backend wait, after it has computed ``after``, until the matrices ``parts`` (``GATE_UP`` or
        ``DOWN``) of the experts ids (T, K) have been read."""
        if self.resident is not None:
            ops.call(self._wait[parts][layer], ids, after=(after,), before=self._tables(layer, *parts))

    def _tables(self, layer: int, *parts: int) -> list[np.ndarray]:
        assert self.resident is not None
        return [self.resident.tables[layer][part] for part in parts]

    def passing(self, decoded: int = 0, fresh: bool = False) -> AbstractContextManager[None]:
        """Return the context in which a pass must run (``ResidentExperts.passing``)."""
        return nullcontext() if self.resident is None else self.resident.passing(decoded, fresh)

    def close(self) -> None:
        """Close the cache of experts, if there is one."""
        if self.resident is not None:
            self.resident.close()

    def _advise(self, ops: Any, layer: int, ids: np.ndarray) -> None:
        if self.advise:
            w = self._layers[layer]
            for matrix in (w.ffn_gate_exps, w.ffn_up_exps, w.ffn_down_exps):
                ops.advise(ids, matrix)

    def summary(self, most: int = 16) -> dict[str, Any]:
        """Return, for reports, how often experts were chosen in total, how many different ones, and the ``most``
        frequent ones, each as [layer, expert, count]; and the figures of the cache of experts."""
        summary = summary_of(self._host(self.counts), most, self.advise)
        if self.resident is not None:
            return summary | {"cache": self.resident.summary()}
        return summary | {"cache": {"off": self.uncached}} if self.uncached else summary


def summary_of(counts: np.ndarray, most: int, advised: bool) -> dict[str, Any]:
    """Return ``ExpertUse.summary`` without the cache's figures, from counts of uses (layers, experts)."""
    order = np.argsort(-counts, axis=None, kind="stable")[:most]
    hottest = [[int(i // counts.shape[1]), int(i % counts.shape[1])] for i in order]
    return {
        "choices": int(counts.sum()),
        "experts_used": int(np.count_nonzero(counts)),
        "experts": counts.size,
        "hottest": [[*place, int(counts[*place])] for place in hottest if counts[*place]],
        "advised": advised,
    }


def _waiting(resident: ResidentExperts, layer: int, parts: tuple[int, ...]) -> Any:
    return lambda ids: resident.wait(layer, parts)


def can_cache(source: Any, weights: Any, ops: Any) -> str:
    """Return the reason why a model cannot be run with a cache of experts; "" if it can."""
    layers = [w for w in weights.layers if getattr(w, "ffn_gate_exps", None) is not None]
    if not layers:
        return "it has no routed experts"
    if len(layers) < len(weights.layers):
        return "not all of its layers have routed experts"
    if not hasattr(ops, "scattered"):
        return f"backend {ops.name} has no cache of experts"
    matrices = [matrix for w in layers for matrix in _matrices(w)]
    if not all(isinstance(matrix.data, np.ndarray) for matrix in matrices) or not isinstance(source, GGUFFile):
        return "its experts do not lie in GGUF files"
    return ""


def _matrices(w: Any) -> list[Any]:
    return [getattr(w, f"ffn_{part}_exps") for part in PARTS]


def dense_bytes(source: Any) -> int:
    """Return the bytes of all tensors of a model file except its routed experts."""
    return sum(info.nbytes for name, info in source.tensors.items() if "_exps." not in name)


def cached(source: Any, weights: Any, ops: Any, budget: int, used: int) -> tuple[Any, ResidentExperts]:
    """Return a copy of the weights whose routed experts go through a cache of ``budget`` bytes, and this cache.

    used: number of experts that a token uses in a layer.
    Raise BackendError if the model cannot be run with a cache (``can_cache``) or there is not enough memory, UsageError
    if the budget is too small for the experts of one token, ModelFileError if the file cannot be read.
    """
    reason = can_cache(source, weights, ops)
    if reason:
        raise BackendError(f"no cache of experts for {source.path}: {reason}")
    stacks = [
        [
            Stack(matrix.rows * matrix.row_bytes, info.offset, matrix.data.ctypes.data, info.part)
            for part, matrix in zip(PARTS, _matrices(w), strict=True)
            for info in [source.tensors[f"blk.{layer}.ffn_{part}_exps.weight"]]
        ]
        for layer, w in enumerate(weights.layers)
    ]
    experts = weights.layers[0].ffn_gate_exps.experts
    resident = ResidentExperts(source.paths, source.size, stacks, experts, budget, used)
    layers = [
        replace(
            w,
            **{
                f"ffn_{part}_exps": ops.scattered(matrix, table)
                for part, matrix, table in zip(PARTS, _matrices(w), tables, strict=True)
            },
        )
        for w, tables in zip(weights.layers, resident.tables, strict=True)
    ]
    return replace(weights, layers=layers), resident
