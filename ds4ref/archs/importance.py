"""Importance of weights (llama.cpp's imatrix): for each column of a matrix, the mean square of the values that it
multiplies, collected while a text runs through the model.

A matrix gets one vector of sums; a tensor of routed experts one per expert, over the tokens routed to it. The inputs of
the experts' down projections are already multiplied by the routing weight. Matrices with the same input have the same
sums.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np


class Collector:
    """Hooks that sum the squares of the inputs of every layer's matrices, for importance-weighted quantization.

    sums    tensor name -> sums of squares, float64 (vectors, cols), and the number of inputs summed in each row,
            (vectors,)
    routes  number of (token, expert) routes so far
    """

    def __init__(self, readers: Mapping[str, Iterable[str]], slots: Iterable[Any], experts: int):
        """Collect for the tensors of ``slots``.

        readers: intermediate -> matrices that it is the input of. experts: number of routed experts of a layer.
        """
        self.sums: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        self.routes = 0
        self._readers, self._cols, self._experts = readers, {slot.name: slot.dims[0] for slot in slots}, experts
        self._entering = self._ids = np.empty(0)

    def begin(self, chunk: Any) -> None:
        """Do nothing."""

    def tap(self, name: str, layer: int, value: Any, chunk: Any) -> Any:
        """Add the squares of an intermediate to the sums of the matrices that it is the input of; return it
        unchanged."""
        for reader in self._readers.get(name, ()):
            tensor = f"blk.{layer}.{reader}.weight"
            if tensor in self._cols:
                self.add(tensor, value.reshape(-1, self._cols[tensor]))
        if name == "ffn_norm":
            self._entering = np.asarray(value)
        elif name == "ffn_moe_topk":
            self._ids = np.asarray(value)
            self.routes += self._ids.size
            for part in ("gate", "up"):
                self._routed(layer, part, self._entering)
        elif name == "ffn_moe_weighted_swiglu":
            self._routed(layer, "down", np.asarray(value))
        return value

    def _routed(self, layer: int, part: str, rows: np.ndarray) -> None:
        """Add the squares of the inputs ``rows`` of a layer's experts: (T, cols) if a token's experts share one input,
        else (T, K, cols)."""
        for expert in np.unique(self._ids):
            taken = (self._ids == expert).any(axis=1) if rows.ndim == 2 else self._ids == expert
            self.add(f"blk.{layer}.ffn_{part}_exps.weight", rows[taken], self._experts, int(expert))

    def add(self, name: str, rows: np.ndarray, vectors: int = 1, index: int = 0) -> None:
        """Add the squares of n inputs, ``rows`` (n, cols), of matrix number ``index`` of tensor ``name``, which has
        ``vectors`` matrices."""
        if name not in self.sums:
            self.sums[name] = np.zeros((vectors, rows.shape[-1])), np.zeros(vectors)
        squares, counts = self.sums[name]
        squares[index] += np.square(rows.astype(np.float64)).sum(axis=0)
        counts[index] += len(rows)
