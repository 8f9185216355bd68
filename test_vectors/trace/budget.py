"""What may lie between our result and another engine's for the same op on the same inputs, and nobody be wrong.

Nothing here is set by hand but how many standard errors count as noise. For every op and row (a token, or a compressed
row):

    noise  our own op again, twice, on inputs moved by a few units in the last place and by what storing the dump lost,
           with other recipes for rope angles: what float arithmetic does to this very op on these very inputs
    lost   the storage error of their result
    flip   what the rounding set does to the op at all. Noise can push single values to the other side of a rounding
           boundary; each moves by one step, and few of them move a row less than rounding all of it does

A row beyond noise is *hard* if it is beyond the flips as well: no flip explains it. *Soft* rows are counted: as many
as the two noisy runs show between each other are nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

SIGMAS = 4.0
"""Noise counts up to this many times what the noisy runs show."""
FLIPS = 1.5
"""And flips up to this many times the whole effect of rounding on the row."""
ULP = 2.0**-22


@dataclass(frozen=True)
class Judgement:
    """One op. ``ratio``: the median row's distance in units of its limit; ``hard``, ``beyond``: masks over rows."""

    wrong: bool
    ratio: float
    relative: float
    limit: float
    hard: np.ndarray
    beyond: np.ndarray


def limits(noise: list[np.ndarray], size: np.ndarray, lost: np.ndarray) -> np.ndarray:
    """By row, how far results may lie apart."""
    joint = np.max(np.nan_to_num(np.stack(noise), nan=0.0, posinf=0.0), axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        typical = np.nanmedian(np.where(size > 0, joint / size, np.nan)) if np.any(size > 0) else 0.0
    typical = 0.0 if np.isnan(typical) else typical
    whole = np.nan_to_num(size, nan=0.0, posinf=0.0)
    return SIGMAS * np.maximum(joint, 0.5 * typical * whole) + 2 * np.nan_to_num(lost) + ULP * whole


def judge(
    apart: np.ndarray,
    noise: list[np.ndarray],
    size: np.ndarray,
    lost: np.ndarray,
    flip: np.ndarray | None,
) -> Judgement:
    """``apart``, ``size``, ``lost`` and ``flip`` (n,) and two arrays of noise (n,): is the op beyond its budget?"""
    limit = limits(noise, size, lost)
    known = ~np.isnan(apart)
    distance = np.where(known, apart, 0.0)
    beyond = known & (distance > limit)
    step = np.zeros_like(limit) if flip is None else np.nan_to_num(flip, nan=0.0, posinf=np.inf)
    hard = beyond & (distance > limit + FLIPS * step)
    # the same question put to the two noisy runs: how often is one beyond the limit that the other one gives?
    alone = limits(noise[1:], size, lost)
    first = np.nan_to_num(noise[0])
    share = float((known & (first > alone)).sum()) / max(1, int(known.sum()))
    count = max(1, int(known.sum()))
    allowed = 3 * share + 3 * np.sqrt(share / count) + (2 / count if np.any(step > 0) else 0.0)
    soft_wrong = beyond.sum() / count > max(allowed, 0.0) and bool(beyond.any())
    hard_share = float((known & (first > alone + FLIPS * step)).sum()) / count
    hard_wrong = hard.sum() / count > 3 * hard_share + 3 * np.sqrt(hard_share / count)
    if not known.any():
        return Judgement(False, 0.0, 0.0, 0.0, hard, beyond)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = float(np.median(distance[known] / np.maximum(limit[known], 1e-300)))
        relative = float(np.median(distance[known]) / max(float(np.median(size[known])), 1e-30))
    return Judgement(bool(soft_wrong or hard_wrong), ratio, relative, float(np.median(limit[known])), hard, beyond)
