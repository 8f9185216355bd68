"""Recording, resuming, killing, comparing: verdicts that know margins, ds4's rule, expected divergences."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from ds4ref.errors import DataError, TargetError, UsageError
from ds4ref.targets import Prompt, Step, Token
from ds4ref.test_vectors.capture import PromptCase, forks, record_missing, spread, start
from ds4ref.test_vectors.cli_vectors import atomic_folder, items
from ds4ref.test_vectors.junit import report
from ds4ref.test_vectors.schema import CASE_SCHEMA, ExpectedDivergence, RecordedCase, Repetition, Vectors, record
from ds4ref.test_vectors.verdicts import CaseResult, check_case

from .scripted import Scripted, step

PROMPTS = [PromptCase("one", "First?"), PromptCase("two", "Second?\n")]
GREEDY = [step(b"A", (b"B", -2.5)), step(b"C", (b"D", -3.0))]


def captured(folder, *answers, **options) -> Vectors:
    target = Scripted(*(answers or (GREEDY,)))
    vectors = start(str(folder), target, PROMPTS, max_tokens=2, repetitions=2, **options)
    record_missing(vectors, target)
    return vectors


def test_capture_then_read(tmp_path) -> None:
    captured(tmp_path / "v")
    vectors = Vectors.open(tmp_path / "v")
    assert vectors.manifest.complete and vectors.manifest.source["name"] == "script"
    for entry, prompt in zip(vectors.manifest.cases, PROMPTS, strict=True):
        case = vectors.case(entry)
        assert vectors.prompt(entry) == prompt.text and len(case.repetitions) == 2
        assert [s.token.raw for s in case.repetitions[0].steps] == [b"A", b"C"]
        assert case.repetitions[0].model == "scripted-1" and spread(case) == 0.0 and forks(case) is None


def test_spread_and_forks_are_stored() -> None:
    def repetition(*steps: Step) -> Repetition:
        return Repetition([record(s) for s in steps], "length")

    case = RecordedCase(CASE_SCHEMA, "x", "", [
        repetition(step(b"A", (b"B", -2.5)), step(b"C", (b"D", -1.0))),
        repetition(step(b"A", (b"B", -2.2)), step(b"D", (b"C", -0.4))),
        repetition(step(b"A", (b"B", -2.4))),
    ])  # fmt: skip
    assert spread(case) == pytest.approx(0.9)
    assert forks(case) == 1


def test_what_comes_after_a_fork_is_no_spread() -> None:
    """From there on the repetitions answer different questions."""
    first = [record(s) for s in (step(b"A", (b"B", -1.0)), step(b"C", (b"D", -9.0)))]
    other = [record(s) for s in (step(b"B", (b"A", -0.5)), step(b"C", (b"D", -1.0)))]
    case = RecordedCase(CASE_SCHEMA, "x", "", [Repetition(first, "length"), Repetition(other, "length")])
    assert spread(case) == pytest.approx(0.9) and forks(case) == 0
    assert spread(RecordedCase(CASE_SCHEMA, "x", "", [Repetition(first, "length")])) is None


@pytest.mark.parametrize("ids", [[], ["a", "a"], ["../a"], ["a b"], [""]])
def test_prompts_that_make_no_files(tmp_path, ids) -> None:
    with pytest.raises(UsageError, match="prompt ids must be unique"):
        start(str(tmp_path / "v"), Scripted(GREEDY), [PromptCase(name, "x") for name in ids])
    assert not list(tmp_path.iterdir())


def test_more_alternatives_than_there_are_is_refused(tmp_path) -> None:
    with pytest.raises(UsageError, match="at most 20 alternatives, not 21"):
        start(str(tmp_path / "v"), Scripted(GREEDY), PROMPTS, top_logprobs=21)
    start(str(tmp_path / "v"), Scripted(GREEDY), PROMPTS, top_logprobs=20)


def test_what_is_asked_and_kept(tmp_path) -> None:
    """Each prompt as often as there are repetitions, with the system text, and its answers in that order."""
    target = Scripted(GREEDY, GREEDY[:1], GREEDY[1:], GREEDY)
    prompts = [PromptCase("one", "First?", 99), PromptCase("two", "2?", 77)]
    options = {"max_tokens": 2, "top_logprobs": 5, "repetitions": 2, "system": "Be brief."}
    vectors = start(str(tmp_path / "v"), target, prompts, **options)
    told = []
    assert record_missing(vectors, target, lambda *pair: told.append(pair)) == 2 and told == [(0, 2), (1, 2)]
    asked = [(r.prompt.user, r.prompt.system, r.max_tokens, r.top_logprobs, r.ctx) for r in target.asked]
    assert asked == [("First?", "Be brief.", 2, 5, 99)] * 2 + [("2?", "Be brief.", 2, 5, 77)] * 2
    first, second = (vectors.case(entry).repetitions for entry in vectors.manifest.cases)
    assert [[s.token.raw for s in r.steps] for r in (*first, *second)] == [[b"A", b"C"], [b"A"], [b"C"], [b"A", b"C"]]
    assert first[0].prompt_tokens == 3 and first[0].finish == "length"
    assert [(t.raw, t.logprob) for t in first[0].steps[0].top] == [(b"A", -0.1), (b"B", -2.5)]


def test_alternatives_that_cannot_be_compared_are_kept_apart() -> None:
    """Without a probability, or without bytes: whoever reads ``top`` may compare all of it."""
    told = (Token(b"A", -0.5), Token(b"", -1.0), Token(b"B", None), Token(b"C", -9999.0), Token(b"D", -2.0))
    found = record(Step(Token(b"A", -0.5), told))
    assert [(t.raw, t.logprob) for t in found.top] == [(b"A", -0.5), (b"D", -2.0)]
    assert [(t.raw, t.logprob) for t in found.rest] == [(b"", -1.0), (b"B", None), (b"C", -9999.0)]
    assert record(Step(Token(b"A", -9999.0))).token.logprob is None


def test_an_answer_without_probabilities_is_no_vector(tmp_path) -> None:
    target = Scripted([])
    with pytest.raises(TargetError, match="case one: script returned no log probabilities"):
        record_missing(start(str(tmp_path / "v"), target, PROMPTS), target)


def test_an_interrupted_capture_is_partial_and_goes_on(tmp_path) -> None:
    folder = tmp_path / "v"
    broken = Scripted(GREEDY, GREEDY, TargetError("gone"))
    vectors = start(str(folder), broken, PROMPTS, max_tokens=2, repetitions=2)
    with pytest.raises(TargetError):
        record_missing(vectors, broken)
    partial = Vectors.open(folder)
    assert not partial.manifest.complete
    partial.case(partial.manifest.cases[0])
    with pytest.raises(DataError, match="has not been captured"):
        partial.case(partial.manifest.cases[1])
    again = Scripted(GREEDY)
    assert record_missing(start(str(folder), again, PROMPTS, max_tokens=2, repetitions=2), again) == 1
    assert len(again.asked) == 2 and Vectors.open(folder).manifest.complete


def test_names_that_answered_may_differ_between_the_parts(tmp_path) -> None:
    """``served`` grows while a capture goes on; everything else about the source must stay."""

    class Named(Scripted):
        about = {"name": "script", "served": []}

        def identity(self):
            return self.about

    start(str(tmp_path / "v"), Named(GREEDY), PROMPTS)
    later = Named(GREEDY)
    later.about = {"name": "script", "served": ["m"]}
    start(str(tmp_path / "v"), later, PROMPTS)
    later.about = {"name": "another", "served": []}
    with pytest.raises(UsageError, match="other prompts, parameters or source"):
        start(str(tmp_path / "v"), later, PROMPTS)


def test_complete_vectors_are_never_refreshed(tmp_path) -> None:
    captured(tmp_path / "v")
    with pytest.raises(UsageError, match="will not be overwritten"):
        captured(tmp_path / "v")


def test_a_partial_capture_does_not_change_its_parameters(tmp_path) -> None:
    broken = Scripted(TargetError("gone"))
    vectors = start(str(tmp_path / "v"), broken, PROMPTS)
    with pytest.raises(TargetError):
        record_missing(vectors, broken)
    for options in ({"max_tokens": 5}, {"system": "x"}, {"repetitions": 9}):
        with pytest.raises(UsageError, match="other prompts, parameters or source"):
            start(str(tmp_path / "v"), broken, PROMPTS, **options)


@pytest.mark.parametrize("damage", [
    lambda f: (f / "cases/one.json").write_bytes((f / "cases/one.json").read_bytes()[:-20]),
    lambda f: (f / "cases/one.json").write_bytes((f / "cases/two.json").read_bytes()),
    lambda f: (f / "cases/one.json").unlink(),
    lambda f: (f / "prompts/one.txt").write_text("Another?"),
    lambda f: (f / "manifest.json").write_bytes((f / "manifest.json").read_bytes()[:-9]),
    lambda f: edit(f, lambda m: m.update(schema="ds4-vectors-manifest-v9")),
    lambda f: edit(f, lambda m: m.update(surprise=1)),
    lambda f: edit(f, lambda m: m["cases"][0].update(case_file="../../etc/passwd")),
    lambda f: edit(f, lambda m: m["cases"][0].update(id="two")),
    lambda f: edit(f, lambda m: m["cases"][0].update(ctx="many")),
], ids=range(10))  # fmt: skip
def test_damage_is_noticed(tmp_path, damage) -> None:
    captured(tmp_path / "v")
    damage(tmp_path / "v")
    with pytest.raises(DataError) as caught:
        vectors = Vectors.open(tmp_path / "v")
        vectors.prompt(vectors.manifest.cases[0])
        vectors.case(vectors.manifest.cases[0])
    assert "\n" not in str(caught.value)


def edit(folder, change) -> None:
    found = json.loads((folder / "manifest.json").read_text())
    change(found)
    (folder / "manifest.json").write_text(json.dumps(found))


KILLED = """
import sys, time
sys.path[:0] = {path!r}
from tests.test_vectors.scripted import Scripted, step
from ds4ref.test_vectors.capture import PromptCase, record_missing, start
target = Scripted([step(b"A", *((bytes([66 + i]) * 40, -2.0 - i) for i in range(19)))] * 50)
prompts = [PromptCase(f"c{{i}}", "x" * 20000) for i in range(400)]
vectors = start({folder!r}, target, prompts, max_tokens=50, repetitions=2)
print("go", flush=True)
record_missing(vectors, target)
"""


@pytest.mark.thorough
@pytest.mark.parametrize("delay", [0.0, 0.03, 0.1, 0.3])
def test_killed_at_any_moment_nothing_half_written_is_read(tmp_path, delay) -> None:
    folder = str(tmp_path / "v")
    code = KILLED.format(path=[os.getcwd()], folder=folder)
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
    vectors = Vectors.open(folder)
    assert not vectors.manifest.complete
    whole = [e for e in vectors.manifest.cases if e.case_file]
    for entry in whole:
        assert len(vectors.case(entry).repetitions) == 2
    assert len(whole) < 400


@pytest.mark.slow
def test_killed_at_random_moments_then_finished(tmp_path) -> None:
    """From before the first file to after the last: whatever is there reads as whole or is refused, and running it
    again completes it."""
    target = Scripted([step(b"A", *((bytes([66 + i]) * 40, -2.0 - i) for i in range(19)))] * 50)
    prompts = [PromptCase(f"c{i}", "x" * 20000) for i in range(40)]
    code = KILLED.format(path=[os.getcwd()], folder=str(tmp_path / "v")).replace("range(400)", "range(40)")
    rng = random.Random(5)
    seen = set()
    for _ in range(30):
        shutil.rmtree(tmp_path / "v", ignore_errors=True)
        with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            if rng.random() < 0.7:
                process.stdout.readline()
            time.sleep(rng.uniform(0.0, 0.4))
            process.send_signal(signal.SIGKILL)
        folder = str(tmp_path / "v")
        state = "nothing"
        if Vectors.exists(folder):
            manifest = Vectors.open(folder).manifest
            state = "whole" if manifest.complete else "partial"
            assert len([e for e in manifest.cases if e.case_file]) == len(items(folder, partial=True))
            if not manifest.complete:
                with pytest.raises(DataError, match="partial capture"):
                    items(folder)
        seen.add(state)
        if state != "whole":
            record_missing(start(folder, target, prompts, max_tokens=50, repetitions=2), target)
        assert len(items(folder)) == 40
    assert "partial" in seen


def test_a_converted_folder_is_whole_or_absent(tmp_path) -> None:
    with pytest.raises(ZeroDivisionError), atomic_folder(str(tmp_path / "captures")) as folder:
        (Path(folder) / "one.json").write_text("{}")
        _ = 1 / 0
    assert not list(tmp_path.iterdir())
    with atomic_folder(str(tmp_path / "captures")) as folder:
        (Path(folder) / "one.json").write_text("{}")
    assert [p.name for p in (tmp_path / "captures").iterdir()] == ["one.json"]


# ----------------------------------------------------------------------------------------------------------- verdicts


def expected(*steps: Step, more: tuple[Step, ...] = ()) -> RecordedCase:
    answers = [Repetition([record(s) for s in steps], "length")]
    if more:
        answers.append(Repetition([record(s) for s in more], "length"))
    return RecordedCase(CASE_SCHEMA, "x", "", answers)


def judge(case: RecordedCase, *forced: Step, **options) -> CaseResult:
    return check_case(Scripted(GREEDY, forced=forced), Prompt.chat("?"), case, **options)


WANT = expected(*GREEDY)


def test_match() -> None:
    result = judge(WANT, *GREEDY)
    assert result.verdict == "match" and not result.failed
    assert [(s.rank, s.margin, s.delta, s.overlap, s.kl) for s in result.steps] == [
        (1, 0.0, 0.0, 1.0, pytest.approx(0.0, abs=1e-12))
    ] * 2


@pytest.mark.parametrize("margin, floor, verdict", [
    (0.0005, None, "flip"), (0.2, None, "mismatch"), (0.2, 0.3, "flip"), (0.4, 0.3, "mismatch"), (0.25, 0.25, "flip"),
])  # fmt: skip
def test_a_flip_is_tolerable_below_the_noise_only(margin, floor, verdict) -> None:
    other = Step(Token(b"A", -1.0), (Token(b"B", -1.0 + margin), Token(b"A", -1.0)))
    result = judge(WANT, other, GREEDY[1], floor=floor)
    assert result.verdict == verdict and result.steps[0].rank == 2
    assert result.steps[0].margin == pytest.approx(margin) and result.steps[1].verdict == "match"


def test_a_tie_is_a_match_whichever_is_listed_first() -> None:
    """Equal log probabilities: greedy decoding takes the lower id, a list any order. Noise is none of it."""
    tied = Step(Token(b"A", -1.0), (Token(b"B", -1.0), Token(b"A", -1.0)))
    result = judge(WANT, tied, GREEDY[1], floor=0.0).steps[0]
    assert (result.verdict, result.got, result.rank, result.margin) == ("match", b"B", 2, 0.0)
    below = Step(Token(b"A", -1.5), (Token(b"B", -1.0), Token(b"A", -1.5)))
    assert judge(WANT, below, GREEDY[1], floor=0.0).verdict == "mismatch"


def test_a_forced_token_that_is_not_listed_is_judged_by_its_own_probability() -> None:
    """Without forcing it is nobody's: the list says only that it is below the last."""
    got = Step(Token(b"A", -3.0), (Token(b"X", -0.5), Token(b"Y", -1.25)))
    result = judge(WANT, got, GREEDY[1], floor=2.0).steps[0]
    assert (result.verdict, result.rank, result.margin, result.delta) == ("mismatch", None, 2.5, pytest.approx(-2.9))
    assert judge(WANT, got, GREEDY[1], floor=2.5).verdict == "flip"
    free = check_case(Scripted([Step(Token(b"X", -0.5), got.top), GREEDY[1]]), Prompt.chat("?"), WANT).steps[0]
    assert (free.verdict, free.margin, free.delta, free.logprob) == ("mismatch", None, None, None)
    assert free.why == "not among the 2 most likely (margin above 0.75)"


