"""Constrained decoding: every finished answer is valid, whatever a model would rather say; what cannot be enforced is
refused by name; what is too much is refused before it costs anything."""

from __future__ import annotations

import json
import random
import re
import string
import sys
import threading

import numpy as np
import pytest
from jsonschema import Draft7Validator, Draft202012Validator, FormatChecker

from ds4ref.engine import Engine
from ds4ref.errors import TextError
from ds4ref.server.constrain import Limits, TooLarge, Unsupported, steering
from ds4ref.server.grammar import formats, matching, patterns
from ds4ref.server.grammar import schema as limits_of
from ds4ref.server.grammar.follow import Patience
from ds4ref.server.grammar.schema import read
from ds4ref.server.grammar.vocabulary import vocabulary
from ds4ref.server.turn import Choice, Sampling, Turn
from ds4ref.server.worker import Worker
from ds4ref.targets.answer import Delta, Finish
from ds4ref.text.chat import Message
from ds4ref.text.dsml import ToolCall, render_calls
from ds4ref.text.schemas import Schema, found_in, read_schemas
from tests.server.walk import walk
from tests.text.vocab import make

TOK = make()
ASK = (Message("user", "Hi"),)
D = "\uff5cDSML\uff5c"


def json_turn(schema: object, **more) -> Turn:
    text = schema if isinstance(schema, str) else json.dumps(schema)
    return Turn("chat", messages=ASK, format=text, **{"thinking": "none", **more})


def tool_turn(*tools: dict, choice: Choice | None = None, **more) -> Turn:
    made = tuple(read_schemas(json.dumps(tools)))
    return Turn("chat", messages=ASK, tools=made, choice=choice or Choice("required"), **{"thinking": "none", **more})


def function(name: str = "f", strict: bool | None = None, **parameters: object) -> dict:
    inner = {"name": name, "parameters": parameters} | ({} if strict is None else {"strict": strict})
    return {"type": "function", "function": inner}


def validator(schema: object):
    kind = Draft7Validator if "draft-07" in json.dumps(schema) else Draft202012Validator
    return kind(schema, format_checker=kind.FORMAT_CHECKER)


def answers(schema: object, count: int = 12, tokens: int = 300, **more) -> list[str]:
    """Finished answers, each of them valid."""
    check, found = validator(schema), []
    for seed in range(count):
        done = walk(json_turn(schema), TOK, tokens, seed, **more)
        assert done.finish == Finish.STOP, (done.text, schema)
        error = next(check.iter_errors(json.loads(done.text)), None)
        assert error is None, (error.message, done.text)
        found.append(done.text)
    return found


# --- JSON answers

