"""Hyper-connections and norms of the trainer, forward and backward, as compiled loops over tokens.

Written with plain tensor operations a hyper-connection is eighty small operations, each over all tokens; here it is one
pass. ``model.py`` holds the plain form of each, which runs where tensors are not on the CPU.
Every function takes float32 and keeps sums in float32; one thread, because training runs one process a core.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numba import njit

STREAMS = 4
_compiled = njit(cache=True, fastmath={"contract", "reassoc", "nsz"}, nogil=True)


@_compiled
def _split(mix, scale, base, eps, iters, pre, post, comb, history):
    """Split mixes (N, 24) into pre (N, 4), post (N, 4) and the doubly stochastic comb (N, 4, 4).

    ``history`` (2 * iters, 4, 4) is scratch: the matrix before every division of one token, when ``history`` has rows.
    """
    for n in range(mix.shape[0]):
        _split_one(mix[n], scale, base, eps, iters, pre[n], post[n], comb[n], history)


@_compiled
def _split_one(m, scale, base, eps, iters, pre, post, a, history):
    eps = np.float32(eps)
    one = np.float32(1.0)
    for k in range(4):
        pre[k] = one / (one + np.exp(-(m[k] * scale[0] + base[k]))) + eps
        post[k] = np.float32(2.0) / (one + np.exp(-(m[4 + k] * scale[1] + base[4 + k])))
    for r in range(4):
        top = np.float32(-1e30)
        for c in range(4):
            a[r, c] = m[8 + 4 * r + c] * scale[2] + base[8 + 4 * r + c]
            top = max(top, a[r, c])
        s = np.float32(0.0)
        for c in range(4):
            a[r, c] = np.exp(a[r, c] - top)
            s += a[r, c]
        for c in range(4):
            a[r, c] = a[r, c] / s + eps
    keep = history.shape[0] > 0
    step = 0
    for it in range(iters):
        if it > 0:
            if keep:
                history[step] = a
            step += 1
            for r in range(4):
                inv = one / (a[r, 0] + a[r, 1] + a[r, 2] + a[r, 3] + eps)
                for c in range(4):
                    a[r, c] *= inv
        if keep:
            history[step] = a
        step += 1
        for c in range(4):
            inv = one / (a[0, c] + a[1, c] + a[2, c] + a[3, c] + eps)
            for r in range(4):
                a[r, c] *= inv


@_compiled
def _split_backward(mix, scale, base, eps, iters, dpre, dpost, dcomb, dmix, dscale, dbase):
    """Write the gradient of the mixes to ``dmix`` (N, 24); add those of scale (3,) and base (24,)."""
    history = np.empty((2 * iters, 4, 4), np.float32)
    a = np.empty((4, 4), np.float32)
    g = np.empty((4, 4), np.float32)
    pre = np.empty(4, np.float32)
    post = np.empty(4, np.float32)
    soft = np.empty((4, 4), np.float32)
    feps = np.float32(eps)
    one = np.float32(1.0)
    for n in range(mix.shape[0]):
        m = mix[n]
        _split_one(m, scale, base, eps, iters, pre, post, a, history)
        for k in range(4):
            p = pre[k] - feps
            d = dpre[n, k] * p * (one - p)
            dmix[n, k] = d * scale[0]
            dscale[0] += d * m[k]
            dbase[k] += d
            p = post[k] * np.float32(0.5)
            d = dpost[n, k] * np.float32(2.0) * p * (one - p)
            dmix[n, 4 + k] = d * scale[1]
            dscale[1] += d * m[4 + k]
            dbase[4 + k] += d
        for r in range(4):
            for c in range(4):
                g[r, c] = dcomb[n, r, c]
        for step in range(2 * iters - 2, -1, -1):
            h = history[step]
            if step % 2 == 0:  # a division by column sums
                for c in range(4):
                    inv = one / (h[0, c] + h[1, c] + h[2, c] + h[3, c] + feps)
                    t = np.float32(0.0)
                    for r in range(4):
                        t += g[r, c] * h[r, c]
                    t *= inv * inv
                    for r in range(4):
                        g[r, c] = g[r, c] * inv - t
            else:
                for r in range(4):
                    inv = one / (h[r, 0] + h[r, 1] + h[r, 2] + h[r, 3] + feps)
                    t = np.float32(0.0)
                    for c in range(4):
                        t += g[r, c] * h[r, c]
                    t *= inv * inv
                    for c in range(4):
                        g[r, c] = g[r, c] * inv - t
        for r in range(4):
            t = np.float32(0.0)
            for c in range(4):
                soft[r, c] = history[0, r, c] - feps
                t += g[r, c] * soft[r, c]
            for c in range(4):
                d = soft[r, c] * (g[r, c] - t)
                k = 8 + 4 * r + c
                dmix[n, k] = d * scale[2]
                dscale[2] += d * m[k]
                dbase[k] += d


@_compiled
def _mean_square(x, out):
    for n in range(x.shape[0]):
        s = np.float32(0.0)
        for i in range(x.shape[1]):
            s += x[n, i] * x[n, i]
        out[n] = s / np.float32(x.shape[1])


@_compiled
def _gather(x, pre, h):
    """Write the weighted sum of streams: x (N, 4, D), pre (N, 4), h (N, D)."""
    for n in range(x.shape[0]):
        for i in range(x.shape[2]):
            h[n, i] = pre[n, 0] * x[n, 0, i] + pre[n, 1] * x[n, 1, i] + pre[n, 2] * x[n, 2, i] + pre[n, 3] * x[n, 3, i]


@_compiled
def _gather_backward(x, dh, dpre):
    for n in range(x.shape[0]):
        for k in range(4):
            s = np.float32(0.0)
            for i in range(x.shape[2]):
                s += x[n, k, i] * dh[n, i]
            dpre[n, k] = s


@_compiled
def _add_gather_gradient(x, pre, dh, along, dx):
    """Add to dx (N, 4, D), which holds the gradient through the mixes: pre * dh, and ``along`` (N,) * x."""
    for n in range(x.shape[0]):
        for k in range(4):
            p, q = pre[n, k], along[n]
            for i in range(x.shape[2]):
                dx[n, k, i] += p * dh[n, i] + q * x[n, k, i]


@_compiled
def _scatter(x, y, post, comb, out):
    """Write the streams after a block: out_k = post_k * y + sum_j comb[j][k] * x_j."""
    for n in range(x.shape[0]):
        for k in range(4):
            a, b, c, d, p = comb[n, 0, k], comb[n, 1, k], comb[n, 2, k], comb[n, 3, k], post[n, k]
            for i in range(x.shape[2]):
                out[n, k, i] = p * y[n, i] + a * x[n, 0, i] + b * x[n, 1, i] + c * x[n, 2, i] + d * x[n, 3, i]


@_compiled
def _scatter_backward(x, y, post, comb, g, dx, dy, dpost, dcomb):
    for n in range(x.shape[0]):
        for i in range(x.shape[2]):
            dy[n, i] = (
                post[n, 0] * g[n, 0, i] + post[n, 1] * g[n, 1, i] + post[n, 2] * g[n, 2, i] + post[n, 3] * g[n, 3, i]
            )
        for j in range(4):
            a, b, c, d = comb[n, j, 0], comb[n, j, 1], comb[n, j, 2], comb[n, j, 3]
            for i in range(x.shape[2]):
                dx[n, j, i] = a * g[n, 0, i] + b * g[n, 1, i] + c * g[n, 2, i] + d * g[n, 3, i]
        for k in range(4):
            s = np.float32(0.0)
            t0 = np.float32(0.0)
            t1 = np.float32(0.0)
            t2 = np.float32(0.0)
            t3 = np.float32(0.0)
            for i in range(x.shape[2]):
                v = g[n, k, i]
                s += v * y[n, i]
                t0 += v * x[n, 0, i]
                t1 += v * x[n, 1, i]
                t2 += v * x[n, 2, i]
                t3 += v * x[n, 3, i]
            dpost[n, k] = s
            dcomb[n, 0, k] = t0
            dcomb[n, 1, k] = t1
            dcomb[n, 2, k] = t2
            dcomb[n, 3, k] = t3


@_compiled
def _norm(x, w, eps, y, r):
    for n in range(x.shape[0]):
        s = np.float32(0.0)
        for i in range(x.shape[1]):
            s += x[n, i] * x[n, i]
        f = np.float32(1.0) / np.sqrt(s / np.float32(x.shape[1]) + np.float32(eps))
        r[n] = f
        for i in range(x.shape[1]):
            y[n, i] = x[n, i] * f * w[i]


@_compiled
def _norm_backward(x, w, r, g, dx, dw):
    size = np.float32(x.shape[1])
    for n in range(x.shape[0]):
        f = r[n]
        s = np.float32(0.0)
        for i in range(x.shape[1]):
            v = g[n, i] * x[n, i]
            s += v * w[i]
            dw[i] += v * f
        s *= f * f * f / size
        for i in range(x.shape[1]):
            dx[n, i] = g[n, i] * w[i] * f - s * x[n, i]


def _array(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().numpy()


class HyperPre(torch.autograd.Function):
    """Streams (N, 4, D), fn (24, 4 D), scale (3,), base (24,) -> block input (N, D), post (N, 4), comb (N, 4, 4)."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, fn: torch.Tensor, scale: torch.Tensor, base: torch.Tensor,
                rms_eps: float, hc_eps: float, iters: int) -> tuple[torch.Tensor, ...]:  # fmt: skip
        n, streams, width = x.shape
        flat = x.reshape(n, streams * width)
        square = torch.empty(n)
        _mean_square(_array(flat), _array(square))
        r = torch.rsqrt(square + rms_eps)
        product = flat @ fn.T
        mix = product * r[:, None]
        pre, post, comb, h = torch.empty(n, 4), torch.empty(n, 4), torch.empty(n, 4, 4), torch.empty(n, width)
        none = np.empty((0, 4, 4), np.float32)
        _split(_array(mix), _array(scale), _array(base), hc_eps, iters, _array(pre), _array(post), _array(comb), none)
        _gather(_array(x), _array(pre), _array(h))
        ctx.save_for_backward(x, fn, scale, base, r, product, pre)
        ctx.settings = (hc_eps, iters)
        return h, post, comb

    @staticmethod
    def backward(ctx: Any, dh: torch.Tensor, dpost: torch.Tensor, dcomb: torch.Tensor) -> tuple[Any, ...]:
        x, fn, scale, base, r, product, pre = ctx.saved_tensors
        hc_eps, iters = ctx.settings
        n, streams, width = x.shape
        dh, dpost, dcomb = dh.contiguous(), dpost.contiguous(), dcomb.contiguous()
        dpre, mix, dmix = torch.empty(n, 4), product * r[:, None], torch.empty(n, 24)
        dscale, dbase = torch.zeros(3), torch.zeros(24)
        _gather_backward(_array(x), _array(dh), _array(dpre))
        _split_backward(_array(mix), _array(scale), _array(base), hc_eps, iters, _array(dpre), _array(dpost),
                        _array(dcomb), _array(dmix), _array(dscale), _array(dbase))  # fmt: skip
        dproduct = dmix * r[:, None]
        along = (dmix * product).sum(1) * (-(r**3) / (streams * width))
        flat = x.reshape(n, streams * width)
        dx = (dproduct @ fn).reshape(x.shape)
        _add_gather_gradient(_array(x), _array(pre), _array(dh), _array(along), _array(dx))
        return dx, dproduct.T @ flat, dscale, dbase, None, None, None


