"""Threads of a simulated block taking turns.

Numba's simulator gives every CUDA thread a Python thread and polls them, which keeps the interpreter lock contested and
takes most of the time; and it knows nothing of warps. Here one thread of a block runs at a time, until it waits for
others or ends: the order is fixed, so a race shows each time or never, and threads that wait for what cannot happen (a
barrier that others never reach) are found at once. A turn is passed on by a greenlet where that package is installed,
which takes a microsecond, else by a Python thread, which takes what the system's scheduler likes.

``exchange`` is what warp primitives are made of (``intrinsics``): each lane gives a value and gets those of all lanes.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

try:
    import greenlet
except ImportError:
    greenlet = None

WARP = 32


class Stuck(RuntimeError):
    """Threads of a block wait for each other in vain."""


class _Greenlet:
    """Something that runs until it pauses, again and again."""

    def __init__(self, play: Callable[[], None]):
        self._main, self._own = greenlet.getcurrent(), greenlet.greenlet(play)

    def resume(self) -> None:
        """Let it run until it pauses or ends."""
        self._own.switch()

    def pause(self) -> None:
        """Called by it: until it is resumed."""
        self._main.switch()


class _Thread:
    """The same with a Python thread, of which some are kept."""

    def __init__(self, play: Callable[[], None]):
        self._worker, self._play, self._begun = (_idle.pop() if _idle else _Worker()), play, False

    def resume(self) -> None:
        if not self._begun:
            self._begun, self._worker.job = True, self._play
        self._worker.turn.release()
        self._worker.back.acquire()
        if self._worker.job is None:
            _idle.append(self._worker)

    def pause(self) -> None:
        self._worker.back.release()
        self._worker.turn.acquire()


class _Worker(threading.Thread):
    """A thread that does one job after the other, when it has its turn."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.turn, self.back = threading.Semaphore(0), threading.Semaphore(0)
        self.job: Callable[[], None] | None = None
        self.start()

    def run(self) -> None:
        while True:
            self.turn.acquire()
            assert self.job is not None
            self.job()
            self.job = None
            self.back.release()


_idle: list[_Worker] = []


class Lane:
    """One CUDA thread: its numbers, as kernels ask for them, and its turns."""

    def __init__(self, block: Block, number: int, at: Any, block_at: Any):
        self.block, self.thread_id, self.threadIdx, self.blockIdx, self.over = block, number, at, block_at, False
        self.turns = (_Thread if greenlet is None else _Greenlet)(self._play)

    def _play(self) -> None:
        try:
            self.block.play()
        except BaseException as e:
            self.block.failed(self, e)
        finally:
            self.over = True

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


_running: list[Lane] = []
"""The lane whose turn it is; the simulator runs one kernel at a time."""


class Block:
    """Runs the blocks of a launch, in the place of the simulator's BlockManager."""

    def __init__(self, function: Callable[..., None], grid_dim: Any, block_dim: Any, debug: bool):
        self._function, self._block_dim = function, tuple(block_dim)
        self._args: tuple[Any, ...] = ()
        self._ready: deque[Lane] = deque()
        self._waiting: dict[Any, list[Lane]] = {}
        self._given: dict[Any, dict[int, Any]] = {}
        self._left: dict[Any, int] = {}
        self._error: BaseException | None = None

    def run(self, grid_point: tuple[int, ...], *args: Any) -> None:
        """One block. Raises what one of its threads raised, or Stuck."""
        from numba.cuda.simulator.kernelapi import Dim3

        x, y, z = (*self._block_dim, 1, 1)[:3]
        count = x * y * z
        self._args, self._error, at = args, None, Dim3(*grid_point)
        self._left = {"block": count}
        for warp in range(-(-count // WARP)):
            self._left[warp] = min(WARP, count - warp * WARP)
        self._ready.extend(Lane(self, i, Dim3(i % x, i // x % y, i // (x * y)), at) for i in range(count))
        while self._ready:
            lane = self._ready.popleft()
            _running.append(lane)
            lane.turns.resume()
            _running.pop()
            if lane.over:
                for group in ("block", lane.thread_id // WARP):
                    self._left[group] -= 1
                    self._release(group)
            if self._waiting and (not self._ready or self._error is not None):
                if self._error is None:
                    self._error = Stuck("threads of a block wait at different places")
                for group in list(self._waiting):
                    self._ready.extend(self._waiting.pop(group))
        if self._error is not None:
            raise self._error

    def play(self) -> None:
        """What every thread does."""
        # A GPU divides by zero and overflows without a word; ops are held to what comes out.
        with np.errstate(all="ignore"):
            self._function(*self._args)

    # --- called by a lane whose turn it is

    def wait(self, group: Any, lane: Lane) -> None:
        """Until every living lane of ``group`` (a warp's number, or "block") is here."""
        self._waiting.setdefault(group, []).append(lane)
        self._release(group)
        lane.turns.pause()
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
        """A lane raised; the first one counts."""
        if self._error is None:
            error.add_note(f"thread {tuple(lane.threadIdx)} of block {tuple(lane.blockIdx)}")
            self._error = error

    def _release(self, group: Any) -> None:
        """Let all go who wait for ``group`` if nobody is missing."""
        waiting = self._waiting.get(group, ())
        if waiting and len(waiting) == self._left[group]:
            self._ready.extend(self._waiting.pop(group))


def this_lane() -> Lane:
    """The thread that runs."""
    return _running[-1]


def warp_together(value: Any, compute: Callable[[list[Any]], Any]) -> Any:
    """``compute`` of the values of all lanes of this warp, in order, done once for all of them. All threads of the warp
    must be there: blocks of whole warps."""
    lane = this_lane()
    first = lane.thread_id // WARP * WARP
    given: dict[Any, Any] = lane.block.exchange(first // WARP, lane, value)
    if "result" not in given:
        if len(given) != WARP:
            raise Stuck("a warp primitive needs all 32 lanes")
        given["result"] = compute([given[first + i] for i in range(WARP)])
    return given["result"]


def warp_values(value: Any) -> list[Any]:
    """``value`` of every lane of this warp, in order."""
    values: list[Any] = warp_together(value, list)
    return values


def install() -> None:
    """Make the simulator schedule blocks like this, and ask lanes who they are. Its kernels stay as they are."""
    from numba.cuda.simulator import kernel, kernelapi

    simulator: Any = kernel
    simulator.BlockManager = Block
    module: Any = kernelapi.FakeCUDAModule
    module.threadIdx = property(lambda _: this_lane().threadIdx)
    module.blockIdx = property(lambda _: this_lane().blockIdx)
    module.laneid = property(lambda _: this_lane().thread_id % WARP)
    module.syncthreads = lambda _: this_lane().syncthreads()
    module.syncthreads_count = lambda _, value: this_lane().syncthreads_count(value)
    module.syncthreads_and = lambda _, value: this_lane().syncthreads_and(value)
    module.syncthreads_or = lambda _, value: this_lane().syncthreads_or(value)
