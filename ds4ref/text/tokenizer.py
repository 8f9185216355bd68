"""DeepSeek's tokenizer: byte-level BPE (docs/explanation/text.md 1, 2), with the merge engine of `tokenizers`.

``encode`` treats its input as plain text: nothing in it yields a control token. ``encode_rendered`` takes a rendered
chat, in which the seven control strings (``protocol.SPECIALS``) become control tokens. Neither adds BOS or EOS.

Any input has one defined meaning as bytes, and ``decode(encode(x))`` returns these:
    str     its UTF-8 bytes. U+DC80..U+DCFF stand for the raw bytes 0x80..0xFF, as in Python's own command line
            arguments and file names; any other lone surrogate becomes U+FFFD.
    bytes   unchanged, valid UTF-8 or not.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import TextError
from . import protocol
from .byte_level import ALPHABET, to_bytes, to_chars
from .splits import split_ds4, split_unicode
from .stream import StreamDecoder

if TYPE_CHECKING:
    from ..weights.source import TensorSource

__all__ = ["SPLITS", "StreamDecoder", "Tokenizer"]

SPLITS = ("unicode", "ds4")
TOKENS_KEY, MERGES_KEY = "tokenizer.ggml.tokens", "tokenizer.ggml.merges"

_SPECIAL = re.compile("|".join(map(re.escape, protocol.SPECIALS)))
_LONGEST = max(map(len, protocol.SPECIALS))
_FOREIGN_SURROGATE = re.compile("[\ud800-\udc7f\udd00-\udfff]")
_CACHE_PIECES, _CACHE_LENGTH = 1 << 16, 48
_STRIDE = 1 << 20
"""Number of characters that are searched for control strings at a time: meanwhile no other thread runs."""


def _specials(text: str) -> Iterator[re.Match[str]]:
    """Yield the matches of control strings in ``text``."""
    at = 0
    while at < len(text):
        end = at + _STRIDE
        match = _SPECIAL.search(text, at, end + _LONGEST)
        if match is None or match.start() >= end:  # left to the next stride, where it is certainly complete
            at = end
        else:
            yield match
            at = match.end()


class Tokenizer:
    """Converts text to token ids and back.

    tokens   ``tokens[id]`` is the string of a token; of duplicates the later one counts, as in ds4
    merges   ``merges[rank]`` is "left right", best first
    split    pre-tokenizer: "unicode" or "ds4" (see splits.py)
    chats    whether the model has a chat format; tokenizers of other models (``pieces``) may have none
    profile  the model's chat format, one of ``official.PROFILES``; None: that of May 2026

    Ids of the control tokens: ``bos``, ``eos``, ``user``, ``assistant``, ``think_open``, ``think_close``, ``dsml``.

    Raise TextError for an unusable vocabulary: a control string or one of the 256 byte characters is not a token, or a
    merge is malformed, names an unknown token or makes a control token.
    """

    chats = adds_bos = True
    template = None
    profile: Any = None

    def __init__(self, tokens: Sequence[str], merges: Sequence[str], split: str = "unicode"):
        if split not in SPLITS:
            raise TextError(f"unknown split {split!r}: choose from {', '.join(SPLITS)}")
        self.split = split
        self._tokens = list(tokens)
        self._ids = {token: i for i, token in enumerate(self._tokens)}
        missing = [name for name in protocol.SPECIALS if name not in self._ids]
        if missing:
            raise TextError(f"the vocabulary lacks the control tokens {', '.join(missing)}")
        lost = [byte for byte, char in enumerate(ALPHABET) if char not in self._ids]
        if lost:
            raise TextError(f"the vocabulary has no token for {len(lost)} of the 256 bytes (first: 0x{lost[0]:02x})")
        self._special_ids = {
            name: self._ids[name] for name in (*protocol.SPECIALS, *protocol.LATER) if name in self._ids
        }
        self.bos, self.eos, self.user, self.assistant, self.think_open, self.think_close, self.dsml = (
            self._special_ids[name] for name in protocol.SPECIALS
        )
        self._bpe = _byte_pair_model(self._ids, merges)
        self._bytes: list[bytes | None] = [None] * len(self._tokens)
        self._pieces: dict[str | bytes, list[int]] = {}

    @classmethod
    def from_source(cls, source: TensorSource, split: str = "unicode") -> Tokenizer:
        """Open the tokenizer of a model file, reading only its token and merge arrays (docs/explanation/text.md 1)."""
        return cls(_strings(source, TOKENS_KEY), _strings(source, MERGES_KEY), split)

    @property
    def renders(self) -> bool:
        """Return whether prompts have another format than that of May 2026: the model's own template, or a later
        profile."""
        return self.template is not None or self.profile is not None

    @property
    def ends(self) -> frozenset[int]:
        """Return the ids of all tokens that end an answer."""
        return frozenset((self.eos,))

    def __len__(self) -> int:
        """Return the number of token strings; the model's logits may be wider."""
        return len(self._tokens)

    def with_split(self, split: Callable[[bytes], Sequence[bytes]]) -> Tokenizer:
        """Return a tokenizer with the same vocabulary and another pre-tokenizer, to simulate a wrong one.

        split: maps the bytes of a plain text to the pieces within which tokens are merged.
        """
        other = copy.copy(self)
        other._pieces = {}
        other._split = lambda text: iter(split(_raw(text)))  # type: ignore[method-assign]
        return other

    # --- text to ids

    def encode(self, text: str | bytes) -> list[int]:
        """Encode plain text: control strings in it are ordinary characters. Takes nearly linear time."""
        ids: list[int] = []
        self._encode_span(_normal(text), ids)
        return ids

    def encode_rendered(self, text: str | bytes) -> list[int]:
        """Encode a rendered chat: each control string becomes its token, the text between them is plain text."""
        ids: list[int] = []
        text, at = _normal(text), 0
        for match in _specials(text):
            self._encode_span(text[at : match.start()], ids)
            ids.append(self._special_ids[match.group()])
            at = match.end()
        self._encode_span(text[at:], ids)
        return ids

    def text_bytes(self, text: str | bytes) -> bytes:
        """Return the bytes that ``decode(encode(text))`` returns, without encoding."""
        return _raw(_normal(text))

    def pieces(self, text: str | bytes) -> list[bytes]:
        """Return the pieces into which the pre-tokenizer cuts a plain text."""
        return [_raw(piece) for piece in self._split(_normal(text))]

    def _split(self, text: str) -> Iterator[str] | Iterator[bytes]:
        return split_unicode(text) if self.split == "unicode" else split_ds4(_raw(text))

    def _encode_span(self, text: str, ids: list[int]) -> None:
        """Append the ids of a plain text to ``ids``. No list is returned: copying millions of ids would block other
        threads."""
        cache = self._pieces
        for piece in self._split(text):
            piece_ids = cache.get(piece)
            if piece_ids is None:
                piece_ids = [token.id for token in self._bpe.tokenize(to_chars(_raw(piece)))]
                if len(piece) <= _CACHE_LENGTH:
                    if len(cache) >= _CACHE_PIECES:
                        cache.clear()
                    cache[piece] = piece_ids
            ids += piece_ids

    # --- ids to text

    def token_string(self, token: int) -> str:
        """Return the token's string in the vocabulary; "" for an id outside it."""
        return self._tokens[token] if 0 <= token < len(self._tokens) else ""

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes of a token, perhaps a fragment of a character; b"" for an id outside the vocabulary."""
        if not 0 <= token < len(self._tokens):
            return b""
        data = self._bytes[token]
        if data is None:
            string = self._tokens[token]
            data = self._bytes[token] = string.encode() if "｜" in string else to_bytes(string)
        return data

    def decode(self, ids: Iterable[int]) -> bytes:
        """Return the bytes of a token sequence, control tokens included."""
        return b"".join(map(self.token_bytes, ids))

    def special_id(self, string: str) -> int:
        """Return the token id of a control string; raise TextError if the vocabulary lacks it."""
        if string not in self._special_ids:
            raise TextError(f"the vocabulary has no token {string}: this template is for another checkpoint")
        return self._special_ids[string]


def _normal(text: str | bytes) -> str:
    """Return the text as str, in which bytes that are not valid UTF-8 are lone surrogates U+DC80..U+DCFF."""
    if isinstance(text, str):
        try:
            text.encode()
            return text
        except UnicodeEncodeError:
            text = _FOREIGN_SURROGATE.sub("\ufffd", text).encode("utf-8", "surrogateescape")
    return text.decode("utf-8", "surrogateescape")


def raw_bytes(text: str | bytes) -> bytes:
    """Return the bytes that a text stands for, by the rules in the module's docstring."""
    return _raw(_normal(text))


