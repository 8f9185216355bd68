"""Constrained answers: JSON that fits a schema, demanded tool calls, arguments of strict tools.

    guide = guide_of(turn, tokenizer)       in the thread that receives the request; None if nothing is constrained
    Generation(..., guide=guide)            in the inference thread: computes a mask of allowed tokens before each token

A turn may demand:

  format              the visible answer is JSON that validates against the schema, or a block of tool calls if allowed
  choice "required"   a block of 1 to 16 tool calls whose arguments validate against the tools' schemas
  choice "named"      a block with one call of the named tool
  strict tools        if the model begins a block of calls, the arguments of these tools validate, and the text of
                      custom tools fits their grammar; everything else is free

Reasoning is not constrained; the constraint begins after it. llguidance does the work: it compiles the grammar, rejects
unsupported parts, and computes the masks. An answer cut off by its token limit is incomplete, and reported as cut off.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..errors import Ds4Error, TextError
from ..text.protocol import CANONICAL
from ..text.schemas import by_name
from .grammar import PRETTY, after_marker, bounded, call_grammar, check_schema, json_rule, parsed
from .vocabulary import Vocabulary, vocabulary

if TYPE_CHECKING:
    from llguidance import LLMatcher

    from ..generate import Generation
    from ..text.official import Profile
    from ..text.tokenizer import Tokenizer
    from .turn import Turn

MAX_CALLS = 16
"""Maximum number of calls in one tool-call block."""


class GrammarError(Ds4Error):
    """Raised if llguidance (the library that computes the masks) fails within an answer, or no token fits."""


def guide_of(turn: Turn, tokenizer: Tokenizer, max_reasoning: int | None = None) -> Guide | None:
    """Compile the constraint that ``turn`` puts on its answer; None if there is none.

    max_reasoning: maximum number of reasoning tokens before a constrained answer, None for no limit. Raises TextError,
    naming the tool and the part of its schema or grammar that is not supported.
    """
    choice = turn.choice
    tools = [] if choice.kind == "none" else list(by_name(turn.tools).values())
    forced = choice.kind in ("required", "named")
    if forced:
        tools = [tool for tool in tools if choice.kind == "required" or tool.name == choice.name]
        if not tools:
            raise TextError(f"tool_choice asks for a tool that is not there: {choice.name or 'there are none'}")
    if tokenizer.dsml < 0:  # without a DSML token, the model writes calls as plain text
        if forced:
            raise TextError(
                "tool_choice cannot demand a call: this model has no tokens for tool calls; use auto or none"
            )
        tools = []
    if not (forced or turn.format or any(tool.strict or tool.grammar is not None for tool in tools)):
        return None
    words = vocabulary(tokenizer)
    most = 1 if choice.kind == "named" or not choice.parallel else MAX_CALLS
    profile = turn.profile
    calls = call_grammar(tools, words.dsml, most, lenient=not forced, profile=profile)
    if forced:
        rules = ["start: block"]
    elif turn.format:
        rules = [f"start: json{' | block' if tools else ''}", f"json: {_answer(turn.format)}"]
    else:
        rules = ["start: begun"]
    matcher = words.compile({"answer": "\n".join([*rules, *calls.rules]), **calls.custom})
    return Guide(words, matcher, forced or bool(turn.format), max_reasoning, profile)


def _answer(text: str) -> str:
    """Return the Lark expression of a JSON answer that fits the schema ``text`` (JSON); "{}" stands for any object."""
    schema = bounded("the schema of the answer", parsed(text))
    if isinstance(schema, dict):
        check_schema("the schema of the answer", schema, PRETTY)
    return json_rule({"type": "object"} if schema == {} else schema, PRETTY)


class Guide:
    """The hook that constrains the tokens of one answer (see ``generate.Guide``); built by ``guide_of``.

    words          the tokenizer's vocabulary
    matcher        llguidance's state in the grammar
    demanded       True if the whole answer must fit the grammar, False if only a tool-call block must, once it begins
    max_reasoning  number of reasoning tokens after which a demanded answer begins, None for no limit
    profile        DeepSeek's prompt format, which decides the tags of tool calls; None for that of May
    """

    def __init__(
        self, words: Vocabulary, matcher: LLMatcher, demanded: bool, max_reasoning: int | None, profile: Profile | None
    ):
        self._words, self._matcher, self._profile = words, matcher, profile
        tags = CANONICAL if profile is None else profile.tags
        self._block, self._parameter = (after_marker(tag).encode() for tag in (tags.block_open, tags.param_open))
        self._close = tags.param_close.encode()
        self._demanded, self._max_reasoning = demanded, max_reasoning
        self._active = demanded
        self._seen: int | None = None  # number of generated tokens that were processed; None during the reasoning
        self._text = bytearray()  # the text since the last DSML marker
        self._tag = False  # whether the last DSML marker came after "<"

    def fresh(self) -> Guide:
        """Return a copy of the constraint for another answer; call it before this one has constrained a token."""
        return Guide(self._words, self._matcher.deep_copy(), self._demanded, self._max_reasoning, self._profile)

    def __call__(self, generation: Generation, logits: np.ndarray) -> int | np.ndarray | None:
        """Constrain the next token, given its ``logits`` (V,), V the vocabulary's size.

        Returns the token if only one fits, else logits (V,) with -inf for tokens that do not fit; None if any token
        may come.
        """
        if generation.thinking:
            return self._reasoning(generation, logits) if self._demanded and self._seen is None else None
        if self._seen is None:
            self._seen = len(generation.tokens)
        for token in generation.tokens[self._seen :]:
            self._take(token)
        self._seen = len(generation.tokens)
        if not self._active:
            return None
        ids = np.flatnonzero(self._allowed())
        if not ids.size:
            raise GrammarError(
                f"no token fits the grammar of the answer: {self._matcher.get_error() or 'it has no end'}"
            )
        if ids.size == 1:
            return int(ids[0])
        masked = np.full(len(logits), -np.inf, np.float32)
        masked[ids] = logits[ids]
        return masked

    def _reasoning(self, generation: Generation, logits: np.ndarray) -> int | np.ndarray:
        """Constrain a token of the reasoning before a demanded answer: where the model would end the answer, it ends
        the reasoning instead, and at ``max_reasoning`` tokens it must."""
        close, ends = self._words.think_close, self._words.ends
        if self._max_reasoning is not None and len(generation.tokens) >= self._max_reasoning:
            return close
        masked = np.array(logits, np.float32)
        masked[close], masked[ends] = max(logits[close], logits[ends].max(initial=-np.inf)), -np.inf
        return masked

    def _take(self, token: int) -> None:
        """Process a generated token: advance in the grammar, or if no answer is demanded, begin the grammar once the
        tokens open a block of tool calls."""
        words = self._words
        if self._active and not self._matcher.consume_token(token):
            raise GrammarError(f"the answer left its grammar: {self._matcher.get_error()}")
        if token == words.dsml:
            opened, rest = self._text.startswith(self._block), self._text[len(self._block) :]
            self._active |= self._tag and opened and bytes(rest).strip() == b"<"
            self._tag = self._text.endswith(b"<")
            self._text.clear()
        else:
            self._text += words.bytes[token] if token < words.size else b""

    def _allowed(self) -> np.ndarray:
        """Return which tokens may come next, (size,) bool.

        These are the ones that fit the grammar, without those that would spell out a parameter's closing tag as text.
        """
        bits = self._words.allowed(self._matcher)
        if self._text.startswith(self._parameter + b" "):
            bits[self._words.protocol] = False  # control tokens, which a client's grammar could ask for
            if not self._text.endswith(b"</"):
                bits[self._words.dsml] = False
            for size in range(1, len(self._close)):
                if self._text.endswith(self._close[:size]):
                    bits[self._words.starting(self._close[size:])] = False
        return bits
