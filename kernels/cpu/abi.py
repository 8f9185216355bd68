"""The binary interface between Python and compiled code: tasks, argument blocks, and steps for the worker pool.

A *task* is a compiled function ``task(args, first, last, thread)`` that works on items first..last-1; ``args`` is the
address of its argument block, a row of 8-byte slots: addresses and integers as int64, numbers as float64. A *step* is
one task with its block, a number of items and a chunk size.

The pool executes *groups* of one or more consecutive steps. The work of a group is divided into *units*: unit u of a
step is its items u * per .. (u + 1) * per - 1. Threads claim chunks of units until none is left, and take each chunk
through all steps of the group without waiting for each other. A *tail* is a group that is not divided: the thread that
finishes the last of the groups that the tail depends on runs all of it. A group that *waits* begins a *phase*: it
starts only when everything before it is finished. Groups of one phase may run at the same time; in memory the tails
come after the other groups of their phase (``schedule`` decides how steps are grouped).

This module is plain Python on purpose: once the kernels are compiled, a process uses them without importing Numba.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence
from types import CodeType
from typing import Any, NamedTuple

import numpy as np

SLOT = 8
BLOCK_BYTES = 256
"""Size of one argument block."""

LINE = 128
"""Distance in bytes between words that different threads write, so that they share no cache line: one line of Apple's
processors, two lines (which are fetched together) on x86."""

STEP_BYTES = 3 * LINE
STEP_TASK, STEP_ARGS, STEP_UNITS, STEP_CHUNK, STEP_WAIT, STEP_PER, STEP_NEXT, STEP_MEMBERS = range(0, 64, 8)
STEP_NEEDS, STEP_TAILS, STEP_TAIL_COUNT = range(64, 88, 8)
STEP_CLAIMED = LINE
STEP_DONE = 2 * LINE
"""Byte offsets of the words of a step, each on the cache line of the threads that write it. Of the later steps of a
group only TASK, ARGS and PER are used.

    TASK, ARGS   addresses of the task and its arguments
    UNITS, PER   number of units of the group, and items of this step in each unit
    CHUNK        units claimed at once; 0: the group is a tail
    WAIT         0, or 1 + the number of groups that must be finished before this one starts
    NEXT         number of the first step after this group and the tails that follow it
    MEMBERS      number of steps in the group after this one
    CLAIMED      units claimed so far; in a tail, how many of the groups that it depends on are finished
    DONE         units finished so far
    NEEDS        in a tail: the number of groups that it depends on
    TAILS, TAIL_COUNT   the tails that depend on this group: offset, from the first step, of a list of their step
                 numbers, and the length of that list
"""

STEP_HEADER = struct.Struct("=11q")

POOL_BYTES = 7 * LINE
POOL_JOB, POOL_OPEN, POOL_INSIDE, POOL_STEPS, POOL_STOP, POOL_ERROR, POOL_FINISHED = range(0, POOL_BYTES, LINE)
POOL_COUNT, POOL_THREADS, POOL_SPIN, POOL_NAP, POOL_IDLE_NAP, POOL_IDLE = range(POOL_STEPS + 8, POOL_STEPS + 56, 8)
"""Byte offsets of the words in the pool's control block, each on the cache line of the threads that write it:

    JOB      number of the latest job, counted from 1; idle workers poll it
    OPEN     number of the job that workers may still join, 0 between jobs
    INSIDE   number of workers that have joined the job and not yet left
    STEPS, COUNT, THREADS   address and number of the job's steps, maximum number of threads that take part
    SPIN, NAP, IDLE_NAP, IDLE   clock ticks after which a thread that waits for a step yields its core, and naps; after
             which an idle worker naps, and returns to Python
    STOP     non-zero: workers return to Python for good
    ERROR    set by a step that met an index out of range
    FINISHED number of groups of the job that are finished; the only word that waiting threads poll
