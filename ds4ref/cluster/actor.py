"""A stage as a Dask actor: instructions come from the coordinator, streams from the stage before.

Both may come in any order, since each travels over a connection of its own: instructions have numbers, streams that of
their pass. A thread of the actor carries them out in order, while the worker's event loop answers ``alive``. Neither a
late instruction nor a late answer can be taken for another one's: each connection has actors of its own.
"""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from ..errors import Ds4Error
from .stage import Stage, StageSpec

INLINE = 1 << 20
"""Bytes up to which streams are part of the message: to copy larger ones takes longer than a frame of their own."""
GIVE_WAY = 1e-4
"""Seconds for which the event loop leaves the interpreter to the thread that streams have woken. Else that waits until
the reply is written (0.8 ms)."""


class Answer(NamedTuple):
    """What became of an instruction: its value and the seconds it took; the error that it ended with, or that the next
    stage was not reached."""

    value: Any = None
    seconds: float = 0.0
    error: str | None = None
    unreached: bool = False


class Instruction(NamedTuple):
    """An instruction: number of the pass if it is one (else 0), method of ``Stage``, arguments, and who waits."""

    passes: int
    name: str
    arguments: tuple[Any, ...]
    answer: Callable[[Answer, np.ndarray | None], None]


STOPPED = Answer(error="stopped")
"""The answer of what was not carried out, or not to its end, when its actor was closed."""


class StageActor:
    """A stage on this worker; made by ``workers.Workers``."""

    def __init__(self) -> None:
        self._queue = _Queue()
        self._worker: Any = None
        self._next: tuple[str, str] | None = None
        threading.Thread(target=self._queue.work, name="ds4ref stage", daemon=True).start()
        weakref.finalize(self, self._queue.stop)

    async def alive(self) -> tuple[Any, ...]:
        """Return an empty ``Answer``."""
        return tuple(Answer())

    async def link(self, following: tuple[str, str] | None) -> tuple[Any, ...]:
        """Send streams to the actor at (address, key); None: this is the last stage."""
        from distributed import get_worker

        self._worker, self._next = get_worker(), following
        return tuple(Answer())

    async def do(self, number: int, passes: int, name: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """Carry out instruction ``number`` after all with smaller ones, and return an ``Answer`` as a tuple.

        passes: number of the pass, 0 for other instructions.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[tuple[Answer, np.ndarray | None]] = loop.create_future()

        def resolve(answer: Answer, onward: np.ndarray | None) -> None:
            if not done.done():
                done.set_result((answer, onward))

        def answer(value: Answer, onward: np.ndarray | None) -> None:
            with suppress(RuntimeError):  # the worker has ended, and its loop with it
                loop.call_soon_threadsafe(resolve, value, onward)

        self._queue.post(number, Instruction(passes, name, arguments, answer))
        result, onward = await done
        if onward is not None and self._next is not None:
            try:
                sent = onward.tobytes() if onward.nbytes <= INLINE else onward
                await call(self._worker.rpc, *self._next, "take", passes, onward.shape, sent)
            except Exception:  # whatever it is: the next worker answers the coordinator, or does not
                return tuple(Answer(unreached=True))
        return tuple(result)

    async def take(self, passes: int, shape: tuple[int, ...], data: Any) -> None:
        """Take the streams of a pass from the stage before; data: their bytes, float32."""
        self._queue.take(passes, np.frombuffer(data, np.float32).reshape(shape))
        time.sleep(GIVE_WAY)

    async def close(self) -> None:
        """End the thread and drop everything."""
        self._queue.stop()


async def call(rpc: Any, address: str, key: str, function: str, *arguments: Any) -> Any:
    """Call a method of an actor; ``rpc`` is that of a Dask client or worker. Raise OSError if its worker is gone."""
    from distributed.protocol import to_serialize

    args = [value if _is_plain(value) else to_serialize(value) for value in arguments]
    reply = await rpc(address).actor_execute(actor=key, function=function, args=args, kwargs={})
    if reply["status"] != "OK":
        raise reply["exception"]
    return reply["result"]


def _is_plain(value: Any) -> bool:
    """Return whether a message holds ``value`` as it is; others are pickled, which takes longer."""
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, int | float | str | bytes)


class _Queue:
    """Instructions and streams, and the thread's loop over them; it knows no actor, which may be dropped meanwhile."""

    def __init__(self) -> None:
        self._news = threading.Condition()
        self._waiting: dict[int, Instruction] = {}
        self._streams: dict[int, np.ndarray] = {}
        self._stopped = False
        self._failure = ""

    def post(self, number: int, instruction: Instruction) -> None:
        """Have an instruction carried out in its turn; once stopped, answer it at once."""
        with self._news:
            if not self._stopped:
                self._waiting[number] = instruction
                self._news.notify()
                return
        instruction.answer(STOPPED, None)

    def take(self, passes: int, data: np.ndarray) -> None:
        """Keep the streams of a pass for it, unless there will be none."""
        with self._news:
            if not self._stopped and not self._failure:
                self._streams[passes] = data
                self._news.notify()

    def stop(self) -> None:
        """Let the thread end, which answers whatever waits."""
        with self._news:
            self._stopped = True
            self._news.notify()

    def _fail(self, why: str) -> None:
        with self._news:
            self._failure = why
            self._streams.clear()

    def _get(self, box: dict[int, Any], number: int) -> Any:
        """Return what ``box`` has under ``number``, once it is there; None if stopped."""
        with self._news:
            self._news.wait_for(lambda: self._stopped or number in box)
            return None if self._stopped else box.pop(number)

    def work(self) -> None:
        """Carry out instructions until stopped, then answer all that wait; after one that failed no other is tried."""
        stage: Stage | None = None
        number = 0
        while (instruction := self._get(self._waiting, number)) is not None:
            number += 1
            answer, onward = STOPPED, None
            if not self._failure:
                try:
                    if instruction.name == "load":
                        stage = Stage(StageSpec(*instruction.arguments))
                        answer = Answer(tuple(stage.facts))
                    else:
                        assert stage is not None
                        answer, onward = self._do(stage, instruction)
                except _Stopped:
                    pass
                except Ds4Error as error:
                    self._fail(str(error))
                except Exception as error:
                    self._fail(f"{type(error).__name__}: {error}")
            instruction.answer(Answer(error=self._failure) if self._failure else answer, onward)
        for instruction in self._waiting.values():  # nothing is added any more
            instruction.answer(STOPPED, None)
        self._waiting.clear()
        if stage is not None:
            stage.close()

    def _do(self, stage: Stage, instruction: Instruction) -> tuple[Answer, np.ndarray | None]:
        if not instruction.passes:
            return Answer(*stage.do(instruction.name, *instruction.arguments)), None
        incoming = None
        if not stage.is_first:
            incoming = self._get(self._streams, instruction.passes)
            if incoming is None:
                raise _Stopped
        value, seconds = stage.do("run", *instruction.arguments, incoming=incoming)
        return (Answer(value, seconds), None) if stage.is_last else (Answer(None, seconds), value)


class _Stopped(Exception):
    """The actor was dropped while its thread waited for streams."""
