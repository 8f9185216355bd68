"""Anthropic's messages: requests, streams event by event, documents, counting."""

from __future__ import annotations

import json

import pytest

from ds4ref.server import refusals
from ds4ref.server.api import Refused
from ds4ref.server.apis.messages import CountTokens, Messages
from ds4ref.server.service import Settings
from ds4ref.server.tools import Memory
from ds4ref.server.turn import Choice, Failed, Prefill, Queued, Sampling
from ds4ref.targets.answer import CallDelta, Delta, Finish, Usage
from ds4ref.text.chat import Message
from ds4ref.text.dsml import ToolCall, render_calls
from tests.cli.fake import byte_tokenizer

from .answers import MODEL, about, deltas, events_of, play, read, tamed

PATH = "/v1/messages"
ASK = {"max_tokens": 2000, "messages": [{"role": "user", "content": "List the files."}]}
BASH = {"name": "bash", "description": "d", "input_schema": {"type": "object", "properties": {}}}
THINKS = {**ASK, "tools": [BASH], "thinking": {"type": "enabled", "budget_tokens": 1024}}
ARGUMENTS = '{"command":"ls -la && pwd","timeout":10}'


def block(*calls: ToolCall) -> str:
    return "".join(part.text for part in render_calls(calls))


TURN = "I will list files.</think>Let me look." + block(ToolCall("bash", ARGUMENTS))


def stream_of(body, events, cached=0, **more):
    return play(read(PATH, {**body, "stream": True}, **more)[1], events, cached, 1351)


def parsed(stream):
    """The events; the name of each is its type."""
    found = [(name, json.loads(data)) for name, data in events_of(stream)]
    assert all(name == data["type"] for name, data in found)
    return [data for _, data in found]


def joined(stream):
    """The message that an SDK puts together, as strict as SDKs are."""
    events = parsed(stream)
    assert events[0]["type"] == "message_start" and [e["type"] for e in events].count("message_start") == 1
    message, blocks, open_at = events[0]["message"], [], None
    for event in events[1:]:
        match event["type"]:
            case "content_block_start":
                assert open_at is None and event["index"] == len(blocks)
                open_at = event["index"]
                blocks.append({**event["content_block"], "json": ""})
            case "content_block_delta":
                assert event["index"] == open_at
                delta, at = event["delta"], blocks[open_at]
                kind = {"thinking_delta": "thinking", "signature_delta": "thinking", "text_delta": "text",
                        "input_json_delta": "tool_use"}[delta["type"]]  # fmt: skip
                assert kind == at["type"]
                for name in ("thinking", "signature", "text"):
                    if name in delta:
                        at[name] += delta[name]
                at["json"] += delta.get("partial_json", "")
            case "content_block_stop":
                assert event["index"] == open_at
                open_at = None
            case "message_delta":
                assert open_at is None
                message |= event["delta"]
                message["usage"] |= event["usage"]
    for one in blocks:
        text = one.pop("json")
        if one["type"] == "tool_use":
            one["input"] = json.loads(text or "{}")
    return {**message, "content": blocks}, [event["type"] for event in events]


# --- streams