def test_the_sources_own_spread_is_tolerated() -> None:
    wobbly = expected(step(b"A", (b"B", -2.5)), more=(step(b"A", (b"B", -1.9)),))
    other = Step(Token(b"A", -1.0), (Token(b"B", -0.5), Token(b"A", -1.0)))
    result = judge(wobbly, other)
    assert result.verdict == "flip" and result.noise == pytest.approx(0.6)
    assert judge(expected(step(b"A", (b"B", -2.5))), other).verdict == "mismatch"


def test_a_token_that_is_nowhere_is_a_mismatch() -> None:
    result = judge(WANT, Step(Token(b"A", None), (Token(b"X", -0.1),)), GREEDY[1])
    assert result.verdict == "mismatch" and result.steps[0].rank is None


def test_no_probabilities_are_incomparable() -> None:
    assert judge(WANT, Step(Token(b"A")), GREEDY[1]).verdict == "incomparable"


def test_without_forcing_the_steps_after_a_fork_are_incomparable() -> None:
    target = Scripted([step(b"B", (b"A", -0.2)), step(b"C")])
    result = check_case(target, Prompt.chat("?"), WANT)
    assert [s.verdict for s in result.steps] == ["mismatch", "incomparable"] and not result.forced


def test_what_could_not_be_compared_outweighs_a_flip() -> None:
    flipped = Step(Token(b"B", -0.9999), (Token(b"B", -0.9999), Token(b"A", -1.0)))
    result = check_case(Scripted([flipped, step(b"X")]), Prompt.chat("?"), WANT)
    assert [s.verdict for s in result.steps] == ["flip", "incomparable"] and result.verdict == "incomparable"


