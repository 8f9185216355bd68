"""Chat completions: requests, streams event by event, documents."""

from __future__ import annotations

import json

import pytest

from ds4ref.server.api import Refused
from ds4ref.server.tools import Memory
from ds4ref.server.turn import Failed, Prefill, Queued
from ds4ref.targets.answer import CallDelta, Delta, Finish, Step, Token, Usage
from ds4ref.text.chat import Message
from ds4ref.text.dsml import ToolCall

from .answers import MODEL, NOW, data_of, deltas, events_of, play, read, tamed
from .chatting import ASK, PATH, WITH_TOOLS, block, chunks, joined

ARGUMENTS = '{"command":"ls -la && pwd","timeout":10}'


USAGE = {
    "prompt_tokens": 1329,
    "completion_tokens": 19,
    "total_tokens": 1348,
    "prompt_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 1329},
    "completion_tokens_details": {"reasoning_tokens": 7},
}


TURN = "I will list files.</think>Let me look." + block(ToolCall("bash", ARGUMENTS))


def stream_of(body, events, **more):
    return play(read(PATH, {**body, "stream": True}, **more)[1], events)


# --- streams


def test_the_tool_turn_of_the_reference(monkeypatch):
    """server.md 5.3, to the byte but for the count of thought tokens, which the reference does not have."""
    monkeypatch.setattr("ds4ref.server.apis.common.token_hex", lambda n: "a89750f4ea676106947c125093a7ca20"[: 2 * n])
    monkeypatch.setattr("ds4ref.server.apis.common._numbers", iter([1]))
    said = [
        Delta(reasoning="I wi"),
        Delta(reasoning="ll list"),
        Delta(reasoning=" files."),
        Delta("Let me look."),
        Delta(),
        Delta(calls=(CallDelta(0, "bash"), CallDelta(0, arguments="{"))),
        Delta(calls=(CallDelta(0, arguments='"command":"'),)),
        Delta(calls=(CallDelta(0, arguments="ls -la"),)),
        Delta(calls=(CallDelta(0, arguments=" && pwd"),)),
        Delta(calls=(CallDelta(0, arguments='"'), CallDelta(0, arguments=',"timeout":'))),
        Delta(calls=(CallDelta(0, arguments="10"), CallDelta(0, arguments="}"))),
        Delta(finish=Finish.TOOL_CALLS, usage=Usage(1329, 19, 0, 7)),
    ]
    head = f'{{"id":"chatcmpl-1","object":"chat.completion.chunk","created":{NOW},"model":"{MODEL}","choices":['

    def line(delta, finish="null"):
        return f'data: {head}{{"index":0,"delta":{delta},"finish_reason":{finish}}}]}}\n\n'

    def piece(text):
        return line('{"tool_calls":[{"index":0,"function":{"arguments":' + json.dumps(text) + "}}]}")

    opened = (
        '{"tool_calls":[{"index":0,"id":"call_a89750f4ea676106947c125093a7ca20","type":"function",'
        '"function":{"name":"bash","arguments":""}}]}'
    )
    wanted = [
        line('{"role":"assistant"}'),
        *(line(f'{{"reasoning_content":"{text}"}}') for text in ("I wi", "ll list", " files.")),
        line('{"content":"Let me look."}'),
        line(opened),
        *map(piece, ("{", '"command":"', "ls -la", " && pwd", '"', ',"timeout":', "10", "}")),
        line("{}", '"tool_calls"'),
        f"data: {head}]," + f'"usage":{json.dumps(USAGE, separators=(",", ":"))}}}\n\n',
        "data: [DONE]\n\n",
    ]
    out = stream_of({**WITH_TOOLS, "stream_options": {"include_usage": True}}, said)
    assert out.decode() == "".join(wanted)


@pytest.mark.parametrize("size", range(1, len(TURN) + 1, 3))
def test_a_tool_turn_cut_anywhere(size):
    """openai_tool_stream_sends_incremental_text, _sends_partial_arguments, _waits_for_incomplete_tool_tags."""
    out = stream_of(WITH_TOOLS, deltas(TURN, thinking=True, tools=True, size=size))
    message, finish = joined(out)
    assert (message["content"], message["reasoning_content"]) == ("Let me look.", "I will list files.")
    (call,) = message["tool_calls"]
    assert (call["name"], call["arguments"], finish) == ("bash", ARGUMENTS, "tool_calls")
    kinds = [next(iter(delta), "end") for delta, _ in chunks(out)]
    order = list(dict.fromkeys(kinds))
    assert order == ["role", "reasoning_content", "content", "tool_calls", "end"] and kinds.count("role") == 1
    assert b"DSML" not in out and data_of(out)[-1] == "[DONE]"


