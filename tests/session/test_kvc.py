"""Checkpoint files: ds4's layout byte for byte, and our section behind it."""

from __future__ import annotations

import hashlib
import io
import json
import struct
import tracemalloc
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds4ref.errors import PayloadError
from ds4ref.session import kvc
from ds4ref.session.kvc import Damaged, Header, Integrity, Unknown

WORKED = bytes.fromhex(
    "4b 56 43 01 02 01 01 00 00 08 00 00 03 00 00 00"
    "00 80 00 00 00 00 00 00 08 07 06 05 04 03 02 01"
    "18 17 16 15 14 13 12 11 28 27 26 25 24 23 22 21"
)
WORKED_HEADER = Header(
    quant=2, reason=1, flags=1, tokens=2048, hits=3, ctx=32768,
    created=0x0102030405060708, used=0x1112131415161718, payload=0x2122232425262728,
)  # fmt: skip
HEADER = Header(quant=2, reason=1, flags=0, tokens=7, ctx=4096, created=1_700_000_000, payload=40, used=1_700_000_100)
TEXT = "<｜begin▁of▁sentence｜>text".encode()
PAYLOAD = bytes(range(40))
TOOLS = kvc.tool_map([(b"call_y", b"<tool_calls></tool_calls>"), (b"call_x", b"<tool_calls></tool_calls>")])
IDENTITY = {"model": "sha256:0", "numerics": "qat"}
INTEGRITY = Integrity(IDENTITY, (kvc.key(b"another"),), kvc.digest(b"ids"), {"name": "nano"})


def made(header: Header = HEADER, tools: bytes = TOOLS, integrity: Integrity | None = INTEGRITY) -> bytes:
    """A whole file."""
    output = io.BytesIO()
    kvc.write(output, header, TEXT, lambda file: file.write(PAYLOAD), tools, integrity)
    return output.getvalue()


def through(data: bytes) -> kvc.Checkpoint:
    return kvc.read_through(io.BytesIO(data), kvc.key_name(TEXT))


# --- header, name


def test_the_worked_header_byte_for_byte() -> None:
    assert WORKED_HEADER.pack()[:48] == WORKED
    assert Header.unpack(WORKED + b"\x09\0\0\0") == replace(WORKED_HEADER, text=9)


u8, u32, u64 = (st.integers(0, 2**bits - 1) for bits in (8, 32, 64))


@given(st.builds(Header, st.integers(1, 255), u8, u8, st.integers(1, 2**32 - 1), u32, u64, u64, u32, u32, u64))
def test_headers_come_back(header: Header) -> None:
    data = header.pack()
    assert len(data) == 52 and data[7] == 0 and data[20:24] == bytes(4)
    assert Header.unpack(data) == header
    assert header.end == 52 + header.text + header.payload


# --- the whole file


def test_a_file_without_our_section_is_ds4s_layout() -> None:
    data = made(integrity=None)
    assert data[:48] == replace(HEADER, flags=1).pack()[:48]
    assert struct.unpack_from("<I", data, 48) == (len(TEXT),)
    assert data[52:] == TEXT + PAYLOAD + TOOLS
    assert made(tools=b"", integrity=None)[6] == 0


@pytest.mark.parametrize("tools", [b"", TOOLS])
def test_our_section_comes_last_and_changes_nothing_before_but_a_flag(tools: bytes) -> None:
    ours, theirs = made(tools=tools), made(tools=tools, integrity=None)
    assert ours[6] == theirs[6] | 0x80
    assert ours[:6] + theirs[6:7] + ours[7 : len(theirs)] == theirs
    section = ours[len(theirs) :]
    assert section[:4] == b"KVI\1" and section[-4:] == b"IVK\1"
    assert struct.unpack_from("<I", section, len(section) - 8) == (len(section),)
    body = json.loads(section[8 : 8 + struct.unpack_from("<I", section, 4)[0]])
    assert body["payload"] == hashlib.sha256(PAYLOAD).hexdigest() and body["identity"] == IDENTITY
    lasting = replace(HEADER, flags=bool(tools), text=len(TEXT), hits=0, used=0).pack()
    assert section[-40:-8] == hashlib.sha256(lasting + section[:-40]).digest()


@pytest.mark.parametrize("tools", [b"", TOOLS])
@pytest.mark.parametrize("integrity", [None, INTEGRITY])
def test_files_come_back(tools: bytes, integrity: Integrity | None) -> None:
    data = made(tools=tools, integrity=integrity)
    assert len(data) == kvc.size_of(TEXT, len(PAYLOAD), tools, integrity)
    found, file = through(data), io.BytesIO(data)
    assert (found.header.text, found.header.payload, found.size) == (len(TEXT), len(PAYLOAD), len(data))
    assert found.text(file) == TEXT and found.payload(file).read() == PAYLOAD
    assert found.tools(file) == ([(b"call_y", TOOLS[22:47]), (b"call_x", TOOLS[22:47])] if tools else [])
    assert found.identity == (IDENTITY if integrity else {})
    if integrity is not None and found.integrity is not None:
        filled = replace(found.integrity, text="", payload="", tools="")
        assert filled == integrity


