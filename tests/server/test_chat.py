"""Chat completions: requests, streams event by event, documents."""

from __future__ import annotations

import json

import pytest

from ds4ref.server.api import Refused
from ds4ref.server.tools import Memory
from ds4ref.server.turn import Choice, Failed, Prefill, Queued, Sampling
from ds4ref.targets.answer import CallDelta, Delta, Finish, Step, Token, Usage
from ds4ref.text.chat import Message
from ds4ref.text.dsml import ToolCall, render_calls

from .answers import MODEL, NOW, data_of, deltas, events_of, play, read, tamed

PATH = "/v1/chat/completions"
ASK = {"messages": [{"role": "user", "content": "List the files."}]}
BASH = {"type": "function", "function": {"name": "bash", "parameters": {"type": "object", "properties": {}}}}
WITH_TOOLS = {**ASK, "tools": [BASH]}
ARGUMENTS = '{"command":"ls -la && pwd","timeout":10}'
USAGE = {
    "prompt_tokens": 1329,
    "completion_tokens": 19,
    "total_tokens": 1348,
    "prompt_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 1329},
    "completion_tokens_details": {"reasoning_tokens": 7},
}


def block(*calls: ToolCall) -> str:
    return "".join(part.text for part in render_calls(calls))


TURN = "I will list files.</think>Let me look." + block(ToolCall("bash", ARGUMENTS))


def stream_of(body, events, **more):
    return play(read(PATH, {**body, "stream": True}, **more)[1], events)


def chunks(stream):
    """(delta, finish) of every chunk with a choice."""
    found = [event for event in data_of(stream) if event != "[DONE]" and event.get("choices")]
    return [(event["choices"][0]["delta"], event["choices"][0]["finish_reason"]) for event in found]


def joined(stream):
    """The message that a client puts together."""
    message = {"content": "", "reasoning_content": "", "tool_calls": []}
    finish = None
    for delta, reason in chunks(stream):
        finish = reason or finish
        for name in ("content", "reasoning_content"):
            message[name] += delta.get(name, "")
        for call in delta.get("tool_calls", ()):
            if call["index"] == len(message["tool_calls"]):
                assert call["id"] and call["type"] == "function" and call["function"]["arguments"] == ""
                message["tool_calls"].append({"id": call["id"], "name": call["function"]["name"], "arguments": ""})
            else:
                assert "id" not in call and "name" not in call["function"]
            message["tool_calls"][call["index"]]["arguments"] += call["function"]["arguments"]
    return message, finish


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


def steps_of(*texts):
    return tuple(Step(token(text), (token(text), token("other", -2.0))) for text in texts)


@pytest.mark.parametrize("stream", [True, False])
def test_log_probabilities(stream):
    """Thought tokens apart, as DeepSeek's API has them; tokens that end inside a character by their bytes."""
    said = [
        Delta(reasoning="Hm", steps=steps_of("Hm")),
        Delta(steps=steps_of("</think>")),
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
        ({"logprobs": False, "top_logprobs": 3}, None),
        ({"logprobs": True}, 0),
        ({"logprobs": True, "top_logprobs": 20}, 20),
        ({"logprobs": None}, None),
    ],
)
def test_whether_log_probabilities_are_wanted(fields, top):
    turn, reply = read(PATH, {**ASK, **fields})
    assert turn.top_logprobs == top
    assert ("logprobs" in json.loads(play(reply, deltas("x")))["choices"][0]) == (top is not None)


@pytest.mark.parametrize("fields", [{"logprobs": 5}, {"logprobs": True, "top_logprobs": 21}])
def test_log_probabilities_that_there_are_none_of(fields):
    with pytest.raises(Refused):
        read(PATH, {**ASK, **fields})


# --- requests


def test_defaults():
    """request_defaults_use_min_p_filtering."""
    turn, reply = read(PATH, ASK)
    assert turn.sampling == Sampling(1.0, 1.0, 0.05, 0, None) and turn.thinking == "high"
    assert (turn.api, turn.model, turn.max_tokens, turn.stop, turn.format) == ("chat", MODEL, None, (), "")
    assert turn.choice == Choice() and not turn.echo and not turn.results_only and not reply.stream
    assert turn.messages == (Message("user", "List the files."),)


