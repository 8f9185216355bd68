"""Which experts of a model have a slot in device memory, and which get one next: policy only, no device.

A layer has ``slots`` slots, each for one expert with all its matrices. ``hot`` counts the uses of every expert; all
counts of a layer are halved after every SHIFT tokens, so that what was wanted long ago is forgotten. An expert without
a slot that is hotter by MARGIN than the coldest one that has a slot takes its place. ``benchmarks.expert_cache``
replays routing traces on this class, beside other policies.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

SHIFT = 16
"""Tokens after which counts are halved."""
MARGIN = 2
"""Uses by which an expert must be hotter than the one whose slot it takes: with 1, two that are used in turn would
push each other out."""
NOBODY = -1
BUSY = np.int32(1 << 30)


class Move(NamedTuple):
    """An expert of a layer that is to be copied into a slot."""

    layer: int
    expert: int
    slot: int


class Residency:
    """Slots of all layers.

    slot_of    int32 (layers, experts): the slot whose bytes are the expert's, NOBODY if there is none
    expert_in  int32 (layers, slots): the expert in a slot, NOBODY if it is free
    hot        int32 (layers, experts)
    coming     moves that were chosen and have not arrived; their slots are nobody's
    """

    def __init__(self, layers: int, experts: int, slots: int):
        self.slots = slots
        self.slot_of = np.full((layers, experts), NOBODY, np.int32)
        self.expert_in = np.full((layers, slots), NOBODY, np.int32)
        self.hot = np.zeros((layers, experts), np.int32)
        self.coming: list[Move] = []
        self.hits = self.misses = 0
        self._since = np.zeros(layers, np.int32)

    def fill(self) -> None:
        """Give the slots to the first experts of every layer, before anything is known."""
        self.expert_in[:] = np.arange(self.slots)
        self.slot_of[:, : self.slots] = np.arange(self.slots)

    def used(self, counts: np.ndarray, layer: int | None = None) -> None:
        """Note the uses of a token: counts (layers, experts), or (experts,) of one layer."""
        rows = slice(None) if layer is None else slice(layer, layer + 1)
        counts = counts.reshape(-1, self.hot.shape[1])
        chosen = counts > 0
        there = int(np.count_nonzero(chosen & (self.slot_of[rows] >= 0)))
        self.hits, self.misses = self.hits + there, self.misses + int(np.count_nonzero(chosen)) - there
        self.hot[rows] += counts.astype(np.int32)
        self._since[rows] += 1
        full = self._since[rows] == SHIFT
        if full.any():
            self.hot[rows][full] >>= 1
            self._since[rows][full] = 0

    def prompted(self, layer: int, counts: np.ndarray, tokens: int) -> None:
        """Forget a layer's counts for those of a prompt's chunk, as if its tokens had come at this rate for ever."""
        self.hot[layer] = counts * (2 * SHIFT) // max(1, tokens)
        self._since[layer] = 0

    def choose(self, most: int) -> list[Move]:
        """Choose at most one move a layer, at most ``most``, where they pay most. Victims lose their slots at once;
        the moves are ``coming`` until ``arrived``."""
        wanted, heat = np.where(self.slot_of >= 0, NOBODY, self.hot), self._heat()
        for move in self.coming:
            wanted[move.layer, move.expert] = NOBODY
        layers = np.arange(len(self.hot))
        experts, slots = wanted.argmax(1), heat.argmin(1)
        gain = wanted[layers, experts] - heat[layers, slots]
        order = np.argsort(-gain, kind="stable")[:most]
        return [self._move(int(n), int(experts[n]), int(slots[n])) for n in order if gain[n] >= MARGIN]

    def settle(self, layer: int) -> list[Move]:
        """Choose all moves of a layer that pay."""
        moves = []
        wanted, heat = np.where(self.slot_of[layer] >= 0, NOBODY, self.hot[layer]), self._heat()[layer]
        for move in self.coming:
            if move.layer == layer:
                wanted[move.expert] = NOBODY
        for expert, slot in zip(np.argsort(-wanted, kind="stable"), np.argsort(heat, kind="stable"), strict=False):
            if wanted[expert] - heat[slot] < MARGIN:
                break
            moves.append(self._move(layer, int(expert), int(slot)))
        return moves

    def make_room(self, layer: int, experts: np.ndarray) -> list[Move]:
        """Choose the moves that bring ``experts`` (distinct, at most ``slots``) into slots: the coldest of the others
        go."""
        missing = experts[self.slot_of[layer, experts] < 0]
        if not len(missing):
            return []
        heat = self._heat()[layer]
        heat[self.slot_of[layer, experts[self.slot_of[layer, experts] >= 0]]] = BUSY  # wanted now
        return [
            self._move(layer, int(expert), int(slot))
            for expert, slot in zip(missing, np.argsort(heat, kind="stable"), strict=False)
        ]

    def _heat(self) -> np.ndarray:
        """Counts of the experts in slots (layers, slots): of a free one NOBODY, of one to which a move is coming
        BUSY."""
        heat = np.where(self.expert_in < 0, NOBODY, np.take_along_axis(self.hot, np.maximum(self.expert_in, 0), 1))
        for move in self.coming:
            heat[move.layer, move.slot] = BUSY
        return heat

    def _move(self, layer: int, expert: int, slot: int) -> Move:
        old = self.expert_in[layer, slot]
        if old >= 0 and self.slot_of[layer, old] == slot:
            self.slot_of[layer, old] = NOBODY
        self.expert_in[layer, slot] = NOBODY
        # last: whatever interrupts this before, the slot is nobody's, and free
        self.coming.append(Move(layer, expert, slot))
        return self.coming[-1]

    def arrived(self, moves: list[Move]) -> None:
        """Hand slots over to those whose bytes are there."""
        for layer, expert, slot in moves:
            self.expert_in[layer, slot], self.slot_of[layer, expert] = expert, slot
        self.coming = [move for move in self.coming if move not in moves]
