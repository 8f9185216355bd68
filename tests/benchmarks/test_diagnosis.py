"""The measurement of the diagnosis counts what it should; its figures are made by hand or under ``-m slow``."""

from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks.calibration import fit, priors, reliability, right
from benchmarks.diagnosis import clean, outside
from benchmarks.patients import OUTSIDE, Patient, draw
from ds4ref.engine import Engine
from ds4ref.nano.diagnostic import diagnostic_path
from ds4ref.test_vectors.diagnosis import Diagnosis
from ds4ref.test_vectors.diagnosis.calibration import PATH, probability
from ds4ref.test_vectors.diagnosis.outside import outside_bugs
from ds4ref.variants import LIBRARY
from ds4ref.variants.families import FAMILIES


def said(verdict: str, fault: str | None = None, agrees: str | None = None) -> Diagnosis:
    names = fault.split(" + ") if fault else []
    return Diagnosis(verdict, fault, 0.99, 3, "exact", "", agrees_with=agrees, faults=names)


def test_the_held_out_mistakes_are_held_out() -> None:
    names = {make(0.5).name for make in OUTSIDE.values()}
    assert names == set(OUTSIDE) and not names & {*LIBRARY, *FAMILIES}


def test_a_verdict_is_right_or_not() -> None:
    """Clean is right for a clean engine, and for a mistake below the size that the verdict states, unless the best
    token changes."""

    def patient(kind: str, effect: float = 0.0, flips: bool = False) -> Patient:
        return Patient(0, kind, "ds4", ("a",), None, effect, flips, None, None)  # type: ignore[arg-type]

    clean = said("ds4")
    clean.limit = {"size": 0.1}
    assert right(patient("clean"), clean) and right(patient("outside", 0.05), clean)
    assert not right(patient("outside", 0.2), clean) and not right(patient("outside", 0.05, True), clean)
    assert right(patient("library"), said("fault", "a")) and not right(patient("library"), said("fault", "b"))
    assert right(patient("outside"), said("unknown")) and not right(patient("library"), said("unknown"))
    assert not right(patient("clean"), said("unknown")) and right(patient("family"), said("undecided"))


def test_confidence_is_fitted() -> None:
    """Records in which half of the faults with odds of 6 are wrong: the fit says so."""
    rng = np.random.default_rng(1)
    records = []
    for trial in range(600):
        odds = float(rng.uniform(0, 20))
        true = rng.random() < 1 / (1 + np.exp((6 - odds) / 3))
        records.append({"trial": trial, "verdict": "fault", "right": bool(true),
                        "features": {"odds": odds, "gap": 5.0, "misfit": 1.0}})  # fmt: skip
    found = fit(records)
    low, high = (probability("fault", {"odds": o, "gap": 5.0, "misfit": 1.0}, found) for o in (6, 17))
    assert 0.4 < low < 0.6 and high > 0.9
    for row in reliability(records, found):
        assert abs(row["said"] - row["right"]) < 0.12


def test_the_stored_priors_are_those_of_the_mix(engine) -> None:
    assert json.loads(PATH.read_text())["priors"] == priors(engine)


def test_the_same_trial_is_the_same_patient(engine) -> None:
    one, two = draw(engine, 5), draw(engine, 5)
    assert str(one) == str(two) and np.array_equal(one.seen.logprobs, two.seen.logprobs)
    kinds = {draw(engine, trial, ("clean",)).kind for trial in (1, 2)}
    assert kinds == {"clean"}


@pytest.fixture(scope="module")
def engine(_model_cache):
    with Engine.open(diagnostic_path(), backend="cpu", numerics="exact") as opened:
        yield opened


def test_every_mistake_outside_the_model_is_tried(engine) -> None:
    tried = [(name, library, seen) for name, library, seen in outside(engine, "exact", 1)]
    known = {v.name for v in outside_bugs(tried[0][1], engine.tokenizer.bos)}
    assert {name for name, _, _ in tried} == known - {"digits_apart"}  # no token here has several digits
    assert all(len(seen.rows) == len(seen.logprobs) for _, _, seen in tried)


@pytest.mark.slow
def test_trials_are_the_same_in_parts(engine) -> None:
    tally = clean(engine, range(13, 14))  # rounding set exact: settled at once
    assert dict(tally.counts) == {"right set": 1} and tally.share("right set") == 1.0