def _raw(piece: str | bytes) -> bytes:
    return piece if isinstance(piece, bytes) else piece.encode("utf-8", "surrogateescape")


def _byte_pair_model(ids: dict[str, int], merges: Sequence[str]) -> Any:
    """Return the library's BPE model for tokens (string -> id) and merges.

    Every merge is checked first, because the library crashes on some malformed merges and misreads others.
    """
    pairs = []
    for rank, merge in enumerate(merges):
        first, space, second = merge.partition(" ")
        if not (first and space and second) or " " in second:
            raise TextError(f"merge {rank} is {merge!r}, not two tokens separated by one space")
        for part in (first, second, first + second):
            if part not in ids:
                raise TextError(f"merge {rank} ({merge!r}) needs {part!r}, which is not a token")
        if first + second in protocol.SPECIALS:
            raise TextError(f"merge {rank} ({merge!r}) would make a control token out of plain text")
        pairs.append((first, second))

    from tokenizers.models import BPE

    return BPE(ids, pairs)


def _strings(source: TensorSource, key: str) -> list[str]:
    """Return an array of strings from the metadata; raise TextError if the key is missing or its value malformed."""
    values = source.metadata.get(key)
    if values is None:
        raise TextError(f"{source.path}: no {key}: this file has no tokenizer")
    if not isinstance(values, list) or not values or not all(isinstance(value, str) for value in values):
        raise TextError(f"{source.path}: {key} is not an array of strings")
    return values
