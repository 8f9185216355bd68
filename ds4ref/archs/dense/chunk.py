"""The tokens under way: who and where they are, as small arrays that a recorded pass reads and that are refilled for
the next token (``move``)."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from kernels.formats.matrix import Matrix

if TYPE_CHECKING:
    from .forward import Model

HEAD = -1
"""Layer number under which the output head's intermediates are tapped."""

ACTIVATION = {"Q8_0": "a8", "Q4_K": "q8k", "Q2_K": "q8k", "IQ2_XXS": "q8k"}
"""Rounding of the inputs of a matrix of each format where Numerics.act_quant is on; all others take float ones."""

NAMES = {
    "inp_embd": "embeddings (T, D), layer -1",
    "attn_norm": "input of attention (T, D)",
    "Qcur": "queries after norm and rope (T, H, hd)",
    "Kcur": "keys as they are stored (T, K, hd)",
    "Vcur": "values as they are stored (T, K, hd)",
    "kqv_out": "weighted values (T, H, hd)",
    "attn_out": "after the output projection (T, D)",
    "ffn_inp": "after the attention residual (T, D)",
    "ffn_norm": "input of the feed-forward (T, D)",
    "ffn_swiglu": "gated (T, ff)",
    "ffn_out": "after the down projection (T, D)",
    "l_out": "leaving the layer (T, D)",
    "result_norm": "after the output norm (T, D), layer -1",
    "result_output": "logits (T, V), layer -1",
}
"""Every intermediate that hooks see, named as llama.cpp names it."""


class Hooks(Protocol):
    """What the pass calls: ``begin`` once per chunk, ``tap`` at every named point."""

    def begin(self, chunk: Any) -> None:
        """A chunk starts."""

    def tap(self, name: str, layer: int, value: Any, chunk: Any) -> Any:
        """Return the value to go on with."""


class Chunk:
    """Tokens ids (T,) at positions pos0 .. pos0 + T - 1."""

    def __init__(
        self, model: Model, ids: Sequence[int] | np.ndarray, pos0: int, hooks: Hooks | None = None, ops: Any = None
    ):
        self.ops: Any = model.ops if ops is None else ops
        self.shape, self.numerics, self.rope, self.hooks = model.shape, model.numerics, model.rope, hooks
        self.layer = HEAD
        self._inputs: dict[Hashable, tuple[tuple[np.ndarray, ...], Callable[[], tuple[np.ndarray, ...]]]] = {}
        self._fill, self._upload = model.ops.fill, model.ops.upload
        self.ids = self._upload(np.array(ids, np.int32))
        self._stand(pos0)
        if hooks is not None:
            hooks.begin(self)

    def _stand(self, pos0: int) -> None:
        self.pos0 = pos0
        self.positions = np.arange(pos0, pos0 + len(self.ids))

    def move(self, ids: np.ndarray | int, pos0: int) -> None:
        """The chunk's inputs, in place, for as many other tokens."""
        self._fill(self.ids, ids)
        self._stand(pos0)
        for arrays, compute in self._inputs.values():
            for array, values in zip(arrays, compute(), strict=True):
                self._fill(array, values)

    def tap(self, name: str, value: Any) -> Any:
        """Show an intermediate to the hooks and go on with what they return."""
        return value if self.hooks is None else self.hooks.tap(name, self.layer, value, self)

    def _input(self, key: Hashable, compute: Callable[[], tuple[np.ndarray, ...]]) -> tuple[np.ndarray, ...]:
        if key not in self._inputs:
            # copies: uploaded arrays may be the very ones, and these will be overwritten
            self._inputs[key] = tuple(self._upload(values.copy()) for values in compute()), compute
        return self._inputs[key][0]

    def at(self) -> np.ndarray:
        """Position of the first token: int64 (1,)."""
        return self._input("at", lambda: (np.array([self.pos0]),))[0]

    def rope_tables(self) -> tuple[np.ndarray, np.ndarray]:
        """cos, sin (T, head_dim / 2)."""
        cos, sin = self._input("rope", lambda: self.rope(self.positions))
        return cos, sin

    def seen(self) -> tuple[np.ndarray, np.ndarray]:
        """First position each token attends to and how many, itself included: int32 (T,) each."""
        first, count = self._input(
            "seen", lambda: (np.zeros(len(self.positions), np.int32), (self.positions + 1).astype(np.int32))
        )
        return first, count

    def act(self, w: Matrix) -> str:
        """Rounding of the inputs of ``w`` in this mode."""
        return ACTIVATION.get(w.fmt, "float") if self.numerics.act_quant else "float"

    def store(self, rows: np.ndarray) -> np.ndarray:
        """binary16 rounding of rows about to be cached, if the mode has it."""
        return self.ops.round_f16(rows) if self.numerics.kv_f16 else rows
