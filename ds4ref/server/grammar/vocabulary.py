"""A tokenizer's tokens as the library wants them, and the grammars compiled for it.

    words = vocabulary(tokenizer)           made once for a tokenizer, a second or two for 129,280 tokens
    words.compile(text)                     a grammar ready to be followed (``follow``); the latest ones are kept

Control tokens match nothing but themselves; the bytes of all others are text, however they are cut into tokens.
"""

from __future__ import annotations

import re
import threading
import weakref
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from . import TooLarge, Unsupported

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

    from ...text.tokenizer import Tokenizer

T = TypeVar("T")

KEPT = 16
MOST_BYTES = 1 << 20
_LONGEST = 12
"""How many compiled grammars and searches are kept, and the length of a grammar's text."""

_LIMITS: dict[str, Any] = {
    "max_items_in_row": 5000,
    "initial_lexer_fuel": 500_000,
    "step_lexer_fuel": 100_000,
    "step_max_items": 50_000,
    "max_lexer_states": 100_000,
    "max_grammar_size": 250_000,
    "verbose_errors": False,
}
"""What the library may spend: half of its defaults or less, but for the optional members of one object. A state takes
half a kilobyte, and a string of a bounded length one for each of its characters."""

_SLICES = (
    r"[\x20\x0A\x0D\x09]+",
    r'[^"\\<\x{ff5c}\x00-\x1F\x7F]{1,10}', r'[^"\\<\x{ff5c}\x00-\x1F\x7F]{1,30}', r'[^"\\<\x{ff5c}\x00-\x1F\x7F]+',
    r'[^"\\\x00-\x1F\x7F]+', r"[^<\x{ff5c}]+",
)  # fmt: skip
"""Kinds of tokens of which a mask takes all at once where it can: those inside strings, of JSON and of parameters. The
library's own know JSON alone; a parameter of a bounded length would take ten times as long."""

_made: weakref.WeakKeyDictionary[Any, Vocabulary] = weakref.WeakKeyDictionary()
_making = threading.Lock()


def vocabulary(tokenizer: Tokenizer) -> Vocabulary:
    """The vocabulary of ``tokenizer``, made when it is first asked for. From any thread."""
    with _making:
        found = _made.get(tokenizer)
        if found is None:
            found = _made[tokenizer] = Vocabulary(tokenizer)
        return found


