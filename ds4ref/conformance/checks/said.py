"""The content of an answer, whatever its API, and the comparison of a streamed answer with the same as a document.

    whole, streamed = api.read(answer), api.read(other)
    agree(talk, path, body, api.read, api.stream)

Each API's module reads documents and streams as its clients do, assembling pieces by their ids and indices. The reader
raises Wrong, or msgspec's ValidationError, for an answer that a client would assemble wrongly or not at all.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from ..talk import Answer, NotOffered, Skip, Talk, Wrong, expect, shown
from .shapes import Failure, Weather

T = TypeVar("T")

_CONTROL = r"(?:<\|[a-z0-9_ ]{2,40}\|>|<\uff5c[^\uff5c<>]{2,40}\uff5c>|</?s>)"
MARKUP = re.compile(
    r"</?think(?:ing)?>|<\uff5cDSML\uff5c|</?tool_calls?>|\[/?INST\]|\[TOOL_CALLS\]|<function="
    rf"|\A\s*{_CONTROL}|{_CONTROL}\s*\Z",
    re.IGNORECASE,
)
"""Markup of chat templates, which a server must not leave in an answer's text.

Control tokens count only at the beginning and the end, where templates put them: random weights write some anywhere.
"""
THINK = re.compile(r"</?think(?:ing)?>")
"""Markup that must not be in the reasoning either; other markup may be, since a model may reason about it."""
REFUSALS = (400, 404, 405, 415, 422, 501)
"""HTTP statuses by which a server says that it does not offer what the request asks for."""
CITIES = ("Oslo", "Paris", "Lima")


@dataclass(frozen=True)
class Call:
    """A call of a tool; ``arguments``: their JSON text, or the input of a custom tool."""

    id: str
    name: str
    arguments: str

    @property
    def value(self) -> Any:
        """The arguments parsed as JSON, or their text if they are not JSON."""
        try:
            return json.loads(self.arguments)
        except ValueError:
            return self.arguments


@dataclass(frozen=True)
class Said:
    """The content of an answer.

    finish   the finish reason, in the API's words
    prompt   number of tokens of the whole prompt, cached or not; None if the answer has no usage
    tokens   number of tokens of the answer; None if it has no usage
    scores   (token, log probability) of each token, None without log probabilities
    """

    text: str = ""
    reasoning: str = ""
    calls: tuple[Call, ...] = ()
    finish: str = ""
    prompt: int | None = None
    tokens: int | None = None
    scores: tuple[tuple[str, float | None], ...] | None = None

    @property
    def sampled(self) -> dict[str, Any]:
        """What the model generated: text, reasoning and calls, by name."""
        calls = [(call.name, call.value) for call in self.calls]
        return {"calls": calls, "text": self.text, "reasoning": self.reasoning}

    @property
    def parts(self) -> dict[str, Any]:
        """Everything that must be the same in a document and in a stream, by a name for the report."""
        return {**self.sampled, "the end": self.finish, "tokens of the prompt": self.prompt,
                "tokens of the answer": self.tokens}  # fmt: skip


Read = Callable[[Answer], Said]


def typed(value: Any, kind: type[T]) -> T:
    """Convert a parsed JSON value to the type ``kind``; raises ValidationError, naming the member that does not fit."""
    return msgspec.convert(value, kind)


def agree(talk: Talk, path: str, body: dict[str, Any], read: Read, more: dict[str, Any]) -> None:
    """Raise Wrong unless the stream and the document for the same request have the same content.

    path, body: the request; read: returns an answer's content; more: members that ask for a stream. Raises Skip if the
    server answers the same request differently each time, which makes a comparison impossible.
    """
    streamed = talk.ask(path, {**body, **more})
    whole, stream = read(talk.ask(path, body)), read(streamed)
    expect(streamed.kind == "text/event-stream", f"content type {streamed.kind or 'none'}")
    for name, one in whole.parts.items():
        other = stream.parts[name]
        if one != other and (not name.startswith("tokens") or None not in (one, other)):
            if whole.sampled != stream.sampled and read(talk.again(path, body)).sampled != whole.sampled:
                raise Skip("the answers to one request differ")
            raise Wrong(f"{name}: {shown(one)[:60]} as a document, {shown(other)[:60]} as a stream")


def clean(said: Said) -> None:
    """Raise Wrong if there is markup of a chat template in an answer's text, reasoning or calls."""
    parts = [("text", said.text, MARKUP), ("reasoning", said.reasoning, THINK)]
    parts += [(f"a call of {call.name}", call.arguments, MARKUP) for call in said.calls]
    for name, text, pattern in parts:
        found = pattern.search(text)
        if found is not None:
            raise Wrong(f"{found[0]} in the {name}: {shown(text[max(0, found.start() - 20) :])[:60]}")