def test_the_tool_turn_of_the_reference(monkeypatch):
    """server.md 7.3, to the byte."""
    monkeypatch.setattr("ds4ref.server.apis.common.token_hex", lambda n: "190de43b33ba8fa10a61a286380b669d"[: 2 * n])
    monkeypatch.setattr("ds4ref.server.apis.common._numbers", iter([3]))
    said = [
        Delta(reasoning="I will list files."),
        Delta(),
        Delta("Let me look."),
        Delta(calls=(CallDelta(0, "bash"), CallDelta(0, arguments="{"), CallDelta(0, arguments='"command":"'))),
        Delta(calls=(CallDelta(0, arguments="ls -la && pwd"),)),
        Delta(calls=(CallDelta(0, arguments='"'), CallDelta(0, arguments="}"))),
        Delta(finish=Finish.TOOL_CALLS, usage=Usage(1351, 19, 0, 7)),
    ]
    usage = '{"input_tokens":0,"output_tokens":0,"cache_read_input_tokens":0,"cache_creation_input_tokens":1351}'
    wanted = [
        '{"type":"message_start","message":{"id":"chatcmpl-3","type":"message","role":"assistant",'
        f'"model":"{MODEL}","content":[],"stop_reason":null,"stop_sequence":null,"usage":{usage}}}}}',
        '{"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":"","signature":""}}',
        '{"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"I will list files."}}',
        '{"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"chatcmpl-3"}}',
        '{"type":"content_block_stop","index":0}',
        '{"type":"content_block_start","index":1,"content_block":{"type":"text","text":""}}',
        '{"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":"Let me look."}}',
        '{"type":"content_block_stop","index":1}',
        '{"type":"content_block_start","index":2,"content_block":{"type":"tool_use",'
        '"id":"toolu_190de43b33ba8fa10a61a286380b669d","name":"bash","input":{}}}',
        *(
            '{"type":"content_block_delta","index":2,"delta":{"type":"input_json_delta","partial_json":'
            + json.dumps(text)
            + "}}"
            for text in ("{", '"command":"', "ls -la && pwd", '"', "}")
        ),
        '{"type":"content_block_stop","index":2}',
        '{"type":"message_delta","delta":{"stop_reason":"tool_use","stop_sequence":null},"usage":{"output_tokens":19}}',
        '{"type":"message_stop"}',
    ]
    lines = [f"event: {json.loads(line)['type']}\ndata: {line}\n\n" for line in wanted]
    assert stream_of(THINKS, said).decode() == "".join(lines)


@pytest.mark.parametrize("size", range(1, len(TURN) + 1, 3))
def test_a_tool_turn_cut_anywhere(size):
    """anthropic_live_stream_sends_incremental_blocks, anthropic_tool_stream_sends_live_tool_use."""
    out = stream_of(THINKS, deltas(TURN, thinking=True, tools=True, size=size))
    message, kinds = joined(out)
    assert tamed(message["content"]) == [
        {"type": "thinking", "thinking": "I will list files.", "signature": "chatcmpl-N"},
        {"type": "text", "text": "Let me look."},
        {"type": "tool_use", "id": "toolu_1", "name": "bash", "input": json.loads(ARGUMENTS)},
    ]
    assert (message["stop_reason"], message["stop_sequence"]) == ("tool_use", None)
    assert kinds[-2:] == ["message_delta", "message_stop"] and b"DSML" not in out
    assert message["content"][0]["signature"] == message["id"]


def test_arguments_go_out_before_the_call_is_complete():
    """anthropic_tool_stream_sends_live_tool_use."""
    _, reply = read(PATH, {**THINKS, "stream": True})
    out = b""
    for event in deltas(TURN, thinking=True, tools=True):
        out += reply.feed(event)
        if b'"partial_json":"ls"' in out or b"ls -la" in out or out.count(b"partial_json") > 4:
            break
    assert b'"type":"tool_use"' in out and b"timeout" not in out and b"message_delta" not in out


@pytest.mark.parametrize("size", [1, 2, 5, 400])
def test_several_calls_and_one_without_arguments(size):
    calls = ToolCall("bash", '{"command":"grüße 😀 & <b>"}'), ToolCall("pwd", "{}"), ToolCall("bash", '{"n":[1, 2]}')
    message, _ = joined(stream_of(THINKS, deltas("</think>" + block(*calls), thinking=True, tools=True, size=size)))
    assert [(one["name"], one["input"]) for one in message["content"]] == [
        (call.name, json.loads(call.arguments)) for call in calls
    ]
    assert all(one["id"].startswith("toolu_") and len(one["id"]) == 38 for one in message["content"])
    assert len({one["id"] for one in message["content"]}) == 3


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("Hm.</think>", [("thinking", "Hm."), ("text", "")]),
        ("Hm.", [("thinking", "Hm."), ("text", "")]),
        ("</think>Hi", [("text", "Hi")]),
        ("</think>", [("text", "")]),
        ("Hm.</think>" + block(ToolCall("f", "{}")), [("thinking", "Hm."), ("tool_use", "")]),
    ],
)
@pytest.mark.parametrize("size", [1, 4, 400])
@pytest.mark.parametrize("stream", [True, False])
def test_something_can_always_be_shown(text, wanted, size, stream):
    """server.md 7.2, 7.3: an empty text where nothing would follow the thinking."""
    said = deltas(text, thinking=True, tools=True, size=size)
    if stream:
        content = joined(stream_of(THINKS, said))[0]["content"]
    else:
        content = json.loads(play(read(PATH, THINKS)[1], said))["content"]
    assert [(one["type"], one.get(one["type"], "")) for one in content] == wanted