"""

WORK, ERROR = "*work", "!error"


class Task:
    """A compiled task as Python sees it: the layout of its argument block and, once used, its address.

    ``fields`` names the slots in order, each with a mark for how the task uses it:

            <name   address of an array that is read       >name   address of an array that is written
            =name   address of an array that is both       name    an integer, or the address of code or constants
            name:f  a number (float64)
            *work   a work area for each thread: the slots ``work`` and ``work_bytes``
            !error  address of a flag that the task sets if it meets an index out of range
            name=expression  a number with this value in the op of the task's name, not that of the op's own ``name``

    ``*work`` and ``!error`` come last; whoever runs the step fills them in. Compiled code reads the block as a record
    with these names. A recording derives the dependencies between steps from the marks < > =.

    Brackets say which bytes of an array an item touches, as expressions of other fields. ``<x[4*n]``: item i touches
    only the i-th 4 * n bytes of ``x``; ``<x[4*n:k]``: items k * i .. k * i + k - 1 touch only the i-th 4 * n bytes.
    Without brackets, or with 0 bytes, any item may touch the whole array.

    If the op of the task's name consists of this task alone, ``items`` is the number of items and ``cost`` the number
    of operations of one (``Steps.chunk``), as expressions of the op's operands, results and sizes.
    """

    registry: dict[str, Task] = {}
    find: Callable[[str], int]
    """Function that returns the address of a task, compiling it if necessary; set once the kernels are loaded."""

    __slots__ = (
        "name",
        "fields",
        "reads",
        "writes",
        "works",
        "checks",
        "values",
        "items",
        "cost",
        "layout",
        "pack",
        "address",
        "_pieces",
    )

    def __init__(self, name: str, fields: str, items: str = "", cost: str = ""):
        self.name, self.items, self.cost = name, items, cost
        words = re.findall(r"(?:[^\s(]|\([^)]*\))+", fields)  # no space ends a word within parentheses
        self.works, self.checks = WORK in words, ERROR in words
        plain = [word for word in words if word not in (WORK, ERROR)]
        assert words == plain + [WORK] * self.works + [ERROR] * self.checks, f"{name}: *work and !error come last"
        self._pieces = {i: _pieces(word) for i, word in enumerate(plain) if "[" in word}
        plain = [word.split("[")[0] for word in plain]
        self.reads = tuple(i for i, word in enumerate(plain) if word[0] in "<=")
        self.writes = tuple(i for i, word in enumerate(plain) if word[0] in ">=")
        named = [word.lstrip("<>=").partition("=") for word in plain]
        names = [name for name, _, _ in named]
        self.values = tuple(value or name.removesuffix(":f") for name, _, value in named)
        names += ["work", "work_bytes"] * self.works + ["error"] * self.checks
        self.fields = tuple((field.removesuffix(":f"), field.endswith(":f")) for field in names)
        self.layout = struct.Struct("=" + "".join("d" if number else "q" for _, number in self.fields))
        if self.layout.size > BLOCK_BYTES:
            raise ValueError(f"argument block of {name} is larger than {BLOCK_BYTES} bytes")
        self.pack = self.layout.pack_into
        self.address = 0
        if self.registry.setdefault(name, self) is not self:
            raise ValueError(f"two tasks are called {name}")

    def pieces(self, values: Sequence[Any]) -> dict[int, tuple[int, int]]:
        """Evaluate the brackets of the fields for these ``values``: return field number -> (bytes, items), where each
        ``items`` consecutive items touch only their own ``bytes`` of the array. Arrays without brackets are missing."""
        names = {name: value for (name, _), value in zip(self.fields, values, strict=False)}
        found = {i: tuple(eval(code, {}, names) for code in codes) for i, codes in self._pieces.items()}
        return {i: pair for i, pair in found.items() if pair[0]}


def _pieces(word: str) -> tuple[CodeType, CodeType]:
    """Compile the brackets of a field: ``<x[bytes]`` or ``<x[bytes:items]``."""
    size, _, items = word[word.index("[") + 1 : -1].partition(":")
    return compile(size, word, "eval"), compile(items or "1", word, "eval")


class Step(NamedTuple):
    """One call of a task, divided among the threads: ``items`` items, of which a thread claims ``chunk`` at a time.

    values  the task's arguments, which are the slots of its argument block before ``*work``
    work    bytes of work area that each thread needs
    """

    task: Task
    items: int
    chunk: int
    values: tuple
    work: int = 0

    def write(
        self, memory: np.ndarray, place: int, base: int, block: int, entry: Entry, area: int, size: int, error: int
    ):
        """Write the step and its argument block into ``memory``, which begins at address ``base``.

        place  offset in ``memory`` of the step
        block  offset in ``memory`` of the argument block
        entry  the words that say how the step is executed
        area   address of the threads' work areas, of ``size`` bytes each
        error  address of the error flag
        """
        task = self.task
        extra = ((area, size) if task.works else ()) + ((error,) if task.checks else ())
        task.pack(memory, block, *self.values, *extra)
        if not task.address:
            task.address = Task.find(task.name)
        STEP_HEADER.pack_into(memory, place, task.address, base + block, *entry)


class Entry(NamedTuple):
    """How a step is executed: the words of a step after TASK and ARGS (``STEP_UNITS`` and so on explains them)."""

    units: int
    chunk: int
    wait: int
    per: int
    next: int
    members: int = 0
    needs: int = 0
    tails: int = 0
    tail_count: int = 0
