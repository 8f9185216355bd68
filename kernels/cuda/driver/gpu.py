"""Device memory, copies, and graphs of launches: what the backend needs of the CUDA driver besides launching.

``Device`` calls the driver's C interface by ctypes, so it works with any ``numba.cuda``. One stream orders all work, so
memory that one op gave back may serve the next op at once.

Errors: MemoryError names the wanted and the free bytes; RuntimeError, or the class that a ``Device`` was given, names
the driver's error, also where ``numba.cuda`` met it.
"""

from __future__ import annotations

import atexit
import ctypes
import ctypes.util
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .shim import LASTING, cuda, driver_library, error_name, from_below, leave_as_it_is, one_line, select_device

GIB = 1 << 30
INTEGRATED = 18
"""Attribute of a device: its memory is the machine's."""


def available(path: Path = Path("/proc/meminfo")) -> int | None:
    """Bytes of memory that programs can have, caches of files included; None if the system does not say."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")), None)


@dataclass(eq=False)
class Block:
    """Device memory: address and size in bytes."""

    pointer: int
    nbytes: int


class Device:
    """Memory, copies and graphs of device ``number`` of this process, in Numba's context for it. ``raises``: class of
    the exceptions for what the driver refuses."""

    def __init__(self, number: int = 0, raises: type[Exception] = RuntimeError) -> None:
        self.raises, self._lost = raises, False
        with self._told():
            select_device(number)
            self._number = int(cuda.current_context().device.id)
            self._context, self._entered = cuda.current_context(), threading.local()
            self._lib = driver_library()
        self._handle = ctypes.c_void_p()
        self._call("cuStreamCreate", ctypes.byref(self._handle), ctypes.c_uint(0))
        # of our own: those of ``numba.cuda`` print a traceback when they cannot be destroyed any more
        self.stream = cuda.external_stream(self._handle.value)
        _nothing_freed_at_exit()

    def _enter(self) -> None:
        """Make the device's context the one of this thread."""
        if not hasattr(self._entered, "done"):
            with self._told():
                cuda.current_context()
            self._entered.done = True

    def _call(self, name: str, *args: Any) -> None:
        """Call a function of the driver in this thread's context."""
        self._enter()
        code = getattr(self._lib, name)(*args)
        if code:
            why = error_name(self._lib, code)
            self._note(why)
            raise self.raises(f"the CUDA driver's {name} failed: {why}")

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Raise what ``numba.cuda`` meets below it as ``raises``; a bug of ours passes as it is."""
        try:
            yield
        except Exception as error:
            if not from_below(error):
                raise
            text = one_line(error)
            self._note(text)
            raise self.raises(f"the GPU failed: {text}") from error

    def _note(self, text: str) -> None:
        """Take notice of an error that ended the context."""
        if not self._lost and any(part in text for part in LASTING):
            self._lost = True
            with suppress(Exception):
                leave_as_it_is()

    def alloc(self, nbytes: int) -> Block:
        """New device memory, not initialised. MemoryError if the device has too little."""
        pointer = ctypes.c_uint64()
        try:
            self._call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(max(nbytes, 1)))
        except self.raises as e:
            if "OUT_OF_MEMORY" not in str(e):
                raise
            free, total = self.memory()
            raise MemoryError(
                f"the GPU has no {_size(nbytes)} left: {free / GIB:.2f} of {total / GIB:.2f} GiB are free"
            ) from e
        return Block(pointer.value, nbytes)

    def free(self, block: Block) -> None:
        """Give a block back."""
        self._call("cuMemFree_v2", ctypes.c_uint64(block.pointer))

    def memory(self) -> tuple[int, int]:
        """Free and total bytes."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        if self._attribute(INTEGRATED):  # the machine's memory, which the driver counts without caches of files
            return min(total.value, max(free.value, available() or 0)), total.value
        return free.value, total.value

    def pinned(self, nbytes: int) -> np.ndarray:
        """Page-locked host memory (uint8), not freed before ``unpin``. MemoryError if the host has too little."""
        pointer = ctypes.c_void_p()
        try:
            self._call("cuMemHostAlloc", ctypes.byref(pointer), ctypes.c_size_t(nbytes), ctypes.c_uint(0))
        except self.raises as e:
            if "OUT_OF_MEMORY" not in str(e):
                raise
            raise MemoryError(f"the system gives no {_size(nbytes)} of page-locked memory") from e
        return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(pointer.value or 0))

    def unpin(self, values: np.ndarray) -> None:
        """Free what ``pinned`` gave."""
        self._call("cuMemFreeHost", ctypes.c_void_p(values.ctypes.data))

    def to_device(self, block: Block, offset: int, values: np.ndarray) -> None:
        """Copy the bytes of a contiguous array; pageable ``values`` may change afterwards."""
        # From pageable memory the driver has read everything when it returns; pinned memory is the caller's to keep.
        size = ctypes.c_size_t(values.nbytes)
        to = ctypes.c_uint64(block.pointer + offset)
        self._call("cuMemcpyHtoDAsync_v2", to, ctypes.c_void_p(values.ctypes.data), size, self._handle)

    def to_host(self, values: np.ndarray, block: Block, offset: int) -> None:
        """Wait for the stream, then copy bytes into a contiguous array."""
        self._fetch(values, block, offset)
        self.sync()

    def _fetch(self, values: np.ndarray, block: Block, offset: int) -> None:
        size, start = ctypes.c_size_t(values.nbytes), ctypes.c_uint64(block.pointer + offset)
        self._call("cuMemcpyDtoHAsync_v2", ctypes.c_void_p(values.ctypes.data), start, size, self._handle)

    def _attribute(self, number: int) -> int:
        value = ctypes.c_int()
        self._call("cuDeviceGetAttribute", ctypes.byref(value), ctypes.c_int(number), ctypes.c_int(self._number))
        return value.value

    def copy(self, to: Block, at: int, block: Block, offset: int, nbytes: int) -> None:
        """Copy bytes on the device."""
        target, source = ctypes.c_uint64(to.pointer + at), ctypes.c_uint64(block.pointer + offset)
        self._call("cuMemcpyDtoDAsync_v2", target, source, ctypes.c_size_t(nbytes), self._handle)

    def sync(self) -> None:
        """Wait for all work of the stream."""
        self._call("cuStreamSynchronize", self._handle)

    def run(self, call: Callable[[], None]) -> None:
        """Call a function that launches kernels."""
        self._enter()
        with self._told():
            call()

    def capture(
        self, refresh: Sequence[tuple[Block, np.ndarray]], calls: Sequence[Callable[[], None]],
        fetch: Sequence[tuple[np.ndarray, Block]],
    ) -> Captured:  # fmt: skip
        """A graph: copy all of each host array to its block, make the calls, copy blocks to host arrays."""
        graph, ready = ctypes.c_void_p(), ctypes.c_void_p()
        # relaxed: the first launch of a kernel loads its code, which stricter modes forbid
        self._call("cuStreamBeginCapture_v2", self._handle, ctypes.c_int(2))
        try:
            for block, values in refresh:
                self.to_device(block, 0, values)
            for call in calls:
                self.run(call)
            for values, block in fetch:
                self._fetch(values, block, 0)
            self._call("cuStreamEndCapture", self._handle, ctypes.byref(graph))
        except BaseException:
            with suppress(self.raises):  # what went wrong first is the news; the stream must not stay in capture
                if not graph:
                    self._call("cuStreamEndCapture", self._handle, ctypes.byref(graph))
                if graph:
                    self._call("cuGraphDestroy", graph)
            raise
        try:
            self._call("cuGraphInstantiateWithFlags", ctypes.byref(ready), graph, ctypes.c_uint64(0))
        finally:
            with suppress(self.raises):  # an error here is told by the next call
                self._call("cuGraphDestroy", graph)
        return Captured(self, ready)

    def __del__(self) -> None:
        with suppress(Exception):  # the context went first, or there never was one
            self._call("cuStreamDestroy_v2", self._handle)


@functools.cache
def _nothing_freed_at_exit() -> None:
    """When Python ends the driver frees everything anyway, and an error that ended the context and was not met before
    would be told then, as a traceback a module. Called once modules are loaded: what is registered last runs first."""
    atexit.register(leave_as_it_is)


class Captured:
    """An instantiated CUDA graph."""

    def __init__(self, driver: Device, ready: ctypes.c_void_p):
        self._driver, self._ready = driver, ready

    def launch(self) -> None:
        self._driver._call("cuGraphLaunch", self._ready, self._driver._handle)

    def __del__(self) -> None:
        with suppress(Exception):  # the context went first
            self._driver._call("cuGraphExecDestroy", self._ready)


def _size(nbytes: int) -> str:
    return f"{nbytes / GIB:.2f} GiB" if nbytes > GIB // 100 else f"{nbytes} bytes"


def open_driver(number: int = 0, raises: type[Exception] = RuntimeError) -> Device:
    """The GPU. Raises ``raises`` with one line if it cannot be used, and for what its driver refuses later."""
    from .devices import refusal

    reason = refusal(number)
    if reason is not None:
        raise raises(reason)
    return Device(number, raises)