def test_arguments_go_out_before_the_call_is_complete():
    """openai_tool_stream_sends_partial_arguments: fragments before completion."""
    turn, reply = read(PATH, {**WITH_TOOLS, "stream": True})
    events = deltas(TURN, thinking=True, tools=True)
    at = next(i for i, event in enumerate(events) if any("ls -la" in c.arguments[-6:] for c in event.calls) or i == 90)
    early = b"".join(reply.feed(event) for event in events[: at + 1])
    assert b"tool_calls" in early and b'"timeout"' not in early
    late = b"".join(reply.feed(event) for event in events[at + 1 :])
    assert late.count(b'"id":"call_') == 0, "the id comes once"
    assert joined(early + late)[0]["tool_calls"][0]["arguments"] == ARGUMENTS


@pytest.mark.parametrize("size", [1, 2, 5, 400])
def test_several_calls_and_one_without_arguments(size):
    """openai_tool_stream_handles_multiple_calls."""
    calls = ToolCall("bash", '{"command":"grüße 😀 & <b>"}'), ToolCall("pwd", "{}"), ToolCall("bash", '{"n":[1, 2]}')
    out = stream_of(WITH_TOOLS, deltas(block(*calls), tools=True, size=size))
    message, finish = joined(out)
    assert finish == "tool_calls" and message["content"] == ""
    assert [(call["name"], json.loads(call["arguments"])) for call in message["tool_calls"]] == [
        (call.name, json.loads(call.arguments)) for call in calls
    ]
    assert len({call["id"] for call in message["tool_calls"]}) == 3
    assert "�" not in out.decode()
    assert not any("content" in delta for delta, _ in chunks(out)), "no text, no content"


@pytest.mark.parametrize("thinking", [True, False])
def test_a_stream_without_tools(thinking):
    """openai_chat_stream_splits_reasoning_without_tools; streaming_holds_partial_utf8 is the decoder's."""
    text = "Hm.</think>" * thinking + "Grüße\n\n<tool_calls> is markup.  "
    out = stream_of(ASK, deltas(text, thinking=thinking))
    message, finish = joined(out)
    assert message == {
        "content": "Grüße\n\n<tool_calls> is markup.  ", "reasoning_content": "Hm." * thinking, "tool_calls": [],
    }  # fmt: skip
    assert finish == "stop" and b'"usage"' not in out


def test_nothing_goes_out_before_the_answer():
    """A failure up to then still has a status of its own."""
    _, reply = read(PATH, {**ASK, "stream": True})
    assert reply.feed(Queued(3)) + reply.feed(Prefill(0, 10, 0, "none")) + reply.feed(Prefill(10, 10, 0, "none")) == b""
    assert b'{"role":"assistant"}' in reply.feed(Delta())
    assert reply.alive() == b": keep-alive\n\n"


def test_each_call_has_the_id_that_is_remembered():
    tools = Memory()
    _, reply = read(PATH, {**WITH_TOOLS, "stream": True}, tools=tools)
    calls = ToolCall("bash", "{}"), ToolCall("pwd", "{}")
    # The worker remembers before the last event is fed, and perhaps before any is: the ids are the same.
    answer = reply.remember(Message("assistant", "x", calls=calls, raw_dsml=block(*calls)))
    message, _ = joined(play(reply, deltas("x" + block(*calls), tools=True)))
    assert [call["id"] for call in message["tool_calls"]] == [call.id for call in answer.calls]
    assert all(call.id in tools for call in answer.calls) and len(tools) == 2
    assert all(len(call.id) == 37 and call.id.startswith("call_") for call in answer.calls)
    plain = read(PATH, ASK, tools=tools)[1].remember(Message("assistant", "x"))
    assert plain == Message("assistant", "x") and len(tools) == 2


