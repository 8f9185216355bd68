"""Helpers that make the doctor's findings without a target."""

from __future__ import annotations

from ds4ref.test_vectors.diagnosis import Diagnosis
from ds4ref.test_vectors.doctor.examination import Examination, Stage
from ds4ref.test_vectors.finding import Outcome


def examination(*outcomes: Outcome, stage: str = "numbers", **more) -> Examination:
    made = Stage(stage, "Numbers", "?", done=True)
    for i, outcome in enumerate(outcomes):
        made.add(f"check {i}", outcome, f"says {i}", **more)
    return Examination("http://127.0.0.1:1/v1", [("date", "today")], {"kind": "http"}, "ds4-vectors doctor x", [made])


def diagnosis(verdict: str, fault=None, first_position=None, **more) -> Diagnosis:
    return Diagnosis(verdict, fault, 0.97, first_position, "exact", "words", **more)
