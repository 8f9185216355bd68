"""The socket a server listens on."""

import asyncio
import socket

from ds4ref.server.listen import bind


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
