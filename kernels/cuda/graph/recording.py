"""A recording: the kernel launches of a token's pass, captured once as a CUDA graph and then replayed.

An op called from Python costs tens of microseconds and memory for its result; decoding a token takes hundreds of ops.
While a pass is recorded its ops launch nothing: they append their launches and return placeholder arrays, which have no
memory yet. Inputs that several products read are packed once. ``seal`` joins launches (``joining``), assigns memory to
the placeholders (the same to those that are not in use at the same time) and captures everything. ``replay`` launches
the graph, which

    copies the inputs, all of them side by side, from host memory    one copy node
    runs the kernels
    copies the outputs, side by side, and the error flag, to host memory    two copy nodes

and waits for its end, which is the only time that a token waits for the device. It allocates nothing. Results that are
``kept`` stay on the device until the backend's ``host`` is called on them. Values that change from token to token must
be read from memory when kernels run: arrays that did not come from the recording (caches, inputs) are used by address.
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
    """A recording, at first under construction: the ops, which ``backend.Recorded`` mixes in, append launches; after
    ``seal`` it can be replayed."""

    name = "cuda"
    threads = 1

    def __init__(self, owner: Any):
        """Begin a recording for the backend ``owner`` (``backend.CUDA``)."""
        self.owner, self.error = owner, owner.error
        self.slab = Slab(owner.memory)
        self.launches: list[Launch] = []
        self.outputs: list[Any] = []
        self.kept: list[Any] = []
        self._there: set[int] = set()
        """Offsets of the kept results that were copied to the host since the last replay."""
        self._graph: Any = None
        self._made: dict[tuple[Any, ...], Any] = {}

    # --- recording

    def empty(self, *shape: int, dtype: DTypeLike = F32) -> DeviceArray:
        """Return a placeholder array for a result; ``seal`` assigns memory to it."""
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
        """End the recording: assign memory to results and capture the launches as a graph.

        Each replay copies ``self.outputs`` to the host; those in ``self.kept`` are copied only when ``host`` is called
        on them. Raise ValueError for an output that is not a result of the recording's ops.
        """
        owner = self.owner
        owner.recorded()
        results = [out.buffer for out in (*outputs, *kept)]
        if any(buffer.block is not None or buffer.slab is not None for buffer in results):
            raise ValueError("an output of a recording must be a result of its ops")
        ids = {id(buffer) for buffer in results}
        self.launches = joined(self.launches, ids, self.absent(F32))
        self.lay_out(Plan(self.launches, *self._planned(ids), list(outputs), list(kept)))

    def lay_out(self, plan: Plan) -> None:
        """Assign memory to the results as planned, and capture the launches as a graph."""
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
        """Allocate memory for the buffers of outputs and kept results side by side; return all of it as one buffer."""
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
        """Choose an offset in memory for the buffer of every result except those in ``kept`` (ids of buffers); return
        the buffers with their offsets, and the bytes needed in total."""
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
        """Return ``out`` as an array with a copy in host memory, which every replay brings up to date or, for results
        from byte ``end`` on, only a call of ``host``."""
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
        """Return a template that makes recordings of the same launches with other arrays in place of ``arrays``. Each
        of these must be the whole of its buffer."""
        kind, owner = type(self), self.owner
        return Template(self.plan, self.slab, arrays, lambda: kind(owner))

    # --- running

    def replay(self) -> None:
        """Run the graph and wait for its end; raise IndexError if a kernel met an index out of range."""
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
        """Return the bytes of device memory that the recording's results take."""
        return self._arena.nbytes + self._results.nbytes


def share(spans: dict[int, tuple[int, int]], sizes: dict[int, int]) -> tuple[dict[int, int], int]:
    """Return an offset in memory for each buffer, and the bytes needed in total.

    ``spans`` are the numbers of the first and last launch that use each buffer; buffers in use at the same time do not
    overlap. In order of first use, each takes the lowest gap that is large enough.
    """
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
