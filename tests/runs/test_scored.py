"""Graded runs question by question: what is paired with what, what is left out, and the words for it."""

import numpy as np
import pytest
from scipy import stats as scipy_stats

from ds4ref.runs import scored
from ds4ref.runs.stats import LEAST_GRADED, graded_interval, wilson


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


# --- two runs


def test_questions_are_paired_and_changes_are_named():
    a, b = rows("r" * 30 + "w" * 10), rows("w" * 6 + "r" * 24 + "r" * 2 + "m" * 8)
    found = scored.pair(a, b)
    assert found.whole.difference == graded_interval([1] * 30 + [0] * 10, [0] * 6 + [1] * 26 + [0] * 8)
    assert (found.whole.a, found.whole.b) == (wilson(30, 40), wilson(26, 40))
    assert [c.name for c in found.lost] == [f"maths{i}" for i in range(6)]
    assert [(c.name, c.a, c.b) for c in found.gained] == [("maths30", 0.0, 1.0), ("maths31", 0.0, 1.0)]
    assert found.changes[:6] == tuple(found.lost), "losses first"
    assert found.whole.p == pytest.approx(scipy_stats.binomtest(2, 8).pvalue)
    assert (found.samples, found.failed, found.alone, found.ungraded, found.shared) == ((40, 40), (0, 0), (0, 0), 0, 40)


def test_order_and_repetition_of_rows_do_not_matter():
    rng = np.random.default_rng(2)
    a = [row(f"q{i}", ("right", "wrong")[int(rng.random() < 0.4)], e, f"s{i % 3}") for i in range(40) for e in (1, 2)]
    b = [row(f"q{i}", ("right", "wrong")[int(rng.random() < 0.5)], 1, f"s{i % 3}") for i in range(40)]
    straight, mixed = scored.pair(a, b), scored.pair(a, [b[i] for i in rng.permutation(40)])
    assert straight.whole == mixed.whole and set(straight.changes) == set(mixed.changes)
    means = [[np.mean([r["outcome"] == "right" for r in side if r["id"] == f"q{i}"]) for i in range(40)]
             for side in (a, b)]  # fmt: skip
    assert straight.whole.difference.estimate == pytest.approx(np.mean(means[1]) - np.mean(means[0]))
    assert straight.whole.difference.n == 40 and straight.samples == (80, 40)
    assert sum(s.difference.n for s in straight.sources) == 40


def test_few_questions_have_a_p_and_no_interval():
    found = scored.pair(rows("r" * 18, "security"), rows("w" * 7 + "r" * 11, "security"))
    (security,) = found.sources
    assert not security.difference.known and security.p == pytest.approx(scipy_stats.binomtest(0, 7).pvalue)
    assert scored.verdict(found.whole) == "unclear"
    assert scored.sentence(found.whole) == f"no verdict: 18 questions, and an interval needs {LEAST_GRADED}"


def test_what_failed_on_either_side_is_left_out_and_counted():
    a = [*rows("rrrrf"), row("maths0", None, 2, status="stopped")]
    b = rows("rwfrr")
    found = scored.pair(a, b)
    assert found.whole.difference.n == 3 and found.ungraded == 2 and found.shared == 5
    assert found.failed == (2, 1) and found.samples == (3, 3)
    (said,) = scored.remarks(found, [{}, {}])
    assert said == "samples without a grade (failed, stopped): 2 of A, 1 of B; 2 questions left out for it"


def test_failures_of_one_side_are_told():
    (said,) = scored.remarks(scored.pair(rows("rrr"), rows("rrf")), [{}, {}])
    assert said == "samples without a grade (failed, stopped): 0 of A, 1 of B; 1 question left out for it"


def test_a_failed_epoch_costs_the_epoch_and_not_the_question():
    a = [row("q", "right", 1), row("q", None, 2, status="failed")]
    b = [row("q", "right", 1), row("q", "wrong", 2)]
    found = scored.pair(a, b)
    assert (found.whole.a.estimate, found.whole.b.estimate, found.failed, found.ungraded) == (1.0, 0.5, (1, 0), 0)


def test_questions_are_the_same_if_their_digests_are():
    a = [row("old-1", question="x"), row("old-2", question="y"), row("same", question="z")]
    b = [row("new-1", "wrong", question="x"), row("same", "wrong", question="other")]
    found = scored.pair(a, b)
    assert found.shared == 1 and found.alone == (2, 1)
    assert [c.label for c in found.lost] == ["old-1 (new-1)"]
    facts = [{"pack": {"digest": "1"}}, {"pack": {"digest": "2"}}]
    assert scored.remarks(found, facts) == [
        "different packs: 1 question in both", "3 question(s) left out: not put to both (2 only to A, 1 only to B)"
    ]  # fmt: skip
    assert scored.remarks(scored.pair(a, a), facts) == ["different packs: 3 questions in both"]
    assert scored.remarks(scored.pair(a, a), [{}, {}]) == []
    without = [{k: v for k, v in entry.items() if k != "question"} for entry in b]
    assert scored.pair(a, without).alone == (2, 1) and [c.label for c in scored.pair(a, without).lost] == ["same"]