def test_a_payload_of_another_size_than_announced_is_an_error() -> None:
    with pytest.raises(PayloadError, match="41 bytes was announced with 40"):
        kvc.write(io.BytesIO(), HEADER, TEXT, lambda file: file.write(PAYLOAD + b"x"))


# --- damage


def test_huge_sections_and_entries_cost_nothing() -> None:
    tools = b"KTM\1" + struct.pack("<III", 1, 6, 512 << 20) + b"call_x"
    data = made(tools=tools, integrity=None)
    end = data + struct.pack("<I", 2**32 - 1) + b"IVK\1" + b"\0" * 60
    section = end[: -len(b"\0" * 60)]
    tracemalloc.start()
    try:
        assert through(data).tools(io.BytesIO(data)) == []
        with pytest.raises(Damaged, match="section of 4294967295 bytes"):
            through(b"".join([section[:-8], b"\0" * 60, section[-8:]]))
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_a_writer_that_does_not_know_the_section() -> None:
    """It clears a flag that it does not know: the section is found all the same. It writes a tool map where ours began
    and ends the file there: nothing says any more what the payload was computed with, so nobody goes on from it."""
    data = bytearray(made())
    data[6] &= 0x07
    data[12] += 1
    assert through(bytes(data)).identity == IDENTITY
    cut = made()[: 52 + len(TEXT) + len(PAYLOAD)] + TOOLS
    with pytest.raises(Damaged, match="no integrity section"):
        through(cut)


def test_a_section_of_a_later_version_is_not_damage() -> None:
    data = bytearray(made())
    data[data.rindex(b"KVI\1") + 3] = 2
    with pytest.raises(Unknown, match="section of version 2"):
        through(bytes(data))


@pytest.mark.parametrize(
    "body",
    [b"{}", b"[1]", b"nonsense", b"\xff\xfe", b"[" * 5000, b'{"keys":3}',
     b'{"keys":[[1]],"identity":{},"about":{},"tokens":"","text":"","payload":"","tools":""}',
     b'{"keys":[],"identity":[],"about":{},"tokens":"","text":"","payload":"","tools":""}'],
)  # fmt: skip
def test_sections_that_are_sealed_and_make_no_sense(body: bytes) -> None:
    data = made(integrity=None)
    header = Header.unpack(data)
    head = b"KVI\1" + struct.pack("<I", len(body)) + body
    seal = hashlib.sha256(header.lasting + head).digest()
    section = head + seal + struct.pack("<I", len(head) + 40) + b"IVK\1"
    with pytest.raises(Damaged, match="integrity section"):
        through(data + section)


def test_ds4s_files_are_of_two_or_four_bits_and_ours_of_any() -> None:
    for quant in (2, 4):
        assert through(made(replace(HEADER, quant=quant), integrity=None)).header.quant == quant
    for quant in (1, 3, 8, 16):
        with pytest.raises(Damaged, match=f"{quant}-bit"):
            through(made(replace(HEADER, quant=quant), integrity=None))
        assert through(made(replace(HEADER, quant=quant))).header.quant == quant


# --- tool maps


def test_the_worked_tool_map() -> None:
    block = b"B" * 96
    data = kvc.tool_map([(b"call_y", block), (b"call_x", block)])
    assert len(data) == 228
    assert data[:22] == bytes.fromhex("4b 54 4d 01 02 00 00 00 06 00 00 00 60 00 00 00") + b"call_y"
    assert kvc.tool_map([]) == b""


def entries(data: bytes) -> list[tuple[bytes, bytes]]:
    whole = made(tools=data, integrity=None)
    return kvc.examine(io.BytesIO(whole)).tools(io.BytesIO(whole))


GOOD = [(b"a", b"first"), (b"b" * 256, b"second"), (b"c", b"third")]


@pytest.mark.parametrize("sizes", [(0, 5), (257, 5), (1, 0), (1, (512 << 20) + 1), (1, 2**32 - 1)])
def test_entries_before_an_impossible_one_count(sizes: tuple[int, int]) -> None:
    data = kvc.tool_map(GOOD[:2]) + struct.pack("<II", *sizes) + b"x" * 300
    assert entries(data[:4] + struct.pack("<I", 3) + data[8:]) == GOOD[:2]


def test_a_map_that_ends_early() -> None:
    data = kvc.tool_map(GOOD)
    counts = [len(entries(data[:length])) for length in range(1, len(data) + 1)]
    assert counts == sorted(counts) and set(counts) == {0, 1, 2, 3}


def test_blocks_are_found_in_three_dialects_as_they_may_be_remembered() -> None:
    both = "<｜DSML｜tool_calls>1</｜DSML｜tool_calls>".encode()
    short = "<DSML｜tool_calls>2</DSML｜tool_calls>".encode()
    plain = b"<tool_calls>3</tool_calls>"
    text = b"a\n\n" + both + b"b" + short + b"c \n\n\n" + plain + b"<tool_calls> open"
    assert list(kvc.blocks(text)) == [
        (b"\n\n" + both, both),
        (short,),
        (b" \n\n\n" + plain, b"\n\n" + plain, plain),
    ]