def test_what_keeps_a_client_waiting():
    """The message begins with the first ping, as soon as it is known how long the prompt is: nothing may precede it."""
    _, reply = read(PATH, {**ASK, "stream": True})
    assert reply.feed(Queued(1)) == b""
    assert reply.alive() == b": keep-alive\n\n"
    assert reply.feed(Prefill(100, 1351, 100, "memory-text")) == b""
    first = parsed(reply.alive())
    assert [event["type"] for event in first] == ["message_start", "ping"]
    assert first[0]["message"]["usage"]["cache_read_input_tokens"] == 100
    assert [event["type"] for event in parsed(reply.alive())] == ["ping"]
    rest = b"".join(reply.feed(event) for event in deltas("Hi"))
    assert b"message_start" not in rest and parsed(rest)[-1] == {"type": "message_stop"}


@pytest.mark.parametrize("stream", [True, False])
def test_usage_tells_what_was_cached(stream):
    """anthropic_usage_reports_cache_details: what was evaluated was written to the cache, as the chat API says."""
    said = deltas("Hi", cached=1000, prompt=1351)
    out = play(read(PATH, {**ASK, "stream": stream})[1], said, 1000, 1351)
    usage = joined(out)[0]["usage"] if stream else json.loads(out)["usage"]
    chat = json.loads(play(read("/v1/chat/completions", {"messages": ASK["messages"]})[1], said, 1000, 1351))["usage"]
    assert chat["prompt_tokens_details"] == {"cached_tokens": 1000, "cache_write_tokens": 351}
    assert usage == {
        "input_tokens": 0, "output_tokens": 2, "cache_read_input_tokens": 1000, "cache_creation_input_tokens": 351,
    }  # fmt: skip
    if stream:
        assert '"cache_creation_input_tokens":351}' in out.decode().split("\n\n")[0], "message_start says it"


# --- ends


@pytest.mark.parametrize(
    ("finish", "reason"),
    [("stop", "end_turn"), ("length", "max_tokens"), ("error", "end_turn"), ("tool_calls", "end_turn")],
)
def test_stop_reasons(finish, reason):
    said = [Delta("x"), Delta(finish=Finish(finish), usage=Usage(1, 1, 0, 0))]
    assert joined(stream_of(THINKS, said))[0]["stop_reason"] == reason
    assert json.loads(play(read(PATH, THINKS)[1], said))["stop_reason"] == reason


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("size", [1, 3, 100])
def test_which_stop_sequence_it_was(stream, size):
    body = {**ASK, "stream": stream, "stop_sequences": ["END", "<stop>"]}
    turn, reply = read(PATH, body)
    assert turn.stop == ("END", "<stop>")
    out = play(reply, deltas("One<stop>two END", size=size, stop=turn.stop))
    message = joined(out)[0] if stream else json.loads(out)
    assert message["content"] == [{"type": "text", "text": "One"}]
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", "<stop>")


OPENED = '\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name="bash">\n<｜DSML｜parameter name="c" string="true">'
BROKEN = OPENED + "rm -rf /"
MALFORMED = BROKEN + "tmp</｜DSML｜parameter>\nwhat?</｜DSML｜invoke>\n</｜DSML｜tool_calls>"


