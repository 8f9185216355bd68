"""Answers as bytes: characters cut in two, by a real server, whole and streamed; events in pieces of any size."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds4ref.errors import TargetError
from ds4ref.targets import Prompt, Request, collect
from ds4ref.targets.openai import HttpTarget
from ds4ref.targets.wire import decoded, events, printable, raw_bytes

EURO = "€".encode()
PIECES = [b"a", EURO[:1], EURO[1:], b"b", b"\xff", EURO[:2]]
"""What the tokens of the answer hold: a character in two tokens, a byte that never was one, and an end too early."""


def chat(pieces: list[bytes], text: str, finish: str) -> bytes:
    """A choice as a careless server writes it: each token's bytes between quotes, whatever they are."""

    def token(raw: bytes, logprob: bytes) -> bytes:
        return b'{"token":"' + raw + b'","logprob":' + logprob

    content = b",".join(token(p, b"-0.5") + b',"top_logprobs":[' + token(p, b"-0.5}") + b"]}" for p in pieces)
    key = {"delta": b'"delta":{"content":"', "message": b'"message":{"content":"'}[text]
    return (b'{"model":"m","choices":[{' + key + b"".join(pieces) + b'"},"finish_reason":' + finish.encode()
            + b',"logprobs":{"content":[' + content + b"]}}]}")  # fmt: skip


class Careless(BaseHTTPRequestHandler):
    """One chat endpoint; streams if asked to."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if asked["stream"]:
            body = b"".join(b"data: " + chat([p], "delta", "null") + b"\n\n" for p in PIECES)
            body += b"data: " + chat([], "delta", '"length"') + b"\n\ndata: [DONE]\n\n"
            kind = "text/event-stream"
        else:
            body, kind = chat(PIECES, "message", '"length"'), "application/json"
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing on stderr."""


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Careless) as made:
        thread = threading.Thread(target=made.serve_forever, args=(0.02,))
        thread.start()
        yield f"http://127.0.0.1:{made.server_address[1]}/v1"
        made.shutdown()
        thread.join()


ASK = Request(Prompt.chat("Hi"), 6, top_logprobs=1)


@pytest.mark.parametrize("stream", [False, True])
def test_characters_cut_in_two(server: str, stream: bool) -> None:
    """Tokens keep their bytes, the text has its character, and what is no character shows as one replacement."""
    with HttpTarget(server, "m") as target:
        assert target.notes() == []
        done = collect(target.stream(ASK)) if stream else target.complete(ASK)
        assert [s.token.raw for s in done.steps] == PIECES and [s.top[0].raw for s in done.steps] == PIECES
        assert done.text == "a€b\ufffd\ufffd" and done.finish == "length"
        # not streamed, the euro's bytes stand together in the message, and are cut in two tokens, twice each
        assert target.transport.undecodable == (3 * 6 if stream else 2 * 6 + 3)
        (note,) = target.notes()
        assert f"{target.transport.undecodable} bytes were not UTF-8" in note


@given(st.binary(max_size=30))
def test_bytes_survive(data: bytes) -> None:
    text, lost = decoded(data)
    assert raw_bytes(text) == data and printable(text) == data.decode("utf-8", "replace")
    assert (lost == 0) == (data == data.decode("utf-8", "ignore").encode())


def test_half_a_surrogate_pair_is_one_hole() -> None:
    assert raw_bytes("a\ud83db") == "a\ufffdb".encode() and printable("\udfff\udce2") == "\ufffd\ufffd"


STREAM = b": hello\r\ndata: one\r\ndata:  two\r\n\r\nevent: x\rdata: three\r\rid: 7\n\ndata\n\ndata: torn"


@given(st.lists(st.integers(0, len(STREAM)), max_size=8).map(sorted))
def test_events_in_pieces_of_any_size(cuts: list[int]) -> None:
    ends = [0, *cuts, len(STREAM)]
    chunks = [STREAM[a:b] for a, b in zip(ends, ends[1:], strict=False)]
    assert list(events(chunks, 100)) == [b"one\n two", b"three", b""]


def test_an_event_ends_with_the_stream_only_if_it_was_complete() -> None:
    assert list(events([b"data: a\n\r"], 100)) == [b"a"] and list(events([b"data: a\n"], 100)) == []


@pytest.mark.parametrize(
    "chunks", [[b"data: " + bytes(200)], [b"data: " + b"x" * 60 + b"\n"] * 2], ids=["line", "data"]
)
def test_events_have_a_largest_size(chunks: list[bytes]) -> None:
    with pytest.raises(TargetError, match="larger than"):
        list(events(chunks, 100))
