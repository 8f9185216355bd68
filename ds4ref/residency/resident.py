"""Experts of a model that computes: in memory as far as a budget goes, the others read when they are chosen.

Each matrix of experts has a table of addresses, which kernels look up (``ops.scattered``). An expert in memory has its
place's address there; any other one that of the mapped file, so that a chunk of many tokens, whose experts are more
than there are places, is computed all the same. Reading is into places whose pages are already there: fresh pages cost
more than the reading (docs/LOG.md, 2026-11-27).

A pass calls ``need`` for a layer as soon as its experts are chosen, and ``wait`` before it reads them. Both are called
from compiled code, and leave an error to ``passing``, around the whole pass, to raise.
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
from ..errors import BackendError, UsageError
from .contents import Contents, Move
from .policy import Fading
from .readers import NOW, SOMETIME, SOON, Job, Readers, read_pages

READERS = 4
"""Threads that read: more gain little on one disk (docs/LOG.md, 2026-11-27)."""

PAGE = mmap.PAGESIZE
PARTS = "gate", "up", "down"


class Stack(NamedTuple):
    """One matrix of all experts of a layer, in the file and mapped: bytes of an expert, of the file before the first
    one, and the address of that."""

    nbytes: int
    offset: int
    mapped: int

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

    def __init__(self, path: str, size: int, layers: Sequence[Sequence[Stack]], experts: int, budget: int, used: int):
        """Reserve ``budget`` bytes for the ``experts`` of each of ``layers`` in a file of ``size`` bytes.

        used: experts of a layer that a token uses, which the budget must do for.
        Raise ModelFileError if the file cannot be read, UsageError for a budget that is too small or more than is free,
        BackendError if the system refuses the memory.
        """
        self._layers, self.path, self.budget = [tuple(stacks) for stacks in layers], path, budget
        sizes = [sum(stack.room for stack in stacks) for stacks in self._layers]
        self.order = Fading(len(sizes), experts)
        self.contents = Contents(sizes, experts, budget, self.order)
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
        self.tables = [[stack.mapped + numbers * stack.nbytes for stack in stacks] for stacks in self._layers]
        self._kept, self._busy = (np.zeros((len(sizes), experts), bool) for _ in range(2))
        self._jobs: dict[tuple[int, int], list[Job]] = {}
        self._asked: set[int] = set()
        self._current: tuple[int, np.ndarray] | None = None
        self._failure: BaseException | None = None
        self._turn = threading.Lock()
        self.uses = self.hits = self.bytes_read = 0
        self.seconds_waited = 0.0
        self._readers = Readers(path, size, READERS)

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
            "seconds_waited": round(self.seconds_waited, 6),
        }

    # --- a pass

    @contextmanager
    def passing(self, decoded: int, fresh: bool = False) -> Iterator[None]:
        """Surround a pass, of which there is one at a time; raise what went wrong in reading.

        decoded  number of tokens that count as decoded, 0 in prefill
        fresh    whether a prompt begins
        """
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
            failure, self._failure = self._failure, None
            self._settle(failed=True)
            return failure

    def _settle(self, failed: bool = False) -> None:
        """Forget finished jobs; between passes also experts that could not be read (``failed``), as kernels may not
        read those from the mapped file either."""
        for (layer, expert), jobs in list(self._jobs.items()):
            if all(job.done for job in jobs):
                bad = any(job.error is not None for job in jobs)
                if bad and not failed:
                    continue
                del self._jobs[layer, expert]
                self._busy[layer, expert] = False
                if bad:
                    self._point(layer, expert, None)
                    self.contents.drop(layer, expert)

    def _point(self, layer: int, expert: int, place: int | None) -> None:
        """Enter into the tables where an expert is: at a place, or mapped (None)."""
        stacks, start = self._layers[layer], 0
        if place is not None:
            pool = self.contents.pool(layer)
            start = self._memory[self.contents.pools.index(pool)].address + place * pool.size
        for table, stack in zip(self.tables[layer], stacks, strict=True):
            at = stack.offset + expert * stack.nbytes
            table[expert] = stack.mapped + expert * stack.nbytes if place is None else start + at % PAGE
            start += stack.room

    def ask(self, layer: int, ids: np.ndarray) -> None:
        """Begin to read experts that this pass will need later."""
        with self._guard():
            ids = np.unique(ids)
            self._count(layer, ids)
            self._kept[layer, ids] = True
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
            if len(ids) <= self.contents.pool(layer).places:
                self._fetch(layer, ids, NOW)
            absent = ids[~self.contents.present(layer, ids)]
            self._readers.submit(
                Job(partial(_advise, stack.mapped + int(expert) * stack.nbytes, stack.nbytes), NOW)
                for expert in absent
                for stack in self._layers[layer]
            )

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
        with self._readers.lock:
            for layer, expert in pairs:
                self._fetch(layer, np.array([expert]), SOMETIME)

    # --- reading

    def _fetch(self, layer: int, ids: np.ndarray, urgency: int) -> None:
        """Read experts that are not in memory, as far as there are places; those already asked for more urgently."""
        for expert in ids[self._busy[layer, ids]].tolist():
            late = [job for job in self._jobs[layer, expert] if not job.begun and job.urgency > urgency]
            for job in late:
                job.urgency = urgency
            self._readers.submit(late)
        self._settle()
        moves = self.contents.admit(layer, ids.tolist(), self._kept | self._busy, urgency < SOMETIME)
        made = [self._jobs_of(move, urgency) for move in moves]
        # what is multiplied first is read first
        self._readers.submit(jobs[part] for part in range(len(PARTS)) for jobs in made)

    def _jobs_of(self, move: Move, urgency: int) -> list[Job]:
        layer, expert = move.layer, move.expert
        if move.victim is not None:
            self._point(*move.victim, None)
        self._point(layer, expert, move.place)
        pool = self.contents.pool(layer)
        view, at = self._memory[self.contents.pools.index(pool)].view, move.place * pool.size
        jobs = []
        for stack in self._layers[layer]:
            begin = stack.offset + expert * stack.nbytes
            skip = begin % PAGE
            pages = -(-(skip + stack.nbytes) // PAGE) * PAGE
            run = partial(self._read, view[at : at + pages], begin - skip, skip + stack.nbytes)
            jobs.append(Job(partial(run, layer, expert), urgency))
            at += stack.room
        self._busy[layer, expert] = True
        self._jobs[layer, expert] = jobs
        return jobs

    def _read(self, buffer: memoryview, offset: int, least: int, layer: int, expert: int, handle: int) -> None:
        try:
            read_pages(handle, self.path, buffer, offset, least)
        finally:
            with self._readers.lock:
                self.bytes_read += len(buffer)

    def close(self) -> None:
        """Stop reading; a pass under way fails."""
        self._readers.close()


def _advise(address: int, nbytes: int, handle: int) -> None:
    will_need(address, nbytes)
