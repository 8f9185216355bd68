"""Comparisons: right on simulated runs whose truth is known, cautious where nothing can be known."""

import json
import math
import re
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from scipy import stats as scipy_stats

from ds4ref.console.comparison import text
from ds4ref.runs import stats, words
from ds4ref.runs.compare import compare, differences
from ds4ref.runs.pairs import Cost, pair, remarks
from ds4ref.runs.speeds import speeds
from ds4ref.runs.statements import INCOMPARABLE, LIMITS, MIXED, Limits, overall
from ds4ref.runs.stats import BETTER, REFUSED, SAME, UNCLEAR, WORSE, Interval, graded_interval, judge, unknown, wilson

from .simulate import DEPTHS, arms, run

TRIALS = 40


def verdicts(count=TRIALS, **settings) -> Counter:
    return Counter(compare(*arms(seed, **settings)).verdict for seed in range(count))


# --- speeds: verdicts on what is known


def test_two_identical_targets_are_not_declared_different():
    """Forty trials with default settings (5 rounds in turn, 8 depths) on a shared machine: 2 % noise on every speed,
    one cell in twenty disturbed by 5 to 40 %, a machine that drifts by 2 % a round."""
    found = verdicts()
    assert found[WORSE] + found[BETTER] <= 0.05 * TRIALS


@pytest.mark.parametrize("noise", [0.005, 0.015])
def test_a_slowdown_of_3_per_cent_is_found(noise):
    """What it needs: 1.5 % noise or less on a single speed, at 5 rounds of 8 depths."""
    assert verdicts(slower=0.03, noise=noise)[WORSE] >= 0.8 * TRIALS


def test_runs_that_drifted_apart_are_no_verdict():
    """Not in turn: half of the machine's drift between two runs must not look like a change of the program."""
    drifting = {"in_turn": False, "drift": 0.008}
    found = verdicts(**drifting)
    assert found[WORSE] + found[BETTER] <= 0.05 * TRIALS
    assert verdicts(slower=0.15, **drifting)[WORSE] >= 0.8 * TRIALS
    one = compare(*arms(0, **drifting))
    assert one.design == "separate" and any("not measured in turn" in note for note in one.notes)


def test_one_walk_each_says_so():
    single = {"reps": 1, "in_turn": False, "depths": tuple(range(2048, 65537, 2048)), "drift": 0.01}
    assert verdicts(**single)[UNCLEAR] >= 38 and verdicts(slower=0.2, **single)[WORSE] >= 36
    found = compare(*arms(0, **single))
    assert not any(f.interval.known for f in found.findings) and "no interval: too few" in found.says()[0]
    assert found.design == "single" and any("one repetition each" in note for note in found.notes)


@pytest.mark.parametrize("slower, margin, verdict", [(0.08, 1, WORSE), (0.049, 1, UNCLEAR), (0.051, 1, WORSE),
                                                     (0.08, 8.1, UNCLEAR), (0.08, 7.9, WORSE)])  # fmt: skip
def test_one_walk_needs_the_larger_of_both_bounds(slower, margin, verdict):
    """What counts as the same is never called worse."""
    a, b = arms(0, reps=1, in_turn=False, noise=0, spikes=0, drift=0, slower=slower)
    found = compare(a, b, Limits(margin=margin))
    assert [(f.verdict, round(f.interval.estimate, 6)) for f in found.findings] == [(verdict, -100 * slower)] * 2


def test_the_gate_fails_from_its_limit_on():
    a, b = arms(3, slower=0.06, noise=0.005)
    slow = compare(a, b)
    assert slow.verdict == WORSE and not slow.passes and "worse by" in slow.fails[0] and slow.design == "in turn"
    assert slow.as_json()["fails"] == list(slow.fails) and slow.as_json()["notes"] == list(slow.notes)
    assert compare(b, a).verdict == BETTER and compare(b, a).passes
    little = compare(*arms(3, slower=0.02, noise=0.005))
    assert little.verdict == WORSE and little.passes
    at = -slow.findings[0].interval.estimate  # a loss of exactly the limit fails
    assert "prefill" in str(compare(a, b, Limits(fail=at)).fails)
    assert "prefill" not in str(compare(a, b, Limits(fail=at + 1e-9)).fails)


