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
from ds4ref.engine import Engine
from ds4ref.errors import DataError
from ds4ref.nano.diagnostic import diagnostic_path
from ds4ref.targets import Completion, Prompt, Step, Token
from ds4ref.test_vectors.doctor import numbers, preflight, repeat, yardstick
from ds4ref.test_vectors.doctor.case import ExamContext
from ds4ref.test_vectors.doctor.findings import Outcome, ShownToken, Stage, plain, row, visible
from ds4ref.test_vectors.doctor.prompts import fitting_mistakes

from .examined import diagnosis, examination
from .scripted import Scripted, step

pytestmark = pytest.mark.usefixtures("both")


@pytest.fixture(scope="module")
def engine(_model_cache):
    with Engine.open(diagnostic_path(), backend="cpu", numerics="exact") as opened:
        yield opened


# ------------------------------------------------------------------------------------------------------ findings


@pytest.mark.parametrize(
    "outcomes, passed, complete, begins",
    [
        ([Outcome.OK], True, True, "Nothing wrong was found in what could be tested"),
        ([Outcome.OK, Outcome.UNSURE], True, False, "Nothing wrong was found in what could be tested (1 check)."),
        ([Outcome.OK, Outcome.IMPOSSIBLE], True, False, "Nothing wrong was found"),
        ([Outcome.OK, Outcome.WRONG, Outcome.UNEXPLAINED], False, True, "Something is wrong, in 1 check."),
        ([Outcome.OK, Outcome.UNEXPLAINED], False, True, "No known bug was found, but 1 check found"),
        ([Outcome.OK, Outcome.FAILED], False, False, "No verdict: 1 check ended in an error"),
        ([Outcome.IMPOSSIBLE], False, False, "No verdict: this target does not expose the log probabilities"),
        ([Outcome.UNSURE], False, False, "No verdict: nothing could be tested"),
        ([], False, True, "No verdict"),
    ],
)
def test_what_an_examination_may_claim(outcomes, passed, complete, begins) -> None:
    found = examination(*outcomes)
    assert found.passed is passed and found.complete is complete
    assert found.verdict.startswith(begins)
    assert not re.search(r"\b(is|engine) (right|correct|fine)\b", found.verdict)


def test_an_examination_without_diagnosis_passes_on_what_it_saw() -> None:
    assert examination(Outcome.OK, stage="tokenizer").passed
    skipped = examination(Outcome.OK, stage="tokenizer")
    skipped.stages.append(Stage("numbers", "Numbers", "?", done=True))
    skipped.stages[1].add("numbers", Outcome.SKIPPED, "left out")
    assert skipped.diagnosed is None and skipped.passed and not skipped.complete
    skipped.signum = signal.SIGINT
    assert not skipped.passed and skipped.verdict.startswith("No verdict: interrupted.")


def test_the_worst_check_decides_a_stage() -> None:
    stage = Stage("ways", "Ways", "?")
    assert stage.outcome is Outcome.SKIPPED
    for outcome in (Outcome.SKIPPED, Outcome.IMPOSSIBLE, Outcome.OK, Outcome.UNSURE, Outcome.FAILED, Outcome.WRONG):
        stage.add(outcome.value, outcome, "x")
        assert stage.outcome is outcome
    assert stage.says == "wrong: x"


def test_next_steps_come_once_and_the_worst_first() -> None:
    found = examination(Outcome.OK, next=["c"])
    found.stages[0].add("a", Outcome.UNSURE, "", next=["b", "c"])
    found.stages[0].add("b", Outcome.WRONG, "", next=["a"])
    assert found.steps == ["a", "b", "c"]


