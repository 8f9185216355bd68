"""Answers that an engine committed, forced through a judge: what is accused, what is not, and what is said of it."""

from __future__ import annotations

import json

import numpy as np
import pytest

from ds4ref.engine import Engine
from ds4ref.errors import DataError, TargetError, UsageError
from ds4ref.nano import embedded_path
from ds4ref.targets import Completion, Prompt, Request, Step, Token
from ds4ref.targets.local import LocalTarget
from ds4ref.test_vectors import cli, forced
from ds4ref.test_vectors.forced import Answer, ask, force, of_tokens, read
from ds4ref.test_vectors.verdicts import CaseResult, StepResult, forced_case
from ds4ref.test_vectors.verifier import ODDS, Judgement, weigh
from tests.marking import sampled

from .endpoint import Endpoint, runners_up
from .scripted import Scripted, step

FLOOR = 0.3

# ---------------------------------------------------------------------------------------------------------- the verdict


def case(name: str, leads: list[float], off: list[int]) -> CaseResult:
    """A case whose token t leads by leads[t]; those of ``off`` are not the best."""
    steps = []
    for t, lead in enumerate(leads):
        verdict = ("flip" if lead <= FLOOR else "mismatch") if t in off else "match"
        steps.append(StepResult(t, verdict, b"a", b"b", margin=lead if t in off else 0.0, lead=lead))
    return CaseResult(name, "match", steps, FLOOR)


def judged(*cases: CaseResult, **options) -> Judgement:
    return weigh(cases, FLOOR, **options)


NARROW = [1.0] * 50


@pytest.mark.parametrize(
    ("leads", "off", "known", "verdict", "counts"),
    [
        ([2.0, 0.3, 0.31, 5.0], [], False, "right", {"tokens": 4, "first": 1, "best": 4, "close": 1, "worst": None}),
        ([2.0, 0.3, 5.0], [1], False, "right", {"flips": 1, "wrong": 0, "worst": ("a", 1, 0.3)}),
        ([2.0, 0.301, 5.0], [1], True, "verifier", {"flips": 0, "wrong": 1}),
        # noise of 9 nats would have reversed many of the narrow ones first; noise of 2 may be a rare jump
        ([*NARROW, 9.0, 9.0], [50, 51], False, "verifier", {"worst": ("a", 50, 9.0)}),
        ([*NARROW, 2.0], [50], False, "undecided", {"wrong": 1}),
        ([*NARROW, 2.0], [50], True, "verifier", {}),
        ([9.0] * 40, [0, 3, 9], True, "elsewhere", {"wrong_first": 1}),
        ([], [], False, "nothing", {}),
    ],
)
def test_verdicts(leads, off, known, verdict, counts) -> None:
    made = judged(case("a", leads, off), known=known)
    assert made.verdict == verdict and {name: getattr(made, name) for name in counts} == counts, made
    assert (made.lapses.odds > ODDS) == (verdict in ("verifier", "elsewhere") and not known)


def noisy(seed: int, scale: float, tokens: int) -> CaseResult:
    """A right engine whose noise has a heavy tail."""
    rng = np.random.default_rng(seed)
    leads = rng.exponential(2.0, tokens)
    off = rng.random(tokens) < 0.5 * np.exp(-leads / 3.0) / (1.0 + leads / scale)
    return case("a", leads.tolist(), np.flatnonzero(off).tolist())


@pytest.mark.parametrize("scale", sampled([0.02, 0.1, 0.5, 2.0], 4))
def test_noise_is_not_accused(scale) -> None:
    """Right engines whose noise is far above the floor."""
    found = [judged(noisy(seed, scale, 300)) for seed in range(100)]
    assert all(made.verdict in ("right", "undecided") for made in found)
    assert any(made.wrong for made in found)


# -------------------------------------------------------------------------------------------------- forcing and reading


@pytest.fixture(scope="module")
def local(nano_path):
    with LocalTarget.open(nano_path, backend="cpu", numerics="exact", ctx=512, threads=1) as target:
        yield target


@pytest.fixture(scope="module")
def trained(_model_cache):
    with Engine.open(embedded_path(), backend="cpu", numerics="exact", threads=1) as engine:
        yield engine