def test_what_is_given_counts():
    body = {
        **ASK, "model": "any name", "temperature": 0.5, "top_p": 0.9, "min_p": 0.1, "top_k": 40.7, "seed": 7,
        "max_tokens": 5, "max_completion_tokens": 9, "stop": ["a", "", "b"], "stream": True, "prompt_cache_key": "k",
    }  # fmt: skip
    turn, reply = read(PATH, body)
    assert turn.sampling == Sampling(0.5, 0.9, 0.1, 40, 7)
    assert (turn.model, turn.max_tokens, turn.stop, reply.stream, turn.affinity) == (
        "any name", 9, ("a", "b"), True, "k",
    )  # fmt: skip
    assert read(PATH, {**ASK, "max_completion_tokens": 9, "max_tokens": 5})[0].max_tokens == 5, "the last counts"
    assert read(PATH, {**ASK, "stop": "x"})[0].stop == ("x",)
    assert read(PATH, body)[0].thinking == "high"
    quiet = {"options": {"client-sampling": False}}
    assert read(PATH, body, **quiet)[0].sampling == Sampling(seed=7), "as the reference does while it thinks"
    assert read(PATH, {**body, "thinking": False}, **quiet)[0].sampling == Sampling(0.5, 0.9, 0.1, 40, 7)


@pytest.mark.parametrize(
    ("given", "limit", "wanted"), [(None, None, None), (None, 50, 50), (10, 50, 10), (99, 50, 50), (0, None, 0)]
)
def test_the_limit(given, limit, wanted):
    body = ASK if given is None else {**ASK, "max_tokens": given}
    assert read(PATH, body, max_tokens=limit)[0].max_tokens == wanted


@pytest.mark.parametrize(
    ("fields", "mode"),
    [
        ({"thinking": {"type": "disabled", "budget_tokens": 5}}, "none"),
        ({"thinking": True}, "high"),
        ({"thinking": False}, "none"),
        ({"think": False}, "none"),
        ({"think": False, "thinking": True}, "high"),
        ({"thinking": True, "think": False}, "none"),
        ({"thinking": {"type": "adaptive"}}, "high"),
        ({"reasoning_effort": "xhigh"}, "high"),
        ({"reasoning_effort": "minimal"}, "high"),
        ({"reasoning_effort": "max"}, "high"),
        ({"reasoning_effort": "none"}, "none"),
        ({"reasoning_effort": None}, "high"),
        ({"model": "deepseek-chat"}, "none"),
        ({"model": "deepseek-chat", "thinking": None}, "high"),
        ({"model": "deepseek-chat", "reasoning_effort": "high"}, "none"),
        ({"model": "deepseek-reasoner"}, "high"),
    ],
)
def test_thinking(fields, mode):
    """api_thinking_controls_parse, reasoning_effort_mapping."""
    assert read(PATH, {**ASK, **fields})[0].thinking == mode


def test_most_thinking_takes_room():
    body = {**ASK, "reasoning_effort": "max"}
    assert read(PATH, body, ctx=393216)[0].thinking == "max"
    assert read(PATH, body, ctx=393215)[0].thinking == "high"


TWO = {**ASK, "tools": [BASH, {"type": "custom", "custom": {"name": "edit"}}]}


@pytest.mark.parametrize(
    ("choice", "wanted", "left"),
    [
        ("auto", Choice(), 2),
        (None, Choice(), 2),
        ("none", Choice("none"), 2),
        ("required", Choice("required"), 2),
        ("whatever", Choice(), 2),
        ({"type": "function", "function": {"name": "bash"}}, Choice("named", "bash"), 2),
        ({"type": "custom", "custom": {"name": "edit"}}, Choice("named", "edit"), 2),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "bash"}}]},
            },
            Choice("required"),
            1,
        ),
    ],
)
def test_tool_choice(choice, wanted, left):
    turn, _ = read(PATH, {**TWO, "tool_choice": choice})
    assert turn.choice == wanted and len(turn.tools) == left
    assert len(turn.offered) == (0 if wanted.kind == "none" else left)