SATISFIABLE = [
    True,
    {},
    {"type": ["null"]},
    {"minLength": 3},
    {"minimum": 3},
    {"required": ["a"]},
    {"properties": {"a": {"type": "integer"}}},
    {"type": "string", "minLength": 4, "maxLength": 4},
    {"type": "string", "pattern": "^[a-z]{2}-\\d+$"},
    {"type": "string", "pattern": "b$", "minLength": 3, "maxLength": 6},
    {"allOf": [{"pattern": "^a"}, {"pattern": "b$"}, {"type": "string", "maxLength": 4}]},
    {"type": "string", "pattern": '^(\\\\|"|\\n)*$', "minLength": 2, "maxLength": 2},
    {"type": "string", "pattern": "^[\\u0000-\\u001f]$"},
    {"type": "string", "format": "date", "pattern": "^20", "maxLength": 10},
    {"enum": ["a", 1, None, 2.5, [1, {"b": "x"}], {"k": 'q"\\\n'}, True, -0.5, 1e9]},
    {"type": ["string", "integer"], "enum": ["a", 1, None, 2.5]},
    {"enum": ["abc", "b"], "minLength": 2},
    {"const": {"a": [1, {"b": "é\u2028\U0001f600"}]}},
    {"const": 1.0},
    {"type": "integer", "minimum": -1.5, "exclusiveMaximum": 3},
    {"type": "integer", "exclusiveMinimum": 41, "exclusiveMaximum": 43},
    {"type": "integer", "multipleOf": 7, "minimum": 1},
    {"type": "integer", "minimum": 10**17},
    {"type": "integer", "maximum": 2**63 - 1, "minimum": -(2**63)},
    {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 0.001},
    {"type": "number", "exclusiveMaximum": 0, "minimum": -1e-7},
    {"type": "number", "exclusiveMaximum": 1, "minimum": 0.9},
    {"type": "number", "minimum": 0.1, "maximum": 0.30000000000000004},
    {"type": "number", "multipleOf": 0.25, "minimum": 0.25, "maximum": 3},
    {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "minItems": 1, "maxItems": 4},
    {"type": "array", "prefixItems": [{"type": "integer"}], "items": False},
    {"type": "array", "items": {"type": "boolean"}, "uniqueItems": True, "maxItems": 1},
    {"$schema": "http://json-schema.org/draft-07/schema#", "type": "array", "minItems": 2,
     "items": [{"type": "integer"}, {"type": "string"}], "additionalItems": False},
    {"type": "object", "properties": {"b": {"type": "null"}, "a": {"type": "integer"}}, "required": ["a"]},
    {"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": {"type": "integer"}},
    {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["b"],
     "additionalProperties": {"type": "string"}},
    {"type": "object", "properties": {"a": False, "b": True}},
    {"type": "object", "properties": {"a": {"type": "string"}}, "patternProperties": {"^a": {"maxLength": 2}},
     "additionalProperties": False},
    {"type": "object", "properties": {'é"\\\n': {"type": "null"}}, "required": ['é"\\\n'],
     "additionalProperties": False},
    {"type": "object", "unevaluatedProperties": False, "properties": {"a": {"type": "null"}}},
    {"type": "object", "minProperties": 1, "additionalProperties": {"type": "null"}},
    {"type": "object", "maxProperties": 2, "additionalProperties": {"type": "null"}},
    {"$ref": "#/$defs/x", "minLength": 3, "$defs": {"x": {"type": "string", "maxLength": 5}}},
    {"definitions": {"a~/b": {"type": "integer"}}, "type": "object", "required": ["x", "y"],
     "properties": {"x": {"$ref": "#/definitions/a~0~1b"}, "y": {"$ref": "#/properties/x"}}},
    {"type": "object", "properties": {"x": {"$ref": "#"}}, "additionalProperties": False},
    {"$defs": {"t": {"anyOf": [{"type": "null"}, {"type": "array", "items": {"$ref": "#/$defs/t"}, "minItems": 1}]}},
     "$ref": "#/$defs/t"},
    {"allOf": [{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
               {"type": "object", "properties": {"b": {"type": "null"}}, "required": ["b"]}]},
    {"allOf": [{"enum": [1, 2, 3]}, {"enum": [2, 3, 4]}]},
    {"properties": {"a": {"type": "string"}}, "type": "object",
     "anyOf": [{"required": ["a"]}, {"properties": {"b": {"type": "integer"}}, "required": ["b"]}]},
    {"oneOf": [{"type": "object", "properties": {"t": {"const": "a"}, "x": {"type": "integer"}}, "required": ["t"]},
               {"type": "object", "properties": {"t": {"const": "b"}, "y": {"type": "null"}}, "required": ["t"]}]},
    {"oneOf": [{"type": "string"}, {"type": "integer"}]},
    {"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {"type": "null"}},
    {"anyOf": [False, {"type": "null"}]},
    {"title": "T", "description": "d", "$comment": "c", "default": 1, "examples": [2], "deprecated": True,
     "x-anything": {"not": {}}, "type": "boolean"},
    {"type": "string", "format": "int32"},
    {"if": {"type": "string"}, "type": "null"},
    {"x-guidance": {"whitespace_pattern": "x*"}, "type": "array", "items": {"type": "null"}},
]  # fmt: skip


@pytest.mark.parametrize("schema", SATISFIABLE, ids=lambda schema: json.dumps(schema)[:60])
def test_every_answer_fits_its_schema(schema) -> None:
    answers(schema)


def test_random_schemas() -> None:
    """The generator of the benchmark, on random logits: more shapes than anyone would write down."""
    from benchmarks.schemas import schemas

    for i, text in enumerate(schemas(60, seed=11)):
        try:
            done = walk(json_turn(text), TOK, 400, i)
        except Unsupported as error:
            assert error.feature and str(error)
            continue
        assert done.finish == Finish.STOP, text
        error = next(validator(json.loads(text)).iter_errors(json.loads(done.text)), None)
        assert error is None, (error.message, done.text, text)


def test_any_object() -> None:
    for form in ("{}", " { } "):
        for seed in range(8):
            assert isinstance(json.loads(walk(json_turn(form.strip()), TOK, 200, seed).text), dict)


def test_members_and_values_that_a_model_would_rather_say() -> None:
    """What is asked for is not forced through: the model's own text stands wherever it fits."""
    schema = {"type": "object", "properties": {"city": {"type": "string"}, "n": {"type": "integer"}},
              "required": ["city", "n"], "additionalProperties": False}  # fmt: skip
    for text in ('{"city":"Paris, \\"fr\\"","n":-3}', '{"city": "x", "n": 3}', '{\n  "city": "x",\n  "n": 3\n}'):
        done = walk(json_turn(schema), TOK, 200, script=text)
        assert done.text == text and not done.steer.closing
    # Members in another order, or twice, do not: the rest is drawn.
    for text in ('{"n":3,"city":"x"}', '{"city":"x","city":"y","n":3}', '{"city":"x","n":3}, '):
        done = walk(json_turn(schema), TOK, 200, script=text)
        assert done.text != text and not list(validator(schema).iter_errors(json.loads(done.text)))


def test_no_member_comes_twice_in_another_spelling() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    done = walk(json_turn(schema), TOK, 60, script='{"a":"x","\\u0061":1}')
    assert "\\u" not in done.text and isinstance(json.loads(done.text)["a"], str)


def test_numbers_stay_short_and_nesting_shallow() -> None:
    """A model that never stops counting, or opening brackets, is stopped before a reader trips over it."""
    done = walk(json_turn({"type": "number"}), TOK, 300, script="3" + "1" * 200)
    assert 10 <= len(done.text) <= 16 and done.finish == Finish.STOP
    done = walk(json_turn({"type": "array"}), TOK, 900, script="[" * 800)
    assert done.text.startswith("[" * 40) and depth(json.loads(done.text)) < 60
    done = walk(json_turn({"type": "number"}), TOK, 60, script="1e308")
    assert "e" not in done.text.lower()
    exact = {"type": "number", "exclusiveMaximum": 1}
    done = walk(json_turn(exact), TOK, 60, script="0." + "9" * 40)
    assert json.loads(done.text) < 1


def depth(value: object) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(depth, inner), default=0)


def test_white_space_is_bounded() -> None:
    done = walk(json_turn({"type": "array", "items": {"type": "null"}}), TOK, 400, script="[\n" + " " * 200)
    assert len(done.text) < 300 and re.match(r"\[\n {24}[^ ]", done.text)


# --- limits of tokens


def test_an_answer_ends_validly_when_its_tokens_run_out() -> None:
    item = {"type": "object", "properties": {"k": {"type": "integer"}}, "required": ["k"]}
    schema = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "array", "items": item}},
              "required": ["a", "b"]}  # fmt: skip
    for limit in range(24, 120, 7):
        for script in ('{"a":"' + "x" * 500, '{"a":"y","b":[' + '{"k":1},' * 100, "{\n"):
            done = walk(json_turn(schema), TOK, limit, limit, script=script)
            assert done.finish == Finish.STOP and len(done.tokens) < limit
            assert not list(validator(schema).iter_errors(json.loads(done.text)))
            assert done.steer.closing == (script != "{\n") or done.steer.closing


