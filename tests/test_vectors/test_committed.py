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
from ds4ref.test_vectors import cli, committed
from ds4ref.test_vectors.committed import Answer, ask, force, of_tokens, read
from ds4ref.test_vectors.verdicts import CaseResult, StepResult, forced_case
from ds4ref.test_vectors.verifier import FEWEST, ODDS, Judgement, fit, place, weigh
from ds4ref.variants.verifiers import VERIFIERS, adversary, oracle, speculate
from tests.marking import sampled

from .endpoint import Endpoint
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


def test_all_best_is_right_and_says_what_it_could_not_see() -> None:
    made = judged(case("a", [2.0, 0.3, 0.31, 5.0], []), case("b", [2.0], []))
    assert (made.verdict, made.tokens, made.first, made.best, made.close, made.worst) == ("right", 5, 2, 5, 1, None)
    assert "wrong at more than 1 of the tokens" in made.says and "whether speculative decoding" in made.says
    assert "wrong at more than 0.03 of" in judged(case("a", [2.0] * 101, [])).says


def test_near_ties_are_no_mistake() -> None:
    made = judged(case("a", [2.0, 0.3, 5.0], [1]))
    assert (made.verdict, made.flips, made.wrong, made.worst) == ("right", 1, 0, ("a", 1, 0.3))
    assert judged(case("a", [2.0, 0.301, 5.0], [1])).wrong == 1


def test_nothing_compared_is_nothing() -> None:
    silent = CaseResult("a", "incomparable", [StepResult(0, "incomparable", b"a", None)])
    assert judged(silent).verdict == judged().verdict == "nothing"


def test_a_wide_gap_among_narrow_ones_is_no_noise() -> None:
    """Noise of 9 nats would have reversed many of the narrow ones first; noise of 2 may be a rare jump."""
    made = judged(case("a", [1.0] * 50 + [9.0, 9.0], [50, 51]))
    assert made.verdict == "verifier" and made.worst == ("a", 50, 9.0) and made.lapses.odds > ODDS
    assert 0.01 < made.lapses.share < 0.1 and made.lapses.scale < 0.1
    made = judged(case("a", [1.0] * 50 + [2.0], [50]))
    assert made.verdict == "undecided" and made.lapses.odds < ODDS and "noise of" in made.says
    assert judged(case("a", [1.0] * 50 + [2.0], [50]), known=True).verdict == "verifier"


def noisy(seed: int, scale: float, tokens: int) -> CaseResult:
    """A right engine whose noise has a heavy tail."""
    rng = np.random.default_rng(seed)
    leads = rng.exponential(2.0, tokens)
    off = rng.random(tokens) < 0.5 * np.exp(-leads / 3.0) / (1.0 + leads / scale)
    return case("a", leads.tolist(), np.flatnonzero(off).tolist())


@pytest.mark.parametrize("scale", sampled([0.02, 0.1, 0.5, 2.0], 4))
def test_noise_is_not_accused(scale) -> None:
    """200 right engines whose noise is far above the floor."""
    found = [judged(noisy(seed, scale, 300)) for seed in range(200)]
    assert all(made.verdict in ("right", "undecided") for made in found)
    assert any(made.wrong for made in found)


@pytest.mark.thorough
def test_wrong_tokens_in_noise_are_accused() -> None:
    """One of 10 that is wrong whatever the lead, in engines as noisy."""
    verdicts = []
    for seed in range(50):
        made = noisy(seed, 0.1, 600)
        off = [s.index for s in made.steps if s.verdict != "match"]
        lapses = np.flatnonzero(np.random.default_rng(1000 + seed).random(600) < 0.1)
        leads = [s.lead or 0.0 for s in made.steps]
        verdicts.append(judged(case("a", leads, sorted({*off, *(int(i) for i in lapses if i)}))).verdict)
    assert verdicts.count("verifier") >= 40 and "right" not in verdicts, verdicts


def test_the_fit_finds_what_was_drawn() -> None:
    made = noisy(0, 0.2, 20000)
    leads = [s.lead for s in made.steps]
    off = np.array([s.verdict != "match" for s in made.steps]) | (np.random.default_rng(1).random(20000) < 0.05)
    found = fit(leads, off.tolist())
    assert found.scale == pytest.approx(0.2, rel=0.2) and found.share == pytest.approx(0.05, rel=0.2)
    assert fit([1.0, None], [False, True]).odds == 0.0  # a gap of unknown width says nothing


