"""What the doctor makes of its findings: outcomes of diagnoses, of log probabilities, of noise."""

from __future__ import annotations

import json
import re
import signal
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from ds4ref.archs.deepseek4.shape import FLASH
from ds4ref.errors import DataError
from ds4ref.targets import Prompt, Step, Token
from ds4ref.test_vectors.doctor import numbers, preflight, repeat, yardstick
from ds4ref.test_vectors.doctor.case import ExamContext
from ds4ref.test_vectors.doctor.examination import Stage
from ds4ref.test_vectors.doctor.prompts import fitting_mistakes
from ds4ref.test_vectors.finding import Outcome, ShownToken, plain
from ds4ref.text.prompts import encode_chat_prompt

from .examined import diagnosis, examination
from .scripted import Scripted, step

pytestmark = pytest.mark.usefixtures("both")


# ------------------------------------------------------------------------------------------------------ findings


@pytest.mark.parametrize(
    "outcomes, stage, passed, complete, begins",
    [
        ([Outcome.OK], "numbers", True, True, "Nothing wrong was found in what could be tested"),
        ([Outcome.OK, Outcome.UNSURE], "numbers", True, False, "Nothing wrong was found in"),
        ([Outcome.OK, Outcome.IMPOSSIBLE], "numbers", True, False, "Nothing wrong was found"),
        ([Outcome.OK, Outcome.DEPENDS], "numbers", True, True,
         "Nothing wrong was found in what could be tested (1 check). Its output"),
        ([Outcome.OK, Outcome.WRONG, Outcome.UNEXPLAINED], "numbers", False, True, "Something is wrong, in 1 check."),
        ([Outcome.OK, Outcome.WRONG], "api", False, True, "Something is wrong with the API, in 1 check."),
        ([Outcome.OK, Outcome.UNEXPLAINED], "numbers", False, True, "No known bug was found"),
        ([Outcome.OK, Outcome.FAILED], "numbers", False, False, "No verdict: 1 check ended in an error"),
        ([Outcome.IMPOSSIBLE], "numbers", False, False, "No verdict: this target does not expose"),
        ([Outcome.UNSURE], "numbers", False, False, "No verdict: nothing could be tested"),
        ([], "numbers", False, True, "No verdict"),
        ([Outcome.OK], "tokenizer", True, True, "Nothing wrong"),
    ],
)  # fmt: skip
def test_what_an_examination_may_claim(outcomes, stage, passed, complete, begins) -> None:
    result = examination(*outcomes, stage=stage)
    assert result.passed is passed and result.complete is complete
    assert result.verdict.startswith(begins)
    assert not re.search(r"\b(is|engine) (right|correct|fine)\b", result.verdict)
    assert result.outcome is min(outcomes, key=list(Outcome).index, default=Outcome.SKIPPED), "the worst decides"


def test_a_verdict_on_the_api_alone_says_so() -> None:
    template = examination(Outcome.WRONG, stage="api", cause="template")
    assert template.verdict == "Something is wrong, in 1 check.", "the prompts are not the API's matter"
    both = examination(Outcome.WRONG, stage="api")
    both.stages.append(Stage("load", "Load", "?", cause="load"))
    both.stages[1].add("8 at once", Outcome.WRONG, "x")
    assert both.verdict == "Something is wrong, in 2 checks."


def test_an_examination_without_diagnosis_passes_on_what_it_saw() -> None:
    skipped = examination(Outcome.OK, stage="tokenizer")
    skipped.stages.append(Stage("numbers", "Numbers", "?", done=True))
    skipped.stages[1].add("numbers", Outcome.SKIPPED, "left out")
    assert skipped.diagnosed is None and skipped.passed and not skipped.complete
    skipped.signum = signal.SIGINT
    assert not skipped.passed and skipped.verdict.startswith("No verdict: interrupted.")


def test_next_steps_come_once_and_the_worst_first() -> None:
    result = examination(Outcome.OK, next=["c"])
    result.stages[0].add("a", Outcome.UNSURE, "", next=["b", "c"])
    result.stages[0].add("b", Outcome.WRONG, "x", next=["a"])
    assert result.steps == ["a", "b", "c"] and result.stages[0].says == "b: x"


