"""Which routed experts are in memory: a limited number of places (slots that hold one expert each), and which expert
is replaced when a new one needs a place.

Layers whose experts have the same size share a pool of places; a file of mixed precision has several pools. Each pool
gets a share of the memory budget in proportion to the bytes of all experts of its layers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

NOWHERE = -1
HALVING = 16
"""Decoded tokens after which all counts of uses are halved. A pass counts as one token, however many sessions and
drafted tokens share it."""
_HOT = 1 << 40
"""Factor of the count of uses in an expert's worth: larger than any time of last use, which only decides ties."""


class Fading:
    """Ranks experts by how much they are worth keeping in memory: the least used one is replaced first, where uses
    count half after each ``HALVING`` tokens; among equally used ones, the least recently used.

    A new prompt, in any session, resets all counts, so that experts of earlier texts do not stay for long.
    """

    def __init__(self, layers: int, experts: int):
        self.last, self.hotness = np.zeros((layers, experts), np.int64), np.zeros((layers, experts), np.int64)
        self._now = self._since = 0

    def used(self, layer: int, ids: np.ndarray) -> None:
        """Count uses of the experts ``ids`` of a layer; an id that occurs twice counts twice."""
        self._now += 1
        self.last[layer, ids] = self._now
        np.add.at(self.hotness[layer], ids, 1)

    def decoded(self, tokens: int) -> None:
        """Count decoded tokens, and halve the counts of uses after every ``HALVING`` of them."""
        self._since += tokens
        while self._since >= HALVING:
            self._since -= HALVING
            self.hotness >>= 1

    def new_prompt(self) -> None:
        """Reset the counts of uses."""
        self.hotness[:] = 0
        self._since = 0

    def worth(self, layers: np.ndarray) -> np.ndarray:
        """Return how much the experts of some layers are worth keeping, int64 (layers, experts): higher for more uses,
        and among equal counts for more recent use."""
        return np.minimum(self.hotness[layers], _HOT >> 20) * _HOT + self.last[layers]


class Move(NamedTuple):
    """An expert that was given a place in memory, and the (layer, expert) that it replaces there (None: the place was
    free)."""

    layer: int
    expert: int
    place: int
    victim: tuple[int, int] | None


class Pool:
    """A number of ``places`` of ``size`` bytes each, for the experts of ``layers``; ``free`` lists the unused ones."""

    def __init__(self, size: int, layers: Sequence[int], places: int):
        self.size, self.layers, self.places = size, np.array(layers), places
        self.free = list(range(places))[::-1]


class Contents:
    """Bookkeeping of which experts are in memory, and at which place; it reads and copies nothing.

    sizes    bytes of one expert, for each layer
    experts  number of experts of a layer
    budget   bytes of memory for all places
    order    decides which expert is replaced
    """

    def __init__(self, sizes: Sequence[int], experts: int, budget: int, order: Fading):
        self.order = order
        self.place = np.full((len(sizes), experts), NOWHERE, np.int64)
        """Number of each expert's place in the pool of its layer, int64 (layers, experts); ``NOWHERE`` if it is not in
        memory."""
        total = sum(sizes) * experts
        self.pools: list[Pool] = []
        for size in sorted(set(sizes)):
            layers = [layer for layer, own in enumerate(sizes) if own == size]
            all_of_them = len(layers) * experts
            places = min(all_of_them, int(budget * (all_of_them * size / total)) // size) if total else 0
            self.pools.append(Pool(size, layers, places))
        self._pool = {layer: pool for pool in self.pools for layer in pool.layers.tolist()}

    def pool(self, layer: int) -> Pool:
        """Return the pool that holds the experts of a layer."""
        return self._pool[layer]

    def present(self, layer: int, ids: np.ndarray) -> np.ndarray:
        """Return which of the experts ``ids`` of a layer have a place, bool in the shape of ``ids``."""
        return self.place[layer, ids] != NOWHERE

    def admit(self, layer: int, experts: Iterable[int], kept: np.ndarray, evict: bool = True) -> list[Move]:
        """Give a place to each of ``experts`` that has none, until no place is left; return the assignments made.

        kept   bool (layers, experts): experts that must not be replaced
        evict  whether experts that are worth less may be replaced; False: only free places are used
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
                    # experts without a place and those that must stay get the highest worth: reaching one ends the loop
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