@pytest.mark.parametrize(
    "fields",
    [
        {"tool_choice": "required"},
        {"tools": [], "tool_choice": "required"},
        {"tools": [{"type": "web_search"}], "tool_choice": "required"},
        {"tools": [BASH], "tool_choice": {"type": "function", "function": {"name": "gone"}}},
        {"tools": [BASH], "tool_choice": {"type": "function"}},
        {"tools": [BASH], "tool_choice": 5},
        {"tools": {}},
    ],
)
def test_tool_choices_that_cannot_be_kept(fields):
    with pytest.raises(Refused) as refused:
        read(PATH, {**ASK, **fields})
    assert refused.value.status == 400 and "tool" in refused.value.message


def test_one_call_at_a_time():
    body = {**TWO, "tool_choice": "required"}
    assert read(PATH, {**body, "parallel_tool_calls": False})[0].choice == Choice("required", "", False)
    assert read(PATH, {**body, "parallel_tool_calls": None})[0].choice == Choice("required")
    assert not read(PATH, {**ASK, "parallel_tool_calls": False})[0].choice.parallel
    with pytest.raises(Refused, match="parallel_tool_calls"):
        read(PATH, {**body, "parallel_tool_calls": 1})


@pytest.mark.parametrize(
    ("form", "wanted"),
    [
        (None, ""),
        ({"type": "text"}, ""),
        ({"type": "json_object"}, "{}"),
        ({"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": {"b": 1, "a": 2}}},
         '{"b": 1, "a": 2}'),
        ({"type": "json_schema", "json_schema": {"name": "n"}}, "{}"),
        ({"type": "something new"}, ""),
    ],
)  # fmt: skip
def test_formats(form, wanted):
    assert read(PATH, {**ASK, "response_format": form})[0].format == wanted


def test_a_schema_is_kept_as_it_is():
    raw = '{"messages":[],"response_format":{"type":"json_schema","json_schema":{"schema":{"z":1.50,  "z":2}}}}'
    assert read(PATH, raw)[0].format == '{"z":1.50,  "z":2}'
    with pytest.raises(Refused, match="not a JSON object"):
        read(PATH, {**ASK, "response_format": {"type": "json_schema", "json_schema": {"schema": 5}}})


def test_a_call_in_thinking_that_never_ended(scripted):
    """server.md 8.6: it is made, unless the reference's way is wanted."""
    script = "Let me see." + block(ToolCall("bash", '{"command":"ls"}'))
    scripted.engine.say(script, script)
    whole = scripted.client.post(PATH, json=WITH_TOOLS).json()["choices"][0]
    assert whole["finish_reason"] == "tool_calls" and whole["message"]["reasoning_content"] == "Let me see."
    assert whole["message"]["content"] == "" and len(whole["message"]["tool_calls"]) == 1
    message, reason = joined(scripted.client.post(PATH, json={**WITH_TOOLS, "stream": True}).content)
    assert (message["reasoning_content"], message["content"], reason) == ("Let me see.", "", "tool_calls")
    assert json.loads(message["tool_calls"][0]["arguments"]) == {"command": "ls"}
    assert not read(PATH, ASK, options={"recover-calls": False})[0].recover


def test_system_texts_stay_where_they_are():
    talk = [*ASK["messages"], {"role": "assistant", "content": "a"}, {"role": "developer", "content": "D"}]
    assert read(PATH, {"messages": talk})[0].rendered().text.index("D") > 20
    turn, _ = read(PATH, {"messages": talk}, options={"system-in-place": False})
    assert turn.rendered().text.startswith("<｜begin▁of▁sentence｜>D<｜User｜>")


def test_results_without_their_call_are_nobodys_business():
    """Chat clients always send everything: nothing is checked."""
    turn, _ = read(PATH, {"messages": [{"role": "tool", "tool_call_id": "call_x", "content": "r"}]})
    assert not turn.results_only


def test_errors():
    _, reply = read(PATH, ASK)
    refused = Refused(400, "no", extra={"param": "messages"})
    assert reply.error(refused) == (
        b'{"error":{"message":"no","type":"invalid_request_error","param":"messages"}}\n'
    )  # fmt: skip
