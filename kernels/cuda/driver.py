"""Device memory, copies, and graphs of launches: what the backend needs of the CUDA driver besides launching.

``Device`` is a GPU, by ctypes on the driver's C interface, so that it does not depend on which ``numba.cuda`` is there;
``Simulated`` is NumPy memory beside numba's simulator. Both keep one stream: whatever is asked for happens in order, so
that memory which one op gave back may serve the next one at once. ``watch`` counts the calls of either by name.

Errors: MemoryError says what was wanted and what is free; RuntimeError names the driver's error.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from .shim import SIMULATED, _cuda

if TYPE_CHECKING:
    from .lanes import Order

GIB = 1 << 30
STAGED = 16 << 20
"""Bytes of a piece of pinned memory on the way to the device."""


@dataclass(eq=False)
class Block:
    """Device memory: its address and size; ``memory`` (uint8) are the bytes themselves where NumPy can see them."""

    pointer: int
    nbytes: int
    memory: np.ndarray | None = None


class Graph(Protocol):
    """Work that was captured, to be done again and again."""

    nodes: int

    def launch(self) -> None:
        """Do it, without waiting for the end."""


class Driver:
    """What both have in common."""

    stream: Any = 0
    """What kernels are launched on."""

    def __init__(self) -> None:
        self.watched: Counter[str] | None = None

    def lane(self, number: int) -> Any:
        """The stream of a lane of captured launches; that of lane 0 is ``stream``."""
        return self.stream

    def watch(self) -> Counter[str]:
        """From now on count calls by name: alloc, free, to_device, to_host, copy, sync, launch (of graphs)."""
        self.watched = Counter()
        return self.watched

    def _count(self, name: str) -> None:
        if self.watched is not None:
            self.watched[name] += 1


class Simulated(Driver):
    """Memory of the host. New memory is full of NaNs, so that reading what nobody wrote is seen."""

    def alloc(self, nbytes: int) -> Block:
        self._count("alloc")
        return Block(0, nbytes, np.full(nbytes, 0xFF, np.uint8))

    def free(self, block: Block) -> None:
        self._count("free")

    def memory(self) -> tuple[int, int]:
        """Free bytes and all bytes: as much as anyone could want."""
        return 1 << 46, 1 << 46

    def pinned(self, nbytes: int) -> np.ndarray:
        """Host memory that the device can copy from and to."""
        return np.zeros(nbytes, np.uint8)

    def to_device(self, block: Block, offset: int, values: np.ndarray) -> None:
        """Copy the bytes of a contiguous array; ``values`` may change afterwards."""
        self._count("to_device")
        _bytes(block)[offset : offset + values.nbytes] = values.reshape(-1).view(np.uint8)

    def to_host(self, values: np.ndarray, block: Block, offset: int) -> None:
        """Wait, then copy bytes into a contiguous array."""
        self._count("to_host")
        values.reshape(-1).view(np.uint8)[...] = _bytes(block)[offset : offset + values.nbytes]

    def begin_copy(self, block: Block, offset: int, values: np.ndarray) -> None:
        """``to_device`` beside what else is under way; done when ``await_copies`` is."""
        self._count("begin_copy")
        _bytes(block)[offset : offset + values.nbytes] = values.reshape(-1).view(np.uint8)

    def await_copies(self) -> None:
        """What is launched from now on waits for the copies that were begun."""

    def copy(self, to: Block, at: int, block: Block, offset: int, nbytes: int) -> None:
        """Copy bytes on the device."""
        self._count("copy")
        _bytes(to)[at : at + nbytes] = _bytes(block)[offset : offset + nbytes]

    def sync(self) -> None:
        """Wait for everything asked for so far."""
        self._count("sync")

    def run(self, call: Callable[[], None]) -> None:
        """Launch kernels. NumPy's warnings about what floats do are none here."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            call()

    def capture(
        self, refresh: Sequence[tuple[Block, np.ndarray]], calls: Sequence[Callable[[], None]],
        fetch: Sequence[tuple[np.ndarray, Block]],
    ) -> Graph:  # fmt: skip
        """A graph: copy all of each host array to its block, make the calls, copy blocks to host arrays."""
        return _Replayed(self, list(refresh), list(calls), list(fetch))

    def capture_lanes(
        self, refresh: Sequence[tuple[Block, np.ndarray]], calls: Sequence[Callable[[], None]],
        fetch: Sequence[tuple[np.ndarray, Block]], order: Order,
    ) -> Graph:  # fmt: skip
        """The same with calls in lanes, each of which launches into the stream of its own. Here they come in another
        order than that of the list, which must not matter."""
        return self.capture(refresh, [calls[number] for number in order.sequence()], fetch)


class _Replayed:
    """A simulated graph: the calls themselves."""

    def __init__(self, driver: Simulated, refresh: list, calls: list, fetch: list):
        self._driver, self._refresh, self._calls, self._fetch = driver, refresh, calls, fetch
        self.nodes = len(refresh) + len(calls) + len(fetch)

    def launch(self) -> None:
        self._driver._count("launch")
        for block, values in self._refresh:
            _bytes(block)[: values.nbytes] = values
        for call in self._calls:
            self._driver.run(call)
        for values, block in self._fetch:
            values[...] = _bytes(block)[: values.nbytes]


