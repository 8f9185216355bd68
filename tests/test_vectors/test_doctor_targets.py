"""The doctor on engines: ours, correct and with bugs, a correct server, and servers with many kinds of bugs."""

from __future__ import annotations

import json

import pytest

from ds4ref.engine import Engine
from ds4ref.errors import TargetError
from ds4ref.nano.diagnostic import diagnostic_path
from ds4ref.targets import Ability, open_target
from ds4ref.targets.local import LocalTarget
from ds4ref.test_vectors import cli
from ds4ref.test_vectors.doctor import numbers
from ds4ref.test_vectors.doctor.case import ExamContext
from ds4ref.test_vectors.doctor.examination import Examination, Stage
from ds4ref.test_vectors.doctor.run import examine
from ds4ref.test_vectors.finding import Finding, Outcome
from ds4ref.variants import LIBRARY

from .endpoint import Endpoint
from .scripted import Scripted, step

pytestmark = pytest.mark.usefixtures("without_families", "both")


def outcomes(result: Examination) -> dict[str, Outcome]:
    return {stage.name: stage.outcome for stage in result.stages}


def check(result: Examination, stage: str, name: str) -> Finding:
    return next(c for s, c in result.checks() if s.name == stage and c.name == name)


# ------------------------------------------------------------------------------------------------ this engine


class Broken:
    """Our engine with a known bug injected into its sessions."""

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
        result = examine(
            ExamContext(target, engine, quick=True), ["tokenizer", "template", "determinism", "ways", "load"]
        )
    seen = outcomes(result)
    assert seen.pop("load") is Outcome.IMPOSSIBLE and set(seen.values()) == {Outcome.OK, Outcome.SKIPPED}, (
        result.verdict
    )


def test_a_mistake_of_the_library_is_named(engine) -> None:
    case, stage = ExamContext(LocalTarget(Broken(engine, "no_sink"), 600), engine), Stage("numbers", "Numbers", "?")
    result = numbers._diagnose_prompt(case, stage, "short", chat=False)
    assert result.outcome is Outcome.WRONG and result.figures["fault"] == "no_sink"
    assert any("--prompt short" in line for line in result.next) and result.where


# ---------------------------------------------------------------------------------------------------- a server


def doctor(capsys, *argv: str) -> tuple[int, dict, str]:
    code = cli.main(["doctor", *argv])
    out = capsys.readouterr()
    return code, json.loads(out.out.splitlines()[-1]), out.out + out.err


@pytest.mark.thorough
def test_a_right_server(engine, tmp_path, capsys) -> None:
    with Endpoint(engine, echo=True) as server:
        stages = "identify,tokenizer,template,numbers,determinism,ways,load"  # its API lacks stop strings and schemas
        code, line, _ = doctor(capsys, server.url, "--quick", "--only", stages, "-o", str(tmp_path))
    assert code == 0 and line["passed"] and not line["complete"], "no longer prompts than --quick allows"
    assert set(line["stages"].values()) == {"ok", "skipped"}, line
    whole = json.loads((tmp_path / "doctor.json").read_text())
    checks = {f"{s['name']}/{c['name']}": c for s in whole["stages"] for c in s["checks"]}
    assert checks["numbers/mixed"]["figures"]["verdict"] == "exact"
    assert "by the echoed tokens" in checks["tokenizer/digits"]["says"]
    assert checks["ways/prompt against continuation"]["figures"]["positions"] >= 4


