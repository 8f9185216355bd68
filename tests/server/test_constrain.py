"""Constrained answers: every finished one validates, whatever the model would rather say; what llguidance does not
support is refused by name."""

from __future__ import annotations

import copy
import json
import re
from decimal import Decimal
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st

from ds4ref.errors import TextError
from ds4ref.server.constrain import GrammarError, guide_of
from ds4ref.server.grammar import bounded
from ds4ref.server.turn import Turn
from ds4ref.server.vocabulary import MAX_BYTES
from ds4ref.targets.answer import Finish
from tests.server.walk import walk

from .constrained import ASK, TOK, custom, function, json_turn, schemas, tool_turn, validate


def answer(schema: object, tokens: int = 300, seed: int = 0, **more) -> str:
    """A finished answer that validates."""
    done = walk(json_turn(schema), TOK, tokens, seed, **more)
    assert done.finish == Finish.STOP, (done.text, schema)
    validate(schema, json.loads(done.text))
    return done.text


# --- JSON answers


@given(schemas, st.integers(0, 1000))
@settings(max_examples=60, deadline=None, phases=[Phase.explicit, Phase.generate])
def test_every_answer_fits_its_schema(schema, seed) -> None:
    done = walk(json_turn(schema), TOK, 600, seed, closing=4)
    assume(done.finish == Finish.STOP)  # random logits may add digits for ever
    validate(schema, json.loads(done.text))


def test_what_fits_stands_as_the_model_says_it() -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}, "n": {"type": "integer"}},
              "required": ["city", "n"], "additionalProperties": False}  # fmt: skip
    for text in ('{"city":"Paris, \\"fr\\"","n":-3}', '{"city": "x", "n": 3}', '{\n  "city": "x",\n  "n": 3\n}'):
        assert walk(json_turn(schema), TOK, 200, script=text).text == text
    # Members in another order, or twice, do not fit.
    for text in ('{"n":3,"city":"x"}', '{"city":"x","city":"y","n":3}', '{"city":"x","n":3}, '):
        done = walk(json_turn(schema), TOK, 200, script=text)
        assert done.text != text
        validate(schema, json.loads(done.text))


def test_white_space_is_bounded() -> None:
    done = walk(json_turn({"type": "array", "items": {"type": "null"}}), TOK, 400, script="[\n" + " " * 200)
    assert re.match(r"\[\n {24}[^ ]", done.text)


# --- reasoning


def test_reasoning_is_free_and_its_end_is_not_the_answers() -> None:
    schema = {"type": "object", "properties": {"a": {"enum": ["yes", "no"]}}, "required": ["a"]}
    for end in (TOK.think_close, TOK.eos):
        thought = 'Well, {"a": "maybe"} is no answer'
        done = walk(json_turn(schema, thinking="high"), TOK, 300, script=[*TOK.encode(thought), end])
        assert done.reasoning == thought and json.loads(done.text)["a"] in ("yes", "no")


# --- what is refused

REFUSED = {
    'Unimplemented keys: ["not"]': {"not": {}},
    'Unimplemented keys: ["if", "then"]': {"if": {}, "then": {}},
    'Unimplemented keys: ["dependentRequired"]': {"dependentRequired": {"a": ["b"]}},
    'Unimplemented keys: ["uniqueItems"]': {"type": "array", "uniqueItems": True},
    "oneOf constraints are not supported": {"oneOf": [{"type": "number"}, {"type": "integer"}]},
    "Unknown format: int32": {"type": "string", "format": "int32"},
    "look-around": {"type": "string", "pattern": "(?=a)"},
    "backreferences": {"type": "string", "pattern": r"(a)\1"},
    "https://example.com/s.json": {"$ref": "https://example.com/s.json"},
    "does not exist": {"$ref": "#/$defs/none"},
    "Invalid type: text": {"type": "text"},
    "Unsatisfiable schema": {"allOf": [{"type": "string"}, {"type": "integer"}]},
}  # fmt: skip


