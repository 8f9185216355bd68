"""The local target against the session API, and the command target against our own ``ds4`` and against scripts."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import numpy as np
import pytest

from ds4ref.errors import TargetError, UsageError
from ds4ref.sampling import token_logprob
from ds4ref.targets import Ability, Prompt, Request, collect, open_target
from ds4ref.targets.command import CommandTarget
from ds4ref.targets.local import LocalTarget


@pytest.fixture(scope="module")
def local(nano_path):
    with LocalTarget.open(nano_path, backend="reference", ctx=512) as target:
        yield target


ASK = Request(Prompt.chat("Hello there", system="Be brief."), max_tokens=5, top_logprobs=20)


def test_it_declares_everything(local) -> None:
    assert all(local.can(ability) for ability in Ability)


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
    with pytest.raises(TargetError, match="nothing precedes the first token"):
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


def test_our_own_ds4_says_the_same_as_the_local_engine(local, command) -> None:
    far, near = command.complete(ASK), local.complete(ASK)
    assert [s.token.raw for s in far.steps] == [s.token.raw for s in near.steps]
    assert [t.id for t in far.steps[0].top] == [t.id for t in near.steps[0].top]
    lp = [t.logprob for t in far.steps[0].top], [t.logprob for t in near.steps[0].top]
    assert np.allclose(*lp, atol=1e-6)
    assert far.usage.prompt == near.usage.prompt and far.finish == near.finish and far.text == near.text


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
        command.require(Ability.SCORE, what="ppl")


def script(tmp_path: Path, body: str) -> CommandTarget:
    path = tmp_path / "fake-ds4"
    path.write_text(f"#!{sys.executable}\nimport sys, time\na = sys.argv\n{body}\n")
    path.chmod(0o755)
    return CommandTarget([str(path)], timeout=2)


TOKEN = '{"id":5,"text":"x","bytes":[195]}'
STEP = f'{{"step":0,"selected":{TOKEN},"top_logprobs":[{{"token":{TOKEN},"logit":1.5,"logprob":-0.25}}]}}'
DUMP = '{"source":"ds4","prompt_tokens":3,"ctx":9,"top_k":1,"steps":[%s]}'


def test_a_dump_of_the_original_binary_is_read(tmp_path) -> None:
    """The documented form: no model, no finish, bytes authoritative (tools.md 4.5)."""
    target = script(tmp_path, f"open(a[a.index('--dump-logprobs') + 1], 'w').write({DUMP % STEP!r})")
    done = target.complete(ASK)
    assert done.steps[0].token.raw == b"\xc3" and done.steps[0].token.logprob == -0.25 and done.usage.prompt == 3
    assert done.finish == "length"


@pytest.mark.parametrize("body, why", [
    ("sys.exit(1)", "exited with 1"),
    ("print('noise'); print('ds4: no model', file=sys.stderr); sys.exit(1)", "exited with 1: ds4: no model"),
    ("pass", "wrote no dump"),
    ("time.sleep(60)", "did not finish within 2 s"),
    ("open(a[a.index('--dump-logprobs') + 1], 'w').write('{\"steps\":[')", "malformed logprob dump"),
    ("open(a[a.index('--dump-logprobs') + 1], 'w').write('{\"steps\":[{}]}')", "malformed logprob dump"),
])  # fmt: skip
def test_failures_of_a_binary_are_one_line(tmp_path, body, why) -> None:
    with pytest.raises(TargetError, match=why) as caught:
        script(tmp_path, body).complete(ASK)
    assert "\n" not in str(caught.value)


def test_a_missing_binary() -> None:
    with pytest.raises(TargetError, match="cannot run /nonexistent/ds4"):
        open_target("command:/nonexistent/ds4 -m x").complete(ASK)


def test_identity_names_the_file_by_its_digest(local, nano_path, tmp_path, monkeypatch) -> None:
    from ds4ref import files

    found = local.identity()
    assert found["digest"] == f"sha256:{hashlib.sha256(Path(nano_path).read_bytes()).hexdigest()}"
    monkeypatch.setattr(files, "WHOLE", 0)
    monkeypatch.setattr(files, "ENDS", 4)
    digests = set()
    for data in (b"headXXXtail", b"headYYYtail", b"headXXXtale", b"hEadXXXtail", b"headXXXXtail"):
        (tmp_path / "big").write_bytes(data)
        digests.add(files.file_digest(tmp_path / "big"))
    assert len(digests) == 4  # only the middle is not looked at
