"""Every known single mistake must be noticed by the golden comparison (faults.tiny.t200.txt)."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from ds4ref.variants.faults import FAULTS
from tests.golden import ROOT, case, engine, needs_golden
from tests.marking import sampled

pytestmark = needs_golden

BAR = 2e-4
"""The bar of the golden test on t200: a fault below it would go unnoticed."""


@functools.cache
def _difference(fault: str | None, one_by_one: bool = False) -> np.ndarray:
    """Logit difference to Hugging Face with one fault injected."""
    ids = case("tiny", "t200")["ids"]
    session = engine("tiny", "exact", "reference").session(len(ids) + 1)
    if fault:
        session.hooks = FAULTS[fault].hooks()
    return session.extend(ids, one_by_one=one_by_one) - case("tiny", "t200")["hf"]


@functools.cache
def _signatures() -> dict[str, tuple[float, str]]:
    """rms per mistake as measured by others, in the file's order."""
    lines = (ROOT / "faults.tiny.t200.txt").read_text().splitlines()[1:]
    lines = [line for line in lines if "logits rms" in line]
    return {
        name: (float(line.split("logits rms")[1].split()[0]), line) for name, line in zip(FAULTS, lines, strict=False)
    }


def test_no_fault_no_difference() -> None:
    assert np.abs(_difference(None)).max() <= BAR


@pytest.mark.parametrize("name", sampled([f.name for f in FAULTS.values() if not f.quiet], 3))
def test_fault_is_noticed(name: str) -> None:
    assert np.abs(_difference(name)).max() > 10 * BAR


@pytest.mark.parametrize("name", sampled(list(FAULTS)[:40], 4))
def test_fault_has_the_known_signature(name: str) -> None:
    """The damage is what another implementation of the same mistake measured: within 25 %, noise for quiet ones."""
    rms = float(np.sqrt(np.square(_difference(name)).mean()))
    known, line = _signatures()[name]
    assert known * (0.4 if FAULTS[name].quiet else 0.8) <= rms <= known * (2.5 if FAULTS[name].quiet else 1.25), line
