"""Where the time of a decoded token goes: computing on the workers, and the way between them."""

from __future__ import annotations

from statistics import median

from .link import PassResult

KEPT = 4096
"""Newest tokens that count."""


class Timing:
    """Times of decoded tokens, as the coordinator saw them."""

    def __init__(self) -> None:
        self._tokens: list[tuple[float, float]] = []
        self._stages, self.hop_bytes = 1, 0

    def token(self, seconds: float, result: PassResult) -> None:
        """Count a token that took ``seconds`` in all."""
        self._tokens = [*self._tokens[-KEPT:], (seconds, sum(result.seconds))] if len(self._tokens) > 2 * KEPT else (
            self._tokens + [(seconds, sum(result.seconds))]
        )
        self._stages, self.hop_bytes = len(result.seconds), result.hop_bytes

    def summary(self) -> dict[str, float] | None:
        """Return medians in ms: "token", "compute" on all workers, "hop" a hop; "hops", and "hop_bytes" each. None
        before the first token.

        A hop is the way from worker to worker; the way to the first and from the last one counts as another.
        """
        if not self._tokens:
            return None
        whole, rest = median(t for t, _ in self._tokens), median(t - c for t, c in self._tokens)
        return {
            "token": 1e3 * whole,
            "compute": 1e3 * median(c for _, c in self._tokens),
            "hop": 1e3 * rest / self._stages,
            "hops": self._stages - 1,
            "hop_bytes": self.hop_bytes,
        }

    def __str__(self) -> str:
        of = self.summary()
        if of is None:
            return "no token was decoded"
        return (
            f"a token takes {of['token']:.1f} ms: {of['compute']:.1f} ms computing, the rest on its way "
            f"({of['hops']:.0f} hop(s) of {of['hop_bytes']:.0f} bytes, {of['hop']:.2f} ms each)"
        )
