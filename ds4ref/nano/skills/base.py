"""The types that every skill uses: graded questions, their generators, and conversations to train on.

A generator makes an episode: a list of questions (items) that follow each other in one conversation and share its
facts. The messages of the first item begin the conversation; each later item has only the messages that it adds. A
question for a test is an episode of one question.
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
"""Weight of a token as a training target: inside a reply, including its end token, and anywhere else."""
ENDLESS = 1 << 30

Grader = Callable[["Item", str], bool]


@dataclass(frozen=True)
class Item:
    """One graded question.

    skill     name of the skill
    messages  the messages of the prompt; the last one is the user's or a tool's
    reply     the right answer of the assistant
    guess     probability that a guess among plausible answers is right
    mode      "high": the reply contains reasoning; "none": it does not
    schemas   JSON text of each tool that the prompt shows
    thought   reasoning of the reply, if ``thinking`` converts the item to mode "high"
    brief     the reply's text after this reasoning; "": the same as without reasoning
    grader    function that returns whether a text is a right answer; None: the text must equal the reply
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
        """Return the prompt, up to where the reply begins."""
        return render(self.messages, self.schemas, self.mode)

    def answer(self) -> str:
        """Return the text of the right reply as a model generates it, without the end token."""
        return "".join(part.text for part in reply_parts(self))

    def grade(self, text: str) -> bool:
        """Return whether ``text`` is a right answer: what a model generated after the prompt, before the end token."""
        return self.grader(self, text) if self.grader else self.visible(text) == self.reply.content

    def visible(self, text: str) -> str | None:
        """Return the part of a reply that a user sees, after reasoning; None if a reply in mode "high" does not close
        its reasoning exactly once, or one in mode "none" closes any."""
        spans = text.split(protocol.THINK_CLOSE)
        return spans[-1] if len(spans) == (1 if self.mode == "none" else 2) else None


@dataclass(frozen=True)
class Segment:
    """A part of a text to train on; ``learn``: weight of its tokens as training targets."""

    parts: tuple[TextPart, ...]
    learn: float


@dataclass(frozen=True)
class Conversation:
    """A text to train on, in segments; it starts with the begin-of-sentence token."""

    segments: tuple[Segment, ...]

    @property
    def text(self) -> str:
        """Return the whole text."""
        return "".join(part.text for segment in self.segments for part in segment.parts)

    def encode(self, tokenizer: Tokenizer) -> tuple[list[int], list[float]]:
        """Return the token ids, and the weight of each as a training target; that of the first is 0."""
        ids: list[int] = []
        weights: list[float] = []
        for segment in self.segments:
            encoded = encode_segment(segment, tokenizer)
            ids += encoded
            weights += [segment.learn] * len(encoded)
        return ids, [0.0, *weights[1:]]