def test_all_statements_together_keep_the_confidence():
    """Two speeds share the error rate: each is told at half of what a lone one is."""
    a, b = arms(1)
    both = compare(a, b).findings[0].interval
    for row in a.rows + b.rows:
        del row["gen_tps"]
    (alone,) = compare(a, b).findings
    assert both.estimate == alone.interval.estimate and both.n == alone.interval.n == 5
    widths = [np.log1p(i.high / 100) - np.log1p(i.low / 100) for i in (both, alone.interval)]
    error = 1 - LIMITS["bench"].confidence
    wanted = scipy_stats.t.ppf(1 - error / 4, 4) / scipy_stats.t.ppf(1 - error / 2, 4)
    assert widths[0] / widths[1] == pytest.approx(wanted, rel=1e-3)


def test_ratios_and_means_are_those_of_the_rows():
    a, b = arms(1, noise=0.0, spikes=0.0, drift=0.0, slower=0.2)
    found = compare(a, b)
    assert [ratio for *_, ratio in found.depths] == pytest.approx([0.8] * 2 * len(DEPTHS))
    for finding, column in zip(found.findings, ("prefill_tps", "gen_tps"), strict=True):
        assert finding.interval.estimate == pytest.approx(-20)
        means = [np.exp(np.mean([np.log(row[column]) for row in side.rows])) for side in (a, b)]
        assert (finding.a, finding.b) == pytest.approx(tuple(means)) and finding.b == pytest.approx(0.8 * finding.a)
    assert found.fails and all("worse by 20.00 %" in line for line in found.fails)


def row(depth, rep, prefill, gen, tokens=64, **more):
    return {"ctx_tokens": depth, "rep": rep, "prefill_tokens": tokens, "prefill_tps": prefill, "gen_tokens": 8,
            "gen_tps": gen, **more}  # fmt: skip


def test_repetitions_are_paired_by_their_number():
    """The third repetition of one target is that of the other, also where one lost its first two."""
    fast, gains = [100.0, 110.0, 90.0, 105.0, 95.0], [1.02, 1.04, 1.03, 1.05, 1.01]
    one = [row(64, rep, speed, 50.0) for rep, speed in enumerate(fast)]
    other = [row(64, rep, speed * gain, 50.0 * gain) for rep, (speed, gain) in enumerate(zip(fast, gains, strict=True))]
    for a, b, left in ((one, other, gains), (one, other[2:], gains[2:]), (one[2:], other, gains[2:])):
        wanted = stats.per_cent(stats.centre_interval(np.log(left), 1 - 0.02 / 2))
        for found in speeds(a, b, True).findings:
            assert found.interval.n == len(left)
            assert (found.interval.estimate, found.interval.low) == pytest.approx((wanted.estimate, wanted.low))


def test_only_equal_work_is_compared_and_what_is_left_out_is_counted():
    """A place that one run lacks, prefilled in other steps, or did not measure, is left out of both."""
    one = [row(64, 0, 1.0, 2.0), row(128, 0, 1.0, 2.0), row(256, 0, 1.0, 0.0), row(512, 0, 1.0, 2.0),
           row(64, 0, 1.0, 2.0, test="pp64")]  # fmt: skip
    other = [row(64, 0, 4.0, 2.0), row(128, 0, 4.0, 2.0, tokens=32), row(256, 0, 4.0, 2.0)]
    found = speeds(one, other, False).cells
    assert found["prefill"][1] == {(64, ""): {0: 4.0}, (256, ""): {0: 4.0}}
    assert list(found["decode"][0]) == [(64, ""), (128, "")]
    notes = compare(run("a", one), run("b", other)).notes
    assert any(note.startswith("4 depth(s) left out") for note in notes)
    for entry in other:
        entry["prefill_tokens"] = entry["gen_tokens"] = 77
    assert compare(run("a", one), run("b", other)).verdict == INCOMPARABLE


