"""Hostile clients against ``ds4-server`` itself, a process on a real socket: a 4xx or a clean close for each, others
are answered meanwhile, and afterwards it holds no more of the machine than before.

``test_hostile`` has the same in one process, where deadlines can be short; ``hostile`` has what is sent.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator

import httpx2
import pytest

from ds4ref.targets.transport import tls_context
from tests.marking import sampled

from .conftest import read_all
from .hostile import (
    ASKS,
    CHAT,
    GENERATES,
    LARGE,
    LINES,
    MALFORMED,
    RESULTS,
    STRANGE,
    TOLERATED,
    Case,
    demands,
    get,
    made,
    post,
)
from .process import Process, process

MiB = 1 << 20
CTX = "4096"


@pytest.fixture(scope="module")
def one(nano_path: str) -> Iterator[Process]:
    """The server of this module."""
    with process(nano_path, "-c", CTX) as running:
        yield running


@pytest.fixture(autouse=True)
def _bystander(request: pytest.FixtureRequest) -> Iterator[None]:
    """Somebody who is answered all the time, and a server that is there afterwards and did not hit a bug."""
    one: Process = request.getfixturevalue("one")
    said = len(one.lines)
    with bystander(one):
        yield
    assert one.process.poll() is None
    assert not [line for line in one.lines[said:] if "Traceback" in line or "Error" in line.split(" ")]


class bystander:
    """A client that asks again and again while the block runs; each of its requests has to be answered, several have
    to be."""

    def __init__(self, one: Process, least: int = 1):
        self.url, self.least = one.url, least
        self.answers: list[int] = []
        self.wrong: list[object] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._ask)

    def _ask(self) -> None:
        body = {"messages": [{"role": "user", "content": "Who are you?"}], "thinking": False, "max_tokens": 2}
        # One connection per request: a kept one that waits may be the one that makes room for hundreds of others.
        alone = httpx2.Limits(max_keepalive_connections=0)
        with httpx2.Client(
            base_url=self.url, timeout=60, verify=tls_context(), trust_env=False, limits=alone
        ) as client:
            while not self._over.is_set() or len(self.answers) < self.least:
                try:
                    for answer in (client.get("/health"), client.post(CHAT, json={**body, "temperature": 0})):
                        self.answers.append(answer.status_code)
                        if answer.status_code != 200:
                            self.wrong.append(answer.text)
                except httpx2.HTTPError as error:
                    self.wrong.append(error)
                    return

    def __enter__(self) -> bystander:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join(120)
        assert not self._thread.is_alive() and not self.wrong, self.wrong


def answered(one: Process, case: Case) -> tuple[int, bytes]:
    """Status and body of what comes back; 0 if nothing does."""
    pieces = case.pieces()  # before the connection is there, which has little time
    with one.connect() as sock:
        try:
            for piece in pieces:
                sock.sendall(piece)
            if case.shut:
                sock.shutdown(socket.SHUT_WR)
        except (BrokenPipeError, ConnectionResetError):
            pass  # it has said what it had to say
        data = read_all(sock)
    if not data:
        return 0, b""
    head, _, body = data.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 "), data[:100]
    return int(head.split(b" ", 2)[1]), body


def refused(status: int, body: bytes) -> None:
    """An error in words that a client can read."""
    if 400 <= status < 600:
        error = json.loads(body.splitlines()[0])["error"]  # another answer may follow
        assert isinstance(error["message"], str) and error["message"] and error["type"]
        assert len(body) < 2000 and "Traceback" not in error["message"]


@pytest.mark.parametrize("name", [*LINES, *STRANGE])
def test_what_is_no_request_of_ours(one: Process, name: str) -> None:
    case = {**LINES, **STRANGE}[name]
    status, body = answered(one, case)
    assert status in case.wanted, (status, body[:200])
    refused(status, body)
    assert b"root:" not in body


@pytest.mark.thorough
@pytest.mark.parametrize("name", LARGE)
def test_bodies_beyond_measure(one: Process, name: str) -> None:
    status, body = answered(one, LARGE[name])
    assert status in LARGE[name].wanted, (status, body[:200])
    refused(status, body)


@pytest.mark.thorough
@pytest.mark.parametrize("path", sampled(sorted({path for path, *_ in MALFORMED}), 3))
def test_malformed_requests(one: Process, path: str) -> None:
    """One connection for all of them: none of them makes the server hang up."""
    with httpx2.Client(base_url=one.url, timeout=60, verify=tls_context(), trust_env=False) as client:
        wrong = []
        for _, name, body in (entry for entry in MALFORMED if entry[0] == path):
            answer = client.post(path, content=body)
            if answer.status_code != 400:
                wrong.append((name, answer.status_code, answer.text[:200]))
            refused(answer.status_code, answer.content)
            if path.startswith("/v1/messages"):
                assert answer.json()["type"] == "error"
        assert not wrong


@pytest.mark.thorough
@pytest.mark.parametrize("path", GENERATES)
def test_strange_requests_that_are_answered(one: Process, path: str) -> None:
    with httpx2.Client(base_url=one.url, timeout=60, verify=tls_context(), trust_env=False) as client:
        wrong = []
        for _, name, body in (entry for entry in TOLERATED if entry[0] == path):
            answer = client.post(path, content=body)
            if answer.status_code != 200 or not answer.json():
                wrong.append((name, answer.status_code, answer.text[:200]))
        assert not wrong


@pytest.mark.parametrize("path", RESULTS)
def test_results_of_calls_that_nobody_made(one: Process, path: str) -> None:
    answer = httpx2.post(one.url + path, content=RESULTS[path], timeout=60, trust_env=False)
    assert answer.status_code == 400
    refused(answer.status_code, answer.content)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", sampled(["format", "tool", "grammar"], ["tool"]))
def test_demands_beyond_reason(one: Process, kind: str) -> None:
    """Schemas and grammars: refused, or kept to; none is fetched from anywhere, none takes for ever."""
    before = one.held.memory
    with httpx2.Client(base_url=one.url, timeout=60, verify=tls_context(), trust_env=False) as client:
        wrong = []
        for path, name, body in (entry for entry in demands() if entry[1].startswith(kind)):
            answer = client.post(path, content=body)
            if answer.status_code not in (200, 400) or "root:" in answer.text:
                wrong.append((name, answer.status_code, answer.text[:200]))
            refused(answer.status_code, answer.content)
        assert not wrong
    assert one.held.memory - before < 256 * MiB


def test_each_kind_of_request_would_be_answered(one: Process) -> None:
    """That what is refused above is refused for what is wrong with it."""
    for path, body in ASKS.items():
        assert httpx2.post(one.url + path, json=body, timeout=60, trust_env=False).status_code == 200


@pytest.mark.thorough
def test_requests_one_upon_the_other(one: Process) -> None:
    """Pipelined, and answered in order; what is no request ends the connection after the answers before it."""
    health, chat = get(b"/health", close=False), post(CHAT, json.dumps(ASKS[CHAT]).encode())
    chat = chat.replace(b"Connection: close\r\n", b"")
    for many in (1, 100):
        pieces = (health + chat) * many + b"nonsense\r\n\r\n"
        with one.connect() as sock:
            sock.sendall(pieces)
            data = read_all(sock)
        assert data.count(b"HTTP/1.1 200 OK") == 2 * many and data.count(b"HTTP/1.1 400 Bad Request") == 1
        assert data.rindex(b"HTTP/1.1 400") > data.rindex(b"HTTP/1.1 200")


def test_smuggled_requests(one: Process) -> None:
    """A body that looks like a request is a body."""
    inner = get(b"/metrics")
    body = json.dumps({**ASKS[CHAT], "user": inner.decode()}).encode()
    with one.connect() as sock:
        sock.sendall(post(CHAT, body))
        data = read_all(sock)
    assert data.count(b"HTTP/1.1 ") == 1 and b"ds4_requests" not in data
    for coding in (b"Transfer-Encoding: chunked", b"Transfer-Encoding : chunked", b"Transfer-Encoding:\x0bchunked"):
        raw = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 6\r\n" + coding
        status, answer = answered(one, made(lambda raw=raw: [raw + b"\r\n\r\n0\r\n\r\n" + inner], 400))
        assert status == 400 and b"ds4_requests" not in answer


def test_half_closed(one: Process) -> None:
    """What is at hand is answered; whose answer has yet to be generated, and who closes his side, has gone."""
    whole = post(CHAT, json.dumps({**ASKS[CHAT], "max_tokens": 2000}).encode())
    for data, wanted in ((get(b"/health"), 200), (get(b"/health")[:-2], 400), (whole[:-1], 400), (whole, 0)):
        status, _ = answered(one, Case(lambda data=data: [data], frozenset(), shut=True))  # type: ignore[misc]
        assert status == wanted


@pytest.mark.thorough
def test_hundreds_of_connections_that_ask_for_nothing(one: Process) -> None:
    """Beyond the limit the one that has asked for nothing for longest makes room."""
    before = one.held.files
    idle = []
    try:
        for _ in range(24):  # no burst: whoever asks meanwhile is heard before hundreds of others have come
            idle += [one.connect() for _ in range(25)]
            assert httpx2.get(f"{one.url}/health", timeout=60, trust_env=False).status_code == 200
        assert one.held.files <= before + 520
    finally:
        for sock in idle:
            sock.close()
    one.settled(before + 2)


@pytest.mark.slow
def test_a_storm_of_all_of_them_leaves_nothing_behind(one: Process) -> None:
    """Everything above again and again, from several connections at once: memory, files and threads stay as they are
    from the second time on."""
    bodies = [(path, body) for path, _, body in (*MALFORMED, *TOLERATED)]
    others = [*LINES.values(), *STRANGE.values(), *LARGE.values()]
    strange: list[object] = []

    def some(part: int) -> None:
        with httpx2.Client(base_url=one.url, timeout=120, trust_env=False) as client:
            for path, body in bodies[part::4]:
                if client.post(path, content=body).status_code not in (200, 400, 503):
                    strange.append(body[:100])
        for case in others[part::4]:
            status, _ = answered(one, case)
            if status not in {*case.wanted, 503}:  # too many large bodies at once are told to come back
                strange.append((status, case))

    held = []
    for _ in range(4):
        with bystander(one, least=4):
            threads = [threading.Thread(target=some, args=(part,)) for part in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        held.append(one.settled(held[0].files + 2 if held else 1000))
    assert not strange
    assert held[-1].threads <= held[0].threads + 1
    assert held[-1].memory - held[1].memory < 48 * MiB, held


@pytest.mark.slow
def test_those_who_take_their_time(nano_path: str) -> None:
    """300 slow clients for as long as the server lets them: headers that drip, bodies that drip, answers unread. All
    of them end by its deadlines, and meanwhile nobody else notices."""
    drip = [get(b"/health")[:-4], post(CHAT, b"x" * 100)[:-100], b"", get(b"/health") + b"GET"]
    with process(nano_path, "-c", CTX, "--receive", "5", "--memory-mb", "8") as one:
        with bystander(one, least=100):
            pass  # what the allocator keeps for itself, it keeps from the first hundred answers on
        before = one.held
        sockets = [one.connect() for _ in range(300)]
        open_ = dict(enumerate(sockets))
        ends = time.monotonic() + 60
        with bystander(one, least=20):
            for number, sock in open_.items():
                sock.sendall(drip[number % len(drip)])
                sock.settimeout(0.01)
            while open_:
                assert time.monotonic() < ends, f"{len(open_)} are still served"
                for number, sock in list(open_.items()):
                    try:
                        sock.sendall(b"x" if number % len(drip) != 2 else b"")
                        if not read_all_there(sock):
                            del open_[number]
                    except OSError:
                        del open_[number]
        for sock in sockets:
            sock.close()
        after = one.settled(before.files + 2)
        assert after.memory - before.memory < 48 * MiB


def read_all_there(sock: socket.socket) -> bool:
    """Read what has come; False if nothing more will."""
    try:
        while sock.recv(65536):
            pass
        return False
    except TimeoutError:
        return True
