"""Answers that have to have a form: JSON that fits a schema, a call of a tool whose arguments fit its own.

    steer = steering(turn, tokenizer)       in the thread that took the request; None where it asks for nothing
    Generation(..., steer=steer)            in the inference thread

What a turn may ask for:

  format              the visible answer is JSON that validates; a block of calls instead, where tools may be called
  choice "required"   a block that calls at least one tool, with arguments that validate
  choice "named"      a block with one call of that tool
  strict tools        if the model begins a block, what is in it validates; so does the text of custom tools that have a
                      grammar. Everything else is left alone, the arguments of other tools included

Reasoning is free; all of this begins behind it. The token limit of an answer is one more demand: when what is left of
it is just enough for the shortest way to a valid end, that way is taken, and reasoning ends in time for it. So an
answer is cut off by its limit only if no valid one was that short (``Limits``).

All that takes long or can fail because of the request is done in ``steering``: grammars are compiled, and an end is
searched for. The inference thread computes one mask a token.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import TextError
from ..text.dsml import escape_attribute
from ..text.protocol import CANONICAL
from ..text.schemas import Schema as Tool
from ..text.schemas import by_name
from .grammar import Lost, TooLarge, Unsupported
from .grammar.block import ESCAPES, Block, block
from .grammar.custom import compile_form
from .grammar.custom import examples as examples_of
from .grammar.follow import Follower, Patience
from .grammar.growth import growth
from .grammar.schema import read
from .grammar.vocabulary import Vocabulary, vocabulary

if TYPE_CHECKING:
    from ..generate import Generation
    from ..text.tokenizer import Tokenizer
    from .turn import Turn

__all__ = ["Limits", "Steer", "TooLarge", "Unsupported", "steering"]

MOST_CALLS = 16
SHORTEST = 2000
"""Calls of one block, and tokens that the shortest valid answer may have."""
_MANY, _IN_TEXT = 64, 2
_EXAMPLES, _TOGETHER = 64, 4
_CALLS = "start: block"
_EARLY = 8
"""By which part of a way it is taken before it has to be: the longer it is, the dearer is another search."""
_WAITING = 0.25
"""Processor seconds that the inference thread looks for the way to an end."""

PRETTY = {"whitespace_pattern": r"(?: |\n[ \t]{0,24})"}
"""JSON by itself: a space, or a line's end with some indentation, between any two parts of it."""


@dataclass(frozen=True)
class Limits:
    """How an answer keeps to its budget.

    close      find the way to a valid end before the tokens of the turn run out; without it the answer is cut
    answer     tokens behind the reasoning after which a demanded answer is brought to its end, which is then as good as
               any other (random weights never end a string); None: the turn's own limit alone
    reasoning  tokens of reasoning in front of a demanded answer after which it is ended; None: as many as fit
    """

    close: bool = True
    answer: int | None = None
    reasoning: int | None = None


def steering(turn: Turn, tokenizer: Tokenizer, limits: Limits = Limits()) -> Steer | None:
    """What keeps the answer of ``turn`` to what the turn demands; None if it demands nothing.

    Unsupported names a feature of a schema or grammar that is not enforced, TooLarge a limit, TextError what is wrong.
    To be called outside of the inference thread: it may take a good part of a second the first time.
    """
    tools = list(by_name(turn.tools).values()) if turn.choice.kind != "none" else []
    forced = turn.choice.kind in ("required", "named")
    if forced:
        tools = [tool for tool in tools if turn.choice.kind == "required" or tool.name == turn.choice.name]
        if not tools:
            raise TextError(f"tool_choice asks for a tool that is not there: {turn.choice.name or 'there are none'}")
    bound = any(tool.strict or tool.grammar is not None for tool in tools)
    if not (forced or turn.format or bound):
        return None
    words = vocabulary(tokenizer)
    single = turn.choice.kind == "named" or not turn.choice.parallel
    made = block(tools, words.dsml, 1 if single else MOST_CALLS, lenient=not forced) if tools else Block("")
    if forced:
        return _steer(words, _CALLS, made, limits, calls=0 if single else _dearest(words, turn, tools))
    if not turn.format:
        return Steer(words, _follower(words, f"start: begun\n{made.text}", made), limits)
    schema = read(turn.format)
    if schema.root == {}:
        schema = read('{"type":"object"}')
    document = schema.document(schema.root) | {"x-guidance": PRETTY | ESCAPES}
    start = f"start: json{' | block' if tools else ''}\njson: %json {json.dumps(document, ensure_ascii=False)}"
    made.examples += schema.examples
    return _steer(words, start, made, limits, growth(schema, schema.root))


