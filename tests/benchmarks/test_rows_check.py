"""How measured and expected bytes a cycle are compared."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.rows_check import Kernel, Probe, Run, alone, report, usual
from benchmarks.rows_code import Expected, compiled, machine
from ds4ref.kernels.formats import FORMATS

ALONE, SHARED = 3.0, 4.5
MODEL = Expected(68, 10, 0, 12, 8, 4352, 512)


def runs(*cycles: float, rate: float = 10.0, ghz: float = 2.0) -> list[Run]:
    return [Run(rate, Probe(2.0, c), Probe(ghz, c)) for c in cycles]


def test_the_usual_cycles_are_those_of_a_core_of_its_own():
    assert usual(runs(*[ALONE] * 15, *[SHARED] * 85)) == ALONE
    assert usual(runs(1.0, 2.0, *[ALONE] * 48, *[SHARED] * 50)) == ALONE, "a few odd probes do not count"


@pytest.mark.parametrize(
    "cycles, ghz, counts", [(3.0, 2.0, True), (3.2, 2.0, True), (3.3, 2.0, False), (3.0, 2.1, False)]
)
def test_runs_on_a_shared_core_or_at_a_changing_clock_do_not_count(cycles, ghz, counts):
    assert alone(runs(cycles, ghz=ghz)[0], ALONE) is counts


def test_the_error_is_that_of_the_expectation():
    both = {True: runs(*[ALONE] * 5) + runs(*[SHARED] * 50, rate=1.0), False: runs(*[ALONE] * 4)}
    row = report("Q8_0/a8", MODEL, both, ALONE)
    assert row["expected"] == 8.5 and row["L1"] == 10 and row["error"] == pytest.approx(-0.15)
    assert row["L1 runs"] == 5 and row["L2"] is None, "four runs are too few"


def test_the_kernel_that_is_measured_computes_products():
    """The loaded machine code is the kernel: rows times the packed input, once each, and the first one repeatedly."""
    target = machine()
    kernel = Kernel("Q8_0", "a8", compiled("Q8_0", "a8", 1, target), target)
    run = kernel.measured(same_row=False)
    assert run.rate > 0 and run.before.ghz > 0
    every = kernel.out.copy()
    assert len(set(every[:64].tolist())) == 64 and np.array_equal(every[:50], every[64:114])
    kernel.measured(same_row=True)
    assert np.array_equal(kernel.out, np.full_like(every, every[0]))
    assert kernel.row_bytes == 4096 // 32 * FORMATS["Q8_0"].block_bytes
