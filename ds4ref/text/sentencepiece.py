"""Read tokenizer.model, SentencePiece's own file: scored pieces, for folders that have no tokenizer.json.

    model = read_model("tokenizer.model")        model.pieces, model.scores, model.kinds

The file is a protocol-buffer message: field 1 is a piece (1 its text, 2 its score, 3 its type), field 2 says how it was
trained, field 3 how text is normalized. Only what scored pieces can do is accepted: byte-pair encoding with byte
fallback, text as it is, a space in front or not.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Iterator
from typing import NamedTuple

from ..errors import TextError
from .keys import NORMAL
from .pieces import contents

MAX_PIECES = 1 << 20
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_BPE = 2


class Model(NamedTuple):
    """A vocabulary: strings, scores and types (numbered as in GGUF) by id; ids of special tokens, -1 for none."""

    pieces: list[str]
    scores: list[float]
    kinds: list[int]
    unknown: int
    bos: int
    eos: int
    space_first: bool


def read_model(path: str | os.PathLike[str]) -> Model:
    """Read a tokenizer.model; raise TextError for a file that is none, or says what scored pieces cannot do."""
    where = os.fspath(path)
    pieces, scores, kinds = [], [], []
    trained: dict[int, int | bytes] = {}
    normalized: dict[int, int | bytes] = {}
    try:
        for number, value in _fields(contents(path)):
            if number == 1 and isinstance(value, bytes):
                piece = dict(_fields(value))
                pieces.append(_bytes(piece.get(1, b"")).decode())
                scores.append(struct.unpack("<f", _bytes(piece.get(2, bytes(4))))[0])
                kinds.append(_number(piece.get(3, NORMAL)))
                if len(pieces) > MAX_PIECES:
                    raise TextError(f"{where}: more than {MAX_PIECES} pieces")
            elif number in (2, 3) and isinstance(value, bytes):
                (trained if number == 2 else normalized).update(_fields(value))
    except (ValueError, struct.error):
        raise TextError(f"{where}: not a SentencePiece tokenizer.model") from None
    if not pieces or not all(1 <= kind <= 6 for kind in kinds) or not all(map(math.isfinite, scores)):
        raise TextError(f"{where}: not a SentencePiece tokenizer.model")
    checks = {
        "is not byte-pair encoding": trained.get(3, 1) == _BPE,
        "has no byte fallback": bool(trained.get(35)),
        "marks spaces at the end of words": not trained.get(24),
        "changes characters": not normalized.get(2),
        "removes spaces": not normalized.get(4, 1) and bool(normalized.get(5, 1)),
    }
    for says, fine in checks.items():
        if not fine:
            raise TextError(f"{where}: {says}, which a GGUF with scored pieces cannot express")
    unknown, bos, eos = (_signed(trained.get(field, usual)) for field, usual in ((40, 0), (41, 1), (42, 2)))
    if not all(-1 <= token < len(pieces) for token in (unknown, bos, eos)):
        raise TextError(f"{where}: a special token is outside the {len(pieces)} pieces")
    return Model(pieces, scores, kinds, unknown, bos, eos, bool(normalized.get(3, 1)))


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield number and value of each field of a message; ValueError if it is none."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            value, at = _varint(data, at)
            yield number, value
            continue
        size = {_FIXED64: 8, _FIXED32: 4}.get(kind)
        if kind == _BYTES:
            size, at = _varint(data, at)
        if size is None or at + size > len(data):
            raise ValueError("no message")
        yield number, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            break
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise ValueError("no number")


def _bytes(value: int | bytes) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("a number where bytes belong")
    return value


def _number(value: int | bytes) -> int:
    if not isinstance(value, int):
        raise ValueError("bytes where a number belongs")
    return value


def _signed(value: int | bytes) -> int:
    """Return an int32 that was stored as 64 bits of two's complement."""
    number = _number(value) & 0xFFFFFFFF
    return number - (1 << 32) if number >> 31 else number
