"""Shared parts of checks: tools, a schema, limits, errors."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from ..talk import Answer, Event, Skip, Talk, Wrong, expect, parsed, shown

ASK = "What will the weather be in Oslo tomorrow? Use the tool."
RESULT = "Cloudy, 12 degrees."
CITIES = ("Oslo", "Paris", "Lima")
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": list(CITIES)}, "tomorrow": {"type": "boolean"}},
    "required": ["city", "tomorrow"],
    "additionalProperties": False,
}
OTHER = {"type": "object", "properties": {}, "additionalProperties": False}
"""Schemas of two tools, ``weather`` and ``clock``; only short values fit, so that any model finishes them soon."""
FORM = {
    "type": "object",
    "properties": {"answer": {"type": "string", "enum": ["yes", "no"]}, "sure": {"type": "boolean"}},
    "required": ["answer", "sure"],
    "additionalProperties": False,
}
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
LARGEST = 200_000
"""Largest context in tokens that is overflowed on purpose."""
OVERFLOWS = (
    "prompt is too long", "context size", "context length", "context window", "maximum context", "too many tokens",
    "exceeds the available context", "context_length_exceeded", "maximum number of tokens", "reduce the length",
)  # fmt: skip
"""Wordings by which agents recognise an overflow (clients.md 8)."""
_STRINGS = ("", '"', '""', '0"', '00"', '000"', '0000"')  # the last ones finish an escape
_TAILS = [
    *(quote + rest for quote in _STRINGS for rest in ("", ":0")),
    "0", '"a":0', *(word[at:] for word in ("true", "false", "null") for at in range(1, len(word))),
]  # fmt: skip


def arguments_fit(arguments: object) -> None:
    """Raise Wrong unless ``arguments`` is JSON text that fits PARAMETERS."""
    expect(isinstance(arguments, str), f"arguments that are no text: {shown(arguments)}")
    assert isinstance(arguments, str)
    object_fits(parsed(arguments))


def object_fits(value: Any) -> None:
    """Raise Wrong unless ``value`` fits PARAMETERS."""
    expect(isinstance(value, dict), f"arguments that are no object: {shown(value)}")
    fits = set(value) == {"city", "tomorrow"} and value["city"] in CITIES and isinstance(value["tomorrow"], bool)
    expect(fits, f"arguments that do not fit the schema: {shown(value)}")


def form_fits(text: object) -> None:
    """Raise Wrong unless ``text`` is JSON that fits FORM."""
    expect(isinstance(text, str) and text, f"{shown(text)} in place of text")
    value = parsed(str(text))
    fits = isinstance(value, dict) and set(value) == {"answer", "sure"}
    fits = fits and value["answer"] in ("yes", "no") and isinstance(value["sure"], bool)
    expect(fits, f"what does not fit the schema: {shown(value)}")


def object_begins(text: str) -> bool:
    """Return whether ``text`` is the beginning of a JSON object, or a whole one.

    Tries the few ways to finish the last value, then closes what is open.
    """
    outside = re.sub(r'"(?:\\.|[^"\\])*(?:"|\\?$)', "", text, flags=re.DOTALL)
    closers: list[str] = []
    for character in outside:
        if character in "{[":
            closers.append("}" if character == "{" else "]")
        elif character in "}]" and (not closers or closers.pop() != character):
            return False
    for tail in _TAILS:
        with suppress(ValueError):
            return isinstance(json.loads(text + tail + "".join(reversed(closers))), dict)
    return False


def counts(usage: Any, parts: Sequence[str], total: str = "") -> None:
    """Raise Wrong unless ``usage`` has counts named ``parts``, and their sum under ``total``."""
    expect(isinstance(usage, dict), f"usage {shown(usage)}")
    numbers = [usage.get(name) for name in (*parts, *([total] if total else []))]
    expect(all(isinstance(n, int) and n >= 0 for n in numbers), f"usage {shown(usage)}")
    expect(not total or numbers[-1] == sum(numbers[:-1]), f"usage that does not add up: {shown(usage)}")


def event_stream(answer: Answer) -> None:
    """Raise Wrong unless the content type is that of an event stream."""
    answer.arrived()
    expect(answer.kind == "text/event-stream", f"content type {answer.kind or 'none'}")


def one_id(events: Sequence[dict[str, Any]]) -> None:
    """Raise Wrong unless all events have the same id, a string."""
    ids = {json.dumps(event.get("id")) for event in events}
    expect(len(ids) == 1 and isinstance(events[0].get("id"), str), f"ids {shown(sorted(ids))}")


def refused(answer: Answer, *statuses: int) -> dict[str, Any]:
    """Return the JSON document of a refused request; Wrong unless its status is one of ``statuses`` (any 4xx)."""
    expect(answer.status, f"no answer: {answer.cut}")
    known = statuses or tuple(range(400, 500))
    expect(answer.status in known, f"HTTP {answer.status}: {shown(answer.body.decode('utf-8', 'replace'))}")
    return answer.document(answer.status)


def openai_error(answer: Answer, *statuses: int) -> str:
    """Return the message of an error in OpenAI's shape."""
    error = refused(answer, *statuses).get("error")
    expect(
        isinstance(error, dict) and isinstance(error.get("message"), str) and error["message"], f"error {shown(error)}"
    )
    assert isinstance(error, dict)
    return str(error["message"])


def too_long(talk: Talk) -> str:
    """Return a text beyond the server's context; Skip if that is unknown or too large to try."""
    if talk.ctx is None:
        raise Skip("the list of models does not tell the context")
    if talk.ctx > LARGEST:
        raise Skip(f"a context of {talk.ctx} tokens is not overflown")
    return "word " * (talk.ctx + 16)


def overflow_known(text: str) -> None:
    """Raise Wrong unless agents recognise ``text`` as an overflow."""
    expect(any(words in text.lower() for words in OVERFLOWS), shown(text))


def at_once(talk: Talk, path: str, bodies: Sequence[Mapping[str, Any]]) -> list[Answer]:
    """Send all requests at the same time and return the answers."""
    with ThreadPoolExecutor(len(bodies)) as pool:
        return list(pool.map(lambda body: talk.ask(path, body), bodies))


def not_the_servers(answer: Answer) -> None:
    """Raise Wrong if the server failed (5xx or no answer)."""
    expect(answer.status, f"no answer: {answer.cut}")
    expect(answer.status < 500, f"HTTP {answer.status}: {shown(answer.body.decode('utf-8', 'replace'))}")


def names_of(events: Sequence[Event]) -> list[str]:
    """Return the types of events without consecutive repetitions."""
    names: list[str] = []
    for event in events:
        kind = str(event.json.get("type"))
        if not names or names[-1] != kind:
            names.append(kind)
    return names


def in_order(names: Sequence[str], wanted: Sequence[str]) -> None:
    """Raise Wrong unless ``wanted`` occur in ``names`` in this order."""
    rest = iter(names)
    for name in wanted:
        if name not in rest:
            raise Wrong(f"no {name} in its place: {shown(' '.join(names))}")