def test_wrong_before_any_draft_is_no_verifier() -> None:
    made = judged(case("a", [9.0] * 40, [0, 3, 9]), case("b", [9.0, 0.5] * 60, [6, 8]))
    assert (made.verdict, made.first, made.wrong_first) == ("elsewhere", 2, 1) and made.place is None
    assert "1 of 2 answers begin with one" in made.says
    # where they keep to places of the pass, it is one all the same
    wrong = [0, *range(2, 40, 4), *range(3, 40, 4)]
    made = judged(case("a", [9.0] * 40, wrong), passes={"a": [4] * 10})
    assert made.verdict == "verifier" and made.wrong_first == 1 and "right in all" not in made.says
    assert "By position in the pass: 1 of 10, 0 of 10, 10 of 10, 10 of 10" in made.says
    assert judged(case("a", [9.0] * 40, wrong[1:])).place == place([case("a", [9.0] * 40, wrong[1:])], {})


def test_where_in_the_pass() -> None:
    wrong = list(range(2, 60, 3))
    found = place([case("a", [5.0] * 60, wrong)], {})
    assert found is not None and (found.rows, found.told) == (3, False)
    assert found.tokens == [20, 20, 20] and found.wrong == [0, 0, 20] and found.shows
    told = place([case("a", [5.0] * 7, [2, 6])], {"a": [3, 1, 3]})
    assert told is not None and told.told and (told.tokens, told.wrong) == ([3, 2, 2], [0, 0, 2])
    assert told.p == 1.0 and not told.shows  # too few to say more than that
    assert place([case("a", [5.0] * 60, [3, 11, 18, 29, 31, 44])], {}) is None
    few = [case("a", [5.0] * 60, wrong[: FEWEST - 1])]
    assert place(few, {}) is None
    # passes that are not those of the answer are not used
    assert place([case("a", [5.0] * 7, [2, 6])], {"a": [3, 1, 2]}) is None


@pytest.mark.thorough
def test_chance_finds_no_period() -> None:
    found = 0
    for seed in range(300):
        off = np.flatnonzero(np.random.default_rng(seed).random(200) < 0.1)
        found += place([case("a", [5.0] * 200, off.tolist())], {}) is not None
    assert found <= 3  # one of 1000 is allowed, and chi-square is no exact test


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


def test_ids_and_their_bytes_are_forced_alike(local) -> None:
    prompt = Prompt.chat("Hello")
    done = local.complete(Request(prompt, 12))
    ids, raws = [s.token.id for s in done.steps], [s.token.raw for s in done.steps]
    by_ids = force(local, Answer("a", Prompt.tokens(local.encode(prompt)), ids=tuple(ids)))
    assert [s.token.id for s in by_ids] == [s.top[0].id for s in by_ids] == ids
    assert [s.token.raw for s in force(local, of_tokens("a", prompt, raws))] == raws
    with pytest.raises(DataError, match="outside the vocabulary of"):
        force(local, Answer("a", prompt, ids=(local.engine.shape.vocab,)))


def test_a_text_is_cut_as_the_model_cut_it(local, monkeypatch) -> None:
    """A random model writes what no tokenizer cuts that way; where that is not found out, nothing is judged."""
    prompt = Prompt.chat("1 2 3")
    raws = [s.token.raw for s in local.complete(Request(prompt, 12)).steps]
    answer = Answer("a", prompt, b"".join(raws).decode())
    assert len(local.tokenize(answer.text)) > len(raws)
    assert [s.token.raw for s in force(local, answer)] == raws
    monkeypatch.setattr(committed, "RECUTS", 0)
    known = force(local, answer)
    assert 0 < len(known) < len(raws) and [s.token.raw for s in known] == raws[: len(known)]
    # a wrong token that is no other cut is judged
    wrong = force(local, Answer("a", prompt, b"".join(raws[:1]).decode() + "zz"))
    assert wrong[1].token.raw != wrong[1].top[0].raw


def test_the_end_of_an_answer_is_judged_too(local) -> None:
    steps = force(local, Answer("a", Prompt.chat("Hello"), "x", ended=True))
    assert steps[-1].token.id == local.tokenizer.eos and len(steps) > 1
    assert force(local, Answer("a", Prompt.chat("Hello"), "x"))[-1].token.id != local.tokenizer.eos


