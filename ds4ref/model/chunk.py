"""What every block needs to know about the tokens under way: who and where they are, and how to round."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kernels.formats.matrix import Matrix

from .hooks import Hooks

if TYPE_CHECKING:
    from .forward import Model

ACTIVATION = {
    "Q8_0": "a8",
    "Q4_0": "a8",
    "Q2_K": "q8k",
    "Q4_K": "q8k",
    "Q6_K": "q8k",
    "IQ2_XXS": "q8k",
    "F16": "float",
    "BF16": "float",
    "F32": "float",
}
"""Activation rounding before a matrix of each format when Numerics.act_quant is on (engine.md 2.2)."""


class Chunk:
    """Tokens ids (T,) at positions pos0 .. pos0 + T - 1 on their way through the model."""

    def __init__(self, model: Model, ids: np.ndarray, pos0: int, hooks: Hooks | None):
        self.ops: Any = model.ops
        self.shape, self.numerics = model.shape, model.numerics
        self.ids = np.ascontiguousarray(ids, np.int32)
        self.pos0 = pos0
        self.positions = np.arange(pos0, pos0 + len(self.ids))
        self.rope, self.experts = model.rope, model.experts
        self.hooks = hooks
        self._tables: dict[bool, tuple[np.ndarray, np.ndarray]] = {}
        if hooks is not None:
            hooks.begin(self)

    def tap(self, name: str, layer: int, value: Any) -> Any:
        """Show an intermediate to the hooks and go on with what they return."""
        return value if self.hooks is None else self.hooks.tap(name, layer, value, self)

    def act(self, w: Matrix) -> str:
        """Activation rounding before ``w`` in this mode."""
        return ACTIVATION[w.fmt] if self.numerics.act_quant else "float"

    def rope_tables(self, compress: bool, positions: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """cos, sin (n, R/2) at ``positions``, by default the chunk's own."""
        if positions is not None:
            return self.rope[compress](positions)
        if compress not in self._tables:
            self._tables[compress] = self.rope[compress](self.positions)
        return self._tables[compress]

    def visible(self, ratio: int) -> np.ndarray:
        """Compressed rows each token may see, int32 (T,): a row is visible to the token that completes it."""
        return ((self.positions + 1) // ratio).astype(np.int32)

    def kv_rounding(self, rows: np.ndarray) -> np.ndarray:
        """E4M3 on the non-rotary channels of attention rows (n, hd), if the mode has it."""
        if not self.numerics.kv_fp8:
            return rows
        plain = self.shape.head_dim - self.shape.rope_dim
        rows = rows.copy()
        rows[:, :plain] = self.ops.round_e4m3(np.ascontiguousarray(rows[:, :plain]))
        return rows

    def index_rounding(self, v: np.ndarray) -> np.ndarray:
        """Hadamard then E2M1 on indexer vectors (..., index_dim), if the mode has it."""
        return self.ops.round_e2m1(self.ops.hadamard(v)) if self.numerics.indexer_qat else v

    def store(self, rows: np.ndarray) -> np.ndarray:
        """binary16 rounding of rows about to be cached, if the mode has it."""
        return self.ops.round_f16(rows) if self.numerics.kv_f16 else rows