def test_what_does_not_fit_into_its_limit_is_cut_and_says_so() -> None:
    schema = {"type": "string", "minLength": 500}
    done = walk(json_turn(schema), TOK, 20)
    assert done.finish == Finish.LENGTH and len(done.tokens) == 20
    done = walk(json_turn({"type": "string"}), TOK, 20, limits=Limits(close=False), script='"' + "x" * 99)
    assert done.finish == Finish.LENGTH and done.text == '"' + "x" * 19


def test_a_budget_of_its_own() -> None:
    done = walk(json_turn({"type": "string"}, thinking="high"), TOK, 5000, script="r" * 4000,
                limits=Limits(answer=40, reasoning=30))  # fmt: skip
    assert len(done.reasoning) >= 20 and len(done.tokens) <= 30 + 1 + 40 and done.finish == Finish.STOP
    assert done.steer.closing and isinstance(json.loads(done.text), str)


def test_reasoning_is_free_and_leaves_room() -> None:
    schema = {"type": "object", "properties": {"a": {"enum": ["yes", "no"]}}, "required": ["a"]}
    thought = 'Well, {"a": "maybe"} is no answer'
    done = walk(json_turn(schema, thinking="high"), TOK, 300, script=f"{thought}</think>")
    assert done.reasoning == thought and json.loads(done.text)["a"] in ("yes", "no")
    done = walk(json_turn(schema, thinking="high"), TOK, 120, script="hmm " * 400)
    assert done.reasoning.startswith("hmm hmm") and json.loads(done.text)["a"] in ("yes", "no")
    assert done.finish == Finish.STOP and 50 < len(done.reasoning)
    # Where no answer fits in any case, nothing is forced.
    done = walk(json_turn({"type": "string", "minLength": 999}, thinking="high"), TOK, 40, script="hmm " * 40)
    assert done.finish == Finish.LENGTH and done.text == ""


