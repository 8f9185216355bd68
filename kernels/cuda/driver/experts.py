"""Experts of models that are larger than the device: a cache of slots, and a map of it that kernels read.

Of every layer so many experts have a slot in device memory, with all their matrices; ``table`` on the device says
which. A kernel that multiplies with chosen experts looks each up there and reads it from its slot, or from the mapped
file: whose pages are registered, so that a kernel reads them over the bus (``driver.register``). So a token whose
experts all have slots waits for nobody, one that lacks some takes as long as their bytes need on the bus, and both are
the same recording.

Between two tokens the host looks at the counts of use that came with the first one, while the second one runs, and lets
hotter experts have the slots of colder ones (``residency``): a slot is taken out of the table, filled on a stream of
its own while tokens run, and entered when its bytes are there.

Chunks of many tokens want most experts, each many times: what has no slot passes through two pieces of device memory
(``Stage``), one of which is copied to while the other one is multiplied.

A driver that refuses to register them gets a page-locked copy. Where memory is smaller than the experts, every wanted
expert must get a slot first (``bring``): the host looks at the chosen ids once a layer, and nothing is recorded.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import DTypeLike

from .arrays import DeviceArray
from .gpu import Driver
from .grids import blocks_for, threads_for
from .hostpages import available, pages_of, read_in
from .launching import KernelArray as as_kernel_array
from .memory import Buffer, Memory
from .residency import Move, Residency
from .shim import cuda

MOVES = 16
"""Experts that get a slot between two tokens, at most: their copies share the bus with what tokens miss."""
STAGE_BYTES = 64 << 20
"""Bytes of each of two pieces of device memory that experts of large chunks pass through."""
SPARE_HOST = 2 << 30
"""Bytes of host memory to leave unregistered."""


class Spread(NamedTuple):
    """What a kernel is given for a stack: slots, the mapped file, the layer's row of the table."""

    near: Any
    far: Any
    held: Any


class CachedStack(DeviceArray):
    """A stack with ``slots`` of its experts in device memory. ``shape`` is that of the whole stack, ``flat`` are the
    slots; ``cache`` and ``layer`` are set by ``ExpertCache``."""

    cache: ExpertCache
    layer: int

    def __init__(self, source: np.ndarray, buffer: Buffer, slots: int):
        super().__init__(buffer, source.shape, np.uint8)
        self.source, self.slots = source, slots
        self.far = source
        """The experts in host memory: those of the file, or a copy."""

    def flat(self) -> Any:
        if self._flat is None:
            self._flat = self.shaped((self.slots * self.source[0].nbytes,))
        return self._flat

    def spread(self) -> Spread:
        """The kernel's argument."""
        far = as_kernel_array(self.far.ctypes.data, (self.far.size,), np.uint8)
        return Spread(self.flat(), far if self.cache.reachable else self.flat(), self.cache.table[self.layer].flat())


class Owner(Protocol):
    """The backend that a cache belongs to (``backend.CUDA``)."""

    driver: Driver
    memory: Memory

    def array(self, *shape: int, dtype: DTypeLike = ...) -> DeviceArray: ...


class Portion(NamedTuple):
    """Experts of a stack that are on the device together: ``number[expert]`` is an expert's place in ``data``."""

    experts: np.ndarray
    number: np.ndarray
    data: DeviceArray


class Readable:
    """Host memory that kernels read, until this is deleted: pages of the mapped file, or a copy."""

    def __init__(self, driver: Driver):
        self._driver, self._starts, self._copies = driver, list[int](), list[np.ndarray]()

    def register(self, arrays: Sequence[np.ndarray]) -> bool:
        """Register the pages of all arrays, which were read in; of none if the driver refuses one."""
        if any(array.ctypes.data % 16 for array in arrays):
            return False  # kernels copy 16 bytes at a time
        for start, nbytes in pages_of(arrays):
            if not self._driver.register(start, nbytes):
                self.drop()
                return False
            self._starts.append(start)
        return True

    def copy(self, array: np.ndarray) -> np.ndarray:
        """Copy to page-locked memory."""
        copy = self._driver.pinned(array.nbytes)
        self._copies.append(copy)
        np.copyto(copy, array.reshape(-1))
        return copy.reshape(array.shape)

    def drop(self) -> None:
        while self._starts:
            self._driver.unregister(self._starts.pop())
        while self._copies:
            self._driver.unpin(self._copies.pop())

    def __del__(self) -> None:
        with suppress(Exception):  # the context went first
            self.drop()