def _follower(words: Vocabulary, text: str, made: Block) -> Follower:
    from llguidance import LLMatcher

    forms = {escape_attribute(name).encode(): compile_form(words, *form) for name, form in made.forms.items()}
    more = [text for form in made.forms.values() for text in examples_of(*form)]
    examples = [*dict.fromkeys([*made.examples, *more])][:_EXAMPLES]
    if len(examples) <= _TOGETHER:
        examples += [one + two for one in examples for two in examples if one != two]
    return Follower(words, words.compile(LLMatcher.grammar_from_lark(text)), forms=forms, examples=examples)


def _steer(words: Vocabulary, start: str, made: Block, limits: Limits, step: int = 1, calls: int = 0) -> Steer:
    text = f"{start}\n{made.text}"
    follower = _follower(words, text, made)
    if start == _CALLS:
        follower.begin_markup()
    try:
        shortest, over = words.kept(f"the way through {text} {made.forms}", lambda: _way(follower))
    except Lost as error:
        if error.why and "NoExtension" not in error.why:
            raise TooLarge(f"the schema or grammar is too large to be followed: {error.why}") from None
        shortest, over = [], False
    if over:
        raise TooLarge("the schema or grammar is too hard: no answer that fits was found in the time there is for it")
    if not shortest:
        raise Unsupported("a schema or grammar that no short answer fits", why=f"none of {SHORTEST} tokens was found")
    steps = {"json": max(step, made.step), "markup": max(made.optional, calls), "text": _IN_TEXT}
    return Steer(words, follower, limits, len(shortest) + 1, steps)


def _way(follower: Follower) -> tuple[list[int], bool]:
    """The shortest way that a short search finds, and whether it was broken off."""
    patience = Patience()
    found = follower.shortest(SHORTEST, patience=patience)
    return found or [], found is None and patience.over


def _dearest(words: Vocabulary, turn: Turn, tools: Sequence[Tool]) -> int:
    """The most tokens that a call of one of ``tools`` needs; asked only where they are scarce."""
    if turn.max_tokens is None or turn.max_tokens > SHORTEST or len(tools) > _MANY:
        return 0
    each = [_steer(words, _CALLS, block([tool], words.dsml, 1), Limits()) for tool in tools]
    return max(steer.shortest for steer in each)