def test_nothing_in_common():
    found = scored.pair(rows("rr", "maths"), rows("rr", "science"))
    assert found.whole is None and found.shared == 0 and found.alone == (2, 2) and found.tokens is None


def test_tokens_and_seconds_of_the_same_questions():
    rng = np.random.default_rng(5)
    size = rng.lognormal(6, 1, 60)
    a = [row(f"q{i}", tokens=float(s), seconds=float(s) / 20) for i, s in enumerate(size)]
    noise = np.exp(rng.normal(np.log(1.2), 0.05, 60))
    b = [row(f"q{i}", tokens=float(s * f), seconds=0.0) for i, (s, f) in enumerate(zip(size, noise, strict=True))]
    found = scored.pair(a, b)
    assert found.tokens.change.low < 20 < found.tokens.change.high < 25 and found.tokens.change.estimate > 15
    assert found.tokens.a == pytest.approx(size.mean()) and found.seconds is None


# --- words


def contrast(*changes, n=93):
    """B gained and lost so many of n questions."""
    gained, lost = changes
    a = "w" * gained + "r" * lost + "r" * (n - gained - lost)
    b = "r" * gained + "w" * lost + "r" * (n - gained - lost)
    return scored.pair(rows(a), rows(b)).whole


def test_one_line_verdicts():
    worse = contrast(2, 14)
    i = worse.points
    assert scored.verdict(worse) == "worse"
    assert scored.sentence(worse) == f"B is worse by 13 points ({-i.high:.1f} to {-i.low:.0f})"
    assert scored.sentence(contrast(14, 2)).startswith("B is better by 13 points (")
    undecided = contrast(5, 8)
    assert scored.verdict(undecided) == "unclear"
    found = scored.sentence(undecided)
    assert found == f"no difference found; one of {undecided.points.detectable:.0f} points would have been"
    assert scored.sentence(contrast(0, 0)) == "no difference found; one of 7.8 points would have been"
    assert scored.sentence(contrast(0, 0, n=4000)) == "the same within 1 point"
    assert "less than the 2 points that counts" not in scored.sentence(undecided, 2.0)
    small = contrast(0, 40, n=5000)
    assert scored.sentence(small) == "B is lower by 0.8 points (0.5 to 1), less than the 1 point that counts"


def test_averaged_scores_promise_less():
    a = [row(f"q{i}", o, e) for i in range(40) for e, o in enumerate(("right", "wrong" if i % 3 else "right"), 1)]
    found = scored.pair(a, a).whole
    assert found.averaged and scored.sentence(found).endswith(" would have been, if many questions bore it")
    assert not contrast(5, 8).averaged


def test_a_close_call_is_said():
    close = contrast(1, 7)
    assert close.difference.high < 0 and close.p > 0.05
    assert "p = 0.07" in scored.close_call(close) and scored.verdict(close) == "worse"
    assert scored.close_call(contrast(0, 14)) is None and scored.close_call(contrast(5, 8)) is None


@pytest.mark.parametrize(("points", "said"), [(11.4, "11"), (9.96, "10"), (9.94, "9.9"), (3.0, "3"), (0.04, "0.04")])
def test_points_are_brief(points, said):
    assert scored.brief(points) == said


def test_what_differs_between_runs():
    a = {
        "settings": {"think": "high", "tokens": 16000}, "epochs": 1, "model": {"name": "m q4"},
        "pack": {"pack": "p", "version": 1, "digest": "x"},
        "target": {"kind": "local", "name": "here", "digest": "sha256:" + "ab" * 32},
    }  # fmt: skip
    b = {
        "settings": {"think": "none", "tokens": 16000}, "epochs": 4, "model": {"name": "m q2"}, "grader": "ds4",
        "pack": {"pack": "p", "version": 2, "digest": "y"},
        "target": {"kind": "local", "name": "there", "digest": "sha256:" + "cd" * 32},
    }  # fmt: skip
    assert scored.differences(a, b) == [
        ("pack", "p 1", "p 2"), ("pack digest", "x", "y"), ("model", "m q4", "m q2"), ("think", "high", "none"),
        ("engine's digest", "sha256:abababababab", "sha256:cdcdcdcdcdcd"), ("epochs", "1", "4"),
        ("grader", "ours", "ds4"),
    ]  # fmt: skip
    assert scored.differences(a, a) == [] and scored.differences({}, {}) == []
