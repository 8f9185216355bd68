"""Detection limit of a clean verdict: which mistakes it would have noticed, and which not.

A mistake that changes the numbers less than a rounding set's own noise looks like a correct engine. The limit is stated
as a size, the smallest rms change of log probabilities at all positions that the rule would have refused; and by name,
as every fault of the library is put in the engine's place to see whether the rule would have accepted it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .case import Candidate, Case
from .evidence import FOREIGN, LIMIT

SHOWN = 12


@dataclass(frozen=True)
class DetectionLimit:
    """Detection limit of a clean verdict.

    noise      rms difference of a correct engine, nats
    size       smallest uniform rms change that would have been refused, nats
    seen       names of faults that would have been refused, smallest effect first
    hidden     (name, rms in nats) of faults that would have been accepted, smallest first
    smallest   (name, rms in nats) of the first of ``seen``
    """

    noise: float
    size: float
    seen: tuple[str, ...]
    hidden: tuple[tuple[str, float], ...]
    smallest: tuple[str, float] | None

    def to_json(self) -> dict[str, Any]:
        """Return the limit as a JSON object."""
        return {
            "noise": _short(self.noise), "size": _short(self.size), "seen": len(self.seen),
            "smallest_seen": None if self.smallest is None else [self.smallest[0], _short(self.smallest[1])],
            "not_seen": [[name, _short(rms)] for name, rms in self.hidden],
            "says": self.sentences(),
        }  # fmt: skip

    def sentences(self) -> list[str]:
        """Return the limit as human-readable lines."""
        lines = [f"detection limit: a change of {self.size:.2g} nats (rms) at all positions; noise is {self.noise:.2g}"]
        if self.smallest is not None:
            lines.append(
                f"{len(self.seen)} mistakes of the library would have been detected, the smallest {self.smallest[0]} "
                f"({self.smallest[1]:.2g} nats)"
            )
        if self.hidden:
            names = ", ".join(f"{name} ({rms:.1g})" for name, rms in reversed(self.hidden[-SHOWN:]))
            more = f" and {len(self.hidden) - SHOWN} more" if len(self.hidden) > SHOWN else ""
            lines.append(f"below the detection limit: {names}{more}")
        return lines


def _short(x: float) -> float:
    return float(f"{x:.3g}")


def detection_limit(case: Case, clean: Candidate, others: list[Candidate]) -> DetectionLimit:
    """Measure the detection limit of the rounding set ``clean``; ``others`` are candidates with a mistake in that set.

    What a run of the first tokens refused would have been seen; its effect is that at the first rows.
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
        moved = ref.fit(c.rows)
        effect = float(np.sqrt(np.nanmean((c.rows - clean.rows) ** 2)))
        if moved.misfit >= LIMIT:
            seen.append((c.name, effect))
        else:
            hidden.append((c.name, effect))
    seen.sort(key=lambda item: item[1])
    hidden.sort(key=lambda item: item[1])
    # flips of steps hide more than the noise's size tells: no claim below what was in fact let pass
    size = max([size, *(effect for _, effect in hidden)])
    return DetectionLimit(
        noise, size, tuple(name for name, _ in seen), tuple(hidden), seen[0] if seen else None,
    )  # fmt: skip
