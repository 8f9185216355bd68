"""What ds4-bench adds to a decode step, under pytest-benchmark: both loops on a session whose steps take no time.

    pytest benchmarks/test_harness.py

Two loops of whole decode steps differ by more than the harness adds from one minute to the next; what it adds does not
depend on the step. ``benchmarks.arms --trials 0`` compares whole steps directly, which takes thousands of pairs.
"""

from __future__ import annotations

import pytest

from speed_bench.sweep import decode

STEPS = 400


class Instant:
    """A session whose steps take no time."""

    pos, ctx = 0, 1 << 30

    def argmax(self, exclude: int | None = None) -> int:
        return 3

    def logit(self, token: int) -> float:
        return 0.0

    def append(self, token: int) -> None:
        pass


def bare(session: Instant) -> None:
    """The loop anybody would write."""
    for _ in range(STEPS):
        session.append(session.argmax(exclude=1))


def harness(session: Instant) -> None:
    """The loop of the sweep."""
    decode(session, 0, STEPS, 1)


@pytest.mark.benchmark(group=f"{STEPS} steps that take no time")
@pytest.mark.parametrize("loop", [bare, harness])
def test_decode_loop(benchmark, loop) -> None:
    benchmark.pedantic(loop, args=(Instant(),), rounds=50, warmup_rounds=2)
