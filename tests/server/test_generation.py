"""Choices, bias, penalties, lengths and scoring: as the client has them, over HTTP, on the embedded model."""

from __future__ import annotations

import json
import threading
from collections import Counter
from typing import Any

import numpy as np
import pytest

from ds4ref.errors import TokenError
from ds4ref.generate import Timing, prefill
from ds4ref.sampling import token_logprob, top_logprobs
from ds4ref.server.turn import Prefill
from ds4ref.server.worker import Overflow
from ds4ref.targets.answer import Finish

from .answers import data_of, read
from .scripted import Asked
from .understood import CHAT, COMPLETIONS, MESSAGES, RESPONSES

ASKS: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "Count! " * 4}], "thinking": False},
    COMPLETIONS: {"prompt": "Count!"},
    MESSAGES: {"messages": [{"role": "user", "content": "Count!"}]},
    RESPONSES: {"input": "Count!", "reasoning": {"effort": "none"}},
}
BOTH = pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
EOS = "<\uff5cend\u2581of\u2581sentence\uff5c>"


def ask(server: Any, path: str, status: int = 200, **more: Any) -> Any:
    answer = server.client.post(path, json={**ASKS[path], "temperature": 0, **more})
    assert answer.status_code == status, answer.text
    return answer


def text_of(choice: dict[str, Any]) -> str:
    message = choice.get("message") or choice.get("delta") or {"content": choice.get("text")}
    return (message.get("reasoning_content") or "") + (message.get("content") or "")


def choices_of(stream: bytes) -> list[tuple[str, str]]:
    """(text, finish reason) of each choice of a stream."""
    found: dict[int, list[str]] = {}
    for choice in (choice for event in data_of(stream)[:-1] for choice in event["choices"]):
        said = found.setdefault(choice["index"], ["", ""])
        assert not said[1], "nothing comes after the finish reason"
        said[0] += text_of(choice)
        said[1] = choice["finish_reason"] or ""
    return [(text, reason) for _, (text, reason) in sorted(found.items())]


@BOTH
def test_n_choices_are_n_answers(server, path):
    """With a seed each is that of its own: seed, seed + 1, ...; choices of several prompts come prompt by prompt."""
    more = {"max_tokens": 12, "temperature": 2.0}
    singles = [ask(server, path, **more, seed=7 + n).json() for n in range(3)]
    whole = ask(server, path, **more, seed=7, n=3).json()
    assert [choice | {"index": 0} for choice in whole["choices"]] == [one["choices"][0] for one in singles]
    stream = ask(server, path, **more, seed=7, n=3, stream=True, stream_options={"include_usage": True}).content
    assert choices_of(stream) == [(text_of(choice), choice["finish_reason"]) for choice in whole["choices"]]
    for usage in (whole["usage"], data_of(stream)[-2]["usage"]):
        assert usage["prompt_tokens"] == singles[0]["usage"]["prompt_tokens"], "the prompt counts once"
        assert usage["completion_tokens"] == sum(one["usage"]["completion_tokens"] for one in singles)
    if path == COMPLETIONS:
        several = ask(server, path, **more, prompt=["One", "Two"], seed=0, n=2).json()["choices"]
        alone = [ask(server, path, **more, prompt=prompt, seed=seed).json()["choices"][0]["text"]
                 for prompt in ("One", "Two") for seed in (0, 1)]  # fmt: skip
        assert [choice["text"] for choice in several] == alone
    else:
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": ["a", "b"]}}}
        found = ask(server, path, n=4, response_format=form, max_tokens=60, seed=1, temperature=1).json()["choices"]
        assert all(json.loads(text_of(choice)) in ("a", "b") for choice in found) and len(found) == 4


def adjusted(engine: Any, ids: list[int], count: int, fields: dict[str, Any]) -> list[int]:
    """Greedy tokens by the formula, from the engine's own logits."""
    session, tokens = engine.session(512), list[int]()
    prefill(session, ids, Timing())
    while len(tokens) < count:
        logits = session.logits.astype(np.float64)
        for token, times in Counter(tokens).items():
            logits[token] -= fields.get("presence_penalty", 0) + fields.get("frequency_penalty", 0) * times
        for token, value in fields.get("logit_bias", {}).items():
            logits[int(token)] += value
        token = int(logits.argmax())
        if token in engine.tokenizer.ends:
            break
        tokens.append(token)
        session.append(token)
    return tokens


