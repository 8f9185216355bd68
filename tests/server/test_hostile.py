"""Clients that mean no good, or are broken: each gets a 4xx or a clean close, others are served meanwhile."""

from __future__ import annotations

import gc
import gzip
import json
import signal
import socket
import threading
import time
from dataclasses import replace
from typing import Any

import h11
import httpx2
import pytest

from tests.marking import sampled
from tests.system import open_files

from .conftest import QUICK, post, read_all, read_one
from .hostile import ASKS, CHAT, LINES, MALFORMED, STRANGE, TOLERATED, Case, demands, get
from .process import process

GET = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
OK = b'{"say":"hi"}'
SAY = post("/v1/echo", OK)


def status(answer: bytes) -> int:
    """The status of a raw answer, 0 for none."""
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.1 ") else 0


def answered(server: Any, case: Case) -> bytes:
    """All that comes back; the server may have hung up before all is sent."""
    with server.connect() as sock:
        try:
            for piece in case.pieces:
                sock.sendall(piece)
            if case.shut:
                sock.shutdown(socket.SHUT_WR)
        except (BrokenPipeError, ConnectionResetError):
            pass  # it has said what it had to say
        return read_all(sock)


def check(data: bytes, wanted: Any) -> None:
    """One of the statuses, with an error in words that a client can read, and nothing of this machine."""
    assert status(data) in wanted, data[:200]
    assert b"root:" not in data and b"Traceback" not in data
    if 400 <= status(data) < 600:
        error = json.loads(data.partition(b"\r\n\r\n")[2].splitlines()[0])["error"]  # another answer may follow
        assert error["message"] and error["type"] and len(data) < 2500


@pytest.mark.parametrize("name", [*LINES, *STRANGE])
def test_what_is_no_request_of_ours(scripted, name):
    case = {**LINES, **STRANGE}[name]
    check(answered(scripted, case), case.wanted)
    assert scripted.ask().status_code == 200


@pytest.mark.parametrize("path", sampled(sorted({path for path, *_ in MALFORMED}), 3))
def test_bodies_that_are_refused_or_merely_strange(server, path):
    """One connection for all of them: none of them makes the server hang up."""
    for cases, wanted in ((MALFORMED, 400), (TOLERATED, 200)):
        for name, body in ((name, body) for where, name, body in cases if where == path):
            answer = server.client.post(path, content=body)
            assert answer.status_code == wanted, (name, answer.text[:200])
            if wanted == 400:
                assert len(answer.content) < 2000 and answer.json()["error"]["message"], name
                assert not path.startswith("/v1/messages") or answer.json()["type"] == "error"
    assert server.client.post(path, json=ASKS[path]).status_code == 200
    assert server.service.body_budget.bytes == 0


@pytest.mark.thorough
@pytest.mark.parametrize("kind", sampled(["format", "tool", "grammar"], ["tool"]))
def test_demands_beyond_reason(server, kind):
    """Schemas and grammars: refused, or kept to; none is fetched from anywhere, none takes for ever."""
    for path, name, body in (entry for entry in demands() if entry[1].startswith(kind)):
        answer = server.client.post(path, content=body)
        assert answer.status_code in (200, 400) and "root:" not in answer.text, (name, answer.text[:200])


# --- bodies


def test_who_sends_too_much_reads_why(serving):
    """The client sees the answer although it is still sending, and the server reads no more than it must."""
    server = serving(limits=replace(QUICK, body_bytes=1 << 20))
    head = b"POST /v1/echo HTTP/1.1\r\nHost: localhost\r\n"
    assert status(server.raw(head + b"Content-Length: 50000000\r\n\r\n", bytes(4 << 20))) == 413
    pieces = [b"40000\r\n" + bytes(0x40000) + b"\r\n"] * 8
    assert status(server.raw(head + b"Transfer-Encoding: chunked\r\n\r\n", *pieces)) == 413
    announced = server.raw(head + b"Content-Length: 100000000\r\nExpect: 100-continue\r\n\r\n")
    assert status(announced) == 413 and b"100 Continue" not in announced
    assert server.service.body_budget.bytes == 0