def test_json_is_strict() -> None:
    odd = {"a": np.float32(1.5), "b": float("nan"), "c": [np.int64(2), b"\xff"], 3: {1}, "d": np.array([1, np.inf])}
    text = json.dumps(plain(odd), allow_nan=False)
    assert json.loads(text) == {"a": 1.5, "b": "nan", "c": [2, "\\xff"], "3": [1], "d": [1.0, "inf"]}
    whole = examination(Outcome.WRONG, figures={"x": float("inf")}, where=[("r", [ShownToken("t", 3, True)])]).to_json()
    assert json.loads(json.dumps(whole, allow_nan=False))["stages"][0]["checks"][0]["where"][0]["tokens"][0]["marked"]


# ------------------------------------------------------------------------------------------------- diagnoses


@pytest.mark.parametrize(
    "result, outcome, says",
    [
        (diagnosis("qat"), Outcome.OK, "qat: words"),
        (diagnosis("fault", "no_sink"), Outcome.WRONG, "no_sink: words"),
        (diagnosis("unknown", first_position=3), Outcome.UNEXPLAINED, "unknown: words"),
        (diagnosis("undecided"), Outcome.UNSURE, "undecided: words"),
        (diagnosis("file"), Outcome.WRONG, "file: words"),
        (diagnosis("something new"), Outcome.UNSURE, "something new: words"),
    ],
)
def test_verdicts_as_outcomes(engine, result, outcome, says) -> None:
    case, stage = ExamContext(Scripted([step(b"a")]), engine), Stage("numbers", "Numbers", "?")
    seen = SimpleNamespace(ids=np.arange(9), rows=np.arange(9), full=True, logprobs=np.zeros((9, 512)))
    check = numbers.add_diagnosis(case, stage, "mixed", result, seen, "again")
    assert check.outcome is outcome and check.says.startswith(says)
    assert (check.outcome is Outcome.OK) != bool(check.next), "whatever is not clean says what to do next"
    assert check.next == ["again"] if outcome in (Outcome.WRONG, Outcome.UNSURE) else "again" not in check.next
    assert outcome is not Outcome.UNEXPLAINED or check.next[0].startswith("a dump of layer 2 and the head")


def test_what_a_diagnosis_says_of_its_limit_is_shown(engine) -> None:
    case, stage = ExamContext(Scripted([step(b"a")]), engine), Stage("numbers", "Numbers", "?")
    seen = SimpleNamespace(ids=np.arange(9), rows=np.arange(9), full=False, logprobs=np.zeros((9, 20)))
    result = diagnosis("undecided", first_position=4, next=["send 200 more"], notes=["n"],
                      limit={"size": 0.25, "says": ["would have seen 0.25 nats", "below: gelu"]})  # fmt: skip
    check = numbers.add_diagnosis(case, stage, "mixed", result, seen, "again")
    assert check.limit == "would have seen 0.25 nats; below: gelu" and check.next == ["send 200 more"]
    assert check.notes == ["n"] and check.figures["numbers"] == "top 20" and check.figures["first_position"] == 4
    assert [p.id for p in check.where[0][1] if p.marked] == [4]


def test_what_is_asked_and_cannot_be_told(engine, monkeypatch) -> None:
    """A mistake in the forward pass is not blamed on the chat template; unreadable numbers make the check fail."""
    case = ExamContext(Scripted([step(b"a")]), engine, logprobs=True, kinds={"chat"})
    seen = SimpleNamespace(ids=np.arange(9), rows=np.arange(9), full=False, logprobs=np.zeros((9, 20)))
    monkeypatch.setattr(numbers, "elicit", lambda *args: seen)
    for fault, outcome in (("no_sink", Outcome.UNSURE), ("think_open", Outcome.WRONG)):
        monkeypatch.setattr(numbers, "run_diagnosis", lambda *args, fault=fault, **more: diagnosis("fault", fault))
        stage = Stage("template", "Template", "?")
        numbers.chat(case, stage)
        assert stage.outcome is outcome, fault

    def refuse(*args):
        raise DataError("not numbers")

    monkeypatch.setattr(numbers, "elicit", refuse)
    stage = Stage("numbers", "Numbers", "?")
    numbers.numbers(replace(case, quick=True), stage)
    assert stage.outcome is Outcome.FAILED and "not numbers" in stage.says and case.mode is None


# ------------------------------------------------------------------------------------- log probabilities


def steps_of(*values: float, own: float | None = -0.5, raws: str = "abcdef") -> Step:
    top = tuple(Token(raws[i].encode(), v) for i, v in enumerate(values))
    return Step(Token(b"a", own), top)


