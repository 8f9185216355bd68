"""Renders prompts in the chat formats of DeepSeek's checkpoints since July 2026, as DeepSeek's own encoder does.

    render(chat, PROFILES["0731"])              the prompt of a conversation, a ``Rendered``
    render(chat, profile, escapes=False)        exactly the official text, even if a value or result has a closing tag

There are two formats, called profiles: 0731 and v4.1 (docs/explanation/text.md 3); the format of May 2026, which ds4
uses, is ``chat.render``. The profiles differ in what ``Profile`` lists, and in the order of messages: 0731 moves all
system texts to the front, and starts a new turn when a tool result follows a user's text; v4.1 leaves both in place.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Annotated, Any, Literal

import msgspec

from . import protocol
from .chat import MAX_PREFIX, Message
from .dsml import ToolCall, block_of, escape_attribute, escape_string, render_result
from .protocol import CANONICAL, Dialect, dialect
from .rendered import Rendered, TextPart

BEYOND_PREFIX = (
    "Reasoning Effort: Beyond maximum — exhaustive, relentless, and uncompromising.\n"
    "You MUST reason with the utmost depth and rigor, leaving absolutely nothing to chance: exhaustively decompose the "
    "problem into its most fundamental components, trace every causal chain to its root, and resolve the underlying "
    "cause rather than any surface symptom.\n"
    "Do not stop reasoning until you have independently verified the solution from multiple angles and are certain "
    "that no assumption remains unchecked and no error remains undiscovered.\n\n"
)
_SCALE = "Reasoning Effort: {} (range 1-100, the higher the value, the more thorough the reasoning)\n\n"

_TOOLS = """## Tools

You have access to a set of tools to help answer the user's question. You can invoke tools by writing a \
"{0.block_open}" block like the following:

{0.block_open}
{0.invoke_open} name="$TOOL_NAME">
{0.param_open} name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE{0.param_close}
...
{0.invoke_close}
{0.invoke_open} name="$TOOL_NAME2">
...
{0.invoke_close}
{0.block_close}

String parameters should be specified as is and set `string="true"`. For all other types (numbers, booleans, arrays, \
objects), pass the value in JSON format and set `string="false"`.

If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning inside <think>...</think> \
BEFORE any tool calls or final response.

Otherwise, output directly after </think> with tool calls or final response.

### Available Tool Schemas