@dataclass(frozen=True)
class Skill:
    """A generator of questions of one kind.

    make       function (rng, room, questions, **level) that returns the items of one episode; ``room``: number of
               tokens left in the training row; ``level``: parameters of difficulty, which differ from skill to skill
    questions  maximum number of questions of an episode in training
    tokens     approximate number of tokens per question in training
    level      default parameters of difficulty
    test       further parameters for held-out questions
    whole      an episode fills a training row, because it has a system text, tools or a long text
    raw        function (rng, tokens, **level) that makes a training row that is not a conversation, used instead of
               episodes; None: training rows are made of episodes
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
        """Return one question, complete with everything that its prompt needs."""
        return join(self.make(rng, ENDLESS, 1, **{**self.level, **level}))

    def episode(self, rng: random.Random, room: int, **level: Any) -> list[Item]:
        """Return an episode for a training row in which ``room`` tokens are left."""
        most = max(1, room // self.tokens + 1)
        questions = most if self.whole else rng.randint(1, min(self.questions, most))
        return self.make(rng, room, questions, **{**self.level, **level})

    def train(self, rng: random.Random, tokens: int, **level: Any) -> Conversation:
        """Return a conversation to train on, of roughly ``tokens`` tokens or more, made of this skill only."""
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
    """Return the same question in mode "high", with ``item.thought`` as the reasoning, which may be empty."""
    if item.mode != "none":
        return item
    reply = replace(item.reply, content=item.brief or item.reply.content, reasoning=item.thought)
    return replace(item, mode="high", reply=reply)


def no_questions(rng: random.Random, room: int, questions: int, **level: Any) -> list[Item]:
    """Raise ValueError: this is the ``make`` of skills that have no questions, only training rows (``raw``)."""
    raise ValueError("an exercise has no questions")


def join(items: Sequence[Item]) -> Item:
    """Return the last question of an episode, with all messages and replies before it in its prompt."""
    messages: list[Message] = []
    for item in items[:-1]:
        messages += [*item.messages, item.reply]
    return replace(items[-1], messages=(*messages, *items[-1].messages), schemas=items[0].schemas)


# --- conversations


def reply_parts(item: Item) -> list[TextPart]:
    """Return the parts of an item's reply as they follow the prompt in the model's format, without the end token."""
    reply = Rendered()
    if item.mode != "none":
        reply.plain(item.reply.reasoning).protocol(protocol.THINK_CLOSE)
    reply.plain(item.reply.content)
    return reply.extend(render_calls(item.reply.calls) if item.reply.calls else []).parts


def item_segments(item: Item, first: bool) -> list[Segment]:
    """Return two segments: what an item adds to the prompt, and its reply. ``first``: whether it begins the
    conversation; if not, system messages and the begin-of-sentence token are left out."""
    if first:
        asked = item.prompt().parts
    else:  # [1:] leaves out the begin-of-sentence token
        asked = render([m for m in item.messages if m.role != "system"], (), item.mode).parts[1:]
    end = TextPart(protocol.EOS, Rendered().protocol(protocol.EOS).parts[0].control)
    return [Segment(tuple(asked), OTHER), Segment((*reply_parts(item), end), REPLY)]


def conversation(items: Iterable[Item]) -> Conversation:
    """Return the items, which follow each other, as a conversation to train on."""
    segments: list[Segment] = []
    for item in items:
        segments += item_segments(item, first=not segments)
    return Conversation(tuple(segments))


def plain_text(text: str) -> Conversation:
    """Return a text without turns as a conversation to train on, all of it with the weight of replies."""
    begin, end = Rendered().protocol(protocol.BOS).parts, Rendered().protocol(protocol.EOS).parts
    return Conversation((Segment(tuple(begin), 0.0), Segment((TextPart(text, None), *end), REPLY)))


def encode_segment(segment: Segment, tokenizer: Tokenizer) -> list[int]:
    """Return the token ids of a segment. In conversations control tokens separate segments, so encoding them one by one
    gives the ids of the whole text."""
    rendered = Rendered()
    rendered.parts = list(segment.parts)
    return rendered.encode(tokenizer)


_WORD = re.compile(r"｜[^｜]*｜|[A-Za-z]+|[0-9]|[^\sA-Za-z0-9]+|\n+")


def rough_size(text: str) -> int:
    """Return an estimate of the number of tokens of a text, made without a tokenizer."""
    return len(_WORD.findall(text))


def user(text: str) -> tuple[Message, ...]:
    """Return a prompt of one user message."""
    return (Message("user", text),)


def assistant(content: str, reasoning: str = "") -> Message:
    """Return a reply of the assistant without tool calls."""
    return Message("assistant", content, reasoning)


def pick(rng: random.Random, value: Any) -> Any:
    """Return a value for a parameter of difficulty: a random integer between two for a pair of integers, a random
    element of any other list or tuple, else ``value`` itself."""
    if not isinstance(value, (tuple, list)):
        return value
    return rng.randint(*value) if type(value[0]) is int else rng.choice(value)
