"""Events from the inference thread to the event loop."""

import asyncio
import threading

from ds4ref.server.mailbox import Mailbox
from ds4ref.server.turn import Queued


def run(what):
    """A coroutine over a mailbox; a mistake shows as a test that takes too long."""

    async def main():
        return await asyncio.wait_for(what(Mailbox(asyncio.get_running_loop(), 4)), 30)

    return asyncio.run(main())


def later(what, *args):
    thread = threading.Timer(0.05, what, args)
    thread.start()
    return thread


def test_waiting_ends_with_an_event_of_another_thread():
    async def main(box):
        thread = later(box.put, Queued(3))
        found = await box.take(box.loop.time() + 1000)
        thread.join()
        return found

    assert run(main) == [Queued(3)]


def test_waiting_ends_in_time_or_when_woken():
    async def main(box):
        assert await box.take(box.loop.time() + 0.01) == []
        box.wake()
        assert await box.take(box.loop.time() + 1000, box.loop.time() + 1000) == []
        box.loop.call_later(0.02, box.wake)
        return await box.take(box.loop.time() + 1000, box.loop.time() + 1000)

    assert run(main) == []


def test_a_full_box_says_so_and_wakes():
    async def main(box):
        def fill():
            for i in range(6):
                box.put(Queued(i))

        thread = later(fill)
        found = await box.take(box.loop.time() + 1000, box.loop.time() + 1000)
        thread.join()
        return found, box.full

    found, full = run(main)
    assert full and found[:4] == [Queued(i) for i in range(4)]


def test_nobody_listens_any_more():
    box = run(lambda box: asyncio.sleep(0, box))
    box.put(Queued(1))
