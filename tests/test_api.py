"""The Python API: the examples of docs/reference/api.md run as they stand, and say what the command says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

import ds4ref
from ds4ref.cli.ds4 import main
from ds4ref.errors import UsageError
from ds4ref.text.chat import Message, render
from ds4ref.text.protocol import DEFAULT_SYSTEM
from tests.archs import dense

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "api.md"


def examples() -> list[tuple[int, str]]:
    """The page's Python blocks, each with its line number."""
    text = PAGE.read_text(encoding="utf-8")
    found = re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [(text.count("\n", 0, match.start(1)), match.group(1)) for match in found]


def test_the_examples_of_the_page(trained_path, tmp_path, monkeypatch):
    """In order and in one namespace; a failure shows the page's own line."""
    monkeypatch.chdir(tmp_path)
    space: dict[str, object] = {}
    blocks = examples()
    assert len(blocks) == PAGE.read_text(encoding="utf-8").count("```python")
    for line, code in blocks:
        assert "assert" in code, f"the example at line {line + 1} shows nothing"
        exec(compile("\n" * line + code, PAGE, "exec"), space)


@pytest.fixture(scope="module")
def model(nano_path):
    with ds4ref.open(nano_path, threads=1) as engine:
        yield engine


def test_thinking_is_no_part_of_the_answer(model):
    """The answer begins where a think tag closes, wherever the model closes it."""
    tok = model.tokenizer
    inside = [*model.prompt("Why?", thinking="high"), *tok.encode("Hm.")]
    assert all(piece.thinking for piece in model.stream(inside, max_tokens=3))
    assert model.ask(inside, max_tokens=3) == ""
    assert model.ask([*inside, tok.think_close], max_tokens=3) != ""


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("option", "values", "told"),
    [
        ("thinking", ["hard", True, None], "none, low, high, max"),
        ("thinking", ["hgh", "HIGH"], "none, low, high, max \\(did you mean high\\?\\)"),
        ("temperature", [-1, -0.01, 100.5, NAN, INF, "1", None, True, 1j], "a number from 0 to 100"),
        ("top_p", [3, -0.1, 1.001, NAN, "x"], "a number from 0 to 1"),
        ("min_p", [-0.1, 2, NAN, [0]], "a number from 0 to 1"),
        ("top_k", [-1, 1025, 2.0, NAN, None], "an integer from 0 to 1024"),
        ("seed", [-1, 2**64, 1.5], "an integer >= 0"),
        ("max_tokens", [-1, 2**31, 1.0, None, NAN, True], "an integer >= 0"),
        ("stop", ["", ["a", ""], [1], 5], "none of them empty"),
    ],
)
def test_wrong_options_are_refused(model, option, values, told):
    for value in values:
        with pytest.raises(UsageError, match=f"{option} .*{told}"):
            model.ask("Why?", **{option: value})


def test_messages_are_a_conversation(model):
    """A question alone is the same as a message; a conversation is what ``render`` makes of it."""
    user = {"role": "user", "content": "Why <think>?"}
    talk = [
        user,
        {"role": "assistant", "content": "Because."},
        {"role": "user", "content": [{"type": "text", "text": "So?"}]},
    ]
    system = {"role": "system", "content": "Be brief."}
    said = [Message("user", "Why <think>?"), Message("assistant", "Because."), Message("user", "So?")]

    def rendered(*first):
        return render([*first, *said], (), "none").encode(model.tokenizer)

    assert model.prompt([user]) == model.prompt("Why <think>?")
    assert model.ask([user], max_tokens=4) == model.ask("Why <think>?", max_tokens=4)
    assert model.prompt(talk) == model.prompt(said) == rendered(Message("system", DEFAULT_SYSTEM))
    assert model.prompt([system, *talk]) == rendered(Message("system", "Be brief."))
    assert model.prompt(talk, system="") == rendered()


@pytest.mark.parametrize(
    ("prompt", "told"),
    [
        ([], "prompt is empty"),
        (None, "a list of messages or a list of token ids"),
        ({"role": "user", "content": "Why?"}, "a list of messages"),
        ([{"role": "user"}], "message 1: its content is None"),
        ([{"role": "user", "content": "a"}, {"role": "usr", "content": "b"}], "message 2: unknown role 'usr'"),
        ([{"content": "Why?"}], "message 1 is"),
        (["Why?"], "message 1 is 'Why\\?'"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}], "message 1: its content"),
        ([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "must end with one to answer"),
        ([1, -1], "token id -1 at position 1"),
        ([1, 10**9], "token id 1000000000 at position 1"),
        ([True], "token id True"),
    ],
)
def test_what_is_no_prompt(model, prompt, told):
    with pytest.raises(ds4ref.Ds4Error, match=told):
        model.ask(prompt, max_tokens=1)


def test_stop_ends_the_answer(model):
    """Before the first stop text, also across tokens; a text that only begins one is kept to the end."""
    whole = model.ask("Why?", max_tokens=24)
    assert len(whole) > 12
    stop = whole[7:11]
    run = model.stream("Why?", max_tokens=24, stop=["never there", stop])
    text = "".join(piece.text for piece in run)
    assert text == whole[: whole.index(stop)] == model.ask("Why?", max_tokens=24, stop=stop)
    assert (run.finish, run.stopped) == ("stop", stop) and len(run.tokens) < 24
    late = model.stream("Why?", max_tokens=24, stop=whole[-2:] + "\0")
    assert "".join(piece.text for piece in late) == whole and (late.finish, late.stopped) == ("length", None)


def test_reasoning_is_not_searched_for_stops(model):
    thought = "".join(piece.text for piece in model.stream("Why?", max_tokens=12, thinking="high"))
    run = model.stream("Why?", max_tokens=12, thinking="high", stop=thought[2:4])
    assert "".join(piece.text for piece in run) == thought and run.finish == "length"