def test_json_is_strict() -> None:
    odd = {"a": np.float32(1.5), "b": float("nan"), "c": [np.int64(2), b"\xff"], 3: {1}, "d": np.array([1, np.inf])}
    text = json.dumps(plain(odd), allow_nan=False)
    assert json.loads(text) == {"a": 1.5, "b": "nan", "c": [2, "\\xff"], "3": [1], "d": [1.0, "inf"]}
    whole = examination(Outcome.WRONG, figures={"x": float("inf")}, where=[("r", [ShownToken("t", 3, True)])]).to_json()
    assert json.loads(json.dumps(whole, allow_nan=False))["stages"][0]["checks"][0]["where"][0]["tokens"][0]["marked"]


def test_tokens_as_they_are_shown() -> None:
    assert visible(b" a\n\t\xff") == "\u2423a\u21b5\\t\\xff"
    tokens = [(bytes([97 + i]), i) for i in range(20)]
    shown = row(tokens, 9, around=2)
    assert [p.text for p in shown] == ["\u2026", "h", "i", "j", "k", "l", "\u2026"]
    assert [p.text for p in shown if p.marked] == ["j"]
    assert [p.marked for p in row(tokens, 20, around=2)] == [False] * 3  # past the end: nothing to mark


# ------------------------------------------------------------------------------------------------- diagnoses


@pytest.mark.parametrize(
    "found, outcome, says",
    [
        (diagnosis("qat"), Outcome.OK, "qat: words"),
        (diagnosis("fault", "no_sink"), Outcome.WRONG, "no_sink: words"),
        (diagnosis("fault", ["no_sink", "gelu"]), Outcome.WRONG, "no_sink, gelu: words"),
        (diagnosis("unknown"), Outcome.UNEXPLAINED, "words: no known rounding mode"),
        (diagnosis("undecided"), Outcome.UNSURE, "undecided: words"),
        (diagnosis("something new"), Outcome.UNSURE, "something new: words"),
    ],
)
def test_verdicts_as_outcomes(engine, found, outcome, says) -> None:
    case, stage = ExamContext(Scripted([step(b"a")]), engine), Stage("numbers", "Numbers", "?")
    seen = SimpleNamespace(ids=np.arange(9), rows=np.arange(9), full=True, logprobs=np.zeros((9, 512)))
    check = numbers.add_diagnosis(case, stage, "mixed", found, seen)
    assert check.outcome is outcome and check.says.startswith(says)
    assert (check.outcome is Outcome.OK) != bool(check.next), "whatever is not clean says what to do next"


def test_an_unknown_says_which_dump_would_decide(engine) -> None:
    seen = SimpleNamespace(ids=np.arange(9), rows=np.arange(9), full=True, logprobs=np.zeros((9, 512)))
    case, stage = ExamContext(Scripted([]), engine), Stage("numbers", "", "")
    check = numbers.add_diagnosis(case, stage, "mixed", diagnosis("unknown", first_position=3), seen)
    assert check.next[-1].startswith("a dump of layer 2 and the head at positions 0 to 8 (0.")
    assert "ds4-vectors diagnose -m" in check.next[-1]


def test_what_a_diagnosis_says_of_its_sight_is_shown(engine) -> None:
    case, stage = ExamContext(Scripted([step(b"a")]), engine), Stage("numbers", "Numbers", "?")
    seen = SimpleNamespace(ids=np.arange(9), rows=np.arange(9), full=False, logprobs=np.zeros((9, 20)))
    found = diagnosis("undecided", first_position=4, next=["send 200 more"], notes=["n"],
                      sight={"size": 0.25, "says": ["would have seen 0.25 nats", "below sight: gelu"]})  # fmt: skip
    check = numbers.add_diagnosis(case, stage, "mixed", found, seen)
    assert check.sight == "would have seen 0.25 nats; below sight: gelu" and check.next == ["send 200 more"]
    assert check.notes == ["n"] and check.figures["numbers"] == "top 20" and check.figures["first_position"] == 4
    assert [p.id for p in check.where[0][1] if p.marked] == [4]