def test_a_search_is_broken_off() -> None:
    """By steps, by the processor's time, or by who waits no longer; and one that fails is not tried again at once."""
    follower = steering(json_turn({"type": "string", "minLength": 40}), TOK)._follower
    assert follower.shortest(100) and not follower.shortest(3)
    for now, found in ((1.0, True), (9.0, False)):
        ticks = iter([0.0, *[now] * 1000])
        patience = Patience(2.0, lambda ticks=ticks: next(ticks))
        patience.tried = 8
        assert bool(follower.shortest(100, patience=patience)) is found and patience.over is not found
    assert follower.shortest(100, lambda: True) is None
    patience = Patience(1e9)
    patience.tried = 10**6
    assert follower.shortest(100, patience=patience) is None


def test_a_search_in_vain_costs_little() -> None:
    long = json_turn({"type": "string", "minLength": 900})
    done = walk(long, TOK, 100, script='"' + "x" * 399)
    assert done.finish == Finish.LENGTH and not done.steer.cut and 2 <= done.steer.searched < 10
    done = walk(long, TOK, 400, script='"' + "x" * 399)
    assert done.finish == Finish.STOP and done.steer.cut and done.steer.searched < 10


def test_whose_limit_it_was() -> None:
    words = {"type": "string"}
    done = walk(json_turn(words), TOK, 30, script='"' + "x" * 99)
    assert done.steer.closing and done.steer.cut
    done = walk(json_turn(words), TOK, 300, script='"' + "x" * 99, limits=Limits(answer=30))
    assert done.steer.closing and not done.steer.cut and len(done.tokens) <= 30


# --- what is refused