UNSORTED = "alternatives not sorted"


@pytest.mark.parametrize(
    "result, missing, fault",
    [
        (steps_of(-0.5, -1.0, -9999.0), 0, []),
        (steps_of(-0.5, -1.0, -float("inf")), 0, []),
        (steps_of(-0.5, float("nan")), 0, ["not a number, or infinite"]),
        (steps_of(-0.5, None), 0, ["not a number, or infinite"]),
        (steps_of(0.2, -1.0, own=0.2), 0, ["a log probability above 0"]),
        (steps_of(-0.2, -0.3, own=-0.2), 0, ["probabilities that add up to more than 1"]),
        (steps_of(-1.0, -0.5, own=-0.5), 0, [UNSORTED]),
        (steps_of(-0.5, -1.0, raws="aa"), 0, ["an alternative twice"]),
        (steps_of(-0.5, -1.0, own=-1.0), 0, ["the token taken is not the best, at temperature 0"]),
        # entries that hold several tokens may be out of order, as many as are missing
        (steps_of(-0.5, -6.0, -3.0, -4.0), 0, [UNSORTED]), (steps_of(-0.5, -6.0, -3.0, -4.0), 1, []),
        (steps_of(-0.5, -6.0, -5.0, -3.0, -4.0), 1, [UNSORTED]), (steps_of(-0.5, -6.0, -5.0, -3.0, -4.0), 2, []),
    ],
    ids=range(13),
)  # fmt: skip
def test_log_probabilities_that_are_none(result, missing, fault) -> None:
    assert preflight.faults(result, missing) == fault


def test_a_text_of_several_tokens_is_compared_with_none() -> None:
    """An API gives '' for every token that is not valid UTF-8, so its log probability may be that of any of these."""
    one = Step(Token(b"a", -1.0), (Token(b"a", -1.0), Token(b"", -1.5), Token("\ufffd".encode(), -2.0)))
    other = Step(Token(b"a", -1.0), (Token(b"a", -1.0), Token(b"", -4.0), Token("\ufffd".encode(), -7.0)))
    assert repeat.gap(one, other) == 0.0


# -------------------------------------------------------------------------------------------------- yardsticks


def yard(level: float, low: float | None = None) -> yardstick.Yardstick:
    return yardstick.Yardstick(np.full(200, level), "of a test", None if low is None else np.full(100, low))


@pytest.mark.parametrize(
    "made, rms, outcome",
    [
        (yard(0.1), np.zeros(50), Outcome.OK),
        (yard(0.1), np.full(50, 0.1), Outcome.OK),
        (yard(0.1), np.full(50, 0.15), Outcome.UNSURE),
        (yard(0.1), np.full(50, 0.25), Outcome.WRONG),
        (yard(0.1), np.r_[np.zeros(49), 0.3], Outcome.WRONG),
        (yard(0.1), np.full(50, np.inf), Outcome.UNSURE),
        (yard(0.1), np.full(50, np.nan), Outcome.UNSURE),
        # float noise is allowed whatever was measured
        (yard(1e-9), np.full(9, 9e-5), Outcome.OK),
        (yard(1e-9), np.full(9, 5e-4), Outcome.UNSURE),
        (yard(1e-9), np.full(9, 2e-3), Outcome.WRONG),
        # an unknown rounding is neither accused nor cleared
        (yard(0.2, 1e-5), np.full(9, 5e-5), Outcome.OK),
        (yard(0.2, 1e-5), np.full(9, 0.1), Outcome.UNSURE),
        (yard(0.2, 1e-5), np.full(9, 0.9), Outcome.WRONG),
    ],
    ids=range(13),
)
def test_differences_against_noise(made, rms, outcome) -> None:
    assert made.judge(rms)[0] is outcome


def test_few_positions_say_less_where_flips_are_rare() -> None:
    rare = yardstick.Yardstick(np.r_[np.zeros(990), np.ones(10)], "of a test")
    assert rare.far(5) > 2 * rare.far(500) and rare.near(5) > rare.near(500)


def test_noise_is_measured_on_what_is_known_of_an_answer(engine) -> None:
    """Noise is measured up to the first token whose bytes the server lost, and not at all if the prompt is unknown."""
    case = ExamContext(Scripted([]), engine, same_model=True, mode="llama.cpp")
    lost = [step(b"a"), step(b""), step(b"e")]
    measured = repeat.yard_for(case, Prompt.tokens(range(40)), lost)
    assert "llama.cpp" in measured.of and len(measured.pairs) == 6 * 41
    case.same_model = None
    assert "not measured" in repeat.yard_for(case, Prompt.tokens(range(40)), lost).of


