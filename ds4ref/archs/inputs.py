"""Inputs of a chunk of tokens, for every family: token ids and all values derived from their positions.

These values reach the ops in small arrays, the *inputs* of the chunk, so that a recorded pass serves another token
after ``move`` refills the arrays.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np

if TYPE_CHECKING:
    from .steering import Directions

Values = tuple[np.ndarray, ...]
Compute = Callable[[Any], Values]
"""Function from a chunk to the values of one of its inputs.

It must not hold a reference to the chunk: the cycle would keep the chunk's GPU arrays until the garbage collector runs.
"""


class Inputs:
    """Base of chunks: tokens ids (T,) at positions pos0 .. pos0 + T - 1, and hooks on their intermediates.

    A chunk may hold the tokens of several sequences, each a chunk of its own, one of ``members``; ``pos0`` is then the
    first one's. ``ops`` may be a recording; the input arrays are allocated by the model's own backend.
    """

    layer: int
    numerics: Any
    positions: np.ndarray

    def __init__(
        self, model: Any, ids: Sequence[int] | np.ndarray, pos0: int, hooks: Any, ops: Any, members: Sequence[Self] = ()
    ):
        self.ops: Any = model.ops if ops is None else ops
        self.hooks: Any = hooks
        self.steering: Directions | None = model.steering
        self.members = tuple(members)
        self._inputs: dict[Hashable, tuple[Values, Compute]] = {}
        self._fill, self._upload = model.ops.fill, model.ops.upload
        self.ids = self._upload(np.array(ids, np.int32))
        self._stand(pos0)

    def _stand(self, pos0: int) -> None:
        self.pos0 = pos0
        if self.members:
            self.positions = np.concatenate([member.positions for member in self.members])
        else:
            self.positions = np.arange(pos0, pos0 + len(self.ids))

    def move(self, ids: np.ndarray | Sequence[int] | int, pos0: int) -> None:
        """Refill the input arrays in place for T other tokens, ``ids``, at positions from ``pos0`` on."""
        fill = self._fill
        fill(self.ids, ids)
        self._stand(pos0)
        for arrays, compute in self._inputs.values():
            for array, values in zip(arrays, compute(self), strict=True):
                fill(array, values)

    def move_sequences(self, tokens: Sequence[Sequence[int]], starts: Sequence[int]) -> None:
        """Do as ``move`` for a chunk of one or more sequences: their tokens, as many as before, and first positions."""
        for member, ids, pos0 in zip(self.members, tokens, starts, strict=len(self.members) > 0):
            member.move(ids, pos0)
        self.move([token for ids in tokens for token in ids], starts[0])

    def sequences(self) -> list[tuple[Self, slice | None]]:
        """Return the sequences of the chunk, each as a chunk of its own, and the places of its tokens among all (None:
        all of them)."""
        if not self.members:
            return [(self, None)]
        ends = np.cumsum([len(member.ids) for member in self.members]).tolist()
        return [(member, slice(end - len(member.ids), end)) for member, end in zip(self.members, ends, strict=True)]

    def input(self, key: Hashable, compute: Compute) -> Values:
        """Return the arrays of the input named ``key``, computed by ``compute(chunk)`` on first use and refilled by
        ``move``."""
        if key not in self._inputs:
            # copies: uploaded arrays may be the very ones, and these will be overwritten
            self._inputs[key] = tuple(self._upload(values.copy()) for values in compute(self)), compute
        return self._inputs[key][0]

    def arrays(self) -> list[np.ndarray]:
        """Return the arrays that ``move`` refills: token ids first, then in the order in which the pass first used
        them; then those of the members."""
        own = [self.ids, *(array for arrays, _ in self._inputs.values() for array in arrays)]
        return own + [array for member in self.members for array in member.arrays()]

    def leave(self) -> Self:
        """Drop references to ops after a pass, keeping only the inputs, and return the chunk."""
        self.ops = None
        for member in self.members:
            member.leave()
        return self

    def copy(self) -> Self:
        """Return a chunk with the same inputs in new arrays, to be filled by ``move``; ``leave`` must have been
        called."""
        other = copy.copy(self)
        other.members = tuple(member.copy() for member in self.members)
        other.ids = self._upload(np.zeros(len(self.positions), np.int32))
        other._inputs = {
            key: (tuple(self._upload(values.copy()) for values in compute(self)), compute)
            for key, (_, compute) in self._inputs.items()
        }
        return other

    def tap(self, name: str, value: Any) -> Any:
        """Pass an intermediate to the hooks and return the value to continue with (unchanged without hooks)."""
        return value if self.hooks is None else self.hooks.tap(name, self.layer, value, self)

    def steer(self, half: str, y: np.ndarray) -> np.ndarray:
        """Return what half of the current layer ("attn" or "ffn") adds, y (T, D), steered if the model is."""
        return y if self.steering is None else self.steering.steer(self.ops, half, self.layer, y)

    def store(self, rows: np.ndarray) -> np.ndarray:
        """Round rows (T, n) to binary16 before they are cached, if the mode does."""
        return self.ops.round_f16(rows) if self.numerics.kv_f16 else rows


def of_sequence(values: Any, places: slice | None) -> Any:
    """Return the values of a sequence's tokens, given its places among those of all (``Inputs.sequences``)."""
    return values if places is None else values[places]


def into_part(joined: Any, places: slice | None) -> dict[str, Any]:
    """Return the argument by which an op writes a sequence's part of the array ``joined``; none if that is None."""
    return {} if joined is None else {"into": joined[places]}


def blank(count: int) -> list[int]:
    """Return ids for ``count`` tokens to record a pass with, to be replaced by ``move``."""
    return [0] * count