REFUSED = {
    "not": {"not": {}},
    "if": {"if": {}, "then": {}},
    "dependentRequired": {"dependentRequired": {"a": ["b"]}},
    "dependentSchemas": {"dependentSchemas": {}},
    "dependencies": {"dependencies": {}},
    "contains": {"contains": {}},
    "propertyNames": {"propertyNames": {"maxLength": 3}},
    "unevaluatedItems": {"unevaluatedItems": False},
    "uniqueItems": {"type": "array", "uniqueItems": True},
    "$dynamicRef": {"$dynamicRef": "#x"},
    "$recursiveRef": {"$recursiveRef": "#"},
    "$ref to 'other.json'": {"$ref": "other.json"},
    "$ref to '#anchor'": {"$ref": "#anchor"},
    "$id": {"properties": {"a": {"$id": "x", "$ref": "#/b"}}},
    "minProperties": {"type": "object", "minProperties": 2},
    "axProperties": {"type": "object", "properties": {"a": {}, "b": {}}, "required": ["a"], "maxProperties": 1},
    "unevaluatedProperties beside allOf": {"allOf": [{}], "unevaluatedProperties": False},
    "multipleOf 0.01": {"multipleOf": 0.01},
    "multipleOf 1000003": {"multipleOf": 1000003},
    "minimum beyond 64 bits": {"minimum": 10**30},
    "const with a number": {"const": 10**30},
    "enum with a number": {"enum": [0.12345678901234567]},
    "const with a control character": {"const": "\x00"},
    "a member whose name": {"properties": {"\x01": {}}},
    'format "regex"': {"format": "regex"},
    "pattern with look-around": {"pattern": "(?=a)"},
    "pattern with a back-reference": {"pattern": r"(a)\1"},
    "pattern with a word boundary": {"pattern": r"\bx"},
    "oneOf": {"oneOf": [{"type": "number"}, {"type": "integer"}]},
    "propertyNames at": {"propertyNames": {"type": "string", "pattern": "x"}},
    "Unsatisfiable": {"allOf": [{"type": "string"}, {"type": "integer"}]},
    "disjoint": {"type": "object", "patternProperties": {"^a": {"type": "integer"}, "b$": {"type": "string"}}},
    "no short answer fits": {"type": "string", "minLength": 20_000},
    "no short answer": {"$ref": "#/$defs/a", "$defs": {"a": {"type": "object", "properties": {"x": {"$ref":
                        "#/$defs/a"}}, "required": ["x"]}}},
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_enforced_is_named(name) -> None:
    with pytest.raises(Unsupported, match=re.escape(name)):
        steering(json_turn(REFUSED[name]), TOK)
    # Deep inside, with the place; and as a tool's arguments, with the tool.
    defs = {"$defs": REFUSED[name]["$defs"]} if "$defs" in REFUSED[name] else {}
    inner = function("inner_tool", type="object", properties={"p": REFUSED[name]}, required=["p"], **defs)
    with pytest.raises(Unsupported, match="no arguments fit" if name == "Unsatisfiable" else re.escape(name)):
        steering(tool_turn(inner), TOK)


def test_the_place_is_told() -> None:
    schema = {"type": "object", "properties": {"list": {"type": "array", "items": {"not": {}}}}}
    with pytest.raises(Unsupported, match=re.escape("not at #/properties/list/items is not supported")) as caught:
        steering(json_turn(schema), TOK)
    assert (caught.value.feature, caught.value.where) == ("not", "#/properties/list/items")
    with pytest.raises(Unsupported, match=re.escape("not at lister#/properties/list/items")):
        steering(tool_turn(function("lister", **schema)), TOK)


WRONG = {
    "not JSON": "{",
    "something follows": "{} {}",
    "neither an object nor a boolean": "[]",
    "type at #": {"type": "text"},
    "is not a list of names": {"required": "a"},
    "is not a list of schemas": {"anyOf": []},
    "is not an object of schemas": {"properties": []},
    "is not a list of values": {"enum": "a"},
    "is not a number": {"minimum": "1"},
    "exclusiveMinimum at # is not a number": {"exclusiveMinimum": True},
    "is not a count": {"minLength": -1},
    "pattern at # is not a string": {"pattern": 1},
    "multipleOf at # is not a number above 0": {"multipleOf": 0},
    "leads nowhere": {"$ref": "#/$defs/none"},
    "$ref at # is not a string": {"$ref": 1},
    "refers to itself without end": {"$ref": "#"},
    "itself without end": {"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/b"}]},
                                                          "b": {"$ref": "#/$defs/a"}}},
}  # fmt: skip


