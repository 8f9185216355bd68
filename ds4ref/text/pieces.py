"""Tokenizer for vocabularies of scored pieces: SentencePiece's byte-pair encoding, as in llama2.c and Llama's GGUFs.

A text, with a space put in front, is cut into characters; a character that is not a token becomes the tokens of its
bytes. Then the adjacent pair whose concatenation has the highest score is merged, the leftmost one on ties, until no
concatenation is a token.

User-defined tokens (runs of spaces, HTML tags) are cut out of every text first, the longest possible, as in llama.cpp
and Hugging Face; the text between two of them is encoded separately.

A file without a chat template has no chat protocol: a prompt is text that the model continues. If a prompt is rendered
as a chat, all control strings except BOS and EOS are left out (``chats`` is False).

    tokenizer = read_tokenizer_bin("tokenizer.bin", vocab=32000)
    tokenizer.decode(tokenizer.encode("Once upon a time"))
"""

from __future__ import annotations

import heapq
import math
import os
import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from ..errors import TextError
from .control import FIRST, ControlStrings, Span
from .keys import BYTE, CONTROL, CONTROL_BY_NAME, GGML, IDS, NORMAL, UNKNOWN, UNUSED, USER, VocabularyKeys
from .tokenizer import raw_bytes

if TYPE_CHECKING:
    from ..weights.source import TensorSource
    from .template import ChatTemplate

SPACE = "\u2581"
"""The character that stands for a space in GGUF files."""
_SPACE_BYTES = SPACE.encode()
LOWEST = -1e10
"""Pairs whose concatenation has this score or less are never merged."""
MAX_FILE_BYTES = 64 << 20
MAX_PIECE_BYTES = 1 << 12
_LEGACY_BYTES = 3
"""Id of the token for byte 0 in a tokenizer.bin; ids 0 to 2 are control tokens."""
_ENTRY = struct.Struct("<fi")
_BYTE_PIECE = re.compile(rb"<0x([0-9A-Fa-f]{2})>")