W, U, D, OK, NO = Outcome.WRONG, Outcome.UNSURE, Outcome.DEPENDS, Outcome.OK, Outcome.IMPOSSIBLE
IDENTICAL = "answers are identical with all log probabilities"
THINKS = "it thinks although it was asked not to"
SLOW = pytest.mark.thorough
SERVERS = [
    # what is wrong, options, stages asked for, check: (outcome, part of what it says)
    ("counts", {}, "tokenizer,template",
     {"template/counts": (W, "user: 16 prompt tokens, not 15"), "tokenizer/control strings": (OK, "stay text")}),
    ("newline_added", {}, "tokenizer,template", {"template/counts": (W, "user: 16 prompt tokens, not 15")}),
    ("no_merges", {}, "tokenizer", {"tokenizer/counts": (W, "of 4 texts differ")}),
    ("parses", {"echo": True}, "tokenizer", {"tokenizer/control strings": (U, "become control tokens")}),
    ("parses", {}, "tokenizer", {"tokenizer/control strings": (U, "become control tokens")}),
    ("nan", {}, "preflight", {"preflight/log probabilities": (W, "not a number, or infinite")}),
    ("over", {}, "preflight", {"preflight/log probabilities": (W, "add up to more than 1")}),
    ("unsorted", {}, "preflight", {"preflight/log probabilities": (W, "not sorted")}),
    ("greedy", {}, "preflight", {"preflight/log probabilities": (W, "not the best, at temperature 0")}),
    ("fork", {"mode": "exact"}, "determinism", {"determinism/run to run": (W, "forks at token 0")}),
    # differences that the widest mode makes, too, prove nothing where the rounding is not known
    ("fork", {}, "determinism", {"determinism/run to run": (U, "forks at token 0")}),
    pytest.param("crowd", {}, "load", {"load/8 at once": (W, "answers altered under load")}, marks=SLOW),
    # llama.cpp with two slots: 0.002 to 0.006 nats between alone and beside three others; alone twice: none
    pytest.param("batch", {"mode": "exact"}, "determinism,load",
                 {"load/8 at once": (D, "differs from alone by at most 0.00"),
                  "determinism/run to run": (OK, IDENTICAL)}, marks=SLOW),
    # llama.cpp: the first answer prefills the whole prompt, later ones its last token; these are identical
    ("cache", {"mode": "exact"}, "determinism", {"determinism/run to run": (D, "the first differs from them")}),
    ("drift", {"mode": "exact"}, "determinism", {"determinism/run to run": (W, "float noise is about")}),
    # ds4's server samples while it thinks, whatever the temperature
    pytest.param("thinks", {"mode": "exact"}, "determinism", {"determinism/run to run": (OK, IDENTICAL)}, marks=SLOW),
    pytest.param("always thinks", {"mode": "exact", "without": {Ability.TEXT}}, "determinism,load",
                 {"determinism/run to run": (U, THINKS), "load/alone": (U, "does not keep to temperature 0")},
                 marks=SLOW),
    # the same tokens as a prompt and one by one, over HTTP with ids
    pytest.param("decode", {"mode": "exact", "ids": True, "quick": False}, "ways",
                 {"ways/prompt against continuation": (W, "float noise is about")}, marks=SLOW),
    # told once, and read as it is meant: the numbers and the tokens of this engine are right
    pytest.param("early", {"echo": True}, "tokenizer,numbers",
                 {"preflight/echo": (U, "off by one token"), "numbers/mixed": (OK, "exact"),
                  "tokenizer/prose": (OK, "identical")}, marks=SLOW),
    # of bytes that are no text llama-cpp-python makes '': one entry for many tokens, with the value of the last
    pytest.param("texts", {"mode": "exact"}, "determinism",
                 {"preflight/alternatives": (U, "tokens that share a text"),
                  "preflight/log probabilities": (OK, "finite, sorted")}, marks=SLOW),
    pytest.param("cut", {}, "preflight", {"preflight/alternatives": (U, "at least 5")}, marks=SLOW),
    pytest.param("no_logprobs", {}, "numbers,determinism,ways",
                 {"numbers/diagnosis": (NO, "no log probabilities"), "determinism/run to run": (OK, "by their text"),
                  "ways/prompt against continuation": (NO, "no log probabilities")}, marks=SLOW),
    ("foreign", {}, "tokenizer,template,numbers",
     {"numbers/diagnosis": (NO, "serves another model"), "preflight/vocabulary": (U, "of the tokens are not in")}),
    ("chatless", {}, "template,determinism",
     {"template/template": (NO, "does not support chat"), "preflight/chat prompts": (NO, "no such endpoint"),
      "determinism/run to run": (OK, IDENTICAL)}),
]  # fmt: skip


@pytest.mark.parametrize(("wrong", "options", "only", "expected"), SERVERS)
def test_a_server(engine, wrong, options, only, expected) -> None:
    """The server's bug is found by the right check, and nothing else in these stages is called wrong."""
    ids = options.get("ids", False)
    with Endpoint(engine, wrong, echo=options.get("echo", False), ids=ids) as server:
        with open_target(server.url, ids=ids) as target:
            target.abilities -= options.get("without", set())
            case = ExamContext(target, engine, quick=options.get("quick", True), mode=options.get("mode"))
            result = examine(case, only.split(","))
    for place, (outcome, says) in expected.items():
        one = check(result, *place.split("/"))
        assert one.outcome is outcome and says in one.says, one
        assert place != "preflight/log probabilities" or one.figures["asked for"] == 20
        assert wrong != "parses" or one.next == ["Tokenize user and tool text without parsing special tokens"]
    listed = {place for place, (outcome, _) in expected.items() if outcome is W and not place.startswith("preflight/")}
    others = {f"{s.name}/{c.name}" for s, c in result.checks(W) if s.name != "preflight"}
    assert {name for name in others if "load/" not in name or name in listed} == listed
    if wrong == "decode":
        ways = check(result, "ways", "prompt against continuation")
        assert "decode" in ways.next[0] and [label for label, _ in ways.where[1:]] == ["generating", "as a prompt"]
        assert int(ways.where[0][0].removeprefix("at token ")) >= 8, "before the eighth token it does as prefill does"