def test_bodies_in_every_way_that_http_has(scripted):
    """Chunks with extensions and trailers, 100 Continue, gzip; a header that is sent twice counts twice (RFC 9110)."""
    chunks = b"".join(b"%x;ext=1\r\n%s\r\n" % (len(piece), piece) for piece in (b'{"say"', b":", b'"hello"}'))
    head = b"POST /v1/echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    assert status(scripted.raw(head, chunks, b"0\r\nX-Trailer: 1\r\n\r\n")) == 200
    sock = scripted.connect()
    sock.sendall(post("/v1/echo", OK, "Expect: 100-continue")[: -len(OK)])
    assert sock.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"
    sock.sendall(OK)
    assert read_one(sock)[0] == 200
    for times, wanted in ((1, 200), (2, 415)):
        packed = post("/v1/echo", gzip.compress(OK), *["Content-Encoding: gzip"] * times, "Connection: close")
        assert status(scripted.raw(packed)) == wanted


def test_a_body_that_looks_like_a_request_is_a_body(scripted):
    body = json.dumps({"say": get(b"/metrics").decode()}).encode()
    data = scripted.raw(post("/v1/echo", body, "Connection: close"))
    assert data.count(b"HTTP/1.1 ") == 1 and b"ds4_requests" not in data
    for coding in (b"Transfer-Encoding: chunked", b"Transfer-Encoding : chunked", b"Transfer-Encoding:\x0bchunked"):
        head = b"POST /v1/echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 6\r\n" + coding
        answer = scripted.raw(head + b"\r\n\r\n0\r\n\r\n" + get(b"/metrics"))
        assert status(answer) == 400 and b"ds4_requests" not in answer


def test_bodies_at_once_are_bounded(serving):
    server = serving(limits=replace(QUICK, body_bytes=10_000, held_bytes=15_000), ctx=20_000)
    big = post("/v1/echo", b'{"say":"' + b"x" * 8000 + b'"}', "Connection: close")
    slow = server.connect()
    slow.sendall(big[:-1])
    server.until(lambda: server.service.body_budget.bytes > 8000)
    answer = server.raw(big)
    assert status(answer) == 503 and b"retry-after" in answer.lower()
    assert server.ask().status_code == 200
    slow.sendall(big[-1:])
    assert read_one(slow)[0] == 200


# --- connections


def test_what_does_not_come_in_time(serving):
    """Headers, however they drip, and bodies; who asks for nothing is left without a word."""
    server = serving(limits=replace(QUICK, header_seconds=0.2, body_seconds=0.2, idle_seconds=0.2, headers=20))
    for start in (b"G", b"GET /health HTTP/1.1\r\nHost: loc", GET[:-2], SAY[:-1]):
        answer = server.raw(start)
        assert status(answer) == 408 and b"in time" in answer
    server.until(lambda: server.service.body_budget.bytes == 0)
    assert server.raw() == b""
    sock = server.connect()
    sock.sendall(GET)
    assert read_one(sock)[0] == 200 and read_all(sock) == b""
    sock = server.connect()
    sock.sendall(b"GET /health HTTP/1.1\r\n")
    sock.settimeout(0.02)
    found, sent = b"", 0
    while not found:
        assert sent < 500, "a byte now and then does not put it off"
        try:
            sock.sendall(b"X")
            sent += 1
            found = sock.recv(65536)
        except TimeoutError:
            continue
    assert status(found) == 408
    for extra, wanted in ((18, 200), (19, 431)):  # as many headers as allowed, and one more
        lines = b"".join(b"X-%d: y\r\n" % i for i in range(extra))
        assert status(server.raw(GET[:-2] + b"Connection: close\r\n" + lines + b"\r\n")) == wanted
    server.engine.hold()  # an answer may take longer than a request
    sock = server.connect()
    sock.sendall(SAY)
    server.engine.held()
    time.sleep(0.4)
    server.engine.release()
    assert read_one(sock)[0] == 200


def test_slowloris_does_not_keep_others_out(serving):
    """All connections are taken by those who never finish asking: the slowest of them make room; those who wait for an
    answer stay."""
    server = serving(limits=replace(QUICK, connections=20, header_seconds=60.0, body_seconds=60.0))
    slow = []
    for i in range(60):
        slow.append(server.connect())
        slow[-1].sendall(GET[:20] if i % 2 else SAY[:-3])
    for _ in range(5):
        assert server.ask().status_code == 200
    assert len(server.background.server.server_state.connections) <= 21
    assert read_all(slow[0]) == b""
    server = serving(limits=replace(QUICK, connections=4))
    server.engine.hold()
    waiting = [server.connect() for _ in range(4)]
    for sock in waiting:
        sock.sendall(SAY)
    server.until(lambda: len(server.worker.queue) == 3)
    answer = server.raw(GET)
    assert status(answer) == 503 and b"retry-after" in answer.lower()
    server.engine.release()
    assert all(read_one(sock)[0] == 200 for sock in waiting)


