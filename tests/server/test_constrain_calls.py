"""Constrained calls: of demanded tools, of strict ones, of custom ones with a grammar; every finished call
fits its schema."""

from __future__ import annotations

import json
import re

import pytest

from ds4ref.errors import TextError
from ds4ref.server.constrain import Unsupported, steering
from ds4ref.server.turn import Choice, Turn
from ds4ref.targets.answer import Finish
from ds4ref.text.dsml import ToolCall, render_calls
from ds4ref.text.schemas import found_in, read_schemas
from tests.server.walk import walk

from .constrained import ASK, STRICT, TOK, D, function, json_turn, tool_turn, validator

# --- calls


def calls(turn: Turn, count: int = 8, tokens: int = 400, **more) -> list[ToolCall]:
    """The calls of finished answers, each of them valid for its tool."""
    known, found = {tool.name: tool for tool in turn.callable}, []
    for seed in range(count):
        done = walk(turn, TOK, tokens, seed, **more)
        assert done.finish == Finish.TOOL_CALLS and done.calls, (done.text, done.block)
        assert done.text == "" and done.reader.generated.error is None
        for call in done.calls:
            schema = json.loads(known[call.name].parameters)
            error = next(validator(schema).iter_errors(json.loads(call.arguments)), None)
            assert error is None, (error.message, call)
        found += done.calls
    return found


