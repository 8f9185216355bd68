"""Sums of squares by tensor, the base of every family's importance collector (``archs.Collector``)."""

from __future__ import annotations

import numpy as np


class Sums:
    """Running sums of squares, ``sums``: tensor name -> float64 (vectors, cols) and counts (vectors,); see
    ``archs.Collector``."""

    def __init__(self) -> None:
        self.sums: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        self.routes = 0

    def routed(self, layer: int, part: str, experts: int, ids: np.ndarray, rows: np.ndarray) -> None:
        """Add the inputs of a layer's experts to the sums of their matrix ``part`` ("gate", "up" or "down").

        experts  number of them
        ids      the experts that each token takes, (T, K)
        rows     the inputs, (T, cols) for all experts of a token, or (T, K, cols)
        """
        for expert in np.unique(ids):
            taken = (ids == expert).any(axis=1) if rows.ndim == 2 else ids == expert
            self.add(f"blk.{layer}.ffn_{part}_exps.weight", rows[taken], experts, int(expert))

    def add(self, name: str, rows: np.ndarray, vectors: int = 1, index: int = 0) -> None:
        """Add the squares of input ``rows`` (n, cols) of tensor ``name``.

        vectors  number of matrices in the tensor (experts), 1 for a plain matrix
        index    index of the matrix that multiplies these rows
        """
        if name not in self.sums:
            self.sums[name] = np.zeros((vectors, rows.shape[-1])), np.zeros(vectors)
        squares, counts = self.sums[name]
        squares[index] += np.square(rows.astype(np.float64)).sum(axis=0)
        counts[index] += len(rows)