@pytest.mark.parametrize("message", WRONG)
def test_what_is_no_schema(message) -> None:
    with pytest.raises(TextError, match=re.escape(message)) as caught:
        steering(json_turn(WRONG[message]), TOK)
    assert not isinstance(caught.value, (Unsupported, TooLarge))


def nested(depth: int) -> object:
    schema: object = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


def doubling(depth: int, key: str) -> object:
    """References to references: each level means the one below twice."""
    defs: dict = {f"d{i}": {key: [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(depth)}
    return {"$ref": "#/$defs/d0", "$defs": defs | {f"d{depth}": {"type": "object", "properties": {"a": {}}}}}


HOSTILE = {
    "deep": nested(100),
    "deeper than a stack": "[" * 5000 + "]" * 5000,
    "a long text": {"description": "x" * 300_000},
    "many members": {"properties": {f"p{i}": {} for i in range(1001)}},
    "many required": {"required": [f"p{i}" for i in range(1001)]},
    "many subschemas": {"anyOf": [{"anyOf": [{}] * 100}] * 60},
    "a large enum": {"enum": list(range(2001))},
    "a megabyte of enum": {"enum": [f"value {i}" for i in range(100_000)]},
    "a long value": {"const": "x" * 5000},
    "many items": {"minItems": 10**9},
    "a long string": {"minLength": 10**9},
    "a long pattern": {"pattern": "x" * 5000},
    "a large repetition": {"pattern": "a{1000000000}"},
    "nested repetitions": {"pattern": "((a{1,1000}){1,1000}){1,1000}"},
    "deep groups": {"pattern": "(" * 500 + "a" + ")" * 500},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_too_much_is_refused(name) -> None:
    schema = HOSTILE[name]
    with pytest.raises((TooLarge, TextError)) as caught:
        steering(json_turn(schema), TOK)
    assert isinstance(caught.value, TooLarge) or name == "deeper than a stack"
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("key", ["allOf", "anyOf"])
def test_references_that_double(key) -> None:
    """2 to the power of 40 ways to read it: refused, or followed in a reasonable number of steps."""
    for turn in json_turn(doubling(40, key)), tool_turn(function(**doubling(40, key))):
        try:
            assert walk(turn, TOK, 200).finish != Finish.LENGTH
        except (TooLarge, Unsupported) as error:
            assert str(error)


def test_patterns_that_explode_elsewhere() -> None:
    for pattern in (r"^(a+)+$", r"^(a|a)*b$", r"^(a|b)*a(a|b){30}$", r"^(.*a.{3}){5}$"):
        found = answers({"type": "string", "pattern": pattern, "maxLength": 300}, 2, 600)
        assert all(len(json.loads(text)) <= 300 for text in found)
    assert not matching.matches(matching.anchored(patterns.search(r"^(a+)+$").text), "a" * 5000 + "b")


def test_limits_are_what_the_documentation_says() -> None:
    assert (limits_of.MOST_BYTES, limits_of.MOST_DEPTH, limits_of.MOST_NODES) == (256 * 1024, 64, 5000)
    read(json.dumps(nested(60)))
    read(json.dumps({"properties": {f"p{i}": {"type": "null"} for i in range(1000)}}))


# --- patterns and formats

PATTERNS = [
    "foo", r"^[^@]+@[^@]+\.[a-z]{2,4}$", r"\.(png|gif)$", r"x.*y",
    r"^a*b$", r"^\d+$", r"\d", r"[^\d]x", r"^\D{3}$", r"^\W\w\s\S$", r"^[\w.-]+@[^\s]+$", r"^.{3,5}$", "", r"^$", "^",
    "$", r"^^a$$", r"^(?:a|b|)+c?$", r"^[^\W_]+$", r"^\u00e9\x41\t$", r"^\/a\-b$", r"^x{2,}$", r"^[a\]b-]$",
    "^[가-힣]{2}$", r"^(a|^b)c", r"(^|,)ab(,|$)", r"^[\u0000-\u00ff]{2}$", r"^[^a]$", r"^a+?b*?$",
    r"^\^\$$", r"^[\d\-x]+$", r"^(?P<y>\d{2})-(\d\d)$", r"^a{0}b{1,1}$",
]  # fmt: skip


@pytest.mark.parametrize("pattern", PATTERNS)
def test_strings_match_their_patterns(pattern) -> None:
    found = answers({"type": "string", "pattern": pattern, "maxLength": 12}, 10)
    least = patterns.search(pattern).least
    for text in found:
        value = json.loads(text)
        assert re.search(pattern, value) and len(value) >= least, value
    example = patterns.search(pattern).example
    assert example is not None and re.search(pattern, example)


def test_patterns_with_words_of_one_dialect() -> None:
    for pattern, value in (
        (r"^(?<y>\d)$", "1"),
        (r"^[+--]$", ","),
        (r"^\p{Lu}$", "Ä"),
        (r"^\ud83d\ude00$", "\U0001f600"),
    ):
        assert matching.matches(matching.anchored(patterns.search(pattern).text), value)
    for pattern in ("[]a]", "[^]a]", "a{,3}", r"\q", "(?i)a", "a++", "(?>a)", "a**", "a?^b", "(a", "a)", "[z-a]", "[a",
                    r"\p{Greek}", r"[\d-x]", r"\u12", "+a", "^*", "(?#x)", r"\ud800"):  # fmt: skip
        with pytest.raises(Unsupported, match="pattern with"):
            patterns.search(pattern)


@pytest.mark.parametrize("name", formats.FORMATS)
def test_strings_have_their_formats(name) -> None:
    schema = {"type": "string", "format": name, "maxLength": 60}
    for text in answers(schema, 10):
        assert FormatChecker().conforms(json.loads(text), name) or name == "time"  # whose check is another draft's


def test_dates_are_dates() -> None:
    pattern = formats.format_pattern("date")
    assert pattern is not None
    for value in ("2024-02-29", "2000-02-29", "0001-01-01", "9999-12-31"):
        assert matching.matches(matching.anchored(pattern.text), value), value
    for value in ("2023-02-29", "1900-02-29", "0000-01-01", "2023-04-31", "2023-13-01", "2023-1-1"):
        assert not matching.matches(matching.anchored(pattern.text), value), value


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


# --- calls that the model makes on its own

STRICT = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 7, "maximum": 9}}, "required": ["n"]}


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


