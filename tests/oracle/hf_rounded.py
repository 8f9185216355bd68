"""Hugging Face's model with the roundings of our modes qat and ds4 put in, independently of our own code.

transformers has none of them. They go in from outside (docs/explanation/model.md 10.2, 10.3): the cache roundings where
rope is applied, because every cached row and every indexer query passes there last; the integer activations as hooks
before the linear modules. E4M3 is torch's own ``float8_e4m3fn``, the Hadamard matrix comes from scipy.

    with rounded(oracle, activations=True):
        trace = oracle.record(ids)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from scipy.linalg import hadamard
from transformers.models.deepseek_v4 import modeling_deepseek_v4 as modeling

from .hf import Oracle

E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
Q8_MODULES = ("q_a_proj", "q_b_proj", "kv_proj", "o_a_proj", "o_b_proj")


def _power_of_two(amax: torch.Tensor, largest: float) -> torch.Tensor:
    """The smallest power of two s with amax / s <= largest."""
    return torch.exp2(torch.ceil(torch.log2(amax / largest)))


def e4m3(x: torch.Tensor) -> torch.Tensor:
    """Blocks of 64 through FP8 with a power-of-two scale."""
    blocks = x.unflatten(-1, (-1, 64))
    scale = _power_of_two(blocks.abs().amax(-1, keepdim=True).clamp(min=1e-4), 448)
    return ((blocks / scale).clamp(-448, 448).to(torch.float8_e4m3fn).float() * scale).flatten(-2)


def hadamard_e2m1(x: torch.Tensor) -> torch.Tensor:
    """Hadamard transform, then blocks of 32 through FP4 with a power-of-two scale; ties to the even code."""
    width = x.shape[-1]
    matrix = torch.from_numpy(hadamard(width).astype(np.float32)) * width**-0.5
    blocks = (x @ matrix).unflatten(-1, (-1, 32))
    scale = _power_of_two(blocks.abs().amax(-1, keepdim=True).clamp(min=6 * 2.0**-126), 6)
    v = (blocks / scale).clamp(-6, 6)
    upper = torch.searchsorted(E2M1, v.abs().contiguous()).clamp(max=7)
    lower = (upper - 1).clamp(min=0)
    middle = (E2M1[upper] + E2M1[lower]) / 2
    up = (v.abs() > middle) | ((v.abs() == middle) & (upper % 2 == 0))
    return (torch.where(up, E2M1[upper], E2M1[lower]) * v.sign() * scale).flatten(-2)


def f16(x: torch.Tensor) -> torch.Tensor:
    """Through binary16."""
    return x.half().float()


def int8_32(x: torch.Tensor) -> torch.Tensor:
    """Blocks of 32 through int8 with a float32 scale amax / 127."""
    blocks = x.unflatten(-1, (-1, 32))
    scale = blocks.abs().amax(-1, keepdim=True) / 127
    codes = torch.round(blocks * torch.where(scale > 0, 1 / scale, 0)).clamp(-128, 127)
    return (codes * scale).flatten(-2)


def int8_256(x: torch.Tensor) -> torch.Tensor:
    """Blocks of 256 through Q8_K: the value of largest magnitude becomes -127."""
    blocks = x.unflatten(-1, (-1, 256))
    peak = blocks.gather(-1, blocks.abs().argmax(-1, keepdim=True))
    inverse = torch.where(peak != 0, -127 / peak, 0)
    codes = torch.round(blocks * inverse).clamp(-128, 127)
    return torch.where(peak != 0, codes * (1 / inverse), 0).flatten(-2)


@contextmanager
def rounded(oracle: Oracle, activations: bool) -> Iterator[None]:
    """Cache and indexer roundings while open; with ``activations`` the integer activations of ds4 as well."""
    with ExitStack() as stack:
        stack.enter_context(patch.object(modeling, "apply_rotary_pos_emb", _rotary(oracle)))
        if activations:
            _round_activations(oracle, stack)
        yield


def _rotary(oracle: Oracle) -> Any:
    plain, config = modeling.apply_rotary_pos_emb, oracle.config

    def rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, unsqueeze_dim: int = 1) -> torch.Tensor:
        """x (1, heads, T, width): one head is a row about to be cached, more are queries or the attention output."""
        y, row = plain(x, cos, sin, unsqueeze_dim), x.shape[1] == 1
        if x.shape[-1] == config.index_head_dim:
            y = hadamard_e2m1(y)
        elif row:
            split = config.head_dim - config.qk_rope_head_dim
            y = torch.cat([e4m3(y[..., :split]), y[..., split:]], dim=-1)
        return f16(y) if row else y

    return rotary


def _round_activations(oracle: Oracle, stack: ExitStack) -> None:
    def before(rounding: Any) -> Any:
        return lambda _module, args: (rounding(args[0]), *args[1:])

    def hook(module: torch.nn.Module, rounding: Any) -> None:
        stack.callback(module.register_forward_pre_hook(before(rounding)).remove)

    hook(oracle.model.lm_head, int8_32)
    for layer in oracle.model.model.layers:
        for name in Q8_MODULES:
            hook(getattr(layer.self_attn, name), int8_32)
        for name in ("gate_proj", "up_proj", "down_proj"):
            hook(getattr(layer.mlp.shared_experts, name), int8_32)
        hook(layer.mlp.experts, int8_256)
        plain = layer.mlp.experts._apply_gate
        stack.enter_context(patch.object(layer.mlp.experts, "_apply_gate", lambda x, plain=plain: int8_256(plain(x))))