@pytest.mark.parametrize(
    "fields",
    [{}, {"presence_penalty": 2}, {"frequency_penalty": -2, "presence_penalty": -1},
     {"presence_penalty": 0.7, "frequency_penalty": 0.4, "logit_bias": {"65": 3, "66": -100}}],
)  # fmt: skip
def test_greedy_answers_are_those_of_the_formula(server, fields):
    engine = server.worker.engine
    ids = engine.tokenizer.encode("Count with me: one, two, three, one, two, three, one")
    (choice,) = ask(server, COMPLETIONS, prompt=ids, max_tokens=40, logprobs=0, **fields).json()["choices"]
    raw = [bytes(part) for part in choice["logprobs"]["bytes"]]
    assert raw == [engine.tokenizer.token_bytes(token) for token in adjusted(engine, ids, 40, fields)]


@pytest.mark.parametrize("path", ASKS)
def test_bias_and_seeds_count_in_every_api(server, path):
    tokenizer = server.worker.engine.tokenizer
    (token,) = tokenizer.encode("Q")
    for temperature in (0, 1):
        assert "QQQQQQQ" in ask(server, path, temperature=temperature, logit_bias={token: 100}, max_tokens=7).text
    size = len(tokenizer)
    assert ask(server, path, logit_bias={size - 1: 0.5}, max_tokens=1)
    for outside in (size, 99999999):
        assert f"token {outside} is outside" in ask(server, path, 400, logit_bias={outside: 0.5}, max_tokens=1).text
    for seed in (0, -1, 2**64 - 1):
        found = [ask(server, path, seed=seed, temperature=2.0, max_tokens=20).json() for _ in range(2)]
        same = [one.get("choices") or one.get("content") or one["output"][0]["content"] for one in found]
        assert same[0] == same[1]


@BOTH
def test_answers_of_an_exact_length(server, path):
    """ignore_eos and min_tokens, with a bias under which every answer would end with its first token."""
    more = {"max_tokens": 9, "logit_bias": {str(server.worker.engine.tokenizer.eos): 100}}
    plain = ask(server, path, **more).json()
    assert plain["choices"][0]["finish_reason"] == "stop" and plain["usage"]["completion_tokens"] == 0
    for fields in ({"ignore_eos": True}, {"min_tokens": 9}, {"min_tokens": 9, "ignore_eos": True, "n": 2}):
        whole, n = ask(server, path, **more, **fields).json(), fields.get("n", 1)
        assert whole["usage"]["completion_tokens"] == 9 * n and EOS not in json.dumps(whole)
        found = [(text_of(choice), choice["finish_reason"]) for choice in whole["choices"]]
        assert choices_of(ask(server, path, **more, **fields, stream=True).content) == found
        assert [reason for _, reason in found] == ["length"] * n
    for least in (0, 1, 5):
        assert ask(server, path, **more, min_tokens=least).json()["usage"]["completion_tokens"] == least
    more = {"max_tokens": 12, "ignore_eos": True}
    text = text_of(ask(server, path, **more).json()["choices"][0])
    stop = text.strip()[:1]
    assert text_of(ask(server, path, **more, stop=stop).json()["choices"][0]) == text.split(stop)[0]
    assert text_of(ask(server, path, **more, stop=stop, min_tokens=12).json()["choices"][0]) == text


@pytest.mark.parametrize("stream", [False, True])
def test_reasoning_of_a_limited_length_and_reasoning_left_out(server, stream):
    """The model is kept from ending its reasoning; at its budget the server ends it, and an answer follows."""
    close = server.service.worker.engine.tokenizer.think_close
    more = {"max_tokens": 12, "logit_bias": {str(close): -100}, "ignore_eos": True, "logprobs": True, "stream": stream,
            "thinking": True}  # fmt: skip

    def shown(**fields: Any) -> tuple[int, int]:
        out = ask(server, CHAT, **more, **fields)
        choices = [event["choices"][0] for event in (data_of(out.content)[:-1] if stream else [out.json()])]
        lists = [choice.get("logprobs") or {} for choice in choices]
        thought, said = (sum(len(one.get(name, ())) for one in lists) for name in ("reasoning_content", "content"))
        return thought, said

    assert shown() == (12, 0), "it would reason to the end"
    for budget in (0, 1, 5):
        assert shown(thinking_token_budget=budget) == (budget + 1, 11 - budget), "the closing tag is counted with it"
        assert shown(thinking_token_budget=budget, include_reasoning=False) == (0, 11 - budget)


