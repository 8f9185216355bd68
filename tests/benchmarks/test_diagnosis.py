"""The measurement of the diagnosis counts what it should; its figures are made by hand or under ``-m slow``."""

from __future__ import annotations

import pytest

from benchmarks.diagnosis import HELD_OUT, Tally, _classify, clean, outside
from ds4ref.engine import Engine
from ds4ref.nano.diagnostic import diagnostic_path
from ds4ref.variants import LIBRARY
from test_vectors.diagnose import Diagnosis
from test_vectors.variants import variants


def said(verdict: str, fault: str | None = None, confidence: float = 0.99, agrees: str | None = None) -> Diagnosis:
    return Diagnosis(verdict, fault, confidence, 3, "exact", "", agrees_with=agrees)


@pytest.mark.parametrize("found, kind, fine", [
    (said("unknown"), "none of these", True),
    (said("unknown", agrees="a@exact"), "none of these, agrees with one until the other begins", True),
    (said("unknown", agrees="c@exact"), "none of these", True),
    (said("fault", "b"), "one of them named", True),
    (said("fault", "c"), "confident wrong name", False),
    (said("fault", "c", 0.5), "unsure wrong name", False),
    (said("exact"), "confident: clean", False),
], ids=range(7))  # fmt: skip
def test_outcomes_of_two_mistakes(found, kind, fine) -> None:
    tally = Tally()
    _classify(tally, "a + b", found, ("a", "b"))
    assert dict(tally.counts) == {kind: 1} and bool(tally.remarks) is not fine


def test_the_held_out_mistakes_are_held_out() -> None:
    assert len(HELD_OUT) == 3 and not {fault.name for fault in HELD_OUT} & set(LIBRARY)


@pytest.fixture(scope="module")
def engine(_model_cache):
    with Engine.open(diagnostic_path(), backend="cpu", numerics="exact") as opened:
        yield opened


def test_every_mistake_outside_the_model_is_tried(engine) -> None:
    tried = [(name, library, seen) for name, library, seen in outside(engine, "exact", 1)]
    known = {v.name for v in variants(tried[0][1], engine.tokenizer.bos)}
    assert {name for name, _, _ in tried} == known - {"digits_apart"}  # no token here has several digits
    assert all(len(seen.rows) == len(seen.logprobs) for _, _, seen in tried)


def test_trials_are_the_same_in_parts(engine) -> None:
    tally = clean(engine, range(4, 5))  # mode exact: settled at once
    assert dict(tally.counts) == {"right mode": 1} and tally.share("right mode") == 1.0
