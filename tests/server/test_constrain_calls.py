"""Constrained calls: demanded tools, strict ones, custom ones with a grammar; every finished call validates."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace

import pytest
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st

from ds4ref.errors import TextError
from ds4ref.server.constrain import guide_of
from ds4ref.server.turn import Choice, Turn
from ds4ref.targets.answer import Finish
from ds4ref.text.dsml import ToolCall, render_calls
from ds4ref.text.schemas import found_in, read_schemas
from tests.server.walk import walk

from .constrained import ASK, LEVEL, STRICT, TOK, D, custom, function, json_turn, objects, schemas, tool_turn, validate

HEAD = f'\n\n<{D}tool_calls>\n<{D}invoke name="f">\n<{D}parameter name="s" string="true">'


def block(*calls: tuple[str, dict | str]) -> str:
    """What the model writes to make these calls."""
    made = [ToolCall(name, args if isinstance(args, str) else json.dumps(args)) for name, args in calls]
    return "".join(part.text for part in render_calls(made))


def calls(turn: Turn, seed: int = 0, tokens: int = 900, **more) -> tuple[ToolCall, ...]:
    """The calls of a finished answer, each of them valid for its tool."""
    known = {tool.name: tool for tool in turn.callable}
    done = walk(turn, TOK, tokens, seed, **more)
    assert done.finish == Finish.TOOL_CALLS and done.calls, (done.text, done.block)
    assert done.text == "" and done.reader.generated.error is None
    for call in done.calls:
        validate(json.loads(known[call.name].parameters), json.loads(call.arguments))
    return done.calls


@given(objects(schemas), st.booleans(), st.integers(0, 1000))
@settings(max_examples=60, deadline=None, phases=[Phase.explicit, Phase.generate])
def test_every_call_fits_its_schema(parameters, strict, seed) -> None:
    turn = tool_turn(function("f", strict, **parameters, **LEVEL), choice=Choice("named", "f"))
    done = walk(turn, TOK, 2000, seed, closing=4)
    assume(done.finish == Finish.TOOL_CALLS)  # random logits may add digits for ever
    validate(parameters | LEVEL, json.loads(done.calls[0].arguments))


def test_what_the_model_would_call_stands() -> None:
    """Free strings are plain text; of the values that may be null, too."""
    turn = tool_turn(function(
        "bash", True, type="object", required=["command"],
        properties={"command": {"anyOf": [{"type": "string"}, {"type": "null"}]}, "timeout": {"type": "integer"}},
    ))  # fmt: skip
    for arguments in ('{"command":"ls -la && pwd","timeout":10}', '{"command":"<div>a</div> </"}', '{"command":""}',
                      '{"command":"a\\n\\t\\"é€"}', '{"command":"x &amp; &lt;/y"}', '{"command":null}'):  # fmt: skip
        script = block(("bash", arguments))
        done = walk(turn, TOK, 400, script=script)
        assert [call.arguments for call in done.calls] == [arguments] and done.block == script


@pytest.mark.parametrize("kind", [{"type": "string"}, {"type": "string", "minLength": 1}])
def test_a_value_cannot_spell_its_closing_tag(kind) -> None:
    """In plain tokens, of which the marker's characters are just some: whoever parses the block reads its text."""
    turn = tool_turn(function("f", True, type="object", properties={"s": kind}, required=["s"]))
    ids = [TOK.encode(bytes([byte]))[0] for byte in f"</{D}parameter>\n</{D}invoke>".encode()]
    head = HEAD if len(kind) == 1 else HEAD.replace('"true">', '"false">')
    if len(kind) > 1:
        ids = [*TOK.encode('"'), *ids]
    done = walk(turn, TOK, 900, script=[*TOK.encode_rendered(head), *ids])
    assert done.finish == Finish.TOOL_CALLS, done.text
    value = json.loads(done.calls[0].arguments)["s"]
    assert value.startswith(f"</{D}parameter") and f"</{D}parameter>" not in value


def test_deferred_tools_are_called_only_once_they_were_found() -> None:
    tools = [
        {"name": n, "input_schema": {"type": "object", "properties": {}}, "defer_loading": n != "a"} for n in "abc"
    ]
    given_ = tuple(read_schemas(json.dumps(tools)))
    turn = Turn("messages", messages=ASK, tools=given_, choice=Choice("required"), thinking="none")
    assert {call.name for call in calls(turn, tokens=2000)} == {"a"}
    choice = Choice("named", "c")
    found = Turn("messages", messages=ASK, tools=tuple(found_in(given_, ["c"])), choice=choice, thinking="none")
    assert {call.name for call in calls(found)} == {"c"} and [tool.name for tool in found.offered] == ["a"]


