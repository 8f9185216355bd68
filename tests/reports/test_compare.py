"""Verdicts: right on simulated benches whose truth is known, cautious where nothing can be known."""

import re
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats as scipy_stats

from ds4ref.errors import DataError
from ds4ref.reports.build import build_report
from ds4ref.reports.compare import BETTER, INCOMPARABLE, MIXED, SAME, UNCLEAR, WORSE, compare, judge, overall, signed
from ds4ref.reports.sources import Measured
from ds4ref.reports.tables import print_comparison
from ds4ref.reports.thresholds import Margins, Thresholds, read_thresholds
from ds4ref.runs.stats import Interval

from .simulate import DEPTHS, arms, run

TRIALS = 40


def verdicts(count=TRIALS, start=0, **settings) -> Counter:
    return Counter(compare(*arms(seed, **settings)).verdict for seed in range(start, start + count))


def test_two_identical_arms_are_not_declared_different():
    """Forty trials with default settings (5 rounds in turn, 8 depths) on a shared machine: 2 % noise on every speed,
    one cell in twenty disturbed by 5 to 40 %, a machine that drifts by 2 % a round."""
    found = verdicts()
    assert found[WORSE] + found[BETTER] <= 0.05 * TRIALS


@pytest.mark.parametrize("noise", [0.005, 0.01, 0.015])
def test_a_slowdown_of_3_per_cent_is_found(noise):
    """What it needs: 1.5 % noise or less on a single speed, at 5 rounds of 8 depths. (At 3 % a bit more than half are
    found: then more rounds.)"""
    assert verdicts(slower=0.03, noise=noise)[WORSE] >= 0.8 * TRIALS


def test_a_speedup_is_found_and_a_gate_lets_it_pass():
    a, b = arms(1, slower=-0.05)
    found = compare(a, b)
    assert found.verdict == BETTER and found.passes and found.design == "in turn"
    assert found.findings[0].interval.estimate == pytest.approx(5, abs=2)


def test_quiet_benches_prove_equality():
    found = verdicts(10, noise=0.002, spikes=0.0)
    assert found[SAME] == 10


def test_the_gate_fails_beyond_its_limit_only():
    slow = compare(*arms(3, slower=0.06, noise=0.005))
    assert slow.verdict == WORSE and not slow.passes and "worse by" in slow.fails[0]
    little = compare(*arms(3, slower=0.02, noise=0.005))
    assert little.verdict == WORSE and little.passes
    at = -slow.findings[0].interval.estimate  # a loss of exactly the limit fails
    assert len(compare(*arms(3, slower=0.06, noise=0.005), Thresholds(speed=Margins(fail=at))).fails) >= 1
    assert slow.findings[0].metric not in str(
        compare(*arms(3, slower=0.06, noise=0.005), Thresholds(speed=Margins(fail=at + 1e-9))).fails
    )
    strict = Thresholds(speed=Margins(fail=1.0))
    assert not compare(*arms(3, slower=0.02, noise=0.005), strict).passes


def test_runs_that_drifted_apart_are_no_verdict():
    """Not in turn: half of the machine's drift between two runs must not look like a change of the program."""
    settings = {"in_turn": False, "drift": 0.008}
    found = verdicts(**settings)
    assert found[WORSE] + found[BETTER] <= 0.05 * TRIALS
    assert verdicts(slower=0.15, **settings)[WORSE] >= 0.8 * TRIALS
    a, b = arms(0, **settings)
    assert any("not measured in turn" in note for note in compare(a, b).notes)


def test_one_walk_each_says_so():
    settings = {"reps": 1, "in_turn": False, "depths": tuple(range(2048, 65537, 2048)), "drift": 0.01}
    assert verdicts(**settings)[UNCLEAR] >= 38
    assert verdicts(slower=0.2, **settings)[WORSE] >= 36
    found = compare(*arms(0, **settings))
    assert not any(f.interval.known for f in found.findings) and "no interval: too few" in found.findings[0].sentence()
    assert found.design == "single" and any("one repetition each" in note for note in found.notes)


