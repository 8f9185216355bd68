"""What the scripted server says: a call that fits whatever tool an agent brought, then the word that came back."""

from __future__ import annotations

import json

import pytest

from ds4ref.cli import scripted
from ds4ref.conformance.task import FILE, SECRET, task
from ds4ref.server.turn import Turn
from ds4ref.text.chat import Message
from ds4ref.text.dsml_parser import parse
from ds4ref.text.schemas import read_schemas
from tests.server.answers import read
from tests.server.conftest import running
from tests.server.test_recordings import one

NOTE = "/tmp/x/secret-note.txt"
ASK = Message("user", f"Read the file {NOTE} with one of your tools.")
TEXT = {"type": "string"}


def tools(*declared):
    return tuple(read_schemas(json.dumps([{"type": "function", "function": one} for one in declared])))


def tool(name, required=(), **properties):
    return {"name": name, "parameters": {"type": "object", "properties": properties, "required": list(required)}}


def call(turn):
    """The call that is made: its name and arguments."""
    (found,) = parse(scripted.answer(turn), False).calls
    return found.name, json.loads(found.arguments)


@pytest.mark.parametrize(
    ("declared", "wanted"),
    [
        (tool("exec_command", ["cmd"], cmd=TEXT, workdir=TEXT), {"cmd": f"cat {NOTE}"}),
        (tool("shell", ["command"], command={"type": "array"}), {"command": ["cat", NOTE]}),
        (tool("Bash", ["command"], command=TEXT, timeout={"type": "number"}), {"command": f"cat {NOTE}"}),
        (tool("run_shell_command", ["command", "is_background"], command=TEXT, is_background={"type": "boolean"}),
         {"command": f"cat {NOTE}", "is_background": False}),
        (tool("Read", ["file_path"], file_path=TEXT, limit={"type": "integer"}), {"file_path": NOTE}),
        (tool("read", ["filePath", "reason", "mode"], filePath=TEXT, reason=TEXT, mode={"enum": ["r", "w"]}),
         {"filePath": NOTE, "reason": "to read a file", "mode": "r"}),
        (tool("view", ["path", "lines", "at", "more"], path=TEXT, lines={"type": "array"}, at={"minimum": 3,
              "type": ["integer", "null"]}, more={"type": "null"}), {"path": NOTE, "lines": [], "at": 3, "more": None}),
    ],
)  # fmt: skip
def test_a_call_fits_its_tool(declared, wanted):
    other = tool("write", ["path", "text"], path=TEXT, text=TEXT)
    assert call(Turn("chat", messages=(ASK,), tools=tools(other, declared))) == (declared["name"], wanted)


@pytest.mark.parametrize(
    "name", ["claude_tool_turn", "codex_tool_turn", "opencode_tool_turn", "pi_chat_tool_turn", "qwen_parallel_calls"]
)
def test_every_recorded_agent_is_led_on(name):
    """The tools that agents really bring have one that the script can call."""
    turns = (read(*one(name, n))[0] for n in range(3))
    turn = next(turn for turn in turns if turn.tools)
    made = scripted.call_of(list(turn.tools), NOTE)
    assert made is not None and NOTE in made.arguments


def test_a_task(tmp_path):
    first, other = task(tmp_path), task(tmp_path)
    assert first.word != other.word and SECRET.fullmatch(first.word)
    assert FILE.findall(first.prompt) == [str(first.note)] and first.word not in first.prompt
    assert other.word in other.note.read_text()


@pytest.mark.thorough
@pytest.mark.parametrize("api", ["chat", "responses", "messages"])
def test_a_whole_turn_over_the_embedded_model(nano_engine, tmp_path, api):
    """Call, result, answer, through the real worker: only the words are scripted."""
    from ds4ref.server.worker import Worker

    given = task(tmp_path)
    schema = {"type": "object", "properties": {"path": TEXT}, "required": ["path"]}
    with running(Worker(nano_engine, ctx=4096, constrain=scripted.guide_of)) as server:
        ask = {"role": "user", "content": given.prompt}
        if api == "chat":
            post = lambda **body: server.client.post("/v1/chat/completions", json=body).json()  # noqa: E731
            use = {"tools": [{"type": "function", "function": {"name": "read", "parameters": schema, "strict": True}}]}
            message = post(messages=[ask], **use)["choices"][0]["message"]
            (made,) = message["tool_calls"]
            assert json.loads(made["function"]["arguments"]) == {"path": str(given.note)}
            assert message["reasoning_content"] == scripted.THOUGHT
            result = {"role": "tool", "tool_call_id": made["id"], "content": given.note.read_text()}
            found = post(messages=[ask, message, result], **use)
            assert given.word in found["choices"][0]["message"]["content"]
            assert found["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
        elif api == "responses":
            post = lambda **body: server.client.post("/v1/responses", json=body).json()  # noqa: E731
            use = {"tools": [{"type": "function", "name": "read", "parameters": schema}]}
            items = post(input=[ask], **use)["output"]
            assert json.loads(items[-1]["arguments"]) == {"path": str(given.note)}
            result = {"type": "function_call_output", "call_id": items[-1]["call_id"], "output": given.note.read_text()}
            assert given.word in json.dumps(post(input=[ask, *items, result], **use)["output"])
        else:
            post = lambda **body: server.client.post("/v1/messages", json={"max_tokens": 999, **body}).json()  # noqa: E731
            use = {"tools": [{"name": "read", "input_schema": schema}]}
            blocks = post(messages=[ask], **use)["content"]
            assert blocks[-1]["input"] == {"path": str(given.note)}
            result = {"type": "tool_result", "tool_use_id": blocks[-1]["id"], "content": given.note.read_text()}
            said = [ask, {"role": "assistant", "content": blocks}, {"role": "user", "content": [result]}]
            assert given.word in post(messages=said, **use)["content"][-1]["text"]


def test_what_a_request_demands_comes_before_the_script(nano_engine):
    from ds4ref.server.worker import Worker

    form = {"type": "object", "properties": {"title": {"enum": ["a", "b"]}}, "required": ["title"],
            "additionalProperties": False}  # fmt: skip
    with running(Worker(nano_engine, ctx=2048, constrain=scripted.guide_of)) as server:
        body = {"messages": [{"role": "user", "content": "A title"}], "max_tokens": 99, "reasoning_effort": "none",
                "response_format": {"type": "json_schema", "json_schema": {"name": "t", "schema": form}}}  # fmt: skip
        found = server.client.post("/v1/chat/completions", json=body).json()
        assert json.loads(found["choices"][0]["message"]["content"])["title"] in ("a", "b")
        echo = {"prompt": "Once", "echo": True, "max_tokens": 1}
        found = server.client.post("/v1/completions", json=echo).json()
        assert found["choices"][0]["text"].startswith("Once")
