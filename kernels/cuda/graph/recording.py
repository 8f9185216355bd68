"""A recording: the launches of a token, laid out in memory once and captured as one CUDA graph.

An op called from Python costs tens of microseconds and memory for its result; a decoded token has hundreds. While a
pass is recorded its ops launch nothing: they append their launches, and the arrays they return stand for places. What
packs inputs is recorded once for all that read them. ``seal`` joins launches (``joining``), gives places that are not
in use at a time the same memory and captures everything. ``replay`` launches the graph, which

    copies the inputs, all of them side by side, from host memory    one copy node
    runs the kernels
    copies the outputs, side by side, and the error flag, to host memory    two copy nodes

and waits for its end, which is the only time that a token waits for the device. It allocates nothing. Results that are
``kept`` stay on the device; who asks the backend's ``host`` for them waits for a copy. What changes from token to token
is read from memory when kernels run: arrays that did not come from the recording (caches, inputs) are taken by address.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from ...binding import F32
from ..driver.arrays import DeviceArray
from ..driver.launch import Launch
from ..driver.memory import ALIGNMENT, Buffer, Slab
from ..ops.steps import Steps
from .joining import both, joined
from .template import Plan, Template


class Recording(Steps):
    """Launches under construction. Ops come from the classes it is combined with (``backend.Recorded``)."""

    name = "cuda"
    threads = 1

    def __init__(self, owner: Any):
        """``owner``: the backend (``backend.CUDA``)."""
        self.owner, self.error = owner, owner.error
        self.slab = Slab(owner.memory)
        self.launches: list[Launch] = []
        self.outputs: list[Any] = []
        self.kept: list[Any] = []
        self._there: set[int] = set()
        """Offsets of kept results that were fetched since the last replay."""
        self._graph: Any = None
        self._made: dict[tuple[Any, ...], Any] = {}

    # --- recording

    def empty(self, *shape: int, dtype: DTypeLike = F32) -> DeviceArray:
        """A place for a result; ``seal`` gives it memory."""
        kind = np.dtype(dtype)
        return DeviceArray(Buffer(None, math.prod(shape) * kind.itemsize), shape, kind)

    def absent(self, dtype: DTypeLike) -> DeviceArray:
        return self.owner.absent(dtype)

    def failure(self, text: str) -> int:
        return self.owner.failure(text)

    def whole(self, x: DeviceArray, name: str) -> DeviceArray:
        raise ValueError(f"{name} has gaps between its values, which a recording cannot close")

    def run(self, launch: Launch) -> None:
        if any(array.buffer.slab is self.slab for array in launch.writes):
            raise ValueError("an input of a recording is not written by its ops: it would be refilled")
        written = {id(array.buffer) for array in launch.writes}
        self._made = {key: value for key, value in self._made.items() if key[0] not in written}
        one = both(self.launches[-1], launch) if self.launches else None
        self.launches[len(self.launches) - (one is not None) :] = [one or launch]

    def once(self, x: DeviceArray, what: Any, make: Callable[[], Any]) -> Any:
        key = id(x.buffer), x.offset, x.size, what
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    # --- laying out

    def seal(self, *outputs: Any, kept: Sequence[Any] = ()) -> None:
        """Lay out and capture the launches. A replay fetches ``self.outputs``, and ``host`` ``self.kept`` on demand.
        Raises ValueError for an output that is no result of the recording's ops."""
        owner = self.owner
        owner.recorded()
        results = [out.buffer for out in (*outputs, *kept)]
        if any(buffer.block is not None or buffer.slab is not None for buffer in results):
            raise ValueError("an output of a recording must be a result of its ops")
        ids = {id(buffer) for buffer in results}
        self.launches = joined(self.launches, ids, self.absent(F32))
        self.lay_out(Plan(self.launches, *self._planned(ids), list(outputs), list(kept)))

    def lay_out(self, plan: Plan) -> None:
        """Give results memory and capture the launches."""
        owner, self.plan, self.launches = self.owner, plan, plan.launches
        outputs, kept = plan.outputs, plan.kept
        with owner.lock:
            self._results = self._placed([out.buffer for out in (*outputs, *kept)])
            self._arena = owner.memory.buffer(plan.nbytes)
            for buffer, offset in plan.places:
                buffer.block, buffer.start = self._arena.block, self._arena.start + offset
            self._fetched = owner.memory.pinned(self._results.nbytes)
            self._told = owner.memory.pinned(4)
            self._flag = self._told.values[:4]
            end = max((out.buffer.start - self._results.start + out.buffer.nbytes for out in outputs), default=0)
            self.outputs = [self._output(out, end) for out in outputs]
            self.kept = [self._output(out, end) for out in kept]
            calls = [partial(launch.call, owner.driver.stream) for launch in self.launches]
            refresh = [(self.slab.block, self.slab.host[: self.slab.used])] if self.slab.used else []
            block = self.error.buffer.block
            assert block is not None
            fetch = [(self._flag, block)]
            if outputs:
                assert self._results.block is not None
                fetch.insert(0, (self._fetched.values[:end], self._results.block))
            self._graph = owner.driver.capture(refresh, calls, fetch)

    def _placed(self, buffers: list[Buffer]) -> Buffer:
        """Allocate outputs and kept results side by side."""
        starts, end = {}, 0
        for buffer in buffers:
            if id(buffer) not in starts:
                starts[id(buffer)] = end
                end += -(-buffer.nbytes // ALIGNMENT) * ALIGNMENT
        results = self.owner.memory.buffer(end)
        for buffer in buffers:
            buffer.block, buffer.start = results.block, results.start + starts[id(buffer)]
        return results

    def _planned(self, kept: set[int]) -> tuple[list[tuple[Buffer, int]], int]:
        """Choose the offset of every place; return places with offsets, and the bytes of all."""
        spans: dict[int, tuple[int, int]] = {}
        buffers: dict[int, Buffer] = {}
        for number, launch in enumerate(self.launches):
            for array in (*launch.writes, *launch.reads):
                buffer = array.buffer
                if buffer.block is None and id(buffer) not in kept:
                    spans[id(buffer)] = spans.get(id(buffer), (number, 0))[0], number
                    buffers[id(buffer)] = buffer
        sizes = {key: buffer.nbytes for key, buffer in buffers.items()}
        offsets, total = share(spans, sizes)
        return [(buffers[key], offset) for key, offset in offsets.items()], total

    def _output(self, out: DeviceArray, end: int) -> DeviceArray:
        """A result with a mirror on the host, filled by every replay, or on demand from byte ``end`` on."""
        start = out.buffer.start - self._results.start
        buffer = Buffer(out.buffer.block, out.buffer.nbytes, out.buffer.start)
        mirror = self._fetched.values[start : start + out.buffer.nbytes]
        buffer.mirror, buffer.keep = mirror, (self._fetched, self._results)
        if start >= end:
            there, driver, block, at = self._there, self.owner.driver, buffer.block, buffer.start
            assert block is not None

            def fetch() -> None:
                if start not in there:
                    driver.to_host(mirror, block, at)
                    there.add(start)

            buffer.fetch = fetch
        return DeviceArray(buffer, out.shape, out.dtype, out.offset, out.strides)

    # --- the same launches on other arrays

    def template(self, arrays: Sequence[DeviceArray]) -> Template:
        """Return a template to run the same launches on other arrays in place of ``arrays``, each all of its buffer."""
        kind, owner = type(self), self.owner
        return Template(self.plan, self.slab, arrays, lambda: kind(owner))

    # --- running

    def replay(self) -> None:
        """Run the graph and wait. Raises IndexError if a kernel met an index out of range."""
        owner = self.owner
        with owner.lock:
            self.slab.busy = True
            self._there.clear()
            self._graph.launch()
            owner.driver.sync()
            self.slab.busy = self.slab.dirty = False
            code = int(self._flag.view(np.int32)[0])
            if code:
                owner.tell(code)

    @property
    def nbytes(self) -> int:
        """Bytes of device memory of places and outputs."""
        return self._arena.nbytes + self._results.nbytes


def share(spans: dict[int, tuple[int, int]], sizes: dict[int, int]) -> tuple[dict[int, int], int]:
    """Offsets of places, and the bytes of all: places whose spans of launches overlap get disjoint memory. In order of
    first use, each takes the lowest gap that is large enough."""
    offsets: dict[int, int] = {}
    total = 0
    living: list[tuple[int, int, int]] = []  # offset, end, last launch
    for key in sorted(spans, key=lambda key: spans[key]):
        first, last = spans[key]
        size = max(ALIGNMENT, -(-sizes[key] // ALIGNMENT) * ALIGNMENT)
        living = sorted(each for each in living if each[2] >= first)
        at = 0
        for offset, end, _ in living:
            if offset - at >= size:
                break
            at = max(at, end)
        offsets[key] = at
        living.append((at, at + size, last))
        total = max(total, at + size)
    return offsets, total
