"""A chunk: the tokens that one pass computes together, with their positions, the current layer, and the roundings of
the numerics mode.

Values that depend on positions reach the ops as input arrays (``archs.inputs``). Decisions in Python that depend on
positions are in the chunk's ``plan``; passes with equal plans can replay the same recording.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np

from ds4ref.kernels.formats import FORMATS, Matrix

from ..inputs import Inputs
from .cache import LayerCache
from .hooks import Hooks
from .shape import CSA, HCA, ModelShape
from .weights import LayerWeights

LASTING = 1 << 14
"""Minimum number of indexer rows that a recorded pass scores, even if fewer are filled.

Scoring empty rows costs no measurable time; recording again at every power of two below this number would.
"""

HEAD = -1
"""Layer number that hooks get for intermediates of the output head."""


class Plan(NamedTuple):
    """Decisions of a pass that follow from the positions of its tokens.

    closing  compression ratio (4, 128) -> number of compression windows that the chunk completes
    scored   number of indexer rows to score; 0 while there are so few rows that all of them are selected
    """

    closing: dict[int, int]
    scored: int

    @property
    def key(self) -> tuple[int, ...]:
        """Return a tuple that is equal for plans whose passes run the same ops."""
        return *self.closing.values(), self.scored


def plan(shape: ModelShape, pos0: int, count: int, most: int = 0) -> Plan:
    """Return the plan of a pass of ``count`` tokens, the first one at position ``pos0``.

    most: if not 0, the number of scored rows is rounded up to a power of two, at least ``LASTING`` and at most
    ``most``, so that one recording can be replayed at many positions.
    """
    end = pos0 + count
    rows = end // CSA
    if rows <= shape.index_topk:
        rows = 0
    elif most:
        rows = min(max(LASTING, 1 << (rows - 1).bit_length()), most)
    return Plan({ratio: end // ratio - pos0 // ratio for ratio in (CSA, HCA)}, rows)


class Chunk(Inputs):
    """The tokens ids (T,) of one pass, at positions pos0 .. pos0 + T - 1.

    ``at_layer`` sets ``layer``, ``ratio``, ``w`` (weights) and ``cache`` to those of the current layer. A chunk of
    several sequences has no plan and no cache of its own, but those of its ``members``, one chunk for each sequence.
    """

    narrowed = False
    """Whether the current layer scores only rows of candidate blocks (V4.1)."""
    layer: int
    ratio: int
    w: LayerWeights
    cache: LayerCache

    def __init__(
        self,
        model: Any,
        ids: Sequence[int] | np.ndarray,
        pos0: int,
        plan: Plan,
        hooks: Hooks | None = None,
        ops: Any = None,
        members: Sequence[Self] = (),
    ):
        super().__init__(model, ids, pos0, hooks, ops, members)
        self.shape, self.numerics, self.rope, self.experts = model.shape, model.numerics, model.rope, model.experts
        self.plan = plan
        self.given: dict[int, np.ndarray] = {}
        self.incoming: np.ndarray | None = None
        """What the preceding layers left (``forward.joined``), for a model that lacks the first layers."""
        if hooks is not None:
            hooks.begin(self)

    def at_layer(self, layer: int, w: Any, *caches: LayerCache) -> None:
        """Set the current layer: its number, its weights and its cache for each sequence."""
        self.layer, self.ratio, self.w = layer, self.shape.ratios[layer], w
        if self.members:
            for member, cache in zip(self.members, caches, strict=True):
                member.at_layer(layer, w, cache)
        else:
            (self.cache,) = caches

    def leave(self) -> Self:
        """Drop references to weights, cache and backend after a pass, keeping the inputs; return the chunk."""
        self.__dict__.pop("cache", None)
        del self.w
        self.given = {}
        return super().leave()

    @property
    def scored(self) -> int:
        """Return the number of indexer rows that the current layer scores; 0 while all are selected."""
        return self.plan.scored

    def parts(self, width: int, most: int) -> list[slice]:
        """Split the tokens into slices of at most ``most // width`` tokens, so that a temporary array of ``width``
        values per token has at most ``most`` values.

        With hooks there is a single slice, so that they see whole arrays.
        """
        size = len(self.ids) if self.hooks is not None else max(1, most // width)
        return [slice(i, i + size) for i in range(0, len(self.ids), size)]

    # --- inputs

    def at(self, ratio: int = 1) -> np.ndarray:
        """Return the number of the compression window that the first token is in, pos0 // ratio, as int64 (1,); for
        ratio 1 that is its position."""
        return self.input(("at", ratio), lambda c: (np.array([c.pos0 // ratio]),))[0]

    def rope_tables(
        self, compress: bool | None = None, positions: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return cos, sin (n, R/2) for RoPE at n ``positions``, by default those of the chunk's tokens.

        compress: whether to use the frequencies of layers with compression; None: those of the current layer.
        """
        compress = self.ratio != 0 if compress is None else compress
        if positions is not None:
            return self.rope[compress](positions)
        cos, sin = self.input(("rope", compress), lambda c: c.rope[compress](c.positions))
        return cos, sin

    def row_tables(self) -> tuple[np.ndarray, np.ndarray]:
        """Return cos, sin (n, R/2) for RoPE of the n compressed rows that the chunk completes: the position of a row is
        that of its window's first token."""
        ratio, n = self.ratio, self.plan.closing[self.ratio]
        cos, sin = self.input(
            ("rows", ratio), lambda c: c.rope[True]((c.pos0 // ratio + np.arange(n)) * ratio)
        )  # fmt: skip
        return cos, sin

    def raw_window(self) -> tuple[np.ndarray, np.ndarray]:
        """Return each token's sliding window: its first position and its length, int32 (T,) each."""

        def compute(c: Chunk) -> tuple[np.ndarray, np.ndarray]:
            first = np.maximum(c.positions - (c.shape.window - 1), 0)
            return first.astype(np.int32), (c.positions - first + 1).astype(np.int32)

        first, count = self.input("window", compute)
        return first, count

    def visible(self, ratio: int) -> np.ndarray:
        """Return how many compressed rows each token may attend to, int32 (T,): those up to the row whose window it
        completes."""
        return self.input(("visible", ratio), lambda c: (((c.positions + 1) // ratio).astype(np.int32),))[0]

    def no_rows(self) -> np.ndarray:
        """Return zeros int32 (T,): the number of compressed rows that tokens see in layers without compression."""
        return self.input("none", lambda c: (np.zeros(len(c.ids), np.int32),))[0]

    def rows(self, ratio: int) -> np.ndarray:
        """Return the number of compressed rows that exist after the chunk, int32 (1,)."""
        return self.input(("count", ratio), lambda c: (np.array([(c.pos0 + len(c.ids)) // ratio], np.int32),))[0]

    def state_before(self) -> tuple[np.ndarray, ...]:
        """Return what the preceding layers left: the residual streams (T, C, D)."""
        return self.input("state", lambda c: tuple(incoming(c)))

    # --- rounding

    def act(self, w: Matrix) -> str:
        """Return the format to which inputs of matrix ``w`` are rounded in this mode: the activation format of its
        storage format, or "float" for no rounding."""
        return FORMATS[w.fmt].activation if self.numerics.act_quant else "float"

    def kv_rounding(self, rows: np.ndarray) -> np.ndarray:
        """Return attention rows (n, hd), with the channels that RoPE does not rotate rounded to E4M3 (8-bit float) if
        the mode does so."""
        return self.ops.round_e4m3(rows, self.shape.plain_dim) if self.numerics.kv_fp8 else rows

    def row_rounding(self, rows: np.ndarray) -> np.ndarray:
        """Return compressed rows (n, hd), rounded as attention rows are."""
        return self.kv_rounding(rows)

    def index_rounding(self, v: np.ndarray) -> np.ndarray:
        """Return indexer vectors (..., index_dim), Hadamard-transformed and rounded to E2M1 (4-bit float) if the mode
        does so."""
        return self.ops.round_e2m1(self.ops.hadamard(v)) if self.numerics.indexer_qat else v


def incoming(c: Chunk, *more: int) -> list[np.ndarray]:
    """Return the arrays of the state that came from the preceding layers, float32: streams (T, C, D), and (T, n) for
    each n of ``more``; zeros while a pass is recorded."""
    tokens, ends = len(c.ids), np.cumsum([c.shape.hc * c.shape.dim, *more])
    state = np.zeros((tokens, ends[-1]), np.float32) if c.incoming is None else c.incoming
    streams, *others = np.split(state, ends[:-1], axis=1)
    return [streams.reshape(tokens, c.shape.hc, c.shape.dim), *others]
