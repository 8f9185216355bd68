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
from ...text.messages import Fields, array
from ...text.messages import fields as members
from ...text.messages import text as string
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


def bad(what: str) -> Refused:
    """The error for a request that cannot be read."""
    line = " ".join(what.split())
    return Refused(400, "invalid JSON request: " + (line if len(line) <= 300 else line[:300] + "..."))


@contextmanager
def reading() -> Iterator[None]:
    """What the text layer finds wrong with a request is the caller's mistake."""
    try:
        yield
    except TextError as error:
        raise bad(str(error)) from None


class Body:
    """A request's JSON object: raw values by name."""

    def __init__(self, data: bytes):
        try:
            found = rawjson.members(data.decode("utf-8-sig"))
        except UnicodeDecodeError as error:
            raise bad(f"the body is not UTF-8 (byte {error.start})") from None
        except ValueError as error:
            raise bad(str(error)) from None
        self._raw: Fields = {}
        for name, value in found:
            self._raw.pop(name, None)  # so that they stand in the order in which they count
            self._raw[name] = value

    def __contains__(self, name: str) -> bool:
        return name in self._raw

    @property
    def names(self) -> list[str]:
        """In the order in which they count."""
        return list(self._raw)

    def needed(self, name: str) -> str:
        """The raw value of a field that there has to be."""
        if name not in self._raw:
            raise Refused(400, f"missing {name}")
        return self._raw[name]

    def raw(self, name: str) -> str | None:
        """The raw value of a field that may be null."""
        found = self._raw.get(name)
        return None if found == "null" else found

    def object(self, name: str) -> Fields:
        """The members of a field that is an object, or null or absent: none."""
        found = self.raw(name)
        with reading():
            return {} if found is None else members(found, name)

    def text(self, name: str, default: str) -> str:
        """A string."""
        with reading():
            return string(self._raw.get(name), name, default)

    def flag(self, name: str, default: bool = False) -> bool:
        """true or false."""
        found = self._raw.get(name)
        return default if found is None else truth(found, name)

    def number(self, name: str) -> float | None:
        """A number; None if absent."""
        found = self._raw.get(name)
        return None if found is None else value(found, name)

    def count(self, *names: str) -> int | None:
        """A number of things under one of its names, the last of which counts: cut to what is not negative and fits
        31 bits."""
        given = [name for name in self._raw if name in names]
        found = [self.number(name) for name in given]
        return None if not found or found[-1] is None else int(min(max(found[-1], 0), MOST))

    def seed(self) -> int | None:
        """Of a generator: 64 bits, to the last one (a float64 holds 53). None if absent or below 1."""
        found = self.number("seed")
        if found is None or found < 1:
            return None
        raw = self._raw["seed"]
        return min(
            int(raw) if raw.isascii() and raw.isdigit() and len(raw) <= 20 else int(min(found, 2.0**64)), 2**64 - 1
        )


def truth(raw: str, what: str) -> bool:
    """A raw boolean."""
    if raw not in ("true", "false"):
        raise bad(f"{what} is not true or false")
    return raw == "true"


def value(raw: str, what: str) -> float:
    """A raw number."""
    if raw[0] not in "-0123456789":
        raise bad(f"{what} is not a number")
    return min(max(float(raw), -HUGE), HUGE)


# --- fields that several APIs have


def model(body: Body, about: About) -> str:
    """Any name is served, and said back."""
    return body.text("model", about.model)


def limit(body: Body, about: About, *names: str) -> int | None:
    """The most tokens of the answer: what the request says, within what the server allows."""
    found = [n for n in (body.count(*names), about.max_tokens) if n is not None]
    return min(found, default=None)


def stops(body: Body, name: str) -> tuple[str, ...]:
    """Stop strings: one, or an array of them. Empty ones are none."""
    raw = body.raw(name)
    if raw is None:
        return ()
    with reading():
        found = [raw] if rawjson.is_string(raw) else array(raw, name)
        if len(found) > STOPS:
            raise bad(f"{name} has more than {STOPS} entries")
        return tuple(filter(None, (string(one, f"an entry of {name}") for one in found)))