def test_unknown_origin_and_other_tokens_are_noted():
    a, b = arms(1)
    for index, entry in enumerate(a.rows + b.rows):
        entry["gen_digest"] = "same" if index < len(a.rows) + 4 else "other"
    for entry in a.rows:
        if entry["ctx_tokens"] == DEPTHS[0]:
            del entry["gen_digest"]
    b.run.facts.clear()
    notes = compare(a, b).notes
    assert any("same model, prompt, numerics" in note for note in notes)
    assert any("different tokens were decoded at 7 of 7 depths" in note for note in notes)


@pytest.mark.parametrize("warned, verdict", [(10, "not refused"), (11, REFUSED)])
def test_a_speed_with_many_warnings_is_refused(warned, verdict):
    """Ten of forty rows are a quarter; the speed that the warnings do not concern is compared."""
    a, b = arms(1, slower=0.5)
    for entry in b.rows[:warned]:
        entry["warnings"] = {"count": "counts wrongly"}
    prefill, decode = compare(a, b).findings
    assert prefill.verdict == WORSE and (decode.verdict == REFUSED) == (verdict == REFUSED)
    if verdict == REFUSED:
        assert decode.sentence("old", "new") == (
            "decode: new is not compared with old: B: 11 of 40 rows have warnings: count"
        )
        assert "decode is not compared" in str(compare(a, b).fails)


@pytest.mark.parametrize("change, reason", [
    ({"model": {"sha256": "c" * 64}}, "different model: aaaaaaaaaaaa and cccccccccccc"),
    ({"prompt_sha256": "d" * 64}, "different prompt"), ({"numerics": "qat"}, "different numerics: ds4 and qat"),
])  # fmt: skip
def test_other_work_is_incomparable_unless_it_may_differ(change, reason):
    a, b = arms(1)
    other = run("b", b.rows, facts=b.run.facts | change)
    found = compare(a, other)
    assert found.verdict == INCOMPARABLE and not found.passes and reason in found.notes[0] and reason in found.says()[0]
    assert compare(a, other, differ=[reason.split()[1].rstrip(":")]).verdict != INCOMPARABLE


def test_other_kinds_unfinished_and_empty_runs_are_incomparable():
    a, b = arms(1)
    others = run("v", b.rows, kind="vectors"), run("b", b.rows, status="stopped"), run("b", [])
    assert {compare(a, other).verdict for other in others} == {INCOMPARABLE}
    assert compare(*[run("p", [{}], kind="peaks")] * 2).verdict == INCOMPARABLE


# --- graded runs


def sample(name, outcome="right", epoch=1, source="maths", status="done", question=None, **more):
    found = {"id": name, "epoch": epoch, "source": source, "domain": "d", "status": status, "outcome": outcome, **more}
    return found | ({"question": question} if question else {})


def samples(letters, source="maths", **more):
    """A row for each letter: Right, Wrong, Ambiguous, Missing, Failed."""
    outcomes = {"r": "right", "w": "wrong", "a": "ambiguous", "m": "missing", "f": None}
    return [sample(f"{source}{i}", outcomes[c], source=source, status="failed" if c == "f" else "done", **more)
            for i, c in enumerate(letters)]  # fmt: skip


def graded(a, b, limits=None, **more):
    one, other = (samples(side) if isinstance(side, str) else side for side in (a, b))
    return compare(run("A", one, kind="eval"), run("B", other, kind="eval", **more), limits)


