"""Threads of a simulated block taking turns.

Numba's simulator gives every CUDA thread a Python thread and polls them, which keeps the interpreter lock contested and
takes most of the time; and it knows nothing of warps. Here one thread of a block runs at a time, until it waits for
others or ends, and hands its turn on: the order is fixed, so a race shows each time or never, and threads that wait for
what cannot happen (a barrier that others never reach) are found at once. Python threads are kept from block to block.

``exchange`` is what warp primitives are made of (``intrinsics``): each lane gives a value and gets those of all lanes.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

WARP = 32


class Stuck(RuntimeError):
    """Threads of a block wait for each other in vain."""


class Lane(threading.Thread):
    """A Python thread that plays one CUDA thread after the other. The simulator asks it who it is by these names."""

    threadIdx: Any
    blockIdx: Any
    thread_id: int

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.turn = threading.Semaphore(0)
        self.block: Block
        self.start()

    def run(self) -> None:
        while True:
            self.turn.acquire()
            block = self.block
            try:
                block.play()
            except BaseException as e:
                block.failed(self, e)
            finally:
                block.ended(self)

    def syncthreads(self) -> None:
        self.block.wait("block", self)

    def syncthreads_count(self, value: Any) -> int:
        """How many threads have a true value."""
        return sum(map(bool, self.block.exchange("block", self, value).values()))

    def syncthreads_and(self, value: Any) -> int:
        """Whether all have."""
        return int(all(self.block.exchange("block", self, value).values()))

    def syncthreads_or(self, value: Any) -> int:
        """Whether one has."""
        return int(any(self.block.exchange("block", self, value).values()))


_idle: list[Lane] = []


class Block:
    """Runs the blocks of a launch, in the place of the simulator's BlockManager."""

    def __init__(self, function: Callable[..., None], grid_dim: Any, block_dim: Any, debug: bool):
        self._function, self._block_dim = function, tuple(block_dim)
        self._args: tuple[Any, ...] = ()
        self._ready: deque[Lane] = deque()
        self._waiting: dict[Any, list[Lane]] = {}
        self._given: dict[Any, dict[int, Any]] = {}
        self._left: dict[Any, int] = {}
        self._living = 0
        self._error: BaseException | None = None
        self._done = threading.Semaphore(0)

    def run(self, grid_point: tuple[int, ...], *args: Any) -> None:
        """One block. Raises what one of its threads raised, or Stuck."""
        from numba.cuda.simulator.kernelapi import Dim3

        x, y, z = (*self._block_dim, 1, 1)[:3]
        count = x * y * z
        while len(_idle) < count:
            _idle.append(Lane())
        lanes = _idle[-count:]
        del _idle[-count:]
        self._args, self._living, self._error = args, count, None
        block = Dim3(*grid_point)
        for number, lane in enumerate(lanes):
            lane.block, lane.blockIdx, lane.thread_id = self, block, number
            lane.threadIdx = Dim3(number % x, number // x % y, number // (x * y))
        self._left = {"block": count}
        for warp in range(-(-count // WARP)):
            self._left[warp] = min(WARP, count - warp * WARP)
        self._ready.extend(lanes)
        self._ready.popleft().turn.release()
        self._done.acquire()
        _idle.extend(lanes)
        if self._error is not None:
            raise self._error

    def play(self) -> None:
        # A GPU divides by zero and overflows without a word; ops are held to what comes out.
        with np.errstate(all="ignore"):
            self._function(*self._args)

    # --- called by a lane whose turn it is

    def wait(self, group: Any, lane: Lane) -> None:
        """Until every living lane of ``group`` (a warp's number, or "block") is here."""
        waiting = self._waiting.setdefault(group, [])
        waiting.append(lane)
        self._release(group)
        self._pass_on()
        lane.turn.acquire()
        if self._error is not None:
            raise Stuck("another thread of the block failed")

    def exchange(self, group: Any, lane: Lane, value: Any) -> dict[int, Any]:
        """The values given by all lanes of ``group``, by number of the thread."""
        given = self._given.setdefault(group, {})
        given[lane.thread_id] = value
        self.wait(group, lane)
        # Whoever comes first into the next exchange makes a new table; this one belongs to those who are in it.
        if self._given.get(group) is given:
            del self._given[group]
        return given

    def failed(self, lane: Lane, error: BaseException) -> None:
        if self._error is None:
            where = f"thread {tuple(lane.threadIdx)} of block {tuple(lane.blockIdx)}"
            error.add_note(where)
            self._error = error

    def ended(self, lane: Lane) -> None:
        self._living -= 1
        for group in ("block", lane.thread_id // WARP):
            self._left[group] -= 1
            self._release(group)
        if self._living:
            self._pass_on()
        else:
            self._done.release()

    def _release(self, group: Any) -> None:
        """Let all go who wait for ``group`` if nobody is missing."""
        waiting = self._waiting.get(group, ())
        if waiting and len(waiting) == self._left[group]:
            self._ready.extend(self._waiting.pop(group))

    def _pass_on(self) -> None:
        if not self._ready or self._error is not None:
            for group in list(self._waiting):
                self._ready.extend(self._waiting.pop(group))
            if self._error is None:
                self._error = Stuck("threads of a block wait at different places")
        self._ready.popleft().turn.release()


def this_lane() -> Lane:
    """The thread that runs."""
    lane = threading.current_thread()
    assert isinstance(lane, Lane)
    return lane


def warp_values(value: Any) -> list[Any]:
    """``value`` of every lane of this warp, in order. All its threads must be there: blocks of whole warps."""
    lane = this_lane()
    given = lane.block.exchange(lane.thread_id // WARP, lane, value)
    if len(given) != WARP:
        raise Stuck("a warp primitive needs all 32 lanes")
    first = lane.thread_id // WARP * WARP
    return [given[first + i] for i in range(WARP)]


def install() -> None:
    """Make the simulator schedule blocks like this. Its kernels stay as they are."""
    from numba.cuda.simulator import kernel

    kernel.BlockManager = Block
