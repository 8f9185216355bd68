"""Base class of every family's RoPE tables (cos and sin of the rotation angles of positions)."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

PAGE = 64
"""Number of neighbouring positions whose angles are computed together when a single position is asked for (decode)."""


class Angles(ABC):
    """cos and sin of the rope angles of positions; a subclass per family computes the angles."""

    def __init__(self) -> None:
        self._page: tuple[int, np.ndarray, np.ndarray] = (-1, np.empty(0), np.empty(0))

    def __call__(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return cos and sin, float32 (T, pairs of channels), of positions int (T,).

        A single position is looked up in a table of ``PAGE`` neighbouring positions, which is kept.
        """
        if len(positions) != 1:
            return self.compute(positions)
        number, at = divmod(int(positions[0]), PAGE)
        known, cos, sin = self._page
        if known != number:  # keep the neighbours too: the next token asks for the next position
            cos, sin = self.compute(np.arange(number * PAGE, (number + 1) * PAGE))
            self._page = number, cos, sin
        return cos[at : at + 1], sin[at : at + 1]

    @abstractmethod
    def compute(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Compute cos and sin, float32 (T, pairs of channels), of positions int (T,)."""
