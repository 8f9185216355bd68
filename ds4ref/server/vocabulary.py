"""A tokenizer's vocabulary as llguidance needs it, and grammars compiled for it.

    words = vocabulary(tokenizer)           built once per tokenizer; one or two seconds for 129,280 tokens
    matcher = words.compile(grammars)       a matcher at the start of the grammar
    words.allowed(matcher)                  (size,) bool: the tokens that may come next

In a grammar, a control token matches only where it is named; all other tokens match as text, by their bytes.

llguidance is native code, and a grammar that makes it abort would end the server. So every grammar is first compiled in
a separate process with limits (``refusal``), and its first mask computed there; an abort at a later token of an answer
is not prevented.
"""

from __future__ import annotations

import json
import threading
import weakref
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import TextError
from ..text.limited import LimitedProcess

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

    from ..text.tokenizer import Tokenizer

MAX_BYTES = 1 << 20
"""Maximum size of a grammar in bytes."""
MAX_MESSAGE = 400

_LIMITS: dict[str, Any] = {"initial_lexer_fuel": 500_000, "max_lexer_states": 100_000, "verbose_errors": False}
"""llguidance options: half of its default compute budget, since any client may send a grammar; short errors."""

_SLICES = (
    r"[\x20\x0A\x0D\x09]+",
    r'[^"\\<\x{ff5c}\x00-\x1F\x7F]{1,10}', r'[^"\\<\x{ff5c}\x00-\x1F\x7F]{1,30}', r'[^"\\<\x{ff5c}\x00-\x1F\x7F]+',
    r'[^"\\\x00-\x1F\x7F]+', r"[^<\x{ff5c}]+",
)  # fmt: skip
"""Regular expressions of groups of tokens that llguidance can allow together, without testing each token.

Its defaults suit JSON strings only; with them a mask within a parameter's text, which ends at ``<``, takes ten times as
long.
"""

_trial = LimitedProcess("the grammar of the answer", {"do": "nothing"}, size=1)
_vocabularies: weakref.WeakKeyDictionary[Any, Vocabulary] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def vocabulary(tokenizer: Tokenizer) -> Vocabulary:
    """Return the vocabulary of ``tokenizer``, built at the first call and cached. Thread-safe."""
    with _lock:
        words = _vocabularies.get(tokenizer)
        if words is None:
            words = _vocabularies[tokenizer] = Vocabulary(tokenizer)
        return words


class Vocabulary:
    """The tokens of one tokenizer, and what llguidance needs to know of them.

    size      number of tokens, at most the width of the logits
    bytes     the bytes of each token
    control   ids of control tokens; ``protocol``: of these all but the DSML marker
    ends      ids of tokens that end an answer
    library   llguidance's tokenizer
    starting  cached function from bytes to the ids of text tokens that start with them
    """

    def __init__(self, tokenizer: Tokenizer):
        self.size = len(tokenizer)
        self.bytes = [tokenizer.token_bytes(i) for i in range(self.size)]
        self.dsml, self.think_close = tokenizer.dsml, tokenizer.think_close
        self.ends = sorted(tokenizer.ends)
        self.control = control_tokens(tokenizer, self.bytes)
        self.protocol = sorted(self.control - {self.dsml})
        self.library = _library(tokenizer, self.bytes, self.control)
        names = {i: self.bytes[i].decode("latin-1") for i in self.control or (0,)}
        self._tokens = {"size": self.size, "control": names, "limits": _LIMITS}
        self.starting = cache(self._starting)

    def compile(self, grammars: Mapping[str, str]) -> LLMatcher:
        """Compile Lark grammars, given by name; the first is the start grammar and may refer to others as ``@name``.

        Raises TextError with llguidance's reason if it rejects them. Takes milliseconds, for large grammars a second.
        """
        from llguidance import LLMatcher, LLParserLimits

        text = json.dumps({"grammars": [{"name": name, "lark_grammar": lark} for name, lark in grammars.items()]})
        if len(text) > MAX_BYTES:
            raise TextError(f"the grammar of the answer is larger than {MAX_BYTES} bytes")
        if error := refusal(text, self._tokens):
            raise TextError(error)
        matcher = LLMatcher(self.library, text, log_level=0, limits=LLParserLimits(**_LIMITS))
        if matcher.is_error():
            raise TextError(message(matcher.get_error()))
        return matcher

    def allowed(self, matcher: LLMatcher) -> np.ndarray:
        """Return a mask (``size``,) bool of the tokens that ``matcher`` accepts next.

        All False if the matcher failed; its ``get_error`` returns the reason.
        """
        bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        return np.unpackbits(bits, count=self.size, bitorder="little").astype(bool)

    def _starting(self, prefix: bytes) -> np.ndarray:
        """Return the ids of text tokens whose bytes start with ``prefix``."""
        return np.array(
            [i for i, data in enumerate(self.bytes) if data.startswith(prefix) and i not in self.control], int
        )


def refusal(grammar: str, tokens: Mapping[str, Any] | None = None) -> str:
    """Return why llguidance rejects ``grammar``, "" if it does not; it is tried in a separate process.

    With ``tokens`` (vocabulary size, control tokens, llguidance options) it is compiled; otherwise only its syntax and
    keywords are validated. Raise TextError if the process crashes or exceeds its limits.
    """
    asked = {"do": "grammar", "grammar": grammar} | ({} if tokens is None else {"tokens": tokens})
    return message(str(_trial.ask(asked, len(grammar))["refused"]))


def message(error: str) -> str:
    """Return llguidance's error as one line, shortened in the middle since the reason may be at either end."""
    text = " ".join(error.split())
    half = MAX_MESSAGE // 2
    return text if len(text) <= MAX_MESSAGE else f"{text[:half]} ... {text[-half:]}"


def control_tokens(tokenizer: Tokenizer, data: list[bytes]) -> frozenset[int]:
    """Return the ids of tokens that no text is encoded to; ``data``: the bytes of each token.

    These are the control tokens of the chat protocol, and others spelled ``<...>`` or with the protocol's full-width
    bars.
    """
    ids = {tokenizer.bos, tokenizer.eos, tokenizer.user, tokenizer.assistant, tokenizer.think_open,
           tokenizer.think_close, tokenizer.dsml, *tokenizer.ends}  # fmt: skip
    for i, raw in enumerate(data):
        bracketed = raw.startswith(b"<") and raw.endswith(b">") and len(raw) > 2
        if "\uff5c" in tokenizer.token_string(i) or (bracketed and tokenizer.encode(raw) != [i]):
            ids.add(i)
    return frozenset(i for i in ids if i >= 0)  # tokenizers of other model families lack some, and have -1 for them


def _library(tokenizer: Tokenizer, data: list[bytes], control: frozenset[int]) -> LLTokenizer:
    from llguidance import LLTokenizer, TokenizerWrapper

    ends = sorted(tokenizer.ends) or [min(control, default=0)]  # llguidance wants at least one

    class Tokens:
        eos_token_id = ends[0]
        bos_token_id = tokenizer.bos if tokenizer.bos >= 0 else None
        tokens = data
        special_token_ids = sorted(control)

        def __call__(self, text: str | bytes) -> list[int]:
            return tokenizer.encode(text)

    return LLTokenizer(TokenizerWrapper(Tokens()), eos_token=ends, slices=list(_SLICES))
