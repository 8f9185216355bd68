"""Tell directional steering from other mistakes, along directions that nobody gave.

A steered half layer adds y - s d (d . y) in place of y. So what is apart from ours lies along one direction u for all
tokens, and as far along it as y does: two conditions on hundreds of numbers with one scale. Only s |d|^2 is seen, the
scale along the unit vector. It shows in the half's result if that was dumped after steering, else in the streams.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ds4ref.archs.steering import HALF_NAMES

if TYPE_CHECKING:
    from .blame import Blaming, WrongOp

LEAST_ROWS = 8
"""Rows from which on steering is looked for."""
REST = 0.02
"""Largest share of a row's squared difference that is not explained."""
MOST_ROWS = 0.9
"""Least share of rows that must be explained, each by itself: one row of large values says little of the others."""


def scale_of(apart: np.ndarray, added: np.ndarray) -> float | None:
    """Return the scale of steering that makes ``apart`` (rows, dim) of what was added unsteered (rows, dim).

    Rows count alike, whatever their length. None if something else is needed.
    """
    apart, added = apart.astype(np.float64), added.astype(np.float64)
    length = np.linalg.norm(added, axis=1)
    apart, added = apart[length > 0] / length[length > 0, None], added[length > 0] / length[length > 0, None]
    if len(apart) < LEAST_ROWS or not np.isfinite(apart).all() or not apart.any():
        return None
    u = np.linalg.svd(apart, full_matrices=False)[2][0]
    along = added @ u
    own = float(along @ along)
    if not own:
        return None
    scale = -float(apart @ u @ along) / own
    rest = apart + scale * along[:, None] * u
    explained = (rest * rest).sum(axis=1) <= REST * (apart * apart).sum(axis=1)
    return scale if explained.mean() >= MOST_ROWS else None


def steered_at(case: Blaming, wrong: WrongOp) -> float | None:
    """Return the scale of steering that explains a wrong op; None if the op is another, or steering does not."""
    name, layer = wrong.key
    half = next((half for half in HALF_NAMES if name in (f"{half}_out", f"hc_{half}_post")), "")
    fits = case.theirs.get(wrong.key, None) if half else None
    ours = case.clean_pass(wrong.rounding).ours
    out = ours.get((f"{half}_out", layer))
    if fits is None or len(fits) != 1 or fits[0].partial or wrong.key not in ours or out is None:
        return None
    mine = ours[wrong.key]
    apart = fits[0].values.astype(np.float64).reshape(mine.shape) - mine
    added = out.reshape(len(mine), -1)
    if name.endswith("_post"):
        post = ours.get((f"hc_{half}_pre_post_weights", layer))
        if post is None:
            return None
        added = (post[:, :, None] * added[:, None, :]).reshape(-1, added.shape[1])
        apart = apart.reshape(added.shape)
    return scale_of(apart.reshape(len(added), -1), added)


def sentence(explained: Sequence[tuple[str, float]]) -> str:
    """Return the explanation of wrong ops by the half and the scale of each."""
    parts = []
    for half, text in HALF_NAMES.items():
        scales = [scale for name, scale in explained if half in name]
        if scales:
            low, high = min(scales), max(scales)
            span = f"{low:.3g}" if f"{low:.3g}" == f"{high:.3g}" else f"{low:.3g} to {high:.3g}"
            layers = f"{len(scales)} layer" + ("s" if len(scales) > 1 else "")
            parts.append(f"one direction in each of {layers}, after {text}, at scale {span} along its unit vector")
    return f"directional steering: {'; '.join(parts)}"
