"""OpenAI's responses: requests, streams event by event, documents."""

from __future__ import annotations

import json

import pytest

from ds4ref.server.turn import Failed, Prefill, Queued
from ds4ref.targets.answer import CallDelta, Delta, Finish, Usage
from ds4ref.text.chat import Message
from ds4ref.text.dsml import ToolCall

from .answers import MODEL, NOW, data_of, deltas, play, read, tamed
from .responding import ARGUMENTS, ASK, FULL, PATCH, PATH, SEARCH, SPACE, TURN, block, document_of, followed, stream_of

# --- streams


def test_the_tool_turn_of_the_reference(monkeypatch):
    """server.md 7.6 with its first deviation: the reasoning item is closed before the message begins, the message
    before the call, whose arguments come as they are generated."""
    made = iter(["7167a2a270c04be1dd07725d", "861f62ea336aa3e99e823903", "1067095411a65e6f62e373eb",
                 "43f3ca021093b5f80d03b9e9", "563fbede63f43f5c9c262597d10606b3"])  # fmt: skip
    monkeypatch.setattr("ds4ref.server.apis.common.token_hex", lambda n: next(made))
    said = [
        Delta(reasoning="I will list files."),
        Delta("Let me look."),
        Delta(calls=(CallDelta(0, "bash"), CallDelta(0, arguments='{"command":"'))),
        Delta(calls=(CallDelta(0, arguments='ls -la && pwd","timeout":10}'),)),
        Delta(finish=Finish.TOOL_CALLS, usage=Usage(1367, 19, 0, 0)),
    ]
    rs, msg, fc = "rs_861f62ea336aa3e99e823903", "msg_1067095411a65e6f62e373eb", "fc_43f3ca021093b5f80d03b9e9"
    call_id = "call_563fbede63f43f5c9c262597d10606b3"
    summary = '{"type":"summary_text","text":"I will list files."}'
    text = '{"type":"output_text","text":"Let me look.","annotations":[]}'
    arguments = json.dumps(ARGUMENTS)
    items = [
        f'{{"id":"{rs}","type":"reasoning","status":"completed","summary":[{summary}]}}',
        f'{{"id":"{msg}","type":"message","status":"completed","role":"assistant","content":[{text}]}}',
        f'{{"id":"{fc}","type":"function_call","status":"completed","name":"bash","call_id":"{call_id}",'
        f'"arguments":{arguments}}}',
    ]
    head = f'{{"id":"resp_7167a2a270c04be1dd07725d","object":"response","created_at":{NOW},"status":'
    model = f'"model":"{MODEL}"'
    usage = (
        '{"input_tokens":1367,"input_tokens_details":{"cached_tokens":0,"cache_write_tokens":1367},"output_tokens":19,'
        '"output_tokens_details":{"reasoning_tokens":0},"total_tokens":1386}'
    )

    def at(index, item):
        return f'"item_id":"{item}","output_index":{index}'

    wanted = [
        ("created", f'"response":{head}"in_progress",{model},"output":[]}}'),
        (
            "output_item.added",
            f'"output_index":0,"item":{{"id":"{rs}","type":"reasoning","status":"in_progress","summary":[]}}',
        ),
        (
            "reasoning_summary_part.added",
            f'{at(0, rs)},"summary_index":0,"part":{{"type":"summary_text","text":""}}',
        ),
        ("reasoning_summary_text.delta", f'{at(0, rs)},"summary_index":0,"delta":"I will list files."'),
        ("reasoning_summary_text.done", f'{at(0, rs)},"summary_index":0,"text":"I will list files."'),
        ("reasoning_summary_part.done", f'{at(0, rs)},"summary_index":0,"part":{summary}'),
        ("output_item.done", f'"output_index":0,"item":{items[0]}'),
        (
            "output_item.added",
            f'"output_index":1,"item":{{"id":"{msg}","type":"message","status":"in_progress","role":"assistant",'
            '"content":[]}',
        ),
        (
            "content_part.added",
            f'{at(1, msg)},"content_index":0,"part":{{"type":"output_text","text":"","annotations":[]}}',
        ),
        ("output_text.delta", f'{at(1, msg)},"content_index":0,"delta":"Let me look."'),
        ("output_text.done", f'{at(1, msg)},"content_index":0,"text":"Let me look."'),
        ("content_part.done", f'{at(1, msg)},"content_index":0,"part":{text}'),
        ("output_item.done", f'"output_index":1,"item":{items[1]}'),
        (
            "output_item.added",
            f'"output_index":2,"item":{{"id":"{fc}","type":"function_call","status":"in_progress","name":"bash",'
            f'"call_id":"{call_id}","arguments":""}}',
        ),
        ("function_call_arguments.delta", f'{at(2, fc)},"delta":"{{\\"command\\":\\""'),
        (
            "function_call_arguments.delta",
            f'{at(2, fc)},"delta":' + json.dumps('ls -la && pwd","timeout":10}'),
        ),
        ("function_call_arguments.done", f'{at(2, fc)},"name":"bash","arguments":{arguments}'),
        ("output_item.done", f'"output_index":2,"item":{items[2]}'),
        ("completed", f'"response":{head}"completed",{model},"output":[{",".join(items)}],"usage":{usage}}}'),
    ]
    lines = [
        f'data: {{"type":"response.{kind}","sequence_number":{n},{rest}}}\n\n' for n, (kind, rest) in enumerate(wanted)
    ]
    assert stream_of(FULL, said).decode() == "".join(lines)


