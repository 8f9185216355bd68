"""Detection limit of a verdict "no mistake": which mistakes would have been noticed, and which not.

A mistake that changes the numbers less than a rounding set's own noise looks like a correct engine. The limit is stated
as a size, the smallest rms change of log probabilities at all positions that would have been noticed; and by name: the
numbers of an engine with each known mistake are put in place of the observed ones, to see whether they would fit.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .case import Candidate, Case
from .evidence import FOREIGN, LIMIT

SHOWN = 12


def detection_limit(case: Case, clean: Candidate, others: list[Candidate]) -> dict[str, Any]:
    """Measure the detection limit of the rounding set ``clean``; ``others`` are candidates with a mistake in that set.

    Return an object for JSON, effects and sizes in nats rms:

    noise          difference between correct engines
    size           smallest uniform change that would have been noticed
    seen           number of mistakes that would have been noticed; ``smallest_seen``: [name, effect] of the smallest
    not_seen       [name, effect] of mistakes that would not have been noticed, smallest first
    says           the limit in sentences

    Mistakes that a short run ruled out (``case.refused``) count as noticed, with their effect at the first rows.
    """
    ref = case.reference(clean.mode)
    mean, spread = ref.usual.whole()
    # mean level from which on there is a misfit; a change at all positions alike shows in the mean first
    bar = mean + LIMIT * spread
    noise = float(np.sqrt(ref.expected.mean()))
    if ref.coarse:
        size = noise * float(np.sqrt(max(np.exp(2 * bar) - 1, 1e-6)))
    else:  # another engine may have more float noise than ours
        bare = float(np.sqrt((ref.expected - ref.storage).mean()))
        size = float(
            np.hypot(bare * np.exp(FOREIGN), np.sqrt(ref.storage.mean()) * np.sqrt(max(np.exp(2 * bar) - 1, 0)))
        )
    seen = list(case.refused.get(clean.mode, {}).items())
    hidden: list[tuple[str, float]] = []
    for c in others:
        effect = float(np.sqrt(np.nanmean((c.rows - clean.rows) ** 2)))
        (seen if ref.fit(c.rows).misfit >= LIMIT else hidden).append((c.name, effect))
    seen.sort(key=lambda item: item[1])
    hidden.sort(key=lambda item: item[1])
    # flipped quantization steps may hide more than that: the limit is at least the largest mistake that went unnoticed
    size = max([size, *(effect for _, effect in hidden)])
    says = [f"detection limit: a change of {size:.2g} nats (rms) at all positions; noise is {noise:.2g}"]
    if seen:
        name, effect = seen[0]
        says.append(f"{len(seen)} mistakes of the library would have been detected, the smallest {name} "
                    f"({effect:.2g} nats)")  # fmt: skip
    if hidden:
        names = ", ".join(f"{name} ({rms:.1g})" for name, rms in reversed(hidden[-SHOWN:]))
        more = f" and {len(hidden) - SHOWN} more" if len(hidden) > SHOWN else ""
        says.append(f"below the detection limit: {names}{more}")
    return {
        "noise": _short(noise), "size": _short(size), "seen": len(seen),
        "smallest_seen": [seen[0][0], _short(seen[0][1])] if seen else None,
        "not_seen": [[name, _short(rms)] for name, rms in hidden], "says": says,
    }  # fmt: skip


def _short(x: float) -> float:
    return float(f"{x:.3g}")