def test_strict_tools_bind_what_is_in_a_block_and_nothing_else() -> None:
    turn = tool_turn(function("f", strict=True, **STRICT), function("g", type="object"), choice=Choice())
    text = "Let me see: 1 < 2, {}."
    head = f"{text}\n\n<{D}tool_calls>\n<{D}invoke name="
    done = walk(turn, TOK, 400, 3, script=head + '"f">\n', closing=4.0)
    assert done.text == text and json.loads(done.calls[0].arguments)["n"] in (7, 8, 9)
    for name, good in (("f", '{"n":8}'), ("g", '{"anything":[1],"more":"</x"}')):
        done = walk(turn, TOK, 400, script=text + block((name, good)))
        assert done.text == text and done.calls == (ToolCall(name, good),)
    # Text is free: nothing is forced before a block, and no block is.
    done = walk(turn, TOK, 50, script=[*TOK.encode("Just <text>.\n\n\n"), TOK.eos])
    assert done.text.startswith("Just <text>.") and done.finish == Finish.STOP


@pytest.mark.parametrize("parameters", [{"type": "array"}, {"properties": []}, {"required": "a"}, {"properties": {
    "a": {"$ref": "#"}}}, {"properties": {"a": {"$ref": "#/properties/b"}}}, {"properties": {"a": False}, "required": [
    "a"]}])  # fmt: skip
def test_arguments_that_have_no_place_in_markup(parameters) -> None:
    with pytest.raises(TextError, match="^tool odd"):
        guide_of(tool_turn(function("odd", **parameters)), TOK)


def test_an_answer_that_fits_or_a_call() -> None:
    form = {"type": "object", "properties": {"word": {"enum": ["x", "y"]}}, "required": ["word"],
            "additionalProperties": False}  # fmt: skip
    tools = tool_turn(function("f", **STRICT), function("odd", **{"not": {}}), choice=Choice()).tools
    turn = json_turn(form, tools=tools)
    assert walk(turn, TOK, 200, script='{"word":"x"}').text == '{"word":"x"}'
    script = block(("f", '{"n":"free as it is not strict"}'))
    done = walk(turn, TOK, 300, script=script)
    assert done.calls and done.text == "" and done.block == script
    forbidden = walk(json_turn(form, tools=tools, choice=Choice("none")), TOK, 200, script=script)
    validate(form, json.loads(forbidden.text))


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


def text_of(done) -> str:
    """The text of the only call."""
    assert done.finish == Finish.TOOL_CALLS, done.block
    value = json.loads(done.calls[0].arguments)
    assert list(value) == ["input"]
    return value["input"]


def test_custom_tools_keep_to_their_grammar() -> None:
    turn = tool_turn(custom(PATCH), function(type="object", properties={}), choice=Choice("named", "patch"))
    form = re.compile(r"\*\*\* Begin\n(\*\*\* (Add: [a-z]+\n(\+.*\n)+|Remove: [a-z]+\n))+\*\*\* End\n?\Z")
    done = [walk(turn, TOK, 900, seed, closing=0) for seed in range(8)]
    finished = [one for one in done if one.finish == Finish.TOOL_CALLS]  # random logits may add lines for ever
    assert len(finished) > 3 and all(form.match(text_of(one)) for one in finished)
    text = "*** Begin\n*** Add: a\n+</div> </ < x\n*** End"
    script = block(("patch", {"input": text}))
    done = walk(turn, TOK, 500, script=script)
    assert text_of(done) == text and done.block == script


GRAMMARS = {
    "more than 1000 rules": (
        "start: r0\n" + "\n".join(f"r{i}: r{i + 1}" for i in range(5000)) + '\nr5000: "x"',
        "lark",
    ),
    "unknown grammar syntax 'gbnf'": ("root ::= x", "gbnf"),
    'unknown name: "missing"': ("start: missing", "lark"),
    "unclosed group": ("(", "regex"),
    "too deeply nested": ("start: " + "(" * 3000 + '"a"' + ")" * 3000, "lark"),
    "Unimplemented keys": ('start: %json {"not": {}}', "lark"),
}


@pytest.mark.parametrize("message", GRAMMARS)
def test_grammars_that_are_refused(message) -> None:
    with pytest.raises(TextError, match="tool patch: .*" + re.escape(message)) as caught:
        guide_of(tool_turn(custom(*GRAMMARS[message])), TOK)
    assert len(str(caught.value)) < 600


def test_grammars_cannot_reach_control_tokens() -> None:
    for definition in (f"start: <[{TOK.user}]> /x/", f"start: /x/ <[{TOK.eos}]>", f"start: <[{TOK.dsml}]>"):
        with pytest.raises(Exception, match="no token fits"):
            walk(tool_turn(custom(definition)), TOK, 200)


def test_a_model_without_tokens_for_calls():
    """A demanded call is refused in a plain line; strict tools that may be called anyway demand nothing."""
    plain, strict = SimpleNamespace(dsml=-1), function("f", True, **STRICT, additionalProperties=False)
    for choice in (Choice("required"), Choice("named", "f")):
        with pytest.raises(TextError, match=r"^tool_choice cannot demand a call: this model has no tokens for tool"):
            guide_of(tool_turn(strict, choice=choice), plain)
    assert guide_of(tool_turn(strict, choice=Choice()), plain) is None
