"""Bodies: how they are received, inflated and measured."""

import asyncio
import gzip
import importlib.util
import itertools
import json
import tracemalloc
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds4ref.server.api import Refused
from ds4ref.server.limits import CODINGS, BodyBudget, Disconnected, Limits, check_json, inflate, measure, receive_body

SMALL = Limits(body_bytes=1000, held_bytes=1500)


def receive(*messages):
    """ASGI's receive, of a body in pieces; None is a client that left."""
    rest = list(messages)
    asked = []

    async def one():
        asked.append(1)
        piece = rest.pop(0)
        if piece is None:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": piece, "more_body": bool(rest)}

    one.asked = asked
    return one


def body(*messages, headers=None, limits=SMALL, held=None):
    return asyncio.run(receive_body(receive(*messages), headers or {}, limits, held or BodyBudget(limits.held_bytes)))


# --- receiving


def test_a_body_comes_in_pieces_and_is_held():
    held = BodyBudget(1500)
    assert body(b"ab", b"", b"c", held=held) == b"abc"
    assert held.bytes == 3


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


def test_a_client_that_leaves_gives_back_what_was_held():
    held = BodyBudget(1500)
    with pytest.raises(Disconnected):
        body(b"abc", None, held=held)
    assert held.bytes == 0


def test_bodies_together_are_bounded():
    held = BodyBudget(1500)
    assert len(body(b"x" * 900, held=held)) == 900
    with pytest.raises(Refused) as refused:
        body(b"x" * 500, b"x" * 300, held=held)
    assert refused.value.status == 503 and refused.value.headers["retry-after"] and held.bytes == 900
    held.give(900)
    assert len(body(b"x" * 900, held=held)) == 900


# --- compression


def deflated(data):
    compress = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return compress.compress(data) + compress.flush()


PACK = {"gzip": gzip.compress, "x-gzip": gzip.compress, "deflate": zlib.compress, "raw deflate": deflated}


@pytest.mark.parametrize("coding", PACK)
@pytest.mark.parametrize("size", [0, 1, 999, 1000])
def test_codings(coding, size):
    data = bytes(i * 7 % 251 for i in range(size))
    assert inflate(PACK[coding](data), coding.removeprefix("raw ").upper(), SMALL) == data


def test_identity_is_no_coding():
    assert inflate(b"abc", "identity", SMALL) == inflate(b"abc", "", SMALL) == b"abc"


@pytest.mark.parametrize("coding", ["compress", "br, gzip", "gzip, gzip", "GZIP2", "\u00fc"])
def test_an_unknown_coding_is_told_which_are_known(coding):
    with pytest.raises(Refused) as refused:
        inflate(b"abc", coding, SMALL)
    assert refused.value.status == 415 and "gzip" in refused.value.headers["accept-encoding"]


@pytest.mark.parametrize("coding", PACK)
def test_what_grows_too_large_is_refused(coding):
    with pytest.raises(Refused) as refused:
        inflate(PACK[coding](bytes(1001)), coding.removeprefix("raw "), SMALL)
    assert refused.value.status == 413


def test_a_bomb_is_never_unpacked():
    limits = Limits(body_bytes=1 << 20)
    bomb = gzip.compress(bytes(200 << 20), 9)
    tracemalloc.start()
    with pytest.raises(Refused) as refused:
        inflate(bomb, "gzip", limits)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert refused.value.status == 413 and peak < 8 << 20


@pytest.mark.parametrize("coding", PACK)
@pytest.mark.parametrize("damage", [lambda d: d[:-3], lambda d: d + b"more", lambda d: b"\xff\xff" + d[2:]])
def test_damaged_data_is_a_400(coding, damage):
    with pytest.raises(Refused) as refused:
        inflate(
            damage(PACK[coding](b"some text that is long enough to be cut" * 3)), coding.removeprefix("raw "), SMALL
        )
    assert refused.value.status == 400


def test_zstd_where_python_has_it():
    if importlib.util.find_spec("compression") is None:
        pytest.skip("compression.zstd comes with Python 3.14")
    from compression import zstd

    assert inflate(zstd.compress(b"abc" * 99), "zstd", SMALL) == b"abc" * 99


