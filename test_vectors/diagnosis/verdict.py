"""The outcome of a diagnosis."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

PROBLEMS = ("fault", "file", "unknown", "broken")


@dataclass
class Diagnosis:
    """The outcome.

    verdict         a rounding set's name; "fault"; "unknown": none of these; "undecided": a rounding of its own and a
                    small mistake cannot be told apart here; "broken": the numbers are none; "file": their
                    model file is wrong, and their engine is not
    fault           name of the mistake, of both joined by " + " if there are two; None otherwise
    faults          their names as a list
    confidence      share of such verdicts that are right, as fitted on simulated engines (docs/reference/vectors.md)
    first_position  where the numbers leave the noise of ``mode``, the clean set it is told against
    parameter       of a mistake with a size: name, value, low, high (90 %), right
    residue         what the named mistake leaves, nats rms, if more than float noise
    sight           of a clean verdict: what it could have seen
    next            commands that would tell more
    ranking         candidates, best first
    """

    verdict: str
    fault: str | None
    confidence: float
    first_position: int | None
    mode: str
    says: str
    ranking: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    agrees_with: str | None = None
    agrees_until: int | None = None
    positions: int = 0
    faults: list[str] = field(default_factory=list)
    parameter: dict[str, Any] | None = None
    residue: float | None = None
    stored: str = ""
    sight: dict[str, Any] | None = None
    next: list[str] = field(default_factory=list)
    features: dict[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The machine-readable form."""
        return {
            "verdict": self.verdict, "fault": self.fault, "confidence": round(self.confidence, 4),
            "first_position": self.first_position, "ranking": self.ranking, "mode": self.mode, "says": self.says,
            "agrees_with": self.agrees_with, "agrees_until": self.agrees_until, "positions": self.positions,
            "faults": self.faults, "parameter": self.parameter, "residue": self.residue, "stored": self.stored,
            "sight": self.sight, "notes": self.notes, "next": self.next,
        }  # fmt: skip

    @property
    def clean(self) -> bool:
        """Whether the verdict is a rounding set."""
        return self.verdict not in (*PROBLEMS, "undecided")