@pytest.mark.parametrize(
    ("server", "checkpoint", "says"),
    [("may", "0731", "it renders May's template on a 0731 checkpoint"),
     ("0731", "may", "it renders 0731's template on a May checkpoint"),
     ("0731", "0731", "5 chats have the right token counts")],
)  # fmt: skip
def test_whose_template_a_server_renders(server, checkpoint, says) -> None:
    """The version of the chat template that a server uses is found from token counts alone."""
    served, asked = (Engine.open(diagnostic_path(), template=name) for name in (server, checkpoint))
    with served, asked, Endpoint(served) as endpoint, open_target(endpoint.url) as target:
        result = check(examine(ExamContext(target, asked, quick=True), ["template"]), "template", "counts")
    assert says in result.says and result.figures["template"] == server
    assert result.outcome is (OK if server == checkpoint else W)


@pytest.mark.parametrize(
    ("wrong", "only", "code", "verdict", "part"),
    [
        ("over", "preflight", 1, "Something is wrong", "add up to more than 1"),
        pytest.param("batch", "load", 0, "depends on its batch", "llama.cpp", marks=SLOW),
        ("no_logprobs", "numbers", 1, "No verdict: this target does not expose", "--logits FILE"),
        ("foreign", "numbers", 1, "No verdict: not compared: the server serves another model.", "-m MODEL.gguf"),
        ("chatless", "template", 0, "Nothing wrong", "no such endpoint"),
    ],
)
def test_what_the_command_makes_of_a_server(engine, wrong, only, code, verdict, part, capsys) -> None:
    with Endpoint(engine, wrong) as server:
        result, line, text = doctor(capsys, server.url, "--quick", "--only", only)
    assert result == code and verdict in line["verdict"] and part in text, text


def test_the_first_difference_of_tokens_is_shown(engine, tmp_path, capsys) -> None:
    with Endpoint(engine, "no_merges", echo=True) as server:
        code, _, _ = doctor(capsys, server.url, "--only", "tokenizer", "--quick", "-o", str(tmp_path))
    stages = json.loads((tmp_path / "doctor.json").read_text())["stages"]
    stage = next(stage for stage in stages if stage["name"] == "tokenizer")
    prose = next(c for c in stage["checks"] if c["name"] == "prose")
    (theirs,), (ours,) = ([t["text"] for t in r["tokens"] if t["marked"]] for r in prose["where"])
    assert code == 1 and len(theirs) == 1 < len(ours) and ours.startswith(theirs)
    assert f"is {theirs}, not {ours}" in prose["says"]


@pytest.mark.parametrize("echo", [False, True])
def test_the_numbers_of_another_model_are_not_diagnosed(engine, echo, capsys) -> None:
    with Endpoint(engine, "foreign", echo=echo) as server:
        code = cli.main(["diagnose", "--prompt", "short", "--target", server.url])
    assert code == 1 and "not compared: the server serves another model" in capsys.readouterr().err


def test_nobody_there(capsys) -> None:
    code, line, text = doctor(capsys, "http://127.0.0.1:9/v1", "--attempts", "1")
    assert code == 1 and line["stages"]["preflight"] == "failed" and "no request was answered" in text
    assert set(line["stages"].values()) == {"failed", "impossible"} and "curl http://127.0.0.1:9/v1/models" in text


def test_the_key_is_in_no_output(engine, tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setenv("DS4_API_KEY", "sk-verysecret123")
    with Endpoint(engine, "key") as server:
        code, _, text = doctor(capsys, server.url, "--quick", "--attempts", "1", "-o", str(tmp_path))
    assert code == 1 and "***" in text
    for result in (text, *(path.read_text() for path in tmp_path.iterdir())):
        assert "verysecret" not in result


# ------------------------------------------------------------------------------------------------------- others


def test_an_engine_that_only_dumps(engine) -> None:
    """A target like a ds4 binary: chats, alternatives, token dumps that turn control strings into control tokens."""
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
        result = examine(ExamContext(Dumps(wrong), engine, quick=True), only=["tokenizer", "load"])
        assert outcomes(result)["tokenizer"] is outcome
        assert outcomes(result)["load"] is Outcome.IMPOSSIBLE
    assert check(result, "tokenizer", "prose").says.startswith("token 3 is ")