@pytest.mark.parametrize("words", REFUSED)
def test_what_llguidance_does_not_support_is_named(words) -> None:
    with pytest.raises(TextError, match="the schema of the answer: .*" + re.escape(words)):
        guide_of(json_turn({"type": "object", "properties": {"p": REFUSED[words]}, "required": ["p"]}), TOK)
    inner = function("lister", True, type="object", properties={"p": REFUSED[words]}, required=["p"])
    with pytest.raises(TextError, match="tool lister, parameter p: .*" + re.escape(words)):
        guide_of(tool_turn(inner), TOK)


def test_a_grammar_of_more_than_a_megabyte_is_refused() -> None:
    with pytest.raises(TextError, match=f"larger than {MAX_BYTES} bytes"):
        guide_of(json_turn({"description": "x" * MAX_BYTES}), TOK)


def chain(count: int, link) -> dict:
    """Definitions each of which refers to the next one."""
    defs = {f"d{i}": link({"$ref": f"#/$defs/d{i + 1}"}) for i in range(count)}
    return {"$ref": "#/$defs/d0", "$defs": defs | {f"d{count}": {"enum": ["x"]}}}


@pytest.mark.thorough
def test_references_that_double_or_never_end() -> None:
    """2 to the power of 40 ways to read it; a stack that overflows."""
    assert walk(json_turn(chain(40, lambda ref: {"anyOf": [ref, ref]})), TOK, 50).text == '"x"'
    answer(chain(100, lambda ref: {"allOf": [ref]}))
    with pytest.raises(TextError, match="the schema of the answer: allOf and .* more than 1000 schemas for one place"):
        guide_of(json_turn(chain(40, lambda ref: {"allOf": [ref, ref]})), TOK)
    for link in (dict, lambda ref: {"properties": {"a": ref}}, lambda ref: {"anyOf": [ref, {"const": 1}]}):
        with pytest.raises(TextError, match="nested more than 600 deep"):
            guide_of(json_turn(chain(5000, link)), TOK)
        inner = function("f", type="object", properties={"p": {"$ref": "#/$defs/d0"}}, **chain(5000, link))
        with pytest.raises(TextError, match="nested more than 600 deep"):
            guide_of(tool_turn(inner), TOK)


# --- tokens


def generation() -> SimpleNamespace:
    return SimpleNamespace(tokens=[], thinking=False, limit=50, cancel=lambda: False)


def test_real_vocabularies_are_wider_than_their_tokens() -> None:
    """Logits for ids without a string are never picked."""
    masked = guide_of(json_turn({"type": ["string", "null"]}), TOK)(
        generation(), np.full(len(TOK) + 40, 3.0, np.float32)
    )
    assert masked.shape == (len(TOK) + 40,) and masked.dtype == np.float32
    assert {TOK.token_bytes(i)[:1] for i in np.flatnonzero(np.isfinite(masked))} == {b'"', b"n"}


def test_an_answer_may_not_leave_its_grammar() -> None:
    guide, made = guide_of(json_turn({"type": "null"}), TOK), generation()
    guide(made, np.zeros(len(TOK), np.float32))
    made.tokens.append(TOK.encode("x")[0])
    with pytest.raises(GrammarError, match="left its grammar"):
        guide(made, np.zeros(len(TOK), np.float32))


class Ending(type(TOK)):  # type: ignore[misc]
    """The same vocabulary with another token that ends an answer."""

    ends = property(lambda self: frozenset((self.eos, self.user)))


def test_every_token_for_the_end_may_end_a_demanded_answer() -> None:
    tok = copy.copy(TOK)
    tok.__class__ = Ending
    guide, made = guide_of(json_turn({"type": "integer"}), tok), generation()
    logits = np.zeros(len(tok), np.float32)
    masked = guide(made, logits)
    assert masked[tok.eos] == masked[tok.user] == -np.inf  # nothing was said yet
    made.tokens += tok.encode("12")
    masked = guide(made, logits)
    assert masked[tok.eos] == masked[tok.user] == 0 and masked[tok.assistant] == -np.inf


