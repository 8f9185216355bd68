"""Several choices to one prompt, bias and penalties: as the client has them, over HTTP, on the real engine."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest
import requests

from ds4ref.generate import prefill
from ds4ref.targets.answer import Delta, Finish, Usage
from ds4ref.text.dsml import ToolCall, render_calls

from .answers import data_of, read
from .chatting import BASH

CHAT, COMPLETIONS, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"
ASK = {"messages": [{"role": "user", "content": "Count! " * 4}], "thinking": False}


def post(server, path, **body):
    answer = server.client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer


def by_index(text):
    """The texts of the choices of a stream, and why each ended."""
    texts, reasons = Counter(), {}
    found: dict[int, str] = {}
    for event in data_of(text):
        for choice in event["choices"] if event != "[DONE]" else ():
            index = choice["index"]
            found[index] = found.get(index, "") + (choice.get("text") or choice.get("delta", {}).get("content") or "")
            if choice["finish_reason"]:
                reasons[index] = choice["finish_reason"]
                texts[index] += 1
    assert all(count == 1 for count in texts.values())
    return [found[index] for index in sorted(found)], [reasons[index] for index in sorted(found)]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_n_choices_are_n_answers(server, path):
    """With a seed each is that of its own: seed, seed + 1, ..."""
    ask = {**(ASK if path == CHAT else {"prompt": "Count!", "thinking": False}), "max_tokens": 12, "temperature": 2.0}
    single = [post(server, path, **ask, seed=7 + n).json()["choices"][0] for n in range(3)]
    whole = post(server, path, **ask, seed=7, n=3).json()
    assert [choice | {"index": 0} for choice in whole["choices"]] == single
    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2]
    assert len({json.dumps(choice | {"index": 0}) for choice in whole["choices"]}) == 3
    stream = post(server, path, **ask, seed=7, n=3, stream=True, stream_options={"include_usage": True})
    texts, reasons = by_index(stream.content)
    assert texts == [choice.get("text", choice.get("message", {}).get("content")) for choice in whole["choices"]]
    assert reasons == [choice["finish_reason"] for choice in whole["choices"]]
    usage = data_of(stream.content)[-2]["usage"]
    one = post(server, path, **ask, seed=7).json()["usage"]
    for counted in (usage, whole["usage"]):
        assert counted["prompt_tokens"] == one["prompt_tokens"], "the prompt counts once"
        assert counted["completion_tokens"] == sum(
            post(server, path, **ask, seed=7 + n).json()["usage"]["completion_tokens"] for n in range(3)
        )


def test_choices_of_several_prompts_are_numbered_prompt_by_prompt(server):
    ask = {"prompt": ["One", "Two"], "thinking": False, "max_tokens": 5, "temperature": 2.0, "seed": 0, "n": 2}
    whole = post(server, COMPLETIONS, **ask).json()
    singles = [post(server, COMPLETIONS, **{**ask, "prompt": prompt, "n": 1, "seed": seed}).json()["choices"][0]["text"]
               for prompt in ("One", "Two") for seed in (0, 1)]  # fmt: skip
    assert [choice["text"] for choice in whole["choices"]] == singles
    answer = server.client.post(COMPLETIONS, json={**ask, "prompt": ["x"] * 100, "n": 3})
    assert answer.status_code == 400 and "256" in answer.text


@pytest.mark.parametrize("n", [0, -1, 129, 1.5, "2", True, [], 1e300])
def test_choices_that_cannot_be(server, n):
    for path, ask in ((CHAT, ASK), (COMPLETIONS, {"prompt": "x"})):
        answer = server.client.post(path, json={**ask, "n": n})
        assert answer.status_code == 400 and " n is not " in answer.text


def test_each_choice_fits_the_form(server):
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    found = post(server, CHAT, **ASK, n=4, response_format=form, max_tokens=60, seed=1).json()["choices"]
    assert all(json.loads(choice["message"]["content"])["a"] in (1, 2) for choice in found) and len(found) == 4


@pytest.mark.parametrize("stream", [True, False])
def test_calls_of_each_choice_have_ids_of_their_own(scripted, stream):
    block = "".join(part.text for part in render_calls([ToolCall("bash", '{"a":1}')]))
    scripted.engine.say(block, "No.", block)
    answer = post(scripted, CHAT, **ASK, tools=[BASH], n=3, stream=stream)
    if stream:
        calls = [
            (choice["index"], call["id"]) for event in data_of(answer.content) if event != "[DONE]"
            for choice in event["choices"] for call in choice["delta"].get("tool_calls", ()) if "id" in call
        ]  # fmt: skip
        roles = [choice["index"] for event in data_of(answer.content) if event != "[DONE]"
                 for choice in event["choices"] if "role" in choice["delta"]]  # fmt: skip
        assert roles == [0, 1, 2]
    else:
        calls = [(choice["index"], call["id"]) for choice in answer.json()["choices"]
                 for call in choice["message"].get("tool_calls", ())]  # fmt: skip
        assert [choice["finish_reason"] for choice in answer.json()["choices"]] == ["tool_calls", "stop", "tool_calls"]
    assert [index for index, _ in calls] == [0, 2] and len({call for _, call in calls}) == 2
    assert all(call in scripted.service.tools for _, call in calls), "each can be gone on from"


def test_what_is_told_late_of_one_choice_is_not_the_next_ones():
    """The worker may be a choice ahead of what was sent."""
    _, reply = read(CHAT, {**ASK, "n": 2, "stream": True})
    first, second = (reply.call_id(0, number) for number in (0, 1))
    assert first != second and reply.call_id(0) == first
    from ds4ref.server.turn import Answered

    reply.feed(Answered(Delta("x", finish=Finish.STOP, usage=Usage(3, 1, 0, 0))))
    assert reply.call_id(0) == second


# --- bias and penalties


def adjusted(engine, ids, count, bias=(), presence=0.0, frequency=0.0):
    """Greedy tokens by the formula, from the engine's own logits."""
    from ds4ref.generate import Timing

    session = engine.session(512)
    prefill(session, ids, Timing())
    tokens: list[int] = []
    while len(tokens) < count:
        logits = session.logits.astype(np.float64)
        for token, times in Counter(tokens).items():
            logits[token] -= presence + frequency * times
        for token, value in bias:
            logits[token] += value
        token = int(logits.argmax())
        if token in engine.tokenizer.ends:
            break
        tokens.append(token)
        session.append(token)
    return tokens


