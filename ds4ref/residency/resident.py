"""The routed experts of a running model: some are kept in memory, up to a budget of bytes; the others are read from the
file when the router chooses them.

Kernels look up the address of every expert matrix in a table (``ops.scattered``): that of its place if the expert is in
memory, else that in the mapped file, so a chunk of many tokens works even if it uses more experts than there are
places. Places are reused, because the first use of a fresh page costs more than the read.

A pass calls ``need`` for a layer as soon as its experts are chosen, and ``wait`` before it multiplies by them. Both are
called from compiled code, so they store an error, and ``passing``, which surrounds the pass, raises it. A table gets an
address in memory only after the matrix has been read: if Ctrl-C interrupts a call, kernels read the mapped file
instead, with the same results.
"""

from __future__ import annotations

import mmap
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ds4ref.kernels.system import anonymous_memory, lock_memory, will_need

from ..environment import available_bytes
from ..errors import BackendError, Ds4Error, UsageError
from .contents import Contents, Fading, Move
from .readers import NOW, SOMETIME, SOON, Job, Readers, read_pages

READERS = 4
"""Number of reading threads: more gain little on one disk."""

PAGE = mmap.PAGESIZE
PARTS = "gate", "up", "down"


class Stack(NamedTuple):
    """Where one of the three matrices (gate, up or down) of all experts of a layer is stored.

    nbytes  bytes of one expert's matrix
    offset  offset of the first expert in the file
    mapped  address of the first expert in the mapped file
    file    index of the file, for a model of several files
    """

    nbytes: int
    offset: int
    mapped: int
    file: int = 0

    @property
    def room(self) -> int:
        """Return the bytes to reserve for one expert: whole pages, enough for any offset of it in its first page."""
        ragged = self.offset % PAGE or self.nbytes % PAGE
        return -(-(self.nbytes + (PAGE - 1 if ragged else 0)) // PAGE) * PAGE


class Memory:
    """The memory of a pool of places; ``locked`` is the number of its bytes that the system will not swap out."""

    def __init__(self, size: int):
        self.memory = anonymous_memory(max(size, PAGE))
        self.view = memoryview(self.memory)
        self.address = np.frombuffer(self.memory, np.uint8).ctypes.data
        self.locked = lock_memory(self.address, size)


class ResidentExperts:
    """The cache of routed experts of a model, of all layers, with three matrices (gate, up, down) per expert.

    tables  for each layer, three int64 arrays (experts,): where each expert's gate, up and down matrix is now
    """

    def __init__(
        self, paths: Sequence[str], size: int, layers: Sequence[Sequence[Stack]], experts: int, budget: int, used: int
    ):  # fmt: skip
        """Reserve ``budget`` bytes of memory, and start the threads that read the files.

        paths, size: the model's files, and their total bytes. layers: the three matrices of each layer. experts, used:
        numbers of experts of a layer, and of those that one token uses, for which the budget must suffice.
        Raise ModelFileError if a file cannot be read, UsageError if the budget is too small or exceeds the free memory,
        BackendError if the system refuses the memory.
        """
        self._layers, self.paths = [tuple(stacks) for stacks in layers], list(paths)
        sizes = [sum(stack.room for stack in stacks) for stacks in self._layers]
        self.order = Fading(len(sizes), experts)
        self._empty = partial(Contents, sizes, experts, budget, self.order)
        self.contents = self._empty()
        for pool in self.contents.pools:
            if pool.places < used:
                wanted = used * sum(sizes) * experts // (len(pool.layers) * experts)
                raise UsageError(f"a cache of {budget} bytes is too small for a token's experts: at least {wanted + 1}")
        reserved, free = sum(pool.size * pool.places for pool in self.contents.pools), available_bytes()
        if free is not None and reserved > free:
            raise UsageError(f"a cache of {reserved} bytes of experts does not fit into the {free} that are free")
        try:
            self._memory = [Memory(pool.size * pool.places) for pool in self.contents.pools]
        except (OSError, ValueError, OverflowError) as error:
            raise BackendError(f"no memory for {budget} bytes of experts: {error}") from None
        numbers = np.arange(experts, dtype=np.int64)
        self._mapped = [[stack.mapped + numbers * stack.nbytes for stack in stacks] for stacks in self._layers]
        self.tables = [[addresses.copy() for addresses in layer] for layer in self._mapped]
        self._kept = np.zeros((len(sizes), experts), bool)
        self._unread = np.zeros((len(sizes), experts), np.int8)  # number of matrices that are still to be read
        self._jobs: dict[tuple[int, int], list[Job]] = {}  # (layer, expert) -> its reads, until all are done
        self._broken: set[tuple[int, int]] = set()  # experts with a matrix that could not be read
        self._asked: set[int] = set()
        self._current: tuple[int, np.ndarray] | None = None
        self._failure: BaseException | None = None
        self._turn = threading.Lock()
        self.uses = self.hits = self.bytes_read = self.failed = 0
        self.seconds_waited = 0.0
        self._readers = Readers(paths, size, READERS)

    @property
    def places(self) -> int:
        """Return the number of experts that fit in memory, in all layers together."""
        return sum(pool.places for pool in self.contents.pools)

    def summary(self) -> dict[str, Any]:
        """Return, for reports, how much fits, and how often experts were used, found in memory, read and waited for."""
        return {
            "places": self.places,
            "bytes": sum(pool.size * pool.places for pool in self.contents.pools),
            "locked": sum(memory.locked for memory in self._memory),
            "uses": self.uses,
            "hits": self.hits,
            "bytes_read": self.bytes_read,
            "failed": self.failed,
            "seconds_waited": round(self.seconds_waited, 6),
        }

    # --- called during a pass

    @contextmanager
    def passing(self, decoded: int, fresh: bool = False) -> Iterator[None]:
        """Return the context in which a pass must run, one pass at a time; on exit, raise the error of a failed read.

        decoded  number of tokens that the pass decodes, 0 in prefill
        fresh    whether the pass begins a new prompt
        Raise BackendError in a child of the process that opened the file, where a lock may never be free.
        """
        self._readers.check_process()
        with self._turn:
            if fresh:
                self.order.new_prompt()
            try:
                yield
            finally:
                failure = self._end(decoded)
            if failure is not None:
                raise failure

    def _end(self, decoded: int) -> BaseException | None:
        with self._readers.lock:
            self.order.decoded(decoded)
            self._current = None
            self._kept[:] = False
            self._asked.clear()
            failure = self._failure
            if failure is not None and not isinstance(failure, Ds4Error):
                self._reset()
            self._failure = None  # only now: if the reset is itself interrupted, the next pass repeats it
            self._forget_broken()
            return failure

    def _forget_broken(self) -> None:
        """Free the places of experts that could not be read, so that the next pass tries again.

        Called only after a pass: during it, kernels must not read these experts, not even from the mapped file.
        """
        for layer, expert in self._broken:
            self._readers.cancel(self._jobs.pop((layer, expert)))
            self._unread[layer, expert] = 0
            self._point_at_file(layer, expert)
            self.contents.drop(layer, expert)
        self._broken.clear()

    def _reset(self) -> None:
        """Start again with no expert in memory, because an interruption may have left the bookkeeping inconsistent."""
        self._readers.cancel([job for jobs in self._jobs.values() for job in jobs])
        self.contents = self._empty()
        for layer in range(len(self._layers)):
            self._point_at_file(layer)
        self._jobs.clear()
        self._broken.clear()
        self._unread[:] = 0

    def _point_at_file(self, layer: int, experts: int | slice = slice(None)) -> None:
        """Set the addresses of experts in a layer's tables to where the file is mapped."""
        for table, mapped in zip(self.tables[layer], self._mapped[layer], strict=True):
            table[experts] = mapped[experts]

    def ask(self, layer: int, ids: np.ndarray) -> None:
        """Begin to read the experts ``ids`` of a layer that this pass will compute later."""
        with self._guard():
            ids = np.unique(ids)
            self._count(layer, ids)
            self._kept[layer, ids] = True
            self._hurry(layer, ids, SOON)
            self._fetch(layer, ids, SOON)

    def _count(self, layer: int, ids: np.ndarray) -> None:
        self._asked.add(layer)
        self.uses += len(ids)
        self.hits += int(self.contents.present(layer, ids).sum())

    def need(self, layer: int, ids: np.ndarray) -> None:
        """Begin to read the experts ``ids`` of a layer, which this pass computes next."""
        with self._guard():
            if self._current is not None:
                self._kept[self._current[0]] = False
            self.order.used(layer, ids.ravel())
            ids = np.unique(ids)
            self._current = layer, ids
            self._kept[layer, ids] = True
            if layer not in self._asked:
                self._count(layer, ids)
            self._hurry(layer, ids, NOW)
            if len(ids) <= self.contents.pool(layer).places:
                self._fetch(layer, ids, NOW)
            absent = ids[~self.contents.present(layer, ids)]
            self._readers.submit(Job(partial(self._advise, layer, expert), NOW) for expert in absent.tolist())

    def wait(self, layer: int, parts: Sequence[int]) -> None:
        """Wait until matrices of the experts passed to ``need`` are read; ``parts``: their indices in ``PARTS``."""
        with self._guard():
            if self._failure is None and self._current is not None:
                begun = time.perf_counter()
                pending = [self._jobs.get((layer, expert), ()) for expert in self._current[1].tolist()]
                self._readers.wait(jobs[part] for part in parts for jobs in pending if jobs)
                self.seconds_waited += time.perf_counter() - begun

    @contextmanager
    def _guard(self) -> Iterator[None]:
        """Store any error for ``passing`` to raise, because the caller is compiled code."""
        try:
            with self._readers.lock:
                yield
        except BaseException as error:
            if self._failure is None:
                self._failure = error

    def preload(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Begin to read experts, ``pairs`` of (layer, expert), into free places in this order, with lowest urgency."""
        for layer, expert in pairs:
            with self._readers.lock:  # taken for each expert, so that a pass need not wait for a long list
                if self.contents.pool(layer).free:
                    for move in self.contents.admit(layer, [expert], self._kept, evict=False):
                        self._readers.submit(self._jobs_of(move, SOMETIME))

    # --- reading

    def _hurry(self, layer: int, ids: np.ndarray, urgency: int) -> None:
        """Raise the remaining reads of the experts ``ids`` to at least this urgency."""
        for expert in ids[self._unread[layer, ids] > 0].tolist():
            late = [job for job in self._jobs[layer, expert] if not job.begun and job.urgency > urgency]
            for job in late:
                job.urgency = urgency
            self._readers.submit(late)

    def _fetch(self, layer: int, ids: np.ndarray, urgency: int) -> None:
        """Give places to experts that are not in memory, as far as there are any, and begin to read them."""
        moves = self.contents.admit(layer, ids.tolist(), self._kept | (self._unread > 0))
        made = [self._jobs_of(move, urgency) for move in moves]
        # gate matrices first, then up, then down: the order in which they are multiplied
        self._readers.submit(jobs[part] for part in range(len(PARTS)) for jobs in made)

    def _jobs_of(self, move: Move, urgency: int) -> list[Job]:
        layer, expert = move.layer, move.expert
        if move.victim is not None:
            self._point_at_file(*move.victim)
        pool = self.contents.pool(layer)
        memory, at = self._memory[self.contents.pools.index(pool)], move.place * pool.size
        jobs = []
        for part, stack in enumerate(self._layers[layer]):
            jobs.append(Job(partial(self._read, layer, expert, part, memory, at), urgency))
            at += stack.room
        self._unread[layer, expert] = len(jobs)
        self._jobs[layer, expert] = jobs
        return jobs

    def _read(
        self, layer: int, expert: int, part: int, memory: Memory, at: int, handles: Sequence[int]
    ) -> None:  # fmt: skip
        """Read one matrix of an expert (``part``: index in ``PARTS``) to offset ``at`` of the memory of its pool, then
        put its address into the table."""
        stack = self._layers[layer][part]
        begin = stack.offset + expert * stack.nbytes
        skip = begin % PAGE
        pages = -(-(skip + stack.nbytes) // PAGE) * PAGE
        try:
            handle, path = handles[stack.file], self.paths[stack.file]
            read_pages(handle, path, memory.view[at : at + pages], begin - skip, skip + stack.nbytes)
        except BaseException:
            with self._readers.lock:
                self.failed += (layer, expert) not in self._broken
                self._broken.add((layer, expert))
            raise
        with self._readers.lock:
            self.bytes_read += pages
            self.tables[layer][part][expert] = memory.address + at + skip
            self._unread[layer, expert] -= 1
            if not self._unread[layer, expert]:
                del self._jobs[layer, expert]

    def _advise(self, layer: int, expert: int, handles: Sequence[int]) -> None:
        """Ask the system to load the mapped pages of an expert without a place, unless the pass is at another layer."""
        current = self._current
        if current is not None and current[0] == layer:
            for stack in self._layers[layer]:
                will_need(stack.mapped + expert * stack.nbytes, stack.nbytes)

    def close(self) -> None:
        """Stop reading and close the files; a pass that is running fails."""
        self._readers.close()