"""
_TOOLS_END = "You MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.\n"
_FORMAT = "## Response Format:\n\n"
_SCHEMA = _FORMAT + "You MUST strictly adhere to the following schema to reply:\n"


@dataclass(frozen=True)
class Profile:
    """The chat format that a checkpoint was trained with.

    efforts      text inserted for each reasoning effort; "" for none
    tags         spelling of the DSML tags
    in_place     whether later system texts stay where they are, as turns of their own, and tool results are sorted
                 within their turn; otherwise system texts move to the front
    bare_call    text inside a tool call without parameters
    json_object  text that asks for an answer in the format ``json_object``
    image        placeholder for an image
    escapes      whether closing tags inside a name, value or result are escaped, as in the format of May 2026
    """

    name: str
    efforts: Mapping[str, str]
    tags: Dialect
    in_place: bool
    bare_call: str
    json_object: str
    image: str
    escapes: bool = True


PROFILES = {
    "0731": Profile(
        "0731",
        {"low": "", "high": MAX_PREFIX, "max": BEYOND_PREFIX},
        CANONICAL,
        in_place=False,
        bare_call="",
        json_object=f"You are a helpful assistant designed to output JSON.\n{_FORMAT}Reply with JSON object ONLY.",
        image="[Unsupported Image]",
    ),
    "v4.1": Profile(
        "v4.1",
        {"low": _SCALE.format(50), "high": _SCALE.format(75), "max": _SCALE.format(100)},
        dialect(protocol.DSML + " ", "calls"),
        in_place=True,
        bare_call="\n",
        json_object=_SCHEMA + '{"type": "json_object"}',
        image="<｜image｜>",
    ),
}


@dataclass(frozen=True)
class Tool:
    """A function that the model may call.

    parameters  JSON schema of its arguments; for a strict tool the result of ``strict_schema``
    deferred    whether it is left out of the tools section
    """

    name: str
    description: str = ""
    parameters: Any = field(default_factory=dict)
    deferred: bool = False

    def line(self, profile: Profile) -> str:
        """Return the line of the tools section that describes this tool."""
        return dumps({"name": self.name, "description": self.description, "parameters": self.parameters}, profile)


@dataclass(frozen=True)
class Chat:
    """A conversation to be answered.

    thinking     whether the answer starts with reasoning
    effort       reasoning effort: "low", "high" or "max"
    tool_choice  "auto", "none", or "required": the prompt opens a block of tool calls, which the answer continues
    format       format of the answer: "json_object", or a JSON schema as a Python object; None: free text
    """

    messages: Sequence[Message]
    tools: Sequence[Tool] = ()
    thinking: bool = True
    effort: str = "high"
    tool_choice: str = "auto"
    format: Any = None


_BOUNDS = ("const", "default", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_SCALARS: dict[str, dict[str, Any]] = {
    "string": {"pattern": str, "format": Literal["email", "hostname", "ipv4", "ipv6", "uuid"], "enum": list[str]},
    "number": dict.fromkeys(_BOUNDS, int | float),
    "integer": dict.fromkeys(_BOUNDS, Annotated[int, msgspec.Meta(le=(1 << 63) - 1)]),
    "boolean": {},
    "null": {},
}
"""JSON Schema keywords that a strict schema keeps in addition to the description, with their types, by schema type."""


def strict_schema(schema: Any) -> dict[str, Any]:
    """Return the parameter schema of a strict tool as DeepSeek's API shows it to the model.

    Only the keywords that the API supports are kept, in its order, and all properties are required. Raise ValueError
    for a schema that the API refuses.
    """
    schema = {"type": "object"} if schema is None else schema
    if not isinstance(schema, dict) or schema.get("type") != "object":
        raise ValueError("the parameters of a strict tool are an object")
    return _strict(schema, may_be_empty=True)


def _strict(schema: Any, may_be_empty: bool = False) -> dict[str, Any]:
    if not (isinstance(schema, dict) and {*schema} & {"type", "anyOf", "$ref"}):
        raise ValueError("a strict schema has type, anyOf or $ref")

    def read(keyword: str, kind: Any) -> Any:
        try:
            return msgspec.convert(schema.get(keyword), kind)
        except msgspec.ValidationError as error:
            raise ValueError(f"{keyword} of a strict schema: {error}") from None

    kind, described = schema.get("type"), {"description": str}
    if "type" not in schema and "anyOf" not in schema:
        return {"$ref": read("$ref", str)}
    if "type" not in schema:
        choices = read("anyOf", list[dict[str, Any]])
        if not all(isinstance(choice.get("type"), str) for choice in choices):
            raise ValueError("each choice of anyOf in a strict schema has one type")
        out: dict[str, Any] = {"anyOf": [_strict(choice) for choice in choices]}
    elif kind == "array":
        out = {"type": kind, "items": _strict(schema.get("items"))}
    elif kind == "object":
        properties = read("properties", dict[str, Any] | None) or {}
        required = read("required", list[str] | None)
        if not (properties or may_be_empty) or read("additionalProperties", bool | None):
            raise ValueError("an object of a strict schema has the properties that it names, one at least")
        if required is not None and sorted(required) != sorted(properties):
            raise ValueError("a strict schema requires each property once")
        shown = {name: _strict(part) for name, part in properties.items()}
        out = {"type": kind, "properties": shown, "additionalProperties": False, "required": [*properties]}
    else:
        out = {"type": read("type", str | list[str])}
        for name in [kind] if isinstance(kind, str) else out["type"]:
            if name not in _SCALARS:
                raise ValueError(f"a strict schema has no type {name!r} here")
        described |= _SCALARS[kind] if isinstance(kind, str) else {}
    values = {keyword: read(keyword, wanted | None) for keyword, wanted in described.items()}
    return out | {keyword: value for keyword, value in values.items() if value is not None}


def dumps(value: Any, profile: Profile) -> str:
    """Return ``value`` as JSON exactly as the official encoder writes it: like Python, except for small numbers in
    profile 0731."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{dumps(name, profile)}: {dumps(item, profile)}" for name, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(dumps(item, profile) for item in value) + "]"
    text = json.dumps(value, ensure_ascii=False)
    if isinstance(value, float) and "e-" in text and not profile.in_place:
        digits, _, exponent = text.partition("e-")
        return f"{Decimal(text):f}" if int(exponent) == 5 else f"{digits}e-{int(exponent)}"
    return text


