"""The CUDA backend: every op of ``kernels.ops`` on one GPU, or in numba's simulator.

    ops = CUDA()                                # RuntimeError with one line if there is no device
    w = ops.place(matrix)                       # raw rows of the file, once
    y = ops.host(ops.linear(ops.upload(x), w))

Ops return at once; the device works them off in order. Whoever asks for values (``host``) waits, and learns then of a
number that was out of range: IndexError comes from ``host``, ``synchronize`` or ``replay``, not from the op.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from ..formats.matrix import Matrix
from . import copying
from .arrays import DeviceArray
from .driver import open_driver
from .experts import CachedStack
from .memory import Buffer, Memory
from .ops_attention import AttentionOps
from .ops_products import ProductOps
from .ops_ranking import RankingOps
from .ops_rows import RowOps
from .recording import Recording
from .steps import F32, I32, Launch
from .widening import placed_bytes, widened

GIB = 1 << 30
WORKING = 2 << 30
"""Bytes left for caches and results where weights have to be cut short."""

LANES = 3

SMALL = 1024
"""Uploads of at most this many bytes, while a recording is made, become its inputs."""


class Ops(RowOps, AttentionOps, ProductOps, RankingOps):
    """All ops, without saying when they are launched."""


class Recorded(Recording, Ops):
    """The same ops, recorded."""


class CUDA(Ops):
    """Ops on device ``number``. ``threads`` may be assigned and means nothing: a GPU has its own.

    limit: bytes of device memory to use at most, None for all there is. MemoryError where they do not suffice.
    Ops may be called from several Python threads at a time; they take turns.
    """

    name = "cuda"
    threads = 1
    lanes = LANES
    """Launches of a recording that may run at a time; of recordings that are made after it is assigned."""

    def __init__(self, number: int = 0, limit: int | None = None):
        self.driver: Any = open_driver(number)
        self.memory = Memory(self.driver, limit)
        self.lock = threading.RLock()
        self._desk = threading.local()
        self._absent: dict[np.dtype, DeviceArray] = {}
        self.failures: list[str] = []
        self.share: float | None = None
        self._seen: tuple[Buffer, int, np.ndarray] | None = None
        self.error = self.array(1, dtype=I32)
        self.fill(self.error, 0)

    def prepare(self, nbytes: int, of_experts: int) -> None:
        """Weights of ``nbytes`` bytes will be placed, ``of_experts`` of them in stacks. If they do not fit, only part
        of every stack is resident at a time (``experts``), and this backend does not record. MemoryError with what is
        needed if not even that is possible."""
        room = self.memory.room()
        spare = min(WORKING, room // 8)
        self.share = None
        if nbytes + spare <= room:
            return
        left = room - spare - (nbytes - of_experts)
        if left <= 0 or not of_experts:
            raise MemoryError(
                f"the weights need {(nbytes - of_experts) / GIB:.2f} GiB of GPU memory without experts, "
                f"{nbytes / GIB:.2f} with all of them, and {spare / GIB:.2f} more to work in; {room / GIB:.2f} are free"
            )
        self.share = left / of_experts

    @property
    def fetching(self) -> bool:
        """Whether experts come and go."""
        return self.share is not None

    def load(self) -> None:
        """Nothing: kernels are compiled when they are first launched, and a model uses a part of them."""

    def record(self) -> Recorded | None:
        """A backend whose ops are kept as launches, to be run together later; None while experts come and go. Small
        arrays that this thread uploads until it is sealed are its inputs: refilled in host memory, and copied when it
        runs."""
        if self.fetching:
            return None
        recording = Recorded(self)
        self._desk.recording = weakref.ref(recording)
        return recording

    def recorded(self) -> None:
        """The recording that this thread made is sealed."""
        self._desk.recording = None

    # --- memory

    def array(self, *shape: int, dtype: DTypeLike = F32) -> Any:
        """A new array on the device; values are undefined."""
        kind = np.dtype(dtype)
        return DeviceArray(self.memory.buffer(int(np.prod(shape, dtype=np.int64)) * kind.itemsize), shape, kind)

    def upload(self, values: np.ndarray) -> Any:
        """A copy of ``values`` on the device."""
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
        """The matrix, or the stack, with its raw rows on the device; as bfloat16 where there are no kernels for it."""
        w = widened(w)
        source = np.ascontiguousarray(w.data)
        if w.experts and self.share is not None:
            slots = max(1, min(w.experts, int(w.experts * self.share)))
            data: Any = CachedStack(source, self.memory.buffer(slots * source[0].nbytes), slots)
        else:
            data = self.moved(source)
        return Matrix(w.fmt, data, w.rows, w.cols)

    def placed_bytes(self, w: Matrix) -> int:
        """Bytes that ``place`` will take for it, or for all of a stack."""
        return placed_bytes(w)

    def fill(self, array: Any, values: Any) -> None:
        """Overwrite ``array`` (or a part of it, by basic indexing) with values of the host, or of another array."""
        if not array.size:
            return
        self._seen = None
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
        """Contiguous values into a contiguous array."""
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
        """Values of one array into another of the same shape and type, whatever gaps they have."""
        self.run(copying.copy(to, x))

    def host(self, array: Any) -> np.ndarray:
        """A copy of ``array``, or what a recording has fetched already. Waits for the device; IndexError if a kernel
        met a number out of range since the last time."""
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
        """Wait for the device. IndexError if a kernel met a number out of range since the last time."""
        with self.lock:
            self.driver.sync()
            self._raise()

    def _raise(self) -> None:
        code = np.zeros(1, np.int32)
        assert self.error.buffer.block is not None
        self.driver.to_host(code, self.error.buffer.block, 0)
        self.tell(int(code[0]))

    def tell(self, code: int) -> None:
        """IndexError if ``code`` is one; the device's is then cleared."""
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

    # --- experts that are not all resident

    def seen_ids(self, ids: DeviceArray, experts: int) -> np.ndarray:
        if self._seen is None or self._seen[0] is not ids.buffer or self._seen[1] != ids.offset:
            values = self.host(ids)
            self._seen = ids.buffer, ids.offset, values  # held, so that its memory is not another one's meanwhile
        values = self._seen[2]
        if values.size and (values.min() < 0 or values.max() >= experts):
            raise IndexError(f"an expert id lies outside 0..{experts - 1}")
        return values.reshape(ids.shape)

    def make_resident(self, stack: CachedStack, experts: np.ndarray, wait: bool) -> None:
        with self.lock:
            if wait:
                self.driver.sync()
            stack.ensure(experts, self.driver)

    def run(self, launch: Launch) -> None:
        with self.lock:
            for array in launch.reads:
                if array.buffer.slab is not None:
                    array.buffer.slab.flush()
            if any(isinstance(w.data, CachedStack) for w in launch.matrices):
                self.driver.await_copies()
            held: list[Buffer] = []
            self.driver.run(lambda: launch.call(self.driver.stream, self.scratch(held)))

    def scratch(self, held: list[Buffer]) -> Callable[..., Any]:
        """What gives kernels room of their own, as flat arrays that live as long as ``held``."""

        def take(shape: Any, dtype: DTypeLike = F32) -> Any:
            kind, shape = np.dtype(dtype), (shape,) if isinstance(shape, int) else tuple(shape)
            array = self.empty(*shape, dtype=kind)
            held.append(array.buffer)
            return array.flat()

        return take