# --- tokens


def test_real_vocabularies_are_wider_than_their_tokens() -> None:
    """Logits for ids without a string are never picked."""
    steer = steering(json_turn({"type": "string"}), TOK)
    assert steer is not None
    generation = type("G", (), {"tokens": [], "thinking": False, "limit": 50, "cancel": staticmethod(lambda: False)})()
    masked = steer(generation, np.full(len(TOK) + 40, 3.0, np.float32))
    if isinstance(masked, int):
        assert TOK.token_bytes(masked) == b'"'
    else:
        assert masked.shape == (len(TOK) + 40,) and masked.dtype == np.float32
        assert not np.isfinite(masked[len(TOK) :]).any() and np.isfinite(masked).any()


def test_one_vocabulary_a_tokenizer() -> None:
    tokenizer, found = make(), []
    threads = [threading.Thread(target=lambda: found.append(vocabulary(tokenizer))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(words) for words in found}) == 1 and vocabulary(tokenizer) is not vocabulary(TOK)
    words = found[0]
    assert {tokenizer.eos, tokenizer.dsml, tokenizer.think_open} <= words.control
    assert words.exactly(b"</") == tokenizer.encode("</")[0] and words.exactly(b"no such token") == -1
    assert {tokenizer.token_bytes(int(i)) for i in words.starting(b"12")} == {b"12", b"123"}