ARGUMENTS: list[dict] = [
    {"type": "object"},
    {"type": "object", "properties": {}},
    {"type": "object", "properties": {}, "additionalProperties": False},
    {"type": "object", "properties": {"s": {"type": "string"}}, "required": ["s"]},
    {"type": "object", "properties": {"s": {"type": "string", "minLength": 2, "maxLength": 3}}, "required": ["s"]},
    {"type": "object", "properties": {"s": {"type": "string", "pattern": "^[<&/a]{3}$"}}, "required": ["s"]},
    {"type": "object", "properties": {"s": {"type": "string", "format": "uuid"}}, "required": ["s"]},
    {"type": "object", "properties": {"s": {"enum": ["a", "</", "&lt;", f"</{D}parameter>", "é\n", 3, None]}},
     "required": ["s"]},
    {"type": "object", "properties": {"s": {"const": "only"}}, "required": ["s"]},
    {"type": "object", "properties": {"s": {"type": ["string", "null"], "maxLength": 3}}, "required": ["s"]},
    {"type": "object", "properties": {"s": {"anyOf": [{"type": "string", "pattern": "^x"}, {"type": "array"}]}},
     "required": ["s"]},
    {"type": "object", "properties": {"n": {"type": "integer", "minimum": 5}, "b": {"type": "boolean"}},
     "required": ["b"]},
    {"type": "object", "properties": {"o": {"type": "object", "properties": {"k": {"type": "string", "pattern": "^q"}},
     "required": ["k"]}}, "required": ["o"]},
    {"type": "object", "properties": {"x": {}}, "required": ["x"]},
    {"type": "object", "properties": {'a"<b>&': {"type": "integer"}}, "required": ['a"<b>&']},
    {"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": {"type": "integer"}},
    {"type": "object", "properties": {"abc": {"type": "string"}, "z": {"type": "integer"}}, "required": ["abc", "az"],
     "patternProperties": {"^a": {"type": "string", "maxLength": 2}}, "additionalProperties": {"type": "boolean"}},
    {"type": "object", "required": ["k"], "additionalProperties": {"type": "string", "maxLength": 1}},
    {"$ref": "#/$defs/args", "$defs": {"args": {"type": "object", "properties": {"r": {"$ref": "#/$defs/leaf"}},
     "required": ["r"]}, "leaf": {"type": "string", "enum": ["u", "v"]}}},
    {"allOf": [{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
               {"properties": {"b": {"type": "boolean"}}, "required": ["b"]}]},
    {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
     "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
    {"allOf": [{"properties": {"a": {"type": "string", "maxLength": 4}}, "required": ["a"]},
               {"properties": {"a": {"minLength": 3}}, "additionalProperties": False}]},
    {"enum": [{"a": "x"}, {"a": "y", "b": 1}, "no object"]},
    {"type": "object", "properties": {"v": {"allOf": [{"enum": ["aa", "b", 1]}, {"minLength": 2}]}}, "required": ["v"]},
    {"type": "object", "properties": {"v": {"oneOf": [{"const": "a"}, {"const": "b"}, {"type": "null"}]}},
     "required": ["v"]},
    {"type": "object", "properties": {"v": {"oneOf": [{"enum": ["all", "0"]}, {"type": "string", "pattern": "^[1-9]+$",
     "maxLength": 3}, {"type": "string", "maxLength": 5, "minLength": 4, "pattern": "^x"}, {"type": "string",
     "minLength": 6, "pattern": "^y"}]}}, "required": ["v"]},
    {"type": "object", "properties": {"tree": {"$ref": "#/$defs/t"}}, "required": ["tree"], "$defs": {"t": {
     "type": "object", "properties": {"kids": {"type": "array", "items": {"$ref": "#/$defs/t"}}},
     "additionalProperties": False}}},
    {"type": ["object", "null"], "properties": {"a": {"type": "null"}}, "maxProperties": 1},
]  # fmt: skip


@pytest.mark.parametrize("parameters", ARGUMENTS, ids=lambda schema: json.dumps(schema)[:70])
def test_every_call_fits_its_schema(parameters) -> None:
    calls(tool_turn(function(**parameters), choice=Choice("named", "f")))


def test_random_tools() -> None:
    from benchmarks.schemas import toolsets

    for i, raw in enumerate(toolsets(25, seed=5)):
        tools = tuple(read_schemas(raw))
        choice = Choice("required") if i % 2 else Choice("named", tools[0].name)
        turn = Turn("chat", messages=ASK, tools=tools, choice=choice, thinking="none")
        try:
            found = calls(turn, 1, 900)
        except Unsupported as error:
            assert "Properties" in str(error)
            continue
        assert {call.name for call in found} <= ({tools[0].name} if choice.name else {tool.name for tool in tools})


def test_which_tool_is_called() -> None:
    turn = tool_turn(function("one", type="object", properties={}), function("two", type="object", properties={}))
    found = {call.name for call in calls(turn, 12)}
    assert found == {"one", "two"}
    named = tool_turn(*({"name": n, "input_schema": {"type": "object", "properties": {}}} for n in ("a", "ab", "abc")),
                      choice=Choice("named", "ab"))  # fmt: skip
    for seed in range(6):
        done = walk(named, TOK, 300, seed)
        assert [call.name for call in done.calls] == ["ab"]
    many = [len(walk(turn, TOK, 600, seed).calls) for seed in range(30)]
    assert max(many) > 1  # "required" may call several
    alone = Turn("chat", messages=ASK, tools=turn.tools, choice=Choice("required", parallel=False), thinking="none")
    assert {len(walk(alone, TOK, 600, seed).calls) for seed in range(8)} == {1}


def test_what_the_model_would_call_stands() -> None:
    turn = tool_turn(
        function("bash", type="object", properties={"command": {"type": "string"}, "timeout": {"type": "integer"}},
                 required=["command"]))  # fmt: skip
    for arguments in ('{"command":"ls -la && pwd","timeout":10}', '{"command":"<div>a</div> </"}', '{"command":""}',
                      '{"command":"a\\n\\t\\"é\\u20ac"}', '{"command":"x &amp; &lt;/y"}'):  # fmt: skip
        script = "".join(part.text for part in render_calls([ToolCall("bash", arguments)]))
        done = walk(turn, TOK, 400, script=script)
        assert [call.arguments for call in done.calls] == [arguments.replace("\\u20ac", "€")] and done.block == script


def test_a_string_cannot_spell_its_own_end() -> None:
    """In plain tokens, of which the marker's characters are just some: what reads the block reads its text."""
    turn = tool_turn(function(type="object", properties={"s": {"type": "string"}}, required=["s"]))
    spelled = list(f"</{D}parameter>\n</{D}invoke>".encode())
    ids = [TOK.encode(bytes([byte]))[0] for byte in spelled]
    head = f'\n\n<{D}tool_calls>\n<{D}invoke name="f">\n<{D}parameter name="s" string="true">'
    done = walk(turn, TOK, 500, script=[*TOK.encode_rendered(head), *TOK.encode("x"), *ids])
    assert done.finish == Finish.TOOL_CALLS and done.said > len(ids)
    value = json.loads(done.calls[0].arguments)["s"]
    assert value.startswith(f"x</{D}parameter") and f"</{D}parameter>" not in value


def test_the_bar_of_the_marker_in_a_constrained_string() -> None:
    """An escaped closing tag would be one character shorter than it looks: a length could not be kept."""
    schema = {"type": "object", "properties": {"s": {"type": "string", "minLength": 30}}, "required": ["s"]}
    script = f'\n\n<{D}tool_calls>\n<{D}invoke name="f">\n<{D}parameter name="s" string="true">&lt;/'
    tail = [TOK.encode(bytes([b]))[0] for b in f"{D}parameter>".encode()]
    done = walk(tool_turn(function(**schema)), TOK, 400, script=[*TOK.encode_rendered(script), *tail])
    assert len(json.loads(done.calls[0].arguments)["s"]) >= 30


def test_calls_end_within_their_limit() -> None:
    turn = tool_turn(
        function("write", type="object", properties={"path": {"type": "string"}, "text": {"type": "string"}},
                 required=["path", "text"]),
        function("pwd", type="object", properties={}))  # fmt: skip
    for limit in (230, 280, 330):
        script = f'\n\n<{D}tool_calls>\n<{D}invoke name="write">\n<{D}parameter name="path" string="true">' + "x" * 600
        limited = Turn("chat", messages=ASK, tools=turn.tools, choice=turn.choice, thinking="none", max_tokens=limit)
        done = walk(limited, TOK, limit, script=script)
        assert done.finish == Finish.TOOL_CALLS and len(done.tokens) <= limit
        assert all(set(json.loads(call.arguments)) == {"path", "text"} for call in done.calls if call.name == "write")


def test_required_needs_a_tool() -> None:
    with pytest.raises(TextError, match="tool_choice asks for a tool that is not there: there are none"):
        steering(tool_turn(), TOK)
    with pytest.raises(TextError, match="not there: g"):
        steering(tool_turn(function(type="object"), choice=Choice("named", "g")), TOK)
    hosted = tool_turn({"type": "web_search"})
    with pytest.raises(TextError, match="there are none"):
        steering(hosted, TOK)


def test_deferred_tools_are_called_only_once_they_were_found() -> None:
    tools = [
        {"name": n, "input_schema": {"type": "object", "properties": {}}, "defer_loading": n != "a"} for n in "abc"
    ]
    schemas = tuple(read_schemas(json.dumps(tools)))
    turn = Turn("messages", messages=ASK, tools=schemas, choice=Choice("required"), thinking="none")
    assert {call.name for call in calls(turn, 6)} == {"a"} and [tool.name for tool in turn.offered] == ["a"]
    found = Turn(
        "messages", messages=ASK, tools=tuple(found_in(schemas, ["c"])), choice=Choice("named", "c"), thinking="none"
    )
    assert {call.name for call in calls(found, 3)} == {"c"} and [tool.name for tool in found.offered] == ["a"]


def test_nothing_demanded_nothing_steered() -> None:
    turn = tool_turn(function(type="object", properties={}), choice=Choice())
    assert steering(turn, TOK) is None and steering(Turn("chat", messages=ASK), TOK) is None
    assert steering(tool_turn(function(strict=True, type="object"), choice=Choice("none")), TOK) is None


def test_strict_tools_bind_what_is_in_a_block_and_nothing_else() -> None:
    turn = tool_turn(function("f", strict=True, **STRICT), function("g", type="object"), choice=Choice())
    head = f"Let me see: 1 < 2, {{}}.\n\n<{D}tool_calls>\n<{D}invoke name="
    for name, good in (("f", '{"n":8}'), ("g", '{"anything":[1]}')):
        script = head + f'"{name}">\n'
        done = walk(turn, TOK, 400, 3, script=script, closing=4.0)
        assert done.text == "Let me see: 1 < 2, {}." and done.finish == Finish.TOOL_CALLS, done.block
        assert done.calls[0].name == name
        if name == "f":
            assert json.loads(done.calls[0].arguments)["n"] in (7, 8, 9)
        full = head + f'"{name}">\n' + "".join(
            part.text for part in render_calls([ToolCall(name, good)])).split(">\n", 2)[2]  # fmt: skip
        done = walk(turn, TOK, 400, script=full)
        assert done.calls == (ToolCall(name, good),)
    # Text is free: nothing is forced before a block, and no block is.
    done = walk(turn, TOK, 50, script="Just <text>." + "\n" * 3)
    assert done.text.startswith("Just <text>.")
    done = walk(turn, TOK, 8, script=[*TOK.encode("Hm."), TOK.eos])
    assert done.text == "Hm." and done.finish == Finish.STOP


def test_a_marker_that_begins_no_call_binds_nothing() -> None:
    turn = tool_turn(function("f", strict=True, **STRICT), choice=Choice())
    for script in (f"the tag <{D}tool_calls> is", f"<{D}invoke name=x", f"{D} alone", f"</{D}tool_calls>\n<{D}so"):
        done = walk(turn, TOK, 60, script=[*TOK.encode_rendered(script), TOK.eos])
        assert done.said == len(TOK.encode_rendered(script)) + 1, script


def test_strict_tools_are_refused_like_demanded_ones() -> None:
    with pytest.raises(Unsupported, match="not at f#"):
        steering(tool_turn(function("f", strict=True, **{"not": {}}), choice=Choice()), TOK)
    assert steering(tool_turn(function("f", strict=False, **{"not": {}}), choice=Choice()), TOK) is None


# --- JSON answers where tools may be called instead


def test_an_answer_in_a_form_or_a_call() -> None:
    form = {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"],
            "additionalProperties": False}  # fmt: skip
    tools = tool_turn(function("f", **STRICT), function("odd", **{"not": {}}), choice=Choice()).tools
    turn = json_turn(form, tools=tools)
    done = walk(turn, TOK, 200, script='{"word":"x"}')
    assert done.text == '{"word":"x"}' and done.finish == Finish.STOP
    block = "".join(part.text for part in render_calls([ToolCall("f", '{"n":"free as it is not strict"}')]))
    done = walk(turn, TOK, 300, script=block)
    assert done.calls and done.text == "" and done.block == block
    for seed in range(6):
        done = walk(turn, TOK, 250, seed)
        assert done.calls or not list(validator(form).iter_errors(json.loads(done.text)))
    forbidden = json_turn(form, tools=tools, choice=Choice("none"))
    done = walk(forbidden, TOK, 200, script=block)
    assert not list(validator(form).iter_errors(json.loads(done.text)))


# --- custom tools

PATCH = """start: begin hunk+ end
begin: "*** Begin" LF
end: "*** End" LF?
hunk: add | remove
add: "*** Add: " name LF line+
remove: "*** Remove: " name LF
name: /[a-z]+/
line: "+" /(.*)/ LF -> text

%import common.LF
"""


def custom(definition: str, syntax: str = "lark", name: str = "patch") -> dict:
    form = {"type": "grammar", "syntax": syntax, "definition": definition}
    return {"type": "custom", "name": name, "description": "d", "format": form}


def test_custom_tools_keep_to_their_grammar() -> None:
    turn = tool_turn(custom(PATCH), function(type="object", properties={}), choice=Choice("named", "patch"))
    form = re.compile(r"\*\*\* Begin\n(\*\*\* (Add: [a-z]+\n(\+.*\n)+|Remove: [a-z]+\n))+\*\*\* End\n?\Z")
    for seed in range(10):
        done = walk(turn, TOK, 400, seed)
        assert done.finish == Finish.TOOL_CALLS
        value = json.loads(done.calls[0].arguments)
        assert list(value) == ["input"] and form.match(value["input"]), value
    text = "*** Begin\n*** Add: a\n+</div> </ < x\n*** End"
    script = "".join(part.text for part in render_calls([ToolCall("patch", json.dumps({"input": text}))]))
    done = walk(turn, TOK, 500, script=script)
    assert json.loads(done.calls[0].arguments) == {"input": text} and done.block == script


@pytest.mark.parametrize("syntax", ["lark", "regex"])
def test_a_grammar_that_would_swallow_the_end_tag(syntax) -> None:
    definition = r"start: /(.|\n)+/" if syntax == "lark" else r"(.|\n)+"
    turn = tool_turn(custom(definition, syntax))
    for seed in range(4):
        done = walk(turn, TOK, 300, seed)
        assert done.finish == Finish.TOOL_CALLS and json.loads(done.calls[0].arguments)["input"]
    text = "a </b> </ x"
    script = "".join(part.text for part in render_calls([ToolCall("patch", json.dumps({"input": text}))]))
    assert json.loads(walk(turn, TOK, 400, script=script).calls[0].arguments) == {"input": text}


def test_expressions_for_custom_tools() -> None:
    for definition in (r".*foo.*bar", r"[^;]+;[^;]+;"):
        done = walk(tool_turn(custom(definition, "regex")), TOK, 300)
        assert re.fullmatch(definition, json.loads(done.calls[0].arguments)["input"])
    turn = tool_turn(custom(r"[a-c]{2,4}(-\d)?", "regex"))
    for seed in range(6):
        text = json.loads(walk(turn, TOK, 300, seed).calls[0].arguments)["input"]
        assert re.fullmatch(r"[a-c]{2,4}(-[0-9])?", text), text


def test_custom_tools_with_a_grammar_are_bound_when_the_model_calls_them() -> None:
    turn = tool_turn(custom("[ab]+", "regex"), function("g", type="object"), choice=Choice())
    script = f'ok\n\n<{D}tool_calls>\n<{D}invoke name="patch">\n<{D}parameter name="input" string="true">zzz'
    done = walk(turn, TOK, 400, script=script)
    assert done.text == "ok" and re.fullmatch("[ab]+", json.loads(done.calls[0].arguments)["input"])
    free = tool_turn({"type": "custom", "name": "note"}, choice=Choice())
    assert steering(free, TOK) is None  # a custom tool without a grammar takes any text
    done = walk(tool_turn({"type": "custom", "name": "note"}), TOK, 200)
    assert list(json.loads(done.calls[0].arguments)) == ["input"]


GRAMMARS = {
    "unknown grammar syntax 'gbnf'": ("root ::= x", "gbnf"),
    "more than 32768 bytes": ("start: " + '"x" ' * 20_000, "lark"),
    "a repetition of more than 1000": ('start: "a"~1..100000', "lark"),
    "repetition of more than 1000 in": ("a{1000000000}", "regex"),
    "more than 1000 alternatives": ("start: " + " | ".join(f'"{i}"' for i in range(2000)), "lark"),
    "nest more than 100 deep": ("(" * 2000 + "a" + ")" * 2000, "regex"),
    "%json in a grammar": ('start: %json {"enum": [1]}', "lark"),
    "%llguidance": ("%llguidance {}\nstart: /x/", "lark"),
    "is not supported": ("start: missing", "lark"),
    "schema or grammar is not supported": ("start: /(/", "lark"),
    "or grammar is not": ("(", "regex"),
    "no short answer fits": ("start: a\na: a a", "lark"),
}


@pytest.mark.parametrize("message", GRAMMARS)
def test_grammars_that_are_refused(message) -> None:
    definition, syntax = GRAMMARS[message]
    with pytest.raises(TextError, match=re.escape(message)) as caught:
        steering(tool_turn(custom(definition, syntax)), TOK)
    assert len(str(caught.value)) < 600


def test_grammars_cannot_reach_control_tokens() -> None:
    for definition in (f"start: <[{TOK.user}]> /x/", f"start: /x/ <[{TOK.eos}]>", f"start: <[{TOK.dsml}]>"):
        try:
            done = walk(tool_turn(custom(definition)), TOK, 200)
        except TextError:
            continue
        assert TOK.user not in done.tokens and done.finish == Finish.TOOL_CALLS
