"""Where the time of a decoded token goes: computing on the workers, and the way between them."""

from __future__ import annotations

from collections import deque
from statistics import median

from .link import PassResult

KEPT = 4096
"""Number of tokens that count, the newest."""


class Timing:
    """Times of decoded tokens, as the coordinator saw them."""

    def __init__(self) -> None:
        self.tokens: deque[tuple[float, float]] = deque(maxlen=KEPT)
        """Seconds in all, and seconds that stages computed, of each token."""
        self.stages, self.hop_bytes = 1, 0

    def token(self, seconds: float, result: PassResult) -> None:
        """Count a token that took ``seconds`` in all."""
        self.tokens.append((seconds, sum(result.seconds)))
        self.stages, self.hop_bytes = len(result.seconds), result.hop_bytes

    @property
    def compute(self) -> float:
        """Return the median of the seconds that all stages compute for a token."""
        return median(compute for _, compute in self.tokens)

    @property
    def travel(self) -> float:
        """Return the median of the seconds that a token spends on its way: to the first stage, between stages, and
        back."""
        return median(seconds - compute for seconds, compute in self.tokens)

    def __str__(self) -> str:
        between = f"{self.stages - 1} time(s) {self.hop_bytes} bytes between workers"
        return f"a token computes {1e3 * self.compute:.1f} ms and travels {1e3 * self.travel:.1f} ms ({between})"