def test_without_forcing_the_apis_end_token_is_no_fork() -> None:
    ours = "<\uff5cend\u2581of\u2581sentence\uff5c>"
    apis = ours.replace("\uff5c", "\uff5c\uff5c")
    want = expected(step(ours.encode(), (b"B", -2.5)), step(b"C", (b"D", -3.0)))  # it was told to go on
    target = Scripted([step(apis.encode(), (b"B", -2.5)), step(b"C", (b"D", -3.0))])
    result = check_case(target, Prompt.chat("?"), want)
    assert [s.verdict for s in result.steps] == ["match", "match"] and not result.forced


def test_tokens_without_bytes_end_the_comparison() -> None:
    """llama-cpp-python's server gives text: a token that ends inside a character is an empty string there."""
    want = expected(GREEDY[0], step(b""), GREEDY[1])
    target = Scripted(GREEDY, forced=GREEDY[:1])
    result = check_case(target, Prompt.chat("?"), want)
    assert [s.verdict for s in result.steps] == ["match", "incomparable", "incomparable"]
    assert "without bytes in the source" in result.steps[1].why
    assert check_case(target, Prompt.chat("?"), expected(step(b""))).verdict == "incomparable"


def test_the_apis_spelling_of_the_end_token_is_the_same_token() -> None:
    eos = "<\uff5cend\u2581of\u2581sentence\uff5c>"
    want = expected(step(eos.replace("\uff5c", "\uff5c\uff5c").encode(), (b"B", -2.5)))
    assert judge(want, step(eos.encode(), (b"B", -2.5))).verdict == "match"


