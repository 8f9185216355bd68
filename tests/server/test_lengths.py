"""min_tokens and ignore_eos of the two OpenAI APIs: exact lengths, over HTTP, on the embedded model."""

from __future__ import annotations

import pytest

from .answers import data_of
from .chatting import BASH

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
ASKS = {
    CHAT: {"messages": [{"role": "user", "content": "Say hello."}]},
    COMPLETIONS: {"prompt": "Say hello."},
}
EOS = "<\uff5cend\u2581of\u2581sentence\uff5c>"
EACH = pytest.mark.parametrize("path", ASKS)


def ends_at_once(server):
    """A logit bias under which every answer ends with its first token, unless that is forbidden."""
    return {str(server.service.worker.engine.tokenizer.eos): 100}


def ask(server, path, status=200, **more):
    answer = server.client.post(path, json={**ASKS[path], "temperature": 0, **more})
    assert answer.status_code == status, answer.text
    return answer


def text_of(choice):
    message = choice.get("message") or choice.get("delta") or {"content": choice.get("text")}
    return (message.get("reasoning_content") or "") + (message.get("content") or "")


@EACH
@pytest.mark.parametrize("thinking", [False, True])
def test_an_answer_without_its_end_has_the_asked_length(server, path, thinking):
    more = {"max_tokens": 9, "thinking": thinking, "logit_bias": ends_at_once(server)}
    plain = ask(server, path, **more).json()
    assert plain["choices"][0]["finish_reason"] == "stop" and plain["usage"]["completion_tokens"] == 0
    for fields in ({"ignore_eos": True}, {"min_tokens": 9}, {"min_tokens": 9, "ignore_eos": True, "n": 2}):
        whole = ask(server, path, **more, **fields).json()
        n = fields.get("n", 1)
        assert [choice["finish_reason"] for choice in whole["choices"]] == ["length"] * n
        assert whole["usage"]["completion_tokens"] == 9 * n
        assert all(EOS not in text_of(choice) for choice in whole["choices"])
        stream = ask(server, path, **more, **fields, stream=True, stream_options={"include_usage": True})
        events = data_of(stream.content)[:-1]
        assert events[-1]["usage"]["completion_tokens"] == 9 * n
        for index in range(n):
            parts = [c for event in events for c in event["choices"] if c["index"] == index]
            assert "".join(map(text_of, parts)) == text_of(whole["choices"][index])
            assert parts[-1]["finish_reason"] == "length"
    assert text_of(ask(server, path, **more, ignore_eos=True).json()["choices"][0]) == "", "only ends were chosen"


@EACH
def test_the_end_is_forbidden_below_the_minimum_alone(server, path):
    for least in (0, 1, 5):
        found = ask(
            server, path, max_tokens=9, thinking=False, min_tokens=least, logit_bias=ends_at_once(server)
        ).json()
        assert found["usage"]["completion_tokens"] == least and found["choices"][0]["finish_reason"] == "stop"


@EACH
def test_stop_strings_count_from_the_minimum_on(server, path):
    more = {"max_tokens": 12, "thinking": False, "ignore_eos": True}
    text = text_of(ask(server, path, **more).json()["choices"][0])
    stop = text.strip()[:1]
    assert text_of(ask(server, path, **more, stop=stop).json()["choices"][0]) == text.split(stop)[0]
    assert ask(server, path, **more, stop=stop).json()["choices"][0]["finish_reason"] == "stop"
    kept = ask(server, path, **more, stop=stop, min_tokens=12).json()
    assert text_of(kept["choices"][0]) == text and kept["choices"][0]["finish_reason"] == "length"


@EACH
def test_lengths_that_cannot_be(server, path):
    said = ask(server, path, 400, max_tokens=4, min_tokens=5).json()["error"]["message"]
    assert said.endswith("min_tokens is 5, but the answer has at most 4 tokens")
    ask(server, path, max_tokens=4, min_tokens=4)
    for wrong in ({"min_tokens": -1}, {"min_tokens": "5"}, {"min_tokens": True}, {"ignore_eos": 1}):
        assert next(iter(wrong)) in ask(server, path, 400, **wrong).text


def test_what_ends_an_answer_clashes(server):
    for name, other in (("tools", [BASH]), ("response_format", {"type": "json_object"})):
        for fields in ({"min_tokens": 3}, {"ignore_eos": True}):
            said = ask(server, CHAT, 400, **{name: other}, **fields).json()["error"]["message"]
            assert said == f"{next(iter(fields))} is not supported together with {name}"
        ask(server, CHAT, **{name: other}, min_tokens=0, ignore_eos=False, max_tokens=3)
    assert ask(server, CHAT, tools=[BASH], tool_choice="none", ignore_eos=True, max_tokens=3)


@pytest.mark.parametrize("stream", [False, True])
def test_reasoning_of_a_limited_length_and_reasoning_left_out(server, stream):
    """The model is kept from ending its reasoning; at its budget the server ends it, and an answer follows."""
    close = server.service.worker.engine.tokenizer.think_close
    more = {"max_tokens": 12, "logit_bias": {str(close): -100}, "ignore_eos": True, "logprobs": True, "stream": stream}

    def shown(**fields):
        answer = ask(server, CHAT, **more, **fields)
        events = data_of(answer.content)[:-1] if stream else [answer.json()]
        choices = [event["choices"][0] for event in events]
        parts = [choice.get("delta") or choice.get("message") or {} for choice in choices]
        thought = [e for c in choices for e in (c.get("logprobs") or {}).get("reasoning_content", ())]
        said = [e for c in choices for e in (c.get("logprobs") or {}).get("content", ())]
        text = "".join(part.get("content") or "" for part in parts)
        return len(thought), len(said), "".join(part.get("reasoning_content") or "" for part in parts), text

    assert shown()[:2] == (12, 0), "it would reason to the end"
    for budget in (0, 1, 5):
        thought, said, _, text = shown(thinking_token_budget=budget)
        assert (thought, said) == (budget + 1, 11 - budget), "the closing tag is counted with the reasoning"
        assert shown(thinking_token_budget=budget, include_reasoning=False) == (0, said, "", text)
    assert shown(thinking_token_budget=-1) == shown()
