"""Compute how far our result and another engine's may differ for one op on the same inputs before one of them is wrong.

Only ``SIGMAS`` and ``FLIPS`` are set by hand. The rest is measured, for every op and row (a token, or a compressed
row):

    noise  change of our own result in two more runs, with inputs perturbed by a few units in the last place and by the
           dump's storage error, and with other ways to compute rope angles
    lost   storage error of their result
    flip   total effect of the rounding set on the op. Noise can push single values across a rounding boundary, and each
           then moves by one step; a few such flips change a row less than rounding all of it does

A row that is off by more than noise explains is *hard* if noise and flips together do not explain it either, else
*soft*. The op is wrong if it has more rows of either kind than one noisy run compared with the other, or a hard row
that is much further off than any row of these.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

SIGMAS = 4.0
"""Allowed distance as a multiple of that between the noisy runs and the noiseless one."""
FLIPS = 1.5
"""Allowed effect of flips, as a multiple of the effect of rounding all of the row."""
FURTHER = 2.0
"""A single hard row makes an op wrong if it exceeds its limit by this many times more than any row of a noisy run."""
ULP = 2.0**-22


@dataclass(frozen=True)
class Judgement:
    """Verdict on one op; a distance is the rms difference between our row and theirs.

    wrong     whether the op is beyond its budget
    ratio     largest distance of a row in units of its limit
    relative  median distance in units of the median size of a row
    largest   largest distance of a row that is beyond its limit, in units of the row's size; 0 without one
    limit     median limit of a row
    hard      mask over rows: further off than noise and flips explain
    beyond    mask over rows: further off than noise explains
    """

    wrong: bool
    ratio: float
    relative: float
    largest: float
    limit: float
    hard: np.ndarray
    beyond: np.ndarray


def limits(noise: list[np.ndarray], size: np.ndarray, lost: np.ndarray) -> np.ndarray:
    """Return the largest distance that noise and storage explain, by row (n,).

    noise  distances of noisy runs from the noiseless one, an array (n,) each
    size   rms of the values (n,)
    lost   rms of their storage error (n,)
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
    """Judge whether an op's error is beyond its budget; all arrays are (n,), one value per row.

    apart  distance between our result and theirs
    noise  distances of two noisy runs from the noiseless one
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
