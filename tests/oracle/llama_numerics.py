"""llama.cpp's CPU roundings as a table of ops for our forward pass, so that the two can be compared to float noise.

Established stage by stage on its graph (docs/validation-oracles.md). Before every matrix product ggml converts the
activations to the partner type of the weights:

    Q8_0            int8 per 32 values with a scale rounded to f16 (ds4 keeps the scale in f32)
    K and IQ types  Q8_K per 256, as ds4
    F16, BF16       f16, bf16 (ds4 keeps f32)

With ``flash=False, f32_cache=True`` nothing else is rounded, and rope angles are iterated f32 products, as ds4's.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ds4ref.numerics import Numerics
from ds4ref.variants.faults import Changed
from kernels.formats import Matrix
from tests.kernels import reference

NUMERICS = Numerics("llama.cpp", False, False, False, False, True, "iterated")


def q8_0(x: np.ndarray) -> np.ndarray:
    """x (..., n) through int8 blocks of 32: codes from the unrounded scale, products with the f16 one."""
    blocks = x.reshape(*x.shape[:-1], -1, 32).astype(np.float32)
    d = np.abs(blocks).max(axis=-1, keepdims=True) / np.float32(127)
    inverse = np.divide(np.float32(1), d, out=np.zeros_like(d), where=d > 0)
    codes = np.rint(blocks * inverse)
    return (codes * d.astype(np.float16).astype(np.float32)).reshape(x.shape)


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
        return x.astype(np.float16).astype(np.float32)
    if w.fmt == "BF16":
        bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)
    return q8_0(x) if w.fmt == "Q8_0" else q8_k(x)


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

    own = {f.__name__: f for f in (linear, grouped_linear, expert_linear, expert_sum, hc_mix)}
    return Changed(base, **own)
