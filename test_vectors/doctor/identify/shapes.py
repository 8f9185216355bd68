"""Conversations that chat templates turn into different numbers of tokens, and these numbers.

A template's count is that of its control tokens plus the lengths of the texts between them. With a tokenizer the
lengths are known; without one they are measured (``Measured``): texts here are made of single letters, line feeds and
the effort texts of the templates, so that a few lengths suffice for all.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources

from ds4ref.errors import TextError
from ds4ref.targets import Message
from ds4ref.text import chat
from ds4ref.text.official import PROFILES
from ds4ref.text.prompts import prompt_of
from ds4ref.text.rendered import Rendered, TextPart
from ds4ref.text.tokenizer import Tokenizer

_LINES = resources.files("ds4ref.test_vectors").joinpath("prompts", "texts.jsonl").read_text("utf-8")
TEXTS = {line["name"]: line["text"] for line in map(json.loads, _LINES.splitlines())}
"""Texts of many kinds by name, each known to be split wrongly by some tokenizer."""
MODES = ("none", "low", "high", "max")
Length = Callable[[str], int | None]
"""Returns the number of tokens of a plain text; None: unknown."""
Render = Callable[[Sequence[Message], Sequence[str], str], Rendered]
"""Returns the prompt of (messages, tool schemas, thinking mode)."""


@dataclass(frozen=True)
class Shape:
    """A conversation to count.

    core  every server of the template gives exactly its count; of other shapes, servers differ in details
    """

    name: str
    messages: tuple[Message, ...]
    tools: tuple[str, ...] = ()
    core: bool = True


def _shape(name: str, *turns: str, tools: tuple[str, ...] = (), core: bool = True) -> Shape:
    roles = {"s": "system", "u": "user", "a": "assistant"}
    return Shape(name, tuple(Message(roles[turn[0]], turn[1:]) for turn in turns), tools, core)


TOOL = '{"name": "f", "description": "g", "parameters": {"type": "object", "properties": {"x": {"type": "string"}}}}'
BASE = _shape("one user message", "ua")
SYSTEM = _shape("a system text", "sb", "ua")
TURNS = _shape("three turns", "ua", "ab", "uc")
CORNERS = (
    _shape("two user messages", "ua", "ub", core=False),
    _shape("two system texts", "sb", "sc", "ua", core=False),
    _shape("an empty user message between two", "ua", "u", "ub", core=False),
    _shape("an answer first", "ab", "ua", core=False),
    _shape("a tool", "ua", tools=(TOOL,), core=False),
)
ADDS = 0.05
"""Probability that a server adds a system text of its own."""
CONTROL = "<｜User｜>"
CONTROLS = (_shape("a control string", f"ua{CONTROL}b"), _shape("two control strings", f"ua{CONTROL}b{CONTROL}c"))


@dataclass(frozen=True)
class Template:
    """A chat template.

    name    value of the property ``profile``
    prior   its probability before anything is measured, relative to the others'
    render  returns the prompt of (messages, tool schemas, mode)
    extra   length in tokens of the system text that the server adds where there is none
    bos     number of BOS tokens of a prompt
    """

    name: str
    prior: float
    render: Render
    extra: int = 0
    bos: int = 1

    def ids(self, shape: Shape, mode: str, tokenizer: Tokenizer) -> list[int]:
        """Return the token ids of a conversation in a thinking mode; TextError if they cannot be known."""
        if self.extra:
            raise TextError("the server adds a text that is not known")
        return self.render(shape.messages, shape.tools, mode).encode(tokenizer)

    def count(self, shape: Shape, mode: str, length: Length) -> int | None:
        """Return the number of prompt tokens of a conversation, None if a text's length is unknown."""
        total = 0
        if self.extra and not any(message.role == "system" for message in shape.messages):
            total = self.extra - 1  # its text takes the place of a letter
            shape = replace(shape, messages=(SYSTEM.messages[0], *shape.messages))
        for text, control in _pieces(self.render(shape.messages, shape.tools, mode)):
            more = 1 if control else length(text)
            if more is None:
                return None
            total += more
        return total


