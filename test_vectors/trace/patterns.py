"""Describe in words where and how two arrays differ: positions, heads, channels; a factor, another arrangement."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

AXES = {
    "T": "position", "N": "compressed row", "W": "place in the window", "H": "head", "S": "slot", "E": "expert",
    "C": "residual stream", "K": "source stream", "R": "row", "F": "channel",
}  # fmt: skip
REST = 0.02
"""A factor explains a difference if at most this share of it remains; quantization rounds again after the factor."""
SHARE = 0.02
"""An index of an axis is affected if it is wrong in more than this share of the rows that are at the worst index."""
LISTED = 8


def describe(
    ours: np.ndarray, theirs: np.ndarray, limit: np.ndarray, rows: np.ndarray, axes: str, rope_dim: int
) -> list[str]:
    """Return sentences on where and how ``theirs`` (n, ...) differs from ``ours`` by more than ``limit`` (n,).

    rows      token positions of the rows (n,)
    axes      one letter per axis, as in ``ops.Op.axes``
    rope_dim  number of rotated channels at the end of the last axis
    """
    ours, theirs = ours.astype(np.float64), theirs.astype(np.float64)
    with np.errstate(invalid="ignore"):
        same = (ours == theirs) | (np.isnan(theirs) & np.isnan(ours))
        apart = np.abs(np.where(same, 0, ours - theirs))
    apart[np.isnan(apart)] = np.inf
    bad = apart > 4 * np.maximum(limit, 1e-30).reshape(-1, *(1,) * (ours.ndim - 1))
    hit = bad.reshape(len(bad), -1).any(axis=1)
    sentences = ["theirs has NaN values"] if np.isnan(theirs).any() and not np.isnan(ours).any() else []
    if not hit.any():
        return [*sentences, "many small differences and no large one"]
    sentences.append(_indices(AXES[axes[0]], rows[hit], rows, 0))
    for at in range(1, min(ours.ndim, len(axes))):
        size = ours.shape[at]
        if size > 1:
            share = bad[hit].any(axis=tuple(i for i in range(1, ours.ndim) if i != at)).mean(axis=0)
            where = np.flatnonzero(share > SHARE * share.max())
            sentences.append(_indices(AXES[axes[at]], where, np.arange(size), rope_dim if axes[at] == "F" else 0))
    return sentences + list(_relation(ours[hit], theirs[hit], limit[hit]))


def _indices(name: str, where: np.ndarray, every: np.ndarray, rope_dim: int) -> str:
    """Describe which indices are affected: "channels 3 to 7".

    name      of what is indexed, such as "channel"
    where     the affected indices
    every     all indices
    rope_dim  number of rotated channels at the end, 0 if there are none
    """
    n, tail = len(every), len(every) - rope_dim
    if len(where) == n:
        return f"all {n} {name}s" if n > 1 else f"{name} {where[0]}"
    if 0 < rope_dim < n:
        inside = where >= tail
        if inside.all() and len(where) > 0.5 * rope_dim:
            return f"the rotary tail: {len(where)} of the last {rope_dim} {name}s"
        if not inside.any() and len(where) > 0.5 * tail:
            return f"all but the rotary tail: {len(where)} of the first {tail} {name}s"
    if len(where) == 1:
        return f"{name} {where[0]} only"
    if where[-1] - where[0] == len(where) - 1:
        return f"from {name} {where[0]} on" if where[-1] == every[-1] else f"{name}s {where[0]} to {where[-1]}"
    listed = ", ".join(str(int(v)) for v in where[:LISTED]) + (", ..." if len(where) > LISTED else "")
    return f"{len(where)} of {n} {name}s: {listed}"


def _relation(ours: np.ndarray, theirs: np.ndarray, limit: np.ndarray) -> Iterator[str]:
    """Yield a sentence if a simple change makes theirs of ours: zero, a factor, or another order of the values.

    ``ours``, ``theirs``: the wrong rows; ``limit``: their limits (n,).
    """
    known = np.isfinite(ours) & np.isfinite(theirs) & (np.abs(ours) < 1e29)
    o, t = np.where(known, ours, 0), np.where(known, theirs, 0)
    if not (np.any(t) and np.any(o)):
        yield f"{'ours' if np.any(t) else 'theirs'} is all zero"
        return
    factor = float((o * t).sum()) / float((o * o).sum())
    rest = np.linalg.norm(t - o * factor)
    if factor and (rest < REST * np.linalg.norm(t - o) or _close(o * factor, t, limit)):
        yield f"theirs = {factor:.5g} x ours"
        return
    for says, other in _arrangements(o) if o.ndim > 1 else ():
        if other.shape == t.shape and _close(other, t, limit):
            yield f"theirs = ours with {says}"
            return


def _close(candidate: np.ndarray, theirs: np.ndarray, limit: np.ndarray) -> bool:
    """Whether 90 % of the rows differ by at most four times their limit, or 1e-5 of their size if that is more."""
    apart = np.sqrt(np.square(candidate - theirs).reshape(len(theirs), -1).mean(axis=1))
    size = np.sqrt(np.square(theirs).reshape(len(theirs), -1).mean(axis=1))
    return bool((apart <= np.maximum(4 * limit, 1e-5 * size)).mean() > 0.9)


def _arrangements(x: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Yield (description, array) for wrong orders of the values of ``x`` that bugs often cause."""
    n = x.shape[-1]
    if n % 2 == 0:
        yield "the halves of the channels swapped", np.roll(x, n // 2, axis=-1)
        yield "channels of each pair swapped", x.reshape(*x.shape[:-1], n // 2, 2)[..., ::-1].reshape(x.shape)
        yield "even channels first, then odd ones", np.concatenate((x[..., ::2], x[..., 1::2]), axis=-1)
        pairs = x.reshape(*x.shape[:-1], 2, n // 2)
        yield "first and second half interleaved", np.swapaxes(pairs, -1, -2).reshape(x.shape)
    if x.ndim == 3 and x.shape[1] == n:
        yield "its two axes transposed", np.swapaxes(x, 1, 2)
    if x.ndim == 3:
        yield "heads, slots or streams in reverse order", x[:, ::-1]
        yield "heads, slots or streams moved by one", np.roll(x, 1, axis=1)
    yield "every row that of the one before", np.concatenate((x[:1], x[:-1]))
    yield "every row that of the one after", np.concatenate((x[1:], x[-1:]))


def structure(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Return the share of the difference that is proportional to the values, or constant over a row or channel.

    1 for a factor or an offset, near 0 for independent errors such as rounding.
    """
    o = ours.reshape(-1, ours.shape[-1]).astype(np.float64)
    apart = theirs.reshape(o.shape).astype(np.float64) - o
    shares = []
    for x, d in ((o, apart), (o.T, apart.T)):
        square = np.einsum("ij,ij->i", d, d)
        with np.errstate(divide="ignore", invalid="ignore"):
            shares.append(np.nanmean(np.einsum("ij,ij->i", d, x) ** 2 / (square * np.einsum("ij,ij->i", x, x))))
            shares.append(np.nanmean(d.sum(axis=1) ** 2 / (square * d.shape[1])))
    return float(np.max(shares))
