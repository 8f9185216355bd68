"""The local target against the session API, and the command target against our own ``ds4`` and against scripts."""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ds4ref.errors import ContextError, TargetError, UsageError
from ds4ref.sampling import token_logprob
from ds4ref.targets import Ability, Delta, Prompt, Request, Step, Token, Usage, collect, open_target
from ds4ref.targets.command import CommandTarget, read_dump
from ds4ref.targets.local import LocalTarget


@pytest.fixture(scope="module")
def local(nano_path):
    with LocalTarget.open(nano_path, backend="reference", ctx=512) as target:
        yield target


ASK = Request(Prompt.chat("Hello there", system="Be brief."), max_tokens=5, top_logprobs=20)


def test_a_completion_is_the_sum_of_its_deltas() -> None:
    step = Step(Token(b"a"))
    deltas = [Delta("", (), 0.5), Delta("a", (step,), 1.0), Delta("", (), 2.0, "stop", Usage(1, 2), "m"),
              Delta("", (step,), 3.0, reasoning="r"), Delta("b", (), 4.5, model="n"), Delta("", (), 5.0)]  # fmt: skip
    done = collect(iter(deltas))
    assert (done.text, done.reasoning, done.steps, done.finish) == ("ab", "r", (step, step), "stop")
    assert (done.usage, done.model, done.seconds, done.ttft) == (Usage(1, 2), "n", 5.0, 1.0)
    assert done.arrivals == (1.0, 3.0, 4.5) and done.gaps == [2.0, 1.5], "what brought nothing is no arrival"
    with pytest.raises(TargetError, match="without a finish reason"):
        collect(iter(deltas[:2]))


def test_greedy_steps_are_the_argmax_of_the_session(local) -> None:
    done = collect(local.stream(ASK))
    ids = local.encode(ASK.prompt)
    session = local.engine.session(512)
    session.sync(ids)
    for step in done.steps:
        assert step.token.id == session.argmax()
        assert [(t.id, t.logit, t.logprob) for t in step.top] == session.top_logprobs(20)
        session.eval(step.token.id)
    assert done.usage.prompt == len(ids) and done.usage.completion == len(done.steps)
    assert done.ttft is not None and len(done.gaps) == len(done.steps) - 1
    assert list(done.arrivals) == sorted(done.arrivals)


def test_a_repeated_prompt_is_cached(local) -> None:
    prompt = Request(Prompt.tokens(range(40, 80)), max_tokens=1)
    local.complete(prompt)
    longer = Request(Prompt.tokens(range(40, 90)), max_tokens=1)
    assert local.complete(longer).usage.cached == 40


def scripted(monkeypatch, local, text: str, end: bool) -> list[int]:
    """What the sampler of ``local`` picks from now on."""
    ids = local.tokenize(text) + [local.tokenizer.eos] * end
    picks = iter(ids)
    monkeypatch.setattr("ds4ref.targets.local.Sampler.choose", lambda self, session: next(picks))
    return ids


def test_the_end_token_is_a_step_without_text(local, monkeypatch) -> None:
    ids = scripted(monkeypatch, local, "One two.", end=True)
    done = local.complete(Request(Prompt.plain("x"), max_tokens=50))
    assert (done.text, done.finish) == ("One two.", "stop") and [s.token.id for s in done.steps] == ids
    assert done.usage == Usage(len(local.tokenize("x")), len(ids), 0, 0) and done.model == local.name


def test_a_stop_string_ends_and_is_not_told(local, monkeypatch) -> None:
    ids = scripted(monkeypatch, local, "One two. END and more", end=True)
    done = local.complete(Request(Prompt.plain("x"), max_tokens=50, stop=("END",)))
    assert (done.text, done.finish) == ("One two. ", "stop") and 0 < len(done.steps) < len(ids)
    scripted(monkeypatch, local, "One two. EN", end=True)
    assert local.complete(Request(Prompt.plain("x"), max_tokens=50, stop=("END",))).text == "One two. EN"


def test_an_answer_ends_with_its_limit_or_the_context(local, monkeypatch) -> None:
    ids = scripted(monkeypatch, local, "One two three four five six seven", end=False)
    done = local.complete(Request(Prompt.plain("x"), max_tokens=3))
    assert (done.finish, [s.token.id for s in done.steps]) == ("length", ids[:3])
    small = LocalTarget(local.engine, ctx=8)
    scripted(monkeypatch, local, "One two three four five six seven", end=False)
    done = small.complete(Request(Prompt.tokens(range(40, 46)), max_tokens=50))
    assert (done.finish, len(done.steps)) == ("length", 2)
    with pytest.raises(ContextError):
        small.complete(Request(Prompt.tokens(range(40, 49)), max_tokens=1))
    scripted(monkeypatch, local, "One two three four five six seven", end=False)
    assert len(small.complete(Request(Prompt.tokens(range(40, 49)), max_tokens=1, ctx=10)).steps) == 1


