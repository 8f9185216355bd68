"""A stage as a Dask actor: instructions come from the coordinator, streams from the previous stage.

Both may arrive in any order, because they use separate connections. Therefore instructions are numbered, and streams
have the number of their forward pass. A thread of the actor carries out instructions in order, while the worker's event
loop answers ``alive``. When the coordinator connects again, it makes new actors, so that a late instruction or answer
of an earlier connection cannot be mistaken for another one.
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
"""Size in bytes up to which streams are sent inside the message; larger ones are sent separately, to avoid a copy."""
GIVE_WAY = 1e-4
"""Seconds for which the event loop sleeps after streams have arrived, so that the computing thread can start at once.
Otherwise that would have to wait for the interpreter lock until the reply is written (0.8 ms)."""


class Answer(NamedTuple):
    """The answer to an instruction.

    value       its result
    seconds     how long it took
    error       message of the error with which it ended, None if it succeeded
    unreached   its streams could not be sent to the next stage
    """

    value: Any = None
    seconds: float = 0.0
    error: str | None = None
    unreached: bool = False


class Instruction(NamedTuple):
    """An instruction to a stage.

    passes      number of the forward pass, 0 if the instruction is not a pass
    name        method of ``Stage``
    arguments   its arguments
    answer      called with the answer, and the streams to be sent to the next stage (None: there are none)
    """

    passes: int
    name: str
    arguments: tuple[Any, ...]
    answer: Callable[[Answer, np.ndarray | None], None]


STOPPED = Answer(error="stopped")
"""The answer to instructions that were not finished when their actor was closed."""


class StageActor:
    """The Dask actor of a stage on this worker; ``workers.Workers`` creates it.

    Its methods are called over the network and return an ``Answer`` as a plain tuple.
    """

    def __init__(self) -> None:
        self._queue = _Queue()
        self._worker: Any = None
        self._next: tuple[str, str] | None = None
        threading.Thread(target=self._queue.work, name="ds4ref stage", daemon=True).start()
        weakref.finalize(self, self._queue.stop)

    async def alive(self) -> tuple[Any, ...]:
        """Return an empty answer, as a sign that the worker is alive."""
        return tuple(Answer())

    async def link(self, following: tuple[str, str] | None) -> tuple[Any, ...]:
        """Set the actor of the next stage, (address, key), which gets this one's streams; None: this is the last."""
        from distributed import get_worker

        self._worker, self._next = get_worker(), following
        return tuple(Answer())

    async def do(self, number: int, passes: int, name: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """Carry out instruction ``number`` after all those with smaller numbers, and return its answer.

        passes      number of the forward pass, 0 for other instructions
        name        method of ``Stage`` to call
        arguments   its arguments
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[tuple[Answer, np.ndarray | None]] = loop.create_future()

        def resolve(answer: Answer, onward: np.ndarray | None) -> None:
            if not done.done():
                done.set_result((answer, onward))

        def answer(value: Answer, onward: np.ndarray | None) -> None:
            with suppress(RuntimeError):  # the worker has ended, and with it the event loop
                loop.call_soon_threadsafe(resolve, value, onward)

        self._queue.post(number, Instruction(passes, name, arguments, answer))
        result, onward = await done
        if onward is not None and self._next is not None:
            try:
                sent = onward.tobytes() if onward.nbytes <= INLINE else onward
                await call(self._worker.rpc, *self._next, "take", passes, onward.shape, sent)
            except Exception:  # whatever the reason, the coordinator finds out by asking the next worker
                return tuple(Answer(unreached=True))
        return tuple(result)

    async def take(self, passes: int, shape: tuple[int, ...], data: Any) -> None:
        """Receive the streams of pass number ``passes`` from the previous stage; ``data`` is their float32 bytes."""
        self._queue.take(passes, np.frombuffer(data, np.float32).reshape(shape))
        time.sleep(GIVE_WAY)

    async def close(self) -> None:
        """End the computing thread, which closes the stage."""
        self._queue.stop()


async def call(rpc: Any, address: str, key: str, function: str, *arguments: Any) -> Any:
    """Call the method ``function`` of the actor ``key`` on the worker at ``address``, and return its result.

    ``rpc`` is that of a Dask client or worker. Raise OSError if the worker is gone.
    """
    from distributed.protocol import to_serialize

    args = [value if _is_plain(value) else to_serialize(value) for value in arguments]
    reply = await rpc(address).actor_execute(actor=key, function=function, args=args, kwargs={})
    if reply["status"] != "OK":
        raise reply["exception"]
    return reply["result"]


def _is_plain(value: Any) -> bool:
    """Return whether a message can hold ``value`` directly; other values are pickled, which takes longer."""
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, int | float | str | bytes)


class _Queue:
    """The instructions and streams that wait for an actor's thread, and the loop of this thread (``work``).

    It does not refer to the actor, which may be deleted while the thread runs.
    """

    def __init__(self) -> None:
        self._news = threading.Condition()
        self._waiting: dict[int, Instruction] = {}
        self._streams: dict[int, np.ndarray] = {}
        self._stopped = False
        self._failure = ""

    def post(self, number: int, instruction: Instruction) -> None:
        """Add an instruction, to be carried out after those with smaller numbers; once stopped, answer it at once."""
        with self._news:
            if not self._stopped:
                self._waiting[number] = instruction
                self._news.notify()
                return
        instruction.answer(STOPPED, None)

    def take(self, passes: int, data: np.ndarray) -> None:
        """Keep the streams of a pass until it is carried out; drop them if no more passes will be."""
        with self._news:
            if not self._stopped and not self._failure:
                self._streams[passes] = data
                self._news.notify()

    def stop(self) -> None:
        """Make the thread end; it then answers all waiting instructions with ``STOPPED``."""
        with self._news:
            self._stopped = True
            self._news.notify()

    def _fail(self, why: str) -> None:
        with self._news:
            self._failure = why
            self._streams.clear()

    def _get(self, box: dict[int, Any], number: int) -> Any:
        """Wait until ``box`` has an entry ``number``, remove and return it; return None if stopped meanwhile."""
        with self._news:
            self._news.wait_for(lambda: self._stopped or number in box)
            return None if self._stopped else box.pop(number)

    def work(self) -> None:
        """Carry out instructions in order until stopped, then answer all that are waiting.

        After an instruction has failed, all later ones are answered with its error.
        """
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
        for instruction in self._waiting.values():  # once stopped, no instruction is added
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
    """Raised if the actor is closed while its thread waits for streams."""
