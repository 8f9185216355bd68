"""The CUDA backend's ops for norms, rope, rounding and caches, most of which are row stages (``rows.stages``): steps on
one row at a time that can be chained in one kernel. ``kernels.ops`` says what each op computes."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ...binding import F32, I32, bind
from ..driver.arrays import DeviceArray
from ..driver.launch import Launch
from ..products import packing
from ..rows import quantize, stages, windows
from ..rows.rounding import E2M1, E4M3, F16, HADAMARD, NORM, ROPE
from ..rows.stages import PEAKS, Stages
from .steps import Steps

E2M1_BLOCK, NVFP4_BLOCK = 32, 16


class Chain(NamedTuple):
    """A chain of row stages, which one kernel applies to each row of x.

    out: results
    c: which stages, and their numbers
    weight, cos, sin: what the stages norm and rope read
    ring, at: a ring buffer that the results are then stored in, and an array with the position of the first row
    """

    x: DeviceArray
    out: DeviceArray
    c: Stages
    weight: DeviceArray | None = None
    cos: DeviceArray | None = None
    sin: DeviceArray | None = None
    ring: DeviceArray | None = None
    at: DeviceArray | None = None

    def launch(self, absent: DeviceArray) -> Launch:
        """Return the chain as a launch; ``absent`` is passed to the kernel in place of float arrays that are None."""
        shared = [self.x, *(absent if each is None else each for each in (self.weight, self.cos, self.sin))]
        numbers = self.x.size // self.c.n, self.c
        if self.ring is None or self.at is None:
            return Launch(stages.chain, [self.out], shared, numbers, self)
        return Launch(stages.chain_store, [self.out, self.ring], [*shared, self.at], (*numbers, len(self.ring)), self)

    def then(self, later: Chain) -> Chain | None:
        """Return one chain that does the same as this one followed by ``later``, which reads its result; None if they
        cannot be joined."""
        c, d = self.c, later.c
        low = d.stages & -d.stages
        if d.n != c.n or later.x.size != self.x.size or self.ring is not None or (low and c.stages >= low):
            return None
        if c.stages & ROPE and d.heads != c.heads and d.stages & ROPE:
            return None
        turned = self if c.stages & ROPE else later
        both = c._replace(
            stages=c.stages | d.stages, heads=turned.c.heads, half=turned.c.half, gap=turned.c.gap, sign=turned.c.sign,
            channels=d.channels or c.channels, bits=d.bits or c.bits,
            factor=d.factor if d.stages & HADAMARD else c.factor,
        )  # fmt: skip
        return later._replace(x=self.x, c=both, weight=self.weight, cos=turned.cos, sin=turned.sin)


def in_words(codes: DeviceArray) -> DeviceArray:
    """Return a view of integers of one or two bytes as 32-bit words."""
    return DeviceArray(codes.buffer, (codes.nbytes // 4,), I32, codes.offset)


class RowOps(Steps):
    """The ops on rows of activations between products, and those that store rows in caches and gather them."""

    def _chain(
        self, x: DeviceArray, out: DeviceArray, n: int, what: int, weight: DeviceArray | None = None,
        cos: DeviceArray | None = None, sin: DeviceArray | None = None, **numbers: Any,
    ) -> None:  # fmt: skip
        if x.size:
            c = Stages(n, what, weight is not None, **numbers)
            self.run(Chain(x, out, c, weight, cos, sin).launch(self.absent(F32)))

    @bind
    def rms_norm(self, x, weight, eps, out, n):
        self._chain(x, out, n, NORM, weight, eps=np.float32(eps))

    @bind
    def rope(self, x, cos, sin, inverse, halves, out, H, r, p):
        gap, sign = r if halves else 1, np.float32(-1 if inverse else 1)
        self._chain(x, out, 2 * r + p, ROPE, cos=cos, sin=sin, heads=H, half=r, gap=gap, sign=sign)

    @bind
    def round_e4m3(self, x, channels, block, out, n):
        channels = n if channels is None else channels
        if channels == n and n > block * PEAKS:
            n = channels = block
        if channels > block * PEAKS:
            raise ValueError(f"round_e4m3 of {channels} channels of longer rows: {block * PEAKS} at most")
        self._chain(x, out, n, E4M3, channels=channels, bits=block.bit_length() - 1)

    @bind
    def round_e2m1(self, x, out):
        n = x.shape[-1]
        self._chain(x, out, E2M1_BLOCK if n > E2M1_BLOCK * PEAKS else n, E2M1)

    @bind
    def round_nvfp4(self, x, out):
        self.go(quantize.round_nvfp4, [out], [x], x.size // NVFP4_BLOCK, NVFP4_BLOCK)

    @bind
    def round_f16(self, x, out):
        self._chain(x, out, x.shape[-1] if x.ndim else 1, F16)

    @bind
    def round_i8(self, x, group, out):
        self.go(quantize.round_i8, [out], [x], x.size // group, group)

    @bind
    def hadamard(self, x, out, b):
        self._chain(x, out, 1 << b, HADAMARD, factor=np.float32((1 << b) ** -0.5))

    @bind
    def quantize_a8(self, x, codes, scales):
        self.go(packing.pack_a8, [in_words(codes), scales], [x], 1, x.size)

    @bind
    def quantize_q8k(self, x, codes, scales, sums):
        self.go(packing.pack_q8k, [in_words(codes), scales, in_words(sums)], [x], 1, x.size)

    # --- caches

    @bind
    def store_rows(self, x, rows, at, T, N, w):
        if x.size:
            chain = Chain(x, x, Stages(w, 0, False), ring=rows, at=at) if T <= N else None
            self.run(Launch(stages.store_rows, [rows], [x, at], (T, w, N), chain))

    @bind
    def position_bias(self, gate, ape, at, out, T, r, c):
        self.go(windows.position_bias, [out], [gate, ape, at], out.size, r, c)

    @bind
    def windows(self, ring, new, at, count, ratio, overlap, out, N, T, c):
        self.go(windows.windows, [out], [ring, new, at], out.size, N, T, ratio, c, bool(overlap))

    @bind
    def pool(self, kv, score, out, n, m, c):
        self.go(windows.pool, [out], [kv, score], out.size, m, c)
