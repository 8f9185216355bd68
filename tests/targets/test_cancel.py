"""Stopping: at once, whatever a request waits for, and with what there is."""

from __future__ import annotations

import socket
import sys
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from ds4ref.cancellation import Cancellation
from ds4ref.errors import Cancelled
from ds4ref.targets import Finish, Prompt, Request, collect
from ds4ref.targets import transport as transport_module
from ds4ref.targets.command import CommandTarget
from ds4ref.targets.openai import HttpTarget
from ds4ref.targets.transport import Transport

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 3600.0
"""Seconds that everything here would last if nobody stopped it: more than any test may take."""

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
PIECE = b'data: {"model": "m", "choices": [{"delta": {"content": "half"}}]}\n\n'


@contextmanager
def silent(says: bytes = b""):
    """The address of a server that says ``says`` to every request, and then nothing; and its open connections."""
    listener, open_ = socket.create_server(("127.0.0.1", 0)), []

    def serve():
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            open_.append(connection)
            with suppress(OSError):
                connection.sendall(says)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1", open_
    finally:
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)  # closing alone would not wake who accepts
        thread.join()
        listener.close()
        for connection in open_:
            connection.close()


def closed(connection: socket.socket) -> bool:
    """Whether the client has hung up; reads what it sent before."""
    connection.settimeout(PATIENCE)
    with suppress(ConnectionResetError):
        while connection.recv(65536):
            pass
    return True


def pressed_when(cancel: Cancellation, ready) -> None:
    def wait():
        end = time.monotonic() + PATIENCE
        while not ready() and time.monotonic() < end:
            time.sleep(0.005)
        cancel.press()

    threading.Thread(target=wait, daemon=True).start()


@pytest.mark.parametrize("says", [b"", HEAD, HEAD + PIECE], ids=["no answer", "no event", "no end"])
@pytest.mark.parametrize("stream", [True, False])
def test_a_silent_server_is_left_at_once(says: bytes, stream: bool) -> None:
    cancel = Cancellation()
    with silent(says) as (base, open_), HttpTarget(base, "m", timeout=PATIENCE) as target:
        ask = Request(Prompt.chat("Hi"), cancel=cancel)
        seen: list[object] = []
        pressed_when(cancel, lambda: seen if stream and PIECE in says else open_)

        def deltas():
            for delta in target.stream(ask):
                seen.append(delta)
                yield delta

        done = collect(deltas()) if stream else target.complete(ask)
        assert done.finish is Finish.CANCELLED and done.text == ("half" if stream and PIECE in says else "")
        assert closed(open_[0]), "the server is told"


def test_one_button_stops_many_streams_and_no_other() -> None:
    cancel, other = Cancellation(), Cancellation()
    with silent(HEAD) as (base, open_), HttpTarget(base, "m", timeout=PATIENCE) as target:
        ends: list[str] = []

        def ask(button: Cancellation) -> None:
            ends.append(collect(target.stream(Request(Prompt.chat("Hi"), cancel=button))).finish)

        threads = [threading.Thread(target=ask, args=(button,), daemon=True) for button in (cancel, cancel, other)]
        for thread in threads:
            thread.start()
        pressed_when(cancel, lambda: len(open_) == 3)
        for thread in threads[:2]:
            thread.join(PATIENCE)
        assert ends == ["cancelled"] * 2 and threads[2].is_alive()
        other.press()
        threads[2].join(PATIENCE)
        assert ends == ["cancelled"] * 3


def test_the_rest_before_another_try_is_cut_short(monkeypatch) -> None:
    monkeypatch.setattr(transport_module, "MAX_WAIT", PATIENCE)
    cancel = Cancellation()
    busy = b"HTTP/1.1 503 Busy\r\nretry-after: 3600\r\ncontent-length: 0\r\n\r\n"
    with silent(busy) as (base, open_):
        transport = Transport(base, timeout=PATIENCE)
        pressed_when(cancel, lambda: open_ and transport.retries)
        with pytest.raises(Cancelled):
            transport.post("/x", {}, cancel)
        assert transport.retries == 1
        transport.close()


def test_a_binary_is_killed() -> None:
    cancel = Cancellation()
    target = CommandTarget([sys.executable, "-c", f"import time; time.sleep({PATIENCE})"], timeout=PATIENCE)
    threading.Timer(0.2, cancel.press).start()
    assert target.complete(Request(Prompt.chat("Hi"), cancel=cancel)).finish is Finish.CANCELLED
