"""The doctor and engines: this one, right and broken, a server that is right, and one that misbehaves in many ways."""

from __future__ import annotations

import json

import pytest

from ds4ref.engine import Engine
from ds4ref.errors import TargetError
from ds4ref.nano.diagnostic import diagnostic_path
from ds4ref.nano.prose import tell
from ds4ref.targets import Ability, Completion, open_target
from ds4ref.targets.local import LocalTarget
from ds4ref.test_vectors import cli
from ds4ref.test_vectors.doctor import numbers
from ds4ref.test_vectors.doctor.case import ExamContext
from ds4ref.test_vectors.doctor.examination import Examination, Stage
from ds4ref.test_vectors.doctor.run import examine
from ds4ref.test_vectors.finding import Finding, Outcome
from ds4ref.variants import LIBRARY
from tests.marking import sampled

from .endpoint import Endpoint
from .scripted import Scripted, step

pytestmark = pytest.mark.usefixtures("without_families", "both")


def outcomes(found: Examination) -> dict[str, Outcome]:
    return {stage.name: stage.outcome for stage in found.stages}


def check(found: Examination, stage: str, name: str) -> Finding:
    return next(c for s, c in found.checks() if s.name == stage and c.name == name)


# ------------------------------------------------------------------------------------------------ this engine


class Broken:
    """An engine whose sessions have a mistake of the library in them."""

    def __init__(self, engine: Engine, fault: str):
        self._engine, self._fault = engine, LIBRARY[fault]

    def __getattr__(self, name: str):
        return getattr(self._engine, name)

    def session(self, ctx: int):
        made = self._engine.session(ctx)
        made.hooks = self._fault.hooks()
        return made

    def logits(self, ids):
        return self.session(len(ids) + 1).extend(ids)


@pytest.mark.parametrize("mode", ["exact", "qat", "ds4"])
def test_this_engine_agrees_with_itself_in_every_mode(engine, mode) -> None:
    with open_target(f"local:{diagnostic_path()}", numerics=mode, ctx=600) as target:
        found = examine(
            ExamContext(target, engine, quick=True), ["tokenizer", "template", "determinism", "ways", "batch"]
        )
    seen = outcomes(found)
    assert seen.pop("batch") is Outcome.IMPOSSIBLE and set(seen.values()) == {Outcome.OK, Outcome.SKIPPED}, (
        found.verdict
    )


def test_a_mistake_of_the_library_is_named(engine) -> None:
    case, stage = ExamContext(LocalTarget(Broken(engine, "no_sink"), 600), engine), Stage("numbers", "Numbers", "?")
    found = numbers._diagnose_prompt(case, stage, "short", chat=False)
    assert found.outcome is Outcome.WRONG and found.figures["fault"] == "no_sink"
    assert any("--prompt short" in line for line in found.next) and found.where


def test_recall(engine, monkeypatch) -> None:
    """Right answers in a short story and none in the long one; right in both; right in none."""
    from ds4ref.test_vectors.doctor import depth

    for short, long, outcome in (
        (4, 16, Outcome.OK), (4, 1, Outcome.UNEXPLAINED), (4, 11, Outcome.UNSURE), (1, 16, Outcome.UNSURE),
    ):  # fmt: skip
        answers = [depth.Recall(right, of, [], Completion("")) for right, of in ((short, 4), (long, 16))]
        monkeypatch.setattr(depth, "recalled", lambda *args, answers=answers: answers.pop(0))
        stage = Stage("depth", "Depth", "?")
        case = ExamContext(Scripted([step(b"a")]), engine, kinds={"chat"})
        depth._facts(case, stage, 24)
        assert stage.outcome is outcome, (short, long)
    assert len(answers) == 1, "nothing is asked at length of a model that fails on a short story"
    story = tell(5, scenes=60, facts=12)
    late = [fact.name for fact in story.facts if fact.position * 2 >= len(story.text)]
    text = "\n".join(f"{f.name}={f.number + (f.name == late[-1])}" for f in story.facts if f.name != late[0])
    monkeypatch.undo()
    target = Scripted([step(b"a")])
    monkeypatch.setattr(target, "complete", lambda request: Completion(text if request.max_tokens == 7 else ""))
    found = depth.recalled(target, story, 7)
    assert (found.right, found.facts) == (10, 12), "one is wrong, one missing"
    assert sum(n for _, n in found.quarters) == 12 and sum(ok for ok, _ in found.quarters[:2]) == 12 - len(late)