def test_a_fault_of_the_model_is_not_blamed_on_the_template(engine, monkeypatch) -> None:
    case = ExamContext(Scripted([step(b"a")]), engine, logprobs=True, kinds={"chat"})
    seen = SimpleNamespace(ids=np.arange(9), rows=np.arange(9), full=False, logprobs=np.zeros((9, 20)))
    monkeypatch.setattr(numbers, "elicit", lambda *args: seen)
    for fault, outcome in (("no_sink", Outcome.UNSURE), ("think_open", Outcome.WRONG)):
        monkeypatch.setattr(numbers, "run_diagnosis", lambda *args, fault=fault, **more: diagnosis("fault", fault))
        stage = Stage("template", "Template", "?")
        numbers.chat(case, stage)
        assert stage.outcome is outcome, fault


def test_numbers_that_cannot_be_read_are_a_failure(engine, monkeypatch) -> None:
    case = ExamContext(Scripted([step(b"a")]), engine, logprobs=True, quick=True)

    def refuse(*args):
        raise DataError("not numbers")

    monkeypatch.setattr(numbers, "elicit", refuse)
    stage = Stage("numbers", "Numbers", "?")
    numbers.numbers(case, stage)
    assert stage.outcome is Outcome.FAILED and "not numbers" in stage.says and case.mode is None


# ------------------------------------------------------------------------------------- log probabilities


def steps_of(*values: float, own: float | None = -0.5, raws: str = "abcdef") -> Step:
    top = tuple(Token(raws[i].encode(), v) for i, v in enumerate(values))
    return Step(Token(b"a", own), top)


@pytest.mark.parametrize(
    "found, fault",
    [
        (steps_of(-0.5, -1.0, -9999.0), None),
        (steps_of(-0.5, -1.0, -float("inf")), None),
        (steps_of(-0.5, float("nan")), "not a number, or infinite"),
        (steps_of(-0.5, None), "not a number, or infinite"),
        (steps_of(0.2, -1.0, own=0.2), "a log probability above 0"),
        (steps_of(-0.2, -0.3, own=-0.2), "probabilities that add up to more than 1"),
        (steps_of(-1.0, -0.5, own=-0.5), "alternatives not sorted"),
        (steps_of(-0.5, -1.0, raws="aa"), "an alternative twice"),
        (steps_of(-0.5, -1.0, own=-1.0), "the token taken is not the best, at temperature 0"),
    ],
)
def test_log_probabilities_that_are_none(found, fault) -> None:
    assert preflight.faults(found) == ([fault] if fault else [])


def alternatives(*values: float) -> Step:
    return Step(Token(b"a", values[0]), tuple(Token(bytes([97 + i]), value) for i, value in enumerate(values)))


def test_entries_that_hold_several_tokens_may_be_out_of_order() -> None:
    """As many as are missing, and no more: the others are in order."""
    one, two = alternatives(-0.5, -6.0, -3.0, -4.0), alternatives(-0.5, -6.0, -5.0, -3.0, -4.0)
    assert preflight.faults(one) == ["alternatives not sorted"] and preflight.faults(one, 1) == []
    assert preflight.faults(two, 1) == ["alternatives not sorted"] and preflight.faults(two, 2) == []
    assert preflight.faults(alternatives(-4.0, -3.0, -2.0), 1) == [
        "alternatives not sorted",
        "the token taken is not the best, at temperature 0",
    ]


def test_a_text_of_several_tokens_is_compared_with_none() -> None:
    """'' stands for all bytes that are no text: its value is that of any of them."""
    one = Step(Token(b"a", -1.0), (Token(b"a", -1.0), Token(b"", -1.5), Token("\ufffd".encode(), -2.0)))
    other = Step(Token(b"a", -1.0), (Token(b"a", -1.0), Token(b"", -4.0), Token("\ufffd".encode(), -7.0)))
    assert repeat.gap(one, other) == 0.0