@pytest.mark.parametrize(
    ("single", "margin", "verdict"),
    [(5, 1, WORSE), (7.9, 1, WORSE), (8.1, 1, UNCLEAR), (1, 7.9, WORSE), (1, 8.1, UNCLEAR)],
)
def test_one_walk_needs_the_larger_of_both_bounds(single, margin, verdict):
    """Everything is slower by exactly 8 %: what counts as the same is never called worse."""
    a, b = arms(0, reps=1, in_turn=False, noise=0, spikes=0, drift=0, slower=0.08)
    found = compare(a, b, Thresholds(speed=Margins(margin=margin, single=single)))
    assert [(f.verdict, round(f.interval.estimate, 6)) for f in found.findings] == [(verdict, -8.0)] * 2
    assert [f.verdict for f in compare(b, a, Thresholds(speed=Margins(1, single=8.69))).findings] == [BETTER] * 2


def test_drift_within_a_run_is_noted():
    a, b = arms(5, noise=0.002, spikes=0.0, drift=0.0)
    for side in (a, b):
        for row in side.rows:
            row["gen_tps"] *= 1 - 0.03 * row["rep"]
    found = compare(a, b)
    assert sum("decode drifted" in note for note in found.notes) == 2
    assert not any("prefill drifted" in note for note in found.notes)
    assert found.verdict == SAME, "in turn, drift hits both"


def test_all_statements_together_keep_the_confidence():
    """Two speeds share the error rate: each is told at half of what a lone one is."""
    a, b = arms(1)
    both = compare(a, b).findings[0].interval
    for row in a.rows + b.rows:
        del row["gen_tps"]
    alone = compare(a, b).findings[0].interval
    assert both.estimate == alone.estimate and both.n == alone.n == 5
    widths = [np.log1p(i.high / 100) - np.log1p(i.low / 100) for i in (both, alone)]
    error = 1 - Thresholds().gate.confidence
    wanted = scipy_stats.t.ppf(1 - error / 4, 4) / scipy_stats.t.ppf(1 - error / 2, 4)
    assert widths[0] / widths[1] == pytest.approx(wanted, rel=1e-3)


def test_what_was_left_out_or_done_otherwise_is_counted():
    a, b = arms(1)
    for row in b.rows:
        if row["ctx_tokens"] in DEPTHS[:2]:
            row["prefill_tokens"] = 1024  # decode stays comparable there
        row["gen_digest"] = "b" if row["ctx_tokens"] == DEPTHS[5] else "a"
    for row in a.rows:
        row["gen_digest"] = "a" if row["ctx_tokens"] != DEPTHS[6] else None
    notes = compare(a, b).notes
    assert any(note.startswith("2 depth(s) left out") for note in notes)
    assert any(note.startswith("different tokens were decoded at 1 of 7 depths") for note in notes)


def test_ratios_and_means_are_those_of_the_rows():
    a, b = arms(1, noise=0.0, spikes=0.0, drift=0.0, slower=0.2)
    found = compare(a, b)
    assert [ratio for *_, ratio in found.depths] == pytest.approx([0.8] * 2 * len(DEPTHS))
    for finding, column in zip(found.findings, ("prefill_tps", "gen_tps"), strict=True):
        assert finding.interval.estimate == pytest.approx(-20)
        means = [np.exp(np.mean([np.log(row[column]) for row in side.rows])) for side in (a, b)]
        assert (finding.a, finding.b) == pytest.approx(tuple(means)) and finding.b == pytest.approx(0.8 * finding.a)
    assert found.fails and all("worse by 20.00 %" in line for line in found.fails)


