"""What a server was identified as, from its behaviour alone: every property is a posterior over named hypotheses.

    case.served.value("profile")       "may", "0731", "v4.1", "unknown" (none of these), or None: cannot tell
    case.served["effort"].probability  probability of the likeliest hypothesis

Stages that run after ``identify`` judge against this.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

NEEDED = 0.95
"""Probability from which a hypothesis is reported as the result; below it the result is "cannot tell"."""
UNKNOWN = "unknown"
"""Hypothesis that none of the others holds."""
PROPERTIES = {
    "profile": "chat template: may, 0731, v4.1, unknown (another one)",
    "checkpoint": "weights: may, 0731, 0813, v4.1",
    "effort": "reasoning effort where a request thinks and names none: low, high, max",
    "thinking": "whether a request that says nothing about it thinks: on, off",
    "bos": "number of BOS tokens before a chat: 0, 1, 2",
    "escaping": "control strings in a message: text, control, removed",
    "tokenizer": "which of the given tokenizers",
    "context": "context limit in tokens",
    "drafts": "speculative decoding: on, off",
    "quantization": "formats of the weights",
}
"""Meaning and values of each property by name."""


@dataclass(frozen=True)
class Property:
    """One property of a server.

    odds      probability of each hypothesis; together at most 1
    evidence  what was measured, in one plain sentence; where nothing was, why
    """

    name: str
    odds: Mapping[str, float] = field(default_factory=dict)
    evidence: str = "not measured"

    @property
    def likeliest(self) -> str:
        """Return the hypothesis with the highest probability, "" if there is none."""
        return max(self.odds, key=lambda name: self.odds[name], default="")

    @property
    def probability(self) -> float:
        """Return the probability of the likeliest hypothesis; 0 without hypotheses."""
        return self.odds.get(self.likeliest, 0.0)

    @property
    def value(self) -> str | None:
        """Return the likeliest hypothesis if its probability is at least ``NEEDED``, else None: cannot tell."""
        return self.likeliest if self.probability >= NEEDED else None

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object for a report."""
        shown = {name: round(p, 4) for name, p in sorted(self.odds.items(), key=lambda item: -item[1])}
        return {"value": self.value, "probability": round(self.probability, 4), "odds": shown,
                "evidence": self.evidence}  # fmt: skip


@dataclass
class Served:
    """What a server was identified as: its properties by name, those of ``PROPERTIES``."""

    properties: dict[str, Property] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Property:
        return self.properties.get(name, Property(name))

    def add(self, name: str, odds: Mapping[str, float], evidence: str) -> None:
        """Set a property."""
        assert name in PROPERTIES, name
        self.properties[name] = Property(name, odds, evidence)

    def value(self, name: str) -> str | None:
        """Return the value of a property; None if it cannot be told."""
        return self[name].value
