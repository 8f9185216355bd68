"""Detection limit of a clean verdict: which mistakes it would have noticed, and which not.

A mistake that changes the numbers less than a rounding set's own noise looks like a correct engine. The limit is stated
as a size, the smallest rms change of log probabilities at all positions that the rule would have refused; and by name,
as every fault of the library is put in the engine's place to see whether the rule would have accepted it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .case import Candidate, Case
from .evidence import FOREIGN, LIMIT

SHOWN = 12


def detection_limit(case: Case, clean: Candidate, others: list[Candidate]) -> dict[str, Any]:
    """Measure the detection limit of the rounding set ``clean``; ``others`` are candidates with a mistake in that set.

    What a run of the first tokens refused would have been seen; its effect is that at the first rows. Returned is an
    object for JSON, all effects in nats rms:

    noise          difference of a correct engine
    size           smallest uniform change that would have been refused
    seen           number of faults that would have been refused; ``smallest_seen``: name and effect of the smallest
    not_seen       [name, effect] of faults that would have been accepted, smallest first
    says           the limit in words
    """
    ref = case.reference(clean.mode)
    mean, spread = ref.usual.whole()
    # the whole is refused from here on; where all positions are moved alike nothing else refuses earlier
    bar = mean + LIMIT * spread
    noise = float(np.sqrt(ref.expected.mean()))
    if ref.coarse:
        size = noise * float(np.sqrt(max(np.exp(2 * bar) - 1, 1e-6)))
    else:  # larger float noise of another engine is allowed for
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
    # flips of steps hide more than the noise's size tells: no claim below what was in fact let pass
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
