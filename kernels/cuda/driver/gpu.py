"""Device memory, copies, and graphs of launches: what the backend needs of the CUDA driver besides launching.

``Device`` calls the driver's C interface through ctypes, so it works with any ``numba.cuda``. All work is in one
stream, and so in order: memory that one op has freed can be used by the next op at once.

Errors: MemoryError names the wanted and the free bytes; RuntimeError, or the class that a ``Device`` was given, names
the driver's error, whether our call or one of ``numba.cuda`` met it.
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
"""CU_DEVICE_ATTRIBUTE_INTEGRATED: whether the device uses the machine's memory rather than its own."""


def available(path: Path = Path("/proc/meminfo")) -> int | None:
    """Return the bytes of host memory available to programs, including what caches of files would give up; None if the
    system does not report it (in ``path``)."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")), None)


@dataclass(eq=False)
class Block:
    """A block of device memory: address and size in bytes."""

    pointer: int
    nbytes: int


class Device:
    """GPU ``number`` of this process: its memory, copies and CUDA graphs, in the context that Numba made for it.

    raises: class of the exceptions raised when the driver refuses a call or the GPU has failed
    """

    def __init__(self, number: int = 0, raises: type[Exception] = RuntimeError) -> None:
        self.raises, self._lost = raises, False
        with self._told():
            select_device(number)
            self._number = int(cuda.current_context().device.id)
            self._context, self._entered = cuda.current_context(), threading.local()
            self._lib = driver_library()
        self._handle = ctypes.c_void_p()
        self._call("cuStreamCreate", ctypes.byref(self._handle), ctypes.c_uint(0))
        # a stream of our own, because those of ``numba.cuda`` print a traceback if they can no longer be destroyed
        self.stream = cuda.external_stream(self._handle.value)
        _nothing_freed_at_exit()

    def _enter(self) -> None:
        """Make the device's context the current one of this thread, the first time the thread needs it."""
        if not hasattr(self._entered, "done"):
            with self._told():
                cuda.current_context()
            self._entered.done = True

    def _call(self, name: str, *args: Any) -> None:
        """Call the driver's function ``name``; raise ``self.raises`` if it fails."""
        self._enter()
        code = getattr(self._lib, name)(*args)
        if code:
            why = error_name(self._lib, code)
            self._note(why)
            raise self.raises(f"the CUDA driver's {name} failed: {why}")

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Convert exceptions of ``numba.cuda`` that come from driver, device or compiler to the class ``raises``; let
        others, which are bugs, pass unchanged."""
        try:
            yield
        except Exception as error:
            if not from_below(error):
                raise
            text = one_line(error)
            self._note(text)
            raise self.raises(f"the GPU failed: {text}") from error

    def _note(self, text: str) -> None:
        """If ``text`` names an error after which the context is unusable, stop Numba from freeing anything in it."""
        if not self._lost and any(part in text for part in LASTING):
            self._lost = True
            with suppress(Exception):
                leave_as_it_is()

    def alloc(self, nbytes: int) -> Block:
        """Allocate device memory, not initialised; raise MemoryError if the device has too little."""
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
        """Free a block of device memory."""
        self._call("cuMemFree_v2", ctypes.c_uint64(block.pointer))

    def memory(self) -> tuple[int, int]:
        """Return the free and the total bytes of device memory."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        if self._attribute(INTEGRATED):  # the driver does not count what the system's caches of files would give up
            return min(total.value, max(free.value, available() or 0)), total.value
        return free.value, total.value

    def pinned(self, nbytes: int) -> np.ndarray:
        """Allocate page-locked host memory (uint8), which only ``unpin`` frees; raise MemoryError if the host has too
        little."""
        pointer = ctypes.c_void_p()
        try:
            self._call("cuMemHostAlloc", ctypes.byref(pointer), ctypes.c_size_t(nbytes), ctypes.c_uint(0))
        except self.raises as e:
            if "OUT_OF_MEMORY" not in str(e):
                raise
            raise MemoryError(f"the system gives no {_size(nbytes)} of page-locked memory") from e
        return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(pointer.value or 0))

    def unpin(self, values: np.ndarray) -> None:
        """Free host memory that ``pinned`` allocated."""
        self._call("cuMemFreeHost", ctypes.c_void_p(values.ctypes.data))

    def to_device(self, block: Block, offset: int, values: np.ndarray) -> None:
        """Copy a contiguous host array to byte ``offset`` of a block. If ``values`` are in page-locked memory, do not
        change them before the stream has been waited for."""
        # from other memory the driver has read everything when the call returns
        size = ctypes.c_size_t(values.nbytes)
        to = ctypes.c_uint64(block.pointer + offset)
        self._call("cuMemcpyHtoDAsync_v2", to, ctypes.c_void_p(values.ctypes.data), size, self._handle)

    def to_host(self, values: np.ndarray, block: Block, offset: int) -> None:
        """Copy bytes from byte ``offset`` of a block into a contiguous host array, and wait for them."""
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
        """Copy ``nbytes`` bytes on the device, from byte ``offset`` of ``block`` to byte ``at`` of ``to``."""
        target, source = ctypes.c_uint64(to.pointer + at), ctypes.c_uint64(block.pointer + offset)
        self._call("cuMemcpyDtoDAsync_v2", target, source, ctypes.c_size_t(nbytes), self._handle)

    def sync(self) -> None:
        """Wait for all work of the stream."""
        self._call("cuStreamSynchronize", self._handle)

    def run(self, call: Callable[[], None]) -> None:
        """Call a function that launches kernels; raise ``self.raises`` if driver or device fail."""
        self._enter()
        with self._told():
            call()

    def capture(
        self, refresh: Sequence[tuple[Block, np.ndarray]], calls: Sequence[Callable[[], None]],
        fetch: Sequence[tuple[np.ndarray, Block]],
    ) -> Captured:  # fmt: skip
        """Return a CUDA graph that copies each host array of ``refresh`` to its block, does what ``calls`` launch, and
        copies blocks to the host arrays of ``fetch``. Nothing runs yet."""
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
            with suppress(self.raises):  # report the first error; but the stream must not stay in capture mode
                if not graph:
                    self._call("cuStreamEndCapture", self._handle, ctypes.byref(graph))
                if graph:
                    self._call("cuGraphDestroy", graph)
            raise
        try:
            self._call("cuGraphInstantiateWithFlags", ctypes.byref(ready), graph, ctypes.c_uint64(0))
        finally:
            with suppress(self.raises):  # the next call will report an error that happens here
                self._call("cuGraphDestroy", graph)
        return Captured(self, ready)

    def __del__(self) -> None:
        with suppress(Exception):  # the context was destroyed before, or there never was one
            self._call("cuStreamDestroy_v2", self._handle)


