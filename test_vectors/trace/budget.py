"""Compute how far our result and another engine's may differ for one op on the same inputs before one of them is wrong.

Only ``SIGMAS`` and ``FLIPS`` are set by hand. The rest is measured, for every op and row (a token, or a compressed
row):

    noise  change of our own result in two more runs, with inputs perturbed by a few units in the last place and by the
           dump's storage error, and with other recipes for rope angles
    lost   storage error of their result
    flip   total effect of the rounding set on the op. Noise can push single values across a rounding boundary; each
           moves by one step, and a few such steps move a row less than rounding all of it does

A row beyond its noise is *hard* if it is beyond the flips as well: no flip explains it. The other rows beyond their
noise are *soft*. The op is wrong if it has more rows of either kind than the two noisy runs show against each other, or
a hard one that is much further off than any of theirs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

SIGMAS = 4.0
"""Allowed distance as a multiple of the distance between the noisy runs and the clean one."""
FLIPS = 1.5
"""Allowed effect of flips, as a multiple of the whole effect of rounding on the row."""
FURTHER = 2.0
"""A row is wrong whatever the noisy runs show if it is this many times further beyond its budget than any of theirs."""
ULP = 2.0**-22


@dataclass(frozen=True)
class Judgement:
    """Verdict on one op; a distance is the rms difference of a row.

    wrong     whether the op is beyond its budget
    ratio     largest distance of a row in units of its limit
    relative  median distance in units of the median size of a row
    largest   largest distance of a row that is beyond its limit, in units of the row's size; 0 without one
    limit     median limit of a row
    hard      mask over rows: beyond noise and flips
    beyond    mask over rows: beyond noise
    """

    wrong: bool
    ratio: float
    relative: float
    largest: float
    limit: float
    hard: np.ndarray
    beyond: np.ndarray


def limits(noise: list[np.ndarray], size: np.ndarray, lost: np.ndarray) -> np.ndarray:
    """Return the largest distance that noise and storage allow, by row (n,).

    ``noise``: arrays (n,) of measured distances; ``size``, ``lost``: rms of the values and of their storage error (n,).
    """
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
    """Judge whether an op is beyond its budget; all arrays are (n,), one value a row.

    apart  distance between our result and theirs
    noise  distances of two noisy runs from the clean one
    size   rms of the values
    lost   rms of the storage error of their values
    flip   effect of the rounding set on our result; None if it rounds nothing
    """
    limit = limits(noise, size, lost)
    known = ~np.isnan(apart)
    count = max(1, int(known.sum()))
    distance = np.where(known, apart, 0.0)
    step = np.zeros_like(limit) if flip is None else np.nan_to_num(flip, nan=0.0, posinf=np.inf)
    beyond = known & (distance > limit)
    hard = beyond & (distance > limit + FLIPS * step)
    if not known.any():
        return Judgement(False, 0.0, 0.0, 0.0, 0.0, hard, beyond)
    # the false-positive rate: how often is one noisy run beyond the limit that the other one gives?
    first, alone = np.nan_to_num(noise[0]), limits(noise[1:], size, lost)
    bound = alone + FLIPS * step
    share, hard_share = (float((known & (first > most)).sum()) / count for most in (alone, bound))
    allowed = 3 * share + 3 * np.sqrt(share / count) + (2 / count if np.any(step > 0) else 0.0)
    soft_wrong = beyond.sum() / count > allowed
    hard_wrong = hard.sum() / count > 3 * hard_share + 3 * np.sqrt(hard_share / count)
    with np.errstate(divide="ignore", invalid="ignore"):
        usual = np.nan_to_num(first / bound, nan=0.0, posinf=np.inf)[known].max(initial=1.0)
        hard_wrong |= bool((distance[hard] > FURTHER * usual * (limit + FLIPS * step)[hard]).any())
        ratio = float(np.max(distance[known] / np.maximum(limit[known], 1e-300)))
        relative = float(np.median(distance[known]) / max(float(np.median(size[known])), 1e-30))
        largest = float(np.max(distance[beyond] / np.maximum(size[beyond], 1e-30), initial=0.0))
    wrong = bool(soft_wrong or hard_wrong)
    return Judgement(wrong, ratio, relative, largest, float(np.median(limit[known])), hard, beyond)