def loads(text: str) -> Any:
    """Parse JSON as the official encoder does: integers beyond 64 bits become floats.

    Raise ValueError for NaN, numbers out of range, lone surrogates, and text that is not JSON.
    """

    def integer(digits: str) -> int | float:
        value = int(digits)
        return value if -(1 << 63) <= value < 1 << 64 and digits != "-0" else real(digits)

    def real(digits: str) -> float:
        value = float(digits)
        if value in (float("inf"), float("-inf")):
            raise ValueError(f"{digits[:20]} is out of range")
        return value

    def constant(name: str) -> Any:
        raise ValueError(f"{name} is not JSON")

    try:
        value = json.loads(text, parse_int=integer, parse_float=real, parse_constant=constant)
        json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return value


def render(chat: Chat, profile: Profile, escapes: bool | None = None) -> Rendered:
    """Return the prompt of a conversation, with the start of an answer unless the last message is a ``prefix``.

    escapes: whether to escape closing tags inside names, values and tool results, as in the format of May 2026; None:
    as the profile says. The official encoder does not, so such text could end its element early.
    """
    escapes = profile.escapes if escapes is None else escapes
    prompt = Rendered().protocol(protocol.BOS)
    tools = chat.tools if chat.tool_choice != "none" else ()
    messages = [*chat.messages]
    if profile.in_place:
        leading = messages.pop(0) if messages and messages[0].role == "system" else None
        head = _head(chat, tools, profile, leading.content if leading else "")
        if leading:
            head.extend(_updated(leading, profile))
        if chat.messages and (leading or head.parts):
            prompt.protocol(protocol.SYSTEM).extend(head.parts)
        turns = _turns(messages, results_after_text=True)
    else:
        system = "\n\n".join(message.content for message in messages if message.role == "system" and message.content)
        prompt.extend(_head(chat, tools, profile, system).parts)
        turns = _turns(_by_calls([message for message in messages if message.role != "system"]), False)
    close = protocol.THINK_OPEN if chat.thinking else protocol.THINK_CLOSE
    # v4.1 keeps the reasoning of a prefix only if some earlier message is not a reminder
    behind = leading is not None if profile.in_place else True
    for index, turn in enumerate(turns):
        role = turn[0].role
        last = index == len(turns) - 1
        if role == "system":
            prompt.protocol(protocol.SYSTEM).plain(turn[0].content).extend(_updated(turn[0], profile))
        elif role == "latest_reminder":
            if not (profile.in_place and index and turns[index - 1][0].role == role):
                prompt.protocol(protocol.REMINDER).plain(turn[0].content)
        elif role == "assistant":
            keep = chat.thinking and (bool(tools) or turn[0].prefix and behind)
            _answer(prompt, turn[0], profile, escapes, keep)
            if not turn[0].prefix or not (last or profile.in_place):
                prompt.protocol(protocol.EOS)
        else:
            _asked(prompt.protocol(protocol.USER), turn, escapes, profile)
        behind = behind or role != "latest_reminder"
    if not turns or not (turns[-1][0].role == "assistant" and turns[-1][0].prefix):
        prompt.protocol(protocol.ASSISTANT).protocol(close)
    if tools and chat.tool_choice == "required":
        prompt.protocol(f"\n\n{profile.tags.block_open}\n")
    return prompt


def _head(chat: Chat, tools: Sequence[Tool], profile: Profile, system: str) -> Rendered:
    """Return the first section of a prompt: reasoning effort, system text, tools, and the format of the answer."""
    head = Rendered().plain(profile.efforts[chat.effort] if chat.thinking else "").plain(system)
    if tools:
        lines = [tool.line(profile) for tool in tools if not tool.deferred]
        head.protocol("\n\n" + _TOOLS.format(profile.tags)).plain("\n".join(lines))
        head.protocol(("\n\n" if lines or profile.in_place else "\n") + _TOOLS_END)
    if chat.format == "json_object":
        head.plain("\n\n" + profile.json_object)
    elif chat.format is not None:
        head.plain("\n\n" + _SCHEMA + dumps(chat.format, profile))
    return head


