"""The profiler's clock, and whom time counts for."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import profile
from ds4ref.kernels.cpu.recording import Timeline


class Stopped:
    """Stands in for the pool where the processor's counter cannot be read."""

    def ticks(self) -> int:
        return 0


def test_a_clock_that_stands_still_is_an_error_in_words():
    with pytest.raises(RuntimeError, match="stands still"):
        profile.tick_seconds(Stopped())  # type: ignore[arg-type]


def timeline(*rows: tuple[int, int, int, int]) -> Timeline:
    return Timeline(*(np.array(column) for column in zip(*rows, strict=True)))


def test_time_counts_for_a_step_until_the_next_and_for_tails_that_are_waited_for() -> None:
    """Two phases; a tail of thread 1 begins while thread 0 still works, one of thread 0 follows its own step."""
    times = timeline((100, 150, 1, 0), (150, 170, 0, 0), (165, 190, 0, 1), (170, 175, 0, 0), (200, 260, 3, 0))
    tails = np.array([False, False, True, True, False])
    spent, waiting = profile.shares(times, tails, 300)
    assert spent.tolist() == [50, 20, 15, 15, 100]
    assert waiting.tolist() == [0, 0, 15, 10, 40]  # 175 to 190 for the tail, 190 to 200 after thread 0's last step
    assert spent.sum() == 300 - 100


def test_two_tails_at_the_same_time_are_waited_for_once() -> None:
    times = timeline((0, 10, 1, 0), (12, 30, 0, 1), (15, 40, 0, 2), (50, 60, 3, 0))
    spent, waiting = profile.shares(times, np.array([False, True, True, False]), 60)
    assert spent.tolist() == [22, 18, 10, 10] and waiting.tolist() == [12, 18, 10, 0]


def test_a_tail_hidden_behind_own_work_costs_nothing() -> None:
    times = timeline((0, 100, 1, 0), (10, 30, 0, 1), (100, 120, 2, 0))
    spent, waiting = profile.shares(times, np.array([False, True, False]), 120)
    assert spent.tolist() == [100, 0, 20] and waiting.tolist() == [0, 0, 0]


def test_phases_with_products_stream_weights_but_their_tails_do_not() -> None:
    p = profile.Profile(
        ["linear_rows", "add", "rms_norm", "hc_expand"], np.array([True, False, False, True]),
        np.array([False, False, True, False]), np.array([100.0]), np.array([[50.0, 10.0, 15.0, 25.0]]),
        np.zeros((1, 4)),
    )  # fmt: skip
    assert p.besides().tolist() == [0.4]