class HyperPost(torch.autograd.Function):
    """Streams (N, 4, D), block output (N, D), post (N, 4), comb (N, 4, 4) -> streams after the block (N, 4, D)."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor, post: torch.Tensor, comb: torch.Tensor) -> torch.Tensor:
        y = y.contiguous()
        out = torch.empty_like(x)
        _scatter(_array(x), _array(y), _array(post), _array(comb), _array(out))
        ctx.save_for_backward(x, y, post, comb)
        return out

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x, y, post, comb = ctx.saved_tensors
        g = g.contiguous()
        dx, dy, dpost, dcomb = (torch.empty_like(t) for t in (x, y, post, comb))
        _scatter_backward(_array(x), _array(y), _array(post), _array(comb), _array(g),
                          _array(dx), _array(dy), _array(dpost), _array(dcomb))  # fmt: skip
        return dx, dy, dpost, dcomb


class Norm(torch.autograd.Function):
    """Root-mean-square norm of rows (N, D) with weight (D,)."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor, eps: float) -> torch.Tensor:
        x = x.contiguous()
        y, r = torch.empty_like(x), torch.empty(x.shape[0])
        _norm(_array(x), _array(w), eps, _array(y), _array(r))
        ctx.save_for_backward(x, w, r)
        return y

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[Any, ...]:
        x, w, r = ctx.saved_tensors
        g = g.contiguous()
        dx, dw = torch.empty_like(x), torch.zeros_like(w)
        _norm_backward(_array(x), _array(w), _array(r), _array(g), _array(dx), _array(dw))
        return dx, dw, None
