"""The socket a server listens on."""

import asyncio
import signal
import socket
import sys

import pytest

from ds4ref.server.listen import Server, bind


def test_small_pieces_are_sent_at_once():
    """Else the first event of a stream waits for the acknowledgement of its headers, which takes 40 ms."""

    async def option() -> int:
        found: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        async def accepted(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            peer = writer.get_extra_info("socket")
            found.set_result(peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        sock = bind("127.0.0.1", 0)
        async with await asyncio.start_server(accepted, sock=sock):
            _, writer = await asyncio.open_connection(*sock.getsockname())
            try:
                return await asyncio.wait_for(found, 30)
            finally:
                writer.close()

    assert asyncio.run(option()) != 0


def test_a_second_signal_counts_as_soon_as_the_first_was_told(monkeypatch):
    """Whoever reads that a shutdown was asked for may signal again at once, also from within that line."""
    monkeypatch.setattr("os._exit", sys.exit)
    server = Server.__new__(Server)
    server.should_exit, server._loop = False, None
    monkeypatch.setattr("ds4ref.server.listen.log.info", lambda *_: server.handle_exit(signal.SIGINT, None))
    with pytest.raises(SystemExit) as ended:
        server.handle_exit(signal.SIGINT, None)
    assert ended.value.code == 130