def test_forced_steps_are_judged_by_their_own_best() -> None:
    other = Step(Token(b"A", -1.5), (Token(b"B", -1.0), Token(b"A", -1.5)))
    unlisted = Step(Token(b"X", None), (Token(b"B", -1.0), Token(b"A", -1.5)))
    result = forced_case("x", [step(b"A", (b"B", -2.5)), other, unlisted], 0.4)
    assert [(s.verdict, s.margin, s.lead) for s in result.steps] == [
        ("match", 0.0, pytest.approx(2.4)), ("mismatch", 0.5, 0.5), ("mismatch", None, 0.5),
    ]  # fmt: skip
    assert result.verdict == "mismatch" and forced_case("x", [other], 0.5).verdict == "flip"
    assert forced_case("x", [], 0.5).verdict == "incomparable"


def test_a_text_is_cut_as_the_model_cut_it(local, monkeypatch) -> None:
    """A random model writes what no tokenizer cuts that way; where that is not found out, nothing is judged."""
    prompt = Prompt.chat("1 2 3")
    done = local.complete(Request(prompt, 12))
    ids, raws = [s.token.id for s in done.steps], [s.token.raw for s in done.steps]
    by_ids = force(local, Answer("a", Prompt.tokens(local.encode(prompt)), ids=tuple(ids)))
    assert [s.token.id for s in by_ids] == [s.top[0].id for s in by_ids] == ids
    assert [s.token.raw for s in force(local, of_tokens("a", prompt, raws))] == raws
    answer = Answer("a", prompt, b"".join(raws).decode())
    assert len(local.tokenize(answer.text)) > len(raws)
    assert [s.token.raw for s in force(local, answer)] == raws
    monkeypatch.setattr(forced, "RECUTS", 0)
    known = force(local, answer)
    assert 0 < len(known) < len(raws) and [s.token.raw for s in known] == raws[: len(known)]
    # a wrong token that is no other cut is judged
    wrong = force(local, Answer("a", prompt, b"".join(raws[:1]).decode() + "zz"))
    assert wrong[1].token.raw != wrong[1].top[0].raw
    with pytest.raises(DataError, match="outside the vocabulary of"):
        force(local, Answer("a", prompt, ids=(local.engine.shape.vocab,)))


def test_the_end_of_an_answer_is_judged_too(local) -> None:
    steps = force(local, Answer("a", Prompt.chat("Hello"), "x", ended=True))
    assert steps[-1].token.id == local.tokenizer.eos and len(steps) > 1
    assert force(local, Answer("a", Prompt.chat("Hello"), "x"))[-1].token.id != local.tokenizer.eos


def test_reading(tmp_path) -> None:
    file = tmp_path / "a.jsonl"
    lines = [
        {"id": "one", "prompt": "Hm?", "system": "Be brief.", "answer": "Yes", "finish": "stop"},
        {"text": "Once", "answer": "upon \ufffd a", "finish": "stop"},
        {"id": "ids", "prompt_ids": [0, 5], "ids": [6, 7, 8], "finish": "stop"},
    ]
    file.write_text("\n\n".join(map(json.dumps, lines)))
    assert read(str(file)) == [
        Answer("one", Prompt.chat("Hm?", "Be brief."), "Yes", ended=True),
        Answer("line 3", Prompt.plain("Once"), "upon "),  # what follows the lost character is unknown
        Answer("ids", Prompt.tokens([0, 5]), ids=(6, 7, 8)),
    ]


GOOD = '{"id": "x", "prompt": "a", "answer": "b"}\n'


@pytest.mark.parametrize("text, why", [
    (GOOD + '{"prompt": "a"}', "line 2: give exactly one of answer, ids"),
    (GOOD + '{"prompt": "a", "answer": "b", "ids": [1]}', "line 2: give exactly one of answer, ids"),
    (GOOD + '{"answer": "b"}', "line 2: give exactly one of prompt, text, prompt_ids"),
    (GOOD + '{"prompt": 1, "answer": "b"}', "line 2: .*str"), (GOOD + '{"prompt": "a", "ids": [-1]}', "line 2: .*>= 0"),
    (GOOD + '{"prompt": "a", "ids": [true]}', "line 2: .*int"), (GOOD + "[1]", "line 2: .*object"),
    (GOOD + '{"prompt"', "line 2: not JSON"), (GOOD + "[" * 100_000, "line 2: not JSON"),
    ("\n", "no answer"), (GOOD * 2, "id 'x' is listed twice"),
], ids=range(11))  # fmt: skip
def test_files_that_say_nothing_are_named(tmp_path, text, why) -> None:
    (tmp_path / "a.jsonl").write_text(text)
    with pytest.raises(DataError, match=f"a.jsonl: {why}") as caught:
        read(str(tmp_path / "a.jsonl"))
    assert "\n" not in str(caught.value)


