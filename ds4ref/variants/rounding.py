"""Rounding sets: which intermediates an engine rounds, and how. Our three numerics modes, and sets of other engines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ds4ref.kernels.formats import FORMATS

from ..archs.deepseek4.chunk import Chunk
from ..numerics import MODES, Numerics
from .faults import Changed

INPUTS = ("linear", "grouped_linear", "expert_linear", "expert_sum")


def round_bf16(x: np.ndarray) -> np.ndarray:
    """Round float32 to bfloat16, ties to even, returned as float32."""
    bits = np.array(x, np.float32).view(np.uint32)
    bits += ((bits >> 16) & 1) + np.uint32(0x7FFF)
    bits &= np.uint32(0xFFFF0000)
    return bits.view(np.float32)


def float_bits(x: np.ndarray, bits: int, least: int, top: float) -> np.ndarray:
    """Round to a float of ``bits`` fraction bits, smallest exponent ``least``, largest value ``top``."""
    exponent = np.maximum(np.floor(np.log2(np.maximum(np.abs(x), 1e-30))), least)
    step = np.exp2(exponent - bits)
    return np.clip(np.rint(x / step) * step, -top, top)


def round_f16(x: np.ndarray) -> np.ndarray:
    """Round float32 to float16, returned as float32; overflow becomes infinite, as in hardware."""
    with np.errstate(over="ignore"):
        return x.astype(np.float16).astype(np.float32)


def round_q8_0(x: np.ndarray) -> np.ndarray:
    """Round activations as ggml does before Q8_0 weights: int8 per 32 values, scale amax / 127 in binary16.

    Codes are x times 127 / amax, as in ggml's x86 code. Its portable code multiplies by 1 / (amax / 127), which differs
    in the last bit: now and then a code differs, enough for a visible difference (docs/reference/quantize.md).
    """
    blocks = x.reshape(*x.shape[:-1], -1, 32).astype(np.float32)
    amax, most = np.abs(blocks).max(axis=-1, keepdims=True), np.float32(127)
    codes = np.rint(blocks * np.divide(most, amax, out=np.zeros_like(amax), where=amax > 0))
    return (codes * round_f16(amax / most)).reshape(x.shape)


def _llama(chunk: Chunk) -> None:
    """Make a chunk round the inputs of every matrix product as llama.cpp's CPU backend does: to the activation type
    that goes with the format of the weights."""
    # indexer vectors are multiplied by a Hadamard matrix and cached without further rounding
    chunk.index_rounding = chunk.ops.hadamard  # type: ignore[method-assign]
    products(chunk, _rounded_as("a8"), round_q8_0, None)
    products(chunk, {"F16"}, round_f16, None)
    quantize = chunk.ops.quantize_q8k

    def q8_k(x: np.ndarray) -> np.ndarray:
        codes, d, _ = quantize(np.ascontiguousarray(x.reshape(-1, x.shape[-1])))
        return (codes.reshape(*d.shape, 256).astype(np.float32) * d[..., None]).reshape(x.shape)

    products(chunk, _rounded_as("q8k"), q8_k, None)
    ops = chunk.ops

    def hc_mix(X: np.ndarray, fn: Any, eps: float) -> np.ndarray:
        """Compute norm and product as two steps, so that the product rounds its input like any other."""
        return ops.linear(ops.rms_norm(np.ascontiguousarray(X.reshape(len(X), -1)), None, eps), fn, "float")

    chunk.ops = Changed(ops, hc_mix=hc_mix)


def _bf16(chunk: Chunk) -> None:
    """Make a chunk round the inputs and outputs of all matrix products to bfloat16."""
    products(chunk, None, round_bf16, round_bf16)


def _rounded_as(activation: str) -> set[str]:
    """Return the weight formats whose matrix products quantize their inputs to the type ``activation``."""
    return {fmt.name for fmt in FORMATS.values() if fmt.activation == activation}


def products(chunk: Chunk, fmts: set[str] | None, round_in: Callable, round_out: Callable | None) -> None:
    """Make a chunk round the inputs of matrix products with ``round_in`` and, unless None, the outputs with
    ``round_out``.

    fmts: weight formats of the products; None: all.
    """

    def wrapped(op: Callable) -> Callable:
        def product(x: np.ndarray, *args: Any) -> np.ndarray:
            w = args[0] if hasattr(args[0], "fmt") else args[1]
            if fmts is not None and w.fmt not in fmts:
                return op(x, *args)
            y = op(round_in(x), *args)
            return y if round_out is None else round_out(y)

        return product

    chunk.ops = Changed(chunk.ops, **{name: wrapped(getattr(chunk.ops, name)) for name in INPUTS})


@dataclass(frozen=True)
class RoundingSet:
    """Which intermediates an engine rounds, and how.

    name      short name, used in the diagnosis' verdicts
    says      one-line description
    numerics  numerics mode of the model
    begin     called when a chunk of tokens begins, to add roundings that ``numerics`` does not cover; None: there are
              no others
    coarse    whether float noise can flip a value to the next rounding step, so that two correct engines differ visibly
    step      for engines that compute in a 16-bit type, where what they round is not known: the largest rounding error,
              relative to the power of two below the value. Runs with noise add random errors of that size to every
              value, runs without noise none. 0: any other set
    """

    name: str
    says: str
    numerics: Numerics
    begin: Callable[[Chunk], None] | None = None
    coarse: bool = True
    step: float = 0.0

    def dithered(self, x: np.ndarray, noise: np.random.Generator) -> np.ndarray:
        """Return float32 ``x`` with an independent random error of at most ``step`` added to each value."""
        size = np.exp2(np.floor(np.log2(np.maximum(np.abs(x), np.float32(2.0**-126)))))
        return (x + np.float32(self.step) * size * noise.uniform(-1, 1, x.shape)).astype(np.float32)


def _set(name: str, says: str, begin: Callable[[Chunk], None] | None = None, **flags: bool) -> RoundingSet:
    every = dict.fromkeys(("act_quant", "kv_fp8", "kv_f16", "indexer_qat", "route_floor"), False) | flags
    return RoundingSet(name, says, Numerics(name, **every, rope="f64"), begin)


_SETS = [
    RoundingSet("exact", "no rounding (float32)", MODES["exact"], coarse=False),
    RoundingSet("qat", "cache roundings: E4M3 rows, Hadamard + FP4 indexer, f16 storage", MODES["qat"]),
    RoundingSet("ds4", "cache roundings and int8 activations", MODES["ds4"]),
    _set("kv_f16", "cache in binary16, nothing else", kv_f16=True),
    _set("kv_fp8", "cache rows in E4M3, indexer not rounded", kv_fp8=True, kv_f16=True),
    _set("indexer_fp4", "indexer rounded, attention rows not", indexer_qat=True),
    _set("int8", "int8 activations, cache not rounded", act_quant=True),
    _set("int8_kv_f16", "int8 activations and a binary16 cache", act_quant=True, kv_f16=True),
    _set("llama.cpp", "llama.cpp on a CPU: activations in the weights' partner types, binary16 cache", _llama,
         kv_f16=True, route_floor=True),
    _set("llama.cpp_f32_cache", "the same with a float32 cache", _llama, route_floor=True),
    _set("f16", "matrix products in binary16", lambda chunk: products(chunk, None, round_f16, round_f16), kv_f16=True),
    _set("bf16", "matrix products in bfloat16", _bf16),
    _set("bf16_qat", "cache roundings and matrix products in bfloat16", _bf16,
         kv_fp8=True, kv_f16=True, indexer_qat=True, route_floor=True),
]  # fmt: skip
ROUNDING = {rounding.name: rounding for rounding in _SETS}
SAYS41 = {"qat": "cache roundings: E4M3 raw rows, E2M1 compressed rows and index keys",
          "kv_fp8": "raw rows in E4M3, compressed in E2M1, index keys not rounded"}  # fmt: skip
"""What rounding sets are in V4.1, where it differs from ``RoundingSet.says``."""
COMPUTING = {
    "bfloat16": RoundingSet("bfloat16", "computes in bfloat16", MODES["exact"], step=2.0**-8),
    "float16": RoundingSet("float16", "computes in float16", MODES["exact"], step=2.0**-11),
}
"""Rounding sets of engines that compute in a 16-bit type, wherever exactly they round to it."""
SETS = ROUNDING | COMPUTING
MODE_NAMES = tuple(MODES)
