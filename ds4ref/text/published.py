"""tokenizer.json: the vocabulary of a model as it was published, for the byte-level BPE of ``tokenizer``.

``vocabulary`` gives tokens and merges as a GGUF has them. What cannot be expressed in these two lists is refused: other
models than BPE, and unknown-token or byte-fallback rules, which byte-level vocabularies do not need.
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
"""A vocabulary of 256,000 tokens and twice as many merges, each a list, has 2.3 million."""


def definition(checkpoint: Checkpoint) -> dict[str, Any]:
    """Read tokenizer.json. Raises ModelFileError."""
    return checkpoint.json(TOKENIZER, MAX_TOKENIZER_BYTES, values=MAX_VALUES)


def vocabulary(checkpoint: Checkpoint) -> tuple[list[str], list[str]]:
    """Return tokens by id and merges by rank ("left right"); unused ids get tokens that no text encodes to.

    ModelFileError if there is no such file or it is no JSON, TextError if it is no vocabulary of this kind.
    """
    table, where = definition(checkpoint), checkpoint.folder / TOKENIZER
    model = table.get("model")
    if not isinstance(model, dict) or model.get("type", "BPE") != "BPE" or not isinstance(model.get("vocab"), dict):
        raise TextError(f"{where}: its model is not byte-pair encoding")
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
    """Normalise a merge, "left right" or ["left", "right"], to the first form."""
    if isinstance(merge, str):
        return merge
    if isinstance(merge, list) and len(merge) == 2 and all(isinstance(part, str) for part in merge):
        return f"{merge[0]} {merge[1]}"
    raise TextError(f"{where}: a merge is not a pair of tokens")
