"""The byte-level alphabet (docs/explanation/text.md 2): one printable character for every byte.

As in GPT-2, bytes 33-126, 161-172 and 174-255 are the character of the same number; the other 68, in increasing order,
are U+0100 ... U+0143.
"""

from __future__ import annotations


def _alphabet() -> str:
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    spare = iter(range(0x100, 0x100 + 256 - len(printable)))
    return "".join(chr(byte if byte in printable else next(spare)) for byte in range(256))


ALPHABET = _alphabet()
"""The character for each byte: ALPHABET[byte]."""

_TO_CHAR = dict(enumerate(ALPHABET))


class _Bytes(dict[int, int]):
    """For ``str.translate``: characters outside the alphabet are dropped."""

    def __missing__(self, code: int) -> None:
        return None


_TO_BYTE = _Bytes((ord(char), byte) for byte, char in enumerate(ALPHABET))


def to_chars(data: bytes) -> str:
    """Return the bytes as characters of the alphabet, one per byte."""
    return data.decode("latin-1").translate(_TO_CHAR)


def to_bytes(chars: str) -> bytes:
    """Return the bytes of ``chars``; characters outside the alphabet are dropped, as in ds4."""
    return chars.translate(_TO_BYTE).encode("latin-1")