class Vocabulary:
    """Tokens by their bytes. ``size`` is the number of token strings; logits may be wider."""

    def __init__(self, tokenizer: Tokenizer):
        self.size = len(tokenizer)
        self.bytes = [tokenizer.token_bytes(i) for i in range(self.size)]
        self.eos, self.dsml, self.think_close = tokenizer.eos, tokenizer.dsml, tokenizer.think_close
        self.ends = sorted(tokenizer.ends)
        self.control = frozenset(_control(tokenizer, self.bytes))
        self._library = _library(tokenizer, self.bytes, self.control)
        self._kept: OrderedDict[str, Any] = OrderedDict()
        self._lock = threading.Lock()
        plain = sorted((data, i) for i, data in enumerate(self.bytes) if data and i not in self.control)
        self._sorted = [data for data, _ in plain]
        self._ids = np.array([i for _, i in plain], np.int64)
        self.number = self._that(rb"[0-9.eE+-]")
        self.exponent = self._that(rb"[0-9.]+[eE]|[eE]")
        self.spelled_exponent = self._that(rb"[^a-zA-Z\"]*[0-9.][eE]")
        self.opening = self._that(rb"[^\"]*[\[{]")
        self.opening_later = self._that(rb"[^\"]*\"[^\"]*[\[{]")
        self.overshooting = self._that(rb".*\">.", re.DOTALL)
        self.rank = self._ranks()
        self.later = self.rank + 100 * (np.arange(self.size) == self.dsml)
        """The same, with the marker last: in between it opens one more tag."""
        lengths = np.array([len(data) for data in self.bytes])[self._ids]
        self.single = self._ids[lengths == 1]
        self.single = self.single[self.rank[self.single].argsort(kind="stable")]
        """Tokens of one byte by their rank."""
        self.long = self._ids[(-lengths).argsort(kind="stable")]
        self.words = np.array([i for i in self.long if self.bytes[i].isalnum() and self.bytes[i].isascii()], np.int64)
        """Plain tokens, and those of letters and digits, the longest first."""
        whole = self.exactly(b"</")
        self.closer = (whole,) if whole >= 0 else (self.exactly(b"<"), self.exactly(b"/"))
        """The tokens of ``</`` that end a string's text, if the marker follows."""

    def _that(self, pattern: bytes, flags: int = 0) -> np.ndarray:
        """Ids of the tokens whose bytes begin with ``pattern``."""
        found = re.compile(pattern, flags)
        plain = (i for i in range(self.size) if i not in self.control)
        return np.array([i for i in plain if found.match(self.bytes[i])], np.int64)

    def starting(self, prefix: bytes) -> np.ndarray:
        """Ids of the plain tokens that start with ``prefix``."""
        low = bisect_left(self._sorted, prefix)
        high = bisect_left(self._sorted, prefix + b"\xff" * 8)
        return self._ids[low:high]

    def without_numbers(self, bits: np.ndarray) -> np.ndarray:
        """``bits`` less the tokens that begin like a number or go on with one."""
        rest = bits.copy()
        rest[self.number] = False
        return rest

    def spelled(self, text: str) -> list[int]:
        """Plain tokens of ``text``, the longest first."""
        data, made, at = text.encode("utf-8", "replace"), list[int](), 0
        while at < len(data):
            sizes = range(min(_LONGEST, len(data) - at), 1, -1)
            size = next((n for n in sizes if self.exactly(data[at : at + n]) >= 0), 1)
            made.append(self.exactly(data[at : at + size]))
            at += size
        return made

    def exactly(self, data: bytes) -> int:
        """The plain token with these bytes, -1 if there is none."""
        at = bisect_left(self._sorted, data)
        return int(self._ids[at]) if at < len(self._sorted) and self._sorted[at] == data else -1

    def _ranks(self) -> np.ndarray:
        """For the shortest way out: what closes first, then what is short and harmless, white space last."""
        rank = np.full(self.size, 60, np.int32)
        for i, data in enumerate(self.bytes):
            if i in self.control or not data.isascii():
                continue
            if data.isspace():
                rank[i] = 70
            elif data.isalnum():
                rank[i] = 20 if len(data) == 1 else 40
            else:
                rank[i] = 30 if len(data) == 1 else 50
        order = (b"</", b"}", b"]", b"0", b"1", b"null", b"false", b"true", b'"', b"[", b"{", b":", b",", b"<", b"/")
        for place, data in enumerate(order):
            if (token := self.exactly(data)) >= 0:
                rank[token] = place + 2
        rank[self.eos], rank[self.dsml] = 0, 1
        return rank

    def compile(self, grammar: str) -> LLMatcher:
        """A grammar in the library's JSON form, ready at its start; the caller follows a copy of it. Unsupported or
        TooLarge if the library refuses it. Not for the inference thread: this may take a good part of a second."""
        if len(grammar) > MOST_BYTES:
            raise TooLarge(f"a grammar of more than {MOST_BYTES} bytes")
        return self.kept(grammar, lambda: _compile(self._library, grammar))

    def kept(self, key: str, make: Callable[[], T]) -> T:
        """What ``make`` made for this key, now or before; the latest ones are kept. Two threads may both make it."""
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
                return found
        made = make()
        with self._lock:
            self._kept[key] = made
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return made


def _compile(library: LLTokenizer, grammar: str) -> LLMatcher:
    from llguidance import LLMatcher, LLParserLimits

    matcher = LLMatcher(library, grammar, log_level=0, limits=LLParserLimits(**_LIMITS))
    if matcher.is_error():
        why = matcher.get_error().partition("\n")[0][:300]
        if any(word in why for word in ("too large", "too big", "too deep", "fuel", "too many", "limit")):
            raise TooLarge(f"the grammar is too large: {why}")
        raise Unsupported("the schema or grammar", why=why)
    return matcher


def _control(tokenizer: Tokenizer, data: list[bytes]) -> list[int]:
    """The tokens that no text becomes: the protocol's, and what else the vocabulary has between brackets and bars."""
    found = [tokenizer.bos, tokenizer.eos, tokenizer.user, tokenizer.assistant, tokenizer.think_open,
             tokenizer.think_close, tokenizer.dsml, *tokenizer.ends]  # fmt: skip
    found = [i for i in found if i >= 0]  # other families have not all of them
    for i, raw in enumerate(data):
        bars = "\uff5c" in tokenizer.token_string(i)
        if bars or (raw.startswith(b"<") and raw.endswith(b">") and len(raw) > 2 and tokenizer.encode(raw) != [i]):
            found.append(i)
    return found


def _library(tokenizer: Tokenizer, data: list[bytes], control: frozenset[int]) -> LLTokenizer:
    from llguidance import LLTokenizer, TokenizerWrapper

    class Tokens:
        eos_token_id = tokenizer.eos if tokenizer.eos >= 0 else min(control, default=0)  # the library wants one
        bos_token_id = tokenizer.bos if tokenizer.bos >= 0 else None
        tokens = data
        special_token_ids = sorted(control)

        def __call__(self, text: str | bytes) -> list[int]:
            return tokenizer.encode(text)

    return LLTokenizer(TokenizerWrapper(Tokens()), slices=list(_SLICES))