def test_compiled_grammars_are_kept_and_forgotten() -> None:
    words = vocabulary(make())
    made = []
    for i in range(40):
        words.kept(f"k{i}", lambda i=i: made.append(i) or i + 1)
    words.kept("k39", lambda: pytest.fail("was forgotten"))
    words.kept("k0", lambda: made.append(0) or 1)
    assert made == [*range(40), 0]


def test_an_answer_may_not_leave_its_grammar() -> None:
    steer = steering(json_turn({"type": "null"}), TOK)
    assert steer is not None
    generation = type("G", (), {"tokens": [], "thinking": False, "limit": 50, "cancel": staticmethod(lambda: False)})()
    steer(generation, np.zeros(len(TOK), np.float32))
    generation.tokens.append(TOK.encode("x")[0])
    with pytest.raises(TextError, match="left its grammar"):
        steer(generation, np.zeros(len(TOK), np.float32))


# --- through the worker, on the embedded model


@pytest.fixture(scope="module")
def worker(nano_path):
    with Engine.open(nano_path, backend="reference", threads=1) as engine:
        made = Worker(engine, ctx=2048, constrain=steering)
        yield made
        made.shut_down(60)


def events(worker: Worker, turn: Turn) -> tuple[list, str]:
    got, done = [], threading.Event()

    def listen(event) -> None:
        got.append(event)
        if getattr(event, "finish", "") or type(event).__name__ == "Failed":
            done.set()

    worker.submit(turn, listen)
    assert done.wait(300)
    deltas = [event for event in got if isinstance(event, Delta)]
    return got, "".join(delta.text for delta in deltas)


def test_forms_are_compiled_where_a_turn_is_submitted(worker) -> None:
    for turn in json_turn({"not": {}}), tool_turn(), json_turn({"type": "string", "minLength": 50_000}):
        with pytest.raises(TextError):
            worker.submit(turn, lambda event: pytest.fail("it was taken on"))


def test_the_embedded_model_answers_in_form(worker) -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer", "minimum": 3, "maximum": 40}},
        "required": ["n"],
    }
    schema["additionalProperties"] = False
    got, text = events(worker, json_turn(schema, max_tokens=300, sampling=Sampling(seed=1)))
    assert got[-1].finish == Finish.STOP and not list(validator(schema).iter_errors(json.loads(text)))
    turn = tool_turn(function(**STRICT), choice=Choice("named", "f"), max_tokens=300, sampling=Sampling(seed=1))
    got, text = events(worker, turn)
    assert got[-1].finish == Finish.TOOL_CALLS and text == ""
    arguments = "".join(call.arguments for event in got if isinstance(event, Delta) for call in event.calls)
    assert json.loads(arguments)["n"] in (7, 8, 9) and got[-1].markup.startswith(f"\n\n<{D}tool_calls>")


def test_a_sample_of_the_benchmark(nano_path) -> None:
    """``python -m benchmarks.constrain --schemas 500`` is the whole of it."""
    from benchmarks.constrain import Answers, trials

    with Engine.open(nano_path, backend="cpu", threads=1) as engine:
        *_, (tally, done) = trials(Answers(engine), 8, 96, seed=77)
    assert done == 8 and tally.wrong == [] and tally.counts["finished"] > 12, tally


def test_the_benchmark_notices_what_does_not_fit() -> None:
    from benchmarks.constrain import misfit

    assert misfit('{"type":"integer"}', "3") is None
    assert "no JSON" in str(misfit("{}", "{")) and "not of type" in str(misfit('{"type":"integer"}', '"3"'))
    assert sys.getrecursionlimit() < 100_000 and random and string and Schema