def test_reading(tmp_path) -> None:
    file = tmp_path / "a.jsonl"
    lines = [
        {"id": "one", "prompt": "Hm?", "system": "Be brief.", "answer": "Yes", "finish": "stop"},
        {"text": "Once", "answer": "upon \ufffd a", "finish": "stop"},
        {"id": "ids", "prompt_ids": [0, 5], "ids": [6, 7, 8], "passes": [2, 1], "finish": "stop"},
    ]
    file.write_text("\n\n".join(map(json.dumps, lines)))
    one, two, three = read(str(file))
    assert one == Answer("one", Prompt.chat("Hm?", "Be brief."), "Yes", ended=True)
    assert two == Answer("line 3", Prompt.plain("Once"), "upon ")  # what follows the lost character is unknown
    assert three == Answer("ids", Prompt.tokens([0, 5]), ids=(6, 7, 8), passes=(2, 1))


@pytest.mark.parametrize("line, why", [
    ('{"prompt": "a"}', "exactly one of answer, ids"),
    ('{"prompt": "a", "answer": "b", "ids": [1]}', "exactly one of answer, ids"),
    ('{"answer": "b"}', "exactly one of prompt, text, prompt_ids"),
    ('{"prompt": "a", "text": "b", "answer": "b"}', "exactly one of prompt, text, prompt_ids"),
    ('{"prompt": 1, "answer": "b"}', "must be text"),
    ('{"prompt": "a", "ids": [-1]}', "ids must be a list of integers >= 0"),
    ('{"prompt": "a", "ids": [true]}', "ids must be a list of integers"),
    ('{"prompt": "a", "ids": [1, 2], "passes": [1]}', "passes sum to 1 tokens, but there are 2 ids"),
    ('{"prompt": "a", "ids": [1], "passes": [0, 1]}', "passes must be a list of integers >= 1"),
    ('{"prompt": "a", "answer": "b", "passes": [1]}', "passes also needs ids"),
    ('[1]', "not a JSON object"), ('{"prompt"', "not JSON"), ("[" * 100_000, "not JSON"),
])  # fmt: skip
def test_lines_that_say_nothing_are_named(tmp_path, line, why) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('{"prompt": "a", "answer": "b"}\n' + line)
    with pytest.raises(DataError, match=f"a.jsonl: line 2: .*{why}") as caught:
        read(str(file))
    assert "\n" not in str(caught.value)


def test_files_without_answers(tmp_path) -> None:
    (tmp_path / "a.jsonl").write_text("\n")
    with pytest.raises(DataError, match="no answer"):
        read(str(tmp_path / "a.jsonl"))
    (tmp_path / "a.jsonl").write_text('{"id": "x", "prompt": "a", "answer": "b"}\n' * 2)
    with pytest.raises(DataError, match="id 'x' is listed twice"):
        read(str(tmp_path / "a.jsonl"))


def test_what_was_reasoned_or_called_cannot_be_judged_by_text(monkeypatch) -> None:
    engine = Scripted([])
    monkeypatch.setattr(engine, "complete", lambda request: Completion("x", finish="stop", reasoning="Hm."))
    with pytest.raises(TargetError, match="answered with reasoning"):
        ask(engine, "a", Prompt.chat("?"), 4, None, False)


def test_a_judge_needs_to_know_the_tokens() -> None:
    judge = Scripted([], forced=[step(b"A")])
    assert len(force(judge, of_tokens("a", Prompt.chat("?"), [b"A", b"", b"B"]))) == 1
    for answer in (Answer("a", Prompt.chat("?"), "text"), Answer("a", Prompt.plain("?"), ids=(1,))):
        with pytest.raises(UsageError, match="use a local target"):
            force(judge, answer)
    with pytest.raises(UsageError, match="check --teacher-forced needs scoring"):
        force(Scripted([]), of_tokens("a", Prompt.chat("?"), [b"A"]))


# ------------------------------------------------------------------------------------------ simulated engines, commands


@pytest.mark.thorough
def test_the_wrong_verifier_is_accused_beyond_depth_2(trained) -> None:
    judge, rng = LocalTarget(trained, 512), np.random.default_rng(0)
    prompt = [judge.tokenizer.bos, *judge.tokenize("The miller counted the sacks, and")]
    for depth in (2, 3, 4, 8):
        for name, verifier in VERIFIERS.items():
            for drafter in (adversary, oracle(0.5, rng)):
                done = speculate(trained.session(128), prompt, 48, depth, drafter, verifier)
                answer = Answer("a", Prompt.tokens(prompt), ids=tuple(done.ids), passes=tuple(done.passes))
                result = forced_case("a", force(judge, answer), 1e-3)
                made = weigh([result], 1e-3, {"a": answer.passes})
                wrong = depth > 2 and name != "each row"
                assert made.verdict == ("verifier" if wrong else "right"), (depth, name, made.says)
                if wrong:
                    assert made.place is not None and made.place.wrong[:2] == [0, 0] and sum(made.place.wrong) > 4