@pytest.mark.parametrize("text", [MALFORMED, BROKEN])
@pytest.mark.parametrize("size", [1, 7])
def test_half_a_call_is_not_taken_for_a_whole_one(text, size):
    """server.md 7.3: a stream that began a call which is none ends with an error."""
    out = stream_of(THINKS, deltas("</think>Look." + text, thinking=True, tools=True, size=size))
    events = parsed(out)
    assert events[-1]["type"] == "error" and events[-1]["error"]["type"] == "api_error"
    kinds = [event["type"] for event in events]
    assert "message_stop" not in kinds and kinds.count("error") == 1
    assert kinds.count("content_block_start") == 2, "text and call"


def test_a_call_of_which_nothing_went_out_is_text():
    said = deltas("</think>Look." + MALFORMED, thinking=True, tools=True, size=400)
    assert joined(stream_of(THINKS, said))[0]["content"] == [{"type": "text", "text": "Look." + MALFORMED}]


@pytest.mark.parametrize("text", [MALFORMED, BROKEN])
@pytest.mark.parametrize("size", [1, 400])
def test_a_call_that_is_none_is_text_in_a_document(text, size):
    said = deltas("</think>Look." + text, thinking=True, tools=True, size=size)
    document = json.loads(play(read(PATH, THINKS)[1], said))
    assert document["content"] == [{"type": "text", "text": "Look." + text}] and document["stop_reason"] == "end_turn"


def test_a_call_cut_by_the_limit():
    """As Anthropic has it: the block is closed, and the reason says why it is not complete."""
    out = stream_of(THINKS, deltas("</think>Look." + BROKEN, thinking=True, tools=True, finish="length"))
    events = parsed(out)
    assert [event["type"] for event in events[-3:]] == ["content_block_stop", "message_delta", "message_stop"]
    assert events[-2]["delta"]["stop_reason"] == "max_tokens" and "DSML" not in out.decode()
    with pytest.raises(ValueError):
        joined(out)  # its arguments do not parse: nobody can execute them


def test_a_failure_after_the_stream_began():
    _, reply = read(PATH, {**ASK, "stream": True})
    out = reply.feed(Delta("x")) + reply.feed(Failed("engine", "it broke"))
    assert events_of(out)[-1] == ("error", '{"type":"error","error":{"type":"api_error","message":"it broke"}}')
    cut = stream_of(ASK, [Delta("x"), Delta(finish=Finish.CANCELLED)])
    assert parsed(cut)[-1]["error"] == {"type": "overloaded_error", "message": "server shutting down"}


# --- documents


def test_the_document_of_the_reference():
    """server.md 7.2."""
    said = deltas(TURN, thinking=True, tools=True, prompt=1351)
    out = play(read(PATH, THINKS)[1], said)
    found = tamed(json.loads(out))
    assert out.endswith(b"}\n") and list(found) == [
        "id", "type", "role", "model", "content", "stop_reason", "stop_sequence", "usage",
    ]  # fmt: skip
    assert found["content"] == [
        {"type": "thinking", "thinking": "I will list files.", "signature": "chatcmpl-N"},
        {"type": "text", "text": "Let me look."},
        {"type": "tool_use", "id": "toolu_1", "name": "bash", "input": json.loads(ARGUMENTS)},
    ]
    assert (found["id"], found["type"], found["role"], found["model"]) == ("chatcmpl-N", "message", "assistant", MODEL)
    assert (found["stop_reason"], found["stop_sequence"]) == ("tool_use", None)


def test_arguments_keep_the_order_of_the_call():
    """anthropic_thinking_and_tool_args_preserve_call_order: to the byte, equal names and all."""
    arguments = '{"z":1,"a":{"y":2.50,"b":3},"z":"\u2028"}'
    said = [
        Delta(calls=(CallDelta(0, "bash"), CallDelta(0, arguments=arguments))),
        Delta(finish=Finish.TOOL_CALLS, usage=Usage()),
    ]
    out = play(read(PATH, THINKS)[1], said).decode()
    assert '"input":{"z":1,"a":{"y":2.50,"b":3},"z":"\\u2028"}}' in out