def test_any_decompressor_of_that_shape_will_do(monkeypatch):
    """zstd of the standard library has the interface of lzma's; this stands for it where there is none."""
    import lzma

    monkeypatch.setitem(CODINGS, "xz", lambda data: lzma.LZMADecompressor())
    assert inflate(lzma.compress(b"abc" * 99), "xz", SMALL) == b"abc" * 99
    for damaged, status in ((lzma.compress(bytes(9999)), 413), (lzma.compress(b"abc")[:-3], 400), (b"no", 400)):
        with pytest.raises(Refused) as refused:
            inflate(damaged, "xz", SMALL)
        assert refused.value.status == status


# --- JSON, before it is parsed


def slow_measure(text: bytes):
    """The same, character by character."""
    depth = deepest = values = containers = 0
    inside = escaped = False
    for char in text.decode("latin-1"):
        after, escaped = escaped, char == "\\" and not escaped
        if char == '"' and not after:
            inside = not inside
        elif not inside and char in "[{":
            depth, values, containers = depth + 1, values + 1, containers + 1
            deepest = max(deepest, depth)
        elif not inside and char in "]}":
            depth -= 1
        elif not inside and char == ",":
            values += 1
    return deepest, values + 1, containers


def test_depth_of_documents():
    assert measure(b"") == (0, 1, 0)
    assert measure(b"1") == (0, 1, 0)
    assert measure(b'{"a":[1,2,{"b":[]}],"c":"[[[[["}') == (4, 8, 4)
    assert measure(b'["\\"[[[[", "\\\\", [[]], "\\\\\\"[["]')[0] == 3


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_measuring_agrees_with_reading_however_it_is_cut(size, monkeypatch):
    """Every text of up to six of these characters: backslashes and strings that a chunk's edge cuts anywhere."""
    monkeypatch.setattr("ds4ref.server.limits._CHUNK", size)
    for length in range(7):
        for parts in itertools.product(b'"\\[', repeat=length):
            assert measure(bytes(parts)) == slow_measure(bytes(parts)), bytes(parts)
    for text in (b"[[]]],[{},{}]", b'{"a":[1,"]}"],"b":{}}', b"]}[{[", b',[,"[,",{'):
        assert measure(text) == slow_measure(text)


@pytest.mark.parametrize("slashes", [3, 4])
def test_backslashes_over_the_edge_of_a_mebibyte(slashes):
    """A count that begins anew there takes the end of a string for a quote in it: deep nesting passes, or a long text
    is refused."""
    text = b'["' + b"a" * ((1 << 20) - 4) + b"\\" * slashes + b'"' + b"[" * 300
    assert measure(text)[0] == (301 if slashes == 4 else 1)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def depth_of(value):
    if isinstance(value, dict):
        return 1 + max(map(depth_of, value.values()), default=0)
    return 1 + max(map(depth_of, value), default=0) if isinstance(value, list) else 0


@given(JSON, st.booleans())
def test_depth_is_that_of_the_parsed_document(value, ascii_only):
    assert measure(json.dumps(value, ensure_ascii=ascii_only).encode())[0] == depth_of(value)


def test_the_document_and_256_in_it():
    check_json(b'{"x":' + b"[" * 256 + b"]" * 256 + b"}", Limits())
    with pytest.raises(Refused, match="256"):
        check_json(b'{"x":' + b"[" * 257 + b"]" * 257 + b"}", Limits())


def test_brackets_in_strings_do_not_count():
    check_json(json.dumps({"code": "[" * 10_000, "quoted": '\\"[' * 300}).encode(), Limits())


def test_a_flood_of_values_is_refused():
    with pytest.raises(Refused, match="values"):
        check_json(b"[" + b"1," * 1000 + b"1]", Limits(values=1000))
    with pytest.raises(Refused, match="arrays"):
        check_json(b"[" + b"[]," * 1000 + b"1]", Limits(containers=1000))
    check_json(b"[" + b"1," * 998 + b"1]", Limits(values=1000))
    check_json(b"[" + b"[]," * 999 + b"1]", Limits(containers=1000))
