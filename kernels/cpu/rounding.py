"""Simulated low-precision formats and integer activations. What each op computes: ``kernels.ops``."""

from __future__ import annotations

import numpy as np

from . import tasktable as t
from .abi import Step
from .sizes import A8_BLOCK, E2M1_BLOCK, E4M3_BLOCK, Q8K_BLOCK, Q8K_SUM
from .steps import Steps, expect


class RoundingOps(Steps):
    """What a numerics mode switches on."""

    def round_e4m3(self, x: np.ndarray, channels: int | None = None) -> np.ndarray:
        x = self.f32(x, "x")
        width = x.shape[-1]
        channels = width if channels is None else channels
        fits = 0 < channels <= width and channels % E4M3_BLOCK == 0
        expect(fits, f"round_e4m3 works in blocks of {E4M3_BLOCK}", x.shape, channels)
        out, blocks = self.empty(*x.shape), channels // E4M3_BLOCK
        items = x.size // width * blocks
        values = self.at(x), self.at(out), width, blocks
        self.run([Step(t.ROUND_E4M3, items, self.chunk(items, 4 * E4M3_BLOCK), values)])
        return out

    def round_e2m1(self, x: np.ndarray) -> np.ndarray:
        x = self.f32(x, "x")
        expect(x.shape[-1] % E2M1_BLOCK == 0, f"round_e2m1 works in blocks of {E2M1_BLOCK}", x.shape)
        out, items = self.empty(*x.shape), x.size // E2M1_BLOCK
        self.run([Step(t.ROUND_E2M1, items, self.chunk(items, 4 * E2M1_BLOCK), (self.at(x), self.at(out)))])
        return out

    def round_f16(self, x: np.ndarray) -> np.ndarray:
        x = self.f32(x, "x")
        out = self.empty(*x.shape)
        self.run([Step(t.ROUND_F16, x.size, self.chunk(x.size, 1), (self.at(x), self.at(out)))])
        return out

    def round_i8(self, x: np.ndarray, group: int = 64) -> np.ndarray:
        x = self.f32(x, "x")
        expect(group > 0 and x.shape[-1] % group == 0, f"round_i8 in groups of {group}", x.shape)
        out, items = self.empty(*x.shape), x.size // group
        self.run([Step(t.ROUND_I8, items, self.chunk(items, 4 * group), (self.at(x), self.at(out), group))])
        return out

    def hadamard(self, x: np.ndarray) -> np.ndarray:
        x = self.f32(x, "x")
        n = x.shape[-1]
        expect(n > 0 and n & (n - 1) == 0, "hadamard needs a power of two", x.shape)
        out, rows = self.empty(*x.shape), x.size // n
        self.run([Step(t.HADAMARD, rows, self.chunk(rows, 8 * n), (self.at(x), self.at(out), n, n**-0.5))])
        return out

    def quantize_a8(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        x = self.f32(x, "x")
        expect(x.ndim == 2 and x.shape[1] % A8_BLOCK == 0, f"quantize_a8 works in blocks of {A8_BLOCK}", x.shape)
        codes, scales = self.empty(*x.shape, dtype=np.int8), self.empty(len(x), x.shape[1] // A8_BLOCK)
        values = tuple(map(self.at, (x, codes, scales)))
        self.run([Step(t.QUANTIZE_A8, scales.size, self.chunk(scales.size, 64), values)])
        return codes, scales

    def quantize_q8k(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        x = self.f32(x, "x")
        expect(x.ndim == 2 and x.shape[1] % Q8K_BLOCK == 0, f"quantize_q8k works in blocks of {Q8K_BLOCK}", x.shape)
        tokens, n = x.shape
        codes, scales = self.empty(*x.shape, dtype=np.int8), self.empty(tokens, n // Q8K_BLOCK)
        sums = self.empty(tokens, n // Q8K_SUM, dtype=np.int16)
        values = tuple(map(self.at, (x, codes, scales, sums)))
        self.run([Step(t.QUANTIZE_Q8K, scales.size, self.chunk(scales.size, 512), values)])
        return codes, scales, sums
