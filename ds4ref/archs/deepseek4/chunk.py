"""What every block needs to know about the tokens under way: who and where they are, which layer, how to round.

What depends on the position reaches the ops as ``Inputs``. Decisions that Python takes from the position are in the
chunk's ``plan``: a recording serves every token that has the same one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, Self

import numpy as np

from ds4ref.kernels.formats import FORMATS, Matrix
from ds4ref.kernels.ops import Backend

from ...numerics import Numerics
from ..inputs import Inputs
from .cache import LayerCache
from .experts import ExpertUse
from .hooks import Hooks
from .rope import RopeTables
from .shape import CSA, HCA, ModelShape
from .weights import LayerWeights

LASTING = 1 << 14
"""Indexer rows that a recording is made for at least: to pass over those that are not there yet costs nothing that can
be measured, to record anew at every power of two would be seen."""

HEAD = -1
"""Layer number under which the output head's intermediates are tapped."""


class Plan(NamedTuple):
    """Decisions of a pass that follow from where its tokens stand.

    closing  compression windows that end within the chunk, by ratio
    scored   indexer rows to score, 0 while all that are visible fit into the top k
    """

    closing: dict[int, int]
    scored: int

    @property
    def key(self) -> tuple[int, ...]:
        """Equal for plans that take the same path."""
        return *self.closing.values(), self.scored


def plan(shape: ModelShape, pos0: int, count: int, most: int = 0) -> Plan:
    """The plan of ``count`` tokens from position ``pos0`` on. ``most`` rounds the rows to score up to a power of two,
    at least ``LASTING``, but to no more than ``most``, so that a recording lasts."""
    end = pos0 + count
    rows = end // CSA
    if rows <= shape.index_topk:
        rows = 0
    elif most:
        rows = min(max(LASTING, 1 << (rows - 1).bit_length()), most)
    return Plan({ratio: end // ratio - pos0 // ratio for ratio in (CSA, HCA)}, rows)


class Parts(Protocol):
    """The parts of a model that its blocks read."""

    shape: ModelShape
    numerics: Numerics
    rope: dict[bool, RopeTables]
    experts: ExpertUse
    ops: Backend


class Chunk(Inputs):
    """Tokens ids (T,) at positions pos0 .. pos0 + T - 1 on their way through the model.

    ``at_layer`` says where they are: ``layer``, ``ratio``, ``w`` and ``cache`` are then those of the layer.
    """

    layer: int
    ratio: int
    w: LayerWeights
    cache: LayerCache

    def __init__(
        self,
        model: Parts,
        ids: Sequence[int] | np.ndarray,
        pos0: int,
        plan: Plan,
        hooks: Hooks | None = None,
        ops: Any = None,
    ):
        super().__init__(model, ids, pos0, hooks, ops)
        self.shape, self.numerics, self.rope, self.experts = model.shape, model.numerics, model.rope, model.experts
        self.plan = plan
        self.given: dict[int, np.ndarray] = {}
        if hooks is not None:
            hooks.begin(self)

    def at_layer(self, layer: int, w: LayerWeights, cache: LayerCache) -> None:
        """The tokens enter a layer."""
        self.layer, self.ratio, self.w, self.cache = layer, self.shape.ratios[layer], w, cache

    def leave(self) -> Self:
        """Return the chunk after its pass, with nothing of the pass left in it but the inputs."""
        del self.cache, self.w
        self.given = {}
        return super().leave()

    def parts(self, width: int, most: int) -> list[slice]:
        """The tokens in pieces such that an array of ``width`` values a token has at most ``most``; hooks see all."""
        size = len(self.ids) if self.hooks is not None else max(1, most // width)
        return [slice(i, i + size) for i in range(0, len(self.ids), size)]

    # --- inputs

    def at(self, ratio: int = 1) -> np.ndarray:
        """Position of the first token, counted in windows of ``ratio``: int64 (1,)."""
        return self.input(("at", ratio), lambda c: (np.array([c.pos0 // ratio]),))[0]

    def rope_tables(
        self, compress: bool | None = None, positions: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """cos, sin (n, R/2) at ``positions``, by default the chunk's own; of the layer's kind unless said otherwise."""
        compress = self.ratio != 0 if compress is None else compress
        if positions is not None:
            return self.rope[compress](positions)
        cos, sin = self.input(("rope", compress), lambda c: c.rope[compress](c.positions))
        return cos, sin

    def row_tables(self) -> tuple[np.ndarray, np.ndarray]:
        """cos, sin (n, R/2) of the compressed rows that the chunk closes: the positions where their windows begin."""
        ratio, n = self.ratio, self.plan.closing[self.ratio]
        cos, sin = self.input(
            ("rows", ratio), lambda c: c.rope[True]((c.pos0 // ratio + np.arange(n)) * ratio)
        )  # fmt: skip
        return cos, sin

    def raw_window(self) -> tuple[np.ndarray, np.ndarray]:
        """First position each token sees uncompressed and how many, int32 (T,) each."""

        def compute(c: Chunk) -> tuple[np.ndarray, np.ndarray]:
            first = np.maximum(c.positions - (c.shape.window - 1), 0)
            return first.astype(np.int32), (c.positions - first + 1).astype(np.int32)

        first, count = self.input("window", compute)
        return first, count

    def visible(self, ratio: int) -> np.ndarray:
        """Compressed rows each token may see, int32 (T,): a row is visible to the token that completes it."""
        return self.input(("visible", ratio), lambda c: (((c.positions + 1) // ratio).astype(np.int32),))[0]

    def no_rows(self) -> np.ndarray:
        """What ``visible`` is in layers without compression."""
        return self.input("none", lambda c: (np.zeros(len(c.ids), np.int32),))[0]

    def rows(self, ratio: int) -> np.ndarray:
        """Compressed rows there are after the chunk, int32 (1,)."""
        return self.input(("count", ratio), lambda c: (np.array([(c.pos0 + len(c.ids)) // ratio], np.int32),))[0]

    # --- rounding

    def act(self, w: Matrix) -> str:
        """Activation rounding before ``w`` in this mode."""
        return FORMATS[w.fmt].activation if self.numerics.act_quant else "float"

    def kv_rounding(self, rows: np.ndarray) -> np.ndarray:
        """E4M3 on the non-rotary channels of attention rows (n, hd), if the mode has it."""
        return self.ops.round_e4m3(rows, self.shape.plain_dim) if self.numerics.kv_fp8 else rows

    def index_rounding(self, v: np.ndarray) -> np.ndarray:
        """Hadamard then E2M1 on indexer vectors (..., index_dim), if the mode has it."""
        return self.ops.round_e2m1(self.ops.hadamard(v)) if self.numerics.indexer_qat else v
