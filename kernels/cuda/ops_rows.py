"""Norms, rope, rounding, caches: ops that are chains of row stages, or nearly. What each computes: ``kernels.ops``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from . import quantize, windows
from . import rows as stages
from .arrays import DeviceArray
from .quantize import A8_BLOCK, Q8K_BLOCK, Q8K_SUM
from .rows import E2M1, E4M3, F16, HADAMARD, NORM, PEAKS, ROPE
from .steps import F16 as HALF
from .steps import F32, I8, I16, Launch, Steps, expect

E4M3_BLOCK, E2M1_BLOCK = 64, 32


@dataclass(frozen=True)
class Chain:
    """Stages of ``rows`` and what they need; the rest as if it were absent. ``ring`` and ``at``: where rows go then."""

    x: DeviceArray
    out: DeviceArray
    n: int
    heads: int
    stages: int
    weight: DeviceArray | None = None
    eps: float = 0.0
    cos: DeviceArray | None = None
    sin: DeviceArray | None = None
    half: int = 0
    gap: int = 1
    sign: float = 1.0
    channels: int = 0
    factor: float = 1.0
    ring: DeviceArray | None = None
    at: DeviceArray | None = None

    @property
    def rows(self) -> int:
        return self.x.size // self.n if self.n else 0

    def launch(self, absent: DeviceArray) -> Launch:
        """The chain as a launch; ``absent`` is what stands for a float array that is not there."""
        shared = [self.x, *(absent if each is None else each for each in (self.weight, self.cos, self.sin))]
        numbers = [
            self.rows, self.n, self.heads, self.stages, self.weight is not None, self.eps, self.half, self.gap,
            self.sign, self.channels, self.factor,
        ]  # fmt: skip
        if self.ring is None or self.at is None:
            return Launch(stages.chain, [self.out], shared, numbers, self)
        numbers.append(len(self.ring))
        return Launch(stages.chain_store, [self.out, self.ring], [*shared, self.at], numbers, self)

    def then(self, later: Chain) -> Chain | None:
        """This chain and then ``later``, which reads its result, as one; None if they cannot be."""
        low = later.stages & -later.stages
        if later.n != self.n or later.rows != self.rows or self.ring is not None or (low and self.stages >= low):
            return None
        if self.stages & ROPE and later.heads != self.heads and later.stages & ROPE:
            return None
        kept = self if self.stages & ROPE else later
        return replace(
            later, x=self.x, stages=self.stages | later.stages, heads=kept.heads, cos=kept.cos, sin=kept.sin,
            half=kept.half, gap=kept.gap, sign=kept.sign, weight=self.weight, eps=self.eps,
            channels=later.channels or self.channels, factor=later.factor if later.stages & HADAMARD else self.factor,
        )  # fmt: skip


class RowOps(Steps):
    """What a row goes through between products, and on its way into caches and out of them."""

    def _chain(self, x: DeviceArray, n: int, stages: int, heads: int = 1, **more: Any) -> DeviceArray:
        out = self.empty(*x.shape)
        if x.size:
            self.run(Chain(x, out, n, heads, stages, **more).launch(self.absent(F32)))
        return out

    def rms_norm(self, x: Any, weight: Any, eps: float) -> Any:
        x = self.f32(x, "x")
        n = x.shape[-1]
        if weight is not None:
            weight = self.f32(weight, "weight")
            expect(weight.shape == (n,), "rms_norm", x.shape, weight.shape)
        return self._chain(x, n, NORM, weight=weight, eps=eps)

    def rope(self, x: Any, cos: Any, sin: Any, inverse: bool = False, halves: bool = False) -> Any:
        x, cos, sin = self.f32(x, "x"), self.f32(cos, "cos"), self.f32(sin, "sin")
        expect(x.ndim == 3 and cos.shape == sin.shape and cos.ndim == 2, "rope", x.shape, cos.shape, sin.shape)
        expect(len(cos) == len(x) and 2 * cos.shape[1] <= x.shape[2], "rope", x.shape, cos.shape)
        half, sign = cos.shape[1], -1.0 if inverse else 1.0
        gap = half if halves else 1
        return self._chain(x, x.shape[2], ROPE, x.shape[1], cos=cos, sin=sin, half=half, gap=gap, sign=sign)

    def round_e4m3(self, x: Any, channels: int | None = None) -> Any:
        x = self.f32(x, "x")
        n = x.shape[-1]
        channels = n if channels is None else channels
        fits = 0 < channels <= n and channels % E4M3_BLOCK == 0
        expect(fits, f"round_e4m3 works in blocks of {E4M3_BLOCK}", x.shape, channels)
        if channels == n and n > E4M3_BLOCK * PEAKS:
            n = channels = E4M3_BLOCK
        expect(channels <= E4M3_BLOCK * PEAKS, "round_e4m3 of longer rows in part", x.shape, channels)
        return self._chain(x, n, E4M3, channels=channels)

    def round_e2m1(self, x: Any) -> Any:
        x = self.f32(x, "x")
        n = x.shape[-1]
        expect(n % E2M1_BLOCK == 0, f"round_e2m1 works in blocks of {E2M1_BLOCK}", x.shape)
        return self._chain(x, E2M1_BLOCK if n > E2M1_BLOCK * PEAKS else n, E2M1)

    def round_f16(self, x: Any) -> Any:
        x = self.f32(x, "x")
        return self._chain(x, x.shape[-1] if x.ndim else 1, F16)

    def round_i8(self, x: Any, group: int = 64) -> Any:
        x = self.f32(x, "x")
        expect(group > 0 and x.shape[-1] % group == 0, f"round_i8 in groups of {group}", x.shape)
        out = self.empty(*x.shape)
        if x.size:
            self.go(quantize.round_i8, [out], [x], x.size // group, group)
        return out

    def hadamard(self, x: Any) -> Any:
        x = self.f32(x, "x")
        n = x.shape[-1]
        expect(n > 0 and n & (n - 1) == 0, "hadamard needs a power of two", x.shape)
        return self._chain(x, n, HADAMARD, factor=n**-0.5)

    def quantize_a8(self, x: Any) -> Any:
        x = self.f32(x, "x")
        expect(x.ndim == 2 and x.shape[1] % A8_BLOCK == 0, f"quantize_a8 works in blocks of {A8_BLOCK}", x.shape)
        codes, scales = self.empty(*x.shape, dtype=I8), self.empty(len(x), x.shape[1] // A8_BLOCK)
        if x.size:
            self.go(quantize.quantize_a8, [codes, scales], [x], scales.size)
        return codes, scales

    def quantize_q8k(self, x: Any) -> Any:
        x = self.f32(x, "x")
        expect(x.ndim == 2 and x.shape[1] % Q8K_BLOCK == 0, f"quantize_q8k works in blocks of {Q8K_BLOCK}", x.shape)
        tokens, n = x.shape
        codes, scales = self.empty(tokens, n, dtype=I8), self.empty(tokens, n // Q8K_BLOCK)
        sums = self.empty(tokens, n // Q8K_SUM, dtype=I16)
        if x.size:
            self.go(quantize.quantize_q8k, [codes, scales, sums], [x], scales.size)
        return codes, scales, sums

    # --- caches

    def store_rows(self, x: Any, rows: Any, at: Any) -> None:
        x, at = self.f32(x, "x"), self.position(at, "at")
        expect(x.ndim == rows.ndim == 2 and x.shape[1] == rows.shape[1], "store_rows", x.shape, rows.shape)
        expect(len(rows) > 0, "store_rows needs rows to write to", rows.shape)
        ring = self.written(rows, HALF if rows.dtype == HALF else F32, "rows")
        tokens, n = x.shape
        if not x.size:
            return
        numbers = tokens, n, len(ring)
        chain = Chain(x, x, n, 1, 0, ring=ring, at=at) if tokens <= len(ring) else None
        self.run(Launch(stages.store_rows, [ring], [x, at], numbers, chain))

    def position_bias(self, gate: Any, ape: Any, at: Any) -> Any:
        gate, ape, at = self.f32(gate, "gate"), self.f32(ape, "ape"), self.position(at, "at")
        expect(gate.ndim == ape.ndim == 2 and gate.shape[1] == ape.shape[1], "position_bias", gate.shape, ape.shape)
        out = self.empty(*gate.shape)
        if out.size:
            self.go(windows.position_bias, [out], [gate, ape, at], len(gate), *ape.shape)
        return out

    def windows(self, ring: Any, new: Any, at: Any, count: int, ratio: int, overlap: bool) -> Any:
        ring, new, at = self.f32(ring, "ring"), self.f32(new, "new"), self.position(at, "at")
        expect(ring.ndim == new.ndim == 2 and ring.shape[1] == new.shape[1], "windows", ring.shape, new.shape)
        slots, width = ratio, ring.shape[1]
        if overlap:
            expect(width % 2 == 0, "windows that overlap have two halves", ring.shape)
            slots, width = 2 * ratio, width // 2
        expect(len(ring) >= slots and 0 < count <= len(new) // ratio + 1, "windows", ring.shape, new.shape, count)
        out = self.empty(count, slots, width)
        self.go(windows.windows, [out], [ring, new, at], count, len(ring), ratio, width, bool(overlap))
        return out

    def pool(self, kv: Any, score: Any) -> Any:
        kv, score = self.f32(kv, "kv"), self.f32(score, "score")
        expect(kv.ndim == 3 and kv.shape == score.shape, "pool", kv.shape, score.shape)
        n, m, c = kv.shape
        out = self.empty(n, c)
        if out.size:
            self.go(windows.pool, [out], [kv, score], n, m, c)
        return out
