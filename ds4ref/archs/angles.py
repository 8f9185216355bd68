"""Rope tables by position: what every family's ``RopeTables`` are asked for."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

PAGE = 64
"""Positions whose angles are computed together when they are asked for one by one."""


class Angles(ABC):
    """cos and sin of positions; a family says how they are computed."""

    def __init__(self) -> None:
        self._page: tuple[int, np.ndarray, np.ndarray] = (-1, np.empty(0), np.empty(0))

    def __call__(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """positions int (T,) -> cos, sin float32 (T, pairs)."""
        if len(positions) != 1:
            return self.compute(positions)
        number, at = divmod(int(positions[0]), PAGE)
        known, cos, sin = self._page
        if known != number:  # neighbours are kept, because the next token asks for one
            cos, sin = self.compute(np.arange(number * PAGE, (number + 1) * PAGE))
            self._page = number, cos, sin
        return cos[at : at + 1], sin[at : at + 1]

    @abstractmethod
    def compute(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The same for any number of positions."""
