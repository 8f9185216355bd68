"""Prompts and answers of profiles 0731 and v4.1 against what DeepSeek's own encoder and parser made of them.

The golden file holds 225 conversations and 93 outputs by deepseek-recipe 0.2.0 (tests/data/README.md). Requests of
other APIs than Chat Completions: tests/server/test_profiles.py.
"""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

import pytest

from ds4ref.text.chat import Message
from ds4ref.text.dsml import ToolCall
from ds4ref.text.dsml_events import ArgumentsDelta, CallStart, Event, ReasoningDelta, TextDelta
from ds4ref.text.official import PROFILES, Chat, Tool, loads, render, strict_schema
from ds4ref.text.official_parser import OfficialParser
from ds4ref.text.stream import StopHolder

GOLDEN = json.loads(lzma.decompress((Path(__file__).parents[1] / "data/encoding/golden.json.xz").read_bytes()))
VERSIONS = {"v4": "0731", "v41": "v4.1"}
EFFORTS = {"none": None, "minimal": "low", "low": "low", "ultra": "max", "max": "max"}
GARBAGE = {("call_missing_string_attr", "v41")}
"""Outputs of which the official parser makes something by accident: a name that ends at any space."""


def text_of(content: Any, image: str) -> str:
    if isinstance(content, list):
        return "\n\n".join(part.get("text", image) for part in content)
    return content or ""


def message(fields: dict[str, Any], image: str) -> Message:
    calls = [call["function"] | {"id": call["id"]} for call in fields.get("tool_calls") or ()]
    result = fields.get("tool_call_id")
    return Message(
        fields["role"], text_of(fields["content"], image), fields.get("reasoning_content") or "",
        tuple(ToolCall(call["name"], call["arguments"], call["id"]) for call in calls),
        result_ids=(result,) if result else (), prefix=fields.get("prefix", False),
        tools=tuple(tool(one) for one in fields.get("tools") or ()),
    )  # fmt: skip


def tool(declared: Any) -> Tool:
    if isinstance(declared, dict):
        function = declared["function"]
        parameters = function.get("parameters") or {}
        parameters = strict_schema(parameters) if function.get("strict") else parameters
        return Tool(function["name"], function.get("description") or "", parameters)
    name, description, parameters, *more = declared
    return Tool(name, description or "", parameters or {}, deferred=bool(more[1:] and more[1]))


def chat_of(case: dict[str, Any], image: str) -> Chat:
    """Return a golden request as a conversation."""
    body = case["request"]
    messages = [message(fields, image) for fields in body["messages"]]
    if case["kind"] != "direct":  # requests drop empty system texts
        messages = [m for m in messages if m.role != "system" or m.content]
    effort = EFFORTS.get(body.get("reasoning_effort", "high"), "high")
    asked = body.get("thinking")
    thinking = asked["type"] == "enabled" if isinstance(asked, dict) else effort is not None if asked is None else asked
    tools, choice = [tool(one) for one in body.get("tools", ())], body.get("tool_choice", "auto")
    if isinstance(choice, dict):
        tools = [one for one in tools if one.name == choice["function"]["name"]]
        choice = "required"
    wanted: Any = body.get("response_schema", body.get("response_format"))
    if isinstance(wanted, dict) and "type" in wanted and "response_schema" not in body:
        kinds = {"json_object": "json_object", "json_schema": wanted.get("json_schema", {}).get("schema")}
        wanted = kinds.get(wanted["type"])
    return Chat(messages, tools, thinking, effort or "high", choice, wanted)


CASES = [
    (case, version) for case in GOLDEN["conversations"] for version in VERSIONS
    if case["kind"] in ("chat", "direct") and "prompt" in case[version]
]  # fmt: skip


@pytest.mark.parametrize(("case", "version"), CASES, ids=[f"{case['name']}-{version}" for case, version in CASES])
def test_golden_prompts(case: dict[str, Any], version: str) -> None:
    profile = PROFILES[VERSIONS[version]]
    rendered = render(chat_of(case, profile.image), profile, escapes=False)
    assert rendered.text == case[version]["prompt"]
    at, control = 0, []
    for text, pattern in rendered.parts:
        control += [[at + m.start(), at + m.end()] for m in pattern.finditer(text)] if pattern else []
        at += len(text)
    if "<｜image｜>" not in rendered.text:  # the official encoder's token for a picture, which no text model has
        assert control == case[version]["special_ranges"]


