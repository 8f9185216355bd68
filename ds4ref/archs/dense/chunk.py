"""The tokens under way through a dense decoder: what of ``Inputs`` its blocks read, and what they show to hooks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from ds4ref.kernels.formats import FORMATS, Matrix
from ds4ref.kernels.ops import Backend

from ...numerics import Numerics
from ..inputs import Inputs
from .rope import RopeTables
from .shape import DenseShape
from .weights import Weights

HEAD = -1
"""Layer number under which the output head's intermediates are tapped."""

NAMES = {
    "inp_embd": "embeddings (T, D), layer -1",
    "l_in": "entering the layer (T, D)",
    "attn_norm": "input of attention (T, D)",
    "Qraw": "queries as projected (T, H hd)",
    "Kraw": "keys as projected (T, K hd)",
    "Qcur": "queries after norm and rope (T, H, hd)",
    "Kcur": "keys as they are stored (T, K, hd)",
    "Vcur": "values as they are stored (T, K, hd)",
    "kqv_out": "weighted values (T, H, hd)",
    "attn_out": "after the output projection (T, D)",
    "ffn_inp": "after the attention residual (T, D)",
    "ffn_norm": "input of the feed-forward (T, D)",
    "ffn_gate": "gate before the activation (T, ff)",
    "ffn_up": "what is gated (T, ff)",
    "ffn_swiglu": "gated (T, ff)",
    "ffn_out": "after the down projection (T, D)",
    "l_out": "leaving the layer (T, D)",
    "result_norm": "after the output norm (T, D), layer -1",
    "result_output": "logits (T, V), layer -1",
}
"""Every intermediate that hooks see, named as llama.cpp names it."""

TENSORS = {
    "l_in": ("token_embd",),  # of the first layer
    "attn_norm": ("attn_norm",),
    "Qraw": ("attn_q",),
    "Kraw": ("attn_k",),
    "Qcur": ("attn_q_norm",),
    "Kcur": ("attn_k_norm",),
    "Vcur": ("attn_v",),
    "attn_out": ("attn_output",),
    "ffn_norm": ("ffn_norm",),
    "ffn_gate": ("ffn_gate",),
    "ffn_up": ("ffn_up",),
    "ffn_out": ("ffn_down",),
    "result_norm": ("output_norm",),
    "result_output": ("output",),
}
"""Weights that an intermediate is computed with, as the file names them without "blk.N." and ".weight"."""


class Hooks(Protocol):
    """What the pass calls: ``begin`` once per chunk, ``tap`` at every named point."""

    def begin(self, chunk: Any) -> None:
        """A chunk starts."""

    def tap(self, name: str, layer: int, value: Any, chunk: Any) -> Any:
        """Return the value to go on with."""


class Parts(Protocol):
    """The parts of a model that its blocks read."""

    shape: DenseShape
    numerics: Numerics
    rope: RopeTables
    weights: Weights
    ops: Backend


class Chunk(Inputs):
    """Tokens ids (T,) at positions pos0 .. pos0 + T - 1 on their way through a dense decoder."""

    def __init__(
        self, model: Parts, ids: Sequence[int] | np.ndarray, pos0: int, hooks: Hooks | None = None, ops: Any = None
    ):
        super().__init__(model, ids, pos0, hooks, ops)
        self.shape, self.numerics, self.rope = model.shape, model.numerics, model.rope
        self.layer = HEAD
        self.input_group = model.weights.input_group if self.numerics.own_inputs else 0
        if hooks is not None:
            hooks.begin(self)

    def at(self) -> np.ndarray:
        """Position of the first token: int64 (1,)."""
        return self.input("at", lambda c: (np.array([c.pos0]),))[0]

    def rope_tables(self) -> tuple[np.ndarray, np.ndarray]:
        """cos, sin (T, head_dim / 2)."""
        cos, sin = self.input("rope", lambda c: c.rope(c.positions))
        return cos, sin

    def seen(self) -> tuple[np.ndarray, np.ndarray]:
        """First position each token attends to and how many, itself included: int32 (T,) each."""
        first, count = self.input(
            "seen", lambda c: (np.zeros(len(c.positions), np.int32), (c.positions + 1).astype(np.int32))
        )
        return first, count

    def inputs(self, x: np.ndarray) -> np.ndarray:
        """x (T, n) as every matrix that multiplies it sees it."""
        return self.ops.round_i8(x, self.input_group) if self.input_group else x

    def act(self, w: Matrix) -> str:
        """Rounding of the inputs of ``w`` in this mode, within the product."""
        if self.input_group:
            return "float"
        return FORMATS[w.fmt].activation if self.numerics.act_quant else "float"