def _pieces(prompt: Rendered) -> Iterator[tuple[str, bool]]:
    """Yield (text, whether it is a control token) of a prompt; text between two control tokens is one piece."""
    pending = ""
    for text, control in prompt.parts:
        at = 0
        for match in control.finditer(text) if control else ():
            if plain := pending + text[at : match.start()]:
                yield plain, False
            yield match.group(), True
            pending, at = "", match.end()
        pending += text[at:]
    if pending:
        yield pending, False


def _ds4(efforts: Mapping[str, str]) -> Render:
    """Return a function that renders in ds4's form with these effort texts."""

    def render(messages: Sequence[Message], schemas: Sequence[str], mode: str) -> Rendered:
        made = chat.render(messages, schemas, mode if mode == "none" else "high", in_place=True, answer=True)
        prompt = Rendered()
        prompt.parts = [made.parts[0], TextPart(efforts.get(mode, ""), None), *made.parts[1:]]
        return prompt

    return render


def _official(name: str, efforts: Mapping[str, str]) -> Render:
    profile = replace(PROFILES[name], efforts=efforts)
    return lambda messages, schemas, mode: prompt_of(profile, messages, schemas, mode)


MAY = {"low": "", "high": "", "max": chat.MAX_PREFIX}
TEMPLATES = (
    Template("may", 0.3, _ds4(MAY)),
    Template("may", 0.15, _official("0731", MAY)),
    Template("0731", 0.3, _official("0731", PROFILES["0731"].efforts)),
    Template("0731", 0.03, _ds4(PROFILES["0731"].efforts)),
    Template("v4.1", 0.2, _official("v4.1", PROFILES["v4.1"].efforts)),
)
"""DeepSeek's templates: the texts of reasoning efforts differ by checkpoint; the form of turns and tools by program,
too (ds4's own, or that of DeepSeek's encoder)."""
EFFORTS = tuple(dict.fromkeys(text for made in (MAY, *(p.efforts for p in PROFILES.values())) for text in made.values()
                              if text))  # fmt: skip
BLOCK = re.compile("|".join([*map(re.escape, EFFORTS), r"\n+", "[a-z]", "."]), re.DOTALL)
"""Matches the pieces whose lengths add up: an effort text, line feeds, a letter; or any other character."""


@dataclass(frozen=True)
class OwnTemplate(Template):
    """The template of a model file that is not DeepSeek's; it needs the file's tokenizer."""

    tokenizer: Tokenizer | None = None

    def ids(self, shape: Shape, mode: str, tokenizer: Tokenizer) -> list[int]:
        """Return the token ids of a conversation in a thinking mode."""
        return chat.render(shape.messages, shape.tools, mode, answer=True).encode(tokenizer)

    def count(self, shape: Shape, mode: str, length: Length) -> int | None:
        """Return the number of prompt tokens of a conversation, None if the template refuses it."""
        with suppress(TextError):
            return len(self.ids(shape, mode, self.tokenizer)) if self.tokenizer else None
        return None


def with_system(templates: Sequence[Template], base: int, system: int) -> list[Template]:
    """Return templates of a server that adds a system text where there is none; none if the counts show no such text.

    base, system  the counts of ``BASE`` and ``SYSTEM``
    """
    extra = base - system + 1
    return [replace(each, prior=ADDS * each.prior, extra=extra) for each in templates] if extra > 1 else []


def lengths_of(tokenizer: Tokenizer) -> Length:
    """Return a function that gives the lengths of texts by a tokenizer."""

    @cache
    def length(text: str) -> int | None:
        with suppress(TextError):
            return len(tokenizer.encode(text))
        return None

    return length


class Measured:
    """Lengths of texts of a server whose tokenizer is unknown: one token a letter, as every byte-level vocabulary has,
    and what ``measure`` returns (once) for an effort text or line feeds."""

    def __init__(self, measure: Callable[[str], int | None]):
        self._measure = cache(measure)

    def __call__(self, text: str) -> int | None:
        """Return the length of a text; None if it has pieces that are not measured."""
        total = 0
        for piece in BLOCK.findall(text):
            known = len(piece) > 1 or piece == "\n"
            more = 1 if "a" <= piece <= "z" and not known else self._measure(piece) if known else None
            if more is None:
                return None
            total += more
        return total