# ---------------------------------------------------------------------------------------------------- a server


def doctor(capsys, *argv: str) -> tuple[int, dict, str]:
    code = cli.main(["doctor", *argv])
    out = capsys.readouterr()
    return code, json.loads(out.out.splitlines()[-1]), out.out + out.err


@pytest.mark.thorough
def test_a_right_server(engine, tmp_path, capsys) -> None:
    with Endpoint(engine, echo=True) as server:
        code, line, _ = doctor(capsys, server.url, "--quick", "-o", str(tmp_path))
    assert code == 0 and line["passed"] and not line["complete"], "long contexts were not looked at"
    assert set(line["stages"].values()) == {"ok", "skipped"}, line
    whole = json.loads((tmp_path / "doctor.json").read_text())
    checks = {f"{s['name']}/{c['name']}": c for s in whole["stages"] for c in s["checks"]}
    assert checks["numbers/mixed"]["figures"]["verdict"] == "exact"
    assert "by the echoed tokens" in checks["tokenizer/digits"]["says"]
    assert checks["ways/prompt against continuation"]["figures"]["positions"] >= 4


@pytest.mark.parametrize(
    "wrong, only, stage, says",
    [
        ("counts", "tokenizer,template", "template", "user: 16 prompt tokens, not 15"),
        ("nan", "preflight", "preflight", "not a number, or infinite"),
        ("over", "preflight", "preflight", "add up to more than 1"),
        ("unsorted", "preflight", "preflight", "not sorted"),
        ("greedy", "preflight", "preflight", "not the best, at temperature 0"),
        ("no_merges", "tokenizer", "tokenizer", "prompt tokens, not"),
        ("newline_added", "tokenizer,template", "template", "user: 16 prompt tokens, not 15"),
    ],
)
def test_a_server_that_misbehaves(engine, wrong, only, stage, says, capsys) -> None:
    with Endpoint(engine, wrong) as server:
        code, line, text = doctor(capsys, server.url, "--quick", "--only", only)
    assert code == 1 and line["stages"][stage] == "wrong", line
    assert says in text and "Something is wrong" in line["verdict"]


@pytest.mark.parametrize(
    "wrong, stage, name, says",
    sampled(
        [
            ("fork", "determinism", "run to run", "forks at token 0"),
            ("crowd", "batch", "request 1", "float noise is about"),
        ],
        2,
    ),
)
def test_answers_that_change(engine, wrong, stage, name, says) -> None:
    with Endpoint(engine, wrong) as server, open_target(server.url) as target:
        found = examine(ExamContext(target, engine, quick=True, mode="exact"), only=[stage])
        assert check(found, stage, name).outcome is Outcome.WRONG and says in check(found, stage, name).says


def test_what_depends_on_its_batch_is_no_mistake(engine, capsys) -> None:
    """llama.cpp with two slots: 0.002 to 0.006 nats between alone and beside three others; alone twice: none."""
    with Endpoint(engine, "batch") as server:
        code, line, text = doctor(capsys, server.url, "--quick", "--only", "determinism,batch")
    assert (line["stages"]["batch"], line["stages"]["determinism"]) == ("depends", "ok"), text
    assert "depends on its batch" in line["verdict"] and "differs by at most 0.00" in text and "llama.cpp" in text


@pytest.mark.parametrize("wrong, outcome", [("cache", Outcome.DEPENDS), ("drift", Outcome.WRONG)])
def test_what_depends_on_a_cache_of_prompts_is_no_mistake(engine, wrong, outcome) -> None:
    """llama.cpp: the first answer prefills the whole prompt, later ones its last token; these are identical."""
    with Endpoint(engine, wrong) as server, open_target(server.url) as target:
        found = examine(ExamContext(target, engine, quick=True, mode="exact"), only=["determinism"])
    seen = check(found, "determinism", "run to run")
    assert seen.outcome is outcome, seen
    assert (found.passed, "batch or cache" in found.verdict) == (outcome is Outcome.DEPENDS,) * 2