def test_questions_are_paired_and_changes_are_named():
    found = graded("r" * 30 + "w" * 10, "w" * 6 + "r" * 24 + "r" * 2 + "m" * 8).pairs
    assert found.whole.difference == graded_interval([1] * 30 + [0] * 10, [0] * 6 + [1] * 26 + [0] * 8)
    assert (found.whole.a, found.whole.b) == (wilson(30, 40), wilson(26, 40))
    assert [c.id for c in found.lost] == [f"maths{i}" for i in range(6)]
    assert [(c.id, c.a, c.b) for c in found.gained] == [("maths30", 0.0, 1.0), ("maths31", 0.0, 1.0)]
    assert found.changes[:6] == tuple(found.lost), "losses first"
    assert found.whole.p == pytest.approx(scipy_stats.binomtest(2, 8).pvalue)
    assert (found.samples, found.failed, found.alone, found.ungraded, found.shared) == ((40, 40), (0, 0), (0, 0), 0, 40)
    assert found.tally() == "right in both: 24, only in A: 6, only in B: 2, in neither: 8"


def test_order_and_repetition_of_rows_do_not_matter():
    """Epochs of a question are not independent questions."""
    a = [sample(f"q{i}", ("right", "wrong")[(i * e) % 3 == 1], e, f"s{i % 3}") for i in range(40) for e in (1, 2)]
    b = [sample(f"q{i}", ("right", "wrong")[i % 5 == 1], 1, f"s{i % 3}") for i in range(40)]
    straight, mixed = pair(a, b), pair(a, b[::-1])
    assert straight.whole == mixed.whole and set(straight.changes) == set(mixed.changes)
    means = [np.mean([row["outcome"] == "right" for row in side]) for side in (a, b)]
    assert straight.whole.difference.estimate == pytest.approx(means[1] - means[0])
    assert straight.whole.difference.n == 40 and straight.samples == (80, 40) and straight.repeated
    assert sum(s.difference.n for s in straight.sources) == 40 and "equally often right" in straight.tally()


def test_few_questions_have_a_p_and_no_interval():
    found = graded(samples("r" * 18, "security"), samples("w" * 7 + "r" * 11, "security"))
    (security,) = found.pairs.sources
    assert not security.difference.known and security.p == pytest.approx(scipy_stats.binomtest(0, 7).pvalue)
    assert found.verdict == "unclear" and found.says() == ["no verdict: 18 questions, and an interval needs 20"]


@pytest.mark.parametrize("a, b, n, failed, said", [
    ("rrrrf", "rwfrr", 3, (1, 1), "1 of A, 1 of B; 2 questions left out for it"),
    ("rrr", "rrf", 2, (0, 1), "0 of A, 1 of B; 1 question left out for it"),
    ([*samples("r"), sample("maths0", None, 2, status="failed")], "r", 1, (1, 0), "1 of A, 0 of B"),
])  # fmt: skip
def test_what_failed_says_nothing_about_the_model(a, b, n, failed, said):
    """It is left out on both sides and counted; a failed epoch costs the epoch and not the question."""
    found = graded(a, b)
    assert (found.pairs.whole.difference.n, found.pairs.failed, found.notes) == (
        n, failed, (f"samples without a grade (failed, stopped): {said}",)
    )  # fmt: skip


def test_questions_are_the_same_if_their_digests_are():
    a = [sample("old-1", question="x"), sample("old-2", question="y"), sample("same", question="z")]
    b = [sample("new-1", "wrong", question="x"), sample("same", "wrong", question="other")]
    found = pair(a, b)
    assert found.shared == 1 and found.alone == (2, 1) and [c.label for c in found.lost] == ["old-1 (new-1)"]
    packs = {"pack": {"digest": "1"}}, {"pack": {"digest": "2"}}
    assert remarks(found, *packs) == [
        "different packs: 1 question in both", "3 question(s) left out: not put to both (2 only to A, 1 only to B)"
    ]  # fmt: skip
    assert remarks(pair(a, a), *packs) == ["different packs: 3 questions in both"] and remarks(pair(a, a), {}, {}) == []
    without = [{k: v for k, v in entry.items() if k != "question"} for entry in b]
    assert pair(a, without).alone == (2, 1) and [c.label for c in pair(a, without).lost] == ["same"]


def test_nothing_graded_or_nothing_in_common_is_incomparable():
    assert graded("rr", samples("rr", "science")).says() == ["not comparable: no question in common"]
    assert graded("ff", "rr").says() == ["not comparable: none of 2 questions has a grade in both"]


