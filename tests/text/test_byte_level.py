"""The byte alphabet (docs/explanation/text.md 2)."""

from ds4ref.text.byte_level import ALPHABET, to_bytes, to_chars


def test_table():
    assert len(ALPHABET) == len(set(ALPHABET)) == 256
    assert sum(ord(char) == byte for byte, char in enumerate(ALPHABET)) == 188
    assert {byte: ord(ALPHABET[byte]) for byte in (0x0A, 0x20, 0x7F, 0xAD, 0x00, 0xFF)} == {
        0x0A: 266,
        0x20: 288,
        0x7F: 289,
        0xAD: 323,
        0x00: 256,
        0xFF: 255,
    }
    moved = [ord(char) for byte, char in enumerate(ALPHABET) if ord(char) != byte]
    assert moved == list(range(0x100, 0x144))


def test_both_ways_and_strangers():
    data = bytes(range(256))
    assert to_bytes(to_chars(data)) == data
    assert to_bytes("aĠ\u2581中b") == b"a b"