@pytest.mark.thorough
def test_a_server_that_thinks_by_default_is_told_not_to(engine) -> None:
    """Chats and plain prompts: ds4's server samples while it thinks, whatever the temperature."""
    with Endpoint(engine, "thinks") as server, open_target(server.url) as target:
        found = examine(ExamContext(target, engine, quick=True, mode="exact"), only=["determinism", "batch"])
    assert check(found, "determinism", "run to run").says == "3 answers are identical with all log probabilities"
    assert check(found, "batch", "request 1").outcome is Outcome.OK


@pytest.mark.thorough
def test_a_server_that_cannot_be_kept_from_thinking_is_not_accused(engine) -> None:
    with Endpoint(engine, "always thinks") as server, open_target(server.url) as target:
        target.abilities -= {Ability.TEXT}
        found = examine(ExamContext(target, engine, quick=True, mode="exact"), only=["determinism", "batch"])
    for stage, name in (("determinism", "run to run"), ("batch", "request 1")):
        assert check(found, stage, name).outcome is Outcome.UNSURE
        assert "it thinks although it was asked not to" in check(found, stage, name).says


def test_where_the_rounding_is_not_known_less_is_claimed(engine) -> None:
    """Differences that the widest mode makes, too, prove nothing."""
    with Endpoint(engine, "fork") as server, open_target(server.url) as target:
        found = examine(ExamContext(target, engine, quick=True), only=["determinism"])
    assert check(found, "determinism", "run to run").outcome is Outcome.UNSURE


def test_the_first_difference_of_tokens_is_shown(engine, tmp_path, capsys) -> None:
    with Endpoint(engine, "no_merges", echo=True) as server:
        code, _, _ = doctor(capsys, server.url, "--only", "tokenizer", "--quick", "-o", str(tmp_path))
    stage = json.loads((tmp_path / "doctor.json").read_text())["stages"][1]
    prose = next(c for c in stage["checks"] if c["name"] == "prose")
    (theirs,), (ours,) = ([t["text"] for t in r["tokens"] if t["marked"]] for r in prose["where"])
    assert code == 1 and len(theirs) == 1 < len(ours) and ours.startswith(theirs)
    assert f"is {theirs}, not {ours}" in prose["says"]


@pytest.mark.thorough
def test_what_decoding_does_otherwise(engine, capsys) -> None:
    """The same tokens as a prompt and one by one, over HTTP with ids; the mode is known from the numbers."""
    with Endpoint(engine, "decode", ids=True) as server, open_target(server.url, ids=True) as target:
        case = ExamContext(target, engine, mode="exact")
        found = examine(case, only=["ways"])
    ways = check(found, "ways", "prompt against continuation")
    assert ways.outcome is Outcome.WRONG and "decode" in ways.next[0]
    assert [label for label, _ in ways.where[1:]] == ["generating", "as a prompt"]
    assert int(ways.where[0][0].removeprefix("at token ")) >= 8, "before the eighth token it does as prefill does"


@pytest.mark.thorough
def test_an_echo_that_is_early(engine) -> None:
    """It is told once, and read as it is meant: the numbers of this engine are right, and so is its decoding."""
    with Endpoint(engine, "early", echo=True) as server, open_target(server.url) as target:
        case = ExamContext(target, engine, quick=True)
        found = examine(case, only=["tokenizer", "numbers", "ways"])
    echo = check(found, "preflight", "echo")
    assert echo.outcome is Outcome.WRONG and "distribution after it" in echo.says and case.echo_early
    assert [c.name for s, c in found.checks(Outcome.WRONG)] == ["echo"]
    numbers = check(found, "numbers", "mixed")
    assert (numbers.figures["verdict"], numbers.figures["positions"]) == ("exact", 119)
    assert outcomes(found)["tokenizer"] is Outcome.OK


@pytest.mark.thorough
def test_alternatives_that_share_a_text_are_not_called_wrong(engine, capsys) -> None:
    """Of bytes that are no text llama-cpp-python makes '': one entry for many tokens, with the value of the last."""
    with Endpoint(engine, "texts") as server:
        code, line, text = doctor(capsys, server.url, "--quick", "--only", "determinism,ways")
    assert line["stages"]["preflight"] == "unsure" and "tokens that share a text" in text
    assert code == 0 and set(line["stages"].values()) <= {"unsure", "ok", "skipped"}
    assert "not sorted" not in text


