"""The CUDA backend: every op of ``ds4ref.kernels.ops`` on one GPU.

    ops = CUDA()                                # RuntimeError with a message of one line if there is no usable GPU
    w = ops.place(matrix)                       # copy the quantized weights to the GPU, once
    y = ops.host(ops.linear(ops.upload(x), w))

Ops return at once, and the device runs them in order. An index out of range raises IndexError later, from ``host``,
``synchronize`` or ``replay``, which wait for the device.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Callable, Collection
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from ..binding import F32, I32
from ..formats.matrix import Matrix
from .driver.arrays import DeviceArray
from .driver.gpu import available, open_driver
from .driver.launch import Launch
from .driver.memory import Memory
from .graph.recording import Recording
from .ops.attention import AttentionOps
from .ops.products import ProductOps
from .ops.rows import RowOps
from .products.widening import placed_bytes, widened
from .rows import copying

GIB = 1 << 30
WORKING = 2 << 30
"""Bytes of GPU memory reserved for caches and results when the weights are placed, at most an eighth of what is
free."""

CHUNK, SMALL_CHUNK = 2048, 512
"""Default number of prompt tokens processed at once in prefill; SMALL_CHUNK if GPU memory is short. The larger a chunk,
the more inputs an expert has each time its weights are read, and the fewer kernel launches there are per token."""

SMALL = 1024
"""Arrays of at most this many bytes that are uploaded while a recording is made become its inputs."""


class Ops(RowOps, AttentionOps, ProductOps):
    """All ops; subclasses launch them at once or record them."""


class Recorded(Recording, Ops):
    """The ops of ``CUDA``, recorded instead of launched."""


class CUDA(Ops):
    """The CUDA backend: ops on GPU ``number``. Its attribute ``threads`` has no effect.

    limit: maximum bytes of GPU memory to use, None for all; ops raise MemoryError when they do not suffice
    raises: class of the exceptions raised when the driver refuses a call or the GPU has failed
    host_memory: bytes of the machine's memory that this process may use, None for what the system reports as available

    Python threads may share a backend; their ops take turns.
    """

    name = "cuda"
    threads = 1
    prefill_chunk = CHUNK

    def __init__(
        self, number: int = 0, limit: int | None = None, raises: type[Exception] = RuntimeError,
        host_memory: int | None = None,
    ):  # fmt: skip
        self.raises, self.host_memory = raises, host_memory
        self.driver: Any = open_driver(number, raises)
        self.memory = Memory(self.driver, limit)
        self.lock = threading.RLock()
        self._desk = threading.local()
        self._absent: dict[np.dtype, DeviceArray] = {}
        self.failures: list[str] = []
        self.spare: int | None = None
        """Bytes of GPU memory left for stacks of experts; None if all of them fit."""
        self.error = self.array(1, dtype=I32)
        self.fill(self.error, 0)

    def prepare(self, nbytes: int, of_experts: int) -> None:
        """Plan where weights go before they are placed: ``nbytes`` bytes in all, ``of_experts`` of them experts.

        If they do not all fit on the GPU, the stacks of experts placed last will stay in host memory, from which
        kernels read the experts that a token chose over the bus. Raise MemoryError if the GPU or the host has too
        little memory.
        """
        room = self.memory.room()
        spare = min(WORKING, room // 8)
        self.prefill_chunk = CHUNK if spare == WORKING else SMALL_CHUNK
        self.spare = None
        if nbytes + spare <= room:
            return
        left = room - spare - (nbytes - of_experts)
        if left <= 0 or not of_experts:
            raise MemoryError(
                f"the weights need {(nbytes - of_experts) / GIB:.2f} GiB of GPU memory without experts, "
                f"{nbytes / GIB:.2f} with all of them, and {spare / GIB:.2f} more to work in; {room / GIB:.2f} are free"
            )
        rooms = [each for each in (available(), self.host_memory) if each is not None]
        if rooms and of_experts - left > min(rooms):
            raise MemoryError(
                f"{(of_experts - left) / GIB:.2f} GiB of experts do not fit on the GPU, and of the machine's memory "
                f"{min(rooms) / GIB:.2f} GiB are free"
            )
        self.spare = left

    def load(self, progress: Callable[[str], None] | None = None, formats: Collection[str] = ()) -> None:
        """Do nothing: a kernel is compiled when it is first launched, because a model uses only some of them."""

    def record(self) -> Recorded:
        """Begin a recording and return it: ops called on it become launches of one CUDA graph.

        Small arrays that this thread uploads until the recording is sealed are its inputs: each replay copies their
        current values to the device.
        """
        recording = Recorded(self)
        self._desk.recording = weakref.ref(recording)
        return recording

    def recorded(self) -> None:
        """Note that this thread's recording is sealed: arrays uploaded later are not its inputs."""
        self._desk.recording = None

    # --- memory

    def array(self, *shape: int, dtype: DTypeLike = F32) -> Any:
        """Allocate an array on the device, not initialised."""
        kind = np.dtype(dtype)
        return DeviceArray(self.memory.buffer(math.prod(shape) * kind.itemsize), shape, kind)

    def upload(self, values: np.ndarray) -> Any:
        """Copy ``values`` to the device."""
        values = np.ascontiguousarray(values)
        made = getattr(self._desk, "recording", None)
        recording: Recording | None = made and made()
        if recording is not None and values.nbytes <= SMALL:
            buffer = recording.slab.take(values)
            if buffer is not None:
                return DeviceArray(buffer, values.shape, values.dtype)
        return self.moved(values)

    def moved(self, values: np.ndarray) -> DeviceArray:
        array: DeviceArray = self.array(*values.shape, dtype=values.dtype)
        self._write(array, values)
        return array

    def place(self, w: Matrix) -> Matrix:
        """Copy a matrix or stack to the device, quantized as it is, or converted to bfloat16 if its format has no
        kernels here. What does not fit goes to page-locked host memory (``prepare``)."""
        w = widened(w)
        source = np.ascontiguousarray(w.data)
        if w.experts and self.spare is not None:
            self.spare -= source.nbytes
            if self.spare < 0:
                return Matrix(w.fmt, DeviceArray(self.memory.far(source), source.shape, np.uint8), w.rows, w.cols)
        return Matrix(w.fmt, self.moved(source), w.rows, w.cols)

    def placed_bytes(self, w: Matrix) -> int:
        """Return the bytes of memory that ``place`` takes for ``w``."""
        return placed_bytes(w)

    def fill(self, array: Any, values: Any) -> None:
        """Overwrite ``array``, which may be a view of part of another, with host values or a device array.

        Raise ValueError for a device array of another shape or dtype.
        """
        if not array.size:
            return
        if isinstance(values, DeviceArray):
            if values.shape != array.shape or values.dtype != array.dtype:
                raise ValueError(f"{values.shape} {values.dtype} does not fill {array.shape} {array.dtype}")
            with self.lock:
                self._copy(array, values)
            return
        with np.errstate(over="ignore"):
            whole = np.ascontiguousarray(np.broadcast_to(np.asarray(values), array.shape), array.dtype)
        if array.contiguous:
            self._write(array, whole)
        else:
            with self.lock:
                self._copy(array, self.upload(whole))

    def _write(self, array: DeviceArray, values: np.ndarray) -> None:
        """Write contiguous values into a contiguous array."""
        if not values.nbytes:
            return
        buffer = array.buffer
        with self.lock:
            if buffer.slab is not None:
                buffer.slab.write(buffer, array.offset, values)
                return
            assert buffer.block is not None
            self.driver.to_device(buffer.block, buffer.start + array.offset, values)

    def _copy(self, to: DeviceArray, x: DeviceArray) -> None:
        """Copy between arrays of the same shape and dtype with any strides."""
        self.run(copying.copy(to, x))

    def host(self, array: Any) -> np.ndarray:
        """Return ``array`` as a NumPy array: wait for the device and copy it, or return the copy that the last replay
        made if it is an output of a recording. Raise IndexError if a kernel met an index out of range since the last
        check."""
        fetched = array.buffer.mirror
        if fetched is not None and array.contiguous:
            if array.buffer.fetch is not None:
                with self.lock:
                    array.buffer.fetch()
            return fetched[array.offset : array.offset + array.nbytes].view(array.dtype).reshape(array.shape)
        with self.lock:
            whole = array if array.contiguous else self.whole(array, "array")
            values = np.empty(whole.shape, whole.dtype)
            if values.nbytes:
                assert whole.buffer.block is not None
                self.driver.to_host(values, whole.buffer.block, whole.buffer.start + whole.offset)
            self._raise()
        return values

    def synchronize(self) -> None:
        """Wait for the device; raise IndexError if a kernel met an index out of range since the last check."""
        with self.lock:
            self.driver.sync()
            self._raise()

    def _raise(self) -> None:
        code = np.zeros(1, np.int32)
        assert self.error.buffer.block is not None
        self.driver.to_host(code, self.error.buffer.block, 0)
        self.tell(int(code[0]))

    def tell(self, code: int) -> None:
        """Raise the IndexError that belongs to ``code``, the failure code that a kernel wrote, and clear the code on
        the device; do nothing for 0."""
        if code:
            self.driver.to_device(self.error.buffer.block, 0, np.zeros(1, np.int32))
            raise IndexError(self.failures[code - 1])

    # --- steps

    def empty(self, *shape: int, dtype: DTypeLike = F32) -> DeviceArray:
        array: DeviceArray = self.array(*shape, dtype=dtype)
        return array

    def absent(self, dtype: DTypeLike) -> DeviceArray:
        kind = np.dtype(dtype)
        if kind not in self._absent:
            self._absent[kind] = self.array(1, dtype=kind)
        return self._absent[kind]

    def failure(self, text: str) -> int:
        with self.lock:
            if text not in self.failures:
                self.failures.append(text)
            return self.failures.index(text) + 1

    def whole(self, x: DeviceArray, name: str) -> DeviceArray:
        out = self.empty(*x.shape, dtype=x.dtype)
        if x.size:
            self._copy(out, x)
        return out

    def run(self, launch: Launch) -> None:
        with self.lock:
            for array in launch.reads:
                if array.buffer.slab is not None:
                    array.buffer.slab.flush()
            self.driver.run(lambda: launch.call(self.driver.stream))

    def once(self, x: DeviceArray, what: Any, make: Callable[[], Any]) -> Any:
        return make()