def test_each_call_has_the_id_that_is_remembered():
    _, reply = read(PATH, THINKS)
    answer = reply.remember(Message("assistant", calls=(ToolCall("bash", "{}"),), raw_dsml="RAW"))
    out = json.loads(play(reply, deltas("</think>" + block(ToolCall("bash", "{}")), thinking=True, tools=True)))
    assert out["content"][0]["id"] == answer.calls[0].id


# --- requests


def test_defaults():
    turn, reply = read(PATH, ASK)
    assert turn.sampling == Sampling() and turn.thinking == "none" and turn.max_tokens == 2000
    assert (turn.api, turn.model, turn.stop, turn.format, reply.stream) == ("messages", MODEL, (), "", False)
    more = {
        **ASK, "temperature": 0, "top_p": 0.5, "top_k": 3, "min_p": 0.5, "seed": 5, "stream": True,
        "metadata": {"user_id": "u"},
    }  # fmt: skip
    turn, reply = read(PATH, more, headers={"x-claude-code-session-id": "abc"})
    assert turn.sampling == Sampling(0.0, 0.5, 0.5, 3, 5)
    assert reply.stream and turn.affinity == "abc"


@pytest.mark.parametrize(
    ("fields", "mode"),
    [
        ({}, "none"),
        ({"output_config": {"effort": "max"}}, "none"),
        ({"reasoning_effort": "high"}, "none"),
        ({"thinking": None}, "none"),
        ({"thinking": {"type": "adaptive", "display": "omitted"}}, "high"),
        ({"thinking": {"type": "enabled", "budget_tokens": 9}}, "high"),
        ({"thinking": {"type": "disabled"}}, "none"),
        ({"thinking": True}, "high"),
        ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "max"}}, "max"),
        ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "none"}}, "none"),
        ({"thinking": {"type": "adaptive"}, "reasoning_effort": "max", "output_config": {"effort": "low"}}, "high"),
        ({"model": "deepseek-reasoner"}, "high"),
        ({"model": "deepseek-chat"}, "none"),
    ],
)
def test_thinking(fields, mode):
    """clients.md 0.6: who does not mention thinking wants none; an effort does not switch it on."""
    assert read(PATH, {**ASK, **fields}, ctx=393216)[0].thinking == mode


@pytest.mark.parametrize(
    ("fields", "mode"),
    [
        ({}, "high"),
        ({"output_config": {"effort": "max"}}, "max"),
        ({"output_config": {"effort": "none"}}, "none"),
        ({"thinking": {"type": "disabled"}}, "none"),
        ({"model": "deepseek-chat"}, "none"),
        ({"model": "deepseek-chat", "thinking": None}, "none"),
    ],
)
def test_thinking_as_the_reference_has_it(fields, mode):
    """api_thinking_controls_parse."""
    options = {"messages-quiet": False}
    assert read(PATH, {**ASK, **fields}, ctx=393216, options=options)[0].thinking == mode


@pytest.mark.parametrize(
    ("choice", "wanted"),
    [
        ({"type": "auto", "disable_parallel_tool_use": True}, Choice(parallel=False)),
        ({"type": "none"}, Choice("none")),
        ({"type": "any"}, Choice("required")),
        ({"type": "tool", "name": "bash"}, Choice("named", "bash")),
        (None, Choice()),
    ],
)
def test_tool_choice(choice, wanted):
    assert read(PATH, {**THINKS, "tool_choice": choice})[0].choice == wanted


@pytest.mark.parametrize(
    "fields", [{"tool_choice": {"type": "tool", "name": "gone"}}, {"tools": [], "tool_choice": {"type": "any"}}]
)
def test_tool_choices_that_cannot_be_kept(fields):
    with pytest.raises(Refused):
        read(PATH, {**THINKS, **fields})


@pytest.mark.parametrize("field", ["output_config", "output_format"])
def test_formats(field):
    form = {"type": "json_schema", "schema": {"type": "object"}}
    value = {"format": form, "effort": "high"} if field == "output_config" else form
    turn, _ = read(PATH, {**ASK, field: value})
    assert turn.format == '{"type": "object"}' and turn.thinking == "none"
    assert read(PATH, {**ASK, "output_config": {"format": None}})[0].format == ""