# --- bounds that doubles do not keep

B = 2**53


@pytest.mark.parametrize(
    "bounds",
    [{"minimum": B}, {"exclusiveMinimum": B - 1}, {"maximum": -B}, {"exclusiveMaximum": 1 - B},
     {"exclusiveMinimum": B - 1, "exclusiveMaximum": B + 1}, {"minimum": 2**63 - 1, "maximum": 2**63 - 1},
     {"minimum": 1 - 2**63, "maximum": 1 - 2**63}, {"minimum": 1e300}, {"maximum": -1e19}],
)  # fmt: skip
def test_numbers_beyond_them_are_refused_in_a_line(bounds):
    """And nothing overflows the stack of what compiles them, as two equal bounds of -2**63 + 1 do."""
    for kind in ("integer", "number"):
        with pytest.raises(TextError, match="only numbers beyond 9007199254740991"):
            guide_of(json_turn({"type": "object", "properties": {"n": {"anyOf": [{"type": kind, **bounds}]}}}), TOK)
        with pytest.raises(TextError, match="tool f, parameter x: .* only numbers beyond 9007199254740991"):
            guide_of(tool_turn(function(strict=True, type="object", properties={"x": {"type": kind, **bounds}})), TOK)


CHANGED = [str(B + 1), "0.12345678901234567", "1.0000000000000000001", "1E+22"]
PLACES = ['{"const": %s}', '{"enum": [{"a": [[%s]]}]}', '{"$defs": {"d": {"const": %s}}, "$ref": "#/$defs/d"}',
          '{"items": {"multipleOf": %s}}', '{"anyOf": [{"properties": {"const": {"enum": [%s]}}}]}']  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
def test_numbers_that_would_be_changed_are_refused_by_name(place):
    for number in CHANGED:
        refused = f"(const|enum|multipleOf) {re.escape(number)} would be changed"
        with pytest.raises(TextError, match="the schema of the answer: " + refused):
            guide_of(Turn("chat", format=place % number, thinking="none"), TOK)
        with pytest.raises(TextError, match="tool patch: " + refused):
            guide_of(tool_turn(custom(f"start: %json {place % number}")), TOK)
    kept = guide_of(Turn("chat", format=place % "0.25", thinking="none"), TOK)
    assert kept is not None


def test_numbers_that_constrain_nothing_are_taken():
    assert answer({"default": B + 1, "examples": [0.12345678901234567, {"const": B + 1}], "const": 7}) == "7"


def test_bounds_beyond_doubles_count_as_the_nearest_and_names_are_counted_once():
    schema = {"const": {"maximum": 5}, "properties": {"maximum": {"maximum": 2**60}}, "maxLength": 2**64,
              "items": [{"exclusiveMaximum": 2**60, "maximum": 7}, {"exclusiveMinimum": -(2**60)}]}  # fmt: skip
    wanted = {"const": {"maximum": 5}, "properties": {"maximum": {"maximum": B - 1}},
              "items": [{"maximum": 7}, {"minimum": 1 - B}]}  # fmt: skip
    assert bounded("x", schema) == wanted
    free = {"type": "object", "minProperties": 2, "additionalProperties": {"type": "integer"}}
    with pytest.raises(TextError, match="minProperties 2 is not supported where members may have any name"):
        guide_of(json_turn({"anyOf": [free]}), TOK)
    assert guide_of(tool_turn(function(type="object", properties={"x": free})), TOK) is not None
    assert len(json.loads(answer({**free, "minProperties": 1}))) >= 1
    for number in (str(1 - B), "3.141592653589793", "1.50", "1e15", "2e-7"):
        turn = Turn("chat", messages=ASK, format=f'{{"const": [{number}]}}', thinking="none")
        assert json.loads(walk(turn, TOK, 60).text, parse_float=Decimal) == [Decimal(number)]