@pytest.mark.parametrize("name", ["tool_special", "args_quote_name", "direct_odd_names"])
@pytest.mark.parametrize("version", VERSIONS)
def test_escapes_keep_what_would_end_a_value_inside_it(name: str, version: str) -> None:
    case = next(case for case in GOLDEN["conversations"] if case["name"] == name)
    profile = PROFILES[VERSIONS[version]]
    official, ours = (render(chat_of(case, ""), profile, escapes=escapes).text for escapes in (False, True))
    assert ours != official
    assert ours.replace("&lt;", "<").replace("&quot;", '"').replace("&gt;", ">").replace("&amp;", "&") == official


@pytest.mark.parametrize("name", PROFILES)
def test_a_value_does_not_end_at_its_own_tag(name: str) -> None:
    tag = PROFILES[name].tags
    evil = f"a{tag.param_close}b &lt;{tag.param_close[1:]}"
    call = ToolCall("f", json.dumps({"k": evil, "l": [evil]}))
    assert render(Chat([Message("assistant", calls=(call,))]), PROFILES[name]).text.count(tag.param_close) == 2


@pytest.mark.parametrize("text", ['{"a": 1e400}', '{"a": "\\ud800"}', '{"a": NaN}', '{"a": 1} x', '{"a":'])
def test_what_is_no_json_is_one_text(text: str) -> None:
    with pytest.raises(ValueError):
        loads(text)


REFUSED_SCHEMAS: dict[str, Any] = {
    "no object": {"type": "string"},
    "no type": {"type": "object", "properties": {"a": {"enum": ["x"]}}},
    "an unknown type": {"type": "object", "properties": {"a": {"type": "date"}}},
    "an unknown format": {"type": "object", "properties": {"a": {"type": "string", "format": "date"}}},
    "a bound of text": {"type": "object", "properties": {"a": {"type": "integer", "minimum": "1"}}},
    "items missing": {"type": "object", "properties": {"a": {"type": "array"}}},
    "an empty object inside": {"type": "object", "properties": {"a": {"type": "object"}}},
    "an optional property": {"type": "object", "properties": {"a": {"type": "null"}}, "required": []},
    "other properties": {"type": "object", "properties": {}, "additionalProperties": True},
    "a reference among choices": {"type": "object", "properties": {"a": {"anyOf": [{"$ref": "#"}]}}},
    "a reference to a number": {"type": "object", "properties": {"a": {"$ref": 1}}},
}


@pytest.mark.parametrize("case", REFUSED_SCHEMAS)
def test_a_strict_schema_that_the_api_refuses(case: str) -> None:
    with pytest.raises(ValueError, match="strict"):
        strict_schema(REFUSED_SCHEMAS[case])


OUTPUTS = [
    (case, version) for case in GOLDEN["outputs"] for version in VERSIONS
    if (case["name"], version) not in GARBAGE and not case["settings"].get("json")
]  # fmt: skip


def parser_of(settings: dict[str, Any]) -> OfficialParser:
    stage = settings.get("stage")
    return OfficialParser(stage in ("R", "C"), settings.get("tools", True), stage in ("C", "A"), "starts" in settings)


@pytest.mark.parametrize("cut", [1, 3, 7, 10_000])
@pytest.mark.parametrize(("case", "version"), OUTPUTS, ids=[f"{case['name']}-{version}" for case, version in OUTPUTS])
def test_golden_outputs(case: dict[str, Any], version: str, cut: int) -> None:
    text, settings = case[version]["text"], case["settings"]
    parser, stops = parser_of(settings), StopHolder(settings.get("stop", ()))
    events: list[Event] = []
    for start in range(0, len(text), cut):
        events += parser.feed(text[start : start + cut])
    events += parser.finish()
    content = "".join(event.text for event in events if isinstance(event, TextDelta))
    content = stops.feed(content) + stops.finish()
    calls = [{"name": event.name, "arguments": ""} for event in events if isinstance(event, CallStart)]
    for event in events:
        if isinstance(event, ArgumentsDelta):
            calls[event.index]["arguments"] += event.fragment
    reasoning = "".join(event.text for event in events if isinstance(event, ReasoningDelta))
    wanted = case[version]["result"]
    assert {"reasoning": reasoning, "content": content, "calls": calls, "finish": wanted["finish"]} == wanted
    assert [(call.name, call.arguments) for call in parser.result.calls] == [(c["name"], c["arguments"]) for c in calls]
    assert bool(calls) == (wanted["finish"] == "tool_calls") or settings.get("finish")


def test_a_name_with_a_space_stays_whole() -> None:
    """The official parser ends it at the space, and streams what is no JSON."""
    block = render(Chat([Message("assistant", calls=(ToolCall("f", '{"my key": "v"}'),))]), PROFILES["0731"]).text
    parser = OfficialParser(thinking=False)
    parser.feed(block[block.index("\n\n<") :])
    assert [json.loads(call.arguments) for call in parser.result.calls] == [{"my key": "v"}]