def offered(answer: Answer, what: str) -> Answer:
    """Return the answer; raises NotOffered if the server refused the request, which asked for the feature ``what``."""
    if answer.status in REFUSALS:
        raise NotOffered(f"{what} (HTTP {answer.status}: {shown(answer.body.decode('utf-8', 'replace'))[:80]})")
    return answer


def weather_fits(call: Call, *, strict: bool = False) -> None:
    """Raise Wrong or ValidationError unless the arguments of a call fit the schema of the tool ``weather``.

    A city that the schema does not list raises Wrong if the server must hold arguments to their schema (``strict``),
    else NotOffered.
    """
    city = msgspec.json.decode(call.arguments, type=Weather).city
    expect(not strict or city in CITIES, f"arguments that do not fit the schema: {shown(call.arguments)}")
    if city not in CITIES:
        raise NotOffered(f"values held to their schema: the model wrote {shown(call.arguments)}")


def refused(answer: Answer, *statuses: int) -> Failure:
    """Return the error document of an answer; raises Wrong unless its status is in ``statuses`` (default: any 4xx)."""
    expect(answer.status, f"no answer: {answer.cut}")
    known = statuses or range(400, 500)
    expect(answer.status in known, f"HTTP {answer.status}: {shown(answer.body.decode('utf-8', 'replace'))}")
    return typed(answer.document(answer.status), Failure)


def scored(said: Said) -> None:
    """Raise Wrong unless each token of the answer's text has a plausible log probability.

    The token that ends an answer is not part of its text: a server that counts it as generated need not score it.
    """
    scores, text, tokens = said.scores or (), said.text, said.tokens
    values = [value for _, value in scores]
    expect(values and None not in values, "no log probabilities")
    expect(len(values) < 3 or len(set(values)) > 1, f"the log probability {values[0]} for every token")
    whole = said.finish == "stop" and "".join(token for token, _ in scores) == text
    counts = (tokens, (tokens or 0) - 1) if whole else (tokens,)
    expect(tokens is None or len(values) in counts, f"{len(values)} log probabilities for {tokens} tokens")
    of_text = scores[: tokens and tokens - 1] if said.finish == "stop" else scores
    plain = [token for token, _ in of_text if token.isascii() and not token.startswith("bytes:")]
    missing = [token for token in plain if token not in text]
    expect(not missing, f"tokens {shown(missing)} that are not in the text")


def stop_string(text: str) -> str:
    """Return three letters from ``text`` that would cut it in the middle as a stop string, "" if it is too short."""
    for found in re.finditer(r"(?=([A-Za-z]{3}))", text):
        if found.start() >= 3 and text.find(found[1]) >= 3 and found.start() >= len(text) // 4:
            return found[1]
    return ""


def in_order(names: Sequence[str], wanted: Sequence[str]) -> None:
    """Raise Wrong unless the names ``wanted`` occur in ``names`` in this order, possibly with others in between."""
    rest = iter(names)
    for name in wanted:
        if name not in rest:
            raise Wrong(f"no {name} in its place: {shown(' '.join(dict.fromkeys(names)))}")
