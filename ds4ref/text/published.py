"""Reads tokenizer.json, the vocabulary of a published model, for the byte-level BPE of ``tokenizer``.

``vocabulary`` returns tokens and merges as a GGUF file stores them. Vocabularies other than BPE are refused, because
two such lists cannot express them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import TextError

if TYPE_CHECKING:
    from ..weights.safetensors import Checkpoint

TOKENIZER = "tokenizer.json"
MAX_TOKENIZER_BYTES = 64 << 20
MAX_TOKENS = 1 << 20
MAX_VALUES = 3 << 20
"""Maximum number of JSON values in the file. A vocabulary of 256,000 tokens and twice as many merges, each a list, has
2.3 million."""


def definition(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the contents of tokenizer.json; raise ModelFileError if it is missing or malformed."""
    return checkpoint.json(TOKENIZER, MAX_TOKENIZER_BYTES, values=MAX_VALUES)


def vocabulary(checkpoint: Checkpoint) -> tuple[list[str], list[str]]:
    """Return the token strings by id, and the merges ("left right"), best first; unused ids get tokens that no text
    encodes to.

    Raise ModelFileError if the file is missing or not JSON, TextError if it is not a BPE vocabulary.
    """
    table, where = definition(checkpoint), checkpoint.folder / TOKENIZER
    model = table.get("model")
    if not isinstance(model, dict) or model.get("type", "BPE") != "BPE" or not isinstance(model.get("vocab"), dict):
        raise TextError(f"{where}: unsupported tokenizer model: not BPE")
    ids = dict(model["vocab"])
    added = table.get("added_tokens") or []
    if not isinstance(added, list) or not all(isinstance(t, dict) and isinstance(t.get("content"), str) for t in added):
        raise TextError(f"{where}: added_tokens is not a list of tokens")
    ids |= {token["content"]: token.get("id") for token in added}
    if not all(type(i) is int and 0 <= i < MAX_TOKENS for i in ids.values()) or not ids:
        raise TextError(f"{where}: token ids are not numbers from 0 to {MAX_TOKENS - 1}")
    tokens = [f"[unused {i}]" for i in range(max(ids.values()) + 1)]
    for token, i in ids.items():
        tokens[i] = token
    return tokens, [_merge(where, merge) for merge in model.get("merges") or []]


def _merge(where: Any, merge: Any) -> str:
    """Return a merge, which is "left right" or ["left", "right"], in the first form."""
    if isinstance(merge, str):
        return merge
    if isinstance(merge, list) and len(merge) == 2 and all(isinstance(part, str) for part in merge):
        return f"{merge[0]} {merge[1]}"
    raise TextError(f"{where}: a merge is not a pair of tokens")