def test_what_claude_code_sends():
    """Billing line dropped, system blocks first, later system texts in place, deferred tools shown where they are
    referred to, and callable from then on."""
    late = {"name": "late", "input_schema": {"type": "object"}, "defer_loading": True}
    hidden = {**late, "name": "placeholder"}
    use = {"type": "tool_use", "id": "toolu_1", "name": "search", "input": {"q": 1}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1",
              "content": [{"type": "tool_reference", "tool_name": "late"}]}  # fmt: skip
    body = {
        **ASK,
        "system": [
            {"type": "text", "text": "x-anthropic-billing-header: abc"},
            {"type": "text", "text": "You help.", "cache_control": {"type": "ephemeral"}},
        ],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Q"}]},
            {"role": "system", "content": "ENV"},
            {"content": [{"type": "text", "text": "A"}, use], "role": "assistant"},
            {"role": "user", "content": [result]},
        ],
        "tools": [BASH, late, hidden],
        "context_management": {"edits": []},
        "safeguards": [1],
    }
    turn, _ = read(PATH, body)
    text = turn.rendered().text
    head, _, talk = text.partition("You help.")
    assert "billing" not in text and '"name": "bash"' in head and "late" not in head
    assert talk.startswith("<｜User｜>Q\n\nENV<｜Assistant｜></think>A")
    assert '<tool_result>{"name":"late","input_schema":{"type": "object"}}</tool_result>' in talk
    assert "placeholder" not in text and [tool.name for tool in turn.callable] == ["bash", "late"]
    assert turn.messages[3].calls == (ToolCall("search", '{"q": 1}', "toolu_1"),) and not turn.results_only
    moved = {**body, "system": [{"type": "text", "text": "You help."}]}
    assert read(PATH, moved)[0].rendered().text == text, "cache_control and the billing line leave no trace"


# --- results without their call


RESULT = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_9", "content": "r"}]}


def known(*ids):
    """A memory of calls."""
    memory = Memory()
    for call_id in ids:
        call = ToolCall("f", "{}", call_id)
        memory.remember(Message("assistant", calls=(call,), raw_dsml=block(call)))
    return memory


def test_results_without_their_call():
    """anthropic_tool_result_id_validation."""
    body = {**ASK, "messages": [RESULT]}
    with pytest.raises(Refused) as refused:
        read(PATH, body, tools=known("toolu_8"))
    assert (refused.value.status, refused.value.message) == (
        400,
        "Anthropic continuation state is not available for tool_use_id toolu_9; "
        "retry by replaying the full messages history",
    )
    assert read(PATH, body, tools=known("toolu_9"))[0].results_only
    assert read(PATH, body, tools=Memory(enabled=False))[0].results_only, "who remembers nothing cannot tell"
    lost = refusals.failed("messages", Failed("continuation", "gone"), 1, {})
    assert lost.status == 409 and lost.headers == {"x-should-retry": "false"}


def test_results_alone_go_on_from_the_live_turn(scripted):
    """9.3: the call is not rendered again; once another one is the last, it is too late."""
    scripted.engine.say(TURN, "</think>Two files.")
    first = scripted.client.post(PATH, json=THINKS).json()
    call = first["content"][-1]
    result = {"type": "tool_result", "tool_use_id": call["id"], "content": "a b"}
    body = {**THINKS, "messages": [{"role": "user", "content": [result]}, {"role": "system", "content": "Go on."}]}
    second = scripted.client.post(PATH, json=body)
    assert second.status_code == 200 and second.json()["content"][-1]["text"] == "Two files."
    usage, before = second.json()["usage"], first["usage"]
    # All that was evaluated is found again, and only the end of the call's turn and what is new is evaluated.
    assert usage["cache_read_input_tokens"] >= before["input_tokens"] + before["output_tokens"]
    assert usage["input_tokens"] < 60
    lost = {**body, "messages": [{"role": "user", "content": [{**result, "tool_use_id": "toolu_0"}]}]}
    refused = scripted.client.post(PATH, json=lost)
    assert refused.status_code == 400 and "for tool_use_id toolu_0; retry" in refused.json()["error"]["message"]
    scripted.worker.timelines.clear()
    refused = scripted.client.post(PATH, json=body)
    assert refused.status_code == 409 and refused.headers["x-should-retry"] == "false"
    assert refused.json()["error"]["message"] == (
        "Anthropic continuation state is not available; retry by replaying the full messages history"
    )