@pytest.mark.thorough
@pytest.mark.parametrize("in_turn", [True, False])
def test_two_short_runs_have_no_interval_and_figures_fit(in_turn, capsys, tmp_path):
    """Two walks each, one of them disturbed: Student's t with one degree of freedom would have said 10^300 %."""
    a, b = arms(1, reps=2, in_turn=in_turn)
    for row in b.rows[: len(DEPTHS)]:
        row["gen_tps"] *= 1e-5
    found = compare(a, b)
    assert not any(f.interval.known for f in found.findings) and found.design == "single"
    print_comparison(found)
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) < 170 and "inf" not in text and "nan" not in text
    build_report([a, b], str(tmp_path / "r.html"))
    for page in (tmp_path / "r.html", tmp_path / "r.md"):
        assert re.search(r"no interval: too few values", page.read_text()) and not re.search(
            r"\d{20}", page.read_text()
        )
    assert [signed(x) for x in (-3.14159, 999.994, 2.2e6, 1e300)] == ["-3.14", "+999.99", "+2.2e+06", "+1.0e+300"]


def test_a_comparison_for_people_shows_its_numbers(capsys):
    found = compare(*arms(1, slower=0.2, noise=0.001))
    print_comparison(found)
    text = capsys.readouterr().out
    assert text.startswith("B = B against A = A: worse\n")
    for finding in found.findings:
        i = finding.interval
        for shown in (f"{finding.a:.4g}", f"{finding.b:.4g}", f"{i.estimate:+.2f} %", f"{i.low:+.2f} to {i.high:+.2f}",
                      i.method, f"{i.detectable:.2g} %"):  # fmt: skip
            assert shown in text
    for depth in DEPTHS:
        ratios = [ratio for at, _, ratio in found.depths if at == depth]
        (line,) = (line for line in text.splitlines() if f"{depth:,}" in line)
        assert [part for part in line.split() if "." in part] == [f"{ratio:.4f}" for ratio in ratios]
    assert all(f"gate: {fail}" in text for fail in found.fails) and len(found.fails) == 2


# --- what must not be compared


def without(measured: Measured, **changes) -> Measured:
    return run(measured.name, measured.rows, facts=measured.run.facts | changes)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model": {"sha256": "c" * 64}}, "different model: aaaaaaaaaaaa and cccccccccccc"),
        ({"prompt_sha256": "d" * 64}, "different prompt"),
        ({"numerics": "qat"}, "different numerics: ds4 and qat"),
    ],
)
def test_other_work_is_incomparable(change, reason):
    a, b = arms(1)
    found = compare(a, without(b, **change))
    assert found.verdict == INCOMPARABLE and not found.passes and reason in found.notes[0]
    name = reason.split()[1].rstrip(":")
    allowed = Thresholds(gate=Thresholds().gate.__class__(differ=(name,)))
    assert compare(a, without(b, **change), allowed).verdict != INCOMPARABLE


def test_other_kinds_unfinished_and_empty_runs_are_incomparable():
    a, b = arms(1)
    assert compare(a, run("v", b.rows, kind="vectors")).verdict == INCOMPARABLE
    assert compare(a, run("b", b.rows, status="stopped")).verdict == INCOMPARABLE
    assert compare(a, run("b", [])).verdict == INCOMPARABLE


def test_depths_with_other_work_are_left_out():
    a, b = arms(1)
    for row in b.rows:
        if row["ctx_tokens"] == DEPTHS[0]:
            row["prefill_tokens"] = 1024
    found = compare(a, b)
    assert any("1 depth(s) left out" in note for note in found.notes)
    assert sorted({d for d, metric, _ in found.depths if metric == "prefill"}) == list(DEPTHS[1:])
    for row in b.rows:
        row["prefill_tokens"], row["gen_tokens"] = 77, 77
    assert compare(a, b).verdict == INCOMPARABLE


def test_unknown_origin_and_other_tokens_are_noted():
    a, b = arms(1)
    for index, row in enumerate(a.rows + b.rows):
        row["gen_digest"] = "same" if index < len(a.rows) + 4 else "other"
    b.run.facts.clear()
    found = compare(a, b)
    assert any("same model, prompt, numerics" in note for note in found.notes)
    assert any("different tokens were decoded at" in note for note in found.notes)


# --- graded runs and vectors


def graded(name, scores, epochs=1):
    rows = [{"id": f"q{i}", "epoch": e, "score": float(s)} for i, s in enumerate(scores) for e in range(epochs)]
    return run(name, rows, kind="eval")


