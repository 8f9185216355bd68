"""Bodies: how they are received, inflated and measured."""

import asyncio
import gzip
import tracemalloc
import zlib

import pytest

from ds4ref.server.api import Refused
from ds4ref.server.limits import BodyBudget, Disconnected, Limits, check_json, inflate, receive_body

SMALL = Limits(body_bytes=1000, held_bytes=1500)


def receive(*messages):
    """ASGI's receive, of a body in pieces; None is a client that left."""
    rest = list(messages)
    asked = []

    async def one():
        asked.append(1)
        piece = rest.pop(0)
        if isinstance(piece, BaseException):
            raise piece
        if piece is None:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": piece, "more_body": bool(rest)}

    one.asked = asked
    return one


def body(*messages, headers=None, limits=SMALL, held=None):
    return asyncio.run(receive_body(receive(*messages), headers or {}, limits, held or BodyBudget(limits.held_bytes)))


# --- receiving


def test_a_body_of_exactly_the_limit_is_taken_and_one_byte_more_is_not():
    assert len(body(b"x" * 600, b"y" * 400)) == 1000
    held = BodyBudget(1500)
    with pytest.raises(Refused) as refused:
        body(b"x" * 600, b"y" * 401, held=held)
    assert refused.value.status == 413 and held.bytes == 0


def test_a_length_too_large_is_refused_before_anything_is_read():
    source = receive(b"x")
    with pytest.raises(Refused) as refused:
        asyncio.run(receive_body(source, {"content-length": "1001"}, SMALL, BodyBudget(1500)))
    assert refused.value.status == 413 and not source.asked


@pytest.mark.parametrize("end", [None, asyncio.CancelledError()])
def test_whatever_ends_a_body_gives_back_what_it_took(end):
    held = BodyBudget(1500)
    with pytest.raises((Disconnected, asyncio.CancelledError)):
        body(b"x" * 600, end, held=held)
    assert held.bytes == 0


def test_a_body_refused_for_want_of_room_leaves_what_others_hold():
    held = BodyBudget(1500)
    body(b"x" * 800, held=held)
    for pieces in ((b"y" * 701,), (b"y" * 600, b"y" * 101)):
        with pytest.raises(Refused) as refused:
            body(*pieces, held=held)
        assert refused.value.status == 503 and held.bytes == 800
    assert len(body(b"y" * 700, held=held)) == 700 and held.bytes == 1500


# --- compression


PACK = {"gzip": gzip.compress, "deflate": zlib.compress}


@pytest.mark.parametrize("name", PACK)
def test_codings(name):
    """Up to the limit and no further; what is damaged is a 400."""
    pack = PACK[name]
    for size in (0, 1, 999, 1000):
        data = bytes(i * 7 % 251 for i in range(size))
        assert inflate(pack(data), name.upper(), SMALL) == data
    packed = pack(b"some text that is long enough to be cut" * 3)
    wrong = [(pack(bytes(1001)), 413), (packed[:-3], 400), (packed + b"more", 400), (b"\xff\xff" + packed[2:], 400)]
    for data, status in wrong:
        with pytest.raises(Refused) as refused:
            inflate(data, name, SMALL)
        assert refused.value.status == status


def test_a_bomb_is_never_unpacked():
    limits = Limits(body_bytes=1 << 20)
    bomb = gzip.compress(bytes(200 << 20), 9)
    tracemalloc.start()
    with pytest.raises(Refused) as refused:
        inflate(bomb, "gzip", limits)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert refused.value.status == 413 and peak < 8 << 20


# --- JSON, before it is parsed


def test_a_flood_of_values_is_refused():
    for body in (b"[" + b"1," * 1000 + b"1]", b"[" + b"[]," * 500 + b"1]", b'{"a":' * 1000 + b"1" + b"}" * 1000):
        with pytest.raises(Refused, match="values"):
            check_json(body, Limits(values=1000))
    check_json(b"[" + b"1," * 998 + b"1]", Limits(values=1000))
