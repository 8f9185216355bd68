"""What an answer says, whichever API and form it came in, and the comparison of two forms of it.

    whole, stream = chat.read(answer), chat.read(streamed)
    agree(talk, PATH, body, chat.read)

Each API's module reads its documents and its streams as clients do: pieces are put together by their ids and indices,
and a reader raises Wrong for what a client would put together wrongly or not at all.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..talk import Answer, NotOffered, Skip, Talk, Wrong, expect, parsed, shown

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
COUNT = "Count from one to a thousand, in words."
"""A prompt whose answer is long."""
PROMPTS = ("Say hello.", COUNT, "Tell a long story about a ship.", "List ten animals.")
"""Prompts of which one has an answer of some length, whatever the model."""
LONG_FORM = {
    "type": "object",
    "properties": {"text": {"type": "string", "enum": [" ".join(f"{n} ships and {n + 1} boats," for n in range(60))]}},
    "required": ["text"],
    "additionalProperties": False,
}
"""A schema that only a long text fits, for models whose answers are short."""
SOON = 0.15
"""Seconds: an answer that is over so soon does not show whether it was sent as it was written."""
SHARE = 0.1
"""Of the time of an answer, how much has to pass between the first quarter of its text and its end."""
UNICODE = "Zürich – 東京 🚲"
UNICODE_FORM = {
    "type": "object",
    "properties": {"place": {"type": "string", "enum": [UNICODE]}},
    "required": ["place"],
    "additionalProperties": False,
}
"""A schema that only one text fits, of characters of one to four bytes."""
REFUSALS = (400, 404, 405, 415, 422, 501)
"""Statuses by which a server says that it does not offer what was asked."""


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
    scores: tuple[tuple[str, float], ...] | None = None
    more: Mapping[str, Any] = field(default_factory=dict)

    @property
    def sampled(self) -> tuple[Any, ...]:
        """What the model chose."""
        return self.text, self.reasoning, tuple((call.name, str(call.value)) for call in self.calls)


Read = Callable[[Answer], Said]


def agree(talk: Talk, path: str, body: Mapping[str, Any], read: Read, more: Mapping[str, Any]) -> None:
    """Raise Wrong unless a stream says what the document of the same request says.

    ``more``: members of a request for a stream. A server whose documents differ among themselves cannot be compared.
    """
    streamed = talk.ask(path, {**body, **more})
    whole, stream = read(talk.ask(path, body)), read(streamed)
    expect(streamed.kind == "text/event-stream", f"content type {streamed.kind or 'none'}")
    found = difference(whole, stream)
    if found and whole.sampled != stream.sampled and read(talk.again(path, body)).sampled != whole.sampled:
        raise Skip("the answers to one request differ")
    expect(not found, found)


def difference(whole: Said, stream: Said) -> str:
    """Return what a stream says in another way than the document, "" if nothing."""
    pairs: list[tuple[str, Any, Any]] = [
        (
            "calls",
            [(call.name, call.value) for call in whole.calls],
            [(call.name, call.value) for call in stream.calls],
        ),
        ("text", whole.text, stream.text),
        ("reasoning", whole.reasoning, stream.reasoning),
        ("the end", whole.finish, stream.finish),
    ]
    if None not in (whole.prompt, stream.prompt):
        pairs.append(("tokens of the prompt", whole.prompt, stream.prompt))
    if None not in (whole.tokens, stream.tokens):
        pairs.append(("tokens of the answer", whole.tokens, stream.tokens))
    for name, one, other in pairs:
        if one != other:
            return f"{name}: {shown(one)[:60]} as a document, {shown(other)[:60]} as a stream"
    return ""


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


def stop_string(text: str) -> str:
    """Return a few characters from the middle of ``text`` that end it well before its end; Skip if it is too short."""
    for found in re.finditer(r"(?=([A-Za-z]{3}))", text):
        if found.start() >= 3 and text.find(found[1]) >= 3 and found.start() >= len(text) // 4:
            return found[1]
    raise Skip(f"no answer long enough to be stopped: {shown(text)[:60]}")


def with_stop(talk: Talk, ask: Callable[[str], Answer], read: Read) -> tuple[str, Said, str]:
    """Return (prompt, its answer, a stop string in the middle of that); Skip if all answers are too short."""
    for prompt in PROMPTS:
        said = read(ask(prompt))
        try:
            return prompt, said, stop_string(said.text)
        except Skip:
            continue
    raise Skip(f"no answer long enough to be stopped: {shown(said.text)[:60]}")


def is_cut(answers: Sequence[Callable[[], Said]], limit: int, reason: str) -> Said:
    """Return the first answer that reaches its limit; Wrong unless it says so, Skip if none of them is so long."""
    for answer in answers:
        said = answer()
        if said.finish == reason:
            expect(said.tokens is None or said.tokens <= limit, f"{said.tokens} tokens where {limit} are the limit")
            return said
        expect(said.tokens is not None and said.tokens < limit, f"the end {shown(said.finish)}")
    raise Skip(f"no answer of {limit} tokens")


def stopped(before: Said, after: Said, word: str, reasons: Sequence[str]) -> None:
    """Raise Wrong unless the answer ``after`` is ``before``, ended in front of the stop string ``word``."""
    expect(word not in after.text, f"{shown(word)} in {shown(after.text)}")
    if not before.text.startswith(after.text.rstrip()):
        raise Skip("the answers to one request differ")
    wanted = before.text[: before.text.index(word)]
    expect(after.text.rstrip() == wanted.rstrip(), f"{shown(after.text)[-40:]} in place of {shown(wanted)[-40:]}")
    expect(after.finish in reasons, f"the end {shown(after.finish)}")


def counted(short: Said, long: Said, again: Said, words: int) -> None:
    """Raise Wrong unless the tokens of prompts were counted: ``long`` has so many words more, twice the same."""
    expect(None not in (short.prompt, long.prompt, again.prompt), "no usage")
    few, many = short.prompt or 0, long.prompt or 0
    expect(few > 0, f"{few} tokens")
    expect(words / 2 <= many - few <= 20 * words, f"{few} tokens, and with {words} words more {many}")
    expect(again.prompt == long.prompt, f"{long.prompt} tokens, and for the same prompt again {again.prompt}")


def grows(few: Said, many: Said, limits: tuple[int, int], length: str) -> None:
    """Raise Wrong unless the tokens of two answers were counted, of which both are ended by their limits."""
    for said, limit in zip((few, many), limits, strict=True):
        expect(said.tokens is not None, "no usage")
        expect(0 < (said.tokens or 0) <= limit, f"{said.tokens} tokens where {limit} are the limit")
    if few.finish == many.finish == length:
        expect(
            (few.tokens or 0) < (many.tokens or 0),
            f"{few.tokens} tokens, and {many.tokens} of an answer of {limits[1]}",
        )


def scored(said: Said) -> None:
    """Raise Wrong unless each token of the text has a log probability that can be one.

    The token that ends an answer is no part of its text: servers that count it need not score it.
    """
    scores, text, tokens = said.scores, said.text, said.tokens
    expect(scores, "no log probabilities")
    assert scores is not None
    values = [value for _, value in scores]
    for value in values:
        expect(
            isinstance(value, (int, float)) and not isinstance(value, bool) and value <= 0,
            f"a log probability {shown(value)}",
        )
    expect(len(values) < 3 or len(set(values)) > 1, f"the log probability {values[0]} for every token")
    whole = said.finish == "stop" and "".join(token for token, _ in scores) == text
    counts = (tokens, (tokens or 0) - 1) if whole else (tokens,)
    expect(tokens is None or len(values) in counts, f"{len(values)} log probabilities for {tokens} tokens")
    of_text = scores[: tokens and tokens - 1] if said.finish == "stop" else scores
    plain = [token for token, _ in of_text if token.isascii() and not token.startswith("bytes:")]
    expect(
        all(token in text for token in plain),
        f"tokens {shown([t for t in plain if t not in text])} that are not in the text",
    )


def as_written(
    talk: Talk, path: str, bodies: Sequence[Mapping[str, Any]], has_text: Callable[[dict[str, Any]], bool]
) -> None:
    """Raise Wrong if a long stream comes all at once at its end, three times out of three.

    The first of ``bodies`` is asked whose answer is long enough to tell.
    """
    seen, left = "", list(bodies)
    for _ in range(3):
        while True:
            answer = talk.again(path, left[0])
            if answer.status in REFUSALS and len(left) < len(bodies):
                raise Skip("no answer is long enough to tell")
            times = [time for event, time in answer.timed() if event.data != "[DONE]" and has_text(event.json)]
            if len(times) >= 8 and times[-1] >= SOON:
                break
            del left[0]
            if not left:
                seen = f"{len(times)} pieces in {times[-1] if times else 0:.2f} s"
                raise Skip(f"no answer is long enough to tell: {seen}")
        early = times[len(times) // 4]  # one piece may come at once, and all others at the end
        if times[-1] - early >= SHARE * times[-1]:
            return
        seen = f"{len(times)} pieces, a quarter of them after {early:.2f} s, the last after {times[-1]:.2f} s"
    raise Wrong(seen)


def place_fits(text: str) -> None:
    """Raise Wrong unless ``text`` is JSON of UNICODE_FORM."""
    value = parsed(text)
    expect(value == {"place": UNICODE}, f"{shown(value)} in place of {UNICODE}")


def integers(value: Any, *names: str) -> None:
    """Raise Wrong unless the members ``names`` of an object are counts, where they are there."""
    if value is None:
        return
    expect(isinstance(value, dict), f"counts {shown(value)}")
    for name in names:
        one = value.get(name)
        expect(one is None or (isinstance(one, int) and not isinstance(one, bool) and one >= 0), f"{name} {shown(one)}")


def text_or_none(value: Any, name: str) -> str:
    """Return a member that is text or null, null as ""; raises Wrong for other values."""
    expect(value is None or isinstance(value, str), f"{name} {shown(value)}")
    return value or ""


def named(value: Any, name: str) -> str:
    """Return a member that has to be a text that is not empty."""
    expect(isinstance(value, str) and value, f"{name} {shown(value)}")
    return str(value)


def different(ids: Sequence[str]) -> None:
    """Raise Wrong unless calls of several turns have ids of their own."""
    expect(len(set(ids)) == len(ids), f"ids {shown(list(ids))}")