@pytest.mark.parametrize(
    "fields",
    [
        {}, {"presence_penalty": 2}, {"frequency_penalty": 1.5}, {"frequency_penalty": -2, "presence_penalty": -1},
        {"presence_penalty": 0.7, "frequency_penalty": 0.4, "logit_bias": {"65": 3, "66": -100}},
    ],
)  # fmt: skip
def test_greedy_answers_are_those_of_the_formula(server, fields):
    engine = server.worker.engine
    ids = engine.tokenizer.encode("Count with me: one, two, three, one, two, three, one")
    answer = post(server, COMPLETIONS, prompt=ids, max_tokens=40, temperature=0, logprobs=0, **fields).json()
    bias = [(int(token), value) for token, value in fields.get("logit_bias", {}).items()]
    wanted = adjusted(engine, ids, 40, bias, fields.get("presence_penalty", 0.0), fields.get("frequency_penalty", 0.0))
    raw = [bytes(part) for part in answer["choices"][0]["logprobs"]["bytes"]]
    assert raw == [engine.tokenizer.token_bytes(token) for token in wanted]


def asked(path, **more):
    return {**({"input": "Count!", "reasoning": {"effort": "none"}} if path == RESPONSES else
               {"prompt": "Count!", "thinking": False} if path == COMPLETIONS else
               ASK if path == CHAT else {"messages": ASK["messages"]}), **more}  # fmt: skip


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, MESSAGES, RESPONSES])
def test_a_token_with_all_the_bias_is_the_answer(server, path):
    """In every API, greedy and drawn."""
    token = server.worker.engine.tokenizer.encode("Q")[0]
    for temperature in (0, 1):
        limit = {"max_output_tokens" if path == RESPONSES else "max_tokens": 7}
        found = post(server, path, **asked(path, temperature=temperature, logit_bias={str(token): 100}, **limit))
        assert "QQQQQQQ" in found.text


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, MESSAGES, RESPONSES])
def test_a_bias_outside_the_vocabulary_is_refused(server, path):
    size = len(server.worker.engine.tokenizer)
    for token, status in ((size - 1, 200), (size, 400), (99999999, 400)):
        answer = server.client.post(path, json=asked(path, logit_bias={str(token): 0.5}, max_tokens=1))
        assert answer.status_code == status, answer.text
        assert status == 200 or f"token {token} is outside" in answer.text


@pytest.mark.parametrize("seed", [0, 5, -1, 2**64 - 1])
def test_the_same_seed_says_the_same(server, seed):
    """0 and negative ones, too."""
    found = {post(server, CHAT, **ASK, seed=seed, temperature=2.0, max_tokens=20).json()["choices"][0]["message"]
             ["content"] for _ in range(3)}  # fmt: skip
    assert len(found) == 1


# --- what a client makes of the bytes


def test_requests_reads_a_stream_as_utf8(scripted):
    """It takes a text without a named encoding for Latin-1."""
    scripted.engine.say("Grüße, €5, 你好.")
    answer = requests.post(scripted.url + CHAT, json={**ASK, "stream": True}, stream=True, timeout=60)
    lines = list(answer.iter_lines(decode_unicode=True))
    text = "".join(json.loads(line[6:])["choices"][0]["delta"].get("content", "") for line in lines
                   if line.startswith("data: {"))  # fmt: skip
    assert text == "Grüße, €5, 你好."


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("inside", [True, False])
def test_logprobs_of_a_default_request_are_where_its_text_is(server, monkeypatch, stream, inside):
    """Also on a model whose prompt opens no reasoning although none was switched off."""
    if not inside:
        monkeypatch.setattr("ds4ref.server.worker.ends_in_thinking", lambda *_: False)
    ask = {"messages": ASK["messages"], "logprobs": True, "max_tokens": 12, "temperature": 0, "stream": stream}
    answer = post(server, CHAT, **ask)
    events = data_of(answer.content)[:-1] if stream else [answer.json()]
    choices = [event["choices"][0] for event in events]
    for field, lists in (("content", "content"), ("reasoning_content", "reasoning_content")):
        text = "".join((c.get("delta") or c.get("message") or {}).get(field) or "" for c in choices)
        entries = [e for c in choices for e in (c.get("logprobs") or {}).get(lists, ())]
        raw = b"".join(bytes(e["bytes"]) for e in entries).replace(b"<think>", b"").replace(b"</think>", b"")
        assert raw.decode() == text and all(e["logprob"] is not None for e in entries)
