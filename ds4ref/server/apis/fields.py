"""Parsers of the request fields that the four APIs have in common.

As tolerant as ds4's parser: unknown fields are ignored (but see ``known``), the last of several members of the same
name counts, commas between the members of the request itself may be missing, text after the object is ignored. And as
strict: a supported field must have the right type. Null is absent, unlike in ds4. Every error is a Refused with status
400.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from ...errors import TextError
from ...text import rawjson
from ...text.chat import Message, resolve_mode
from ...text.fields import Fields, array
from ...text.fields import fields as members
from ...text.fields import text as string
from ...text.schemas import Schema
from ..api import About, Refused
from ..deviations import on
from ..turn import Choice, Sampling, Turn

MOST = 2**31 - 1
HUGE = 3.0e38
LEAST_P = 1.0e-30
CHOICES = 128
"""Maximum number of answers to one prompt."""

STOPS = 256
"""Maximum number of stop strings in a request; every generated token is checked against all of them."""

LENGTHS = ("max_tokens", "n_predict", "num_predict", "max_new_tokens")
"""What OpenAI, llama.cpp, Ollama and SGLang's own API call the maximum length of an answer."""

BUDGETS = ("thinking_token_budget", "thinking_budget", "thinking_budget_tokens", "reasoning_budget",
           "reasoning_budget_tokens")  # fmt: skip
"""What servers call the maximum length of the reasoning."""

_EFFORT = "reasoning_effort"
_ENDLESS = {*LENGTHS[1:], *BUDGETS}
_SESSIONS = ("x-claude-code-session-id", "session-id", "x-session-id", "x-session-affinity", "thread-id")


def bad(message: str) -> Refused:
    """Return a Refused (400) for a request that cannot be parsed."""
    line = " ".join(message.split())
    return Refused(400, "invalid JSON request: " + (line if len(line) <= 300 else line[:300] + "..."))


@contextmanager
def reading() -> Iterator[None]:
    """Context manager that turns TextError into Refused (400)."""
    try:
        yield
    except TextError as error:
        raise bad(str(error)) from None