def test_lengths_in_a_list_of_models() -> None:
    data = {"data": [{"id": "other", "max_model_len": 1}, {"id": "m", "max_model_len": 7, "meta": {"n_ctx_train": 9}}]}
    assert preflight._context_lengths(data, "m") == {"max_model_len": 7, "n_ctx_train": 9}
    assert preflight._context_lengths(data, "absent") == {"max_model_len": 1}
    assert preflight._context_lengths({"data": "?"}, "m") == {}


# -------------------------------------------------------------------------------------------------- yardsticks


def yard(level: float) -> yardstick.Yardstick:
    return yardstick.Yardstick(np.full(200, level), "of a test")


@pytest.mark.parametrize(
    "rms, outcome",
    [
        (np.zeros(50), Outcome.OK),
        (np.full(50, 0.1), Outcome.OK),
        (np.full(50, 0.15), Outcome.UNSURE),
        (np.full(50, 0.25), Outcome.WRONG),
        (np.r_[np.zeros(49), 0.3], Outcome.WRONG),
        (np.full(50, np.inf), Outcome.UNSURE),
        (np.full(50, np.nan), Outcome.UNSURE),
    ],
)
def test_differences_against_noise(rms, outcome) -> None:
    assert yard(0.1).judge(rms)[0] is outcome


def test_float_noise_is_allowed_whatever_was_measured() -> None:
    assert yard(1e-9).judge(np.full(9, 9e-5))[0] is Outcome.OK
    assert yard(1e-9).judge(np.full(9, 5e-4))[0] is Outcome.UNSURE
    assert yard(1e-9).judge(np.full(9, 2e-3))[0] is Outcome.WRONG


def test_few_positions_say_less_where_flips_are_rare() -> None:
    rare = yardstick.Yardstick(np.r_[np.zeros(990), np.ones(10)], "of a test")
    assert rare.far(5) > 2 * rare.far(500) and rare.near(5) > rare.near(500)


def test_an_unknown_rounding_is_neither_accused_nor_cleared() -> None:
    unknown = yardstick.Yardstick(np.full(100, 0.2), "", np.full(100, 1e-5))
    assert unknown.judge(np.full(9, 5e-5))[0] is Outcome.OK
    assert unknown.judge(np.full(9, 0.1))[0] is Outcome.UNSURE
    assert unknown.judge(np.full(9, 0.9))[0] is Outcome.WRONG


def test_distance_of_rows() -> None:
    a = np.array([[0.0, 0.0], [1.0, np.nan], [-np.inf, 0.0], [np.nan, np.nan]])
    b = np.array([[3.0, 4.0], [0.0, np.nan], [0.0, 0.0], [np.nan, np.nan]])
    assert yardstick.distance(a, b).tolist()[:3] == [pytest.approx(12.5**0.5), 1.0, np.inf]
    assert np.isnan(yardstick.distance(a, b)[3])


def test_noise_is_measured_on_what_is_known_of_an_answer(engine) -> None:
    """Up to the first token whose bytes a server of texts has lost; of a prompt that is not known nothing is."""
    case = ExamContext(Scripted([]), engine, same_model=True, mode="llama.cpp")
    lost = [step(b"a"), step(b""), step(b"e")]
    measured = repeat.yard_for(case, Prompt.tokens(range(40)), lost)
    assert "llama.cpp" in measured.of and len(measured.pairs) == 6 * 41
    assert repeat.yard_for(case, Prompt.tokens(range(40)), lost[1:]).pairs.shape == (6 * 40,)
    case.same_model = None
    assert "not measured" in repeat.yard_for(case, Prompt.tokens(range(40)), lost).of


def test_the_model_agrees_with_itself_within_the_yardstick(engine) -> None:
    """Chunks of seven take other kernels than the whole: what float noise is, and no more."""
    ids = list(range(40, 80))
    rows = [engine.session(41).extend(ids, chunk=n) for n in (40, 7)]
    made = yardstick.measure(engine, ids, "exact")
    rms = yardstick.distance(*(yardstick.log_softmax(r) for r in rows))
    assert rms.max() < 1e-3 and made.judge(rms)[0] is Outcome.OK
    assert made.judge(rms + 0.01)[0] is Outcome.WRONG
    wide = yardstick.measure(engine, ids, None, top=20, last=10)
    assert wide.near(9) < wide.far(9) and wide.apart > 0.01