class PieceTokenizer(ControlStrings):
    """Tokenizer (text <-> token ids) with the interface of ``tokenizer.Tokenizer``.

    pieces       bytes of each token
    scores       score of each token; of tokens with equal bytes the first counts
    bytes_at     token id of each of the 256 bytes, -1 for none
    bos, eos     ids of the tokens that begin and end texts, -1 for none
    ends         ids of other tokens that end an answer
    unknown      id of the token for a byte that has no token
    control      ids that plain text never yields and that decode to nothing
    hidden       other ids that plain text never yields
    space_first  whether a space is put in front of every text
    adds_bos     whether a text that the model is to continue starts with ``bos``
    user         string -> id of user-defined tokens, which are matched first in every text
    named        string -> id of control tokens that are recognised in rendered text
    template     the chat template, None if there is none
    spelled      whether U+2581 in a text means a space, as in GGUF files
    where        name of the vocabulary, for error messages
    """

    split = "pieces"

    def __init__(
        self,
        pieces: Sequence[bytes],
        scores: Sequence[float],
        bytes_at: Sequence[int],
        *,
        bos: int,
        eos: int,
        ends: Iterable[int] = (),
        unknown: int = 0,
        control: Iterable[int] = (),
        hidden: Iterable[int] = (),
        space_first: bool = True,
        adds_bos: bool = True,
        user: Mapping[str, int] | None = None,
        named: Mapping[str, int] | None = None,
        template: ChatTemplate | None = None,
        spelled: bool = False,
        where: str = "this vocabulary",
    ):
        self.where, self.unknown, self.space_first = where, unknown, space_first
        if len(pieces) != len(scores) or not pieces:
            raise TextError(f"{where}: {len(pieces)} pieces and {len(scores)} scores are no vocabulary")
        self._begin_and_end(bos, eos, ends, adds_bos, len(pieces))
        if not -1 <= unknown < len(pieces):
            raise TextError(f"{where}: the unknown token is {unknown}, but the vocabulary has {len(pieces)}")
        self._pieces, self._scores, self._bytes_at = list(pieces), list(scores), list(bytes_at)
        self._silent = frozenset(control)
        user, named = user or {}, named or {}
        self._firsts = {string.encode(): i for string, i in user.items()}
        alternatives = sorted(self._firsts, key=len, reverse=True)
        self._first = re.compile(b"|".join(map(re.escape, alternatives)) or rb"(?!)")
        self.template, self._spelled = template, spelled
        self._recognise({**user, **named}, unguarded=user)
        unmade = self._silent | frozenset(hidden)
        self._ids: dict[bytes, int] = {}
        for i, piece in enumerate(self._pieces):
            if piece and i not in unmade:
                self._ids.setdefault(piece, i)
        self._shown = [b"" if i in self._silent else _shown_bytes(piece) for i, piece in enumerate(self._pieces)]

    def __len__(self) -> int:
        return len(self._pieces)

    def tables(self) -> tuple[list[bytes], list[float], list[int]]:
        """Return ``pieces``, ``scores`` and ``bytes_at`` as passed to the constructor."""
        return self._pieces, self._scores, self._bytes_at

    # --- text to ids

    def encode(self, text: str | bytes) -> list[int]:
        """Encode plain text without BOS, in time O(n log n)."""
        return self._encoded([(FIRST, _decoded(text))])

    def encode_rendered(self, text: str | bytes) -> list[int]:
        """Encode a rendered chat: each control string becomes its token, the text between them is plain text."""
        return self._encoded(self._spans(_decoded(text)))

    def _encoded(self, spans: Sequence[Span]) -> list[int]:
        ids: list[int] = []
        for span in spans:
            if isinstance(span, int):
                ids.append(span)
                continue
            for part in self._parts(raw_bytes(span[1])):
                ids += [part] if isinstance(part, int) else self._joined(self._characters(part))
        return ids

    def _parts(self, data: bytes) -> Iterator[int | bytes]:
        """Yield the ids of user-defined tokens, and the texts between them, each with a space put in front."""
        at = 0
        for match in (*self._first.finditer(data), None):
            part = data[at : match.start() if match else None]
            if part:
                part = part.replace(_SPACE_BYTES, b" ") if self._spelled else part
                yield b" " + part if self.space_first else part
            if match:
                yield self._firsts[match[0]]
                at = match.end()

    def text_bytes(self, text: str | bytes) -> bytes:
        """Return the bytes that ``decode(encode(text))`` returns."""
        data = b"".join(self._pieces[part] if isinstance(part, int) else part for part in self._parts(raw_bytes(text)))
        return data.removeprefix(b" ") if self.space_first else data

    def pieces(self, text: str | bytes) -> list[bytes]:
        """Return the parts of a text that are encoded separately: the whole text, since there is no pre-tokenizer."""
        data = raw_bytes(text)
        return [data] if data else []

    def _characters(self, data: bytes) -> list[int]:
        """Return one token for each character; a character without a token gives the tokens of its bytes."""
        tokens: list[int] = []
        at, end = 0, len(data)
        while at < end:
            stop = at + 1
            while stop < end and stop - at < 4 and data[stop] & 0xC0 == 0x80:
                stop += 1
            token = self._ids.get(data[at:stop], -1)
            if token >= 0:
                tokens.append(token)
            else:
                tokens += [self.unknown if self._bytes_at[b] < 0 else self._bytes_at[b] for b in data[at:stop]]
            at = stop
        return tokens

    def _joined(self, tokens: list[int]) -> list[int]:
        """Merge adjacent tokens, best score first, until no pair can be merged; return the remaining tokens."""
        count = len(tokens)
        after, before = [*range(1, count), -1], [*range(-1, count - 1)]
        queue: list[tuple[float, int, int, int, int, int]] = []

        def offer(index: int, following: int) -> None:
            if index < 0 or following < 0:
                return
            joined = self._ids.get(self._pieces[tokens[index]] + self._pieces[tokens[following]], -1)
            if joined >= 0 and self._scores[joined] > LOWEST:
                heapq.heappush(
                    queue, (-self._scores[joined], index, following, tokens[index], tokens[following], joined)
                )

        for index in range(count - 1):
            offer(index, index + 1)
        while queue:
            _, index, following, first, second, joined = heapq.heappop(queue)
            if tokens[index] != first or tokens[following] != second or after[index] != following:
                continue  # one of the two has been merged with another piece
            tokens[index], tokens[following] = joined, -1
            after[index] = after[following]
            if after[following] >= 0:
                before[after[following]] = index
            offer(before[index], index)
            offer(index, after[index])
        return [token for token in tokens if token >= 0]

    # --- ids to text

    def token_string(self, token: int) -> str:
        """Return the token's string in the vocabulary; "" for an id outside it."""
        return self._pieces[token].decode("utf-8", "replace") if 0 <= token < len(self._pieces) else ""

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes of a token; b"" for control tokens and ids outside the vocabulary."""
        return self._shown[token] if 0 <= token < len(self._shown) else b""

    def decode(self, ids: Iterable[int]) -> bytes:
        """Return the bytes of a token sequence; if it starts with BOS, without the space that encoding put in front."""
        ids = list(ids)
        data = b"".join(map(self.token_bytes, ids))
        return data.removeprefix(b" ") if self.space_first and ids[:1] == [self.bos] else data


def _decoded(text: str | bytes) -> str:
    return raw_bytes(text).decode("utf-8", "surrogateescape")


def _shown_bytes(piece: bytes) -> bytes:
    match = _BYTE_PIECE.fullmatch(piece)
    return bytes([int(match[1], 16)]) if match else piece


def read_tokenizer_bin(path: str | os.PathLike[str], vocab: int) -> PieceTokenizer:
    """Read llama2.c's tokenizer.bin with ``vocab`` tokens; raise TextError if it is not one of that many.

    As in llama2.c, token 1 starts a text and also ends generation, because it would start the next text.
    """
    data = contents(path)

    def wrong(reason: str, at: int) -> TextError:
        return TextError(f"{os.fspath(path)}: {reason} at byte {at}")

    if len(data) < 4:
        raise wrong("too short for a tokenizer.bin", len(data))
    longest = struct.unpack_from("<I", data)[0]
    if not 1 <= longest <= MAX_PIECE_BYTES:
        raise wrong(f"the longest piece is said to have {longest} bytes, at most {MAX_PIECE_BYTES} are allowed", 0)
    if vocab < 2:
        raise wrong(f"a vocabulary of {vocab} has no beginning and end", 0)
    pieces, scores, at = [], [], 4
    for number in range(vocab):
        if at + _ENTRY.size > len(data):
            raise wrong(f"ends after {number} tokens, the model has {vocab}", at)
        score, length = _ENTRY.unpack_from(data, at)
        if not math.isfinite(score):
            raise wrong(f"token {number} has a score that is not finite", at)
        if not 0 <= length <= longest:
            raise wrong(f"token {number} has {length} bytes, at most {longest} are announced", at + 4)
        start = at + _ENTRY.size
        at = start + length
        if at > len(data):
            raise wrong(f"token {number} reaches past the end", start)
        pieces.append(data[start:at])
        scores.append(score)
    if at != len(data):
        raise wrong(f"goes on after {vocab} tokens, which is all that the model has", at)
    bytes_at = [byte + _LEGACY_BYTES if byte + _LEGACY_BYTES < vocab else -1 for byte in range(256)]
    return PieceTokenizer(pieces, scores, bytes_at, bos=1, eos=1, control=(1,), hidden=(2,))


def contents(path: str | os.PathLike[str]) -> bytes:
    """Return the bytes of a vocabulary file; raise TextError if it cannot be read or is too large."""
    try:
        if os.path.exists(path) and not os.path.isfile(path):
            raise TextError(f"{os.fspath(path)}: not a regular file")
        with open(path, "rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise TextError(f"{os.fspath(path)}: cannot read: {error.strerror or error}") from None
    if len(data) > MAX_FILE_BYTES:
        raise TextError(f"{os.fspath(path)}: more than {MAX_FILE_BYTES >> 20} MiB, no vocabulary")
    return data


def from_source(source: TensorSource) -> PieceTokenizer:
    """Read the vocabulary of a GGUF file whose ``tokenizer.ggml.model`` is "llama"; raise TextError if it is
    malformed."""
    keys = VocabularyKeys(source)
    stored = keys.read(bos=1, eos=2)
    tokens, scores = stored.tokens, keys.items("scores", ("f32[]", "f64[]"), len(stored.tokens))
    if not scores or not all(map(math.isfinite, scores)):
        raise TextError(f"{source.path}: {GGML}scores is missing, or has one that is not finite")
    kinds = stored.kinds or [BYTE if _BYTE_PIECE.fullmatch(token.encode()) else NORMAL for token in tokens]
    pieces = [token.replace(SPACE, " ").encode("utf-8", "surrogatepass") for token in tokens]
    bytes_at = [-1] * 256
    for i, (piece, kind) in enumerate(zip(pieces, kinds, strict=True)):
        match = _BYTE_PIECE.fullmatch(piece) if kind == BYTE else None
        if match:
            bytes_at[int(match[1], 16)] = i
    by_kind: dict[int, dict[str, int]] = {}
    for i, (token, kind) in reversed([*enumerate(zip(tokens, kinds, strict=True))]):  # of equal strings the first wins
        if token and kind in (UNKNOWN, CONTROL, USER):
            by_kind.setdefault(CONTROL if token in CONTROL_BY_NAME else kind, {})[token] = i
    # In GGUF files spaces of text are U+2581: a token whose string has a real space can never match.
    hidden = [i for i, kind in enumerate(kinds) if kind in (UNKNOWN, UNUSED, BYTE) or " " in tokens[i]]
    return PieceTokenizer(
        pieces, scores, bytes_at, bos=stored.bos, eos=stored.eos, unknown=keys.value("unknown_token_id", IDS, 0),
        control=[i for i, kind in enumerate(kinds) if kind == CONTROL], hidden=hidden, ends=stored.ends,
        space_first=keys.value("add_space_prefix", ("bool",), True), adds_bos=stored.adds_bos is not False,
        user=by_kind.get(USER, {}), named=by_kind.get(CONTROL, {}) | by_kind.get(UNKNOWN, {}), spelled=True,
        template=stored.template, where=f"{source.path}: its tokenizer",
    )  # fmt: skip
