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
