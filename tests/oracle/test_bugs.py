"""One description, two authors: the library's faults in our engine, and the same mistakes made in Hugging Face's code.

Where both give the same logits, the line that the library says about a fault is what the fault does.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ds4ref.engine import Engine
from ds4ref.nano.diagnostic import PROMPTS, diagnostic_path
from ds4ref.variants import LIBRARY, Fault, Runner
from ds4ref.variants.families import FAMILIES as OURS

pytestmark = [pytest.mark.oracle, pytest.mark.slow]

IDS = PROMPTS["text"]()[:144]
"""Past the first window of 128. In this text no top-k choice is closer than 1e-4 to a tie."""

TIE = 2e-5
"""Margin of a top-k decision below which two correct engines may part."""


@pytest.fixture(scope="module")
def oracle(load_oracle: Any) -> Any:
    return load_oracle(diagnostic_path())


@pytest.fixture(scope="module")
def clean(oracle: Any) -> np.ndarray:
    return oracle.logits(IDS)


def rms(x: np.ndarray) -> float:
    return float(np.sqrt(np.square(x, dtype=np.float64).mean()))


def same(oracle: Any, clean: np.ndarray, runner: Runner, bug: Any, fault: Fault) -> str:
    """Empty if both give the same up to the first near-tie, to float noise, and the fault shows in those positions."""
    with bug.apply(oracle):
        theirs = oracle.logits(IDS)
    ours, margin = runner.run(IDS, "exact", [fault])
    ties = np.flatnonzero(margin < TIE)
    until = ties[0] if len(ties) else len(IDS)
    apart, effect = rms((theirs - ours)[:until]), rms((theirs - clean)[:until])
    # a mistake can raise float noise too; the smallest of the library are but a few times that noise
    if apart > max(2e-5 * rms(theirs) / rms(clean), 1e-4 * effect) or apart > 0.7 * effect:
        return f"{bug.name}: apart {apart:.1e}, effect {effect:.1e}, {until} positions"
    return ""


def test_library_faults_are_the_same_in_hugging_face(oracle: Any, clean: np.ndarray) -> None:
    """Half of the library: every part of the pass, what it reads, and chunks."""
    from .bugs_library import LIBRARY_BUGS

    with Engine.open(diagnostic_path(), threads=1) as engine:
        runner = Runner(engine)
        wrong = [same(oracle, clean, runner, bug, LIBRARY[bug.name]) for bug in LIBRARY_BUGS]
    assert not any(wrong), "\n".join(filter(None, wrong))


def test_families_are_the_same_in_hugging_face(oracle: Any, clean: np.ndarray) -> None:
    """The smallest and the largest value of each that both have."""
    from .bugs_library import SIZES, Bug

    with Engine.open(diagnostic_path(), threads=1) as engine:
        runner = Runner(engine)
        wrong = [
            same(oracle, clean, runner, Bug(f"{name}={value}", "", make(value)), OURS[name].fault(value))
            for name, (make, values) in SIZES.items()
            for value in values
        ]
    assert not any(wrong), "\n".join(filter(None, wrong))
