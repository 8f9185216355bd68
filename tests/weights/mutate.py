"""Damage to files, drawn: what tests of readers feed them."""

from __future__ import annotations

import random
import struct


def mutated(rng: random.Random, clean: bytes) -> bytes:
    """A text with a few bytes replaced, a piece gone, doubled or moved, a number made extreme, or its end cut off."""
    text = bytearray(clean)
    for _ in range(rng.choice((1, 1, 2, 5))):
        at, other = sorted(rng.randrange(len(text) + 1) for _ in range(2))
        match rng.randrange(6):
            case 0:
                text[at : at + 1] = bytes([rng.randrange(256)])
            case 1:
                del text[at : min(other, at + 40)]
            case 2:
                text[at:at] = text[at : min(other, at + 40)]
            case 3:
                text[at : at + 1] = rng.choice([b"[", b"]", b"{", b"}", b'"', b",", b":", b"\\", b"\x00", b"\xc3"])
            case 4:
                digits = [i for i, byte in enumerate(text) if chr(byte).isdigit()]
                if digits:
                    text[rng.choice(digits) : rng.choice(digits) + 1] = rng.choice(
                        [b"-1", b"0", b"18446744073709551615", b"9" * 40, b"1e308", b"0.5", b"null", b"true"]
                    )
            case _:
                if rng.randrange(8) == 0:
                    del text[at:]
        if not text:
            break
    return bytes(text)


NUMBERS = (0, 1, -1, 2, 7, 255, 256, 1 << 16, (1 << 31) - 1, -(1 << 31), 1 << 30)


def damaged(rng: random.Random, clean: bytes, most: int = 0) -> bytes:
    """Bytes of which a few are others, a field is an extreme number or no number, a piece is gone, doubled or moved, or
    the end is cut off. Only the first ``most`` are touched, if it is given, but for the end."""
    data = bytearray(clean)
    for _ in range(rng.choice((1, 1, 2, 4))):
        end = min(most, len(data)) if most else len(data)
        if end < 5:
            break
        at = rng.randrange(end - 4)
        match rng.randrange(8):
            case 0 | 1:
                data[at] = rng.randrange(256)
            case 2:
                data[at] ^= 1 << rng.randrange(8)
            case 3:
                data[at : at + 4] = struct.pack("<i", rng.choice(NUMBERS))
            case 4:
                data[at : at + 4] = struct.pack("<f", rng.choice([float("nan"), float("inf"), -1.0, 1e38, -0.0]))
            case 5:
                del data[at : at + rng.choice((1, 4, 40))]
            case 6:
                data[at:at] = data[at : at + rng.choice((1, 4, 40))]
            case _:
                if rng.randrange(3) == 0:
                    del data[rng.randrange(len(data)) :]
    return bytes(data)
