"""What an answer says, whichever API and form it came in, and the comparison of two forms of it.

    whole, stream = api.read(answer), api.read(streamed)
    agree(talk, api, body)

Each API's module reads its documents and its streams as clients do: pieces are put together by their ids and indices,
and a reader raises Wrong, or msgspec's ValidationError, for what a client would put together wrongly or not at all.
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
"""Markup of chat templates, which a server has to take out of what it calls text.

Control tokens count at both ends, where templates have them: random weights write some anywhere.
"""
THINK = re.compile(r"</?think(?:ing)?>")
"""The markup that must not be in reasoning either; there a model may speak of all other."""
REFUSALS = (400, 404, 405, 415, 422, 501)
"""Statuses by which a server says that it does not offer what was asked."""
CITIES = ("Oslo", "Paris", "Lima")


@dataclass(frozen=True)
class Call:
    """A call of a tool; ``arguments``: the JSON text, or the input of a custom tool."""

    id: str
    name: str
    arguments: str

    @property
    def value(self) -> Any:
        """The arguments as a value, or their text if they are no JSON."""
        try:
            return json.loads(self.arguments)
        except ValueError:
            return self.arguments


@dataclass(frozen=True)
class Said:
    """What an answer says.

    finish   the reason of its end, in the words of the API
    prompt   tokens of the whole prompt, cached or not; None without usage
    tokens   tokens of the answer; None without usage
    scores   (token, log probability) of each token, None if there are none
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
        """What the model chose."""
        calls = [(call.name, call.value) for call in self.calls]
        return {"calls": calls, "text": self.text, "reasoning": self.reasoning}

    @property
    def parts(self) -> dict[str, Any]:
        """All that documents and streams have to say alike."""
        return {**self.sampled, "the end": self.finish, "tokens of the prompt": self.prompt,
                "tokens of the answer": self.tokens}  # fmt: skip


Read = Callable[[Answer], Said]


def typed(value: Any, kind: type[T]) -> T:
    """Return a parsed JSON value as a type; raises ValidationError, naming the member, if it does not fit."""
    return msgspec.convert(value, kind)


def agree(talk: Talk, path: str, body: dict[str, Any], read: Read, more: dict[str, Any]) -> None:
    """Raise Wrong unless a stream says what the document of the same request says.

    ``more``: members of a request for a stream. A server whose documents differ among themselves cannot be compared.
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
    """Raise Wrong if there is markup of a chat template in what was said."""
    parts = [("text", said.text, MARKUP), ("reasoning", said.reasoning, THINK)]
    parts += [(f"a call of {call.name}", call.arguments, MARKUP) for call in said.calls]
    for name, text, pattern in parts:
        found = pattern.search(text)
        if found is not None:
            raise Wrong(f"{found[0]} in the {name}: {shown(text[max(0, found.start() - 20) :])[:60]}")


def offered(answer: Answer, what: str) -> Answer:
    """Return the answer; raises NotOffered if the server refused the request."""
    if answer.status in REFUSALS:
        raise NotOffered(f"{what} (HTTP {answer.status}: {shown(answer.body.decode('utf-8', 'replace'))[:80]})")
    return answer


def weather_fits(call: Call, *, strict: bool = False) -> None:
    """Raise Wrong or ValidationError unless a call's arguments fit the schema of the tool.

    Which city it is, is the model's choice unless the request asked for ``strict``: a text that the schema does not
    list raises NotOffered there.
    """
    city = msgspec.json.decode(call.arguments, type=Weather).city
    expect(not strict or city in CITIES, f"arguments that do not fit the schema: {shown(call.arguments)}")
    if city not in CITIES:
        raise NotOffered(f"values held to their schema: the model wrote {shown(call.arguments)}")


def refused(answer: Answer, *statuses: int) -> Failure:
    """Return the error of an answer; raises Wrong unless its status is in ``statuses`` (default: any 4xx)."""
    expect(answer.status, f"no answer: {answer.cut}")
    known = statuses or range(400, 500)
    expect(answer.status in known, f"HTTP {answer.status}: {shown(answer.body.decode('utf-8', 'replace'))}")
    return typed(answer.document(answer.status), Failure)


def scored(said: Said) -> None:
    """Raise Wrong unless each token of the text has a log probability that can be one.

    The token that ends an answer is no part of its text: servers that count it need not score it.
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
    """Return a few characters from the middle of ``text`` that end it well before its end, "" if it is too short."""
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