def test_calls_come_back_as_the_model_wrote_them():
    """tool_memory_replays_sampled_dsml: whatever a client made of the arguments."""
    tools = Memory()
    written = "\n\n" + block(ToolCall("bash", '{"z":1,"a":"x"}')).strip().replace("\n<", " \n<", 1)
    reply = read(PATH, WITH_TOOLS, tools=tools)[1]
    answer = reply.remember(Message("assistant", calls=(ToolCall("bash", '{"z":1,"a":"x"}'),), raw_dsml=written))
    function = {"name": "bash", "arguments": '{ "a": "x", "z": 1.0 }'}
    call = {"id": answer.calls[0].id, "type": "function", "function": function}
    talk = [*ASK["messages"], {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "content": "r"}]
    turn, _ = read(PATH, {**WITH_TOOLS, "messages": talk}, tools=tools)
    assert turn.messages[1].raw_dsml == written and written in turn.rendered().text
    assert read(PATH, {**WITH_TOOLS, "messages": talk})[0].messages[1].raw_dsml is None


# --- ends


@pytest.mark.parametrize(
    ("finish", "reason"),
    [("stop", "stop"), ("length", "length"), ("error", "stop"), ("tool_calls", "stop")],
)
def test_finish_reasons_are_those_that_clients_know(finish, reason):
    """clients.md 0.1: "error" makes opencode ask for ever. "tool_calls" takes a call."""
    said = [Delta("x"), Delta(finish=Finish(finish), usage=Usage(1, 1, 0, 0))]
    assert joined(stream_of(WITH_TOOLS, said))[1] == reason
    document = json.loads(play(read(PATH, WITH_TOOLS)[1], said))
    assert document["choices"][0]["finish_reason"] == reason


def test_a_failure_after_the_stream_began_is_an_error_chunk():
    _, reply = read(PATH, {**ASK, "stream": True})
    out = reply.feed(Delta("x")) + reply.feed(Failed("engine", 'it "broke"'))
    assert data_of(out)[-1] == {"error": {"message": 'it "broke"', "type": "server_error"}}
    assert events_of(out)[-1][0] == "" and b"finish_reason" not in out.split(b"\n\n")[-2]


def test_an_answer_that_the_server_cut_off_is_no_answer():
    said = [Delta("x"), Delta(finish=Finish.CANCELLED, usage=Usage(1, 1, 0, 0))]
    assert "error" in data_of(stream_of(ASK, said))[-1]
    with pytest.raises(Refused) as refused:
        play(read(PATH, ASK)[1], said)
    assert refused.value.status == 503


BROKEN = '\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name="bash">\n<｜DSML｜parameter name="c" string="true">ls'


MALFORMED = BROKEN + "</｜DSML｜parameter>\nwhat?</｜DSML｜invoke>\n</｜DSML｜tool_calls>"


@pytest.mark.parametrize(("text", "finish"), [(MALFORMED, "stop"), (BROKEN, "stop"), (BROKEN, "length")])
@pytest.mark.parametrize("size", [1, 7, 300])
def test_a_call_that_is_none(text, finish, size):
    """server.md 8.4: what was said of it stays, and will not parse; nobody says it again as text. Where nothing of it
    went out, and in a document, it is text."""
    said = deltas("Hm.</think>Look." + text, thinking=True, tools=True, size=size, finish=finish)
    message, reason = joined(stream_of(WITH_TOOLS, said))
    assert reason == finish and message["reasoning_content"] == "Hm."
    if message["tool_calls"]:
        assert message["content"] == "Look."
        with pytest.raises(ValueError):
            json.loads(message["tool_calls"][0]["arguments"])
    else:
        assert message["content"] == "Look." + text
    document = json.loads(play(read(PATH, WITH_TOOLS)[1], said))["choices"][0]
    assert document["message"] == {"role": "assistant", "content": "Look." + text, "reasoning_content": "Hm."}
    assert document["finish_reason"] == finish


def test_thinking_that_never_ends_is_reasoning():
    """thinking_dsml_is_not_executable_before_think_close: markup in it is no call."""
    said = deltas("Hm." + block(ToolCall("bash", "{}")), thinking=True, tools=True)
    message, reason = joined(stream_of(WITH_TOOLS, said))
    assert message["content"] == "" and not message["tool_calls"] and reason == "stop"
    assert message["reasoning_content"].startswith("Hm.\n\n<｜DSML｜tool_calls>")


# --- documents