def _updated(message: Message, profile: Profile) -> list[TextPart]:
    """Return the section of a system message that adds tools; [] if it adds none."""
    if not message.tools:
        return []
    return (
        Rendered()
        .plain("\n\n### Updated Tool Schemas\n\n" + "\n".join(tool.line(profile) for tool in message.tools))
        .parts
    )


def _by_calls(messages: list[Message]) -> list[Message]:
    """Sort tool results by the order of the calls that they answer, and return the messages.

    After a message with n calls, the next n messages are sorted: results without an id come first, then results in the
    order of the calls, then all others.
    """
    for index, message in enumerate(messages):
        ids = [call.id for call in message.calls]
        end = index + 1 + len(ids)

        def place(result: Message, ids: list[str] = ids) -> int:
            known = result.role == "tool" and result.result_ids
            if result.role == "tool" and not known:
                return -1
            return ids.index(result.result_ids[0]) if known and result.result_ids[0] in ids else len(ids)

        messages[index + 1 : end] = sorted(messages[index + 1 : end], key=place)
    return messages


def _turns(messages: list[Message], results_after_text: bool) -> list[list[Message]]:
    """Group messages into turns: adjacent user texts and tool results are one turn.

    results_after_text: a result may follow a user's text in the same turn, and the results of a turn are sorted by the
    calls that they answer, user texts staying where they are. Otherwise a result after a text starts a new turn.
    """
    turns: list[list[Message]] = []
    ids: list[str] = []
    for message in messages:
        joins = turns and {message.role, turns[-1][-1].role} <= {"user", "tool"}
        if joins and (results_after_text or (turns[-1][-1].role, message.role) != ("user", "tool")):
            turns[-1].append(message)
        else:
            turns.append([message])
    if results_after_text:
        for turn in turns:
            ids = [call.id for call in turn[0].calls] or ids
            results = sorted(
                (message for message in turn if message.role == "tool"),
                key=lambda result: ids.index(result.result_ids[0]) if {*result.result_ids} & {*ids} else 0,
            )
            turn[:] = [results.pop(0) if message.role == "tool" else message for message in turn]
    return turns


def _asked(prompt: Rendered, turn: list[Message], escapes: bool, profile: Profile) -> None:
    """Append a turn of tool results and user texts, separated by empty lines."""
    if not profile.in_place:  # results come first; empty texts are dropped, except one if all are empty
        texts = [message for message in turn if message.role == "user"]
        results = [message for message in turn if message.role == "tool"]
        turn = results + ([message for message in texts if message.content] or texts[:1])
    for index, message in enumerate(turn):
        prompt.plain("\n\n" if index else "")
        if message.role == "user":
            prompt.plain(message.content)
        elif escapes:
            prompt.extend(render_result(message.content))
        else:
            prompt.protocol(protocol.TOOL_RESULT_OPEN).plain(message.content).protocol(protocol.TOOL_RESULT_CLOSE)


def _answer(prompt: Rendered, message: Message, profile: Profile, escapes: bool, keep: bool) -> None:
    """Append an answer of the assistant without its end token: reasoning (if ``keep``), text, tool calls."""
    prompt.protocol(protocol.ASSISTANT)
    if keep:
        prompt.protocol(protocol.THINK_OPEN).plain(message.reasoning)
    if not (keep and message.prefix and not message.content):  # else the answer continues its reasoning
        prompt.protocol(protocol.THINK_CLOSE)
    prompt.plain(message.content)
    if message.calls:
        prompt.extend(_calls(message.calls, profile, escapes))


def _calls(calls: Iterable[ToolCall], profile: Profile, escapes: bool) -> list[TextPart]:
    def body(value: Any) -> str:
        text = value if isinstance(value, str) else dumps(value, profile)
        return escape_string(text, profile.tags.param_close) if escapes else text

    values = [(call.name, _values(call.arguments)) for call in calls]
    written = [(call, [(name, body(it), isinstance(it, str)) for name, it in items.items()]) for call, items in values]
    return block_of(written, profile.tags, profile.bare_call, escape_attribute if escapes else str)


def _values(arguments: str) -> dict[str, Any]:
    """Return a call's arguments as a dict; text that is not a JSON object becomes one argument "arguments"."""
    try:
        values = loads(arguments)
    except ValueError:
        values = None
    return values if isinstance(values, dict) else {"arguments": arguments}