# ----------------------------------------------------------------------------------------------- run to run


def done(*steps: Step) -> Completion:
    return Completion(b"".join(s.token.raw for s in steps).decode(), steps, "length")


def test_where_answers_fork() -> None:
    a = done(step(b"a", (b"b", -3.0)), step(b"c", (b"d", -0.35)), step(b"e"))
    b = done(step(b"a", (b"b", -3.1)), step(b"d", (b"c", -0.2), logprob=-0.1), step(b"e"))
    found = repeat.compare_answers(a, b)
    assert found.fork == 1 and found.margin == pytest.approx(0.25) and not found.same
    assert found.rms[0] == pytest.approx((0.01 / 2) ** 0.5) and len(found.rms) == 2
    assert repeat.compare_answers(a, a).same and repeat.compare_answers(a, a).fork is None
    assert repeat.compare_answers(a, done(*a.steps[:2])).fork == 2


def test_a_fork_that_is_no_tie_is_wrong(engine) -> None:
    for margin, outcome in ((4.0, Outcome.WRONG), (0.1, Outcome.UNSURE)):
        a, b = step(b"a", (b"b", -0.1 - margin)), step(b"b", (b"a", -0.1 - margin))
        target = Scripted([a], [b])
        stage = Stage("determinism", "Run to run", "?")
        repeat.determinism(ExamContext(target, engine, quick=True, kinds={"chat"}, logprobs=True), stage)
        assert stage.outcome is outcome, margin
        assert [[p.text for p in pieces if p.marked] for _, pieces in stage.checks[0].where[:2]] == [["a"], ["b"]]


def test_mistakes_that_fit_the_counts(engine) -> None:
    from ds4ref.text.chat import encode_chat_prompt

    chats = {name: encode_chat_prompt(engine.tokenizer, "", name, "none") for name in ("one", "another text")}
    for delta, said in ((-1, "missing BOS token"), (1, "doubled BOS token")):
        found = fitting_mistakes(engine.tokenizer, {n: (len(ids) + delta, ids) for n, ids in chats.items()})
        assert said in found and len(found) < 4
    assert not fitting_mistakes(engine.tokenizer, {n: (len(ids) + 50, ids) for n, ids in chats.items()})


# ------------------------------------------------------------------------------------------------- the model file


def file_checks(engine, shape=None, their_model=None) -> dict[str, tuple[Outcome, str]]:
    seen = engine if shape is None else SimpleNamespace(shape=shape, path=engine.path)
    stage = Stage("preflight", "", "")
    preflight._file(ExamContext(Scripted([]), seen, their_model=their_model), stage)
    return {c.name: (c.outcome, c.says) for c in stage.checks}


def test_constants_that_no_flash_file_has(engine) -> None:
    """In a file of Flash's size they are wrong, in a small model they may be meant."""
    assert file_checks(engine)["model file"] == (
        Outcome.OK,
        "deepseek4.attention.sliding_window 16, where DeepSeek V4 Flash has 128; "
        "deepseek4.attention.indexer.top_k 8, where DeepSeek V4 Flash has 512: right if it was made so",
    )
    assert file_checks(engine, FLASH)["model file"] == (Outcome.OK, "its constants are those of DeepSeek V4 Flash")
    bad = file_checks(engine, replace(FLASH, rms_eps=1e-5))["model file"]
    key = "deepseek4.attention.layer_norm_rms_epsilon"
    says = f"it has the size of DeepSeek V4 Flash, but {key} 1e-05, where DeepSeek V4 Flash has 1e-06"
    assert bad == (Outcome.WRONG, says)