class ExpertCache:
    """The slots of all layers. ``stacks``: those of each layer, which share its slots.

    counts     int64 (layers, experts) on the device, how often each expert was chosen so far: what moves are made by
    host_room  bytes of host memory that may be used, None: what the system says is available
    reachable  whether kernels read experts without a slot from host memory
    """

    def __init__(
        self, owner: Owner, counts: DeviceArray | None, stacks: Sequence[Sequence[CachedStack]],
        host_room: int | None = None,
    ):  # fmt: skip
        first = stacks[0][0]
        if any(stack.slots != first.slots or len(stack) != len(first) for layer in stacks for stack in layer):
            raise ValueError("layers with different numbers of experts share no cache")
        self.driver, self.stacks = owner.driver, stacks
        self._array = weakref.WeakMethod(owner.array)  # the backend holds this cache, which holds the stacks
        self.residency = Residency(len(stacks), len(first), first.slots)
        self.table = owner.array(*self.residency.slot_of.shape, dtype=np.int32)
        self._shown = self.residency.slot_of.copy()
        self._flying: list[Move] = []
        self._counts = counts
        self._fetched = None if counts is None else owner.memory.pinned(counts.nbytes)
        self._before: np.ndarray | None = None
        """Counts before the last token; None: not known."""
        self._fresh: np.ndarray | None = None
        self._ran = False
        self._looked: list[Any] = [None] * len(stacks)
        self._stages: list[DeviceArray] = []
        self._readable = Readable(owner.driver)
        self.reachable = self._reach([stack for layer in stacks for stack in layer], host_room)
        for number, layer in enumerate(stacks):
            for stack in layer:
                stack.cache, stack.layer = weakref.proxy(self), number
        self._fill()

    def _reach(self, stacks: Sequence[CachedStack], host_room: int | None) -> bool:
        """Let kernels read all experts from host memory, if it is large enough: where they are mapped, or else, if the
        driver refuses that, from a copy."""
        sources = [stack.source for stack in stacks]
        room = available() if host_room is None else host_room
        if room is not None and sum(source.nbytes for source in sources) + SPARE_HOST > room:
            return False
        read_in(sources)
        if self._readable.register(sources):
            return True
        try:
            for stack in stacks:
                stack.far = self._readable.copy(stack.source)
        except MemoryError:
            self._readable.drop()
            for stack in stacks:
                stack.far = stack.source
            return False
        return True

    def _fill(self) -> None:
        """Have experts in all slots before anything is known of their use."""
        self.residency.fill()
        for layer in self.stacks:
            if not self.reachable:
                read_in([stack.source[: stack.slots] for stack in layer])
            for stack in layer:
                assert stack.buffer.block is not None
                self.driver.to_device(stack.buffer.block, stack.buffer.start, stack.source[: stack.slots])
        self._show(everything=True)

    # --- tokens that are replayed

    def fetches(self) -> list[tuple[np.ndarray, Any]]:
        """Copies at the end of a recorded token: counts to host memory."""
        if self._counts is None or self._fetched is None:
            return []
        return [(self._fetched.values[: self._counts.nbytes], self._counts.buffer.block)]

    def before_token(self) -> None:
        """Let the device know what came into slots and what left, then begin to fill those that were left."""
        if self._fetched is not None and self._counts is not None:
            found = self._fetched.values[: self._counts.nbytes].view(np.int64).reshape(self._counts.shape)
            self._fresh = found.copy() if self._ran else None  # the token that runs next overwrites it
            self._ran = True
        self._land()
        self._show()
        moves = [move for move in self.residency.coming if move not in self._flying]
        if moves:
            self.driver.hold_copies()
            for move in moves:
                self._begin(move)
                self._flying.append(move)

    def while_running(self) -> None:
        """Look at the token before, and choose what moves after this one."""
        fresh, self._fresh = self._fresh, None
        if fresh is None:
            return
        if self._before is not None:
            self.residency.used(fresh - self._before)
            self.residency.choose(MOVES - len(self.residency.coming))
        self._before = fresh

    def _land(self) -> None:
        """Hand over the slots whose bytes are there."""
        if self._flying and self.driver.copies_done():
            self.residency.arrived(self._flying)
            self._flying = []

    def _begin(self, move: Move) -> None:
        """Begin to copy an expert into its slot."""
        for stack in self.stacks[move.layer]:
            size = stack.source[0].nbytes
            at = stack.buffer.start + move.slot * size
            assert stack.buffer.block is not None
            self.driver.begin_copy(stack.buffer.block, at, stack.far[move.expert], self.reachable)

    def _show(self, everything: bool = False) -> None:
        """Bring the table to the device where it changed."""
        now = self.residency.slot_of
        assert self.table.buffer.block is not None
        if everything or not np.array_equal(now, self._shown):
            shown = now.copy()
            self.driver.to_device(self.table.buffer.block, self.table.buffer.start, shown)
            self._shown = shown

    # --- tokens and chunks that the host looks at

    def bring(self, layer: int, chosen: np.ndarray) -> bool:
        """Have the experts ``chosen`` by a token in slots when what is launched next runs. False if there are more of
        them than slots."""
        wanted = np.unique(chosen)
        if len(wanted) > self.residency.slots:
            return False
        if self._looked[layer] is not chosen:
            self._looked[layer] = chosen
            self.residency.used(np.bincount(chosen.ravel(), minlength=self.table.shape[1]), layer)
        self.residency.coming = []  # what an interrupt left: their slots are nobody's
        self._at_once(layer, self.residency.make_room(layer, wanted))
        return True

    def _at_once(self, layer: int, moves: list[Move]) -> None:
        """Make moves that launches from now on wait for."""
        if not moves:
            return
        if not self.reachable:
            read_in([stack.source[move.expert] for stack in self.stacks[layer] for move in moves])
        self.driver.hold_copies()
        for move in moves:
            self._begin(move)
        self.driver.await_copies()
        self.residency.arrived(moves)
        self._show()

    def portions(self, stack: CachedStack, chosen: np.ndarray) -> Iterator[Portion]:
        """Give the experts that a chunk chose, portion by portion: first those in slots, then the others, staged.
        Launch what reads a portion before the next one is asked for."""
        layer, number = stack.layer, self.residency.slot_of[stack.layer]
        if self._looked[layer] is not chosen:
            self._looked[layer], self._before, self._fresh = chosen, None, None
            self._settle(layer, chosen)
        wanted = np.unique(chosen)
        missing = wanted[number[wanted] < 0]
        size = stack.source[0].nbytes
        most = max(1, STAGE_BYTES // size)
        groups = [missing[at : at + most] for at in range(0, len(missing), most)]
        if groups:
            self.driver.hold_copies()
            self._to_stage(stack, groups[0], 0)
        if len(missing) < len(wanted):
            slots = DeviceArray(stack.buffer, (stack.slots, *stack.shape[1:]), np.uint8)
            yield Portion(wanted[number[wanted] >= 0], number, slots)
        for turn, group in enumerate(groups):
            self.driver.await_copies()
            self.driver.hold_copies()  # the next copies overwrite what launches up to here have read
            place = np.full(len(number), -1, np.int32)
            place[group] = np.arange(len(group))
            yield Portion(group, place, self._staged(stack, len(group), turn))
            if turn + 1 < len(groups):
                self._to_stage(stack, groups[turn + 1], turn + 1)

    def _settle(self, layer: int, chosen: np.ndarray) -> None:
        """Let the experts that a chunk uses most have slots."""
        if self._flying:
            self.driver.await_copies()
            self.residency.arrived(self._flying)
            self._flying = []
        self.residency.coming = []
        counts = np.bincount(chosen.ravel(), minlength=self.table.shape[1])
        self.residency.prompted(layer, counts, len(chosen))
        self._at_once(layer, self.residency.settle(layer))

    def _staged(self, stack: CachedStack, count: int, turn: int) -> DeviceArray:
        """A piece of device memory as a stack of ``count`` experts."""
        needed = max(STAGE_BYTES, *(each.source[0].nbytes for each in self.stacks[stack.layer]))
        if not self._stages or self._stages[0].nbytes < needed:
            array = self._array()
            assert array is not None
            self._stages = [array(needed, dtype=np.uint8) for _ in range(2)]
        return DeviceArray(self._stages[turn % 2].buffer, (count, *stack.shape[1:]), np.uint8)

    def _to_stage(self, stack: CachedStack, experts: np.ndarray, turn: int) -> None:
        data, size = self._staged(stack, len(experts), turn), stack.source[0].nbytes
        assert data.buffer.block is not None
        if not self.reachable:
            read_in([stack.source[expert] for expert in experts])
        for place, expert in enumerate(experts):
            at = data.buffer.start + place * size
            self.driver.begin_copy(data.buffer.block, at, stack.far[expert], self.reachable)


@cuda.jit
def gather_kernel(out, x, rows, size, n):
    """Thread: values of the result, a grid apart."""
    for i in range(cuda.grid(1), size, cuda.gridsize(1)):
        out[i] = x[rows[i // n] * n + i % n]


def gather(stream, out, x, rows, count, n):
    """out[i] = x[rows[i]], ``count`` rows of n values."""
    threads = threads_for(count * n, 256, 1)
    gather_kernel[blocks_for(count * n, threads), threads, stream](out, x, rows, count * n, n)


@cuda.jit
def scatter_kernel(out, x, rows, size, n):
    """Thread: values of x, a grid apart."""
    for i in range(cuda.grid(1), size, cuda.gridsize(1)):
        out[rows[i // n] * n + i % n] = x[i]


def scatter(stream, out, x, rows, count, n):
    """out[rows[i]] = x[i], ``count`` rows of n values."""
    threads = threads_for(count * n, 256, 1)
    scatter_kernel[blocks_for(count * n, threads), threads, stream](out, x, rows, count * n, n)


@cuda.jit
def sum_kernel(out, parts, size, slots, n):
    """Thread: values of the result, a grid apart."""
    for i in range(cuda.grid(1), size, cuda.gridsize(1)):
        total = np.float32(0)
        for k in range(slots):
            total += parts[(i // n * slots + k) * n + i % n]
        out[i] = total


def sum_slots(stream, out, parts, tokens, slots, n):
    """Add parts (tokens, slots, n) in slot order -> out (tokens, n)."""
    threads = threads_for(tokens * n, 256, 1)
    sum_kernel[blocks_for(tokens * n, threads), threads, stream](out, parts, tokens * n, slots, n)