class Body:
    """The members of a request's JSON object as raw JSON text by name; the last of several of the same name counts.

    A member that is null is absent: LangChain and others send every parameter they know, set or not.
    """

    def __init__(self, data: bytes):
        try:
            pairs = rawjson.members(data.decode("utf-8-sig"))
        except UnicodeDecodeError as error:
            raise bad(f"the body is not UTF-8 (byte {error.start})") from None
        except ValueError as error:
            raise bad(str(error)) from None
        self._raw: Fields = {}
        for name, value in pairs:
            self._raw.pop(name, None)  # keep the order of the last occurrences
            if value != "null":
                self._raw[name] = value

    def __contains__(self, name: str) -> bool:
        return name in self._raw

    @property
    def names(self) -> list[str]:
        """Member names in the order of their last occurrences."""
        return list(self._raw)

    def needed(self, name: str) -> str:
        """Return the raw JSON of a required field; raises Refused if the field is missing."""
        if name not in self._raw:
            raise Refused(400, f"missing {name}")
        return self._raw[name]

    def raw(self, name: str) -> str | None:
        """Return the raw JSON of an optional field, None if the field is absent or null."""
        return self._raw.get(name)

    def object(self, name: str) -> Fields:
        """Return the members of an object-valued field, {} if the field is absent or null."""
        raw = self.raw(name)
        with reading():
            return {} if raw is None else members(raw, name)

    def text(self, name: str, default: str) -> str:
        """Return the value of a string field, ``default`` if the field is absent."""
        with reading():
            return string(self._raw.get(name), name, default)

    def flag(self, name: str, default: bool = False) -> bool:
        """Return the value of a boolean field, ``default`` if the field is absent."""
        raw = self._raw.get(name)
        return default if raw is None else truth(raw, name)

    def number(self, name: str) -> float | None:
        """Return the value of a number field, None if the field is absent."""
        raw = self._raw.get(name)
        return None if raw is None else value(raw, name)

    def within(self, name: str, least: float, most: float) -> float | None:
        """Return the value of a number field, None if it is absent; raise Refused if it is not from least to most."""
        number = self.number(name)
        if number is not None and not least <= number <= most:
            limits = f"from {least:g} to {most:g}" if most < HUGE else f"{least:g} or more"
            raise bad(f"{name} is not {limits}")
        return number

    def count(self, *names: str) -> int | None:
        """Return an integer, at most 2**31 - 1, from the last present field of ``names``; None if all are absent.

        Raise Refused if one is negative; of other servers' fields -1 stands for no limit.
        """
        names = tuple(name for name in names if name not in _ENDLESS or self._raw.get(name) != "-1")
        values = [self.within(name, 0, HUGE) for name in self._raw if name in names]
        return None if not values or values[-1] is None else int(min(values[-1], MOST))

    def seed(self) -> int | None:
        """Return the field ``seed``, a whole number, modulo 2**64; None if it is absent."""
        number = self.number("seed")
        if number is None:
            return None
        raw = self._raw["seed"]
        if number != int(number):
            raise bad("seed is not a whole number")
        digits = raw.removeprefix("-")
        exact = digits.isdigit() and len(digits) <= 4000  # Python converts no more of them
        return (int(raw) if exact else int(number)) % 2**64

    def bias(self) -> tuple[tuple[int, float], ...]:
        """Return ``logit_bias``: token ids in ascending order, each with what is added to its logit."""
        found: dict[int, float] = {}
        for name, raw in self.object("logit_bias").items():
            if not (name.isascii() and name.isdigit() and len(name) < 10):
                raise bad(f"logit_bias: {name[:40]!r} is not a token id")
            found[int(name)] = number = value(raw, f"logit_bias of {name}")
            if not -100 <= number <= 100:
                raise bad(f"logit_bias of {name} is not from -100 to 100")
        return tuple(sorted(found.items()))

    def choices(self) -> int:
        """Return ``n``, the number of answers to each prompt."""
        number = self.within("n", 1, CHOICES)
        if number is not None and number != int(number):
            raise bad("n is not a whole number")
        return 1 if number is None else int(number)


def truth(raw: str, name: str) -> bool:
    """Parse the raw JSON boolean of field ``name``."""
    if raw not in ("true", "false"):
        raise bad(f"{name} is not true or false")
    return raw == "true"


def value(raw: str, name: str) -> float:
    """Parse the raw JSON number of field ``name``, clamped to +-HUGE."""
    if raw[0] not in "-0123456789":
        raise bad(f"{name} is not a number")
    return min(max(float(raw), -HUGE), HUGE)


# --- fields that several APIs have


def model(body: Body, about: About) -> str:
    """Return the model name of the request; any name is accepted and echoed in the answer."""
    return body.text("model", about.model)


def limit(body: Body, about: About, *names: str) -> int | None:
    """Return the maximum length of the answer in tokens: the lower of the request's and the server's limit, or None.

    A request that names no limit has the server's usual one, or its own ``min_tokens`` if that is more. Raise Refused
    if ``min_tokens`` is above the limit.
    """
    asked, least = body.count(*names), body.count("min_tokens") or 0
    usual = None if about.usual_tokens is None else max(about.usual_tokens, least)
    limits = [n for n in (usual if asked is None else asked, about.max_tokens) if n is not None]
    most = min(limits, default=None)
    if most is not None and least > most:
        raise bad(f"min_tokens is {least}, but the answer has at most {most} tokens")
    return most


def lengthened(body: Body, *clashing: str) -> None:
    """Raise Refused if the request has ``min_tokens`` or ``ignore_eos`` together with a field that ends the answer.

    A tool call or JSON of a schema is complete at a certain token; nothing may follow it.
    """
    for name in ("min_tokens", "ignore_eos"):
        if body.raw(name) not in (None, "false", "0"):
            for other in clashing:
                raise Refused(400, f"{name} is not supported together with {other}")


