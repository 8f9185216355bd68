"""Findings as the doctor makes them, without a target."""

from __future__ import annotations

from types import SimpleNamespace

from ds4ref.test_vectors.doctor.findings import Examination, Outcome, Stage


def examination(*outcomes: Outcome, stage: str = "numbers", **more) -> Examination:
    made = Stage(stage, "Numbers", "?", done=True)
    for i, outcome in enumerate(outcomes):
        made.add(f"check {i}", outcome, f"says {i}", **more)
    return Examination("http://127.0.0.1:1/v1", [("date", "today")], {"kind": "http"}, "ds4-vectors doctor x", [made])


def diagnosis(verdict: str, fault=None, notes=(), **more):
    whole = {"verdict": verdict, "fault": fault, **more}
    return SimpleNamespace(verdict=verdict, fault=fault, confidence=0.97, says="words", notes=list(notes),
                           mode="exact", first_position=more.get("first_position"), to_json=lambda: whole)  # fmt: skip
