"""Captures: recorded, interrupted, resumed. Checks: verdicts by margin, by ds4's rule, expected divergences."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from scipy.stats import entropy

from ds4ref.errors import DataError, TargetError, UsageError
from ds4ref.files import locked
from ds4ref.targets import Prompt, Step, Token
from ds4ref.test_vectors import cli
from ds4ref.test_vectors.capture import forks, record_missing, spread, start
from ds4ref.test_vectors.cases import PromptCase, read_cases, read_prompts
from ds4ref.test_vectors.junit import report
from ds4ref.test_vectors.schema import CASE_SCHEMA, ExpectedDivergence, RecordedCase, Repetition, Vectors, record
from ds4ref.test_vectors.verdicts import CaseResult, check_case

from .scripted import Scripted, step

PROMPTS = [PromptCase("one", "First?"), PromptCase("two", "Second?\n")]
GREEDY = [step(b"A", (b"B", -2.5)), step(b"C", (b"D", -3.0))]


def captured(folder) -> Vectors:
    target = Scripted(GREEDY)
    vectors = start(str(folder), target, PROMPTS, max_tokens=2, repetitions=2)
    record_missing(vectors, target)
    return vectors


def expected(*steps: Step, more: tuple[Step, ...] = ()) -> RecordedCase:
    answers = [[record(s) for s in answer] for answer in (steps, more) if answer]
    return RecordedCase(CASE_SCHEMA, "x", "", [Repetition(answer, "length") for answer in answers])


def test_what_is_asked_and_kept(tmp_path) -> None:
    """Each prompt is sent once per repetition, with the system text, and its answers are kept in that order."""
    target = Scripted(GREEDY, GREEDY[:1], GREEDY[1:], GREEDY)
    prompts = [PromptCase("one", "First?", 99), PromptCase("two", "2?\n", 77)]
    options = {"max_tokens": 2, "top_logprobs": 5, "repetitions": 2, "system": "Be brief."}
    vectors = start(str(tmp_path / "v"), target, prompts, **options)
    listed = []
    assert record_missing(vectors, target, lambda *pair: listed.append(pair)) == 2 and listed == [(0, 2), (1, 2)]
    asked = [(r.prompt.user, r.prompt.system, r.max_tokens, r.top_logprobs, r.ctx) for r in target.asked]
    assert asked == [("First?", "Be brief.", 2, 5, 99)] * 2 + [("2?\n", "Be brief.", 2, 5, 77)] * 2
    again = Vectors.open(tmp_path / "v")
    assert again.manifest.complete and again.manifest.source["name"] == "script"
    assert [again.prompt(entry) for entry in again.manifest.cases] == ["First?", "2?\n"]
    first, second = (again.case(entry).repetitions for entry in again.manifest.cases)
    assert [[s.token.raw for s in r.steps] for r in (*first, *second)] == [[b"A", b"C"], [b"A"], [b"C"], [b"A", b"C"]]
    assert (first[0].prompt_tokens, first[0].finish, first[0].model) == (3, "length", "scripted-1")
    assert [(t.raw, t.logprob) for t in first[0].steps[0].top] == [(b"A", -0.1), (b"B", -2.5)]


@pytest.mark.parametrize(
    ("first", "other", "nats", "at"),
    [
        ((step(b"A", (b"B", -2.5)), step(b"C", (b"D", -1.0))),
         (step(b"A", (b"B", -2.2)), step(b"D", (b"C", -0.4))), 0.9, 1),
        # after a fork the answers have different prefixes, so they are not compared
        ((step(b"A", (b"B", -1.0)), step(b"C", (b"D", -9.0))),
         (step(b"B", (b"A", -0.5)), step(b"C", (b"D", -1.0))), 0.9, 0),
        ((step(b"A", (b"B", -2.5)), step(b"C")), (step(b"A", (b"B", -2.6)),), 0.1, 1),
        ((step(b"A", (b"B", -1.0)),), (), None, None),
    ],
)  # fmt: skip
def test_spread_and_forks(first, other, nats, at) -> None:
    case = expected(*first, more=other)
    assert spread(case) == (nats if nats is None else pytest.approx(nats)) and forks(case) == at


@pytest.mark.parametrize("ids", [[], ["a", "a"], ["../a"], ["a b"], [""]])
def test_prompts_that_make_no_files(tmp_path, ids) -> None:
    with pytest.raises(UsageError, match="prompt ids must be unique"):
        start(str(tmp_path / "v"), Scripted(GREEDY), [PromptCase(name, "x") for name in ids])
    assert not list(tmp_path.iterdir())
    with pytest.raises(UsageError, match="at most 20 alternatives, not 21"):
        start(str(tmp_path / "v"), Scripted(GREEDY), PROMPTS, top_logprobs=21)


@pytest.mark.parametrize("line", ['{"id": 3, "prompt": "x"}', '{"id": "a"}', '{"id": "a", "prompt": ""}', "[1]", "{"])
def test_lines_that_are_no_prompts(tmp_path, line) -> None:
    (tmp_path / "p.jsonl").write_text(f'{{"id": "a", "prompt": "x"}}\n\n{line}\n')
    with pytest.raises(UsageError, match="line 3 is not"):
        read_prompts(str(tmp_path / "p.jsonl"))
    (tmp_path / "p.jsonl").write_text('{"id": "a", "prompt": "x"}\n')
    assert read_prompts(str(tmp_path / "p.jsonl")) == [PromptCase("a", "x", 16384)]


def test_alternatives_that_cannot_be_compared_are_kept_apart() -> None:
    """Alternatives without a log probability or without bytes are not in ``top``, so all of ``top`` can be compared."""
    listed = (Token(b"A", -0.5), Token(b"", -1.0), Token(b"B", None), Token(b"C", -9999.0), Token(b"D", -2.0))
    outcome = record(Step(Token(b"A", -0.5), listed))
    assert [(t.raw, t.logprob) for t in outcome.top] == [(b"A", -0.5), (b"D", -2.0)]
    assert [(t.raw, t.logprob) for t in outcome.rest] == [(b"", -1.0), (b"B", None), (b"C", -9999.0)]
    assert record(Step(Token(b"A", -9999.0))).token.logprob is None


class Named(Scripted):
    about = {"name": "script", "served": []}

    def identity(self):
        return self.about


def test_an_interrupted_capture_goes_on_with_the_same_parameters(tmp_path) -> None:
    folder, options = str(tmp_path / "v"), {"max_tokens": 2, "repetitions": 2}
    silent = Named([])
    with pytest.raises(TargetError, match="case one: script returned no log probabilities"):
        record_missing(start(folder, silent, PROMPTS, **options), silent)
    broken = Named(GREEDY, GREEDY, TargetError("gone"))
    with pytest.raises(TargetError):
        record_missing(start(folder, broken, PROMPTS, **options), broken)
    partial = Vectors.open(folder)
    assert not partial.manifest.complete and partial.case(partial.manifest.cases[0])
    with pytest.raises(DataError, match="has not been captured"):
        partial.case(partial.manifest.cases[1])
    other = Named(GREEDY)
    other.about = {"name": "another", "served": []}
    for target, more in (
        (broken, {"max_tokens": 5}),
        (broken, {"system": "x"}),
        (broken, {"repetitions": 9}),
        (other, {}),
    ):
        with pytest.raises(UsageError, match="other prompts, parameters or source"):
            start(folder, target, PROMPTS, **{**options, **more})
    again = Named(GREEDY)
    again.about = {"name": "script", "served": ["m"]}  # names that answered may differ between the parts
    assert record_missing(start(folder, again, PROMPTS, **options), again) == 1
    assert len(again.asked) == 2 and Vectors.open(folder).manifest.complete
    with pytest.raises(UsageError, match="will not be overwritten"):
        start(folder, again, PROMPTS, **options)


def test_a_second_capture_into_the_same_folder_says_so(tmp_path, capsys, monkeypatch):
    target = Named(GREEDY)
    monkeypatch.setattr("ds4ref.test_vectors.capture.target_of", lambda *a: target)
    with locked(tmp_path / "lock", "never said"):
        assert cli.main(["capture", str(tmp_path), "-n", "2"]) == 1
    assert "another process is recording into it" in capsys.readouterr().err
    assert cli.main(["capture", str(tmp_path), "-n", "2"]) == 0


@pytest.mark.parametrize(
    ("recorded", "asked", "refused"),
    [("A", "B", True), ("A", "A", False), (None, "B", False), ("A", None, False), (None, None, False)],
)
def test_vectors_of_another_checkpoint_are_refused_by_name(tmp_path, capsys, monkeypatch, recorded, asked, refused):
    """Vectors of another checkpoint are an error, not a mismatch; with an unknown checkpoint they are compared."""
    folder = str(tmp_path / "v")
    for name, source in (("capture", recorded), ("check", asked)):
        target = Named(GREEDY, forced=GREEDY)
        target.about = {"name": "script"} | ({} if source is None else {"checkpoint": source})
        monkeypatch.setattr(f"ds4ref.test_vectors.{name}.target_of", lambda *a, target=target: target)
    assert cli.main(["capture", folder, "-n", "2"]) == 0
    capsys.readouterr()
    assert cli.main(["check", folder, "--no-store"]) == (2 if refused else 0)
    out, err = capsys.readouterr()
    assert (f"{folder}: these vectors are of A, the model is B" in err, out == "") == (refused, refused)


def edit(folder, change) -> None:
    outcome = json.loads((folder / "manifest.json").read_text())
    change(outcome)
    (folder / "manifest.json").write_text(json.dumps(outcome))


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
        read_cases(str(tmp_path / "v"))
    assert "\n" not in str(caught.value)


# ----------------------------------------------------------------------------------------------------------- verdicts

WANT = expected(*GREEDY)
EOS = "<\uff5cend\u2581of\u2581sentence\uff5c>"
API_EOS = EOS.replace("\uff5c", "\uff5c\uff5c")
UNLISTED = Step(Token(b"A", -3.0), (Token(b"X", -0.5), Token(b"Y", -1.25)))
BAD = Step(Token(b"A", -3.0), (Token(b"B", -0.1), Token(b"A", -3.0)))


def behind(margin: float, own: float = -1.0) -> Step:
    """Return a step at which the expected token A is ``margin`` nats less likely than another token."""
    return Step(Token(b"A", own), (Token(b"B", own + margin), Token(b"A", own)))


def judge(case: RecordedCase, *forced: Step, **options) -> CaseResult:
    return check_case(Scripted(GREEDY, forced=forced), Prompt.chat("?"), case, **options)


@pytest.mark.parametrize(
    ("want", "got", "options", "verdict", "first"),
    [
        (WANT, GREEDY, {}, "match", {"rank": 1, "margin": 0.0, "delta": 0.0, "overlap": 1.0}),
        # a flip is allowed only below the noise
        (WANT, [behind(0.0005), GREEDY[1]], {}, "flip", {"rank": 2, "margin": 0.0005}),
        (WANT, [behind(0.2), GREEDY[1]], {}, "mismatch", {"margin": 0.2}),
        (WANT, [behind(0.25), GREEDY[1]], {"floor": 0.25}, "flip", {}),
        (WANT, [behind(0.4), GREEDY[1]], {"floor": 0.3}, "mismatch", {}),
        # a tie is a match whichever is listed first
        (WANT, [behind(0.0), GREEDY[1]], {"floor": 0.0}, "match", {"got": b"B", "rank": 2, "margin": 0.0}),
        # a token that is not listed is judged by its own log probability
        (WANT, [UNLISTED, GREEDY[1]], {"floor": 2.0}, "mismatch",
         {"rank": None, "margin": 2.5, "delta": -2.9}),
        (WANT, [UNLISTED, GREEDY[1]], {"floor": 2.5}, "flip", {}),
        (WANT, [Step(Token(b"A", None), (Token(b"X", -0.1),)), GREEDY[1]], {}, "mismatch", {"rank": None}),
        (WANT, [Step(Token(b"A")), GREEDY[1]], {}, "incomparable", {}),
        # the source's own spread is allowed
        (expected(step(b"A", (b"B", -2.5)), more=(step(b"A", (b"B", -1.9)),)), [behind(0.5)], {}, "flip", {}),
        (expected(step(b"A", (b"B", -2.5))), [behind(0.5)], {}, "mismatch", {}),
        # a token without bytes in the source ends the comparison
        (expected(GREEDY[0], step(b""), GREEDY[1]), GREEDY[:1], {}, "incomparable", {"verdict": "match"}),
        (expected(step(b"")), [], {}, "incomparable", {}),
        (expected(step(API_EOS.encode(), (b"B", -2.5))), [step(EOS.encode(), (b"B", -2.5))], {}, "match",
         {"rank": 1, "overlap": 1.0}),
        # KL divergence over the tokens that both list, renormalised
        (expected(step(b"A", (b"B", -2.5), (b"Z", -4.0))), [step(b"A", (b"B", -1.5), logprob=-0.3)], {}, "match",
         {"overlap": 2 / 3, "kl": float(entropy(np.exp([-0.1, -2.5]), np.exp([-0.3, -1.5])))}),
        (expected(step(b"A", (b"B", -2.5), (b"Z", -4.0))), [step(b"A", (b"Q", -3.0))], {}, "match",
         {"kl": None, "overlap": 1 / 3}),
        (expected(Step(Token(b"A", 0.0), (Token(b"A", 0.0), Token(b"B", -9999.0)))), GREEDY[:1], {}, "match",
         {"kl": None}),
        # an expected divergence is data with a reason
        (WANT, [BAD, GREEDY[1]], {"divergence": ExpectedDivergence("why")}, "expected", {}),
        (WANT, GREEDY, {"divergence": ExpectedDivergence("why")}, "unexpected match", {}),
        (WANT, [BAD, GREEDY[1]], {"divergence": ExpectedDivergence("why", 1)}, "mismatch", {}),
        (WANT, [BAD, Step(Token(b"C", -9.0), BAD.top)], {"divergence": ExpectedDivergence("why", 1)}, "mismatch", {}),
        # ds4's own rule
        (expected(GREEDY[0]), [GREEDY[0]], {"profile": "ds4"}, "match", {}),
        (expected(GREEDY[0]), [step(b"A", (b"B", -6.5))], {"profile": "ds4"}, "match", {}),
        (expected(GREEDY[0]), [step(b"A", (b"B", -6.6))], {"profile": "ds4"}, "mismatch", {}),
        (expected(GREEDY[0]), [step(b"A", (b"B", -2.5), logprob=-4.2)], {"profile": "ds4"}, "mismatch", {}),
        (expected(GREEDY[0]), [step(b"A", (b"Q", -3.0))], {"profile": "ds4"}, "mismatch", {}),
        (expected(GREEDY[0]), [step(b"B", (b"A", -0.3))], {"profile": "ds4"}, "mismatch", {}),
    ],
    ids=range(28),
)  # fmt: skip
def test_verdicts(want, got, options, verdict, first) -> None:
    result = judge(want, *got, **options)
    assert result.verdict == verdict and result.failed == (verdict == "mismatch"), result
    for name, value in first.items():
        assert getattr(result.steps[0], name) == (pytest.approx(value) if isinstance(value, float) else value), name


@pytest.mark.parametrize(
    ("free", "verdicts", "whole"),
    [
        ([step(b"B", (b"A", -0.2)), step(b"C")], ["mismatch", "incomparable"], "mismatch"),
        ([Step(Token(b"X", -0.5), (Token(b"X", -0.5), Token(b"Y", -1.25)))], ["mismatch", "incomparable"], "mismatch"),
        ([Step(Token(b"B", -0.9999), (Token(b"B", -0.9999), Token(b"A", -1.0))), step(b"X")], ["flip", "incomparable"],
         "incomparable"),
        (GREEDY, ["match", "match"], "match"),
    ],
    ids=range(4),
)  # fmt: skip
def test_without_forcing_the_steps_after_a_fork_are_incomparable(free, verdicts, whole) -> None:
    result = check_case(Scripted(free), Prompt.chat("?"), WANT)
    assert [s.verdict for s in result.steps] == verdicts and result.verdict == whole and not result.forced


def test_a_failing_target_is_an_error_of_its_case_and_all_of_it_is_junit() -> None:
    why = ExpectedDivergence("why\x01")
    results = [judge(WANT, *GREEDY), judge(WANT, BAD, GREEDY[1]), judge(WANT, BAD, GREEDY[1], divergence=why),
               check_case(Scripted(TargetError("gone")), Prompt.chat("?"), WANT)]  # fmt: skip
    assert results[3].verdict == "error" and results[3].failed and results[3].reason == "gone"
    suite = ET.fromstring(report(results, "v")).find("testsuite")
    assert suite is not None
    assert {k: suite.get(k) for k in ("tests", "failures", "errors", "skipped")} == {
        "tests": "4", "failures": "1", "errors": "1", "skipped": "1"}  # fmt: skip