@pytest.mark.parametrize(("sent", "wanted"), [(b"", 0), (GET, 200), (GET[:-2], 400), (SAY[:-1], 400), (SAY, 0)])
def test_half_closed_connections(scripted, sent, wanted):
    """What is at hand is answered; who closes its side while an answer is generated is taken for gone."""
    scripted.engine.hold()
    assert status(scripted.raw(sent, shut=True)) == wanted
    scripted.engine.release()
    scripted.until(lambda: not scripted.worker.running)
    assert scripted.ask().status_code == 200


def test_pipelining(serving):
    """Answered in order; what is no request ends the connection after the answers before it; too much is not read; and
    a pipelined request does not hide that the client left."""
    server = serving(limits=replace(QUICK, pipelined_bytes=10_000))
    sock = server.connect()
    sock.sendall(GET + SAY + GET + b"nonsense\r\n\r\n")
    assert [read_one(sock)[0] for _ in range(4)] == [200, 200, 200, 400] and read_all(sock) == b""
    server.engine.hold()
    sock = server.connect(SO_SNDBUF=4096)
    sock.sendall(SAY)
    server.engine.held()
    sock.settimeout(0.5)
    sent = 0
    try:
        while sent < 40 << 20:
            sent += sock.send(GET * 1000)
    except TimeoutError:
        pass
    assert sent < 20 << 20
    server.engine.release()
    sock.settimeout(30)
    assert read_one(sock)[0] == 200
    server.engine.hold()
    sock = server.connect()
    sock.sendall(SAY + GET)
    server.engine.held()
    (job,) = server.worker.running
    sock.close()
    server.until(lambda: job.cancel.requested)
    server.engine.release()
    for path, wanted in ((b"/health", 200), (b"/v1/responses", 404)):  # there are no websockets
        sock = server.connect()
        sock.sendall(get(path, b"Upgrade: websocket", b"Connection: Upgrade", close=False))
        assert read_one(sock)[0] == wanted


def test_nothing_is_left_behind(scripted):
    """Open files, held bytes and turns are what they were, after all kinds of connections and resets."""
    assert scripted.ask().status_code == 200
    before, threads = open_files(), threading.active_count()
    for case in [
        *LINES.values(),
        *(Case((data,), frozenset(), True) for data in (GET, SAY, SAY[:-1])),
    ]:
        answered(scripted, case)
    for _ in range(20):
        sock = scripted.connect()
        sock.sendall(SAY)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
        sock.close()
    for sock in scripted.sockets:
        sock.close()
    scripted.until(lambda: open_files() <= before and threading.active_count() <= threads + 3)
    scripted.until(lambda: not scripted.seen.live)
    scripted.until(lambda: scripted.service.body_budget.bytes == 0)
    assert scripted.ask().status_code == 200


def test_a_refused_connection_is_freed_at_once(scripted):
    """An error that was kept held its frames, and 10,000 headers with them, until the next full collection."""
    gc.collect()
    gc.disable()
    try:
        for _ in range(5):
            assert status(scripted.raw(b"GET / HTTP/1.1\r\nHost: a\r\n" + b"X: y\r\n" * 300 + b"\r\n")) == 431
        scripted.until(lambda: not any(type(one) is h11.RemoteProtocolError for one in gc.get_objects()))
    finally:
        gc.enable()


def test_a_restarted_server_goes_on_from_disk(nano_path, tmp_path):
    """As a process of its own: the same answer after a restart."""
    flags = ("-c", "2048", "--kv-disk-dir", str(tmp_path), "--kv-cache-min-tokens", "32")
    history = [
        {"role": "system", "content": "Keep to the rules of the house. " * 30},
        {"role": "user", "content": "Hi"},
    ]
    answers = []
    for stop in (signal.SIGTERM, signal.SIGHUP):
        with process(nano_path, *flags) as server:
            body = {"messages": history, "max_tokens": 8, "temperature": 0}
            found = httpx2.post(server.url + CHAT, json=body, trust_env=False, timeout=60).json()
            answers.append((found["usage"]["prompt_tokens_details"]["cached_tokens"], found["choices"][0]["message"]))
            server.process.send_signal(stop)
            assert server.ends() == 0
    (cold, said), (cached, again) = answers
    assert cold == 0 and cached > 32 and again == said
