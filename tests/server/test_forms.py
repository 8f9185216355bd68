"""Demanded answers over HTTP, in every API that has them: the model is a script that says something else."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from ds4ref.server.constrain import GrammarError, guide_of
from ds4ref.server.turn import Choice, Turn
from ds4ref.text.chat import Message
from ds4ref.text.dsml import ToolCall, render_calls
from ds4ref.text.schemas import read_schemas

from .answers import data_of, events_of

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
EACH = pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
BOTH = pytest.mark.parametrize("stream", [False, True], ids=["document", "stream"])

DIGIT = {"type": "integer", "minimum": 7, "maximum": 9}
STRICT = {"type": "object", "properties": {"n": DIGIT}, "required": ["n"], "additionalProperties": False}
OPEN = {"type": "object", "properties": {"w": {"enum": ["x", "y"]}}, "required": ["w"], "additionalProperties": False}
LARK = 'start: "go" " " ("left" | "right") " " /[1-9]/'


def block(*calls):
    """What the model writes to make these calls."""
    return "".join(part.text for part in render_calls([ToolCall(name, json.dumps(made)) for name, made in calls]))


def tool(path, name, schema, **more):
    """A function as the API has it."""
    match path:
        case "/v1/chat/completions":
            return {"type": "function", "function": {"name": name, "parameters": schema, **more}}
        case "/v1/messages":
            return {"name": name, "input_schema": schema, **more}
    return {"type": "function", "name": name, "parameters": schema, **more}


def custom(path, name, definition, syntax="lark"):
    """A custom tool with a grammar."""
    form = {"type": "grammar", "syntax": syntax, "definition": definition}
    if path == CHAT:
        form = {"type": "grammar", "grammar": {"syntax": syntax, "definition": definition}}
        return {"type": "custom", "custom": {"name": name, "format": form}}
    return {"type": "custom", "name": name, "format": form}


def choice(path, kind, name=""):
    """The member of a body that says which tools are called."""
    if path == MESSAGES:
        kind = {"required": "any", "named": "tool"}.get(kind, kind)
        return {"tool_choice": {"type": kind, "name": name} if name else {"type": kind}}
    if kind != "named":
        return {"tool_choice": kind}
    named = (
        {"type": "function", "name": name} if path == RESPONSES else {"type": "function", "function": {"name": name}}
    )
    return {"tool_choice": named}


def form(path, schema):
    """The member of a body that demands JSON of a schema."""
    named = {"name": "made", "schema": schema, "strict": True}
    match path:
        case "/v1/chat/completions":
            return {"response_format": {"type": "json_schema", "json_schema": named}}
        case "/v1/messages":
            return {"output_config": {"format": {"type": "json_schema", "schema": schema}}}
    return {"text": {"format": {"type": "json_schema", **named}}}


def asked(server, path, stream=False, thinking=False, **more):
    """The response to a question."""
    body = {"model": "m", "stream": stream, "max_tokens": 900}
    body["input" if path == RESPONSES else "messages"] = [{"role": "user", "content": "Hi"}]
    if path == RESPONSES:
        body["reasoning"] = {"effort": "high", "summary": "auto"} if thinking else {"effort": "none"}
        body["max_output_tokens"] = body.pop("max_tokens")
    else:
        body["thinking"] = {"type": "enabled" if thinking else "disabled"}
    return server.client.post(path, json=body | more)


def told(response, path, stream=False):
    """(text, reasoning, calls as (name, arguments), how it ended in OpenAI's words) of a response."""
    assert response.status_code == 200, response.text
    return {CHAT: chat, MESSAGES: message, RESPONSES: a_response}[path](response.content, stream)


def chat(data, stream):
    if not stream:
        (made,) = json.loads(data)["choices"]
        calls = made["message"].get("tool_calls", [])
        found = [(one[one["type"]]["name"], one[one["type"]].get("arguments", one[one["type"]].get("input")))
                 for one in calls]  # fmt: skip
        return made["message"]["content"], made["message"].get("reasoning_content", ""), found, made["finish_reason"]
    text, reasoning, calls, finish = "", "", [], ""
    for event in data_of(data)[:-1]:
        for part in event["choices"]:
            delta, finish = part["delta"], part["finish_reason"] or finish
            text, reasoning = text + delta.get("content", ""), reasoning + delta.get("reasoning_content", "")
            for call in delta.get("tool_calls", []):
                inner = call.get("function") or call["custom"]
                if "id" in call:
                    calls.append((inner["name"], ""))
                name, made = calls[call["index"]]
                calls[call["index"]] = name, made + inner.get("arguments", inner.get("input", ""))
    return text, reasoning, calls, finish


ENDS = {"end_turn": "stop", "tool_use": "tool_calls", "max_tokens": "length"}


def message(data, stream):
    if not stream:
        found = json.loads(data)
        blocks, why = found["content"], found["stop_reason"]
    else:
        blocks, why = [], ""
        for _, text in events_of(data):
            event = json.loads(text)
            if event["type"] == "content_block_start":
                blocks.append({**event["content_block"], "json": ""})
            elif event["type"] == "content_block_delta":
                for name, key in (("text", "text"), ("thinking", "thinking"), ("json", "partial_json")):
                    if key in event["delta"]:
                        blocks[-1][name] += event["delta"][key]
            elif event["type"] == "message_delta":
                why = event["delta"]["stop_reason"]
    text = "".join(one["text"] for one in blocks if one["type"] == "text")
    reasoning = "".join(one["thinking"] for one in blocks if one["type"] == "thinking")
    calls = [(one["name"], one.get("json") or json.dumps(one["input"])) for one in blocks if one["type"] == "tool_use"]
    return text, reasoning, calls, ENDS[why]


def a_response(data, stream):
    found = data_of(data)[-1]["response"] if stream else json.loads(data)
    items = found["output"]
    text = "".join(one["content"][0]["text"] for one in items if one["type"] == "message")
    reasoning = "".join(one["summary"][0]["text"] for one in items if one["type"] == "reasoning")
    calls = [(one["name"], one.get("arguments", one.get("input"))) for one in items if "call_id" in one]
    how = {"completed": "tool_calls" if calls else "stop", "incomplete": "length"}[found["status"]]
    return text, reasoning, calls, how


def refused(response, path, *words):
    """A 400 that says so, in the words of its API."""
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["type"] == "invalid_request_error" and len(error["message"]) < 1000
    assert path != MESSAGES or response.json()["type"] == "error"
    for word in words:
        assert word in error["message"], error["message"]


# --- tool_choice


@EACH
@BOTH
def test_a_call_that_is_required(scripted, path, stream):
    tools = [tool(path, "f", STRICT), tool(path, "g", OPEN)]
    text, _, calls, finish = told(asked(scripted, path, stream, tools=tools, **choice(path, "required")), path, stream)
    assert text == "" and finish == "tool_calls" and calls
    for name, arguments in calls:
        made = json.loads(arguments)
        assert made in ([{"n": n} for n in (7, 8, 9)] if name == "f" else [{"w": w} for w in "xy"])


@EACH
@BOTH
def test_a_tool_that_is_named(scripted, path, stream):
    """Whatever else the model would call."""
    scripted.engine.say(block(("f", {"n": 8})))
    tools = [tool(path, "f", STRICT), tool(path, "g", OPEN)]
    answer = asked(scripted, path, stream, tools=tools, **choice(path, "named", "g"))
    text, _, calls, finish = told(answer, path, stream)
    assert (text, finish) == ("", "tool_calls") and [name for name, _ in calls] == ["g"]
    assert json.loads(calls[0][1])["w"] in "xy"


@EACH
def test_no_call_at_all(scripted, path):
    """What would be one is text: the tools are not there."""
    scripted.engine.say(block(("f", {"n": 8})))
    answer = asked(scripted, path, tools=[tool(path, "f", STRICT, strict=True)], **choice(path, "none"))
    text, _, calls, finish = told(answer, path)
    assert not calls and finish == "stop" and "tool_calls" in text


@EACH
def test_what_the_model_likes(scripted, path):
    """ "auto": text, a call, or both; arguments as they come, as the tool is not strict."""
    tools = [tool(path, "f", STRICT)]
    scripted.engine.say("Just text.", "See: " + block(("f", {"n": "no number"})))
    for how in (choice(path, "auto"), {}):
        text, _, calls, finish = told(asked(scripted, path, tools=tools, **how), path)
        if how:
            assert (text, calls, finish) == ("Just text.", [], "stop")
        else:
            assert text.strip() == "See:" and json.loads(calls[0][1]) == {"n": "no number"} and finish == "tool_calls"


@EACH
@BOTH
def test_a_strict_tool_that_the_model_calls_on_its_own(scripted, path, stream):
    scripted.engine.say("See: " + block(("f", {"n": "no number"})))
    answer = asked(scripted, path, stream, tools=[tool(path, "f", STRICT, strict=True), tool(path, "g", OPEN)])
    text, _, calls, finish = told(answer, path, stream)
    assert text.strip() == "See:" and finish == "tool_calls" and calls[0][0] == "f"
    assert json.loads(calls[0][1])["n"] in (7, 8, 9)


@EACH
def test_one_call_at_a_time(scripted, path):
    tools, two = [tool(path, "f", STRICT)], block(("f", {"n": 7}), ("f", {"n": 9}))
    scripted.engine.say(two, two)
    _, _, calls, _ = told(asked(scripted, path, tools=tools, **choice(path, "required")), path)
    assert [json.loads(made)["n"] for _, made in calls] == [7, 9]
    demanded = choice(path, "required")
    if path == MESSAGES:
        demanded["tool_choice"]["disable_parallel_tool_use"] = True
    else:
        demanded["parallel_tool_calls"] = False
    _, _, calls, _ = told(asked(scripted, path, tools=tools, **demanded), path)
    assert [json.loads(made)["n"] for _, made in calls] == [7]


@EACH
@BOTH
def test_thinking_comes_before_a_call(scripted, path, stream):
    tools = [tool(path, "f", STRICT)]
    scripted.engine.say("I would rather talk.</think>Hello.", "I end in the middle", "</think>")
    for thought in ("I would rather talk.", "I end in the middle", ""):
        answer = asked(scripted, path, stream, True, tools=tools, **choice(path, "named", "f"))
        text, reasoning, calls, finish = told(answer, path, stream)
        assert (text, reasoning, finish) == ("", thought, "tool_calls")
        assert [name for name, _ in calls] == ["f"] and json.loads(calls[0][1])["n"] in (7, 8, 9)


# --- answers of a form


@EACH
@BOTH
def test_json_of_a_schema(scripted, path, stream):
    scripted.engine.say("Hello!", '{"n": 8}')
    for _ in range(2):
        text, _, calls, finish = told(asked(scripted, path, stream, **form(path, STRICT)), path, stream)
        assert json.loads(text)["n"] in (7, 8, 9) and not calls and finish == "stop"
    assert text == '{"n": 8}'


@pytest.mark.parametrize("path", [CHAT, RESPONSES])
def test_any_object(scripted, path):
    kind = {"type": "json_object"}
    scripted.engine.say("[1]", '{"a": [1, "b"]}')
    for _ in range(2):
        answer = asked(scripted, path, **({"response_format": kind} if path == CHAT else {"text": {"format": kind}}))
        text, _, _, finish = told(answer, path)
        if finish == "length":  # random weights may never end it
            assert text.startswith("{")
        else:
            assert finish == "stop" and isinstance(json.loads(text), dict)
    assert text == '{"a": [1, "b"]}'


@EACH
def test_a_form_or_a_call(scripted, path):
    """With both, the model chooses, and each is kept."""
    tools = [tool(path, "f", STRICT, strict=True)]
    scripted.engine.say(block(("f", {"n": 8})), '{"w":"y"}', "neither")
    made = [told(asked(scripted, path, tools=tools, **form(path, OPEN)), path) for _ in range(3)]
    assert [calls for _, _, calls, _ in made][0] == [("f", '{"n":8}')] or json.loads(made[0][2][0][1]) == {"n": 8}
    assert made[1][0] == '{"w":"y"}'
    assert made[2][2] or json.loads(made[2][0])["w"] in "xy"


@EACH
def test_thinking_comes_before_a_form(scripted, path):
    scripted.engine.say("Let me think: {</think>no")
    text, reasoning, _, finish = told(asked(scripted, path, thinking=True, **form(path, STRICT)), path)
    assert reasoning == "Let me think: {" and json.loads(text)["n"] in (7, 8, 9) and finish == "stop"


# --- custom tools


@pytest.mark.parametrize("path", [CHAT, RESPONSES])
@BOTH
@pytest.mark.parametrize("syntax", ["lark", "regex"])
def test_text_of_a_grammar(scripted, path, stream, syntax):
    """Demanded, and called by the model on its own."""
    definition = LARK if syntax == "lark" else "go (left|right) [1-9]"
    tools = [custom(path, "walk", definition, syntax)]
    scripted.engine.say("No.", block(("walk", {"input": "go nowhere"})), block(("walk", {"input": "go left 3"})))
    for how in (choice(path, "required") | {"parallel_tool_calls": False}, {}, {}):
        _, _, calls, finish = told(asked(scripted, path, stream, tools=tools, **how), path, stream)
        assert finish == "tool_calls" and {name for name, _ in calls} == {"walk"}
        assert all(re.fullmatch("go (left|right) [1-9]", text) for _, text in calls), calls
        assert len(calls) == 1 or not how
    assert calls[0][1] == "go left 3"


# --- what is refused


REFUSED = {
    'Unimplemented keys: ["not"]': {"not": {"type": "null"}},
    "'https://example.com/s.json'": {"$ref": "https://example.com/s.json"},
    "'file:///etc/passwd'": {"properties": {"a": {"$ref": "file:///etc/passwd"}}},
    "look-around": {"properties": {"a": {"type": "string", "pattern": "(?=a)b"}}},
}  # fmt: skip


@EACH
@pytest.mark.parametrize("words", REFUSED)
def test_what_cannot_be_kept_is_named(scripted, path, words):
    schema = REFUSED[words]
    refused(asked(scripted, path, **form(path, schema)), path, words)
    inner = {"type": "object", "properties": {"p": schema}, "required": ["p"]}
    for how in (choice(path, "required"), choice(path, "named", "odd"), {}):
        refused(asked(scripted, path, tools=[tool(path, "odd", inner, strict=True)], **how), path, words, "odd")
    # A tool that is neither demanded nor strict may be what it likes, and so may a form that is not there.
    assert asked(scripted, path, tools=[tool(path, "odd", inner)]).status_code == 200


@EACH
def test_calls_of_tools_that_are_not_there(scripted, path):
    refused(asked(scripted, path, **choice(path, "required")), path, "no tools")
    refused(asked(scripted, path, tools=[tool(path, "f", STRICT)], **choice(path, "named", "h")), path, "'h'")


@pytest.mark.parametrize("path", [CHAT, RESPONSES])
def test_grammars_that_cannot_be_kept(scripted, path):
    for definition, syntax, word in (
        ("start: missing", "lark", "unknown name"),
        ("root ::= x", "gbnf", "gbnf"),
        ("(" * 3000, "regex", "invalid regex"),
        ('start: %json {"not": {}}', "lark", "Unimplemented keys"),
    ):
        refused(asked(scripted, path, tools=[custom(path, "odd", definition, syntax)]), path, word)


def test_hostile_demands_are_refused_while_another_answer_is_generated(serving):
    """Their cost is not the inference thread's: that one stands still here, in the middle of an answer."""
    server = serving(ctx=1 << 15)
    server.engine.hold()
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(asked, server, CHAT)
        server.engine.held()
        for schema in REFUSED.values():
            refused(asked(server, CHAT, **form(CHAT, schema)), CHAT)
        refused(asked(server, CHAT, tools=[custom(CHAT, "odd", "(" * 3000, "regex")]), CHAT)
        assert not answer.done()
        server.engine.release()
        assert told(answer.result(60), CHAT)[0] == "Hello there, friend."


@EACH
@BOTH
def test_a_grammar_that_becomes_too_much_ends_one_answer_and_nothing_else(serving, path, stream):
    class Broken:
        cut = False

        def __call__(self, generation, logits):
            if len(generation.tokens) >= 3:
                raise GrammarError("no token fits the grammar of the answer: too many states")

    server = serving(constrain=lambda turn, tokenizer: Broken() if turn.format else None)
    answer = asked(server, path, stream, **form(path, STRICT))
    if stream:
        assert answer.status_code == 200 and b"too many states" in answer.content
    else:
        refused(answer, path, "too many states")
    assert told(asked(server, path, stream), path, stream)[0] == "Hello there, friend."


@pytest.mark.thorough
def test_tools_of_real_clients_can_be_demanded(nano_engine):
    """Every function that a recorded client declares, strict or not: nothing that they use is refused."""
    seen = set()
    for file in sorted((Path(__file__).parents[1] / "data" / "clients").glob("*.jsonl")):
        for line in file.read_text("utf-8").splitlines():
            body = json.loads(line).get("body")
            raw = body.get("tools") if isinstance(body, dict) else None
            for one in read_schemas(json.dumps(raw)) if raw else ():
                known = (one.name, one.parameters)
                if not one.callable or one.grammar is not None or known in seen:
                    continue
                seen.add(known)
                turn = Turn("chat", messages=(Message("user", "Hi"),), tools=(one,), choice=Choice("named", one.name))
                guide = guide_of(turn, nano_engine.tokenizer)
                assert guide is not None, one.name
    assert len(seen) > 40


# --- limits


@EACH
@BOTH
def test_an_answer_that_its_limit_cuts_says_so(scripted, path, stream):
    words = {"type": "object", "properties": {"s": {"type": "string"}}, "required": ["s"]}
    limit = {"max_output_tokens" if path == RESPONSES else "max_tokens": 60}
    scripted.engine.say('{"s": "' + "x" * 300)
    text, _, _, finish = told(asked(scripted, path, stream, **form(path, words), **limit), path, stream)
    assert finish == "length" and text.startswith('{"s": "xxxx')
    scripted.engine.say(block(("f", {"s": "y" * 600})))
    answer = asked(scripted, path, stream, tools=[tool(path, "f", words)], **choice(path, "named", "f"), **limit)
    assert told(answer, path, stream)[3] == "length"


def test_a_server_may_keep_reasoning_short(serving):
    """Random weights never end it."""
    server = serving(constrain=partial(guide_of, max_reasoning=20))
    for path in (CHAT, MESSAGES, RESPONSES):
        server.engine.say("z" * 500)
        text, reasoning, _, finish = told(asked(server, path, thinking=True, **form(path, STRICT)), path)
        assert finish == "stop" and json.loads(text)["n"] in (7, 8, 9) and reasoning == "z" * 20