@pytest.mark.parametrize("size", range(1, len(TURN) + 1, 3))
def test_a_tool_turn_cut_anywhere(size):
    out = stream_of(FULL, deltas(TURN, thinking=True, tools=True, size=size, prompt=1367))
    last, kinds = followed(out)
    assert tamed(last["output"]) == [
        {
            "id": "rs_1",
            "type": "reasoning",
            "status": "completed",
            "summary": [{"type": "summary_text", "text": "I will list files."}],
        },
        {
            "id": "msg_1",
            "type": "message",
            "status": "completed",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "Let me look.", "annotations": []}],
        },
        {
            "id": "fc_1",
            "type": "function_call",
            "status": "completed",
            "name": "bash",
            "call_id": "call_1",
            "arguments": ARGUMENTS,
        },
    ]
    assert kinds[-1] == "completed" and b"DSML" not in out
    if size < 20:
        assert kinds.count("function_call_arguments.delta") > 1, "arguments come as they are generated"


def test_items_as_the_reference_closes_them():
    """Reasoning and message at the end of generation: server.md 0.3 item 1, switched off."""
    options = {"close-reasoning": False}
    said = deltas("Hm.</think>Let me look.", thinking=True, size=4)
    kinds = [event["type"].removeprefix("response.") for event in data_of(stream_of(FULL, said, options=options))]
    late = kinds.index("reasoning_summary_text.done")
    assert kinds[late - 1] == "output_text.delta" and kinds[late + 3] == "output_text.done"
    early = [event["type"].removeprefix("response.") for event in data_of(stream_of(FULL, said))]
    assert early.index("output_item.done") < early.index("output_text.delta")
    # A call comes after both, either way.
    said = deltas(TURN, thinking=True, tools=True)
    last, _ = followed(stream_of(FULL, said))
    assert [item["type"] for item in last["output"]] == ["reasoning", "message", "function_call"]
    other = data_of(stream_of(FULL, said, options=options))[-1]["response"]["output"]
    assert [item["type"] for item in other] == ["reasoning", "message", "function_call"]


@pytest.mark.parametrize(
    ("reasoning", "seen"),
    [({"summary": "auto"}, True), ({"summary": "concise"}, True), ({"summary": "detailed"}, True),
     ({"summary": "none"}, False), ({"summary": None}, False), ({}, False), (None, False)],
)  # fmt: skip
def test_reasoning_is_shown_to_who_asks_for_it(reasoning, seen):
    body = {**ASK, "reasoning": reasoning}
    said = deltas("Hm.</think>Hi", thinking=True)
    last, _ = followed(stream_of(body, said))
    whole = document_of(body, said)
    assert tamed(last["output"]) == tamed(whole["output"])
    assert [item["type"] for item in whole["output"]] == ["reasoning"] * seen + ["message"]
    assert whole["usage"]["output_tokens_details"] == {"reasoning_tokens": 4}