def sampling(body: Body, about: About, thinking: str, names: Sequence[str]) -> Sampling:
    """How to draw. ds4 takes its own defaults wherever it thinks, whatever the request says; here what is asked for is
    what happens."""
    given: dict[str, Any] = {}
    for name in names:
        if name == "top_k":
            given[name] = body.count(name)
        elif name != "seed":
            given[name] = body.number(name)
    seed = body.seed() if "seed" in names else None
    if thinking != "none" and not on(about.options, "client-sampling"):
        given = {}
    chosen = {name: found for name, found in given.items() if found is not None}
    return Sampling(**chosen, seed=seed)


def switched(body: Body, *names: str) -> tuple[bool | None, bool]:
    """(on, off or unsaid; whether thinking is the request's own choice), of the last of the fields that say so."""
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
    """The thinking mode of a chat or of a completion."""
    chosen, explicit = switched(body, "thinking", "think")
    return mode(about, effort(body.raw(_EFFORT), _EFFORT), chosen, model, explicit)


def effort(raw: str | None, what: str) -> str | None:
    """The name of an effort; null is none."""
    with reading():
        return None if raw is None or raw == "null" else string(raw, what)


def mode(about: About, effort: str | None, chosen: bool | None, model: str, explicit: bool) -> str:
    """The thinking mode."""
    with reading():
        return resolve_mode(about.ctx, effort, chosen, model, explicit)


def affinity(body: Body, about: About) -> str:
    """What the client says about which conversation this is."""
    raw = body.raw("prompt_cache_key")
    if raw is not None and rawjson.is_string(raw):
        return rawjson.string(raw)[:200]
    return next((about.headers[name][:200] for name in _SESSIONS if about.headers.get(name)), "")


# --- tools


def parallel(body: Body) -> bool:
    """Whether there may be several calls at once."""
    raw = body.raw("parallel_tool_calls")
    return raw is None or truth(raw, "parallel_tool_calls")


def choose(kind: str, name: str, tools: Sequence[Schema], parallel: bool) -> Choice:
    """A choice that can be kept: what must be called has to be there."""
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
    """The JSON schema that a format field demands: "" for none, "{}" for any object. ``nested``: the member that
    holds the schema's own members."""
    if raw is None or raw == "null":
        return ""
    with reading():
        found = members(raw, where)
        kind = string(found.get("type"), f"type of {where}")
        if kind == "json_object":
            return "{}"
        if kind != "json_schema":
            return ""
        inner = members(found.get(nested, "{}"), nested) if nested else found
        schema = inner.get("schema", "{}")
        if schema not in ("true", "false"):
            members(schema, f"schema of {where}")
    return schema


def include_usage(body: Body) -> bool:
    """Whether a stream is to end with token counts."""
    raw = body.object("stream_options").get("include_usage")
    return raw is not None and truth(raw, "include_usage")


def hoist(about: About) -> str:
    """Which system texts go to the head of the prompt."""
    return "leading" if on(about.options, "system-in-place") else "all"


def replayed(messages: Sequence[Message], about: About) -> tuple[Message, ...]:
    """The conversation, its calls as the model wrote them where that is remembered."""
    return tuple(messages) if about.tools is None else tuple(about.tools.attach(messages))


def results_only(messages: Sequence[Message], about: About, who: str, what: str, history: str) -> bool:
    """Whether there are results of calls that the conversation does not contain: only a live timeline can go on with
    them. Refused for an id that nobody gave out."""
    known = {call.id for message in messages for call in message.calls}
    missing = [found for message in messages for found in message.result_ids if found not in known]
    tools = about.tools if about.tools is not None and about.tools.enabled else None
    for found in missing:
        if not found or (tools is not None and found not in tools):
            state = f"{who} continuation state is not available for {what} {found[:100]}"
            raise Refused(400, f"{state}; retry by replaying the full {history} history")
    return bool(missing)
