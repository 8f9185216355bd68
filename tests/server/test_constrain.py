"""Constrained decoding: every finished answer is valid, whatever a model would rather say; what cannot be enforced is
refused by name; what is too much is refused before it costs anything."""

from __future__ import annotations

import copy
import json
import random
import re
import string
import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from ds4ref.engine import Engine
from ds4ref.errors import TextError
from ds4ref.server.constrain import Limits, TooLarge, Unsupported, steering
from ds4ref.server.grammar import matching, patterns
from ds4ref.server.grammar import schema as limits_of
from ds4ref.server.grammar.follow import Patience
from ds4ref.server.grammar.schema import read
from ds4ref.server.grammar.vocabulary import vocabulary
from ds4ref.server.turn import Choice, Sampling, Turn
from ds4ref.server.worker import Worker
from ds4ref.targets.answer import Delta, Finish
from ds4ref.text.schemas import Schema
from tests.server.walk import walk
from tests.text.vocab import make

from .constrained import STRICT, TOK, D, answers, function, json_turn, tool_turn, validator

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


@pytest.mark.thorough
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


@pytest.mark.thorough
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


class Ending(type(TOK)):  # type: ignore[misc]
    """The same vocabulary with another token that ends an answer."""

    ends = property(lambda self: frozenset((self.eos, self.user)))


def test_every_token_for_the_end_may_end_a_demanded_answer() -> None:
    tok = copy.copy(TOK)
    tok.__class__ = Ending
    steer = steering(json_turn({"type": "integer"}), tok)
    generation = SimpleNamespace(tokens=[], thinking=False, limit=50, cancel=lambda: False)
    logits = np.zeros(len(tok), np.float32)
    masked = steer(generation, logits)
    assert masked[tok.eos] == masked[tok.user] == -np.inf  # nothing was said yet
    generation.tokens += tok.encode("12")
    masked = steer(generation, logits)
    assert masked[tok.eos] == masked[tok.user] == 0 and masked[tok.assistant] == -np.inf