@pytest.fixture(scope="module", params=["trained", "random", "llama", "qwen3moe"])
def any_path(request, trained_path, nano_path, tmp_path_factory):
    if request.param in ("trained", "random"):
        return trained_path if request.param == "trained" else nano_path
    families = dense.FAMILIES | dense.WITH_EXPERTS
    shape = dense.draw_shape(3, families[request.param])
    path = tmp_path_factory.mktemp("dense") / "model.gguf"
    dense.write(path, shape, dense.draw_tensors(shape, 3, tied=False), "F32")
    return str(path)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_what_a_text_is_worth(any_path, backend, monkeypatch):
    """Log probabilities, perplexity and hidden states agree with what the tools score, and with the logits."""
    with ds4ref.open(any_path, backend=backend, numerics="exact", threads=1) as model:
        ids = [int(token) for token in np.random.default_rng(1).integers(0, model.shape.vocab, 23)]
        monkeypatch.setattr("ds4ref.engine.SCORE_ROWS", 9)  # pieces, the last one short
        told = []
        scored = model.logprobs(ids, progress=lambda done, total: told.append((done, total)))
        logits = model.logits(ids).astype(np.float64)
        wanted = [row[token] - np.logaddexp.reduce(row) for row, token in zip(logits, ids[1:], strict=False)]
        np.testing.assert_allclose(scored, wanted, atol=1e-4)
        assert scored.shape == (22,) and told == [(9, 22), (18, 22), (22, 22)]
        assert model.perplexity(ids) == pytest.approx(np.exp(-np.mean(wanted)), rel=1e-4)
        hidden = model.hidden(ids)
        assert hidden.shape == (23, model.shape.dim) and hidden.dtype == np.float32
        recorder, session = ds4ref.Recorder("result_norm"), model.session(32)
        session.hooks = recorder
        session.extend(ids)
        np.testing.assert_allclose(hidden, recorder["result_norm", -1], atol=1e-4)
        assert model.hidden(ids[:1]).shape == (1, model.shape.dim) and model.hidden([]).shape == (0, model.shape.dim)
        assert model.logprobs([3]).shape == model.logprobs([]).shape == (0,)
        with pytest.raises(UsageError, match="at least 2 tokens"):
            model.perplexity([3])


def test_a_closed_engine_says_so(nano_path):
    """Whatever is asked of it or of its sessions; it still has a path, a ``repr``, and may be closed again."""
    engine = ds4ref.open(nano_path, threads=1)
    session, moment = engine.session(32), engine.session(8)
    assert repr(engine) == f"<Engine: {nano_path}, backend cpu, numerics qat>"
    assert repr(session) == "<Session: 0 of 32 tokens, nothing evaluated>"
    session.sync([1, 2])
    moment.sync([1])
    saved = moment.snapshot()
    assert repr(session) == "<Session: 2 of 32 tokens>"
    engine.close()
    engine.close()
    assert repr(engine) == f"<Engine: {nano_path}, closed>" and engine.path == nano_path
    calls = [
        lambda: engine.ask("a"), lambda: engine.ask([1]), lambda: engine.stream("a"), lambda: engine.logits([1]),
        lambda: engine.logprobs("a"), lambda: engine.perplexity("a b"), lambda: engine.hidden([1]),
        lambda: engine.encode("a"), lambda: engine.decode([1]), lambda: engine.prompt("a"), lambda: engine.session(8),
        lambda: engine.sampler(0), lambda: engine.costs(), lambda: engine.together(), lambda: engine.expert_use(),
        lambda: engine.tokenizer, lambda: engine.threads, lambda: engine.shape, lambda: engine.prefill_chunk,
        lambda: engine.steered(None), engine.__enter__,
        lambda: session.sync([1, 2, 3]), lambda: session.eval(1), lambda: session.extend([1]), session.snapshot,
        lambda: session.restore(saved), lambda: session.save("never"), lambda: session.load("never"),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(ds4ref.Ds4Error, match="the engine is closed"):
            call()


def test_inspect_as_json(any_path, capsys):
    assert main(["--inspect", any_path, "--json"]) == 0
    said = capsys.readouterr()
    facts = json.loads(said.out, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert said.out.count("\n") == 1 and not said.err
    with ds4ref.open(any_path, backend="reference") as model:
        shape, size = model.shape, model.source.size
    assert (facts["path"], facts["file_bytes"], facts["name"]) == (any_path, size, shape.name)
    assert (facts["shape"]["dim"], facts["shape"]["vocab"]) == (shape.dim, shape.vocab)
    assert sum(kind["bytes"] for kind in facts["tensors"]) < size and facts["kv"][0]["f32"] > 0


def test_what_the_package_offers():
    from ds4ref.archs.deepseek4.hooks import Recorder
    from ds4ref.console.common import Progress
    from ds4ref.engine import Engine
    from ds4ref.engine_options import Steering
    from ds4ref.errors import Ds4Error
    from ds4ref.session.session import Session

    assert (ds4ref.Engine, ds4ref.Session, ds4ref.Ds4Error) == (Engine, Session, Ds4Error)
    assert ds4ref.open.__func__ is Engine.open.__func__
    assert (ds4ref.Recorder, ds4ref.Steering, ds4ref.Progress) == (Recorder, Steering, Progress)
    assert sorted(ds4ref.__all__) == dir(ds4ref), "public names only"
    assert not set(dir(ds4ref)) & {"annotations", "Any", "TYPE_CHECKING", "engine", "errors", "version"}
    with pytest.raises(AttributeError, match="shut"):
        _ = ds4ref.shut
