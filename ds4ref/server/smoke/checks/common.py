"""What the checks of several APIs use: one tool, one form, limits and errors."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
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
"""Schemas of two tools, ``weather`` and ``clock``. Their values are few, so that any model fills them in soon."""
FORM = {
    "type": "object",
    "properties": {"answer": {"type": "string", "enum": ["yes", "no"]}, "sure": {"type": "boolean"}},
    "required": ["answer", "sure"],
    "additionalProperties": False,
}
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
LARGEST = 200_000
"""Tokens of a context that is still overflown to see what happens."""
OVERFLOWS = (
    "prompt is too long", "context size", "context length", "context window", "maximum context", "too many tokens",
    "exceeds the available context", "context_length_exceeded", "maximum number of tokens", "reduce the length",
)  # fmt: skip
"""What agents know an overflow by (clients.md 8)."""


def arguments_fit(arguments: object) -> None:
    """Wrong unless ``arguments`` are JSON text that fits PARAMETERS."""
    expect(isinstance(arguments, str), f"arguments that are no text: {shown(arguments)}")
    assert isinstance(arguments, str)
    object_fits(parsed(arguments))


def object_fits(found: Any) -> None:
    """Wrong unless this is an object that fits PARAMETERS."""
    expect(isinstance(found, dict), f"arguments that are no object: {shown(found)}")
    fits = set(found) == {"city", "tomorrow"} and found["city"] in CITIES and isinstance(found["tomorrow"], bool)
    expect(fits, f"arguments that do not fit the schema: {shown(found)}")


def form_fits(text: object) -> None:
    """Wrong unless ``text`` is JSON that fits FORM."""
    expect(isinstance(text, str) and text, f"{shown(text)} in place of text")
    found = parsed(str(text))
    fits = isinstance(found, dict) and set(found) == {"answer", "sure"}
    fits = fits and found["answer"] in ("yes", "no") and isinstance(found["sure"], bool)
    expect(fits, f"what does not fit the schema: {shown(found)}")


def counts(usage: Any, parts: Sequence[str], total: str = "") -> None:
    """Wrong unless ``usage`` holds counts under the names ``parts``, and their sum under ``total``."""
    expect(isinstance(usage, dict), f"usage {shown(usage)}")
    numbers = [usage.get(name) for name in (*parts, *([total] if total else []))]
    expect(all(isinstance(n, int) and n >= 0 for n in numbers), f"usage {shown(usage)}")
    expect(not total or numbers[-1] == sum(numbers[:-1]), f"usage that does not add up: {shown(usage)}")


def event_stream(answer: Answer) -> None:
    """Wrong unless it says that it is a stream of events."""
    answer.arrived()
    expect(answer.kind == "text/event-stream", f"content type {answer.kind or 'none'}")


def one_id(events: Sequence[dict[str, Any]]) -> None:
    """Wrong unless all of them have the same id, a text."""
    ids = {json.dumps(event.get("id")) for event in events}
    expect(len(ids) == 1 and isinstance(events[0].get("id"), str), f"ids {shown(sorted(ids))}")


def refused(answer: Answer, *statuses: int) -> dict[str, Any]:
    """The document of a request that was refused: never an error of the server's own, and always JSON."""
    expect(answer.status, f"no answer: {answer.cut}")
    known = statuses or tuple(range(400, 500))
    expect(answer.status in known, f"HTTP {answer.status}: {shown(answer.body.decode('utf-8', 'replace'))}")
    return answer.document(answer.status)


def openai_error(answer: Answer, *statuses: int) -> str:
    """The message of an error in OpenAI's shape."""
    error = refused(answer, *statuses).get("error")
    expect(
        isinstance(error, dict) and isinstance(error.get("message"), str) and error["message"], f"error {shown(error)}"
    )
    assert isinstance(error, dict)
    return str(error["message"])


def too_long(talk: Talk) -> str:
    """A text that no context of this server holds. Skip where that is not known, or too large to try."""
    if talk.ctx is None:
        raise Skip("the list of models does not tell the context")
    if talk.ctx > LARGEST:
        raise Skip(f"a context of {talk.ctx} tokens is not overflown")
    return "word " * (talk.ctx + 16)


def overflow_known(text: str) -> None:
    """Wrong unless agents know from ``text`` that the prompt was too long."""
    expect(any(words in text.lower() for words in OVERFLOWS), shown(text))


def at_once(talk: Talk, path: str, bodies: Sequence[Mapping[str, Any]]) -> list[Answer]:
    """The answers to all of these, asked at the same time."""
    with ThreadPoolExecutor(len(bodies)) as pool:
        return list(pool.map(lambda body: talk.ask(path, body), bodies))


def not_the_servers(answer: Answer) -> None:
    """Wrong if the server failed; a refusal is an answer."""
    expect(answer.status, f"no answer: {answer.cut}")
    expect(answer.status < 500, f"HTTP {answer.status}: {shown(answer.body.decode('utf-8', 'replace'))}")


def names_of(events: Sequence[Event]) -> list[str]:
    """The types of events, each once in a row."""
    found: list[str] = []
    for event in events:
        kind = str(event.json.get("type"))
        if not found or found[-1] != kind:
            found.append(kind)
    return found


def in_order(found: Sequence[str], wanted: Sequence[str]) -> None:
    """Wrong unless ``wanted`` occur in ``found`` in this order."""
    rest = iter(found)
    for name in wanted:
        if name not in rest:
            raise Wrong(f"no {name} in its place: {shown(' '.join(found))}")
