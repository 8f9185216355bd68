"""Logits of this machine beside those that another one wrote for the same drawn models (``make arm``)."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest

from . import drawn

BAR = 2e-5
"""Standard deviations of a model's logits. x86's own tiers A and C differ by up to 1.0e-5 on these models
(docs/LOG.md, 2026-11-27)."""
WRITTEN = os.environ.get("DS4_TEST_ARM_LOGITS", "")

pytestmark = pytest.mark.skipif(not WRITTEN, reason="no logits of another machine (make arm writes them)")


@pytest.mark.parametrize("case", drawn.CASES, ids=lambda case: case.name)
def test_logits_equal_those_of_the_other_machine(case: drawn.Case, capsys: pytest.CaptureFixture[str]) -> None:
    """In mode exact. Modes that round values differ where one falls on the other side of a boundary, between x86's own
    tiers, too: those differences are told."""
    path = Path(WRITTEN, case.name)
    with np.load(f"{path}.npz") as file:
        ids = file["ids"].tolist()
        found = {mode: drawn.difference(file[mode], drawn.logits(path, ids, mode)) for mode in drawn.MODES}
    with capsys.disabled():
        differences = (f"{mode} {largest:.1e} ({same:.1%})" for mode, (largest, same) in found.items())
        print(f"\n{case.name}:", *differences, file=sys.stderr)  # the stdout of a worker of pytest-xdist is not shown
    largest, same = found["exact"]
    assert largest <= BAR and same == 1
