"""Requests, field by field: what the four APIs have in common.

Tolerant as ds4's reader is: unknown fields are skipped, of duplicates the last counts, commas may be missing, nothing
after the object is looked at. Strict where it is: a field that is honoured has to be of its type, and null where the
field has no meaning without a value is a mistake of the caller's. Whatever is wrong is a Refused with status 400.
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
"""Stop strings of one request; each is looked for at every token."""

_EFFORT = "reasoning_effort"
_SESSIONS = ("x-claude-code-session-id", "session-id", "x-session-id", "x-session-affinity", "thread-id")


def bad(message: str) -> Refused:
    """Return the error for a request that cannot be parsed."""
    line = " ".join(message.split())
    return Refused(400, "invalid JSON request: " + (line if len(line) <= 300 else line[:300] + "..."))


@contextmanager
def reading() -> Iterator[None]:
    """Turn TextError into a 400."""
    try:
        yield
    except TextError as error:
        raise bad(str(error)) from None


class Body:
    """A request's JSON object: raw JSON values by name; of duplicates the last one counts."""

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
        """Names in the order of their last occurrences."""
        return list(self._raw)

    def needed(self, name: str) -> str:
        """Return the raw value of a required field; Refused if it is missing."""
        if name not in self._raw:
            raise Refused(400, f"missing {name}")
        return self._raw[name]

    def raw(self, name: str) -> str | None:
        """Return the raw value of an optional field; None if absent or null."""
        raw = self._raw.get(name)
        return None if raw == "null" else raw

    def object(self, name: str) -> Fields:
        """Return the members of an object; {} if absent or null."""
        raw = self.raw(name)
        with reading():
            return {} if raw is None else members(raw, name)

    def text(self, name: str, default: str) -> str:
        """Return a string."""
        with reading():
            return string(self._raw.get(name), name, default)

    def flag(self, name: str, default: bool = False) -> bool:
        """Return a boolean."""
        raw = self._raw.get(name)
        return default if raw is None else truth(raw, name)

    def number(self, name: str) -> float | None:
        """Return a number, None if absent."""
        raw = self._raw.get(name)
        return None if raw is None else value(raw, name)

    def count(self, *names: str) -> int | None:
        """Return a count under one of its ``names`` (the last present one), clamped to 31 bits; None if absent."""
        present = [name for name in self._raw if name in names]
        values = [self.number(name) for name in present]
        return None if not values or values[-1] is None else int(min(max(values[-1], 0), MOST))

    def seed(self) -> int | None:
        """Return the 64-bit seed, exact where a float64 is not; None if absent or below 1."""
        number = self.number("seed")
        if number is None or number < 1:
            return None
        raw = self._raw["seed"]
        return min(
            int(raw) if raw.isascii() and raw.isdigit() and len(raw) <= 20 else int(min(number, 2.0**64)), 2**64 - 1
        )


def truth(raw: str, name: str) -> bool:
    """Parse a raw boolean."""
    if raw not in ("true", "false"):
        raise bad(f"{name} is not true or false")
    return raw == "true"


def value(raw: str, name: str) -> float:
    """Parse a raw number, clamped to +-HUGE."""
    if raw[0] not in "-0123456789":
        raise bad(f"{name} is not a number")
    return min(max(float(raw), -HUGE), HUGE)


# --- fields that several APIs have


def model(body: Body, about: About) -> str:
    """Return the model name, which is echoed; any name is accepted."""
    return body.text("model", about.model)


def limit(body: Body, about: About, *names: str) -> int | None:
    """Return the limit on the answer in tokens: the request's, at most the server's."""
    limits = [n for n in (body.count(*names), about.max_tokens) if n is not None]
    return min(limits, default=None)


def stops(body: Body, name: str) -> tuple[str, ...]:
    """Return the stop strings, from a string or an array; empty ones are dropped."""
    raw = body.raw(name)
    if raw is None:
        return ()
    with reading():
        entries = [raw] if rawjson.is_string(raw) else array(raw, name)
        if len(entries) > STOPS:
            raise bad(f"{name} has more than {STOPS} entries")
        return tuple(filter(None, (string(one, f"an entry of {name}") for one in entries)))


def sampling(body: Body, about: About, thinking: str, names: Sequence[str]) -> Sampling:
    """Return the sampling parameters of a request.

    ds4 uses its own defaults whenever thinking is on (``client-sampling``); here the request's values count.
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
    """Return (thinking on, off or None; whether the request set it), from the last of the fields ``names``."""
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
    """Return the thinking mode of a chat or completion."""
    chosen, explicit = switched(body, "thinking", "think")
    return mode(about, effort(body.raw(_EFFORT), _EFFORT), chosen, model, explicit)


def effort(raw: str | None, name: str) -> str | None:
    """Return the name of an effort; None if absent or null."""
    with reading():
        return None if raw is None or raw == "null" else string(raw, name)


def mode(about: About, effort: str | None, chosen: bool | None, model: str, explicit: bool) -> str:
    """Return the thinking mode."""
    with reading():
        return resolve_mode(about.ctx, effort, chosen, model, explicit)


def affinity(body: Body, about: About) -> str:
    """Return the client's name of the conversation, "" for none."""
    raw = body.raw("prompt_cache_key")
    if raw is not None and rawjson.is_string(raw):
        return rawjson.string(raw)[:200]
    return next((about.headers[name][:200] for name in _SESSIONS if about.headers.get(name)), "")


# --- tools


def parallel(body: Body) -> bool:
    """Return whether parallel calls are allowed."""
    raw = body.raw("parallel_tool_calls")
    return raw is None or truth(raw, "parallel_tool_calls")


def choose(kind: str, name: str, tools: Sequence[Schema], parallel: bool) -> Choice:
    """Return the tool choice; Refused if the demanded tool does not exist."""
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
    """Return the JSON schema that a format field demands: "" for none, "{}" for any object.

    ``nested``: the member that holds the schema, "" if it is beside ``type``.
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
    """Return whether the stream should end with usage."""
    raw = body.object("stream_options").get("include_usage")
    return raw is not None and truth(raw, "include_usage")


def hoist(about: About) -> str:
    """Return which system messages move to the head of the prompt."""
    return "leading" if on(about.options, "system-in-place") else "all"


def replayed(messages: Sequence[Message], about: About) -> tuple[Message, ...]:
    """Return the conversation with known calls as the model wrote them."""
    return tuple(messages) if about.tools is None else tuple(about.tools.attach(messages))


def results_only(messages: Sequence[Message], about: About, who: str, field: str, history: str) -> bool:
    """Return whether there are tool results without their calls, which only a cached timeline can continue.

    Refused for an id that this server never issued.
    """
    known = {call.id for message in messages for call in message.calls}
    missing = [call_id for message in messages for call_id in message.result_ids if call_id not in known]
    tools = about.tools if about.tools is not None and about.tools.enabled else None
    for call_id in missing:
        if not call_id or (tools is not None and call_id not in tools):
            state = f"{who} continuation state is not available for {field} {call_id[:100]}"
            raise Refused(400, f"{state}; retry by replaying the full {history} history")
    return bool(missing)