def test_what_cannot_be_judged(monkeypatch) -> None:
    engine = Scripted([])
    monkeypatch.setattr(engine, "complete", lambda request: Completion("x", finish="stop", reasoning="Hm."))
    with pytest.raises(TargetError, match="answered with reasoning"):
        ask(engine, "a", Prompt.chat("?"), 4, None, False)
    judge = Scripted([], forced=[step(b"A")])
    cut = of_tokens("a", Prompt.chat("?"), [b"A", b"", b"B"])
    assert cut.tokens == (b"A",) and len(force(judge, cut)) == 1
    for answer in (Answer("a", Prompt.chat("?"), "text"), Answer("a", Prompt.plain("?"), ids=(1,))):
        with pytest.raises(UsageError, match="use a local target"):
            force(judge, answer)
    with pytest.raises(UsageError, match="check --teacher-forced needs scoring"):
        force(Scripted([]), of_tokens("a", Prompt.chat("?"), [b"A"]))


@pytest.mark.parametrize(("more", "compared"), [(0, True), (1, True), (-1, True), (2, False), (-2, False)])
def test_another_prompt_than_the_judges_is_not_compared(trained, more, compared) -> None:
    """An engine with another chat template counts other prompt tokens; a BOS may be counted or not."""
    judge = LocalTarget(trained)
    prompt = Prompt.chat("417+248=")
    answer = Answer("a", prompt, "665", before=len(judge.encode(prompt)) + more)
    if compared:
        assert force(judge, answer)
    else:
        with pytest.raises(TargetError, match="a: cannot compare: the engine counts .* another chat template"):
            force(judge, answer)


# ------------------------------------------------------------------------------------------ simulated engines, commands


@pytest.fixture
def run(capsys, both):
    def command(*argv: str) -> tuple[int, dict]:
        code = cli.main(["check", "--teacher-forced", "--no-store", *argv])
        out = capsys.readouterr().out.strip().splitlines()
        return code, json.loads(out[-1]) if out else {}

    return command


@pytest.mark.parametrize("wrong, verdict", [("verifier", "verifier"), ("", "right"), ("greedy", "elsewhere")])
@pytest.mark.parametrize("judge, how", sampled([("ours", "chat"), ("ours", "plain"), ("itself", "plain")], 3))
def test_a_server_is_asked_and_judged(run, tmp_path, trained, wrong, verdict, judge, how) -> None:
    """By our engine, and by the log probabilities of its own echo."""
    prompts = tmp_path / "prompts.jsonl"
    texts = ("The miller counted the sacks, and", "Rain fell on the", "Ada likes the")
    prompts.write_text("\n".join(json.dumps({"id": f"p{i}", "prompt": text}) for i, text in enumerate(texts)))
    with Endpoint(trained, wrong, echo=True) as server:
        target = f"local:{trained.path}?numerics=exact&threads=1" if judge == "ours" else server.url
        code, found = run(
            "--committed-by", server.url, "--target", target, "--prompts", str(prompts), "-n", "32", "--dialect",
            "plain", *(["--plain-text"] if how == "plain" else []),
        )  # fmt: skip
    assert found["verdict"] == verdict, found
    assert code == (verdict != "right") and found["passed"] == (verdict == "right")
    assert found["floor"] == FLOOR and found["cases"] == 3


def test_a_file_of_ids_is_judged(run, tmp_path, trained) -> None:
    prompt = [trained.tokenizer.bos, *trained.tokenizer.encode("The miller counted the sacks, and")]
    file = tmp_path / "theirs.jsonl"
    target = f"local:{trained.path}?numerics=exact&threads=1"
    right = LocalTarget(trained).complete(Request(Prompt.tokens(prompt), 40))
    for ids, verdict in (([s.token.id for s in right.steps], "right"), (runners_up(trained, prompt, 40), "verifier")):
        file.write_text(json.dumps({"id": "a", "prompt_ids": prompt, "ids": ids}))
        out, junit = tmp_path / "out.json", tmp_path / "j.xml"
        code, found = run(str(file), "--target", target, "-o", str(out), "--junit", str(junit))
        assert (found["verdict"], found["tokens"], code) == (verdict, 40, int(verdict != "right"))
        assert ("<failure" in junit.read_text()) == (verdict != "right")
        steps = json.loads(out.read_text())["results"][0]["steps"]
        assert [bytes.fromhex(s["expected"]) for s in steps] == list(map(trained.tokenizer.token_bytes, ids))
