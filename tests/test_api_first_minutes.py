"""What people try first from Python: messages, stop texts, scores, values that are refused, an engine that is closed."""

from __future__ import annotations

import math

import numpy as np
import pytest

import ds4ref
from ds4ref.errors import SessionError, UsageError
from ds4ref.targets.local import LocalTarget
from ds4ref.text.chat import Message, render

TEXT = "The quick brown fox jumps over the lazy dog, and then it sleeps. " * 12


@pytest.fixture(scope="module")
def model(nano_path):
    with ds4ref.open(nano_path, threads=1) as engine:
        yield engine


def test_messages_are_a_chat(model):
    talk = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"},
            {"role": "assistant", "content": "So."}, {"role": "user", "content": [{"type": "text", "text": "How?"}]}]  # fmt: skip
    ours = [
        Message("system", "Be brief."),
        Message("user", "Why?"),
        Message("assistant", "So."),
        Message("user", "How?"),
    ]
    wanted = render(ours, mode="none").encode(model.tokenizer)
    assert model.prompt(talk) == model.prompt(ours) == wanted
    assert model.ask(talk, max_tokens=6) == model.ask(wanted, max_tokens=6) != ""
    assert model.prompt([{"role": "user", "content": "Why?"}], system="You are a helpful assistant") == model.prompt(
        "Why?"
    )


@pytest.mark.parametrize("prompt, why", [
    ([{"role": "robot", "content": "x"}], "message 0 has the unknown role 'robot'"),
    ([{"role": "user", "content": "x"}, {"content": "x"}], "message 1 is not of the form"),
    ([{"role": "user", "content": 3}], "message 0: "),
    ([{"role": "assistant", "content": "x"}], "the last message"),
    ([], "got list"), (None, "got NoneType"), ({"role": "user", "content": "x"}, "got dict"), (b"x", "got bytes"),
])  # fmt: skip
def test_prompts_that_are_none_are_refused(model, prompt, why):
    with pytest.raises(UsageError, match=why):
        model.ask(prompt, max_tokens=1)


def test_stop_texts_end_the_answer(model):
    whole = model.ask("Why?", max_tokens=24)
    cut = whole[len(whole) // 2 :][:3]
    at = whole.index(cut)
    for stop in (cut, ["never said", cut]):
        run = model.stream("Why?", max_tokens=24, stop=stop)
        assert "".join(piece.text for piece in run) == whole[:at] and run.finish == "stop"
        assert len(run.tokens) <= 24
    run = model.stream("Why?", max_tokens=24, stop=whole[-1] + "never said")  # held back to the end, then given out
    assert "".join(piece.text for piece in run) == whole and run.finish in ("length", "stop")
    with pytest.raises(UsageError, match="stop must be"):
        model.ask("Why?", stop=[3])


@pytest.mark.parametrize("name, values, says", [
    ("temperature", (-1, -0.01, math.nan, "warm", None, True), "a number of at least 0"),
    ("top_p", (3, 1.01, -0.1, math.nan, math.inf, "1"), "a number from 0 to 1"),
    ("min_p", (2, -0.1, math.nan), "a number from 0 to 1"),
    ("top_k", (-1, 1.5, "40"), "an integer of at least 0"),
    ("max_tokens", (-1, 1.5, None, math.inf), "an integer of at least 0"),
    ("seed", (-1, 1 << 64, 0.5), "an integer of at least 0 and below 2"),
])  # fmt: skip
def test_values_out_of_range_are_refused_by_name(model, name, values, says):
    for value in values:
        with pytest.raises(UsageError, match=f"{name} must be {says}"):
            model.ask("x", **{name: value})
    model.ask("x", **{"max_tokens": 1, name: 1})
    model.ask("x", **{"max_tokens": 0, name: 0})


@pytest.mark.parametrize("ids", [2, 128, 129, 150])
def test_scores_are_those_of_the_target(model, ids):
    """``ds4-vectors ppl`` asks the target, and the server's echo takes the same steps."""
    tokens = model.tokenizer.encode(TEXT)[:ids]
    wanted = [step.token.logprob for step in LocalTarget(model).score_ids(tokens)]
    seen = []
    scored = model.logprobs(tokens, progress=lambda *at: seen.append(at))
    assert wanted[0] is None and math.isnan(scored[0]) and scored.shape == (ids,)
    np.testing.assert_allclose(scored[1:], wanted[1:], atol=1e-5)
    assert seen[-1] == (ids - 1, ids - 1)
    assert model.perplexity(tokens) == pytest.approx(math.exp(-np.mean(wanted[1:])), rel=1e-6)


def test_hidden_states_give_the_logits(model):
    hidden = model.hidden(TEXT)
    assert hidden.shape == (len(model.tokenizer.encode(TEXT)), model.shape.hc, model.shape.dim)
    rows = model.model.ops.host(model.model.logits(model.model.ops.upload(hidden[-3:].copy())))
    np.testing.assert_allclose(rows, model.logits(TEXT)[-3:], atol=1e-4)
    with pytest.raises(UsageError, match="at least 2 tokens"):
        model.perplexity([5])
    for method in (model.logprobs, model.perplexity, model.hidden, model.logits):
        with pytest.raises(UsageError, match="empty"):
            method("")


def test_progress_of_a_prompt(model):
    seen = []
    model.ask([5] * 30, max_tokens=1, progress=lambda done, total: seen.append((done, total)))
    assert seen[0] == (0, 30) and seen[-1] == (30, 30)


def test_a_closed_engine_says_so(nano_path):
    engine = ds4ref.open(nano_path, threads=1)
    assert nano_path in repr(engine) and "0 of 8 tokens" in repr(engine.session(8))
    assert engine.tokenizer is engine.tokenizer
    engine.close()
    engine.close()
    assert "closed" in repr(engine)
    for use in (
        lambda: engine.ask("x"), lambda: engine.logits("x"), lambda: engine.logprobs([1, 2]), lambda: engine.session(8),
        lambda: engine.tokenizer, lambda: engine.prompt("x"), lambda: engine.sampler(), lambda: engine.costs(),
        lambda: engine.shape, lambda: engine.threads, lambda: engine.together(), lambda: engine.hidden([1]),
    ):  # fmt: skip
        with pytest.raises(SessionError, match="this engine is closed"):
            use()


def test_the_package_shows_public_names_only():
    assert dir(ds4ref) == sorted(ds4ref.__all__)
    assert "numba" not in dir(ds4ref) and all(getattr(ds4ref, name) is not None for name in ds4ref.__all__)
    assert ds4ref.Recorder("kqv_out").names == {"kqv_out"} and "1 intermediates" in repr(ds4ref.Recorder("kqv_out"))
