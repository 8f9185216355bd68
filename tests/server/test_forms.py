"""Demanded answers over HTTP, in every API that has them: the model is a script that says something else."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from ds4ref.server.constrain import GrammarError, guide_of
from ds4ref.text.dsml import ToolCall, render_calls

from .understood import CHAT, MESSAGES, RESPONSES, Answer, understood

EACH = pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])

DIGIT = {"type": "integer", "minimum": 7, "maximum": 9}
STRICT = {"type": "object", "properties": {"n": DIGIT}, "required": ["n"], "additionalProperties": False}
OPEN = {"type": "object", "properties": {"w": {"enum": ["x", "y"]}}, "required": ["w"], "additionalProperties": False}
LARK = 'start: "go" " " ("left" | "right") " " /[1-9]/'
HELLO = "Hello there, friend."


def block(*calls: tuple[str, Any]) -> str:
    """What the model writes to make these calls."""
    return "".join(part.text for part in render_calls([ToolCall(name, json.dumps(made)) for name, made in calls]))


def tool(path: str, name: str, schema: Any, **more: Any) -> dict[str, Any]:
    """A function as the API has it."""
    if path == CHAT:
        return {"type": "function", "function": {"name": name, "parameters": schema, **more}}
    if path == MESSAGES:
        return {"name": name, "input_schema": schema, **more}
    return {"type": "function", "name": name, "parameters": schema, **more}


def custom(path: str, name: str, definition: str, syntax: str = "lark") -> dict[str, Any]:
    """A custom tool with a grammar."""
    form = {"type": "grammar", "syntax": syntax, "definition": definition}
    if path == CHAT:
        return {"type": "custom", "custom": {"name": name, "format": {"type": "grammar", "grammar": form}}}
    return {"type": "custom", "name": name, "format": form}


def choice(path: str, kind: str, name: str = "", single: bool = False) -> dict[str, Any]:
    """The members of a body that say which tools are called."""
    if path == MESSAGES:
        kind = {"required": "any", "named": "tool"}.get(kind, kind)
        return {"tool_choice": {"type": kind, "name": name or None, "disable_parallel_tool_use": single}}
    named = {"type": "function", "name": name, "function": {"name": name}}
    return {"tool_choice": named if name else kind, "parallel_tool_calls": not single}


def form(path: str, schema: Any) -> dict[str, Any]:
    """The member of a body that demands JSON of a schema."""
    named = {"type": "json_schema", "name": "made", "schema": schema, "strict": True}
    if path == CHAT:
        return {"response_format": {"type": "json_schema", "json_schema": named}}
    return {"output_config" if path == MESSAGES else "text": {"format": named}}


def asked(server: Any, path: str, stream: bool = False, thinking: bool = False, **more: Any) -> Any:
    """The response to a question."""
    body: dict[str, Any] = {"model": "m", "stream": stream, "max_tokens": 900}
    body["input" if path == RESPONSES else "messages"] = [{"role": "user", "content": "Hi"}]
    if path == RESPONSES:
        body["reasoning"] = {"effort": "high", "summary": "auto"} if thinking else {"effort": "none"}
    else:
        body["thinking"] = {"type": "enabled" if thinking else "disabled"}
    return server.client.post(path, json=body | more)


def told(server: Any, path: str, stream: bool = False, thinking: bool = False, **more: Any) -> Answer:
    """What a client understands of the answer to a question."""
    response = asked(server, path, stream, thinking, **more)
    assert response.status_code == 200, response.text
    answer = understood(path, response.content, stream)
    assert (answer.end == "tools") == bool(answer.calls) or answer.end == "length"
    return answer


def refused(response: Any, path: str, *words: str) -> None:
    """A 400 that says so, in the words of its API."""
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["type"] == "invalid_request_error" and len(error["message"]) < 1000
    assert path != MESSAGES or response.json()["type"] == "error"
    assert all(word in error["message"] for word in words), error["message"]


def fits(name: str, arguments: str) -> bool:
    """Whether the arguments fit the tool: f has STRICT, g has OPEN."""
    made = json.loads(arguments)
    return made in ([{"n": n} for n in (7, 8, 9)] if name == "f" else [{"w": w} for w in "xy"])


BAD, TWO = block(("f", {"n": "no number"})), block(("f", {"n": 7}), ("f", {"n": 9}))
CALLS: dict[str, tuple[str, tuple[Any, ...], bool, bool, list[str] | None, str]] = {
    # script, choice, strict tools, thinking; names of the calls (None: one or more that fit), the text
    "required": ("Hello.", ("required",), False, False, None, ""),
    "named": (block(("f", {"n": 8})), ("named", "g"), False, False, ["g"], ""),
    "none": (BAD, ("none",), True, False, [], BAD),
    "auto, as it likes": ("Just text.", ("auto",), False, False, [], "Just text."),
    "strict, on its own": ("See: " + BAD, ("auto",), True, False, ["f"], "See: "),
    "several": (TWO, ("required",), False, False, ["f", "f"], ""),
    "one at a time": (TWO, ("required", "", True), False, False, ["f"], ""),
    "after thinking": ("I would rather talk.</think>Hello.", ("named", "f"), False, True, ["f"], ""),
    "after thinking cut": ("I end in the middle", ("named", "f"), False, True, ["f"], ""),
}  # fmt: skip


@EACH
@pytest.mark.parametrize("case", CALLS)
def test_calls_are_made_as_demanded(scripted, path, case):
    script, how, strict, thinking, names, text = CALLS[case]
    tools = [tool(path, "f", STRICT, strict=strict), tool(path, "g", OPEN, strict=strict)]
    for stream in (False, True):
        scripted.engine.say(script)
        found = told(scripted, path, stream, thinking, tools=tools, **choice(path, *how))
        assert found.text.strip() == text.strip() and all(fits(name, made) for _, name, made in found.calls)
        assert found.reasoning == script.split("</think>")[0] * thinking
        assert found.calls if names is None else [name for _, name, _ in found.calls] == names


@EACH
def test_answers_have_the_form_that_is_demanded(scripted, path):
    for stream in (False, True):
        scripted.engine.say("Hello!", '{"n": 8}', "Let me think: {</think>no")
        texts = [told(scripted, path, stream, **form(path, STRICT)).text for _ in range(2)]
        assert all(fits("f", text) for text in texts) and texts[1] == '{"n": 8}'
        found = told(scripted, path, stream, thinking=True, **form(path, STRICT))
        assert found.reasoning == "Let me think: {" and fits("f", found.text) and found.end == "stop"
    if path != MESSAGES:
        scripted.engine.say('{"a": [1, "b"]}')
        any_object = {"type": "json_object"}
        more = {"response_format": any_object} if path == CHAT else {"text": {"format": any_object}}
        assert told(scripted, path, **more).text == '{"a": [1, "b"]}'
    # with both, the model chooses, and each is kept
    scripted.engine.say(block(("f", {"n": 8})), '{"w":"y"}', "neither")
    tools = [tool(path, "f", STRICT, strict=True)]
    call, text, either = (told(scripted, path, tools=tools, **form(path, OPEN)) for _ in range(3))
    assert json.loads(call.calls[0][2]) == {"n": 8} and text.text == '{"w":"y"}'
    assert either.calls or fits("g", either.text)


@pytest.mark.parametrize("path", [CHAT, RESPONSES])
def test_text_of_a_grammar(scripted, path):
    """Demanded, and called by the model on its own."""
    for stream, definition, syntax in ((False, LARK, "lark"), (True, "go (left|right) [1-9]", "regex")):
        tools = [custom(path, "walk", definition, syntax)]
        scripted.engine.say("No.", *(block(("walk", {"input": text})) for text in ("go nowhere", "go left 3")))
        for how in (choice(path, "required", single=True), {}, {}):
            calls = told(scripted, path, stream, tools=tools, **how).calls
            assert all(re.fullmatch("go (left|right) [1-9]", text) for _, _, text in calls) and len(calls) > 0
            assert len(calls) == 1 or not how
        assert calls[0][1:] == ("walk", "go left 3")


REFUSED: dict[str, Any] = {
    'Unimplemented keys: ["not"]': {"not": {"type": "null"}},
    "'https://example.com/s.json'": {"$ref": "https://example.com/s.json"},
    "'file:///etc/passwd'": {"properties": {"a": {"$ref": "file:///etc/passwd"}}},
    "look-around": {"properties": {"a": {"type": "string", "pattern": "(?=a)b"}}},
}  # fmt: skip


@EACH
def test_what_cannot_be_kept_is_named(scripted, path):
    for words, schema in REFUSED.items():
        refused(asked(scripted, path, **form(path, schema)), path, words)
        inner = {"type": "object", "properties": {"p": schema}, "required": ["p"]}
        for how in (choice(path, "required"), choice(path, "named", "odd"), {}):
            refused(asked(scripted, path, tools=[tool(path, "odd", inner, strict=True)], **how), path, words, "odd")
        # A tool that is neither demanded nor strict may be what it likes, and so may a form that is not there.
        assert asked(scripted, path, tools=[tool(path, "odd", inner)]).status_code == 200


def test_hostile_demands_are_refused_while_another_answer_is_generated(serving):
    """Their cost is not the inference thread's: that one stands still here, in the middle of an answer."""
    server = serving(ctx=1 << 15)
    server.engine.hold()
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(told, server, CHAT)
        server.engine.held()
        for schema in REFUSED.values():
            refused(asked(server, CHAT, **form(CHAT, schema)), CHAT)
        assert not answer.done()
        server.engine.release()
        assert answer.result(60).text == HELLO


@EACH
def test_a_grammar_that_becomes_too_much_ends_one_answer_and_nothing_else(serving, path):
    def broken(generation: Any, logits: Any) -> None:
        if len(generation.tokens) >= 3:
            raise GrammarError("no token fits the grammar of the answer: too many states")

    guide = SimpleNamespace(fresh=lambda: broken)
    server = serving(constrain=lambda turn, tokenizer: guide if turn.format else None)
    assert b"too many states" in asked(server, path, True, **form(path, STRICT)).content
    refused(asked(server, path, **form(path, STRICT)), path, "too many states")
    assert told(server, path).text == HELLO


def test_a_server_may_keep_reasoning_short(serving):
    """Random weights never end it."""
    server = serving(constrain=partial(guide_of, max_reasoning=20))
    for path in (CHAT, MESSAGES, RESPONSES):
        server.engine.say("z" * 500)
        found = told(server, path, thinking=True, **form(path, STRICT))
        assert found.end == "stop" and fits("f", found.text) and found.reasoning == "z" * 20