def test_the_model_agrees_with_itself_within_the_yardstick(engine) -> None:
    """Prefill in chunks of seven uses other kernels than in one piece; the difference is within float noise."""
    ids = list(range(40, 80))
    rows = [engine.session(41).extend(ids, chunk=n) for n in (40, 7)]
    made = yardstick.measure(engine, ids, "exact")
    rms = yardstick.distance(*(yardstick.log_softmax(r) for r in rows))
    assert rms.max() < 1e-3 and made.judge(rms)[0] is Outcome.OK
    assert made.judge(rms + 0.01)[0] is Outcome.WRONG


# ----------------------------------------------------------------------------------------------- run to run


def test_a_fork_that_is_no_tie_is_wrong(engine) -> None:
    for margin, outcome in ((4.0, Outcome.WRONG), (0.1, Outcome.UNSURE)):
        a, b = step(b"a", (b"b", -0.1 - margin)), step(b"b", (b"a", -0.1 - margin))
        stage = Stage("determinism", "Run to run", "?")
        repeat.determinism(ExamContext(Scripted([a], [b]), engine, quick=True, kinds={"chat"}, logprobs=True), stage)
        assert stage.outcome is outcome, margin
        assert ("between tokens that are 4 nats apart" in stage.checks[0].says) == (margin == 4.0)
        assert [[p.text for p in pieces if p.marked] for _, pieces in stage.checks[0].where[::2]] == [["a"], ["b"]]


@pytest.mark.parametrize(
    ("rms", "fork", "margin", "effect"),
    [
        ([0.006, 0.002], None, None, 0.006),
        ([0.3, 0.0], None, None, 0.3),
        ([0.31, 0.0], None, None, None),  # more than check allows an engine of unknown rounding
        ([0.002, 0.01], 1, 0.048, 0.01),  # 8 times what the other positions differ
        ([0.002, 0.01], 1, 0.049, None),
        ([0.01], 0, 0.0008, 0.01),  # nothing else to compare with: float noise
        ([0.01], 0, 0.0009, None),
        ([0.002, 0.01], 1, None, None),
        ([0.002, np.inf], None, None, None),
        ([np.nan], None, None, None),
    ],
)
def test_how_much_a_batch_may_change(rms, fork, margin, effect) -> None:
    answer = repeat.AnswerComparison(np.array(rms), fork, margin, False)
    other = repeat.AnswerComparison(np.array([0.006 if len(rms) > 1 else np.nan]), None, None, False)
    assert repeat.batch_effect(answer, [answer, other]) == effect


def test_mistakes_that_fit_the_counts(engine) -> None:
    chats = {name: encode_chat_prompt(engine.tokenizer, "", name, "none") for name in ("one", "another text")}
    for delta, reply in ((-1, "missing BOS token"), (1, "doubled BOS token")):
        result = fitting_mistakes(engine.tokenizer, {n: (len(ids) + delta, ids) for n, ids in chats.items()})
        assert reply in result and len(result) < 4
    assert not fitting_mistakes(engine.tokenizer, {n: (len(ids) + 50, ids) for n, ids in chats.items()})


@pytest.mark.parametrize(
    ("shape", "outcome", "part"),
    [
        (None, Outcome.OK, "index_topk"),
        (FLASH, Outcome.OK, "its constants are those of DeepSeek V4 Flash"),
        (replace(FLASH, rms_eps=1e-5), Outcome.WRONG,
         "it has the size of DeepSeek V4 Flash, but deepseek4.attention.layer_norm_rms_epsilon 1e-05, where DeepSeek"),
    ],
    ids=["small", "flash", "wrong"],
)  # fmt: skip
def test_constants_that_no_flash_file_has(engine, shape, outcome, part) -> None:
    """Such constants are wrong in a file of Flash's size, but may be intended in a small model."""
    seen = engine if shape is None else SimpleNamespace(shape=shape, path=engine.path)
    stage = Stage("preflight", "", "")
    preflight._file(ExamContext(Scripted([]), seen), stage)
    (only,) = stage.checks
    assert only.outcome is outcome and (part in only.says or only.says.endswith("right if it was made so")), only