def test_kl_is_that_of_the_shared_support() -> None:
    want = expected(step(b"A", (b"B", -2.5), (b"Z", -4.0)))
    got = step(b"A", (b"B", -1.5), logprob=-0.3)
    result = judge(want, got).steps[0]
    from math import exp, log

    p, q = (exp(-0.1), exp(-2.5)), (exp(-0.3), exp(-1.5))
    kl = sum(a / sum(p) * log(a / sum(p) / (b / sum(q))) for a, b in zip(p, q, strict=True))
    assert result.kl == pytest.approx(kl) and result.overlap == pytest.approx(2 / 3)


def test_one_shared_alternative_is_no_distribution() -> None:
    result = judge(expected(step(b"A", (b"B", -2.5), (b"Z", -4.0))), step(b"A", (b"Q", -3.0))).steps[0]
    assert result.kl is None and result.overlap == pytest.approx(1 / 3)


def test_a_degenerate_source_gives_identity_only() -> None:
    want = expected(Step(Token(b"A", 0.0), (Token(b"A", 0.0), Token(b"B", -9999.0))))
    result = judge(want, GREEDY[0])
    assert result.verdict == "match" and result.steps[0].kl is None


def test_an_expected_divergence_is_data_with_a_reason() -> None:
    bad = Step(Token(b"A", -3.0), (Token(b"B", -0.1), Token(b"A", -3.0)))
    known = ExpectedDivergence("the graphs disagree")
    assert judge(WANT, bad, GREEDY[1], divergence=known).verdict == "expected"
    assert not judge(WANT, bad, GREEDY[1], divergence=known).failed
    assert judge(WANT, bad, GREEDY[1], divergence=known).reason == "the graphs disagree"
    assert judge(WANT, *GREEDY, divergence=known).verdict == "unexpected match"
    elsewhere = ExpectedDivergence("only step 1", step=1)
    assert judge(WANT, bad, GREEDY[1], divergence=elsewhere).verdict != "expected"
    both = judge(WANT, bad, Step(Token(b"C", -9.0), bad.top), divergence=elsewhere)
    assert both.verdict == "mismatch"