def _bytes(block: Block) -> np.ndarray:
    assert block.memory is not None
    return block.memory


class Device(Driver):
    """A GPU: device ``number`` of this process, in numba's context for it."""

    def __init__(self, number: int = 0) -> None:
        super().__init__()
        _cuda.select_device(number)
        self._context, self._entered = _cuda.current_context(), threading.local()
        self._lib = _library()
        self.stream = _cuda.stream()
        self._handle = ctypes.c_void_p(int(self.stream))
        self._beside = ctypes.c_void_p()
        self._lanes: list[Any] = []
        self._staging: list[tuple[np.ndarray, ctypes.c_void_p]] = []

    def _call(self, name: str, *args: Any) -> None:
        """A function of the driver, in this thread's context."""
        if not hasattr(self._entered, "done"):
            _cuda.current_context()
            self._entered.done = True
        code = getattr(self._lib, name)(*args)
        if code:
            text = ctypes.c_char_p()
            self._lib.cuGetErrorName(code, ctypes.byref(text))
            raise RuntimeError(f"the CUDA driver's {name} failed: {(text.value or b'?').decode()}")

    def alloc(self, nbytes: int) -> Block:
        self._count("alloc")
        pointer = ctypes.c_uint64()
        try:
            self._call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(max(nbytes, 1)))
        except RuntimeError as e:
            if "OUT_OF_MEMORY" not in str(e):
                raise
            free, total = self.memory()
            raise MemoryError(
                f"the GPU has no {nbytes / GIB:.2f} GiB left: {free / GIB:.2f} of {total / GIB:.2f} GiB are free"
            ) from e
        return Block(pointer.value, nbytes)

    def free(self, block: Block) -> None:
        self._count("free")
        self._call("cuMemFree_v2", ctypes.c_uint64(block.pointer))

    def memory(self) -> tuple[int, int]:
        """Free bytes and all bytes."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def pinned(self, nbytes: int) -> np.ndarray:
        """Host memory that the device can copy from and to without the driver's help; it lives as long as we do."""
        pointer = ctypes.c_void_p()
        self._call("cuMemHostAlloc", ctypes.byref(pointer), ctypes.c_size_t(nbytes), ctypes.c_uint(0))
        return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(pointer.value or 0))

    def to_device(self, block: Block, offset: int, values: np.ndarray) -> None:
        self._count("to_device")
        # From pageable memory the driver has read everything when it returns; pinned memory is the caller's to keep.
        size = ctypes.c_size_t(values.nbytes)
        to = ctypes.c_uint64(block.pointer + offset)
        self._call("cuMemcpyHtoDAsync_v2", to, ctypes.c_void_p(values.ctypes.data), size, self._handle)

    def to_host(self, values: np.ndarray, block: Block, offset: int) -> None:
        self._count("to_host")
        size, start = ctypes.c_size_t(values.nbytes), ctypes.c_uint64(block.pointer + offset)
        self._call("cuMemcpyDtoHAsync_v2", ctypes.c_void_p(values.ctypes.data), start, size, self._handle)
        self._call("cuStreamSynchronize", self._handle)

    def begin_copy(self, block: Block, offset: int, values: np.ndarray) -> None:
        """By way of two pieces of pinned memory in turn: one is filled while the other one travels."""
        self._count("begin_copy")
        if not self._staging:
            self._call("cuStreamCreate", ctypes.byref(self._beside), ctypes.c_uint(1))
            for _ in range(2):
                event = ctypes.c_void_p()
                self._call("cuEventCreate", ctypes.byref(event), ctypes.c_uint(2))
                self._staging.append((self.pinned(STAGED), event))
        raw = values.reshape(-1).view(np.uint8)
        for start in range(0, raw.size, STAGED):
            piece = raw[start : start + STAGED]
            self._staging.reverse()
            pinned, event = self._staging[0]
            self._call("cuEventSynchronize", event)
            np.copyto(pinned[: piece.size], piece)
            to, source = ctypes.c_uint64(block.pointer + offset + start), ctypes.c_void_p(pinned.ctypes.data)
            self._call("cuMemcpyHtoDAsync_v2", to, source, ctypes.c_size_t(piece.size), self._beside)
            self._call("cuEventRecord", event, self._beside)

    def await_copies(self) -> None:
        for _, event in self._staging:
            self._call("cuStreamWaitEvent", self._handle, event, ctypes.c_uint(0))

    def copy(self, to: Block, at: int, block: Block, offset: int, nbytes: int) -> None:
        self._count("copy")
        target, source = ctypes.c_uint64(to.pointer + at), ctypes.c_uint64(block.pointer + offset)
        self._call("cuMemcpyDtoDAsync_v2", target, source, ctypes.c_size_t(nbytes), self._handle)

    def sync(self) -> None:
        self._count("sync")
        self._call("cuStreamSynchronize", self._handle)

    def run(self, call: Callable[[], None]) -> None:
        """Launch kernels."""
        call()

    def capture(
        self, refresh: Sequence[tuple[Block, np.ndarray]], calls: Sequence[Callable[[], None]],
        fetch: Sequence[tuple[np.ndarray, Block]],
    ) -> Graph:  # fmt: skip
        return self.capture_lanes(refresh, calls, fetch, None)

    def capture_lanes(
        self, refresh: Sequence[tuple[Block, np.ndarray]], calls: Sequence[Callable[[], None]],
        fetch: Sequence[tuple[np.ndarray, Block]], order: Order | None,
    ) -> Graph:  # fmt: skip
        graph, ready = ctypes.c_void_p(), ctypes.c_void_p()
        made: list[ctypes.c_void_p] = []
        # relaxed: the first launch of a kernel loads its code, which stricter modes forbid
        self._call("cuStreamBeginCapture_v2", self._handle, ctypes.c_int(2))
        try:
            for block, values in refresh:
                self._copy_node(
                    "cuMemcpyHtoDAsync_v2", ctypes.c_uint64(block.pointer), values.ctypes.data, values.nbytes
                )
            if order is None:
                for call in calls:
                    call()
            else:
                self._in_lanes(calls, order, made)
            for values, block in fetch:
                to = ctypes.c_void_p(values.ctypes.data)
                self._copy_node("cuMemcpyDtoHAsync_v2", to, block.pointer, values.nbytes)
        finally:
            self._call("cuStreamEndCapture", self._handle, ctypes.byref(graph))
            for event in made:
                self._call("cuEventDestroy_v2", event)
        nodes = ctypes.c_size_t()
        self._call("cuGraphGetNodes", graph, None, ctypes.byref(nodes))
        self._call("cuGraphInstantiateWithFlags", ctypes.byref(ready), graph, ctypes.c_uint64(0))
        self._call("cuGraphDestroy", graph)
        return _Captured(self, ready, nodes.value)

    def _in_lanes(self, calls: Sequence[Callable[[], None]], order: Order, made: list[ctypes.c_void_p]) -> None:
        """Make the calls in the streams that they know. A lane begins after what was captured before, a call after the
        end of those that its turn waits for, and what is captured next after the end of all. ``made``: events."""

        def event_after(lane: int) -> ctypes.c_void_p:
            event = ctypes.c_void_p()
            self._call("cuEventCreate", ctypes.byref(event), ctypes.c_uint(2))
            made.append(event)
            self._call("cuEventRecord", event, self._lane_handle(lane))
            return event

        def wait(lane: int, event: ctypes.c_void_p) -> None:
            self._call("cuStreamWaitEvent", self._lane_handle(lane), event, ctypes.c_uint(0))

        others = {turn.lane for turn in order.turns} - {0}
        if others:
            begin = event_after(0)
            for lane in sorted(others):
                wait(lane, begin)
        awaited = {number for turn in order.turns for number in turn.waits} | set(order.ends)
        ended: dict[int, ctypes.c_void_p] = {}
        for number, (call, turn) in enumerate(zip(calls, order.turns, strict=True)):
            for earlier in turn.waits:
                wait(turn.lane, ended[earlier])
            call()
            if others and number in awaited:
                ended[number] = event_after(turn.lane)
        for number in order.ends:
            if order.turns[number].lane:
                wait(0, ended[number])

    def lane(self, number: int) -> Any:
        while len(self._lanes) < number:
            self._lanes.append(_cuda.stream())
        return self._lanes[number - 1] if number else self.stream

    def _lane_handle(self, number: int) -> ctypes.c_void_p:
        return ctypes.c_void_p(int(self.lane(number)))

    def _copy_node(self, name: str, to: Any, source: int, nbytes: int) -> None:
        start = ctypes.c_uint64(source) if "DtoH" in name else ctypes.c_void_p(source)
        self._call(name, to, start, ctypes.c_size_t(nbytes), self._handle)


class _Captured:
    """An instantiated CUDA graph."""

    def __init__(self, driver: Device, ready: ctypes.c_void_p, nodes: int):
        self._driver, self._ready, self.nodes = driver, ready, nodes

    def launch(self) -> None:
        self._driver._count("launch")
        self._driver._call("cuGraphLaunch", self._ready, self._driver._handle)

    def __del__(self) -> None:
        try:
            self._driver._call("cuGraphExecDestroy", self._ready)
        except RuntimeError:  # the context went first
            pass


def _library() -> Any:
    """The driver's library. OSError if there is none."""
    if sys.platform == "win32":
        return ctypes.WinDLL("nvcuda.dll")  # type: ignore[attr-defined]
    return ctypes.CDLL("libcuda.so.1")


def open_driver(number: int = 0) -> Simulated | Device:
    """The simulator where it was asked for, else the GPU; RuntimeError with one line if there is none to use."""
    if SIMULATED:
        return Simulated()
    from .devices import refusal

    why = refusal()
    if why is not None:
        raise RuntimeError(why)
    return Device(number)