@functools.cache
def _nothing_freed_at_exit() -> None:
    """Arrange that Numba frees nothing when Python exits, because the driver does that anyway.

    Otherwise, if an error that nobody has met yet made the context unusable, Numba would print a traceback for each
    loaded module. This must be called after modules are loaded, because what is registered last runs first at exit.
    """
    atexit.register(leave_as_it_is)


class Captured:
    """An instantiated CUDA graph, ready to be launched any number of times."""

    def __init__(self, driver: Device, ready: ctypes.c_void_p):
        self._driver, self._ready = driver, ready

    def launch(self) -> None:
        self._driver._call("cuGraphLaunch", self._ready, self._driver._handle)

    def __del__(self) -> None:
        with suppress(Exception):  # the context was destroyed before
            self._driver._call("cuGraphExecDestroy", self._ready)


def _size(nbytes: int) -> str:
    return f"{nbytes / GIB:.2f} GiB" if nbytes > GIB // 100 else f"{nbytes} bytes"


def open_driver(number: int = 0, raises: type[Exception] = RuntimeError) -> Device:
    """Open GPU ``number``; raise ``raises`` with a message of one line if it cannot be used, and also later when its
    driver refuses a call."""
    from .devices import refusal

    reason = refusal(number)
    if reason is not None:
        raise raises(reason)
    return Device(number, raises)
