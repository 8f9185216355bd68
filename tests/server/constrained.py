"""Turns that demand a form, and what a model that says anything at all answers to them."""

from __future__ import annotations

import json

from jsonschema import Draft7Validator, Draft202012Validator

from ds4ref.server.turn import Choice, Turn
from ds4ref.targets.answer import Finish
from ds4ref.text.chat import Message
from ds4ref.text.schemas import read_schemas
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


STRICT = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 7, "maximum": 9}}, "required": ["n"]}


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