def stops(body: Body, name: str) -> tuple[str, ...]:
    """Return the non-empty stop strings of field ``name``, a string or an array of strings."""
    raw = body.raw(name)
    if raw is None:
        return ()
    with reading():
        entries = [raw] if rawjson.is_string(raw) else array(raw, name)
        if len(entries) > STOPS:
            raise bad(f"{name} has more than {STOPS} entries")
        return tuple(filter(None, (string(one, f"an entry of {name}") for one in entries)))


def sampling(body: Body, about: About, thinking: str) -> Sampling:
    """Return the sampling parameters of a request, the same for all APIs.

    ds4 ignores the request's values while thinking is on; this server uses them unless ``client-sampling`` is off.
    """
    values: dict[str, Any] = {
        "temperature": body.within("temperature", 0, HUGE),
        "top_p": body.within("top_p", 0, 1),
        "min_p": body.within("min_p", 0, 1),
        "top_k": body.count("top_k"),
    }
    if values["top_p"] == 0:
        values["top_p"] = LEAST_P  # the smallest nucleus has one token; the sampler takes 0 for "off"
    if thinking != "none" and not on(about.options, "client-sampling"):
        values = {}
    chosen = {name: value for name, value in values.items() if value is not None}
    return Sampling(
        **chosen,
        seed=body.seed(),
        presence=body.within("presence_penalty", -2, 2) or 0.0,
        frequency=body.within("frequency_penalty", -2, 2) or 0.0,
        bias=body.bias(),
        min_tokens=body.count("min_tokens") or 0,
        ignore_eos=body.flag("ignore_eos"),
    )


def known_roles(messages: Sequence[Message], *roles: str) -> Sequence[Message]:
    """Return the messages; raise Refused if there are none, or one has a role that is not rendered."""
    if not messages:
        raise bad("there are no messages")
    for message in messages:
        if message.role not in roles:
            raise bad(f"the role {message.role[:100]!r} is not known: choose from {', '.join(roles)}")
    return messages


def switched(body: Body, *names: str) -> tuple[bool | None, bool]:
    """Return (thinking on, off or unspecified as None; whether the request has any of the fields ``names``).

    The last of the fields counts.
    """
    chosen, explicit = None, False
    for name in (name for name in body.names if name in names):
        raw = body.needed(name)
        explicit = True
        if raw in ("true", "false"):
            chosen = raw == "true"
        elif name == "think":
            raise bad("think is not true or false")
        else:
            with reading():
                kind = string(members(raw, name).get("type"), f"type of {name}")
            chosen = {"enabled": True, "disabled": False}.get(kind, chosen)
    return chosen, explicit


def thinking(body: Body, about: About, model: str) -> str:
    """Return the thinking mode of a chat or completion request: "none", "high" or "max"."""
    chosen, explicit = switched(body, "thinking", "think")
    return mode(about, effort(body.raw(_EFFORT), _EFFORT), chosen, model, explicit)


def effort(raw: str | None, name: str) -> str | None:
    """Parse the raw JSON string of a reasoning-effort field, None if the field is absent or null."""
    with reading():
        return None if raw is None else string(raw, name)


def mode(about: About, effort: str | None, chosen: bool | None, model: str, explicit: bool) -> str:
    """Return the thinking mode ("none", "high" or "max") for a request's effort and switch.

    chosen     thinking switched on or off by the request, None if unspecified
    explicit   whether the request has a field that switches thinking
    """
    with reading():
        return resolve_mode(about.ctx, effort, chosen, model, explicit)


def affinity(body: Body, about: About) -> str:
    """Return the client's id of the conversation, from ``prompt_cache_key`` or a session header; "" for none."""
    raw = body.raw("prompt_cache_key")
    if raw is not None and rawjson.is_string(raw):
        return rawjson.string(raw)[:200]
    return next((about.headers[name][:200] for name in _SESSIONS if about.headers.get(name)), "")


# --- tools


def parallel(body: Body) -> bool:
    """Return whether the model may make several tool calls in one answer."""
    raw = body.raw("parallel_tool_calls")
    return raw is None or truth(raw, "parallel_tool_calls")


