"""Ops of the CPU backend for simulated low-precision formats and int8 activations, declared in
``ds4ref.kernels.ops``."""

from __future__ import annotations

from ..binding import bind
from . import tasktable as t
from .sizes import E2M1_BLOCK, E4M3_BLOCK
from .steps import Steps


class RoundingOps(Steps):
    """The ops for the roundings that a numerics mode switches on."""

    @bind
    def round_e4m3(self, x, channels, out, n):
        blocks = (n if channels is None else channels) // E4M3_BLOCK
        items = x.size // n * blocks if n else 0
        self.go(t.ROUND_E4M3, items, 4 * E4M3_BLOCK, (x, out), n, blocks)

    @bind
    def round_e2m1(self, x, out):
        self.go(t.ROUND_E2M1, x.size // E2M1_BLOCK, 4 * E2M1_BLOCK, (x, out))

    @bind
    def round_f16(self, x, out):
        self.go(t.ROUND_F16, x.size, 1, (x, out))

    @bind
    def round_i8(self, x, group, out):
        self.go(t.ROUND_I8, x.size // group, 4 * group, (x, out), group)

    @bind
    def hadamard(self, x, out, b):
        n = 1 << b
        self.go(t.HADAMARD, x.size // n, 8 * n, (x, out), n, n**-0.5)

    @bind
    def quantize_a8(self, x, codes, scales):
        self.go(t.QUANTIZE_A8, scales.size, 64, (x, codes, scales))

    @bind
    def quantize_q8k(self, x, codes, scales, sums):
        self.go(t.QUANTIZE_Q8K, scales.size, 512, (x, codes, scales, sums))
