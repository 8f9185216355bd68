"""Which experts are in memory: places for them within a budget of bytes, and who makes room for whom.

Layers whose experts are of one size share a pool of places; a file of mixed precision has several pools. A pool's part
of the budget is its layers' part of all experts' bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

NOWHERE = -1
HALVING = 16
"""Decoded tokens after which hotness is halved. A pass counts as one, however many sessions and drafts share it."""
_HOT = 1 << 40
"""Worth of one use against recency: more than the number of uses of a process's life."""


class Fading:
    """An order of experts by how much they are worth keeping: least used leaves first, where uses count half after
    ``HALVING`` tokens; of equals, the least recent one.

    A new prompt, of whichever session, resets all counts, so that what was hot before does not outlive its use. What
    other sessions use is counted anew from their next token.
    """

    def __init__(self, layers: int, experts: int):
        self.last, self.hotness = np.zeros((layers, experts), np.int64), np.zeros((layers, experts), np.int64)
        self._now = self._since = 0

    def used(self, layer: int, ids: np.ndarray) -> None:
        """Note that experts ``ids`` of a layer are used, each as often as it occurs."""
        self._now += 1
        self.last[layer, ids] = self._now
        np.add.at(self.hotness[layer], ids, 1)

    def decoded(self, tokens: int) -> None:
        """Halve the counts once in ``HALVING`` decoded tokens."""
        self._since += tokens
        while self._since >= HALVING:
            self._since -= HALVING
            self.hotness >>= 1

    def new_prompt(self) -> None:
        """Reset the counts."""
        self.hotness[:] = 0
        self._since = 0

    def worth(self, layers: np.ndarray) -> np.ndarray:
        """Return the worth of the experts of some layers, int64 (layers, experts): the count, then the time of the last
        use."""
        return np.minimum(self.hotness[layers], _HOT >> 20) * _HOT + self.last[layers]


class Move(NamedTuple):
    """An expert that gets a place, and the (layer, expert) that had it before (None: the place was free)."""

    layer: int
    expert: int
    place: int
    victim: tuple[int, int] | None


class Pool:
    """Places for experts of ``size`` bytes each, those of ``layers``."""

    def __init__(self, size: int, layers: Sequence[int], places: int):
        self.size, self.layers, self.places = size, np.array(layers), places
        self.free = list(range(places))[::-1]


class Contents:
    """The experts in memory.

    sizes    bytes of an expert, by layer
    experts  number of experts of a layer
    budget   bytes to fill
    order    decides who leaves
    """

    def __init__(self, sizes: Sequence[int], experts: int, budget: int, order: Fading):
        self.order = order
        self.place = np.full((len(sizes), experts), NOWHERE, np.int64)
        """Number of each expert's place in the pool of its layer, int64 (layers, experts), ``NOWHERE`` without one."""
        total = sum(sizes) * experts
        self.pools: list[Pool] = []
        for size in sorted(set(sizes)):
            layers = [layer for layer, own in enumerate(sizes) if own == size]
            all_of_them = len(layers) * experts
            places = min(all_of_them, int(budget * (all_of_them * size / total)) // size) if total else 0
            self.pools.append(Pool(size, layers, places))
        self._pool = {layer: pool for pool in self.pools for layer in pool.layers.tolist()}

    def pool(self, layer: int) -> Pool:
        """Return the pool of a layer."""
        return self._pool[layer]

    def present(self, layer: int, ids: np.ndarray) -> np.ndarray:
        """Return whether each expert of a layer has a place, bool like ``ids``."""
        return self.place[layer, ids] != NOWHERE

    def admit(self, layer: int, experts: Iterable[int], kept: np.ndarray, evict: bool = True) -> list[Move]:
        """Give places to those of ``experts`` that have none, as far as there are any; return what moved.

        kept   bool (layers, experts): these stay where they are
        evict  also take places of others, the least worth first, not only free ones
        """
        pool, moves = self._pool[layer], []
        wanted = [expert for expert in experts if self.place[layer, expert] == NOWHERE]
        leaving = None
        for expert in wanted:
            victim = None
            if pool.free:
                place = pool.free.pop()
            else:
                if not evict:
                    break
                if leaving is None:
                    stays = (self.place[pool.layers] == NOWHERE) | kept[pool.layers]
                    # those without a place and those that stay come last, and end the search
                    leaving = np.where(stays, np.iinfo(np.int64).max, self.order.worth(pool.layers)).ravel()
                at = int(leaving.argmin())
                if leaving[at] == np.iinfo(np.int64).max:
                    break
                leaving[at] = np.iinfo(np.int64).max
                row, other = divmod(at, self.place.shape[1])
                victim = int(pool.layers[row]), other
                place = int(self.place[victim])
                self.place[victim] = NOWHERE
            self.place[layer, expert] = place
            moves.append(Move(layer, expert, place, victim))
        return moves

    def drop(self, layer: int, expert: int) -> None:
        """Free the place of an expert that has one."""
        self._pool[layer].free.append(int(self.place[layer, expert]))
        self.place[layer, expert] = NOWHERE
