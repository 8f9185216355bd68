"""Some consecutive layers of V4.1, on one of several machines.

Layers read compressed rows that an earlier one makes, and its choice among them. If that one is on another machine, its
attention input (T, D) comes with the streams, and its rows are made here again. Layer 0 of such a part holds only the
source's query projection, compressor and indexer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import attention
from .chunk import Chunk
from .forward import Model

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from .shape import ModelShape


class PartModel(Model):
    """The ``layers`` of a model of shape ``whole``."""

    def __init__(self, whole: ModelShape, layers: range, *more: Any):
        kept = whole.cached(layers)
        self.shared = len(kept) - len(layers)
        """Number of layers, 0 or 1, of which only the rows are made."""
        self.carries = next(map(kept.index, whole.needs(layers.stop)), None)
        """Layer whose attention input the next part needs; None: it needs none."""
        super().__init__(whole.part(layers), *more)

    def enter(self, c: Chunk, weights: Any = None) -> tuple[Any, ...]:
        """Return the state that enters the first layer."""
        return c.state_before(rows=True) if self.shared else super().enter(c, weights)

    def half_layer(self, c: Chunk, half: str, *state: Any) -> tuple[Any, ...]:
        """Run a half of the current layer; of a source on another machine only what its rows need. After the last layer
        the state has what the next part needs besides."""
        if self.shared and c.layer == 0:
            if half == "ffn":
                return state[:2]
            x = state[2]
            share = attention.rows_and_choice(c, x, attention.latent(c, x), c.rope_tables())
            for part, places in c.sequences():
                share(part, places)
            return state
        state = super().half_layer(c, half, *state)
        ends = half == "ffn" and c.layer == self.shape.n_layers - 1
        return (*state, c.carried) if ends and c.carried is not None else state

    def attend(self, c: Chunk, x: np.ndarray) -> np.ndarray:
        """Return the attention output (T, D), and keep the input if the next part needs it."""
        if c.layer == self.carries:
            c.carried = x
        return super().attend(c, x)

    def joined(self, state: Sequence[Any], incoming: np.ndarray | None = None) -> np.ndarray:
        """Return the state as one array on the host, with the source's attention input if the next part needs the same
        source."""
        if self.shared and self.carries == 0:
            assert incoming is not None
            state = [*state, incoming[:, -self.shape.dim :]]
        return super().joined(state)