def test_the_document_of_the_reference():
    """server.md 5.2, 1.7."""
    out = play(read(PATH, WITH_TOOLS)[1], deltas(TURN, thinking=True, tools=True))
    assert out.endswith(b"\n") and out.count(b"\n") == 1 and b'": ' not in out.replace(b'\\": ', b"")
    made = len(deltas(TURN, thinking=True, tools=True)) - 1
    found = tamed(json.loads(out))
    assert list(found) == ["id", "object", "created", "model", "choices", "usage"]
    assert found == {
        "id": "chatcmpl-N",
        "object": "chat.completion",
        "created": NOW,
        "model": MODEL,
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": "Let me look.",
                    "reasoning_content": "I will list files.",
                    "tool_calls": [
                        {"id": "call_1", "type": "function", "function": {"name": "bash", "arguments": ARGUMENTS}}
                    ],
                },
                "finish_reason": "tool_calls",
            }
        ],
        "usage": {
            "prompt_tokens": 1329,
            "completion_tokens": made,
            "total_tokens": 1329 + made,
            "prompt_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 1329},
            "completion_tokens_details": {"reasoning_tokens": len("I will list files.") + 1},
        },
    }


def test_a_document_without_anything():
    message = json.loads(play(read(PATH, ASK)[1], deltas("")))["choices"][0]
    assert message == {"index": 0, "message": {"role": "assistant", "content": ""}, "finish_reason": "stop"}


def test_arguments_keep_the_order_of_the_call():
    """openai_tool_args_preserve_call_order."""
    call = ToolCall("bash", '{"z":1,"a":{"y":2,"b":3},"m":1.50}')
    found = json.loads(play(read(PATH, WITH_TOOLS)[1], deltas(block(call), tools=True)))
    assert found["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"] == call.arguments


@pytest.mark.parametrize("stream", [True, False])
def test_usage_tells_what_was_cached(stream):
    """openai_stream_usage_reports_cache_details."""
    body = {**ASK, "stream": stream, "stream_options": {"include_usage": True}}
    out = play(read(PATH, body)[1], deltas("Hi", cached=1000))
    usage = data_of(out)[-2]["usage"] if stream else json.loads(out)["usage"]
    assert usage["prompt_tokens_details"] == {"cached_tokens": 1000, "cache_write_tokens": 329}
    assert stream is False or data_of(out)[-2]["choices"] == []


def test_lines_are_lines_for_everybody():
    """str.splitlines, which many a client reads streams with, knows more ends than \\n."""
    text = "a\u2028b\u2029c\x85d\x0be\x1cf\x7f"
    out = stream_of(ASK, deltas(text))
    assert all(line == "" or line.startswith("data: ") for line in out.decode().splitlines())
    assert joined(out)[0]["content"] == text
    assert json.loads(play(read(PATH, ASK)[1], deltas(text)))["choices"][0]["message"]["content"] == text


# --- custom tools


PATCH = {"type": "custom", "custom": {"name": "apply_patch", "format": {"type": "text"}}}


@pytest.mark.parametrize("size", [1, 2, 3, 11, 400])
def test_custom_tools_get_plain_text(size):
    text = 'a "quoted" \\ line\nand ü 😀\n*** End'
    call = ToolCall("apply_patch", json.dumps({"input": text}, ensure_ascii=False))
    said = deltas("Now." + block(call), tools=True, size=size)
    found = json.loads(play(read(PATH, {**ASK, "tools": [PATCH]})[1], said))["choices"][0]
    (made,) = found["message"]["tool_calls"]
    assert made == {"id": made["id"], "type": "custom", "custom": {"name": "apply_patch", "input": text}}
    pieces = [
        call for delta, _ in chunks(stream_of({**ASK, "tools": [PATCH]}, said)) for call in delta.get("tool_calls", ())
    ]
    assert pieces[0]["type"] == "custom" and pieces[0]["custom"] == {"name": "apply_patch", "input": ""}
    assert "".join(piece["custom"]["input"] for piece in pieces) == text


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ('{"patch":"x"}', "x"),
        ('{"input":"x","more":1}', "x"),
        ('{"a":1,"b":2}', '{"a":1,"b":2}'),
        ("{}", ""),
        ('{"input":{"a":1}}', '{"a":1}'),
    ],
)
def test_custom_tools_that_are_called_wrongly(arguments, text):
    """The model is free to err; its call goes out as far as it can be understood, in a stream as in a document."""
    said = [
        Delta(calls=(CallDelta(0, "apply_patch"),)),
        *(Delta(calls=(CallDelta(0, arguments=c),)) for c in arguments),
        Delta(finish=Finish.TOOL_CALLS, usage=Usage(1, 1, 0, 0)),
    ]
    body = {**ASK, "tools": [PATCH]}
    found = json.loads(play(read(PATH, body)[1], said))["choices"][0]["message"]["tool_calls"][0]
    assert found["custom"]["input"] == text
    streamed = [c for delta, _ in chunks(stream_of(body, said)) for c in delta.get("tool_calls", ())]
    assert "".join(piece["custom"]["input"] for piece in streamed) == text


