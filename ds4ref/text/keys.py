"""Metadata keys of a GGUF file that describe its vocabulary."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import TextError

if TYPE_CHECKING:
    from ..weights.source import Metadata

GGML = "tokenizer.ggml."
MODEL_KEY, EMBEDDING = GGML + "model", "token_embd.weight"
TEMPLATE_KEY = "tokenizer.chat_template"
ENDS_KEY = GGML + "eos_token_ids"
MOST_ENDS = 64
"""Maximum number of tokens that end an answer."""
NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = range(1, 7)
"""Token types of GGUF files."""
_ENDS = """</s> <eos> <end_of_turn> <turn|> <end_of_utterance> <EOT> [EOT] _<EOT> <|eot_id|> <|eom_id|> <|im_end|>
    <|end|> <|return|> <|call|> <|calls|> <|flush|> <|endoftext|> <|end_of_text|> <|tool_response>"""
_INFILLING = """<|fim_prefix|> <|fim_suffix|> <|fim_middle|> <|fim_pad|> <|fim_repo|> <|repo_name|> <|file_sep|>
    <PRE> <SUF> <MID> <PAD> <REPO>"""
CONTROL_BY_NAME = frozenset(f"{_ENDS} {_INFILLING}".split())
"""Tokens that llama.cpp takes for control tokens by their names, whatever their type: plain text never yields them."""
NONE = 0xFFFFFFFF
"""No token, where ids are unsigned, as llama.cpp writes it."""


def more_ends(metadata: Metadata) -> list[int]:
    """Return the tokens besides ``eos_token_id`` that end an answer: end of turn, end of message, and a list of
    others, without those that are -1 (none). Raise TextError for a value of another type, or too many."""
    tokens: list[int] = []
    for key in (ENDS_KEY, GGML + "eot_token_id", GGML + "eom_token_id"):
        kind = metadata.type_of(key)
        if kind in ("u32[]", "i32[]", "u64[]", "i64[]"):
            if metadata.count(key) > MOST_ENDS:
                raise TextError(f"{key} lists {metadata.count(key)} tokens, at most {MOST_ENDS} are allowed")
            tokens += metadata[key]
        elif kind in ("u32", "i32", "u64", "i64"):
            tokens.append(metadata[key])
        elif kind is not None:
            raise TextError(f"{key} has type {kind}, wanted u32")
    return [int(token) for token in tokens if token not in (-1, NONE)]
