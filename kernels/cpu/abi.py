"""The ABI between Python and compiled code: tasks, argument blocks, and the steps the worker pool executes.

A *task* is a compiled function ``task(args, first, last, thread)`` that works on items first..last-1; ``args`` is the
address of its argument block, a row of 8-byte slots: addresses and integers as int64, numbers as float64. A *step* is
one task with its block, a number of items and a chunk size; threads claim chunks of items until none is left. A step
that *waits* starts only when every item of all steps before it is finished; any other may overlap the step before it.

This module is plain Python on purpose: a warm start uses compiled objects without importing Numba.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np

SLOT = 8
BLOCK_BYTES = 256
"""Size of one argument block."""

STEP_BYTES = 256
STEP_TASK, STEP_ARGS, STEP_ITEMS, STEP_CHUNK, STEP_WAIT = 0, 8, 16, 24, 32
STEP_CLAIMED = 64
STEP_DONE = 128
STEP_BEGUN, STEP_LEFT = 192, 200
"""Byte offsets in a step.

CLAIMED and DONE have a cache line each, because all threads write them; a third line holds the times, in processor
ticks, at which thread 0 began the step and found no more items to claim.
"""

STEP_HEADER = struct.Struct("=5q")

POOL_BYTES = 1024
POOL_JOB, POOL_OPEN, POOL_INSIDE, POOL_STEPS, POOL_COUNT, POOL_THREADS, POOL_STOP = 0, 128, 256, 384, 392, 400, 512
POOL_ERROR = 640
"""Byte offsets in the pool's control block, on separate cache lines by writer:

    JOB      number of the latest job, counted from 1; workers poll it
    OPEN     number of the job that may still be joined, 0 between jobs
    INSIDE   workers that joined and have not left
    STEPS, COUNT, THREADS   address and number of the job's steps, participants allowed
    STOP     non-zero: workers return to Python for good
    ERROR    set by a step that met an index out of range
"""

WORK, ERROR = "*work", "!error"


class Task:
    """A compiled task as Python sees it: the layout of its argument block and, once loaded, its address.

    ``fields`` names the slots in order, each with a mark for how the task uses it:

            <name   address of an array that is read       >name   address of an array that is written
            =name   address of an array that is both       name    an integer, or the address of code or constants
            name:f  a number (float64)
            *work   a work area for each thread: the slots ``work`` and ``work_bytes``
            !error  address of a flag that the task sets if it meets an index out of range

    ``*work`` and ``!error`` come last; the runner of the step fills them in. Compiled code reads the block as a record
    with these names. A recording derives the dependencies between steps from the marks < > =.
    """

    registry: dict[str, Task] = {}

    __slots__ = ("name", "fields", "reads", "writes", "works", "checks", "layout", "pack", "address")

    def __init__(self, name: str, fields: str):
        self.name = name
        words = fields.split()
        self.works, self.checks = WORK in words, ERROR in words
        plain = [word for word in words if word not in (WORK, ERROR)]
        assert words == plain + [WORK] * self.works + [ERROR] * self.checks, f"{name}: *work and !error come last"
        self.reads = tuple(i for i, word in enumerate(plain) if word[0] in "<=")
        self.writes = tuple(i for i, word in enumerate(plain) if word[0] in ">=")
        names = [word.lstrip("<>=") for word in plain]
        names += ["work", "work_bytes"] * self.works + ["error"] * self.checks
        self.fields = tuple((field.removesuffix(":f"), field.endswith(":f")) for field in names)
        self.layout = struct.Struct("=" + "".join("d" if number else "q" for _, number in self.fields))
        if self.layout.size > BLOCK_BYTES:
            raise ValueError(f"argument block of {name} is larger than {BLOCK_BYTES} bytes")
        self.pack = self.layout.pack_into
        self.address = 0
        if self.registry.setdefault(name, self) is not self:
            raise ValueError(f"two tasks are called {name}")


class Step(NamedTuple):
    """One task over ``items`` items, claimed ``chunk`` at a time.

    values  contents of the slots before ``*work``
    work    bytes of work area that each thread needs
    """

    task: Task
    items: int
    chunk: int
    values: tuple
    work: int = 0

    def write(
        self, memory: np.ndarray, place: int, base: int, block: int, wait: bool, area: int, size: int, error: int
    ):
        """Write the step and its argument block into ``memory``, which begins at address ``base``.

        place  offset of the step
        block  offset of the argument block
        wait   start only when all earlier steps are finished
        area   address of the threads' work areas, of ``size`` bytes each
        error  address of the error flag
        """
        task = self.task
        extra = ((area, size) if task.works else ()) + ((error,) if task.checks else ())
        task.pack(memory, block, *self.values, *extra)
        STEP_HEADER.pack_into(memory, place, task.address, base + block, self.items, self.chunk, wait)