def test_graded_runs():
    rng = np.random.default_rng(1)
    a = (rng.random(400) < 0.7).astype(float)
    b = np.where(rng.random(400) < 0.15, 0.0, a)
    found = compare(graded("A", a), graded("B", b))
    assert found.verdict == WORSE and not found.passes and found.findings[0].interval.p < 1e-6
    assert found.findings[0].a == pytest.approx(100 * a.mean())
    assert compare(graded("A", a), graded("A2", a)).verdict == SAME
    few = compare(graded("A", a[:40]), graded("B", np.r_[1 - a[:1], a[1:40]]))
    assert few.verdict == UNCLEAR and few.passes
    repeated = compare(graded("A", a, epochs=3), graded("B", b, epochs=3)).findings[0].interval
    assert repeated.n == 400, "epochs of a question are not independent questions"


def test_an_error_says_nothing_about_the_model():
    a, b = graded("A", np.ones(50)), graded("B", np.ones(50))
    for row in b.rows[:20]:
        row["score"] = None
    found = compare(a, b)
    assert found.verdict == UNCLEAR and (found.findings[0].b, found.findings[0].interval.n) == (100, 30)
    assert any("0 of A, 20 of B; 20 questions left out" in note for note in found.notes)


def test_graded_runs_of_other_engines_are_what_is_compared():
    a, b = graded("A", np.ones(60)), graded("B", np.r_[np.zeros(15), np.ones(45)])
    b.run.facts["model"] = {"sha256": "c" * 64, "name": "q2"}
    b.run.facts["numerics"], b.run.facts["settings"] = "qat", {"think": "none"}
    b = run("B", b.rows, kind="eval", facts=b.run.facts, status="stopped")
    found = compare(a, b)
    assert found.verdict == WORSE and not found.passes
    assert {"B is stopped", "think: - in A, none in B", "model: - in A, q2 in B"} <= set(found.notes)
    assert found.as_json()["questions"]["lost"][0] == {"id": "q0", "id_b": "q0", "source": "all", "a": 1.0, "b": 0.0}
    assert compare(a, run("B", [], kind="eval")).verdict == INCOMPARABLE


def test_graded_runs_have_a_confidence_of_their_own():
    a, b = np.ones(93), np.r_[np.zeros(5), np.ones(88)]
    sure = Thresholds(graded=replace(Thresholds().graded, confidence=0.99))
    assert compare(graded("A", a), graded("B", b)).verdict == WORSE
    assert compare(graded("A", a), graded("B", b), sure).verdict == UNCLEAR
    gate = Thresholds(graded=replace(sure.graded, confidence=0), gate=replace(Thresholds().gate, confidence=0.99))
    widths = [compare(graded("A", a), graded("B", b), t).findings[0].interval.low for t in (sure, gate)]
    assert widths[0] == widths[1]


def test_sources_and_changes_are_printed(capsys):
    rows = [{"id": f"q{i}", "outcome": "right", "source": ("maths", "security")[i % 2]} for i in range(60)]
    other = [{**row, "outcome": "wrong" if i < 12 else "right"} for i, row in enumerate(rows)]
    print_comparison(compare(run("A", rows, kind="eval"), run("B", other, kind="eval")))
    lines = capsys.readouterr().out.splitlines()
    (maths,) = (line.split() for line in lines if line.startswith("maths"))
    assert maths[:5] == ["maths", "30", "100.0", "80.0", "-20.00"]
    assert f"12 answered worse by B: {', '.join(f'q{i}' for i in range(12))}" in lines


def test_questions_put_to_one_alone_are_left_out():
    a, b = graded("A", [1, 1, 0, 1]), graded("B", [1, 0, 1, 1, 1])
    b.rows[0]["id"] = "other"
    found = compare(a, b)
    assert any(note.startswith("3 questions: 1 right only (or more often) in B, 1 only in A") for note in found.notes)
    assert any(note.startswith("3 question(s) left out") for note in found.notes)
    assert compare(graded("A", [1, 1]), graded("B", [1])).verdict == INCOMPARABLE
    assert compare(graded("A", [1, 1]), graded("B", [1, 0])).verdict != INCOMPARABLE