@pytest.fixture
def run(capsys, both):
    def command(*argv: str) -> tuple[int, dict]:
        code = cli.main(["check", "--teacher-forced", "--no-store", *argv])
        out = capsys.readouterr().out.strip().splitlines()
        return code, json.loads(out[-1]) if out else {}

    return command


@pytest.fixture
def prompts(tmp_path) -> str:
    file = tmp_path / "prompts.jsonl"
    texts = ("The miller counted the sacks, and", "Rain fell on the", "Ada likes the")
    file.write_text("\n".join(json.dumps({"id": f"p{i}", "prompt": text}) for i, text in enumerate(texts)))
    return str(file)


@pytest.mark.parametrize(("more", "compared"), [(0, True), (1, True), (-1, True), (2, False), (-2, False)])
def test_another_prompt_than_the_judge_s_is_not_compared(trained, more, compared) -> None:
    """An engine with another chat template counts other prompt tokens; a BOS may be counted or not."""
    judge = LocalTarget(trained)
    prompt = Prompt.chat("417+248=")
    answer = committed.Answer("a", prompt, "665", before=len(judge.encode(prompt)) + more)
    if compared:
        assert committed.force(judge, answer)
    else:
        with pytest.raises(TargetError, match="a: cannot compare: the engine counts .* another chat template"):
            committed.force(judge, answer)


@pytest.mark.parametrize("wrong, verdict", [("verifier", "verifier"), ("drafts", "right"), ("", "right"),
                                            ("greedy", "elsewhere")])  # fmt: skip
@pytest.mark.parametrize("judge, how", sampled([("ours", "chat"), ("ours", "plain"), ("itself", "plain")], 3))
def test_a_server_is_asked_and_judged(run, prompts, trained, wrong, verdict, judge, how) -> None:
    """By our engine, and by the log probabilities of its own echo."""
    with Endpoint(trained, wrong, echo=True) as server:
        target = f"local:{trained.path}?numerics=exact&threads=1" if judge == "ours" else server.url
        code, found = run(
            "--committed-by", server.url, "--target", target, "--prompts", prompts, "-n", "32", "--dialect", "plain",
            *(["--plain-text"] if how == "plain" else []),
        )  # fmt: skip
    assert found["verdict"] == verdict, found
    assert code == (verdict != "right") and found["passed"] == (verdict == "right")
    assert found["floor"] == FLOOR and found["cases"] == 3


def test_a_file_of_ids_is_judged(run, tmp_path, trained) -> None:
    prompt = [trained.tokenizer.bos, *trained.tokenizer.encode("The miller counted the sacks, and")]
    file = tmp_path / "theirs.jsonl"
    target = f"local:{trained.path}?numerics=exact&threads=1"
    for name, verdict in (("each row", "right"), ("runners-up of row 0", "verifier")):
        done = speculate(trained.session(128), prompt, 40, 4, adversary, VERIFIERS[name])
        file.write_text(json.dumps({"id": "a", "prompt_ids": prompt, "ids": done.ids, "passes": done.passes}))
        out, junit = tmp_path / "out.json", tmp_path / "j.xml"
        code, found = run(str(file), "--target", target, "-o", str(out), "--junit", str(junit))
        assert (found["verdict"], found["tokens"], code) == (verdict, 40, int(verdict != "right"))
        assert ("<failure" in junit.read_text()) == (verdict != "right")
        steps = json.loads(out.read_text())["results"][0]["steps"]
        assert [bytes.fromhex(s["expected"]) for s in steps] == list(map(trained.tokenizer.token_bytes, done.ids))
        if verdict == "verifier":
            assert found["place"]["told"] and found["place"]["wrong"] == [0, 0, 10, 10]


@pytest.mark.parametrize("argv, why", [
    (["--profile", "ds4", "x"], "supports only --profile margin"),
    (["x.jsonl", "--committed-by", "local"], "x.jsonl and --committed-by: choose one"),
    (["x.jsonl", "--plain-text"], "need --committed-by"),
    ([], "a file of an engine's answers, or --committed-by, is needed"),
])  # fmt: skip
def test_wrong_usage(capsys, argv, why) -> None:
    assert cli.main(["check", "--teacher-forced", *argv]) == 2 and why in capsys.readouterr().err


def test_its_flags_belong_to_it(capsys) -> None:
    assert cli.main(["check", "x", "--committed-by", "local"]) == 2
    assert "need --teacher-forced" in capsys.readouterr().err