def choose(kind: str, name: str, tools: Sequence[Schema], parallel: bool) -> Choice:
    """Return the tool choice of a request; raises Refused if a call is demanded of a tool that does not exist."""
    tools = [tool for tool in tools if tool.callable]
    if kind in ("required", "named") and not tools:
        raise Refused(400, "tool_choice demands a call, but there are no tools")
    if kind != "named":
        return Choice("none" if kind == "none" else "required" if kind == "required" else "auto", "", parallel)
    for tool in tools:
        if tool.name == name:
            return Choice("named", tool.name, parallel)
    raise Refused(400, f"tool_choice names the tool {name[:100]!r}, which is not among the tools")


def schema_format(raw: str | None, where: str, nested: str = "") -> str:
    """Return the JSON schema, as text, that a response-format field demands: "" for none, "{}" for any JSON object.

    raw      raw JSON of the field, None if absent
    where    name of the field in error messages
    nested   the member that holds ``schema``, "" if ``schema`` lies beside ``type``
    """
    if raw is None:
        return ""
    with reading():
        form = members(raw, where)
        kind = string(form.get("type"), f"type of {where}")
        if kind == "json_object":
            return "{}"
        if kind == "text":
            return ""
        if kind != "json_schema":
            raise bad(f"type of {where} is {kind[:100]!r}: choose from text, json_object, json_schema")
        inner = members(form.get(nested, "{}"), nested) if nested else form
        schema = inner.get("schema", "{}")
        if schema not in ("true", "false"):
            members(schema, f"schema of {where}")
    return schema


def include_usage(body: Body) -> bool:
    """Return whether the client wants token counts at the end of the stream (``stream_options.include_usage``)."""
    raw = body.object("stream_options").get("include_usage")
    return raw is not None and truth(raw, "include_usage")


def hoist(about: About) -> str:
    """Return which system messages move to the start of the prompt: "leading" (before the first turn) or "all"."""
    return "leading" if on(about.options, "system-in-place") else "all"


def replayed(messages: Sequence[Message], about: About) -> tuple[Message, ...]:
    """Return the conversation with every known tool call as the model wrote it."""
    return tuple(messages) if about.tools is None else tuple(about.tools.attach(messages))


def continued(messages: Sequence[Message], body: Body) -> list[Message]:
    """Return the messages, the last one open if the answer continues it (``prefix``, ``continue_final_message``).

    Raises Refused where that message is not the assistant's last, or not text.
    """
    wanted, last = body.flag("continue_final_message"), messages[-1] if messages else Message("")
    if not body.flag("add_generation_prompt", True) and not wanted:
        raise bad("add_generation_prompt: false needs continue_final_message: true")
    if any(message.prefix for message in messages[:-1]) or (last.prefix or wanted) and last.role != "assistant":
        raise bad("only a last message of the assistant can be continued (prefix, continue_final_message)")
    if (last.prefix or wanted) and last.calls:
        raise bad("a message with tool calls cannot be continued")
    return [*messages[:-1], replace(last, prefix=last.prefix or wanted)] if messages else []


def open_turn(turn: Turn) -> Turn:
    """Return the turn; raises Refused if it continues a message in a form that only a whole answer can have."""
    if turn.messages and turn.messages[-1].prefix and (turn.format or turn.choice.kind in ("required", "named")):
        raise bad("an answer that continues a message cannot be held to a format or to a tool call")
    return turn


def results_only(messages: Sequence[Message], about: About, who: str, field: str, history: str) -> bool:
    """Return whether the messages have tool results without their calls, which only a cached timeline can continue.

    Raises Refused if this server never issued the call id of such a result. ``who``, ``field`` and ``history`` are the
    API's words in the error message.
    """
    known = {call.id for message in messages for call in message.calls}
    missing = [call_id for message in messages for call_id in message.result_ids if call_id not in known]
    tools = about.tools if about.tools is not None and about.tools.enabled else None
    for call_id in missing:
        if not call_id or (tools is not None and call_id not in tools):
            state = f"{who} continuation state is not available for {field} {call_id[:100]}"
            raise Refused(400, f"{state}; retry by replaying the full {history} history")
    return bool(missing)
