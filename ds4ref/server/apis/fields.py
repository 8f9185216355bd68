"""Parsers of the request fields that the four APIs have in common.

As tolerant as ds4's parser: unknown fields are ignored, the last of several members of the same name counts, commas may
be missing, text after the object is ignored. And as strict: a supported field must have the right type, and null is an
error where a field needs a value. Every error is a Refused with status 400.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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
from ..turn import Choice, Sampling

MOST = 2**31 - 1
HUGE = 3.0e38
STOPS = 256
"""Maximum number of stop strings in a request; every generated token is checked against all of them."""

_EFFORT = "reasoning_effort"
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
    """The members of a request's JSON object as raw JSON text by name; the last of several of the same name counts."""

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
        raw = self._raw.get(name)
        return None if raw == "null" else raw

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

    def count(self, *names: str) -> int | None:
        """Return an integer clamped to [0, 2**31), from the last present field of ``names``; None if all are absent."""
        present = [name for name in self._raw if name in names]
        values = [self.number(name) for name in present]
        return None if not values or values[-1] is None else int(min(max(values[-1], 0), MOST))

    def seed(self) -> int | None:
        """Return the field ``seed`` as an exact 64-bit integer, None if it is absent or below 1."""
        number = self.number("seed")
        if number is None or number < 1:
            return None
        raw = self._raw["seed"]
        return min(
            int(raw) if raw.isascii() and raw.isdigit() and len(raw) <= 20 else int(min(number, 2.0**64)), 2**64 - 1
        )


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
    """Return the maximum length of the answer in tokens: the lower of the request's and the server's limit, or None."""
    limits = [n for n in (body.count(*names), about.max_tokens) if n is not None]
    return min(limits, default=None)


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


def sampling(body: Body, about: About, thinking: str, names: Sequence[str]) -> Sampling:
    """Return the sampling parameters of a request, from its fields ``names``.

    ds4 ignores the request's values while thinking is on; this server uses them unless ``client-sampling`` is off.
    """
    values: dict[str, Any] = {}
    for name in names:
        if name == "top_k":
            values[name] = body.count(name)
        elif name != "seed":
            values[name] = body.number(name)
    seed = body.seed() if "seed" in names else None
    if thinking != "none" and not on(about.options, "client-sampling"):
        values = {}
    chosen = {name: value for name, value in values.items() if value is not None}
    return Sampling(**chosen, seed=seed)


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
        elif raw != "null":
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
        return None if raw is None or raw == "null" else string(raw, name)


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
    if raw is None or raw == "null":
        return ""
    with reading():
        form = members(raw, where)
        kind = string(form.get("type"), f"type of {where}")
        if kind == "json_object":
            return "{}"
        if kind != "json_schema":
            return ""
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