def test_tokens_and_seconds_of_the_same_questions():
    rng = np.random.default_rng(5)
    size, noise = rng.lognormal(6, 1, 60), np.exp(rng.normal(np.log(1.2), 0.05, 60))
    a = [sample(f"q{i}", tokens=float(s), seconds=float(s) / 20) for i, s in enumerate(size)]
    b = [sample(f"q{i}", tokens=float(s * f), seconds=0.0) for i, (s, f) in enumerate(zip(size, noise, strict=True))]
    found = pair(a, b)
    assert found.tokens.change.low < 20 < found.tokens.change.high < 25 and found.tokens.change.estimate > 15
    assert found.tokens.a == pytest.approx(size.mean()) and found.seconds is None
    alike = pair([e | {"tokens": 210} for e in a], [e | {"tokens": 420} for e in b])
    assert alike.costs() == ["tokens per question: 210 in A, 420 in B; +100.0 % in each"]
    two = pair([e | {"tokens": 210} for e in a[:2]], [e | {"tokens": 420} for e in b[:2]])
    assert two.costs() == ["tokens per question: 210 in A, 420 in B"], "two questions are too few"


def test_seconds_are_told_as_speed_too():
    """A fifth less time is a quarter more speed."""
    cost = Cost(10.0, 8.0, Interval(-20.0, -25.0, -15.0, 30, "t"))
    found = pair(samples("r"), samples("r")).__class__(None, (), (), None, cost, (0, 0), 0, (0, 0), (0, 0))
    assert found.costs()[1] == "answers: B is 1.25 x (1.18 to 1.33) as fast as A: faster"


@pytest.mark.parametrize("gained, lost, n, margin, verdict, says", [
    (2, 14, 93, 1, WORSE, "B is worse by 13 points ("), (14, 2, 93, 1, BETTER, "B is better by 13 points ("),
    (5, 8, 93, 1, UNCLEAR, "no difference found; one of 14 points would have been"),
    (0, 0, 93, 1, UNCLEAR, "no difference found; one of 7.8 points would have been"),
    (0, 0, 4000, 1, SAME, "the same within 1 point"), (0, 0, 4000, 2, SAME, "the same within 2 points"),
    (0, 40, 5000, 1, UNCLEAR, "B is lower by 0.8 points (0.5 to 1), less than the 1 point that counts"),
])  # fmt: skip
def test_one_line_verdicts(gained, lost, n, margin, verdict, says):
    a = "w" * gained + "r" * lost + "r" * (n - gained - lost)
    found = graded(a, "r" * gained + "w" * lost + "r" * (n - gained - lost), Limits(margin, 2.0, 0.95))
    assert found.says()[0].startswith(says) and found.verdict == verdict


def test_averaged_scores_promise_less_and_a_close_call_is_said():
    a = [sample(f"q{i}", o, e) for i in range(40) for e, o in enumerate(("right", "wrong" if i % 3 else "right"), 1)]
    assert graded(a, a).says()[0].endswith(" would have been, if many questions bore it")
    close = graded("w" + "r" * 92, "r" + "w" * 7 + "r" * 85)
    assert close.verdict == WORSE and "a close call" in close.notes[0] and "p = 0.07" in close.notes[0]
    assert not graded("r" * 93, "w" * 14 + "r" * 79).notes


def test_graded_runs_of_other_engines_are_what_is_compared():
    facts = {"model": {"sha256": "c" * 64, "name": "q2"}, "numerics": "qat", "settings": {"think": "none"}}
    found = graded("r" * 60, "w" * 15 + "r" * 45, facts=facts, status="stopped")
    assert found.verdict == WORSE and not found.passes and found.notes == ("B is stopped",)
    assert found.differs == (("model", "-", "q2"), ("think", "-", "none"))
    assert found.as_json()["questions"]["lost"][0] == {
        "id": "maths0", "id_b": "maths0", "source": "maths", "a": 1.0, "b": 0.0
    }  # fmt: skip
    assert (found.findings[0].a, found.findings[0].b) == (100, 75)
    assert graded("r" * 93, "w" * 5 + "r" * 88, Limits(1, 2, 0.99)).verdict == UNCLEAR, "at its own confidence"


