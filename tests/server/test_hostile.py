"""Clients that mean no good, or are broken: each gets a 4xx or a clean close, others are served meanwhile."""

import gzip
import json
import socket
import threading
import time
from dataclasses import replace

import h11
import pytest

from ds4ref.environment import resident_bytes
from ds4ref.server.limits import Limits
from ds4ref.server.protocol import Connection
from tests.system import open_files

from .conftest import QUICK, post, read_all, read_one

GET = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
OK = b'{"say":"hi"}'


def status(answer):
    """The status of a raw answer, 0 for none."""
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.1 ") else 0


def message(answer):
    return json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["message"]


HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
POST = b"POST /v1/echo HTTP/1.1\r\nHost: localhost\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"

BAD = {
    "no request line": b"\r\n\r\n\r\n",
    "nonsense": b"hello\r\n\r\n",
    "tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "http/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "http/9": b"GET / HTTP/9.1.1\r\n\r\n",
    "no host": b"GET /health HTTP/1.1\r\n\r\n",
    "two hosts": HEALTH + b"Host: localhost\r\n\r\n",
    "header without colon": HEALTH + b"nonsense\r\n\r\n",
    "space before the colon": b"GET /health HTTP/1.1\r\nHost : localhost\r\n\r\n",
    "nul in a header": HEALTH + b"X: a\x00b\r\n\r\n",
    "nul in the path": b"GET /hea\x00lth HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a path that is no ASCII": b"GET /\xff\xfe HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a negative length": POST + b"Content-Length: -1\r\n\r\n",
    "a length in words": POST + b"Content-Length: ten\r\n\r\n",
    "a length beyond all numbers": POST + b"Content-Length: %s\r\n\r\n" % (b"9" * 99),
    "two lengths": POST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n",
    "length and chunks": POST + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a chunk of no size": CHUNKED + b"zz\r\n",
    "a chunk that goes on": CHUNKED + b"1\r\nabc\r\n",
    "a chunk with a huge size": CHUNKED + b"f" * 40 + b"\r\n",
    "a continued first header": b"GET /health HTTP/1.1\r\n Host: localhost\r\n\r\n",
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_request(scripted, name):
    answer = scripted.raw(BAD[name])
    assert status(answer) == 400, answer
    assert message(answer) == "bad HTTP request"
    assert scripted.ask().status_code == 200


def test_an_unknown_transfer_coding(scripted):
    answer = scripted.raw(b"POST /v1/echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip\r\n\r\n")
    assert status(answer) == 501


@pytest.mark.parametrize(
    ("request_", "wanted"),
    [
        (b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 414),
        (b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 10_000 + b"\r\n", 431),
        (b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 70_000 + b"\r\n\r\n", 431),
        (b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + b"X: " * 70_000, 431),
        (b"A" * 100_000, 431),
    ],
)
def test_headers_beyond_measure(scripted, request_, wanted):
    assert status(scripted.raw(request_)) == wanted
    assert scripted.ask().status_code == 200


def test_as_many_headers_as_allowed(serving):
    server = serving(limits=replace(QUICK, headers=20))
    for extra, wanted in ((18, 200), (19, 431)):
        lines = b"".join(b"X-%d: y\r\n" % i for i in range(extra))
        answer = server.raw(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" + lines + b"\r\n")
        assert status(answer) == wanted


# --- bodies


def test_a_body_of_100_mb_is_refused_before_it_is_sent(scripted):
    head = b"POST /v1/echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000000\r\nExpect: 100-continue\r\n\r\n"
    answer = scripted.raw(head)
    assert status(answer) == 413 and b"100 Continue" not in answer


def test_who_sends_too_much_reads_why(serving):
    """The client sees the answer although it is still sending, and the server reads no more than it must."""
    server = serving(limits=replace(QUICK, body_bytes=1 << 20))
    sock = server.connect()
    sock.sendall(b"POST /v1/echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50000000\r\n\r\n")
    sock.sendall(bytes(4 << 20))
    answer = read_all(sock)
    assert status(answer) == 413
    answer = server.raw(
        b"POST /v1/echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n",
        *[b"40000\r\n" + bytes(0x40000) + b"\r\n"] * 8,
    )
    assert status(answer) == 413 and server.service.body_budget.bytes == 0


def test_chunked_bodies(scripted):
    pieces = [b'{"say"', b":", b'"hello"}']
    chunks = b"".join(b"%x;ext=1\r\n%s\r\n" % (len(piece), piece) for piece in pieces)
    head = b"POST /v1/echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    answer = scripted.raw(head, chunks, b"0\r\nX-Trailer: 1\r\n\r\n")
    assert status(answer) == 200


def test_a_body_in_crumbs(serving):
    server = serving()
    answer = server.raw(
        b"POST /v1/echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n" * 100_000
    )
    assert status(answer) == 400


def test_crumbs_are_counted_by_request(serving):
    """Two bodies of 3000 single bytes on one connection are two bodies, not one of 6000."""
    conn = Connection(Limits(), lambda event: None)
    for _ in range(2):
        conn.receive_data(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
        conn.receive_data(b"1\r\nx\r\n" * 3000 + b"0\r\n\r\n")
        while not isinstance(conn.next_event(), h11.EndOfMessage):
            pass
        conn.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
        conn.send(h11.EndOfMessage())
        conn.start_next_cycle()


def test_a_header_that_is_sent_twice_counts_twice(scripted):
    """As one list of values (RFC 9110 5.3): packed twice is not packed once."""
    body = gzip.compress(OK)
    answer = scripted.raw(post("/v1/echo", body, *["Content-Encoding: gzip"] * 2, "Connection: close"))
    assert status(answer) == 415
    assert status(scripted.raw(post("/v1/echo", body, "Content-Encoding: gzip", "Connection: close"))) == 200


def test_expect_100_continue(scripted):
    sock = scripted.connect()
    sock.sendall(post("/v1/echo", OK, "Expect: 100-continue")[: -len(OK)])
    assert sock.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"
    sock.sendall(OK)
    assert read_one(sock)[0] == 200


def test_compressed_bodies(scripted):
    packed = gzip.compress(OK)
    assert status(scripted.raw(post("/v1/echo", packed, "Content-Encoding: gzip", "Connection: close"))) == 200
    for body, coding, wanted in (
        (packed, "br", 415),
        (packed[:-4], "gzip", 400),
        (OK, "gzip", 400),
        (gzip.compress(bytes(65 << 20)), "gzip", 413),
    ):
        answer = scripted.raw(post("/v1/echo", body, f"Content-Encoding: {coding}", "Connection: close"))
        assert status(answer) == wanted, coding
        answer = scripted.raw(post("/tokenize", body, f"Content-Encoding: {coding}", "Connection: close"))
        assert status(answer) == wanted, coding


HOSTILE_JSON = {
    "deep arrays": b"[" * 100_000 + b"]" * 100_000,
    "deep objects": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "deep and open": b'{"say":' + b"[" * 5_000_000,
    "many values": b'{"say":[' + b"[]," * 3_000_000 + b"1]}",
    "not a number": b'{"say":NaN}',
    "infinite": b'{"say":-Infinity}',
    "digits": b'{"say":' + b"1" * 1_000_000 + b"}",
    "exponent": b'{"say":1e999999999}',
    "a lone surrogate": b'{"say":"\\ud800"}',
    "no UTF-8": b'{"say":"\xff"}',
    "a byte order mark": b"\xef\xbb\xbf" + OK,
    "UTF-16": '{"say":"hi"}'.encode("utf-16"),
    "nul": b'{"say":"a\\u0000b"}',
    "control characters": b'{"say":"a\x01b"}',
    "the same key twice": b'{"say":"a","say":"b"}',
    "empty": b"",
    "white space": b" " * 1_000_000,
    "another document": OK + OK,
}


@pytest.mark.parametrize("name", HOSTILE_JSON)
@pytest.mark.parametrize("path", ["/v1/echo", "/tokenize", "/detokenize"])
def test_json_beyond_reason(scripted, name, path):
    answer = scripted.client.post(path, content=HOSTILE_JSON[name])
    assert answer.status_code in (200, 400)
    assert (answer.status_code == 200) == ("error" not in answer.json())
    assert scripted.service.body_budget.bytes == 0


@pytest.mark.parametrize("name", ["deep arrays", "deep objects", "deep and open", "many values"])
def test_what_no_parser_should_see(scripted, name):
    answer = scripted.client.post("/v1/echo", content=HOSTILE_JSON[name])
    assert answer.status_code == 400 and answer.json()["error"]["message"].startswith("JSON ")


# --- connections


@pytest.mark.parametrize(
    "start",
    [b"G", b"GET /health HTTP/1.1\r\nHost: loc", GET[:-2]],
)
def test_headers_that_do_not_come(serving, start):
    server = serving(limits=replace(QUICK, header_seconds=0.2))
    answer = server.raw(start)
    assert status(answer) == 408 and "in time" in message(answer)


def test_headers_that_drip(serving):
    """The deadline is for all of them: a byte now and then does not put it off."""
    server = serving(limits=replace(QUICK, header_seconds=0.3))
    sock = server.connect()
    sock.sendall(b"GET /health HTTP/1.1\r\n")
    sock.settimeout(0.02)
    found, sent = b"", 0
    while not found:
        assert sent < 500
        try:
            sock.sendall(b"X")
            sent += 1
            found = sock.recv(65536)
        except TimeoutError:
            continue
    assert status(found) == 408


def test_who_asks_for_nothing_is_left_without_a_word(serving):
    server = serving(limits=replace(QUICK, header_seconds=0.1, idle_seconds=0.2))
    assert server.raw() == b""
    sock = server.connect()
    sock.sendall(GET)
    assert read_one(sock)[0] == 200
    assert read_all(sock) == b""  # after a while


def test_a_body_that_does_not_come(serving):
    server = serving(limits=replace(QUICK, body_seconds=0.2))
    answer = server.raw(post("/v1/echo", OK)[:-1])
    assert status(answer) == 408
    server.until(lambda: server.service.body_budget.bytes == 0)


def test_an_answer_may_take_longer_than_a_request(serving):
    server = serving(limits=replace(QUICK, header_seconds=0.1, body_seconds=0.1, idle_seconds=0.1))
    server.engine.hold()
    sock = server.connect()
    sock.sendall(post("/v1/echo", OK))
    server.engine.held()
    time.sleep(0.4)
    server.engine.release()
    assert read_one(sock)[0] == 200


def test_slowloris_does_not_keep_others_out(serving):
    """All connections are taken by those who never finish asking: the slowest of them make room."""
    server = serving(limits=replace(QUICK, connections=20, header_seconds=60.0, body_seconds=60.0))
    slow = []
    for i in range(60):
        sock = server.connect()
        sock.sendall(GET[:20] if i % 2 else post("/v1/echo", OK)[:-3])
        slow.append(sock)
    for _ in range(5):
        assert server.ask().status_code == 200
    assert len(server.background.server.server_state.connections) <= 21
    assert read_all(slow[0]) == b""


def test_those_who_wait_for_an_answer_are_not_put_out(serving):
    server = serving(limits=replace(QUICK, connections=4))
    server.engine.hold()
    asked = [server.connect() for _ in range(4)]
    for sock in asked:
        sock.sendall(post("/v1/echo", OK))
    server.until(lambda: len(server.worker.queue) == 3)
    answer = server.raw(GET)
    assert status(answer) == 503 and b"retry-after" in answer.lower()
    server.engine.release()
    for sock in asked:
        assert read_one(sock)[0] == 200


@pytest.mark.parametrize(
    ("sent", "wanted"),
    [(b"", 0), (GET, 200), (GET[:-2], 400), (post("/v1/echo", OK)[:-1], 400), (post("/v1/echo", OK), 0)],
)
def test_half_closed_connections(scripted, sent, wanted):
    """What is at hand is answered; who closes its side while an answer is generated is taken for gone."""
    scripted.engine.hold()
    answer = scripted.raw(sent, shut=True)
    assert status(answer) == wanted
    scripted.engine.release()
    scripted.until(lambda: not scripted.worker.running)
    assert scripted.ask().status_code == 200


def test_pipelining(scripted):
    sock = scripted.connect()
    sock.sendall(GET + post("/v1/echo", OK) + GET + b"nonsense\r\n\r\n")
    assert [read_one(sock)[0] for _ in range(4)] == [200, 200, 200, 400]
    assert read_all(sock) == b""


def test_a_pipelined_request_does_not_hide_that_the_client_left(scripted):
    scripted.engine.hold()
    sock = scripted.connect()
    sock.sendall(post("/v1/echo", OK) + GET)
    scripted.engine.held()
    (job,) = scripted.worker.running
    sock.close()
    scripted.until(lambda: job.cancel.requested)
    scripted.engine.release()


def test_too_much_pipelined_is_not_read(serving):
    server = serving(limits=replace(QUICK, pipelined_bytes=10_000))
    server.engine.hold()
    sock = server.connect(SO_SNDBUF=4096)
    sock.sendall(post("/v1/echo", OK))
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


def test_an_upgrade_is_answered_in_http(scripted):
    head = b"GET %s HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"
    for path, wanted in ((b"/health", 200), (b"/v1/responses", 404)):
        sock = scripted.connect()
        sock.sendall(head % path)
        assert read_one(sock)[0] == wanted


def test_resets(scripted):
    for _ in range(20):
        sock = scripted.connect()
        sock.sendall(post("/v1/echo", OK))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
        sock.close()
    assert scripted.ask().status_code == 200
    scripted.until(lambda: not scripted.service.board.state()["live"])


def test_nothing_is_left_behind(scripted):
    """Open files and held bytes are what they were, after all kinds of connections."""
    assert scripted.ask().status_code == 200

    before = open_files()
    for data in (*BAD.values(), GET[:-2], post("/v1/echo", OK)[:-1], GET, post("/v1/echo", OK)):
        scripted.raw(data, shut=True)
    for sock in scripted.sockets:
        sock.close()
    scripted.until(lambda: open_files() <= before)
    assert scripted.service.body_budget.bytes == 0
    assert not scripted.service.board.state()["live"]


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


@pytest.mark.thorough
def test_a_storm_leaves_memory_flat_and_others_served(serving):
    """Bombs, floods and half requests from eight threads; meanwhile somebody is answered again and again."""
    server = serving(limits=replace(QUICK, body_bytes=4 << 20, held_bytes=16 << 20))
    bomb = post("/v1/echo", gzip.compress(bytes(64 << 20)), "Content-Encoding: gzip", "Connection: close")
    storm = [
        bomb,
        post("/v1/echo", HOSTILE_JSON["deep arrays"], "Connection: close"),
        BAD["length and chunks"],
        GET[:-3],
    ]
    storm.append(post("/v1/echo", b"[" + b"[]," * 1_000_000 + b"1]", "Connection: close"))
    wrong, used = [], []

    def attack():
        for data in storm * 2:
            answer = server.raw(data, shut=data is storm[3])
            if status(answer) not in (400, 413, 503):
                wrong.append(answer)

    for _ in range(4):
        threads = [threading.Thread(target=attack) for _ in range(8)]
        for thread in threads:
            thread.start()
        served = 0
        while any(thread.is_alive() for thread in threads):
            assert server.ask().status_code == 200
            served += 1
        for thread in threads:
            thread.join()
        assert not wrong and served > 3
        assert server.service.body_budget.bytes == 0
        used.append(memory())
    assert min(used[2:]) - max(used[:2]) < 16 << 20


def memory():
    """Resident bytes of this process."""
    size = resident_bytes()
    if size is None:
        pytest.skip("this system does not tell resident memory")
    return size
