"""Which expert leaves when another one needs its place: an order of all experts by how much they are worth keeping."""

from __future__ import annotations

from typing import Protocol

import numpy as np

HALVING = 16
"""Decoded tokens after which hotness is halved. A pass counts as one, however many sessions and drafts share it."""

_HOT = 1 << 40
"""Worth of one use against recency: more than the number of uses of a process's life."""


class Order(Protocol):
    """An order of experts. ``worth`` int64 (layers, experts): those with the lowest leave first."""

    def used(self, layer: int, ids: np.ndarray) -> None:
        """Note that experts ``ids`` of a layer are used, each as often as it occurs."""

    def decoded(self, tokens: int) -> None:
        """Note that so many tokens have been decoded."""

    def new_prompt(self) -> None:
        """Note that what follows has nothing to do with what was used before."""

    def worth(self, layers: np.ndarray) -> np.ndarray:
        """Return the worth of the experts of some layers."""


class Recent:
    """Least recently used leaves first."""

    def __init__(self, layers: int, experts: int):
        self.last = np.zeros((layers, experts), np.int64)
        self._now = 0

    def used(self, layer: int, ids: np.ndarray) -> None:
        """Note a use."""
        self._now += 1
        self.last[layer, ids] = self._now

    def decoded(self, tokens: int) -> None:
        """Do nothing: time passes with uses."""

    def new_prompt(self) -> None:
        """Do nothing: age goes on."""

    def worth(self, layers: np.ndarray) -> np.ndarray:
        """Return the time of the last use."""
        return self.last[layers]


class Fading(Recent):
    """Least used leaves first, where uses count half after ``HALVING`` tokens; of equals, the least recent one.

    A new prompt, of whichever session, resets all counts, so that what was hot before does not outlive its use. What
    other sessions use is counted anew from their next token.
    """

    def __init__(self, layers: int, experts: int):
        super().__init__(layers, experts)
        self.hotness = np.zeros((layers, experts), np.int64)
        self._since = 0

    def used(self, layer: int, ids: np.ndarray) -> None:
        """Count each use."""
        super().used(layer, ids)
        np.add.at(self.hotness[layer], ids, 1)

    def decoded(self, tokens: int) -> None:
        """Halve the counts once in ``HALVING`` tokens."""
        self._since += tokens
        while self._since >= HALVING:
            self._since -= HALVING
            self.hotness >>= 1

    def new_prompt(self) -> None:
        """Reset the counts."""
        self.hotness[:] = 0
        self._since = 0

    def worth(self, layers: np.ndarray) -> np.ndarray:
        """Return the count, then the time of the last use."""
        return np.minimum(self.hotness[layers], _HOT >> 20) * _HOT + self.last[layers]
