"""An engine's answers fed to a judge (check --teacher-forced): which are wrong, which are not, and what is reported."""

from __future__ import annotations

import json

import numpy as np
import pytest

from ds4ref.engine import Engine
from ds4ref.errors import TargetError
from ds4ref.nano import embedded_path
from ds4ref.targets import Completion, Prompt, Request, Step, Token
from ds4ref.targets.local import LocalTarget
from ds4ref.test_vectors import cli, forced
from ds4ref.test_vectors.forced import Answer, ask, force, of_tokens
from ds4ref.test_vectors.verdicts import CaseResult, StepResult, forced_case
from ds4ref.test_vectors.verifier import ODDS, Judgement, weigh
from tests.marking import sampled

from .endpoint import Endpoint
from .scripted import Scripted, step

FLOOR = 0.3

# ---------------------------------------------------------------------------------------------------------- the verdict


def case(name: str, leads: list[float], off: list[int]) -> CaseResult:
    """Return a case in which the best token leads by leads[t] at token t; the tokens ``off`` are not the best."""
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
    """Return a case of a correct engine whose noise has a heavy tail."""
    rng = np.random.default_rng(seed)
    leads = rng.exponential(2.0, tokens)
    off = rng.random(tokens) < 0.5 * np.exp(-leads / 3.0) / (1.0 + leads / scale)
    return case("a", leads.tolist(), np.flatnonzero(off).tolist())


@pytest.mark.parametrize("scale", sampled([0.02, 0.1, 0.5, 2.0], 4))
def test_noise_is_not_accused(scale) -> None:
    """Correct engines are not accused, even if their noise is far above the floor."""
    report = [judged(noisy(seed, scale, 300)) for seed in range(100)]
    assert all(made.verdict in ("right", "undecided") for made in report)
    assert any(made.wrong for made in report)


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
    """A random model generates tokens into which no tokenizer would split their text; where the model's tokens cannot
    be found out, nothing is judged."""
    prompt = Prompt.chat("1 2 3")
    done = local.complete(Request(prompt, 12))
    ids, raws = [s.token.id for s in done.steps], [s.token.raw for s in done.steps]
    by_tokens = force(local, of_tokens("a", prompt, raws))
    assert [s.token.id for s in by_tokens] == [s.top[0].id for s in by_tokens] == ids
    answer = Answer("a", prompt, b"".join(raws).decode())
    assert len(local.tokenize(answer.text)) > len(raws)
    assert [s.token.raw for s in force(local, answer)] == raws
    monkeypatch.setattr(forced, "RECUTS", 0)
    known = force(local, answer)
    assert 0 < len(known) < len(raws) and [s.token.raw for s in known] == raws[: len(known)]
    # a wrong token that is no other cut is judged
    wrong = force(local, Answer("a", prompt, b"".join(raws[:1]).decode() + "zz"))
    assert wrong[1].token.raw != wrong[1].top[0].raw


def test_the_end_of_an_answer_is_judged_too(local) -> None:
    steps = force(local, Answer("a", Prompt.chat("Hello"), "x", ended=True))
    assert steps[-1].token.id == local.tokenizer.eos and len(steps) > 1
    assert force(local, Answer("a", Prompt.chat("Hello"), "x"))[-1].token.id != local.tokenizer.eos


def test_what_cannot_be_judged(monkeypatch, local) -> None:
    engine = Scripted([])
    monkeypatch.setattr(engine, "complete", lambda request: Completion("x", finish="stop", reasoning="Hm."))
    with pytest.raises(TargetError, match="answered with reasoning"):
        ask(engine, "a", Prompt.chat("?"), 4, None)
    for text, finish, kept in (("Yes", "stop", ("Yes", True)), ("Yes", "length", ("Yes", False)),
                               ("upon \ufffd a", "stop", ("upon ", False))):  # fmt: skip
        done = Completion(text, finish=finish)
        monkeypatch.setattr(engine, "complete", lambda request, done=done: done)
        answer = ask(engine, "a", Prompt.chat("?"), 4, None)
        assert (answer.text, answer.ended) == kept, "what follows a lost character is unknown"
    raw = local.complete(Request(Prompt.chat("?"), 1)).steps[0].token.raw
    cut = of_tokens("a", Prompt.chat("?"), [raw, b"", b"B"])
    assert cut.tokens == (raw,) and len(force(local, cut)) == 1


@pytest.mark.parametrize(("more", "compared"), [(0, True), (1, True), (-1, True), (2, False), (-2, False)])
def test_another_prompt_than_the_judges_is_not_compared(trained, more, compared) -> None:
    """An engine with another chat template counts other prompt tokens; a difference of one, the BOS, is allowed."""
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
def test_a_server_is_asked_and_judged(run, tmp_path, trained, wrong, verdict) -> None:
    prompts, out, junit = tmp_path / "prompts.jsonl", tmp_path / "out.json", tmp_path / "j.xml"
    texts = ("The miller counted the sacks, and", "Rain fell on the", "Ada likes the")
    prompts.write_text("\n".join(json.dumps({"id": f"p{i}", "prompt": text}) for i, text in enumerate(texts)))
    with Endpoint(trained, wrong) as server:
        code, report = run(
            "--committed-by", server.url, "--target", f"local:{trained.path}?numerics=exact&threads=1", "--prompts",
            str(prompts), "-n", "32", "--dialect", "plain", "-o", str(out), "--junit", str(junit),
        )  # fmt: skip
    assert report["verdict"] == verdict, report
    assert code == (verdict != "right") and report["passed"] == (verdict == "right")
    assert report["floor"] == FLOOR and report["cases"] == len(json.loads(out.read_text())["results"]) == 3
    assert ("<failure" in junit.read_text()) == (verdict != "right")


def test_recorded_vectors_are_judged(run, tmp_path, nano_path) -> None:
    folder, target = str(tmp_path / "v"), f"local:{nano_path}?backend=cpu&numerics=exact"
    assert cli.main(["capture", folder, "--target", target, "-n", "3", "--repeat", "1"]) == 0
    code, report = run(folder, "--target", target)
    assert (code, report["verdict"], report["tokens"]) == (0, "right", 12)
    assert run(folder, "--target", "http://127.0.0.1:9/v1")[0] == 2