def test_tokens_beyond_text_are_scored_by_their_bytes(local) -> None:
    """Both spellings of the end, control tokens, and bytes that no text makes one token of."""
    tok = local.tokenizer
    lone = next(i for i in range(len(tok)) if tok.encode(tok.token_bytes(i)) != [i] and tok.token_bytes(i))
    control = local.tokenize("<\uff5cUser\uff5c>", control=True)
    spelled = ["<\uff5cend\u2581of\u2581sentence\uff5c>", "<\uff5c\uff5cend\u2581of\u2581sentence\uff5c\uff5c>"]
    wanted = [text.encode() for text in spelled] + [tok.token_bytes(control[0]), tok.token_bytes(lone)]
    steps = local.score(Prompt.plain("x"), wanted)
    assert [s.token.id for s in steps][:3] == [tok.eos, tok.eos, control[0]]
    assert tok.token_bytes(steps[3].token.id) == tok.token_bytes(lone)


def test_scoring_is_teacher_forcing(local) -> None:
    greedy = local.complete(ASK)
    steps = local.score(ASK.prompt, [s.token.raw for s in greedy.steps], top_logprobs=3)
    assert [s.token.id for s in steps] == [s.token.id for s in greedy.steps]
    assert np.allclose([s.token.logprob for s in steps], [s.token.logprob for s in greedy.steps], atol=1e-4)
    text = "The old mill stood by the river."
    ids, rows = local.tokenize(text), local.logits(local.tokenize(text))
    scored = local.score_text(text)
    assert scored[0].token.logprob is None
    wanted = [token_logprob(rows[i], ids[i + 1]) for i in range(len(ids) - 1)]
    assert np.allclose([s.token.logprob for s in scored[1:]], wanted, atol=1e-5)


def test_scoring_in_pieces_changes_nothing(local, monkeypatch) -> None:
    ids = list(range(40, 75))
    whole = [s.token.logprob for s in local.score_ids(ids)]
    monkeypatch.setattr("ds4ref.targets.local.SCORE_ROWS", 7)
    assert np.allclose([s.token.logprob for s in local.score_ids(ids)][1:], whole[1:], atol=1e-4)


def test_nothing_precedes_the_first_token_of_nothing(local) -> None:
    with pytest.raises(TargetError, match="an empty prompt has no distribution"):
        local.score(Prompt.plain(""), [b"a"])
    assert local.score_text("") == [] and local.score(ASK.prompt, []) == []


def test_bytes_that_are_no_token(local) -> None:
    with pytest.raises(TargetError, match="is not a token of"):
        local.score(ASK.prompt, [b"an impossibly long token"])


@pytest.fixture(scope="module")
def command(nano_path):
    return CommandTarget(
        [sys.executable, "-m", "ds4ref.cli.ds4", "-m", nano_path, "--backend", "reference"], timeout=300
    )


def test_dump_tokens(local, command) -> None:
    text = "Hello <\uff5cUser\uff5c> there"
    assert command.tokenize(text, control=True) == local.tokenize(text, control=True)
    with pytest.raises(TargetError, match="recognises control strings"):
        command.tokenize(text)


def test_what_a_dump_cannot_do(command) -> None:
    for request in (
        Request(Prompt.plain("x")),
        Request(Prompt.tokens([1])),
        Request(Prompt.chat("x"), temperature=1.0),
    ):
        with pytest.raises(UsageError):
            command.complete(request)
    with pytest.raises(UsageError, match="ppl needs scoring of a given text"):
        command.require(Ability.SCORE, needed_for="ppl")


def script(tmp_path: Path, body: str, timeout: float = 300) -> CommandTarget:
    path = tmp_path / "fake-ds4"
    path.write_text(f"#!{sys.executable}\nimport sys, time\na = sys.argv\n{body}\n")
    path.chmod(0o755)
    return CommandTarget([str(path)], timeout=timeout)


TOKEN = '{"id":5,"text":"x","bytes":[195]}'
STEP = f'{{"step":0,"selected":{TOKEN},"top_logprobs":[{{"token":{TOKEN},"logit":1.5,"logprob":-0.25}}]}}'
DUMP = '{"source":"ds4","prompt_tokens":3,"ctx":9,"top_k":1,"steps":[%s]}'


