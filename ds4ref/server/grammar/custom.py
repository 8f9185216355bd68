"""Grammars that clients bring along for the text of a custom tool: {"syntax": "lark" or "regex", "definition": ...}.

Such a text stands inside markup, as a parameter's value. A grammar of its own follows it (``Form``), because a client's
last terminal may swallow the closing tag; the tag is let through where the grammar could end.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from ...errors import TextError
from . import TooLarge, Unsupported
from .patterns import search

if TYPE_CHECKING:
    from llguidance import LLMatcher

    from .vocabulary import Vocabulary

MOST_BYTES = 32 * 1024
MOST_REPEATS = 1000
MOST_ALTERNATIVES = 1000
MOST_DEPTH = 100
"""Limits of a definition: its bytes, the counts of its repetitions, its alternatives and its parentheses."""

SYNTAXES = ("lark", "regex")
MOST_EXAMPLES = 16

_REPEATS = re.compile(r"\{\s*+(\d*+)\s*+,?\s*+(\d*+)\s*+\}|~\s*+(\d++)(?:\s*+\.\.\s*+(\d++))?")
_TERMINAL = re.compile(r"/((?:[^/\\\n]|\\.)+)/")
_DIRECTIVE = re.compile(r"%\s*([a-z_]+)")
_ALLOWED = ("import", "ignore")


def compile_form(words: Vocabulary, syntax: str, definition: str) -> LLMatcher:
    """A client's grammar, compiled. TextError for an unknown syntax or a grammar with a mistake, Unsupported and
    TooLarge for one that is not followed here."""
    from llguidance import LLMatcher

    if syntax not in SYNTAXES:
        raise TextError(f"unknown grammar syntax {syntax!r}: choose from {', '.join(SYNTAXES)}")
    _check(syntax, definition)
    make = LLMatcher.grammar_from_lark if syntax == "lark" else LLMatcher.grammar_from_regex
    return words.compile(make(definition))


def examples(syntax: str, definition: str) -> list[str]:
    """Texts that the grammar, or a terminal of it, stands for: what they have in them may be the way to its end."""
    found = [definition] if syntax == "regex" else _TERMINAL.findall(definition)
    made = []
    for expression in found[:MOST_EXAMPLES]:
        try:
            made.append(search(f"^(?:{expression})$").example)
        except TextError:
            continue  # the library's dialect is larger than that of schemas
    return [text for text in made if text]


def _check(syntax: str, definition: str) -> None:
    if len(definition.encode("utf-8", "replace")) > MOST_BYTES:
        raise TooLarge(f"a grammar definition of more than {MOST_BYTES} bytes")
    for counts in _REPEATS.findall(definition):
        if any(len(count) > 4 or int(count) > MOST_REPEATS for count in counts if count):
            raise TooLarge(f"a repetition of more than {MOST_REPEATS} in a grammar")
    if definition.count("|") > MOST_ALTERNATIVES:
        raise TooLarge(f"a grammar of more than {MOST_ALTERNATIVES} alternatives")
    depth = deepest = 0
    for char in definition:
        depth += (char == "(") - (char == ")")
        deepest = max(deepest, depth)
    if deepest > MOST_DEPTH:
        raise TooLarge(f"a grammar whose parentheses nest more than {MOST_DEPTH} deep")
    if syntax == "lark":
        for name in _DIRECTIVE.findall(definition):
            if name not in _ALLOWED:
                raise Unsupported(f"%{name} in a grammar")


class Form:
    """One text on its way through a client's grammar, and the beginning of the tag that ends it.

    What looks like the tag's ``</`` may be text as well: both are followed until the marker decides.
    """

    def __init__(self, words: Vocabulary, matcher: LLMatcher):
        self._words, self._matcher = words, matcher
        self._alive, self._closing = True, 0
        self._end, self._less, self._slash = words.exactly(b"</"), words.exactly(b"<"), words.exactly(b"/")

    def copy(self) -> Form:
        """The same, to go on with apart from this one."""
        other = Form(self._words, self._matcher.deep_copy())
        other._alive, other._closing = self._alive, self._closing
        return other

    def takes(self, tokens: list[int]) -> bool:
        """Whether the text may go on with ``tokens`` and end there."""
        ahead = self._matcher.deep_copy()
        return self._alive and ahead.try_consume_tokens(tokens) == len(tokens) and ahead.is_accepting()

    @property
    def why(self) -> str:
        """Why nothing more is allowed: what the library says, "" if it is the grammar's end."""
        return str(self._matcher.get_error())

    def allowed(self) -> np.ndarray:
        """Which tokens may come, (vocabulary,) bool: more of the text, or more of the tag."""
        bits = np.zeros(self._words.size, bool)
        if self._alive:
            bits |= unpack(self._matcher.compute_bitmask(), self._words.size)
            bits[[self._words.eos, self._words.dsml]] = False
            if self._matcher.is_accepting():
                bits[[token for token in (self._end, self._less) if token >= 0]] = True
        if self._closing:
            bits[self._slash if self._closing == 1 else self._words.dsml] = True
        return bits

    def consume(self, token: int) -> None:
        """``token``, one of those that are allowed and not the marker, which ends this."""
        at_end = self._alive and self._matcher.is_accepting()
        closing = 0
        if token == self._end and at_end or (self._closing == 1 and token == self._slash):
            closing = 2
        elif token == self._less and at_end:
            closing = 1
        self._alive = self._alive and self._matcher.validate_tokens([token]) == 1 and self._matcher.consume_token(token)
        self._closing = closing


def unpack(bits: bytes, size: int) -> np.ndarray:
    """A mask of the library as (size,) bool."""
    return np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little")[:size].astype(bool)