class Steer:
    """The hook of one generation (``generate.Steer``). Made by ``steering``.

    shortest  tokens of the shortest valid answer, its end included; 0: only what is in a block is kept to a form
    steps     by how many tokens, about, one token can make the rest longer, by place (``Follower.place``)
    """

    def __init__(
        self,
        words: Vocabulary,
        follower: Follower,
        limits: Limits,
        shortest: int = 0,
        steps: Mapping[str, int] = MappingProxyType({}),
    ):
        self._words, self._follower, self.limits = words, follower, limits
        self.shortest, self._steps = shortest, steps
        self._begun = shortest > 0
        self._from: int | None = None  # the first token behind the reasoning
        self._seen = 0
        self._way: list[int] = []  # to the end, which is being taken
        self._known: list[int] = []  # one that could be
        self._close = limits.close and self._begun
        self._rest = shortest  # at most so many tokens to the end, as far as is known
        self._again = 1 << 40  # no search before there are only so many left
        self._text = b""
        self.searched = 0
        """How often a way to the end was looked for."""
        self.closing = False
        """Whether the answer was brought to its end because its tokens ran out."""
        self.cut = False
        """Whether those were the turn's, and not ``Limits.answer``: whoever asked has to know."""

    def __call__(self, generation: Generation, logits: np.ndarray) -> Any:
        """An id that is forced, logits (V,) of what is allowed, or None."""
        if generation.thinking:
            return self._reasoning(generation, logits)
        if self._from is None:
            self._from = self._seen = len(generation.tokens)
        for token in generation.tokens[self._seen :]:
            self._take(token)
        self._seen = len(generation.tokens)
        if not self._begun:
            return None
        if self._close and (forced := self._on_the_way(generation)) is not None:
            return forced
        allowed = self._follower.allowed()
        eos = self._words.eos
        if (self._follower.complete and not self.shortest) or (eos >= 0 and allowed[eos]):
            allowed[self._words.ends] = True  # the library knows one end, a vocabulary may have several
        count = int(np.count_nonzero(allowed))
        if count == 1:
            return int(allowed.argmax())
        masked = np.full(len(logits), -np.inf, np.float32)
        np.copyto(masked[: len(allowed)], logits[: len(allowed)], where=allowed)
        return masked

    # --- inside

    def _reasoning(self, generation: Generation, logits: np.ndarray) -> int | np.ndarray | None:
        """Free, until there is only room left for a short answer; its end is never the answer's."""
        if not self.shortest or self._from is not None:
            return None
        close, ends = int(self._words.think_close), self._words.ends
        made, left = len(generation.tokens), generation.limit - len(generation.tokens)
        if self.limits.reasoning is not None and made >= self.limits.reasoning:
            return close
        needed = self.shortest + self._step + 2
        reserve = max(needed + 1, min(4 * needed, generation.limit // 2))
        if self._close and needed < left <= reserve:
            return close
        thinking = np.array(logits, np.float32)
        thinking[close], thinking[ends] = max(logits[close], logits[ends].max(initial=-np.inf)), -np.inf
        return thinking

    def _take(self, token: int) -> None:
        """Follow a token that was taken; outside of a demanded answer, watch for the beginning of a call."""
        words = self._words
        if self._begun:
            self._follower.consume(token)
            if self._known and self._known[0] == token:
                self._known, self._rest = self._known[1:], self._rest - 1
            else:
                self._known, self._rest = [], self._rest + self._step
        elif token == words.dsml and _OPENED.search(self._text):
            self._begun = True
            self._follower.begin_markup()
        else:
            self._text = (self._text + words.bytes[token] if token < words.size else b"")[-256:]

    @property
    def _step(self) -> int:
        return self._steps.get(self._follower.place, 0)

    def _left(self, generation: Generation) -> int:
        left = generation.limit - len(generation.tokens)
        if self.limits.answer is not None and self._from is not None:
            left = min(left, self.limits.answer - (len(generation.tokens) - self._from))
        return left

    def _on_the_way(self, generation: Generation) -> int | None:
        """The next token of the shortest way to the end, if it is time to take it."""
        if not self._way:
            left = self._left(generation)
            if left > min(self._rest + self._step, self._again):
                return None
            self.searched += 1
            way = self._follower.shortest(max(2 * left, 64), generation.cancel, Patience(_WAITING))
            if way is None:
                self._again = left // 2  # searches are dear
                return None
            self._known, self._rest = way, len(way) + 1
            if left > self._rest + self._step + len(way) // _EARLY or not way:
                return None
            self._way, self.closing = list(way), True
            self.cut = left == generation.limit - len(generation.tokens)
        return self._way.pop(0)


_OPENED = re.compile(rb"%s\s*<\Z" % re.escape(CANONICAL.block_open.encode()))
"""In front of the marker that begins the first call of a block."""
