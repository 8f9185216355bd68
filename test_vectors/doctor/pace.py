"""How fast a target answers: what an estimate of an examination's time needs, and the count of its requests.

meter = Meter(target)              counts requests from here on
pace = measure(case)               after pre-flight: three more requests to an HTTP target
pace.seconds(Cost(requests=40, prompt=8000, tokens=900))
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from ds4ref.targets import Completion, Request, Target

PASS = 16
"""Number of tokens of the pass by which our own engine's speed is measured."""
PASS_SECONDS = 0.02
"""Seconds of that pass where the costs of ``plan`` were measured: diagnostic model, two cores."""


class Sample(NamedTuple):
    """A request's (prompt tokens, 0 if unknown; generated tokens; seconds)."""

    prompt: int
    tokens: int
    seconds: float


@dataclass(frozen=True)
class Cost:
    """What a stage takes.

    requests  number of requests
    prompt    tokens of all their prompts
    tokens    tokens generated
    own       seconds of our own computing on the diagnostic model (``PASS_SECONDS``)
    logprobs  it asks nothing of a target without log probabilities
    """

    requests: int = 0
    prompt: int = 0
    tokens: int = 0
    own: float = 0.0
    logprobs: bool = False


@dataclass(frozen=True)
class Pace:
    """Measured times in seconds: of a request without its tokens, of a token in a prompt, of a generated token.

    ``own``: our engine's time for a pass of ``PASS`` tokens, in units of ``PASS_SECONDS``.
    """

    request: float
    prompt: float
    token: float
    own: float = 1.0

    def seconds(self, cost: Cost) -> float:
        """Return the seconds that ``cost`` takes if requests are sent one after another."""
        theirs = cost.requests * self.request + cost.prompt * self.prompt + cost.tokens * self.token
        return theirs + cost.own * self.own

    def __str__(self) -> str:
        rate = f", {1 / self.token:.3g} tokens/s" if self.token > 0 else ""
        return f"{self.request:.2g} s per request{rate}"


class Meter:
    """Counts the requests to a target and keeps their times; an HTTP target's are seen where they are sent."""

    def __init__(self, target: Target) -> None:
        self.samples: list[Sample] = []
        transport = getattr(target, "transport", None)
        if transport is not None:
            transport.watch = self._sent
        else:
            target.complete = self._timed(target.complete)  # type: ignore[assignment, method-assign]

    @property
    def requests(self) -> int:
        """Return the number of requests so far."""
        return len(self.samples)

    def usage(self, first: int = 0) -> dict[str, float]:
        """Return the sums over requests from the one with index ``first``: requests, prompt and generated tokens,
        seconds (of requests at the same time, each one's)."""
        counts = [sum(column) for column in zip(*self.samples[first:], strict=True)] or [0, 0, 0.0]
        prompt, tokens, seconds = counts
        return {"requests": self.requests - first, "prompt": prompt, "tokens": tokens, "seconds": round(seconds, 2)}

    def _sent(self, body: dict[str, Any], reply: Any, seconds: float) -> None:
        usage = reply.get("usage") if isinstance(reply, dict) else None
        counts = usage if isinstance(usage, dict) else {}
        prompt, tokens = (counts.get(f"{name}_tokens") for name in ("prompt", "completion"))
        asked = body.get("max_tokens")
        tokens = tokens if isinstance(tokens, int) else asked if isinstance(asked, int) else 0
        self.samples.append(Sample(prompt if isinstance(prompt, int) else 0, tokens, seconds))

    def _timed(self, complete: Callable[[Request], Completion]) -> Callable[[Request], Completion]:
        def timed(request: Request) -> Completion:
            start, tokens, prompt = time.perf_counter(), 0, 0
            try:
                done = complete(request)
                tokens, prompt = len(done.steps) or done.usage.completion or 0, done.usage.prompt or 0
                return done
            finally:
                self.samples.append(Sample(prompt, tokens, time.perf_counter() - start))

        return timed
