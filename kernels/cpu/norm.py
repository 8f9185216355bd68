"""RMS norm, hyper-connections, rope and elementwise arithmetic. What each op computes: ``ds4ref.kernels.ops``."""

from __future__ import annotations

from ..binding import bind
from . import tasktable as t
from .steps import Steps


class NormOps(Steps):
    """Norms, hyper-connections, rope and elementwise ops."""

    @bind
    def rms_norm(self, x, weight, eps, out, n):
        self.go(t.RMS_NORM, x.size // n if n else 0, n, (x, weight, out), n, eps)

    @bind
    def hc_split(self, mix, scale, base, iters, eps, pre, post, comb, T, C):
        self.go(t.HC_SPLIT, T, 4 * iters * C * C, (mix, scale, base, pre, post, comb), C, iters, eps)

    @bind
    def hc_head_weights(self, mix, scale, base, eps, out, T, C):
        self.go(t.HC_HEAD_WEIGHTS, T, 16 * C, (mix, scale, base, out), C, eps)

    @bind
    def hc_reduce(self, X, w, out, T, C, D):
        self.go(t.HC_REDUCE, T, C * D, (X, w, out), C, D)

    @bind
    def hc_expand(self, X, y, post, comb, out, T, C, D):
        self.go(t.HC_EXPAND, T * C, C * D, (X, y, post, comb, out), C, D)

    @bind
    def streams(self, x, count, out, T, D):
        self.go(t.STREAMS, T * count, D, (x, out), D, count)

    @bind
    def rope(self, x, cos, sin, inverse, halves, out, T, H, r, p):
        self.go(t.ROPE, T * H, 2 * r + p, (x, cos, sin, out), H, 2 * r + p, r, int(inverse), int(halves))

    @bind
    def add(self, a, b, out):
        self.go(t.ADD, out.size, 4, (a, b, out))

    @bind
    def scale(self, x, factor, out):
        self.go(t.SCALE, out.size, 4, (x, out), factor)

    @bind
    def remove_along(self, x, direction, factor, out, T, n):
        self.go(t.REMOVE_ALONG, T, 2 * n, (x, direction, out), n, factor)