def test_a_full_history_needs_no_live_state():
    """anthropic_full_replay_allows_unknown_live_id, anthropic_tool_use_parses_before_role."""
    use = {"content": [{"type": "tool_use", "id": "toolu_9", "name": "f", "input": {}}], "role": "assistant"}
    assert not read(PATH, {**ASK, "messages": [use, RESULT]}, tools=known())[0].results_only


# --- errors, counting


def test_errors():
    api, reply = Messages(), read(PATH, ASK)[1]
    too_long = refusals.overflow("messages", 40, 32, {})
    assert api.error(too_long) == reply.error(too_long)
    assert api.error(too_long) == (
        b'{"type":"error","error":{"type":"invalid_request_error",'
        b'"message":"prompt is too long: 40 tokens > 32 maximum","n_prompt_tokens":40,"n_ctx":32}}\n'
    )
    kinds = {
        400: "invalid_request_error",
        401: "authentication_error",
        403: "permission_error",
        404: "not_found_error",
        409: "invalid_request_error",
        413: "request_too_large",
        429: "rate_limit_error",
        500: "api_error",
        503: "overloaded_error",
    }
    for status, kind in kinds.items():
        assert json.loads(api.error(Refused(status, "m")))["error"]["type"] == kind
        assert json.loads(api.error(Refused(status, "m", "server_error")))["error"]["type"] == kind
        assert json.loads(api.error(Refused(status, "m", "its_own_error")))["error"]["type"] == "its_own_error"
    options = {"anthropic-errors": False}
    plain = read(PATH, ASK, options=options)[1]
    for data in (plain.error(Refused(404, "m")), refusals.body(api, Refused(404, "m"), options)):
        assert json.loads(data) == {"error": {"message": "m", "type": "invalid_request_error"}}
    assert plain.error(too_long) == refusals.body(api, too_long, options) == api.error(too_long), "that one is its own"
    assert b'"type":"error"' in refusals.body(api, Refused(404, "m"), {})


def test_count_tokens():
    tokenizer = byte_tokenizer()
    body = json.dumps({"model": "m", "messages": ASK["messages"], "tools": [BASH], "system": "S"}).encode()
    found = json.loads(CountTokens().answer(body, about(), tokenizer))
    assert found == {"input_tokens": len(read(PATH, body)[0].rendered().encode(tokenizer))}
    more = json.dumps({**json.loads(body), "thinking": {"type": "enabled"}, "tool_choice": {"type": "none"}}).encode()
    assert json.loads(CountTokens().answer(more, about(), tokenizer))["input_tokens"] < found["input_tokens"]
    alone = json.dumps({"messages": [RESULT]}).encode()
    assert json.loads(CountTokens().answer(alone, about(tools=known()), tokenizer))["input_tokens"] > 5
    with pytest.raises(Refused) as refused:
        CountTokens().answer(body, about(options={"count-tokens": False}), tokenizer)
    assert refused.value.status == 404 and b'"type":"error"' in CountTokens().error(refused.value)
    with pytest.raises(Refused):
        CountTokens().answer(b"{}", about(), tokenizer)


def test_errors_as_the_reference_says_them(serving):
    server = serving(settings=Settings(options={"anthropic-errors": False, "count-tokens": False}))
    missing = server.client.post(PATH, json={})
    assert (missing.status_code, missing.json()) == (
        400,
        {"error": {"message": "missing messages", "type": "invalid_request_error"}},
    )
    counted = server.client.post(PATH + "/count_tokens", json=ASK)
    assert counted.status_code == 404 and counted.json()["error"]["message"] == "unknown endpoint"
    assert "type" not in counted.json()