def vectors(name, nll, tokens):
    values = enumerate(zip(nll, tokens, strict=True))
    return run(name, [{"id": f"v{i}", "nll": float(n), "tokens": int(t)} for i, (n, t) in values], kind="vectors")


def test_vectors_are_compared_by_perplexity():
    rng = np.random.default_rng(2)
    tokens = rng.integers(30, 300, 30)
    nll = tokens * rng.normal(2.0, 0.5, 30)
    found = compare(vectors("A", nll, tokens), vectors("B", nll + 0.02 * tokens + rng.normal(0, 0.05, 30), tokens))
    assert found.verdict == WORSE and found.findings[0].interval.estimate == pytest.approx(-2, abs=0.1)
    assert found.findings[0].a == pytest.approx(np.exp(nll.sum() / tokens.sum()))
    assert compare(vectors("A", nll, tokens), vectors("B", nll, tokens)).verdict == SAME
    assert compare(vectors("A", nll, tokens), vectors("B", nll, tokens + 1)).verdict == INCOMPARABLE


# --- single words


@pytest.mark.parametrize(
    ("values", "floor", "verdict"),
    [
        ((0.2, -0.5, 0.9), 0, SAME),
        ((2.0, 0.5, 3.5), 0, BETTER),
        ((-2.0, -3.5, -0.5), 0, WORSE),
        ((2.0, -0.5, 4.5), 0, UNCLEAR),
        ((0.8, 0.2, 1.4), 0, UNCLEAR),
        ((4.0, 2.5, 5.5), 3, UNCLEAR),
        ((-5.0, -6.0, -4.0), 3, WORSE),
    ],
)
def test_judging_one_interval(values, floor, verdict):
    assert judge(Interval(*values, 5, ""), 1.0, floor) == verdict


def test_one_word_for_several():
    assert overall([BETTER, WORSE, SAME]) == MIXED
    assert overall([UNCLEAR, WORSE, SAME]) == WORSE
    assert overall([BETTER, UNCLEAR]) == BETTER
    assert overall([SAME, UNCLEAR]) == UNCLEAR
    assert overall([SAME, SAME]) == SAME


# --- thresholds


def test_thresholds_from_a_file(tmp_path):
    path = tmp_path / "gate.toml"
    path.write_text('[speed]\nmargin = 2\nfail = 5.5\n[gate]\nunclear = "fail"\ndiffer = ["model"]\n')
    found = read_thresholds(path)
    assert (found.speed.margin, found.speed.fail, found.speed.single) == (2.0, 5.5, 5.0)
    assert (found.gate.unclear, found.gate.differ, found.graded) == ("fail", ("model",), Thresholds().graded)
    assert read_thresholds(None) == Thresholds()
    unclear = compare(*arms(0, noise=0.05), found)
    assert unclear.verdict == UNCLEAR and unclear.fails == ("prefill is unclear", "decode is unclear")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[sped]\nmargin = 1\n", "unknown table [sped]"),
        ("margin = 1\n", "unknown table [margin]"),
        ("[speed]\nmargins = 1\n", "speed.margins is unknown: choose from margin, fail"),
        ("[speed]\nmargin = true\n", "must be a number"),
        ("[speed]\nmargin = -1\n", "must be a number from 0"),
        ("[gate]\nconfidence = 95\n", "from 0.5 to 0.9999"),
        ('[gate]\ndiffer = ["quant"]\n', "list of model, prompt, numerics"),
        ('[gate]\nunclear = "maybe"\n', "'pass' or 'fail'"),
        ("[speed\n", "not TOML"),
    ],
)
def test_thresholds_that_cannot_be(tmp_path, text, message):
    path = tmp_path / "gate.toml"
    path.write_text(text)
    with pytest.raises(DataError) as error:
        read_thresholds(path)
    assert message in str(error.value) and str(path) in str(error.value) and "\n" not in str(error.value)