@pytest.mark.parametrize("inside", [True, False])
def test_logprobs_of_a_default_request_are_where_its_text_is(server, monkeypatch, inside):
    """Also on a model whose prompt opens no reasoning although none was switched off."""
    if not inside:
        monkeypatch.setattr("ds4ref.server.worker.ends_in_thinking", lambda *_: False)
    (choice,) = ask(server, CHAT, logprobs=True, max_tokens=12, thinking=None).json()["choices"]
    for name in ("content", "reasoning_content"):
        entries = (choice["logprobs"] or {}).get(name, ())
        raw = b"".join(bytes(entry["bytes"]) for entry in entries).replace(b"<think>", b"").replace(b"</think>", b"")
        assert raw.decode() == (choice["message"].get(name) or "") and all(e["logprob"] is not None for e in entries)


# --- completions


SCORE = {"max_tokens": 1, "logprobs": 3, "echo": True}


@pytest.mark.parametrize("prompt", ["The quick brown fox", "x", "word " * 200, f"{EOS}What is 2+2?"])
def test_echo_scores_the_prompt(server, prompt):
    """clients.md 9: exactly the prompt's tokens and one more, no BOS, no template; control strings are their tokens."""
    engine = server.worker.engine
    ids = engine.tokenizer.encode_rendered(prompt)
    logits = engine.logits(ids)
    (choice,) = ask(server, COMPLETIONS, **SCORE, prompt=prompt).json()["choices"]
    assert ask(server, COMPLETIONS, **SCORE, prompt=[ids]).json()["choices"] == [choice]
    found = choice["logprobs"]
    assert [bytes(raw) for raw in found["bytes"][:-1]] == [engine.tokenizer.token_bytes(i) for i in ids]
    assert found["token_logprobs"][0] is None and found["top_logprobs"][0] is None
    following = [*ids[1:], int(logits[-1].argmax())]
    wanted = [token_logprob(row, token) for row, token in zip(logits, following, strict=True)]
    np.testing.assert_allclose(found["token_logprobs"][1:], wanted, atol=1e-4)
    for row, top in zip(logits, found["top_logprobs"][1:], strict=True):
        np.testing.assert_allclose(sorted(top.values()), [lp for *_, lp in top_logprobs(row, 3)][::-1], atol=1e-4)
    assert choice["text"].startswith(prompt) and choice["finish_reason"] == "length"


def test_what_evaluations_ask(server):
    """Batches are scored one by one, without or with an answer, and take no conversation's place."""
    known = len(server.worker.sequences)
    prompts = [[1, 2, 3], [4, 5], [1, 2, 6]]
    whole = ask(server, COMPLETIONS, **SCORE, prompt=prompts).json()
    for index, prompt in enumerate(prompts):
        (alone,) = ask(server, COMPLETIONS, **SCORE, prompt=prompt).json()["choices"]
        assert whole["choices"][index] == {**alone, "index": index}
    assert whole["usage"]["prompt_tokens"] == 8 and whole["usage"]["completion_tokens"] == 3
    ask(server, COMPLETIONS, **SCORE, prompt="word " * 100)
    assert len(server.worker.sequences) == known
    (choice,) = ask(server, COMPLETIONS, prompt="The quick", echo=True, max_tokens=0).json()["choices"]
    assert choice == {"text": "The quick", "index": 0, "finish_reason": "length"}
    # who cuts off the last entry as the generated one would otherwise lose a token of the prompt
    eos = server.worker.engine.tokenizer.eos
    (choice,) = ask(server, COMPLETIONS, **SCORE, prompt="abc", logit_bias={eos: 100}).json()["choices"]
    assert choice["text"] == "abc" and choice["logprobs"]["tokens"][-1] == EOS and choice["finish_reason"] == "stop"


def test_prompts_that_cannot_be_scored_and_scoring_that_is_stopped(server):
    for ids, error in (([1, 10**9], TokenError), ([1] * 5000, Overflow)):
        with pytest.raises(error):
            server.worker.submit(read(COMPLETIONS, {"prompt": ids})[0], print)
    known = threading.Event()

    def listen(event: Any) -> None:
        if isinstance(event, Prefill) and event.done:
            assert known.wait(60)
            asked.job.cancel.press()

    asked = Asked(server.worker, read(COMPLETIONS, {**SCORE, "prompt": [[1] * 500]})[0], listen)
    known.set()
    assert asked.wait().events[-1].finish == Finish.CANCELLED
    assert max(event.done for event in asked.events if isinstance(event, Prefill)) < 500