@pytest.mark.parametrize("size", [1, 2, 5, 400])
def test_several_calls_and_one_without_arguments(size):
    calls = ToolCall("bash", '{"command":"grüße 😀 & <b>"}'), ToolCall("pwd", "{}"), ToolCall("bash", '{"n":[1, 2]}')
    said = deltas(block(*calls), tools=True, size=size)
    last, _ = followed(stream_of(FULL, said))
    assert [(item["name"], json.loads(item["arguments"])) for item in last["output"]] == [
        (call.name, json.loads(call.arguments)) for call in calls
    ]
    assert len({item["call_id"] for item in last["output"]}) == 3
    assert tamed(document_of(FULL, said)["output"]) == tamed(last["output"])


@pytest.mark.parametrize("size", [1, 5, 400])
def test_tools_of_a_namespace(size):
    """responses_namespace_tool_schemas_restore_wire_namespace."""
    body = {**ASK, "tools": [SPACE]}
    said = deltas(block(ToolCall("mcp__gmail__send", '{"to":"x"}')), tools=True, size=size)
    last, _ = followed(stream_of(body, said))
    (item,) = last["output"]
    assert (item["name"], item["namespace"]) == ("send", "mcp__gmail__")
    assert list(item)[:5] == ["id", "type", "status", "name", "namespace"]
    named = [e for e in data_of(stream_of(body, said)) if e["type"].endswith(("item.added", "arguments.done"))]
    assert all(e.get("item", e)["namespace"] == "mcp__gmail__" for e in named) and len(named) == 2
    assert tamed(document_of(body, said)["output"]) == tamed(last["output"])
    assert "mcp__gmail__send" in read(PATH, body)[0].rendered().text


@pytest.mark.parametrize("size", [1, 5, 400])
def test_tool_searches(size):
    """responses_output_sends_tool_search_call_item, responses_function_named_tool_search_stays_function_call."""
    arguments = '{"query":"mail","limit":3,"query":"late"}'
    said = deltas(block(ToolCall("tool_search", '{"query":"mail","limit":3}')), tools=True, size=size)
    last, kinds = followed(stream_of({**ASK, "tools": [SEARCH]}, said))
    (item,) = last["output"]
    assert item == {
        "id": item["id"],
        "type": "tool_search_call",
        "status": "completed",
        "call_id": item["call_id"],
        "execution": "client",
        "arguments": {"query": "mail", "limit": 3},
    }
    assert kinds == ["created", "output_item.added", "output_item.done", "completed"]
    added = data_of(stream_of({**ASK, "tools": [SEARCH]}, said))[1]["item"]
    assert added["arguments"] == {}
    function = {"type": "function", "name": "tool_search"}
    assert document_of({**ASK, "tools": [function]}, said)["output"][0]["type"] == "function_call"
    raw = [
        Delta(calls=(CallDelta(0, "tool_search"), CallDelta(0, arguments=arguments))),
        Delta(finish=Finish.TOOL_CALLS, usage=Usage()),
    ]
    assert f'"arguments":{arguments}' in play(read(PATH, {**ASK, "tools": [SEARCH]})[1], raw).decode()


@pytest.mark.parametrize("size", [1, 2, 3, 11, 400])
def test_custom_tools_get_plain_text(size):
    """clients.md 0.2."""
    text = '*** Begin Patch\n+a "quoted" \\ line ü 😀\n*** End Patch'
    call = ToolCall("apply_patch", json.dumps({"input": text}, ensure_ascii=False))
    said = deltas("Now." + block(call), tools=True, size=size)
    body = {**ASK, "tools": [PATCH]}
    last, kinds = followed(stream_of(body, said))
    item = last["output"][1]
    assert item == {
        "id": item["id"],
        "type": "custom_tool_call",
        "status": "completed",
        "call_id": item["call_id"],
        "name": "apply_patch",
        "input": text,
    }
    assert "custom_tool_call_input.delta" in kinds and kinds[-3:-1] == [
        "custom_tool_call_input.done", "output_item.done",
    ]  # fmt: skip
    assert tamed(document_of(body, said)["output"]) == tamed(last["output"])


