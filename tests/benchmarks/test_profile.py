"""The profiler's clock."""

from __future__ import annotations

import pytest

from benchmarks import profile


class Stopped:
    """Stands in for the pool where the processor's counter cannot be read."""

    def ticks(self) -> int:
        return 0


def test_a_clock_that_stands_still_is_an_error_in_words():
    with pytest.raises(RuntimeError, match="stands still"):
        profile.tick_seconds(Stopped())  # type: ignore[arg-type]