@pytest.mark.parametrize("got, verdict", [
    (GREEDY[0], "match"),
    (step(b"A", (b"B", -6.5)), "match"),
    (step(b"A", (b"B", -6.6)), "mismatch"),
    (step(b"A", (b"B", -2.5), logprob=-4.2), "mismatch"),
    (step(b"A", (b"Q", -3.0)), "mismatch"),
    (step(b"B", (b"A", -0.3)), "mismatch"),
], ids=["same", "4 nats", "4.1 nats", "chosen", "missing", "argmax"])  # fmt: skip
def test_ds4s_own_rule(got, verdict) -> None:
    assert judge(expected(GREEDY[0]), got, profile="ds4").verdict == verdict


def test_an_unknown_profile_is_refused() -> None:
    with pytest.raises(UsageError, match="unknown profile 'lax': choose from"):
        judge(WANT, *GREEDY, profile="lax")


def test_a_failing_target_is_an_error_of_its_case() -> None:
    result = check_case(Scripted(TargetError("gone")), Prompt.chat("?"), WANT)
    assert result.verdict == "error" and result.failed and result.reason == "gone"


def test_junit() -> None:
    bad = Step(Token(b"A", -3.0), (Token(b"B", -0.1), Token(b"A", -3.0)))
    why = ExpectedDivergence("why\x01")
    results = [judge(WANT, *GREEDY), judge(WANT, bad, GREEDY[1]), judge(WANT, bad, GREEDY[1], divergence=why),
               check_case(Scripted(TargetError("gone")), Prompt.chat("?"), WANT)]  # fmt: skip
    suite = ET.fromstring(report(results, "v")).find("testsuite")
    assert suite is not None
    assert {k: suite.get(k) for k in ("tests", "failures", "errors", "skipped")} == {
        "tests": "4", "failures": "1", "errors": "1", "skipped": "1"}  # fmt: skip