def test_what_keeps_a_client_waiting():
    """Codex's timer ignores comments; any event of an unknown type sets it back. SDKs want response.created first."""
    _, reply = read(PATH, {**ASK, "stream": True})
    assert reply.feed(Queued(1)) + reply.feed(Prefill(0, 9, 0, "none")) == b""
    first = data_of(reply.alive())
    assert [event["type"] for event in first] == ["response.created", "response.keepalive"]
    second = data_of(reply.alive())
    assert second == [{"type": "response.keepalive", "sequence_number": 2}]
    rest = data_of(b"".join(reply.feed(event) for event in deltas("Hi")))
    assert rest[0]["sequence_number"] == 3 and rest[0]["type"] == "response.output_item.added"
    plain = read(PATH, {**ASK, "stream": True}, options={"json-keepalive": False})[1]
    assert plain.alive() == b": keep-alive\n\n"


@pytest.mark.parametrize("stream", [True, False])
def test_usage_tells_what_was_cached(stream):
    """responses_usage_reports_cache_details."""
    said = deltas("Hm.</think>Hi", thinking=True, cached=1000, prompt=1367)
    usage = (followed(stream_of(ASK, said))[0] if stream else document_of(ASK, said))["usage"]
    assert usage == {
        "input_tokens": 1367,
        "input_tokens_details": {"cached_tokens": 1000, "cache_write_tokens": 367},
        "output_tokens": 6,
        "output_tokens_details": {"reasoning_tokens": 4},
        "total_tokens": 1373,
    }


# --- ends


def test_an_answer_cut_by_the_limit():
    said = deltas("Hm.</think>Let me", thinking=True, finish="length")
    last, kinds = followed(stream_of(FULL, said))
    reason = {"reason": "max_output_tokens"}
    assert kinds[-1] == "incomplete" and last["incomplete_details"] == reason
    assert [item["status"] for item in last["output"]] == ["completed", "incomplete"]
    whole = document_of(FULL, said)
    assert (whole["status"], whole["incomplete_details"]) == ("incomplete", reason)
    assert tamed(whole["output"]) == tamed(last["output"])
    assert list(whole).index("incomplete_details") < list(whole).index("output")
    old = followed(stream_of(FULL, said, options={"limit-reason": False}))[0]
    assert old["incomplete_details"] == {"reason": "max_tokens"}


def test_an_answer_that_was_cut_comes_back():
    """Clients send what they got: a session would be over if the server did not know its own items."""
    whole = document_of(FULL, deltas("Hm", thinking=True))
    assert [item["status"] for item in whole["output"]] == ["incomplete"]
    said = document_of(FULL, deltas("Hm.</think>Let me", thinking=True, finish="length"))
    asked = {"role": "user", "content": "q"}
    history = [asked, *whole["output"], asked, *said["output"], asked]
    turn, _ = read(PATH, {"input": history})
    assert [(m.role, m.content, m.reasoning) for m in turn.messages if m.role == "assistant"] == [
        ("assistant", "", "Hm"), ("assistant", "Let me", "Hm."),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "finish", "status", "whole"),
    [
        ("Hm", "stop", "incomplete", "completed"),
        ("Hm", "length", "incomplete", "incomplete"),
        ("Hm</think>", "stop", "completed", "completed"),
    ],
)
def test_thinking_without_an_answer(text, finish, status, whole):
    """server.md 8.6: reasoning that never ended is incomplete, and the response is what it is."""
    said = deltas(text, thinking=True, finish=finish)
    last, _ = followed(stream_of(FULL, said))
    assert (last["status"], [item["status"] for item in last["output"]]) == (whole, [status])
    assert tamed(document_of(FULL, said)["output"]) == tamed(last["output"])
    quiet = document_of({**ASK}, said)["output"]
    if finish == "length":  # cut in its reasoning: not an answer without anything in it
        assert [(item["type"], item["status"], item["summary"]) for item in quiet] == [("reasoning", "incomplete", [])]
    else:
        assert quiet == []
    assert tamed(followed(stream_of({**ASK}, said))[0]["output"]) == tamed(quiet)


