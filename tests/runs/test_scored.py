"""The score of a graded run, question by question."""

import pytest

from ds4ref.runs import scored
from ds4ref.runs.stats import wilson


def row(name, outcome="right", epoch=1, source="maths", status="done", question=None, **more):
    found = {"id": name, "epoch": epoch, "source": source, "domain": "d", "status": status, "outcome": outcome, **more}
    return found | ({"question": question} if question else {})


def rows(text, source="maths", **more):
    """A row for each letter: Right, Wrong, Ambiguous, Missing, Failed."""
    words = {"r": "right", "w": "wrong", "a": "ambiguous", "m": "missing", "f": None}
    return [
        row(f"{source}{i}", words[c], source=source, status="failed" if c == "f" else "done", **more)
        for i, c in enumerate(text)
    ]


# --- one run


@pytest.mark.parametrize(
    ("entry", "score"),
    [
        ({"outcome": "right", "status": "done"}, 1.0),
        ({"outcome": "ambiguous", "status": "done"}, 0.0),
        ({"outcome": "missing"}, 0.0),
        ({"outcome": "right", "status": "failed"}, None),
        ({"outcome": None, "status": "done"}, None),
        ({"score": 0.25}, 0.25),
        ({"score": None}, None),
        ({"score": float("nan")}, None),
        ({}, None),
    ],
)
def test_what_a_sample_is_worth(entry, score):
    assert scored.score_of(entry) == score


def test_epochs_are_averaged_over_what_was_graded():
    found = scored.answered([
        row("a", "right", 1, tokens=10, seconds=1.0), row("a", "wrong", 2, tokens=30, seconds=3.0),
        row("a", None, 3, status="failed", tokens=500, seconds=90.0), row("b", None, status="failed"),
    ])  # fmt: skip
    assert list(found) == ["a", "b"]
    a, b = found.values()
    assert (a.score, a.graded, a.ungraded, a.tokens, a.seconds) == (0.5, 2, 1, 20.0, 2.0)
    assert (b.score, b.graded, b.ungraded, b.tokens) == (None, 0, 1, None)
    assert scored.share([b]) is None and scored.share([a, b]).n == 1


def test_shares_of_groups():
    found = scored.answered([*rows("rrw", "maths"), *rows("f", "science"), *rows("r", "security")])
    groups = scored.shares(found.values(), lambda q: q.source)
    assert list(groups) == ["maths", "security"]
    assert groups["maths"] == wilson(2, 3)


def test_tokens_per_second_of_an_answer():
    entries = [row("a", tokens=11, ttft=1.0, seconds=3.0), row("b", "wrong", tokens=31, ttft=0.5, seconds=2.5)]
    ignored = [
        row("c", tokens=1, ttft=1.0, seconds=3.0), row("d", tokens=None, ttft=1.0, seconds=3.0),
        row("e", tokens=9, seconds=3.0), row("f", None, status="failed", tokens=900, ttft=1.0, seconds=2.0),
    ]  # fmt: skip
    assert scored.rate(entries) == scored.rate(entries + ignored) == 10.0
    assert scored.rate(ignored) is None and scored.rate([]) is None
