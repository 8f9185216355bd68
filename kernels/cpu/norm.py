"""RMS norm, hyper-connections, rope and elementwise arithmetic. What each op computes: ``kernels.ops``."""

from __future__ import annotations

import math

import numpy as np

from . import tasktable as t
from .abi import Step, Task
from .steps import Steps, expect


class NormOps(Steps):
    """What happens to vectors between products."""

    def rms_norm(self, x: np.ndarray, weight: np.ndarray | None, eps: float) -> np.ndarray:
        x = self.f32(x, "x")
        n = x.shape[-1]
        if weight is not None:
            weight = self.f32(weight, "weight")
            expect(weight.shape == (n,), "rms_norm", x.shape, weight.shape)
        out, rows = self.empty(*x.shape), x.size // n if n else 0
        self.run([Step(t.RMS_NORM, rows, self.chunk(rows, n), (self.at(x), self.at(weight), self.at(out), n, eps))])
        return out

    def hc_split(
        self, mix: np.ndarray, scale: np.ndarray, base: np.ndarray, iters: int, eps: float
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        mix, scale, base = self.f32(mix, "mix"), self.f32(scale, "scale"), self.f32(base, "base")
        tokens, width = mix.shape
        C = math.isqrt(width + 1) - 1
        fits = C * (C + 2) == width and base.shape == (width,) and scale.shape == (3,)
        expect(fits, "hc_split", mix.shape, scale.shape, base.shape)
        out = self.empty(tokens, C), self.empty(tokens, C), self.empty(tokens, C, C)
        values = (*map(self.at, (mix, scale, base, *out)), C, iters, eps)
        self.run([Step(t.HC_SPLIT, tokens, self.chunk(tokens, 4 * iters * C * C), values)])
        return out

    def hc_head_weights(self, mix: np.ndarray, scale: np.ndarray, base: np.ndarray, eps: float) -> np.ndarray:
        mix, scale, base = self.f32(mix, "mix"), self.f32(scale, "scale"), self.f32(base, "base")
        tokens, C = mix.shape
        expect(base.shape == (C,) and scale.shape == (1,), "hc_head_weights", mix.shape, scale.shape, base.shape)
        out = self.empty(tokens, C)
        values = (*map(self.at, (mix, scale, base, out)), C, eps)
        self.run([Step(t.HC_HEAD_WEIGHTS, tokens, self.chunk(tokens, 16 * C), values)])
        return out

    def hc_reduce(self, X: np.ndarray, w: np.ndarray) -> np.ndarray:
        X, w = self.f32(X, "X"), self.f32(w, "w")
        expect(X.ndim == 3 and w.shape == X.shape[:2], "hc_reduce", X.shape, w.shape)
        tokens, C, D = X.shape
        out = self.empty(tokens, D)
        self.run([Step(t.HC_REDUCE, tokens, self.chunk(tokens, C * D), (*map(self.at, (X, w, out)), C, D))])
        return out

    def hc_expand(self, X: np.ndarray, y: np.ndarray, post: np.ndarray, comb: np.ndarray) -> np.ndarray:
        X, y, post, comb = self.f32(X, "X"), self.f32(y, "y"), self.f32(post, "post"), self.f32(comb, "comb")
        expect(X.ndim == 3, "hc_expand", X.shape)
        tokens, C, D = X.shape
        fits = y.shape == (tokens, D) and post.shape == (tokens, C) and comb.shape == (tokens, C, C)
        expect(fits, "hc_expand", X.shape, y.shape, post.shape, comb.shape)
        out = self.empty(*X.shape)
        values = (*map(self.at, (X, y, post, comb, out)), C, D)
        self.run([Step(t.HC_EXPAND, tokens * C, self.chunk(tokens * C, C * D), values)])
        return out

    def streams(self, x: np.ndarray, count: int) -> np.ndarray:
        x = self.f32(x, "x")
        expect(x.ndim == 2, "streams", x.shape)
        out = self.empty(len(x), count, x.shape[1])
        items = len(x) * count
        self.run([Step(t.STREAMS, items, self.chunk(items, x.shape[1]), (self.at(x), self.at(out), x.shape[1], count))])
        return out

    def rope(
        self, x: np.ndarray, cos: np.ndarray, sin: np.ndarray, inverse: bool = False, halves: bool = False
    ) -> np.ndarray:
        x, cos, sin = self.f32(x, "x"), self.f32(cos, "cos"), self.f32(sin, "sin")
        expect(x.ndim == 3 and cos.shape == sin.shape and cos.ndim == 2, "rope", x.shape, cos.shape, sin.shape)
        expect(len(cos) == len(x) and 2 * cos.shape[1] <= x.shape[2], "rope", x.shape, cos.shape)
        tokens, heads, width = x.shape
        out = self.empty(*x.shape)
        values = (*map(self.at, (x, cos, sin, out)), heads, width, cos.shape[1], int(inverse), int(halves))
        self.run([Step(t.ROPE, tokens * heads, self.chunk(tokens * heads, width), values)])
        return out

    def add(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        a, b = self.f32(a, "a"), self.f32(b, "b")
        expect(a.shape == b.shape, "add", a.shape, b.shape)
        return self._elements(t.ADD, a.shape, (a, b))

    def scale(self, x: np.ndarray, factor: float) -> np.ndarray:
        x = self.f32(x, "x")
        return self._elements(t.SCALE, x.shape, (x,), factor)

    def _elements(self, task: Task, shape: tuple[int, ...], inputs: tuple, *numbers: float) -> np.ndarray:
        out = self.empty(*shape)
        self.run([Step(task, out.size, self.chunk(out.size, 4), (*map(self.at, (*inputs, out)), *numbers))])
        return out