BROKEN = '\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name="bash">\n<｜DSML｜parameter name="c" string="true">ls'


MALFORMED = BROKEN + "</｜DSML｜parameter>\nwhat?</｜DSML｜invoke>\n</｜DSML｜tool_calls>"


@pytest.mark.parametrize(
    ("text", "finish", "status"),
    [(MALFORMED, "stop", "completed"), (BROKEN, "stop", "failed"), (BROKEN, "length", "incomplete")],
)
@pytest.mark.parametrize("size", [1, 7, 400])
def test_a_call_that_is_none(text, finish, status, size):
    """server.md 8.4: in a document the markup is text. In a stream that began an item for it the response fails, for
    what was begun cannot be taken back, and the SDK completes no response with an item that was never done."""
    said = deltas("Look." + text, tools=True, size=size, finish=finish)
    out = stream_of(FULL, said)
    last, _ = followed(out)
    begun = b'"function_call"' in out
    assert begun == (size < 400 or text is BROKEN)
    assert last["status"] == ("failed" if begun and finish == "stop" else status)
    assert all(item["type"] == "message" for item in last["output"])
    seen = "".join(item["content"][0]["text"] for item in last["output"])
    assert seen == "Look." if begun else seen == "Look." + text
    assert last["usage"]["output_tokens"] > 0 < last["usage"]["input_tokens"]
    whole = document_of(FULL, said)
    assert whole["status"] == status and whole["output"][0]["content"][0]["text"] == "Look." + text
    assert ("error" in whole) == (status == "failed")
    if status == "failed":
        assert whole["error"] == {"code": "server_error", "message": "generation failed"}
        assert last["error"] == {"code": "server_error", "message": "the model's tool call was malformed"}
        assert whole["output"][-1]["status"] == "incomplete"


def test_a_failure_after_the_stream_began():
    _, reply = read(PATH, {**ASK, "stream": True})
    out = reply.feed(Delta("x")) + reply.feed(Failed("engine", "it broke"))
    last, kinds = followed(out)
    assert kinds[-1] == "failed" and last["status"] == "failed" and last["output"] == []
    assert last["error"] == {"code": "server_error", "message": "it broke"}
    _, reply = read(PATH, {**ASK, "stream": True})
    reply.alive()
    late = data_of(reply.feed(Failed("context", "too long")))
    assert late[-1]["response"]["error"]["code"] == "context_length_exceeded", "Codex says so instead of trying again"
    assert data_of(stream_of(ASK, [Delta("x"), Delta(finish=Finish.CANCELLED)]))[-1]["type"] == "response.failed"


# --- documents


def test_the_document_of_the_reference():
    """server.md 7.5."""
    said = deltas(TURN, thinking=True, tools=True, prompt=1367)
    out = play(read(PATH, FULL)[1], said, prompt=1367)
    assert not out.endswith(b"\n")
    found = tamed(json.loads(out))
    assert list(found) == ["id", "object", "created_at", "status", "model", "output", "usage"]
    assert (found["id"], found["object"], found["status"], found["created_at"]) == (
        "resp_1", "response", "completed", NOW,
    )  # fmt: skip
    assert tamed(found["output"]) == tamed(followed(stream_of(FULL, said))[0]["output"])


def test_each_call_has_the_id_that_is_remembered():
    _, reply = read(PATH, FULL)
    answer = reply.remember(Message("assistant", calls=(ToolCall("bash", "{}"),), raw_dsml="RAW"))
    out = json.loads(play(reply, deltas(block(ToolCall("bash", "{}")), tools=True)))
    assert out["output"][0]["call_id"] == answer.calls[0].id
