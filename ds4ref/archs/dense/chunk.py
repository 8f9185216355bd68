"""A chunk: the tokens that one pass of a dense decoder computes together; and the intermediates that hooks can see."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from ds4ref.kernels.formats import FORMATS, Matrix

from ..inputs import Inputs

HEAD = -1
"""Layer number that hooks get for intermediates of the output head."""

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
    "attn_post_norm": "the same, normed (T, D): Gemma",
    "ffn_inp": "after the attention residual (T, D)",
    "ffn_norm": "input of the feed-forward (T, D)",
    "ffn_gate": "gate before the activation (T, ff)",
    "ffn_up": "what is gated (T, ff)",
    "ffn_swiglu": "gated (T, ff)",
    "ffn_moe_logits": "router logits (T, experts)",
    "ffn_moe_topk": "chosen experts (T, used), best first",
    "ffn_moe_weights": "their weights (T, used)",
    "ffn_moe_gate": "gate of the chosen experts before the activation (T, used, width)",
    "ffn_moe_up": "what is gated (T, used, width)",
    "ffn_moe_weighted_swiglu": "gated, times the expert's weight (T, used, width)",
    "ffn_out": "after the down projection, summed over experts (T, D)",
    "ffn_post_norm": "the same, normed (T, D): Gemma",
    "l_out": "leaving the layer (T, D)",
    "result_norm": "after the output norm (T, D), layer -1",
    "result_output": "logits (T, V), layer -1",
}
"""Intermediates that hooks can see -> what they are; the names are llama.cpp's where it has one."""

TENSORS = {
    "l_in": ("token_embd",),  # of the first layer
    "attn_norm": ("attn_norm",),
    "Qraw": ("attn_q",),
    "Kraw": ("attn_k",),
    "Qcur": ("attn_q_norm",),
    "Kcur": ("attn_k_norm",),
    "Vcur": ("attn_v",),
    "attn_out": ("attn_output",),
    "attn_post_norm": ("post_attention_norm",),
    "ffn_post_norm": ("post_ffw_norm",),
    "ffn_norm": ("ffn_norm",),
    "ffn_gate": ("ffn_gate",),
    "ffn_up": ("ffn_up",),
    "ffn_out": ("ffn_down", "ffn_down_exps"),
    "ffn_moe_logits": ("ffn_gate_inp",),
    "ffn_moe_gate": ("ffn_gate_exps",),
    "ffn_moe_up": ("ffn_up_exps",),
    "result_norm": ("output_norm",),
    "result_output": ("output",),
}
"""Intermediate -> tensors that it is computed with, named as in the file without "blk.N." and ".weight"."""


class Chunk(Inputs):
    """The tokens ids (T,) of one pass of a dense decoder, at positions pos0 .. pos0 + T - 1."""

    def __init__(
        self,
        model: Any,
        ids: Sequence[int] | np.ndarray,
        pos0: int,
        hooks: Any = None,
        ops: Any = None,
        members: Sequence[Self] = (),
    ):
        super().__init__(model, ids, pos0, hooks, ops, members)
        self.shape, self.numerics, self.rope, self.experts = model.shape, model.numerics, model.rope, model.experts
        self.window_rope = model.window_rope
        self.layer = HEAD
        self.input_group = model.weights.input_group if self.numerics.own_inputs else 0
        if hooks is not None:
            hooks.begin(self)

    def at(self) -> np.ndarray:
        """Return the position of the first token, int64 (1,)."""
        return self.input("at", lambda c: (np.array([c.pos0]),))[0]

    def rope_tables(self) -> tuple[np.ndarray, np.ndarray]:
        """Return cos, sin (T, head_dim / 2) for RoPE in the current layer at the positions of the chunk's tokens."""
        if self.shape.window_theta and self.shape.window_of(self.layer):
            cos, sin = self.input("window rope", lambda c: c.window_rope(c.positions))
        else:
            cos, sin = self.input("rope", lambda c: c.rope(c.positions))
        return cos, sin

    def seen(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the first position that each token attends to in the current layer, and the number of positions,
        including its own: int32 (T,) each."""
        window = self.shape.window_of(self.layer)

        def visible(c: Chunk) -> tuple[np.ndarray, np.ndarray]:
            end = c.positions + 1
            first = np.maximum(end - window, 0) if window else np.zeros_like(end)
            return first.astype(np.int32), (end - first).astype(np.int32)

        first, count = self.input(("seen", window), visible)
        return first, count

    def inputs(self, x: np.ndarray) -> np.ndarray:
        """Return x (T, n), an input of matrices, rounded to int8 in groups if the model was made for that
        (``Weights.input_group``)."""
        return self.ops.round_i8(x, self.input_group) if self.input_group else x

    def act(self, w: Matrix) -> str:
        """Return the format to which inputs of matrix ``w`` are rounded inside the product: the activation format of
        its storage format, or "float" for no rounding."""
        if self.input_group:
            return "float"
        return FORMATS[w.fmt].activation if self.numerics.act_quant else "float"
