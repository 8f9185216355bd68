"""Parts shared by the checks of several APIs: tools, a schema, limits, errors."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from ..talk import Answer, Event, NotOffered, Skip, Talk, Wrong, expect, parsed, shown

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
"""Parameter schemas of two tools, ``weather`` and ``clock``; fitting values are short, so that any model ends soon."""
FORM = {
    "type": "object",
    "properties": {"answer": {"type": "string", "enum": ["yes", "no"]}, "sure": {"type": "boolean"}},
    "required": ["answer", "sure"],
    "additionalProperties": False,
}
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
FAILURES = tuple(range(400, 600))
"""Statuses of errors, whosever mistake it was."""
LARGEST = 200_000
"""Largest context in tokens for which the overflow of the context is tested."""
OVERFLOWS = (
    "prompt is too long", "context size", "context length", "context window", "maximum context", "too many tokens",
    "exceeds the available context", "context_length_exceeded", "maximum number of tokens", "reduce the length",
)  # fmt: skip
"""Wordings by which agents recognise an error as a context overflow (clients.md 8)."""
_STRINGS = ("", '"', '""', '0"', '00"', '000"', '0000"')  # the last ones finish an escape
_TAILS = [
    *(quote + rest for quote in _STRINGS for rest in ("", ":0")),
    "0", '"a":0', *(word[at:] for word in ("true", "false", "null") for at in range(1, len(word))),
]  # fmt: skip


def arguments_fit(arguments: object, *, strict: bool = False) -> None:
    """Raise Wrong unless ``arguments`` is JSON text that fits the schema PARAMETERS (``object_fits``)."""
    expect(isinstance(arguments, str), f"arguments that are no text: {shown(arguments)}")
    assert isinstance(arguments, str)
    object_fits(parsed(arguments), strict=strict)


def object_fits(value: Any, *, strict: bool = False) -> None:
    """Raise Wrong unless ``value`` (parsed JSON) fits the schema PARAMETERS.

    Which city it is, is the model's choice unless the request asked for ``strict``: a text that the schema does not
    list raises NotOffered there.
    """
    expect(isinstance(value, dict), f"arguments that are no object: {shown(value)}")
    fits = set(value) == {"city", "tomorrow"} and isinstance(value["city"], str) and isinstance(value["tomorrow"], bool)
    listed = fits and value["city"] in CITIES
    expect(listed or (fits and not strict), f"arguments that do not fit the schema: {shown(value)}")
    if not listed:
        raise NotOffered(f"values held to their schema: the model wrote {shown(value)}")


def tokenizer_info(talk: Talk) -> dict[str, Any]:
    """Return what lm-evaluation-harness asks first of a tokenizer; raises NotOffered where there is none.

    Other servers have a /tokenize of their own, with other members.
    """
    answer = talk.ask("/tokenizer_info")
    if answer.status in (404, 405, 501):
        raise NotOffered("/tokenizer_info")
    return answer.document()


def form_fits(text: object) -> None:
    """Raise Wrong unless ``text`` is JSON that fits the schema FORM."""
    expect(isinstance(text, str) and text, f"{shown(text)} in place of text")
    value = parsed(str(text))
    fits = isinstance(value, dict) and set(value) == {"answer", "sure"}
    fits = fits and value["answer"] in ("yes", "no") and isinstance(value["sure"], bool)
    expect(fits, f"what does not fit the schema: {shown(value)}")


def object_begins(text: str) -> bool:
    """Return whether ``text`` is a JSON object or the beginning of one.

    Tries the few ways to complete the last value, then closes what is open.
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
    """Raise Wrong unless ``usage`` has integer members ``parts``, and their sum in the member ``total`` if named."""
    expect(isinstance(usage, dict), f"usage {shown(usage)}")
    numbers = [usage.get(name) for name in (*parts, *([total] if total else []))]
    expect(all(isinstance(n, int) and n >= 0 for n in numbers), f"usage {shown(usage)}")
    expect(not total or numbers[-1] == sum(numbers[:-1]), f"usage that does not add up: {shown(usage)}")


def one_id(events: Sequence[dict[str, Any]]) -> None:
    """Raise Wrong unless all events have the same string as ``id``."""
    ids = {json.dumps(event.get("id")) for event in events}
    expect(len(ids) == 1 and isinstance(events[0].get("id"), str), f"ids {shown(sorted(ids))}")


def refused(answer: Answer, *statuses: int) -> dict[str, Any]:
    """Return the JSON document of an error; raises Wrong unless its status is in ``statuses`` (default: any 4xx)."""
    expect(answer.status, f"no answer: {answer.cut}")
    known = statuses or tuple(range(400, 500))
    expect(answer.status in known, f"HTTP {answer.status}: {shown(answer.body.decode('utf-8', 'replace'))}")
    return answer.document(answer.status)


def openai_error(answer: Answer, *statuses: int) -> str:
    """Return the message of an error in OpenAI's shape; raises Wrong for other shapes or statuses."""
    error = refused(answer, *statuses).get("error")
    expect(
        isinstance(error, dict) and isinstance(error.get("message"), str) and error["message"], f"error {shown(error)}"
    )
    assert isinstance(error, dict)
    return str(error["message"])


def too_long(talk: Talk) -> str:
    """Return a text longer than the server's context; raises Skip if the context is unknown or above LARGEST."""
    if talk.ctx is None:
        raise Skip("the list of models does not tell the context")
    if talk.ctx > LARGEST:
        raise Skip(f"a context of {talk.ctx} tokens is not overflown")
    return "word " * (talk.ctx + 16)


def overflow_known(text: str) -> None:
    """Raise Wrong unless ``text`` contains a wording by which agents recognise a context overflow."""
    expect(any(words in text.lower() for words in OVERFLOWS), shown(text))


def at_once(talk: Talk, path: str, bodies: Sequence[Mapping[str, Any]]) -> list[Answer]:
    """Send all requests concurrently and return their answers in order."""
    with ThreadPoolExecutor(len(bodies)) as pool:
        return list(pool.map(lambda body: talk.ask(path, body), bodies))


def not_the_servers(answer: Answer) -> None:
    """Raise Wrong if the server failed (status 5xx or no answer)."""
    expect(answer.status, f"no answer: {answer.cut}")
    expect(answer.status < 500, f"HTTP {answer.status}: {shown(answer.body.decode('utf-8', 'replace'))}")


def names_of(events: Sequence[Event]) -> list[str]:
    """Return the types of events, consecutive repetitions merged."""
    names: list[str] = []
    for event in events:
        kind = str(event.json.get("type"))
        if not names or names[-1] != kind:
            names.append(kind)
    return names


def in_order(names: Sequence[str], wanted: Sequence[str]) -> None:
    """Raise Wrong unless the names ``wanted`` occur in ``names`` in this order, possibly with others in between."""
    rest = iter(names)
    for name in wanted:
        if name not in rest:
            raise Wrong(f"no {name} in its place: {shown(' '.join(names))}")
