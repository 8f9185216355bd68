"""llama.cpp's CPU roundings as a table of ops for our forward pass, so that the two can be compared to float noise.

Established stage by stage on its graph (docs/evidence/validation.md). Before every matrix product ggml converts the
activations to the partner type of the weights:

    blocks of 32    int8 per 32 values with a scale rounded to f16 (ds4 keeps the scale in f32); on x86 codes are
                    x times 127 / amax
    blocks of 256   Q8_K per 256, as ds4
    F16, BF16       f16, bf16 (ds4 keeps f32)

Gemma's GELU comes from a table: its input and output are rounded to f16.

With ``flash=False, f32_cache=True`` nothing else is rounded, and rope angles are iterated f32 products, as ds4's.

What goes into the first product of a half layer is made equal to the bit: the weights of the streams and their sum are
float32 steps there. One unit in the last place is enough for another code, a code for visibly other rows, and rows that
all later tokens attend to for many more codes: at 4,096 channels that happens somewhere in every prompt.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ds4ref.kernels.formats import FORMATS, Matrix
from ds4ref.numerics import Numerics
from ds4ref.variants.faults import Changed
from ds4ref.variants.rounding import round_bf16, round_f16, round_q8_0
from tests.kernels import reference

NUMERICS = Numerics("llama.cpp", False, False, False, False, True, "iterated")


def q8_k(x: np.ndarray) -> np.ndarray:
    """x (..., n) through Q8_K blocks of 256."""
    codes, d, _ = reference.quantize_q8k(np.ascontiguousarray(x.reshape(-1, x.shape[-1])))
    blocks = codes.reshape(*d.shape, 256).astype(np.float32) * d[..., None]
    return blocks.reshape(x.shape)


def converted(x: np.ndarray, w: Matrix) -> np.ndarray:
    """x as ggml's product with ``w`` sees it."""
    if w.fmt == "F32":
        return x
    if w.fmt == "F16":
        return round_f16(x)
    if w.fmt == "BF16":
        return round_bf16(x)
    return round_q8_0(x) if FORMATS[w.fmt].block_elems == 32 else q8_k(x)


def ops(base: Any = reference) -> Any:
    """The ops of a backend with llama.cpp's conversions before every matrix."""

    def linear(x: np.ndarray, w: Matrix, act: str = "float") -> np.ndarray:
        return base.linear(converted(x, w), w)

    def grouped_linear(x: np.ndarray, w: Matrix, act: str = "float") -> np.ndarray:
        return base.grouped_linear(converted(x, w), w)

    def expert_linear(x: np.ndarray, ids: np.ndarray, w: Matrix, act: str = "float") -> np.ndarray:
        return base.expert_linear(converted(x, w), ids, w)

    def expert_sum(mid: np.ndarray, ids: np.ndarray, w: Matrix, act: str = "float") -> np.ndarray:
        return base.expert_sum(converted(mid, w), ids, w)

    def hc_mix(X: np.ndarray, fn: Matrix, eps: float) -> np.ndarray:
        flat = base.rms_norm(np.ascontiguousarray(X.reshape(len(X), -1)), None, eps)
        return linear(flat, fn)

    def hc_split(mix: np.ndarray, scale: np.ndarray, bias: np.ndarray, iters: int, eps: float) -> Any:
        streams = int(np.sqrt(mix.shape[1] + 1)) - 1
        one, z = np.float32(1), mix[:, :streams] * scale[0] + bias[:streams]
        pre = one / (one + np.exp(-z.astype(np.float64)).astype(np.float32)) + np.float32(eps)
        return pre, *base.hc_split(mix, scale, bias, iters, eps)[1:]

    def hc_reduce(X: np.ndarray, w: np.ndarray) -> np.ndarray:
        total = X[:, 0] * w[:, 0, None]  # stream after stream, every step rounded
        for stream in range(1, X.shape[1]):
            total = total + X[:, stream] * w[:, stream, None]
        return total

    def geglu(gate: np.ndarray, up: np.ndarray) -> np.ndarray:
        """A table of binary16 between -10 and 10."""
        x, one = np.clip(round_f16(gate), -10, 10), np.ones_like(gate)
        inner = round_f16(reference.geglu(x, one))
        return np.where(gate >= 10, gate, np.where(gate <= -10, np.float32(0), inner)) * up

    own = (linear, grouped_linear, expert_linear, expert_sum, hc_mix, hc_split, hc_reduce, geglu)
    return Changed(base, **{f.__name__: f for f in own})
