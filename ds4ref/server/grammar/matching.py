"""Whether a string matches a pattern, by the library that enforces it: in time that the string's length bounds."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer


def anchored(text: str) -> str:
    """An expression for whole strings, as a ``pattern`` that says so."""
    return f"^(?:{text})$"


def whole(pattern: str) -> str:
    """The expression in a pattern made by ``anchored``."""
    return pattern[1:-1]


def matches(pattern: str, text: str) -> bool:
    """Whether ``text`` matches a pattern made by ``anchored``; in time that its length bounds, unlike Python's."""
    matcher = _automaton(pattern).deep_copy()
    data = list(text.encode())
    return matcher.try_consume_tokens(data) == len(data) and matcher.is_accepting()


@lru_cache(64)
def _automaton(pattern: str) -> LLMatcher:
    from llguidance import LLMatcher

    return LLMatcher(_bytes(), LLMatcher.grammar_from_regex(whole(pattern)), log_level=0)


@lru_cache(1)
def _bytes() -> LLTokenizer:
    """A vocabulary of the 256 bytes."""
    from llguidance import LLTokenizer, TokenizerWrapper

    class Bytes:
        eos_token_id, bos_token_id = 256, None
        tokens = [*(bytes([byte]) for byte in range(256)), b"<end>"]
        special_token_ids = [256]

        def __call__(self, text: str | bytes) -> list[int]:
            return list(text.encode() if isinstance(text, str) else text)

    return LLTokenizer(TokenizerWrapper(Bytes()))
