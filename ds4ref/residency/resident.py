"""Experts of a model that computes: in memory as far as a budget goes, the others read when they are chosen.

Each matrix of experts has a table of addresses, which kernels look up (``ops.scattered``). An expert in memory has its
place's address there; any other one that of the mapped file, so that a chunk of many tokens, whose experts are more
than there are places, is computed all the same. Reading into a place that was used before is cheap; fresh pages cost
more than the reading.

A pass calls ``need`` for a layer as soon as its experts are chosen, and ``wait`` before it reads them. Both are called
from compiled code, and leave an error to ``passing``, around the whole pass, to raise. An address is entered when its
part has been read, not before: a call that is lost, because Ctrl-C was handled on its way here, costs time and no bits.
Nobody notices that it was lost.
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
"""Threads that read: more gain little on one disk."""

PAGE = mmap.PAGESIZE
PARTS = "gate", "up", "down"


class Stack(NamedTuple):
    """One matrix of all experts of a layer, in a file and mapped: bytes of an expert, of the file before the first
    one, the address of that, and which of the model's files it is."""

    nbytes: int
    offset: int
    mapped: int
    file: int = 0

    @property
    def room(self) -> int:
        """Return the bytes of the pages that hold an expert wherever it begins in the first one."""
        ragged = self.offset % PAGE or self.nbytes % PAGE
        return -(-(self.nbytes + (PAGE - 1 if ragged else 0)) // PAGE) * PAGE


class Memory:
    """The memory of a pool of places, and how much of it the system promised to keep."""

    def __init__(self, size: int):
        self.memory = anonymous_memory(max(size, PAGE))
        self.view = memoryview(self.memory)
        self.address = np.frombuffer(self.memory, np.uint8).ctypes.data
        self.locked = lock_memory(self.address, size)


class ResidentExperts:
    """The experts of a model's layers, each with its three matrices (gate, up, down).

    tables  int64 (experts,) for each layer's three matrices: addresses
    """

    def __init__(
        self, paths: Sequence[str], size: int, layers: Sequence[Sequence[Stack]], experts: int, budget: int, used: int
    ):  # fmt: skip
        """Reserve ``budget`` bytes for the ``experts`` of each of ``layers`` in files of together ``size`` bytes.

        used: experts of a layer that a token uses, which the budget must do for.
        Raise ModelFileError if the file cannot be read, UsageError for a budget that is too small or more than is free,
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
        self._unread = np.zeros((len(sizes), experts), np.int8)  # number of parts that are still to be read
        self._jobs: dict[tuple[int, int], list[Job]] = {}  # of experts with such parts
        self._broken: set[tuple[int, int]] = set()  # those of which a part could not be read
        self._asked: set[int] = set()
        self._current: tuple[int, np.ndarray] | None = None
        self._failure: BaseException | None = None
        self._turn = threading.Lock()
        self.uses = self.hits = self.bytes_read = self.failed = 0
        self.seconds_waited = 0.0
        self._readers = Readers(paths, size, READERS)

    @property
    def places(self) -> int:
        """Return the number of experts that fit."""
        return sum(pool.places for pool in self.contents.pools)

    def summary(self) -> dict[str, Any]:
        """Return, for reports, what fits and what was found, read and waited for."""
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

    # --- a pass

    @contextmanager
    def passing(self, decoded: int, fresh: bool = False) -> Iterator[None]:
        """Surround a pass, of which there is one at a time; raise what went wrong in reading.

        decoded  number of tokens that count as decoded, 0 in prefill
        fresh    whether a prompt begins
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
            self._failure = None  # not before: a reset that is interrupted itself is made up for after the next pass
            self._forget_broken()
            return failure

    def _forget_broken(self) -> None:
        """Free the places of experts that could not be read, for the next pass to try again.

        Not during a pass: kernels may not read these from the mapped file either.
        """
        for layer, expert in self._broken:
            self._readers.cancel(self._jobs.pop((layer, expert)))
            self._unread[layer, expert] = 0
            self._point_at_file(layer, expert)
            self.contents.drop(layer, expert)
        self._broken.clear()

    def _reset(self) -> None:
        """Begin anew with nothing in memory: an interruption may have left anything half done."""
        self._readers.cancel([job for jobs in self._jobs.values() for job in jobs])
        self.contents = self._empty()
        for layer in range(len(self._layers)):
            self._point_at_file(layer)
        self._jobs.clear()
        self._broken.clear()
        self._unread[:] = 0

    def _point_at_file(self, layer: int, experts: int | slice = slice(None)) -> None:
        """Enter into the tables of a layer that experts are where the file is mapped."""
        for table, mapped in zip(self.tables[layer], self._mapped[layer], strict=True):
            table[experts] = mapped[experts]

    def ask(self, layer: int, ids: np.ndarray) -> None:
        """Begin to read experts that this pass will need later."""
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
        """Begin to read the experts of a layer, which this pass needs now."""
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
        """Wait until parts (numbers of ``PARTS``) of the layer's experts have been read."""
        with self._guard():
            if self._failure is None and self._current is not None:
                begun = time.perf_counter()
                pending = [self._jobs.get((layer, expert), ()) for expert in self._current[1].tolist()]
                self._readers.wait(jobs[part] for part in parts for jobs in pending if jobs)
                self.seconds_waited += time.perf_counter() - begun

    @contextmanager
    def _guard(self) -> Iterator[None]:
        """Keep an error, whatever it is, for ``passing`` to raise: the caller is compiled code."""
        try:
            with self._readers.lock:
                yield
        except BaseException as error:
            if self._failure is None:
                self._failure = error

    def preload(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Read experts (layer, expert) into free places, in this order, while nothing more urgent is to be read."""
        for layer, expert in pairs:
            with self._readers.lock:  # each by itself: a pass does not wait for a long list
                if self.contents.pool(layer).free:
                    for move in self.contents.admit(layer, [expert], self._kept, evict=False):
                        self._readers.submit(self._jobs_of(move, SOMETIME))

    # --- reading

    def _hurry(self, layer: int, ids: np.ndarray, urgency: int) -> None:
        """Make what is still to be read of experts as urgent as that."""
        for expert in ids[self._unread[layer, ids] > 0].tolist():
            late = [job for job in self._jobs[layer, expert] if not job.begun and job.urgency > urgency]
            for job in late:
                job.urgency = urgency
            self._readers.submit(late)

    def _fetch(self, layer: int, ids: np.ndarray, urgency: int) -> None:
        """Read experts that are not in memory, as far as there are places."""
        moves = self.contents.admit(layer, ids.tolist(), self._kept | (self._unread > 0))
        made = [self._jobs_of(move, urgency) for move in moves]
        # what is multiplied first is read first
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
        """Read a part of an expert to ``at`` in the memory of its pool, then enter its address."""
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
        """Ask the system for an expert that has no place, unless the pass has gone on to another layer."""
        current = self._current
        if current is not None and current[0] == layer:
            for stack in self._layers[layer]:
                will_need(stack.mapped + expert * stack.nbytes, stack.nbytes)

    def close(self) -> None:
        """Stop reading; a pass under way fails."""
        self._readers.close()