def test_what_differs_between_runs():
    a = {
        "settings": {"think": "high", "tokens": 16000}, "epochs": 1, "model": {"name": "m q4"},
        "pack": {"pack": "p", "version": 1, "digest": "x"},
        "target": {"kind": "local", "name": "here", "digest": "sha256:" + "ab" * 32},
    }  # fmt: skip
    b = {
        "settings": {"think": "none", "tokens": 16000}, "epochs": 4, "model": {"name": "m q2"},
        "pack": {"pack": "p", "version": 2, "digest": "y"},
        "target": {"kind": "local", "name": "there", "digest": "sha256:" + "cd" * 32},
    }  # fmt: skip
    assert differences(a, b) == [
        ("pack", "p 1", "p 2"), ("pack digest", "x", "y"), ("model", "m q4", "m q2"), ("think", "high", "none"),
        ("engine's digest", "sha256:abababababab", "sha256:cdcdcdcdcdcd"), ("epochs", "1", "4"),
    ]  # fmt: skip
    assert differences(a, a) == [] and differences({}, {}) == []


# --- vectors


def test_vectors_are_compared_by_perplexity():
    rng = np.random.default_rng(2)
    tokens = rng.integers(30, 300, 30)
    nll = tokens * rng.normal(2.0, 0.5, 30)

    def vectors(values, counts):
        return run("v", [{"id": f"v{i}", "nll": float(n), "tokens": int(t)}
                         for i, (n, t) in enumerate(zip(values, counts, strict=True))], kind="vectors")  # fmt: skip

    found = compare(vectors(nll, tokens), vectors(nll + 0.02 * tokens + rng.normal(0, 0.05, 30), tokens))
    assert found.verdict == WORSE and found.findings[0].interval.estimate == pytest.approx(-2, abs=0.1)
    assert found.findings[0].a == pytest.approx(np.exp(nll.sum() / tokens.sum()))
    assert found.says()[0].startswith("perplexity (lower is better): worse (-1.98 %")
    assert compare(vectors(nll, tokens), vectors(nll, tokens)).verdict == SAME
    assert compare(vectors(nll, tokens), vectors(nll, tokens + 1)).verdict == INCOMPARABLE


# --- words and texts


@pytest.mark.parametrize("values, floor, verdict", [
    ((0.0, -1.0, 1.0), 0.2, SAME),  # the whole interval, its ends included
    ((0.0, -1.01, 1.0), 0.2, UNCLEAR), ((1.0, 0.5, 1.5), 0.2, BETTER),  # the margin itself
    ((0.99, 0.5, 1.48), 0.2, UNCLEAR), ((5.0, 0.2, 9.8), 0.2, UNCLEAR),  # a floor below which nothing is said
    ((5.0, 0.21, 9.79), 0.2, BETTER), ((-5.0, -9.8, -0.2), 0.2, UNCLEAR), ((-5.0, -9.79, -0.21), 0.2, WORSE),
    ((5.0, -math.inf, math.inf), 0, UNCLEAR), ((math.nan, -math.inf, math.inf), 0, REFUSED),
])  # fmt: skip
def test_judging_one_interval(values, floor, verdict):
    assert judge(Interval(*values, 5, ""), 1.0, floor) == verdict


@pytest.mark.parametrize("several, verdict", [
    ([BETTER, WORSE, SAME], MIXED), ([UNCLEAR, WORSE, SAME], WORSE), ([BETTER, UNCLEAR], BETTER),
    ([BETTER, REFUSED], REFUSED), ([SAME, UNCLEAR], UNCLEAR), ([SAME, SAME], SAME),
])  # fmt: skip
def test_one_word_for_several(several, verdict):
    assert overall(several) == verdict


