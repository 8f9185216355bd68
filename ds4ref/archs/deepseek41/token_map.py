"""Engram's token map: which ids of the vocabulary count as the same token when n-grams are hashed.

Tokens whose texts differ only in case, accents, compatibility forms or surrounding blanks share a number. Numbers are
given in the order of first appearance.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from ...errors import ModelFileError
from ...text.byte_level import ALPHABET, to_bytes

BLANKS = "[ \\t\\r\\n]+"
_KEPT = "\ue000"
"""Stands for a lone blank while blanks at both ends are removed."""
_LETTERS = frozenset(ALPHABET)


def token_map(tokens: Sequence[str], count: int, path: str | os.PathLike[str]) -> list[int]:
    """Return the number of each token of a byte-level vocabulary; ``tokens``: their strings by id.

    Raise ModelFileError, about the tokenizer at ``path``, unless there are ``count`` numbers: multipliers depend on it.
    """
    from tokenizers import Regex, normalizers

    normalizer = normalizers.Sequence(
        [
            *(normalizers.NFKC(), normalizers.NFD(), normalizers.StripAccents(), normalizers.Lowercase()),
            *(normalizers.Replace(Regex(BLANKS), " "), normalizers.Replace(Regex("^ $"), _KEPT), normalizers.Strip()),
            normalizers.Replace(_KEPT, " "),
        ]
    )

    def key(number: int, token: str) -> str:
        text = token
        if _LETTERS.issuperset(token):
            text = to_bytes(token).decode("utf-8", "replace")
        elif token == f"[unused {number}]":  # an id without a token has no text (``text.published``)
            text = ""
        return token if "\ufffd" in text else normalizer.normalize_str(text) or text

    numbers: dict[str, int] = {}
    mapped = [numbers.setdefault(key(number, token), len(numbers)) for number, token in enumerate(tokens)]
    if len(numbers) != count:
        reason = f"makes {len(numbers)} different tokens for Engram, engram_compressed_vocab_size is {count}"
        raise ModelFileError(path, reason)
    return mapped