# --- log probabilities


def token(text, logprob=-0.25):
    return Token(text if isinstance(text, bytes) else text.encode(), logprob)


def steps_of(*texts, thought=False):
    return tuple(Step(token(text), (token(text), token("other", -2.0)), thought=thought) for text in texts)


@pytest.mark.parametrize("stream", [True, False])
def test_log_probabilities(stream):
    """Thought tokens apart, as DeepSeek's API has them; tokens that end inside a character by their bytes."""
    said = [
        Delta(reasoning="Hm", steps=steps_of("Hm", thought=True)),
        Delta(steps=steps_of("</think>", thought=True)),
        Delta(steps=steps_of(b"\xc3")),
        Delta("é", steps=steps_of(b"\xa9")),
        Delta(steps=steps_of("!")),
        Delta("!", finish=Finish.STOP, usage=Usage(1, 5, 0, 2)),
    ]
    body = {**ASK, "stream": stream, "logprobs": True, "top_logprobs": 2}
    turn, reply = read(PATH, body)
    assert turn.top_logprobs == 2
    out = play(reply, said)
    if stream:
        found = [event["choices"][0] for event in data_of(out)[:-1]]
        lists = [choice["logprobs"] for choice in found if choice.get("logprobs")]
        content = [entry for one in lists for entry in one["content"]]
        thought = [entry for one in lists for entry in one.get("reasoning_content", ())]
        assert all(choice["delta"] for choice in found[:-1])
    else:
        lists = json.loads(out)["choices"][0]["logprobs"]
        content, thought = lists["content"], lists["reasoning_content"]
    assert [bytes(entry["bytes"]) for entry in content] == [b"\xc3", b"\xa9", b"!"]
    assert [entry["token"] for entry in thought] == ["Hm", "</think>"]
    assert content[2] == {
        "token": "!",
        "logprob": -0.25,
        "bytes": [33],
        "top_logprobs": [
            {"token": "!", "logprob": -0.25, "bytes": [33]},
            {"token": "other", "logprob": -2.0, "bytes": list(b"other")},
        ],
    }


def test_log_probabilities_that_nothing_goes_with_come_at_the_end():
    said = [Delta("a", steps=steps_of("a")), Delta(steps=steps_of("b")), Delta(finish=Finish.LENGTH, usage=Usage())]
    out = data_of(stream_of({**ASK, "thinking": False, "logprobs": True}, said))
    tokens = [e["token"] for c in out[:-1] for e in (c["choices"][0].get("logprobs") or {"content": ()})["content"]]
    assert tokens == ["a", "b"] and out[-3]["choices"][0]["delta"] == {"content": ""}
    assert out[-2]["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("fields", "top"),
    [
        ({}, None),
        ({"logprobs": False, "top_logprobs": 0}, None),
        ({"logprobs": True}, 0),
        ({"logprobs": True, "top_logprobs": 20}, 20),
        ({"logprobs": None}, None),
    ],
)
def test_whether_log_probabilities_are_wanted(fields, top):
    turn, reply = read(PATH, {**ASK, **fields})
    assert turn.top_logprobs == top
    assert ("logprobs" in json.loads(play(reply, deltas("x")))["choices"][0]) == (top is not None)


@pytest.mark.parametrize("fields", [{"logprobs": 5}, {"top_logprobs": 3}, {"logprobs": True, "top_logprobs": 21}])
def test_log_probabilities_that_there_are_none_of(fields):
    with pytest.raises(Refused):
        read(PATH, {**ASK, **fields})