@pytest.mark.parametrize("i, verdict, says", [
    (Interval(23.0, 20.0, 26.0, 5, "t"), BETTER, "decode: B is 1.23 x (1.20 to 1.26) as fast as A: faster"),
    (Interval(-6.0, -7.04, -5.0, 5, "t"), WORSE, "decode: B is 0.94 x (0.93 to 0.95) as fast as A: slower"),
    (Interval(0.1, -0.5, 0.7, 5, "t"), SAME, "decode: B is 1.001 x (0.995 to 1.007) as fast as A: same within 1 %"),
    (Interval(0.0, -0.02, 0.03, 5, "t"), SAME,
     "decode: B is 1.0000 x (0.9998 to 1.0003) as fast as A: same within 1 %"),
    (Interval(2.0, -3.0, 7.0, 5, "t", None, 8.04), UNCLEAR,
     "decode: B is 1.02 x (0.97 to 1.07) as fast as A: unclear, 5 rounds detect 8.0 %"),
    (unknown(5.0, 2), UNCLEAR, "decode: B is 1.05 x as fast as A (no interval: too few values)"),
    (unknown(50.0, 1), BETTER, "decode: B is 1.50 x as fast as A (faster, no interval: too few values)"),
])  # fmt: skip
def test_a_speed_is_one_sentence(i, verdict, says):
    assert words.speed("decode", i, verdict) == says
    assert words.speed("decode", i, verdict, 1.0, "old", "new").startswith("decode: new is ")


def test_figures_are_brief():
    assert [words.brief(x) for x in (11.4, 9.96, 9.94, 3.0, 0.04)] == ["11", "10", "9.9", "3", "0.04"]
    assert [words.signed(x) for x in (-3.14159, 999.994, 2.2e6, math.nan)] == ["-3.14", "+999.99", "+2.2e+06", ""]
    assert words.probability(stats.LEAST_P) == "< 0.0004" and words.probability(0.0123) == "0.012"


def test_a_comparison_for_people_shows_its_numbers():
    found = compare(*arms(1, slower=0.2, noise=0.001))
    shown = text(found, 400)
    assert shown.startswith("A = A\nB = B\n\nprefill: B is 0.79 x (")
    for finding in found.findings:
        i = finding.interval
        assert f"{i.estimate:+.2f} %" in shown and f"{i.low:+.2f} to {i.high:+.2f}" in shown and i.method in shown
        assert f"{finding.a:.4g}" in shown and f"{finding.b:.4g}" in shown and f"{i.detectable:.2g} %" in shown
    ratios = [f"{ratio:.4f}" for depth, _, ratio in found.depths if depth == DEPTHS[0]]
    assert re.search(rf"{DEPTHS[0]:,} +{' +'.join(ratios)}\n", shown)
    assert all(f"gate: {fail}" in shown for fail in found.fails) and len(found.fails) == 2
    lost = text(
        graded(samples("r" * 30) + samples("r" * 30, "s"), samples("w" * 12 + "r" * 18) + samples("r" * 30, "s")), 99
    )
    assert f"right -> wrong (12): {', '.join(f'maths{i}' for i in range(7))}," in lost and "maths     30" in lost


@settings(max_examples=30)
@given(st.integers(30, 200), st.text("rwamf", min_size=24, max_size=24), st.text("rwamf", min_size=24, max_size=24))
def test_tables_fit_and_nothing_crashes(width, a, b):
    found = graded(a, b)
    assert json.loads(json.dumps(found.as_json()))["verdict"] == found.verdict
    assert all(cell_len(line) <= width for line in text(found, width).splitlines())


def test_two_short_runs_have_no_interval_and_figures_fit():
    """Two walks each, one of them disturbed: Student's t with one degree of freedom would have said 10^300 %."""
    a, b = arms(1, reps=2)
    for entry in b.rows[: len(DEPTHS)]:
        entry["gen_tps"] *= 1e-5
    found = compare(a, b)
    shown = text(found, 400)
    assert not any(f.interval.known for f in found.findings) and found.design == "single"
    assert "inf" not in shown and "nan" not in shown and json.dumps(found.as_json(), allow_nan=False)
