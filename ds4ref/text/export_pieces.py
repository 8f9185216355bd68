"""A tokenizer.json of SentencePiece's kind (Llama 2, Mistral) as scored pieces, ggml's "llama".

    names, scores, kinds = scored(table, tokens, rows, where)

The library merges by the rank of a pair, scored pieces by the score of what a pair gives. Both do the same where all
pairs of tokens that make a piece are merges, and the merges of a piece are adjacent: then the order of the pieces is
the order of their scores. That is checked, as is the treatment of spaces and of unknown characters; anything else is
refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from ..errors import TextError
from .pieces import BYTE, CONTROL, LOWEST, NORMAL, SPACE, UNKNOWN, UNUSED, USER

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def is_scored(table: Mapping[str, Any]) -> bool:
    """Return whether unknown characters become bytes, as in SentencePiece's vocabularies."""
    model = table.get("model")
    return isinstance(model, dict) and bool(model.get("byte_fallback"))


def space_first(table: Mapping[str, Any], where: str) -> bool:
    """Return whether a text gets a space in front; TextError if spaces are treated in another way than pieces do."""
    normalizer, before = table.get("normalizer"), table.get("pre_tokenizer")
    sequence = isinstance(normalizer, dict) and normalizer.get("type") == "Sequence"
    steps = normalizer.get("normalizers") if isinstance(normalizer, dict) and sequence else [normalizer]
    replaced = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    if before is None and steps == [{"type": "Prepend", "prepend": SPACE}, replaced]:
        return True
    if before is None and steps == [replaced]:
        return False
    never = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "never", "split": False}
    if normalizer is None and before == never:
        return False
    raise TextError(f"{where}: a GGUF cannot say how it treats spaces")


def scored(
    table: Mapping[str, Any], tokens: Sequence[str], rows: int, where: str
) -> tuple[list[str], list[float], list[int]]:
    """Return names, scores and types of ``rows`` tokens; TextError for a vocabulary that scores cannot express.

    tokens: strings by id, of which the last ids may have none
    """
    model = table["model"]
    if model.get("ignore_merges") or any(model.get(key) for key in ("continuing_subword_prefix", "end_of_word_suffix")):
        raise TextError(f"{where}: a GGUF of scored pieces cannot say how it merges")
    vocab: dict[str, int] = model["vocab"]
    if not all(byte in vocab for byte in BYTES):
        raise TextError(f"{where}: unknown characters become bytes, but not every byte is a token")
    added = {token["id"]: CONTROL if token.get("special") else USER for token in table.get("added_tokens") or []}
    unknown = vocab.get(model.get("unk_token") or "", -1)
    kinds, scores = [UNUSED] * rows, [LOWEST] * rows
    order = _order(model, vocab, where)
    for name, i in vocab.items():
        kinds[i], scores[i] = NORMAL, -float(order.get(name, len(order)))
    for i, kind in added.items():
        kinds[i], scores[i] = kind, LOWEST
    for byte in BYTES:
        kinds[vocab[byte]], scores[vocab[byte]] = BYTE, LOWEST
    if unknown >= 0:
        kinds[unknown], scores[unknown] = UNKNOWN, LOWEST
    _check_pairs(model, {name for name, i in vocab.items() if kinds[i] == NORMAL}, where)
    names = [*tokens, *(f"[unused {i}]" for i in range(len(tokens), rows))]
    return names, scores, kinds


def _pairs(model: Mapping[str, Any], where: str) -> list[tuple[str, str]]:
    pairs = []
    for merge in model.get("merges") or []:
        parts = merge.split(" ") if isinstance(merge, str) else merge
        if not (isinstance(parts, list) and len(parts) == 2 and all(isinstance(part, str) for part in parts)):
            raise TextError(f"{where}: a merge is not a pair of tokens")
        pairs.append((parts[0], parts[1]))
    return pairs


def _order(model: Mapping[str, Any], vocab: Mapping[str, int], where: str) -> dict[str, int]:
    """Return the place of every piece that merges give, in the order in which they are preferred."""
    made = [piece for piece, _ in groupby(left + right for left, right in _pairs(model, where))]
    order = {piece: place for place, piece in enumerate(made)}
    if len(order) < len(made) or not order.keys() <= vocab.keys():
        raise TextError(f"{where}: its merges are not in the order of scores")
    return order


def _check_pairs(model: Mapping[str, Any], usual: set[str], where: str) -> None:
    """Raise TextError unless all pairs of pieces that make a piece are merges."""
    known = set(_pairs(model, where))
    for piece in usual:
        for cut in range(1, len(piece)):
            pair = piece[:cut], piece[cut:]
            if pair[0] in usual and pair[1] in usual and pair not in known:
                raise TextError(f"{where}: {pair[0]!r} and {pair[1]!r} are not merged, as scored pieces would be")
