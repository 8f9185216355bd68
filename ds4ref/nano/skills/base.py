"""What every skill is made of: graded questions, generators, and conversations to learn from.

A generator makes an episode: questions that follow each other in one conversation and share its facts. The messages of
the first item are a whole conversation; those of later items are only what is new. A single question for a test is an
episode of one question, joined into one item.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ...text import protocol
from ...text.chat import Message, render
from ...text.dsml import render_calls
from ...text.rendered import Rendered, TextPart
from ...text.tokenizer import Tokenizer

REPLY, OTHER = 1.0, 0.1
"""Weights of a token as a target: inside a reply (its end included), and anywhere else."""
ENDLESS = 1 << 30

Grader = Callable[["Item", str], bool]


@dataclass(frozen=True)
class Item:
    """One graded question.

    skill     name of the skill
    messages  the prompt's messages; the last one is the user's or a tool's
    reply     the right answer of the assistant
    guess     probability of a right answer by guessing among what is plausible
    mode      "none", or "high": the reply has reasoning
    schemas   JSON text of the tools that are shown
    thought   the reasoning that the reply would have in mode "high" (``thinking``)
    brief     what the reply says after it; "": the same as without
    grader    returns whether a text is right; None: the text must equal the reply
    """

    skill: str
    messages: tuple[Message, ...]
    reply: Message
    guess: float
    mode: str = "none"
    schemas: tuple[str, ...] = ()
    thought: str = ""
    brief: str = ""
    grader: Grader | None = field(default=None, repr=False, compare=False)

    def prompt(self) -> Rendered:
        """Return the prompt, which ends where the reply begins."""
        return render(self.messages, self.schemas, self.mode)

    def answer(self) -> str:
        """Return the text of the right reply as a model generates it, end token not included."""
        return "".join(part.text for part in reply_parts(self))

    def grade(self, text: str) -> bool:
        """Return whether ``text``, generated after the prompt up to the end token, is right."""
        return self.grader(self, text) if self.grader else self.visible(text) == self.reply.content

    def visible(self, text: str) -> str | None:
        """Return what a user sees of a reply; None if its reasoning is not closed exactly once, or not asked for."""
        spans = text.split(protocol.THINK_CLOSE)
        return spans[-1] if len(spans) == (1 if self.mode == "none" else 2) else None


@dataclass(frozen=True)
class Segment:
    """A span of a conversation between control tokens; ``learn`` is the weight of its tokens as targets."""

    parts: tuple[TextPart, ...]
    learn: float


@dataclass(frozen=True)
class Conversation:
    """One row to learn from; it starts with the begin token."""

    segments: tuple[Segment, ...]

    @property
    def text(self) -> str:
        """Return the whole text."""
        return "".join(part.text for segment in self.segments for part in segment.parts)

    def encode(self, tokenizer: Tokenizer) -> tuple[list[int], list[float]]:
        """Return the token ids, and the weight of each id as a target; the first id is never one."""
        ids: list[int] = []
        weights: list[float] = []
        for segment in self.segments:
            encoded = encode_segment(segment, tokenizer)
            ids += encoded
            weights += [segment.learn] * len(encoded)
        return ids, [0.0, *weights[1:]]


@dataclass(frozen=True)
class Skill:
    """A generator of questions.

    make       (rng, room, questions, **level) -> items of one episode; ``room`` is the number of tokens left in a row
    questions  most questions of an episode in a row to learn from
    tokens     rough number of tokens per question in such a row
    level      the level's defaults
    test       what the level of held-out questions adds
    whole      an episode fills its row: it has a system text, tools, or a long text
    raw        (rng, tokens, **level) -> a row without turns instead of episodes; None if there are only those
    """

    name: str
    make: Callable[..., list[Item]]
    questions: int = 8
    tokens: int = 12
    level: Mapping[str, Any] = field(default_factory=dict)
    test: Mapping[str, Any] = field(default_factory=dict)
    whole: bool = False
    raw: Callable[..., Conversation] | None = None

    def item(self, rng: random.Random, **level: Any) -> Item:
        """Return one question with its whole conversation."""
        return join(self.make(rng, ENDLESS, 1, **{**self.level, **level}))

    def episode(self, rng: random.Random, room: int, **level: Any) -> list[Item]:
        """Return an episode of a conversation that has ``room`` more tokens."""
        most = max(1, room // self.tokens + 1)
        questions = most if self.whole else rng.randint(1, min(self.questions, most))
        return self.make(rng, room, questions, **{**self.level, **level})

    def train(self, rng: random.Random, tokens: int, **level: Any) -> Conversation:
        """Return a conversation of at least about ``tokens`` tokens, made of this skill only."""
        if self.raw is not None:
            return self.raw(rng, tokens, **{**self.level, **level})
        segments: list[Segment] = []
        size = 0
        while size < tokens:
            for item in self.episode(rng, tokens - size, **level):
                turn = item_segments(item, first=not segments)
                segments += turn
                size += sum(rough_size(part.text) for segment in turn for part in segment.parts)
        return Conversation(tuple(segments))


def thinking(item: Item) -> Item:
    """Return the same question in mode "high"; its reasoning is short, and empty where there is nothing to say."""
    if item.mode != "none":
        return item
    reply = replace(item.reply, content=item.brief or item.reply.content, reasoning=item.thought)
    return replace(item, mode="high", reply=reply)


def no_questions(rng: random.Random, room: int, questions: int, **level: Any) -> list[Item]:
    """Stand for ``make`` in skills that are only exercises; raise ValueError."""
    raise ValueError("an exercise has no questions")


def join(items: Sequence[Item]) -> Item:
    """Return the last question of an episode, with everything before it as its conversation."""
    messages: list[Message] = []
    for item in items[:-1]:
        messages += [*item.messages, item.reply]
    return replace(items[-1], messages=(*messages, *items[-1].messages), schemas=items[0].schemas)


# --- conversations


def reply_parts(item: Item) -> list[TextPart]:
    """Return the reply of an item without the end token, as the protocol writes it after the prompt."""
    reply = Rendered()
    if item.mode != "none":
        reply.plain(item.reply.reasoning).protocol(protocol.THINK_CLOSE)
    reply.plain(item.reply.content)
    return reply.extend(render_calls(item.reply.calls) if item.reply.calls else []).parts


def item_segments(item: Item, first: bool) -> list[Segment]:
    """Return the segments of one turn; if it is not the first one, its system messages are left out."""
    if first:
        asked = item.prompt().parts
    else:  # without the begin token
        asked = render([m for m in item.messages if m.role != "system"], (), item.mode).parts[1:]
    end = TextPart(protocol.EOS, Rendered().protocol(protocol.EOS).parts[0].control)
    return [Segment(tuple(asked), OTHER), Segment((*reply_parts(item), end), REPLY)]


def conversation(items: Iterable[Item]) -> Conversation:
    """Return the conversation of consecutive items."""
    segments: list[Segment] = []
    for item in items:
        segments += item_segments(item, first=not segments)
    return Conversation(tuple(segments))


def plain_text(text: str) -> Conversation:
    """Return a row that is only text, all of it to be learned."""
    begin, end = Rendered().protocol(protocol.BOS).parts, Rendered().protocol(protocol.EOS).parts
    return Conversation((Segment(tuple(begin), 0.0), Segment((TextPart(text, None), *end), REPLY)))


def encode_segment(segment: Segment, tokenizer: Tokenizer) -> list[int]:
    """Return the token ids of a segment; segments meet at control tokens, so they can be encoded one by one."""
    rendered = Rendered()
    rendered.parts = list(segment.parts)
    return rendered.encode(tokenizer)


_WORD = re.compile(r"｜[^｜]*｜|[A-Za-z]+|[0-9]|[^\sA-Za-z0-9]+|\n+")


def rough_size(text: str) -> int:
    """Return about the number of tokens of a text, without a tokenizer."""
    return len(_WORD.findall(text))


def user(text: str) -> tuple[Message, ...]:
    """Return a prompt of one user message."""
    return (Message("user", text),)


def assistant(content: str, reasoning: str = "") -> Message:
    """Return a reply without calls."""
    return Message("assistant", content, reasoning)


def pick(rng: random.Random, value: Any) -> Any:
    """Return a level's value: a uniform integer of a pair of integers, an element of another list, else the
    value itself."""
    if not isinstance(value, (tuple, list)):
        return value
    return rng.randint(*value) if type(value[0]) is int else rng.choice(value)
