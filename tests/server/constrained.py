"""Turns that demand a schema, a call or a grammar, and JSON schemas drawn at random."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st
from jsonschema import Draft7Validator, Draft202012Validator

from ds4ref.server.turn import Choice, Turn
from ds4ref.text.chat import Message
from ds4ref.text.protocol import DSML as D
from ds4ref.text.schemas import read_schemas
from tests.text.vocab import make

TOK = make()
ASK = (Message("user", "Hi"),)
STRICT = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 7, "maximum": 9}}, "required": ["n"]}
__all__ = ["D"]


def json_turn(schema: object, **more) -> Turn:
    return Turn("chat", messages=ASK, format=json.dumps(schema), **{"thinking": "none", **more})


def tool_turn(*tools: dict, choice: Choice | None = None, **more) -> Turn:
    made = tuple(read_schemas(json.dumps(tools)))
    return Turn("chat", messages=ASK, tools=made, choice=choice or Choice("required"), **{"thinking": "none", **more})


def function(name: str = "f", strict: bool | None = None, **parameters: object) -> dict:
    inner = {"name": name, "parameters": parameters} | ({} if strict is None else {"strict": strict})
    return {"type": "function", "function": inner}


def custom(definition: str, syntax: str = "lark", name: str = "patch") -> dict:
    form = {"type": "grammar", "syntax": syntax, "definition": definition}
    return {"type": "custom", "name": name, "description": "d", "format": form}


def validate(schema: object, value: object) -> None:
    """AssertionError unless ``value`` fits, according to the package jsonschema."""
    kind = Draft7Validator if "draft-07" in json.dumps(schema) else Draft202012Validator
    error = next(kind(schema, format_checker=kind.FORMAT_CHECKER).iter_errors(value), None)
    assert error is None, (error.message, value, schema)


# --- drawn schemas: what tools and forms of real clients are made of

NAMES = st.sampled_from(["a", "b", "city", "due date", 'q"<&>', "é"])
TEXT = st.text(st.sampled_from('ab<&>/"\\\n ｜é€\U0001f600'), max_size=5)
CONSTANTS = TEXT | st.integers(-999, 999) | st.booleans() | st.none() | st.just([1, {"b": "x"}])
_BOUNDS = st.integers(-30, 30).flatmap(lambda low: st.tuples(st.just(low), st.integers(low, low + 40)))
_SIZES = st.tuples(st.integers(0, 2), st.integers(2, 4))


def _limited(kind: str, low: str, high: str) -> Any:
    return lambda pair: {"type": kind, low: pair[0], high: pair[1]}


LEAVES = st.one_of(
    st.sampled_from([{"type": "boolean"}, {"type": "null"}, {"type": ["string", "null"], "maxLength": 2},
                     {"type": "string", "format": "date"}, {"type": "string", "pattern": "^[a-c]{2}-\\d$"},
                     {"$ref": "#/$defs/level"}, {"type": "string", "description": "s", "maxLength": 3}]),
    st.lists(CONSTANTS, min_size=1, max_size=4).map(lambda values: {"enum": values}),
    st.lists(TEXT, min_size=1, max_size=3).map(lambda values: {"type": "string", "enum": values}),
    CONSTANTS.map(lambda value: {"const": value}),
    _BOUNDS.map(_limited("integer", "minimum", "maximum")),
    _BOUNDS.map(_limited("number", "minimum", "maximum")),
    _SIZES.map(_limited("string", "minLength", "maxLength")),
)  # fmt: skip


@st.composite
def objects(draw: st.DrawFn, inner: st.SearchStrategy[Any] = LEAVES) -> dict[str, Any]:
    """A schema of an object with some members, some of them required."""
    members = draw(st.dictionaries(NAMES, inner, min_size=1, max_size=4))
    required = draw(st.lists(st.sampled_from(sorted(members)), unique=True))
    return {"type": "object", "properties": members, "required": required, "additionalProperties": False}


def _nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    arrays = st.tuples(inner, _SIZES).map(
        lambda pair: {"type": "array", "items": pair[0], "minItems": pair[1][0], "maxItems": pair[1][1]}
    )
    choices = st.lists(inner, min_size=2, max_size=3).map(lambda parts: {"anyOf": parts})
    return objects(inner) | arrays | choices


LEVEL = {"$defs": {"level": {"enum": ["low", "high"]}}}
schemas = st.recursive(LEAVES, _nested, max_leaves=8).map(lambda schema: schema | LEVEL)
"""JSON schemas that some short value fits."""
