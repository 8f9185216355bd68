"""The tokens a sweep walks: a file, a file as one chat turn, or prose of our own (docs/bench.md)."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ds4ref.errors import DataError

if TYPE_CHECKING:
    from ds4ref.text.tokenizer import Tokenizer

PROSE_SEED = 20260521


def prose_tokens(tokenizer: Tokenizer, needed: int) -> list[int]:
    """At least ``needed`` tokens of generated prose; longer requests begin with the shorter ones."""
    from ds4ref.nano.prose import prose

    characters = 6 * needed + 100
    while True:
        tokens = tokenizer.encode(prose(characters, PROSE_SEED))
        if len(tokens) > needed:  # the last token of a shorter text might merge with what follows
            return tokens[:needed]
        characters *= 2


def chat_tokens(tokenizer: Tokenizer, text: str, system: str) -> list[int]:
    """``text`` as one user turn without thinking, up to where the answer begins."""
    from ds4ref.text.chat import encode_chat_prompt

    return encode_chat_prompt(tokenizer, system, text, "none")


def check_length(tokens: Sequence[int], needed: int) -> None:
    """DataError unless there are ``needed`` tokens."""
    if len(tokens) < needed:
        raise DataError(f"prompt has {len(tokens)} tokens, need at least --ctx-max={needed}")


def digest(tokens: Sequence[int]) -> str:
    """SHA-256 of token ids as little-endian 32-bit numbers: the same for the same work."""
    ids = array("I", tokens)
    return hashlib.sha256(ids.tobytes()).hexdigest()
