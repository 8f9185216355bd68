"""Metadata keys of a GGUF file that describe its vocabulary."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..weights.source import Metadata

GGML = "tokenizer.ggml."
MODEL_KEY, EMBEDDING = GGML + "model", "token_embd.weight"
ENDS_KEY = GGML + "eos_token_ids"
MOST_ENDS = 64
"""Maximum number of tokens that end an answer; further ones are ignored."""


def more_ends(metadata: Metadata) -> list[int]:
    """Return the tokens besides ``eos_token_id`` that end an answer: end of turn, end of message, and a list of
    others."""
    tokens: list[int] = []
    for key in (ENDS_KEY, GGML + "eot_token_id", GGML + "eom_token_id"):
        kind = metadata.type_of(key)
        if kind in ("u32[]", "i32[]", "u64[]", "i64[]"):
            tokens += metadata.first(key, MOST_ENDS)
        elif kind in ("u32", "i32", "u64", "i64"):
            tokens.append(metadata[key])
    return [int(token) for token in tokens]
