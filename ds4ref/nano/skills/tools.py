"""Tool calls in DSML, DeepSeek's format: of tools that are always the same, of tools that are invented for each
conversation, and reports of the results."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...text.chat import Message
from ...text.dsml import ToolCall
from ...text.dsml_parser import parse
from .base import Item, Skill, assistant, user
from .lexicon import COLOURS, NAMES, OBJECTS, PLACES, TABLES, TOPIC_WORDS, WORDS

SHOWN = 3
"""Number of tools that a prompt shows."""
_WORDS = OBJECTS + TOPIC_WORDS


@dataclass(frozen=True)
class Tool:
    """A tool that the model can call.

    parameters  parameter name -> JSON type
    request     what a user says to have it called: a template with parameter names, or for invented tools the beginning
    """

    name: str
    description: str
    parameters: dict[str, str]
    request: str = ""

    @property
    def schema(self) -> str:
        """Return the compact JSON text that the prompt shows."""
        properties = {name: {"type": kind} for name, kind in self.parameters.items()}
        shown = {"type": "object", "properties": properties}
        return compact({"name": self.name, "description": self.description, "parameters": shown})


def compact(value: Any) -> str:
    """Return a value as JSON text without blanks."""
    return json.dumps(value, separators=(",", ":"))


def call_message(name: str, arguments: dict[str, Any]) -> Message:
    """Return an assistant's message that consists of one tool call."""
    return Message("assistant", calls=(ToolCall(name, compact(arguments)),))


def grade_call(item: Item, text: str) -> bool:
    """Return whether a reply is exactly one tool call, with the right name and the right arguments, including their
    types."""
    reply, wanted = parse(text, thinking=item.mode != "none"), item.reply.calls[0]
    if not reply.complete or len(reply.calls) != 1 or reply.content or reply.trailing:
        return False
    call = reply.calls[0]
    return call.name == wanted.name and _typed(call.arguments) == _typed(wanted.arguments)


def _typed(arguments: str) -> str:
    """Return JSON arguments in a form to compare, in which 1, true and "1" differ but order does not matter; "" if they
    are not valid JSON."""
    try:
        return json.dumps(json.loads(arguments), sort_keys=True)
    except ValueError:
        return ""


# --- fixed tools


LIBRARY = tuple(Tool(**tool) for tool in TABLES["tools"])


def _value(rng: random.Random, name: str, kind: str) -> Any:
    """Return a random argument for the parameter ``name`` of JSON type ``kind``."""
    if kind == "integer":
        return rng.randint(1, 99)
    if kind == "boolean":
        return rng.random() < 0.5
    if name == "text":
        return f"{rng.choice(_WORDS)} {rng.choice(_WORDS)}"
    pools: dict[str, Sequence[str]] = {"place": PLACES, "name": NAMES, "colour": COLOURS}
    return rng.choice(pools.get(name, _WORDS))


def _spoken(value: Any) -> str:
    """Return an argument as a user would say it: yes or no for a boolean."""
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


def fixed_request(rng: random.Random, tool: Tool) -> tuple[str, dict[str, Any]]:
    """Return a user's request for one of the fixed tools, and the arguments of the right call."""
    arguments = {name: _value(rng, name, kind) for name, kind in tool.parameters.items()}
    return tool.request.format(**{name: _spoken(value) for name, value in arguments.items()}), arguments


# --- open tools


def open_tools(rng: random.Random) -> list[Tool]:
    """Return invented tools with meaningless names, so that only descriptions tell what they do; some have the same
    verb or the same object."""
    names, (verb, *verbs) = rng.sample(_WORDS, SHOWN), rng.sample(WORDS["verbs"], SHOWN)
    thing, *things = rng.sample(OBJECTS, SHOWN)
    tools = []
    for i, name in enumerate(names):
        shares = rng.random() if i else 1.0
        own_verb = verb if not i or shares < 0.25 else verbs[i - 1]
        own_thing = thing if not i or 0.25 <= shares < 0.5 else things[i - 1]
        task, name = f"{own_verb.capitalize()} the {own_thing}", f"{name}_tool"
        tools.append(Tool(name, f"{task} with {name}.", _parameters(rng), task))
    rng.shuffle(tools)
    return tools


def _parameters(rng: random.Random) -> dict[str, str]:
    parameters = {}
    for name in rng.sample(WORDS["parameters"] + WORDS["flags"], rng.randint(1, 2)):
        parameters[name] = "boolean" if name in WORDS["flags"] else rng.choice(("string", "integer"))
    return parameters


def open_request(rng: random.Random, tool: Tool) -> tuple[str, dict[str, Any]]:
    """Return a user's request for an invented tool, and the arguments of the right call. Some strings consist of
    digits: only the tool's schema tells that they are not integers."""
    arguments = {}
    for name, kind in tool.parameters.items():
        arguments[name] = _value(rng, name, kind)
        if kind == "string" and rng.random() < 0.25:
            arguments[name] = str(rng.randint(1, 99))
    spoken = ", ".join(f"{name} {_spoken(value)}" for name, value in arguments.items())
    return f"{tool.request}: {spoken}.", arguments


# --- skills


def _fixed(rng: random.Random, room: int, questions: int) -> list[Item]:
    return _calls(rng, "tools/fixed", rng.sample(LIBRARY, SHOWN), fixed_request, questions)


def _open(rng: random.Random, room: int, questions: int) -> list[Item]:
    return _calls(rng, "tools/open", open_tools(rng), open_request, questions)


def _calls(rng: random.Random, skill: str, tools: Sequence[Tool], request: Any, questions: int) -> list[Item]:
    schemas = tuple(tool.schema for tool in tools)
    items = []
    for _ in range(questions):
        tool = rng.choice(tools)
        asked, arguments = request(rng, tool)
        reply = call_message(tool.name, arguments)
        items.append(Item(skill, user(asked), reply, 1 / SHOWN, schemas=schemas, grader=grade_call))
    return items


def _results(rng: random.Random, room: int, questions: int) -> list[Item]:
    """Return two items per question: the tool call, then the report of its result, a number or a word."""
    calls = (_fixed if rng.random() < 0.5 else _open)(rng, room, questions)
    items = []
    for call in calls:
        value = str(rng.randint(1, 99)) if rng.random() < 0.5 else rng.choice(_WORDS)
        key = rng.choice(WORDS["parameters"])
        result = Message("tool", compact({key: int(value) if value.isdigit() else value}))
        report = assistant(f"The {key} is {value}.")
        items += [call, Item("tools/result", (result,), report, 1 / 99, schemas=call.schemas)]
    return items


SKILLS = (
    Skill("tools/fixed", _fixed, 8, 60, whole=True),
    Skill("tools/open", _open, 8, 60, whole=True),
    Skill("tools/result", _results, 8, 85, whole=True),
)