def test_a_dump_of_the_original_binary_is_read(tmp_path) -> None:
    """ds4's own form: no model, no finish, bytes authoritative."""
    target = script(tmp_path, f"open(a[a.index('--dump-logprobs') + 1], 'w').write({DUMP % STEP!r})")
    done = target.complete(ASK)
    assert done.steps[0].token.raw == b"\xc3" and done.steps[0].token.logprob == -0.25 and done.usage.prompt == 3
    assert done.finish == "length"


def test_what_a_binary_is_asked(tmp_path) -> None:
    target = script(tmp_path, f"""
import json
at = a.index('--prompt-file') + 1
told = a[1:at] + [open(a[at], encoding='utf-8', errors='surrogateescape').read()] + a[at + 1:]
open({str(tmp_path / "told")!r}, 'w').write(json.dumps(told))
open(a[a.index('--dump-logprobs') + 1], 'w').write({DUMP % STEP!r})""")  # fmt: skip
    for prompt, more, think, ctx, top in (
        (Prompt.chat("Hi \u00e9", "Be brief."), {}, "--nothink", "16384", "1"),
        (Prompt.chat("-p", "", "high"), {"ctx": 99, "top_logprobs": 500}, "--think", "99", "128"),
        (Prompt.chat("x", "", "max"), {"top_logprobs": 7}, "--think-max", "16384", "7"),
    ):
        target.complete(Request(prompt, 5, **more))
        told = json.loads((tmp_path / "told").read_text())
        assert told[:9] == [think, "-sys", prompt.system, "--temp", "0", "-n", "5", "--ctx", ctx]
        assert told[9:11] == ["--prompt-file", prompt.user] and told[-2:] == ["--logprobs-top-k", top]
    with pytest.raises(TargetError, match="continue a given answer"):
        target.complete(Request(replace(ASK.prompt, answer="So")))


def test_where_a_dump_ends() -> None:
    """The end token is a step and no text; a dump that says how it ended is believed."""
    eos = list("<\uff5cend\u2581of\u2581sentence\uff5c>".encode())
    steps = [json.loads(STEP), json.loads(STEP)]
    steps[1]["selected"] = {"id": 1, "bytes": eos}
    found = read_dump(json.dumps({"steps": steps, "model": {"name": "M"}, "prompt_tokens": "3"}).encode(), "x")
    assert (found.finish, found.model, found.prompt_tokens) == ("stop", "M", None)
    assert found.steps[1].token == Token(bytes(eos), None, 1) and found.steps[1].top[0].logit == 1.5
    assert read_dump(json.dumps({"steps": steps, "finish": "length"}).encode(), "x").finish == "length"
    assert read_dump(b'{"steps": []}', "x").finish == "length"
    steps[0]["top_logprobs"][0]["logprob"] = float("-inf")
    assert read_dump(json.dumps({"steps": steps}).encode(), "x").steps[0].token.logprob is None


def test_ids_of_a_binary(tmp_path) -> None:
    assert script(tmp_path, "print('[5, 6]'); print('5: x')").tokenize("x", control=True) == [5, 6]
    assert script(tmp_path, "print('[]')").tokenize("", control=True) == []
    with pytest.raises(TargetError, match="list of ids"):
        script(tmp_path, "print('5, 6')").tokenize("x", control=True)


@pytest.mark.parametrize("body, why", [
    ("sys.exit(1)", "exited with 1"),
    ("print('noise'); print('a\\nds4: no model\\n', file=sys.stderr); sys.exit(1)", "exited with 1: ds4: no model"),
    ("pass", "wrote no dump"),
    ("time.sleep(3600)", "did not finish within 1 s"),
    ("open(a[a.index('--dump-logprobs') + 1], 'w').write('{\"steps\":[')", "malformed logprob dump"),
    ("open(a[a.index('--dump-logprobs') + 1], 'w').write('{\"steps\":[{}]}')", "malformed logprob dump"),
])  # fmt: skip
def test_failures_of_a_binary_are_one_line(tmp_path, body, why) -> None:
    with pytest.raises(TargetError, match=why) as caught:
        script(tmp_path, body, timeout=1 if "within 1 s" in why else 300).complete(ASK)
    assert "\n" not in str(caught.value)


def test_a_missing_binary() -> None:
    with pytest.raises(TargetError, match="cannot run /nonexistent/ds4"):
        open_target("command:/nonexistent/ds4 -m x").complete(ASK)


def test_identity_names_the_file_by_its_digest(local, nano_path) -> None:
    assert local.identity()["digest"] == f"sha256:{hashlib.sha256(Path(nano_path).read_bytes()).hexdigest()}"
