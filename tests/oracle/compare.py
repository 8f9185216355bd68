"""How far two engines' logits are apart, in the numbers that the bars are stated in."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Difference:
    """Logits of a candidate against a reference, both (T, V).

    rms, max    of the differences, in logits
    kl          mean over positions of KL(reference || candidate), in nats
    top1        share of positions with the same arg-max
    worst       position of the largest difference
    """

    rms: float
    max: float
    kl: float
    top1: float
    worst: int

    def __str__(self) -> str:
        return (
            f"rms {self.rms:.3g}, max {self.max:.3g} at position {self.worst}, KL {self.kl:.3g}, top-1 {self.top1:.4f}"
        )


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Natural log of the softmax over the last axis, float64."""
    x = logits.astype(np.float64)
    x -= x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


def difference(candidate: np.ndarray, reference: np.ndarray) -> Difference:
    """Compare (T, V) with (T, V); ValueError unless shapes agree and every number is finite."""
    if candidate.shape != reference.shape or candidate.ndim != 2:
        raise ValueError(f"cannot compare {candidate.shape} with {reference.shape}")
    if not (np.isfinite(candidate).all() and np.isfinite(reference).all()):
        raise ValueError("logits are not all finite")
    d = np.abs(candidate.astype(np.float64) - reference)
    p, q = log_softmax(reference), log_softmax(candidate)
    return Difference(
        rms=float(np.sqrt((d * d).mean())),
        max=float(d.max()),
        kl=float((np.exp(p) * (p - q)).sum(axis=-1).mean()),
        top1=float((candidate.argmax(axis=-1) == reference.argmax(axis=-1)).mean()),
        worst=int(d.max(axis=-1).argmax()),
    )
