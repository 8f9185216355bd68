"""Describe in words where and how two arrays differ: positions, heads, channels; a factor, a permutation, a shift."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

AXES = {
    "T": "position", "N": "compressed row", "W": "place in the window", "H": "head", "S": "slot", "E": "expert",
    "C": "stream", "K": "source stream", "R": "row", "F": "channel",
}  # fmt: skip
REST = 0.02
"""A factor explains a difference if it leaves at most this share of it (multiplied block scales are rounded again)."""
SHARE = 0.02
"""An index counts as affected if at least this share of the wrong rows is wrong there."""


def describe(
    ours: np.ndarray,
    theirs: np.ndarray,
    limit: np.ndarray,
    rows: np.ndarray,
    axes: str,
    rope_dim: int,
    experts: np.ndarray | None = None,
    partial: bool = False,
) -> list[str]:
    """Return sentences on where and how ``theirs`` (n, ...) differs from ``ours`` by more than ``limit`` (n,).

    rows      token positions of the rows (n,)
    axes      a letter per axis (AXES)
    rope_dim  number of rotated channels at the end of the last axis
    experts   expert ids of the slots (n, S)
    partial   whether NaN in ``theirs`` means unknown; else it means wrong
    """
    ours, theirs = ours.astype(np.float64), theirs.astype(np.float64)
    flat = (-1, *(1,) * (ours.ndim - 1))
    with np.errstate(invalid="ignore"):
        same = (ours == theirs) | (np.isnan(theirs) & (partial | np.isnan(ours)))
        apart = np.abs(np.where(same, 0, ours - theirs))
    apart[np.isnan(apart)] = np.inf
    bad = apart > 4 * np.maximum(limit, 1e-30).reshape(flat)
    hit = bad.reshape(len(bad), -1).any(axis=1)
    sentences = []
    if not partial and np.isnan(theirs).any() and not np.isnan(ours).any():
        sentences.append("theirs has NaN values")
    if not hit.any():
        return [*sentences, "many small differences and no large one"]
    sentences.append(_indices(AXES[axes[0]], rows[hit], rows, 0))
    for at in range(1, min(ours.ndim, len(axes))):
        name, size = AXES[axes[at]], ours.shape[at]
        if size == 1:
            continue
        share = bad[hit].any(axis=tuple(i for i in range(1, ours.ndim) if i != at)).mean(axis=0)
        where = np.flatnonzero(share > SHARE * share.max())
        if axes[at] == "S" and experts is not None:
            sentences += _experts(bad, experts, at)
        else:
            sentences.append(_indices(name, where, np.arange(size), rope_dim if axes[at] == "F" else 0))
    sentences += list(_relation(ours[hit], theirs[hit], limit[hit]))
    return sentences


def _experts(bad: np.ndarray, experts: np.ndarray, at: int) -> Iterator[str]:
    wrong = np.asarray(bad.any(axis=tuple(i for i in range(1, bad.ndim) if i != at)))
    if wrong.shape != experts.shape:
        return
    every = np.unique(experts)
    share = np.array([wrong[experts == e].mean() for e in every])
    where = every[share > 0.2 * share.max()]
    if len(where) < len(every):
        yield f"{'expert' if len(where) == 1 else 'experts'} {_listed(where)} only"


def _indices(name: str, where: np.ndarray, every: np.ndarray, rope_dim: int) -> str:
    """Describe which of the indices ``every`` are affected, those in ``where``."""
    n = len(every)
    if len(where) == n:
        return f"all {n} {name}s" if n > 1 else f"{name} {where[0]}"
    tail = n - rope_dim
    if 0 < rope_dim < n:
        inside = where >= tail
        if inside.all() and len(where) > 0.5 * rope_dim:
            return f"the rotary tail: {len(where)} of the last {rope_dim} {name}s"
        if not inside.any() and len(where) > 0.5 * tail:
            return f"all but the rotary tail: {len(where)} of the first {tail} {name}s"
    if len(where) == 1:
        return f"{name} {where[0]} only"
    if np.array_equal(where, np.arange(where[0], where[-1] + 1)):
        if where[-1] == every[-1]:
            return f"from {name} {where[0]} on"
        if where[0] == every[0]:
            return f"up to {name} {where[-1]}"
        return f"{name}s {where[0]} to {where[-1]}"
    steps = np.diff(where)
    if len(where) > 2 and (steps == steps[0]).all():
        return f"every {_nth(int(steps[0]))} {name}, {where[0]} first ({len(where)})"
    for modulus in (2, 4, 8, 16, 32, 64, 128):
        rests = np.unique(where % modulus)
        full = every[np.isin(every % modulus, rests)]
        if len(rests) <= modulus // 2 and len(where) > 0.8 * len(full):
            runs = np.array_equal(rests, np.arange(rests[0], rests[-1] + 1))
            lanes = f"{rests[0]} to {rests[-1]}" if runs and len(rests) > 1 else _listed(rests)
            return f"{name}s that are {lanes} modulo {modulus} ({len(where)} of {n})"
    late = every[every >= where[0]]
    if len(where) > 0.7 * len(late) and where[0] > every[0]:
        return f"{name}s from {where[0]} on ({len(where)} of {len(late)})"
    return f"{len(where)} of {n} {name}s: {_listed(where)}"


def _nth(n: int) -> str:
    return {2: "second", 3: "third", 4: "fourth", 8: "eighth"}.get(n, f"{n}th")


def _listed(values: np.ndarray, most: int = 8) -> str:
    text = ", ".join(str(int(v)) for v in values[:most])
    return text + (", ..." if len(values) > most else "")


# ------------------------------------------------------------------------------------------------- relations


def _relation(ours: np.ndarray, theirs: np.ndarray, limit: np.ndarray) -> Iterator[str]:
    """Yield descriptions of how theirs follows from ours, for the wrong rows."""
    known = np.isfinite(ours) & np.isfinite(theirs) & (np.abs(ours) < 1e29)
    o, t = np.where(known, ours, 0), np.where(known, theirs, 0)
    if not np.any(t):
        yield "theirs is all zero"
        return
    if not np.any(o):
        yield "ours is all zero"
        return
    factor = fit_factor(o, t, limit)
    if factor is not None:
        yield factor
        return
    for says, other in _arrangements(o) if o.ndim > 1 else ():
        if other.shape == t.shape and _close(other, t, limit):
            yield f"theirs = ours with {says}"
            return
    if o.ndim == 3 and o.shape[1] > 1:
        yield from _by_index(o, t, limit)
    offset = (t - o).mean()
    if _close(o + offset, t, limit):
        yield f"theirs = ours {offset:+.6g}"


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


def fit_factor(ours: np.ndarray, theirs: np.ndarray, limit: np.ndarray) -> str | None:
    """Describe the difference as one factor for all values, or one per row; None if neither explains it."""
    whole = _factor(ours, theirs)
    rest, apart = np.linalg.norm(theirs - ours * whole), np.linalg.norm(theirs - ours)
    if np.isfinite(whole) and whole != 0 and (rest < REST * apart or _close(ours * whole, theirs, limit)):
        spread = float(rest) / max(float(np.linalg.norm(ours)), 1e-30)
        return "theirs = -ours" if abs(whole + 1) < 1e-5 else f"theirs = {whole:.5g} x ours, +-{spread:.1g}"
    o, t = ours.reshape(len(ours), -1), theirs.reshape(len(ours), -1)
    if o.shape[1] < 4:
        return None
    with np.errstate(divide="ignore", invalid="ignore"):
        rows = (o * t).sum(axis=1) / (o * o).sum(axis=1)
    if np.isfinite(rows).all() and _close(o * rows[:, None], t, limit):
        return f"each row has a factor of its own: theirs = {rows.min():.4g} to {rows.max():.4g} x ours"
    return None


def _factor(ours: np.ndarray, theirs: np.ndarray) -> float:
    square = float((ours * ours).sum())
    return float((ours * theirs).sum()) / square if square > 0 else 0.0


def _close(candidate: np.ndarray, theirs: np.ndarray, limit: np.ndarray) -> bool:
    """Whether nearly all rows are within four limits, or 1e-5 of their size if that is more."""
    apart = np.sqrt(np.square(candidate - theirs).reshape(len(theirs), -1).mean(axis=1))
    size = np.sqrt(np.square(theirs).reshape(len(theirs), -1).mean(axis=1))
    return bool((apart <= np.maximum(4 * limit, 1e-5 * size)).mean() > 0.9)


def _by_index(ours: np.ndarray, theirs: np.ndarray, limit: np.ndarray) -> Iterator[str]:
    factors = np.array([_factor(ours[:, i], theirs[:, i]) for i in range(ours.shape[1])])
    if _close(ours * factors[None, :, None], theirs, limit):
        yield "one factor each: theirs = " + ", ".join(f"{f:.4g}" for f in factors[:8]) + " x ours"


def _arrangements(x: np.ndarray) -> Iterator[tuple[str, Any]]:
    n = x.shape[-1]
    if n % 2 == 0 and n > 1:
        yield "the halves of the channels swapped", np.roll(x, n // 2, axis=-1)
        yield "channels of each pair swapped", x.reshape(*x.shape[:-1], n // 2, 2)[..., ::-1].reshape(x.shape)
        yield "even channels first, then odd ones", np.concatenate((x[..., ::2], x[..., 1::2]), axis=-1)
        pairs = x.reshape(*x.shape[:-1], 2, n // 2)
        yield "first and second half interleaved", np.swapaxes(pairs, -1, -2).reshape(x.shape)
    if n > 1:
        yield "channels in reverse order", x[..., ::-1]
        yield "channels moved by one", np.roll(x, 1, axis=-1)
        yield "channels moved back by one", np.roll(x, -1, axis=-1)
    if x.ndim == 3 and x.shape[1] == n:
        yield "its two axes transposed", np.swapaxes(x, 1, 2)
    if x.ndim == 3 and x.shape[1] > 1:
        yield "heads, slots or streams in reverse order", x[:, ::-1]
        yield "heads, slots or streams moved by one", np.roll(x, 1, axis=1)
        if x.shape[1] % 2 == 0:
            yield "halves of its second axis swapped", np.roll(x, x.shape[1] // 2, axis=1)
    if len(x) > 2:
        yield "every row that of the one before", np.concatenate((x[:1], x[:-1]))
        yield "every row that of the one after", np.concatenate((x[1:], x[-1:]))
