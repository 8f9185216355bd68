"""Streams (docs/explanation/text.md 2): characters that are not complete yet, and stop strings."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds4ref.text.stream import StopHolder, StreamDecoder, partial_suffix
from tests.text.vocab import make

TOK = make()


def decode(data: bytes) -> list[str]:
    decoder = StreamDecoder(TOK)
    byte_ids = [TOK.encode(bytes([byte]))[0] for byte in data]
    return [*(decoder.feed(token) for token in byte_ids), decoder.finish()]


def test_a_split_character_appears_once_and_whole():
    assert decode("a€b".encode()) == ["a", "", "", "€", "b", ""]
    assert decode("😀".encode()) == ["", "", "", "😀", ""]
    assert decode(b"a\xe2\x82") == ["a", "", "", "\ufffd"]


@given(st.binary())
def test_any_bytes_come_out_as_python_decodes_them(data):
    assert "".join(decode(data)) == data.decode("utf-8", "replace")


def run(stops: list[str], chunks: list[str]) -> tuple[str, str | None]:
    holder = StopHolder(stops)
    shown = "".join(map(holder.feed, chunks)) + holder.finish()
    return shown, holder.stopped


def naive(stops: list[str], text: str) -> tuple[str, str | None]:
    found = [(text.find(stop), rank) for rank, stop in enumerate(stops) if stop and stop in text]
    if not found:
        return text, None
    start, rank = min(found)
    return text[:start], stops[rank]


@pytest.mark.parametrize(
    ("stops", "text", "shown", "stopped"),
    [
        (["END"], "one END two", "one ", "END"),
        (["END"], "one EN", "one EN", None),
        (["b", "ab"], "xabc", "x", "ab"),  # the earliest start
        (["ab", "a"], "xabc", "x", "ab"),  # first in the list on a tie
        (["a", "ab"], "xabc", "x", "a"),
        (["abcd", "bc"], "abce", "a", "bc"),  # had to wait for the longer one
        (["", "z"], "xyz", "xy", "z"),
        ([], "xyz", "xyz", None),
    ],
)
def test_stops(stops, text, shown, stopped):
    assert run(stops, [text]) == run(stops, list(text)) == (shown, stopped)


@given(
    st.lists(st.text(alphabet="ab", max_size=5), max_size=4),
    st.lists(st.text(alphabet="abc", max_size=6), max_size=8),
)
def test_stops_do_not_depend_on_the_pieces(stops, chunks):
    assert run(stops, chunks) == naive(stops, "".join(chunks))


def test_a_stop_listed_before_a_longer_one_does_not_wait():
    """Whole on arrival, it ends the answer then, and not with the next token."""
    holder = StopHolder(["ab", "abc"])
    assert (holder.feed("xab"), holder.stopped) == ("x", "ab")
    holder = StopHolder(["abc", "ab"])
    assert (holder.feed("xab"), holder.stopped) == ("x", None)
    assert (holder.finish(), holder.stopped) == ("", "ab")


def test_nothing_of_a_stop_is_shown_early():
    holder = StopHolder(["<end>"])
    assert [holder.feed(piece) for piece in ("a<", "e", "x<en", "d>b", "c")] == ["a", "", "<ex", "", ""]
    assert holder.stopped == "<end>" and holder.finish() == ""


def test_partial_suffix():
    assert partial_suffix("xx</th", "</think>") == 4
    assert partial_suffix("abab", "abac") == 2
    assert partial_suffix("abc", "abc") == 0
    assert partial_suffix("", "abc") == 0