@pytest.mark.thorough
def test_a_server_that_shows_little_is_not_accused(engine, capsys) -> None:
    with Endpoint(engine, "cut") as server:
        code, line, text = doctor(capsys, server.url, "--quick", "--only", "determinism")
    assert code == 0 and line["stages"]["preflight"] == "unsure" and "at least 5" in text
    with Endpoint(engine, "no_logprobs") as server:
        code, line, text = doctor(capsys, server.url, "--quick", "--only", "numbers,determinism,ways")
    assert code == 1 and line["verdict"].startswith("No verdict") and line["stages"]["determinism"] == "ok"
    assert line["stages"]["numbers"] == line["stages"]["ways"] == "impossible" and "--logits FILE" in text


def test_another_model_is_not_taken_for_a_wrong_one(engine, capsys) -> None:
    with Endpoint(engine, "foreign") as server:
        code, line, text = doctor(capsys, server.url, "--quick", "--only", "tokenizer,template,numbers")
    assert code == 1 and not any(value == "wrong" for value in line["stages"].values())
    assert line["stages"]["numbers"] == "impossible" and "-m MODEL.gguf" in text
    assert line["verdict"] == "No verdict: not compared: the server serves another model."


@pytest.mark.parametrize("echo", [False, True])
def test_the_numbers_of_another_model_are_not_diagnosed(engine, echo, capsys) -> None:
    with Endpoint(engine, "foreign", echo=echo) as server:
        code = cli.main(["diagnose", "--prompt", "short", "--target", server.url])
    assert code == 1 and "not compared: the server serves another model" in capsys.readouterr().err


def test_a_missing_endpoint_leaves_the_rest(engine, capsys) -> None:
    with Endpoint(engine, "chatless") as server:
        code, line, text = doctor(capsys, server.url, "--quick", "--only", "template,determinism")
    assert code == 0 and line["stages"]["template"] == "impossible" and line["stages"]["determinism"] == "ok"
    assert "no such endpoint" in text


def test_control_strings_that_become_tokens_are_told(engine, capsys) -> None:
    for echo in (False, True):
        with Endpoint(engine, "parses", echo=echo) as server:
            code, line, text = doctor(capsys, server.url, "--quick", "--only", "tokenizer")
        assert code == 0 and line["stages"]["tokenizer"] == "unsure" and "become control tokens" in text


def test_nobody_there(capsys) -> None:
    code, line, text = doctor(capsys, "http://127.0.0.1:9/v1", "--attempts", "1")
    assert code == 1 and line["stages"]["preflight"] == "failed" and "no request was answered" in text
    assert set(line["stages"].values()) == {"failed", "impossible"} and "curl http://127.0.0.1:9/v1/models" in text


def test_the_key_is_in_no_output(engine, tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setenv("DS4_API_KEY", "sk-verysecret123")
    with Endpoint(engine, "key") as server:
        code, _, text = doctor(capsys, server.url, "--quick", "--attempts", "1", "-o", str(tmp_path))
    assert code == 1 and "***" in text
    for found in (text, *(path.read_text() for path in tmp_path.iterdir())):
        assert "verysecret" not in found


# ------------------------------------------------------------------------------------------------------- others


def test_an_engine_that_only_dumps(engine) -> None:
    """As a ds4 binary: chats, alternatives, and tokens with control strings recognised."""
    ours = engine.tokenizer

    class Dumps(Scripted):
        kind = "command"

        def __init__(self, wrong: bool):
            super().__init__([step(b"a", (b"b", -3.0))])
            self.abilities |= {Ability.TOKENIZE}
            self.wrong = wrong

        def tokenize(self, text, control=False):
            if not control:
                raise TargetError("plain tokenization is not available")
            ids = ours.encode_rendered(text)
            return [*ids[:3], (ids[3] + 1) % 512, *ids[4:]] if self.wrong else ids

    for wrong, outcome in ((False, Outcome.OK), (True, Outcome.WRONG)):
        found = examine(ExamContext(Dumps(wrong), engine, quick=True), only=["tokenizer", "batch"])
        assert outcomes(found)["tokenizer"] is outcome
        assert outcomes(found)["batch"] is Outcome.IMPOSSIBLE
    assert check(found, "tokenizer", "prose").says.startswith("token 3 is ")
