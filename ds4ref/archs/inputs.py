"""Inputs of a chunk of tokens, for every family: token ids and all values derived from their positions.

Ops get these values in small arrays, the *inputs* of the chunk. So a recorded pass can be replayed for other tokens and
positions, once ``move`` has refilled the arrays.
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
"""Function that computes the values of one input from a chunk.

It must not hold a reference to the chunk: such a cycle would keep the chunk's GPU arrays alive until the garbage
collector runs.
"""


class Inputs:
    """Base of the families' chunks: the tokens ids (T,) that a pass computes together, at positions pos0 .. pos0+T-1.

    ops: the backend or a recording; None: the model's backend, which in any case allocates the input arrays. members:
    if the tokens are of several sequences, each sequence as a chunk of its own; ``pos0`` is then the first one's.
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
        """Refill the input arrays in place for T other tokens ``ids``, the first one at position ``pos0``."""
        fill = self._fill
        fill(self.ids, ids)
        self._stand(pos0)
        for arrays, compute in self._inputs.values():
            for array, values in zip(arrays, compute(self), strict=True):
                fill(array, values)

    def move_sequences(
        self, tokens: Sequence[Sequence[int]], starts: Sequence[int], caches: Sequence[Any] = ()
    ) -> None:
        """Refill the input arrays of a chunk of one or more sequences: for each its tokens, as many as before, the
        position of the first one, and its cache, for families whose inputs depend on earlier tokens."""
        for member, ids, pos0 in zip(self.members, tokens, starts, strict=len(self.members) > 0):
            member.move(ids, pos0)
        self.move([token for ids in tokens for token in ids], starts[0])

    def sequences(self) -> list[tuple[Self, slice | None]]:
        """Return each sequence of the chunk as a chunk of its own, with the slice of the chunk's tokens that belong to
        it (None if it is the only one)."""
        if not self.members:
            return [(self, None)]
        ends = np.cumsum([len(member.ids) for member in self.members]).tolist()
        return [(member, slice(end - len(member.ids), end)) for member, end in zip(self.members, ends, strict=True)]

    def input(self, key: Hashable, compute: Compute) -> Values:
        """Return the arrays of the input named ``key``, computed by ``compute(chunk)`` on first use and refilled by
        ``move``."""
        if key not in self._inputs:
            # copies, because ``upload`` may return the same array, and ``move`` overwrites it
            self._inputs[key] = tuple(self._upload(values.copy()) for values in compute(self)), compute
        return self._inputs[key][0]

    def arrays(self) -> list[np.ndarray]:
        """Return the arrays that ``move`` refills: token ids, the other inputs in the order of their first use in the
        pass, then those of the members."""
        own = [self.ids, *(array for arrays, _ in self._inputs.values() for array in arrays)]
        return own + [array for member in self.members for array in member.arrays()]

    def leave(self) -> Self:
        """Drop the reference to the backend or recording after a pass, keeping the inputs; return the chunk."""
        self.ops = None
        for member in self.members:
            member.leave()
        return self

    def copy(self) -> Self:
        """Return a chunk with new arrays for the same inputs, to be filled by ``move``; call ``leave`` first."""
        other = copy.copy(self)
        other.members = tuple(member.copy() for member in self.members)
        other.ids = self._upload(np.zeros(len(self.positions), np.int32))
        other._inputs = {
            key: (tuple(self._upload(values.copy()) for values in compute(self)), compute)
            for key, (_, compute) in self._inputs.items()
        }
        return other

    def tap(self, name: str, value: Any) -> Any:
        """Pass the intermediate ``name`` to the hooks and return the value to continue with (unchanged without
        hooks)."""
        return value if self.hooks is None else self.hooks.tap(name, self.layer, value, self)

    def steer(self, half: str, y: np.ndarray) -> np.ndarray:
        """Return y (T, D), the output of the current layer's attention or FFN ("attn" or "ffn"), with steering applied
        if the model has any."""
        return y if self.steering is None else self.steering.steer(self.ops, half, self.layer, y)

    def store(self, rows: np.ndarray) -> np.ndarray:
        """Return cache rows (T, n), rounded to float16 if the numerics mode does so."""
        return self.ops.round_f16(rows) if self.numerics.kv_f16 else rows


def of_sequence(values: Any, places: slice | None) -> Any:
    """Return the part of an array that belongs to one sequence's tokens; ``places``: from ``Inputs.sequences``."""
    return values if places is None else values[places]


def into_part(joined: Any, places: slice | None) -> dict[str, Any]:
    """Return the keyword argument that makes an op write its result into one sequence's part of the array ``joined``,
    {} if ``joined`` is None; ``places``: from ``Inputs.sequences``."""
    return {} if joined is None else {"into": joined[places]}


def blank(count: int) -> list[int]:
    """Return placeholder ids for ``count`` tokens, to record a pass with; ``move`` replaces them before each replay."""
    return [0] * count
