"""The result of a diagnosis."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

PROBLEMS = ("fault", "file", "unknown", "broken")


def where(layer: int | None) -> str:
    """Return the name of a place's layer: "layer 3", "the head" for -1, "all layers" for None."""
    return {None: "all layers", -1: "the head"}.get(layer, f"layer {layer}")


@dataclass
class Diagnosis:
    """The result of a diagnosis.

    verdict         a rounding set's name: no mistake seen; "fault": a known mistake; "file": their model file differs
                    and their engine is correct; "broken": not valid log probabilities; "undecided": an unknown rounding
                    or a small mistake; "unknown": nothing known explains the numbers
    fault           name of the mistake, two joined by " + "; None without one
    faults          names of the mistakes as a list
    confidence      probability that the verdict is right, fitted on simulated engines (docs/reference/vectors.md)
    mode            rounding set that the numbers were compared with
    first_position  first position where the numbers differ from ``mode`` by more than its noise; None if they do not
    says            the verdict in one sentence
    agrees_with     rounding set that the numbers agree with before they differ
    agrees_until    first position at which they no longer agree with it
    positions       number of observed positions
    parameter       of a mistake with a numeric parameter: name, value, low, high (90 % interval), right
    residue         rms in nats of the difference that the mistake leaves unexplained, if more than float noise
    stored          inferred storage precision of the observed numbers
    limit           detection limit of a verdict without a mistake (``limit.detection_limit``)
    features        inputs from which the confidence was computed (``calibration``)
    next            what the user can do to learn more
    places          of "unknown" and "undecided": where the mistake may be, as JSON objects, likeliest first
                    (``places.Place``)
    stopped         how many candidates were compared if the search was stopped early; None if it was not
    ranking         candidates as JSON objects, best first
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
    limit: dict[str, Any] | None = None
    next: list[str] = field(default_factory=list)
    features: dict[str, float] = field(default_factory=dict)
    places: list[dict[str, Any]] = field(default_factory=list)
    stopped: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the result as a JSON object."""
        whole = {name: value for name, value in vars(self).items() if name != "features"}
        return whole | {"confidence": round(self.confidence, 4)}

    @property
    def clean(self) -> bool:
        """Return whether the verdict is a rounding set, that is, no mistake was seen."""
        return self.verdict not in (*PROBLEMS, "undecided")
