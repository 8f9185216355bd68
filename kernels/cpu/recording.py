"""A recording: the steps of many ops, laid out once in memory and replayed as one job.

An op called from Python costs a few microseconds of checking, allocating and waking threads; decoding a token takes
hundreds of ops. While a pass is recorded its ops compute nothing: they append their steps (``abi.Step``) and return
placeholder buffers. ``seal`` derives the dependencies between steps from the memory they read and write, lets
``schedule`` group them, and assigns the same memory to buffers that are not in use at the same time. ``replay``
executes all steps.

Values that change from run to run must be read from memory when the steps run: arrays that did not come from the
recording (caches, inputs) are taken by address, so refill them in place. Sizes are fixed when an op is recorded.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import DTypeLike

from ..binding import bind
from ..formats import FORMATS
from .abi import BLOCK_BYTES, SLOT, STEP_ARGS, STEP_BYTES, Entry, Step
from .schedule import Access, Group, plan
from .steps import F32, Steps
from .workers import Workers, address, aligned

ALIGNMENT = 128

REST = 28
"""Number of phases (``schedule``), about two layers of a model, for which memory is left alone after its last use.

If it were reused at once, its cache lines would still be in the cache of the core that wrote them last. Fetching them
from there takes twice as long as from the shared cache, where they end up once a layer's weights have passed through.
"""
T = TypeVar("T")


class Lookup(NamedTuple):
    """An embedding look-up of a recording, which Python performs before the steps run.

    table    matrix of the embeddings
    ids      array of row numbers, read at each replay
    out      where the rows are written, float32 (ids, columns)
    failure  message of the IndexError for an id outside the table
    """

    table: Any
    ids: np.ndarray
    out: np.ndarray
    failure: str

    def run(self) -> None:
        """Fill ``out`` with the rows of ``ids``; raise IndexError for an id outside the table."""
        if self.ids.min(initial=0) < 0:  # ``take`` would count from the end
            raise IndexError(self.failure)
        np.copyto(self.out, FORMATS[self.table.fmt].dequantize(self.table.data.take(self.ids, axis=0)))


class Recording(Steps):
    """A recording, at first under construction: the ops, which ``backend.Recorded`` mixes in, append steps; after
    ``seal`` it can be replayed."""

    name = "cpu"

    def __init__(self, workers: Workers):
        self.workers, self.threads = workers, workers.threads
        self._steps: list[Step] = []
        self._buffers: list[tuple[int, int, np.ndarray]] = []
        self._owner: dict[int, int] = {}
        self._shared: dict[tuple, Any] = {}
        self._lookups: list[Lookup] = []
        self._keep: list[Any] = []
        self.outputs: list[np.ndarray] = []
        self.kept: list[np.ndarray] = []

    # --- recording

    def empty(self, *shape: int, dtype: DTypeLike = F32) -> np.ndarray:
        """Return a placeholder array, which only stands for addresses: ``seal`` assigns it memory that is used."""
        kind = np.dtype(dtype)
        size = math.prod(shape) * kind.itemsize
        memory = np.empty(size + 2 * ALIGNMENT, np.uint8)
        skip = -address(memory) % ALIGNMENT
        self._buffers.append((address(memory) + skip, max(size, 1), memory))
        return memory[skip : skip + size].view(kind).reshape(shape)

    def array(self, *shape: int, dtype: DTypeLike = F32) -> np.ndarray:
        """Return a placeholder array, parts of which several ops may write (their argument ``into``)."""
        return self.empty(*shape, dtype=dtype)

    def temp(self, size: int) -> int:
        return address(self.empty(size, dtype=np.uint8))

    def whole(self, x: np.ndarray, name: str) -> np.ndarray:
        raise ValueError(f"{name} has gaps between its values, which a recording cannot close")

    def at(self, x: np.ndarray | None) -> int:
        if x is None:
            return 0
        root: Any = x
        while isinstance(root.base, np.ndarray):
            root = root.base
        self._keep.append(x)
        self._owner[address(x)] = id(root)
        return address(x)

    def shared(self, key: tuple, make: Callable[[], tuple[T, list[Step]]]) -> tuple[T, list[Step]]:
        if key in self._shared:
            return self._shared[key], []
        self._shared[key], steps = make()
        return self._shared[key], steps

    def run(self, steps: Sequence[Step], failure: str = "") -> None:
        self._steps += steps

    @bind
    def embed(self, table, ids, T, D, failure):
        # ``ids`` must be an input: they are read before the steps run
        self._lookups.append(Lookup(table, ids, np.empty((T, D), F32), failure))
        return self._lookups[-1].out

    # --- laying out

    def seal(self, *outputs: np.ndarray, kept: Sequence[np.ndarray] = ()) -> None:
        """End the recording: choose the order of its steps and the memory of its buffers, and write the table of steps
        that ``replay`` runs.

        After a replay, and until the next, the arrays ``self.outputs`` and ``self.kept`` have the values of ``outputs``
        and ``kept`` (on this backend there is no difference). Raise ValueError if one is not a result of an op.
        """
        results = (*outputs, *kept)
        buffers = sorted((start, size) for start, size, _ in self._buffers)
        starts = [start for start, _ in buffers]

        def buffer_of(value: int) -> int | None:
            """Return the number of the placeholder buffer that contains the address ``value``; None if none does."""
            i = bisect_right(starts, value) - 1
            return i if i >= 0 and value < buffers[i][0] + buffers[i][1] else None

        self._steps = [step for step in self._steps if step.items]
        accesses: list[list[Access]] = []
        for step in self._steps:
            touched = []
            for fields, written in ((step.task.reads, False), (step.task.writes, True)):
                for field in fields:
                    number = buffer_of(step.values[field])
                    owner = self._owner.get(step.values[field]) if number is None else -1 - number
                    if owner is not None:
                        place = 0 if number is None else step.values[field] - starts[number]
                        touched.append(Access(owner, written, field, place))
            accesses.append(touched)
        groups = plan(self._steps, accesses, self.threads)

        output_buffers = {number: buffer_of(address(out)) for number, out in enumerate(results)}
        spans = _spans(accesses, groups, {n for n in output_buffers.values() if n is not None})
        resting = {number: (first, last + REST) for number, (first, last) in spans.items()}
        offsets, total = _share(resting, [size for _, size in buffers])
        work = -(-max((step.work for step in self._steps), default=0) // ALIGNMENT) * ALIGNMENT
        self._memory = aligned(total + work * self.threads)
        base = address(self._memory)

        def relocate(value: int) -> int:
            number = buffer_of(value)
            return value if number is None else base + offsets[number] + value - starts[number]

        self._write(groups, relocate, base + total, work)
        for number, out in enumerate(results):
            if output_buffers[number] is None:
                raise ValueError("an output of a recording must be a result of its ops")
            start = relocate(address(out)) - base
            result = self._memory[start : start + out.nbytes].view(out.dtype).reshape(out.shape)
            (self.outputs if number < len(outputs) else self.kept).append(result)
        self._buffers.clear()
        self._shared.clear()
        self._owner.clear()

    def _write(self, groups: list[Group], relocate: Callable[[int], int], area: int, work: int) -> None:
        """Write steps, argument blocks and lists of tails to memory, in the layout of ``abi``.

        relocate: function that maps addresses in placeholders to those in real memory
        area, work: address of the threads' work areas, and bytes of each
        """
        self.workers.load()
        entries, tails = _entries(groups, [step.items for step in self._steps])
        order = [i for group in groups for i in group.steps]
        count = len(order)
        links = count * (STEP_BYTES + BLOCK_BYTES)
        self._table = aligned(links + 8 * len(tails))
        self._table.view(np.int64)[links // SLOT :] = tails
        self._error = np.zeros(1, np.int64)
        self._base, self.length, self.tasks = address(self._table), count, [self._steps[i].task.name for i in order]
        self._addresses: list[int] = []
        for number, (i, entry) in enumerate(zip(order, entries, strict=True)):
            step = self._steps[i]
            values = list(step.values)
            for field in {*step.task.reads, *step.task.writes}:
                values[field] = relocate(values[field])
            block = count * STEP_BYTES + number * BLOCK_BYTES
            step._replace(values=tuple(values)).write(
                self._table, number * STEP_BYTES, self._base, block, entry, area, work, address(self._error)
            )
            ends = ([len(values)] if step.task.works else []) + ([-1] if step.task.checks else [])
            fields = {*step.task.reads, *step.task.writes, *(i % len(step.task.fields) for i in ends)}
            self._addresses.append((number * STEP_BYTES + STEP_ARGS) // SLOT)
            self._addresses += [block // SLOT + field for field in fields]
        self._steps = []

    # --- running

    def replay(self) -> None:
        """Run all steps; raise IndexError if one of them met an index out of range."""
        for lookup in self._lookups:
            lookup.run()
        self.workers.run_prepared(self._base, self.length)
        if self._error[0]:
            self._error[0] = 0
            raise IndexError("a row or expert number is out of range")

    # --- the same steps on other arrays

    def template(self, arrays: Sequence[np.ndarray]) -> Template:
        """Return a template that makes recordings of the same steps with other arrays in place of ``arrays``.

        Call it after ``seal`` and before the first replay. The template holds no reference to ``arrays``.
        """
        regions = [self._memory, self._table, self._error, *(lookup.out for lookup in self._lookups), *arrays]
        ranges = sorted((address(array), address(array) + array.nbytes, n) for n, array in enumerate(regions))
        starts, ends, numbers = (np.array(column) for column in zip(*ranges, strict=True))

        def region(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            """Return, for each address, the index in ``ranges`` of the range that may hold it, and whether it does."""
            place = np.maximum(np.searchsorted(starts, values, "right") - 1, 0)
            return place, (starts[place] <= values) & (values < ends[place])

        words, slots = self._table.view(np.int64).copy(), np.array(self._addresses)
        place, inside = region(words[slots])
        keep_place = region(np.array([address(array) for array in self._keep]))[1]
        lookups = [(one.table, _identity(one.ids, arrays), one.out.shape, one.failure) for one in self._lookups]
        start = address(self._memory)
        results = [[(address(x) - start, x.shape, x.dtype) for x in part] for part in (self.outputs, self.kept)]
        return Template(
            type(self), self.workers, self.tasks, self._memory.nbytes, words, slots[inside], numbers[place[inside]],
            words[slots[inside]] - starts[place[inside]], lookups, results,
            [array for array, ours in zip(self._keep, keep_place, strict=True) if not ours],
        )  # fmt: skip

    @property
    def nbytes(self) -> int:
        """Return the size in bytes of the recording: steps, buffers and work areas."""
        return self._memory.nbytes + self._table.nbytes


class Template(NamedTuple):
    """A sealed recording without its arrays, from which other sessions get theirs without recording again.

    kind       class of the recordings it makes
    tasks      names of the steps' tasks, in order
    size       bytes of a recording's memory (buffers and work areas)
    words      the table of steps, as int64
    slots      indices of the words that are addresses in an array of the recording itself or in a replaced array
    regions    for each of them, the number of that array: memory, table, error flag, outputs of look-ups, then the
               replaced arrays
    offsets    for each of them, the bytes from the beginning of that array
    lookups    per embedding look-up: table, number of its ids among the replaced arrays, shape of the output, message
    results    offset in the memory, shape and dtype of the outputs and of the kept results
    keep       other arrays that the steps use, to keep them alive
    """

    kind: type[Recording]
    workers: Workers
    tasks: list[str]
    size: int
    words: np.ndarray
    slots: np.ndarray
    regions: np.ndarray
    offsets: np.ndarray
    lookups: list[tuple[Any, int, tuple[int, ...], str]]
    results: list[list[tuple[int, tuple[int, ...], np.dtype]]]
    keep: list[np.ndarray]

    def on(self, arrays: Sequence[np.ndarray]) -> Recording:
        """Return a recording of the same steps on ``arrays``, which must have the same order, shapes and dtypes as
        those given to ``Recording.template``."""
        made = self.kind(self.workers)
        made._memory, made._table, made._error = aligned(self.size), aligned(self.words.nbytes), np.zeros(1, np.int64)
        made._base, made.tasks, made.length = address(made._table), self.tasks, len(self.tasks)
        made._lookups = [Lookup(table, arrays[n], np.empty(shape, F32), why) for table, n, shape, why in self.lookups]
        regions = [made._memory, made._table, made._error, *(lookup.out for lookup in made._lookups), *arrays]
        words = made._table.view(np.int64)
        words[:] = self.words
        words[self.slots] = np.array([address(array) for array in regions])[self.regions] + self.offsets
        for into, results in zip((made.outputs, made.kept), self.results, strict=True):
            for start, shape, dtype in results:
                size = math.prod(shape) * dtype.itemsize
                into.append(made._memory[start : start + size].view(dtype).reshape(shape))
        made._keep = [*self.keep, *arrays]
        return made


def _identity(array: np.ndarray, among: Sequence[np.ndarray]) -> int:
    """Return the index of this very array in a sequence; raise ValueError if it is not there."""
    for number, other in enumerate(among):
        if other is array:
            return number
    raise ValueError("the ids of an embedding are none of the arrays that are replaced")


def _entries(groups: list[Group], items: Sequence[int]) -> tuple[list[Entry], list[int]]:
    """Return the words that say how each step is executed, in order, and the lists of tails (see ``abi``), joined.

    items: number of items of each step
    """
    starts, at = {}, 0
    tails: dict[int, list[int]] = {}
    for group in groups:
        starts[id(group)] = at
        for needed in group.needs:
            tails.setdefault(id(needed), []).append(at)
        at += len(group.steps)
    links = at * (STEP_BYTES + BLOCK_BYTES)
    lists: list[int] = []
    entries: list[Entry] = []
    phase, before = -1, 0
    following = [starts[id(group)] for group in groups if not group.needs][1:]
    for number, group in enumerate(groups):
        mine = tails.get(id(group), [])
        place = links + SLOT * len(lists)
        lists += mine
        if group.phase != phase:
            phase, before = group.phase, number
            wait = 1 + before
        else:
            wait = 0
        if group.needs:
            head = Entry(1, 0, 0, items[group.steps[0]], 0, len(group.steps) - 1, len(group.needs))
        else:
            after = following.pop(0) if following else at
            per = items[group.steps[0]] // group.units
            head = Entry(
                group.units, group.chunk, wait, per, after, len(group.steps) - 1, 0, place if mine else 0, len(mine)
            )
        entries.append(head)
        entries += [Entry(group.units, 0, 0, items[i] // group.units, 0) for i in group.steps[1:]]
    return entries, lists


def _spans(accesses: Sequence[Sequence[Access]], groups: list[Group], kept: set[int]) -> dict[int, tuple[int, int]]:
    """Return the first and last phase in which each placeholder buffer is in use, by number; those in ``kept`` are in
    use to the end."""
    spans: dict[int, tuple[int, int]] = {}
    for group in groups:
        for one in (one for i in group.steps for one in accesses[i]):
            if one.owner < 0:
                first, last = spans.get(-1 - one.owner, (group.phase, group.phase))
                spans[-1 - one.owner] = min(first, group.phase), max(last, group.phase)
    end = max((group.phase for group in groups), default=0)
    return {number: (first, end if number in kept else last) for number, (first, last) in spans.items()}


def _share(spans: dict[int, tuple[int, int]], sizes: list[int]) -> tuple[dict[int, int], int]:
    """Return an offset in memory for each buffer, by number, and the bytes of memory needed in total.

    ``spans`` are the first and last phase of each; buffers in use at the same time do not overlap. A buffer reuses free
    memory of exactly its size, of which there is plenty because layers are alike, or else gets new memory.
    """
    offsets: dict[int, int] = {}
    total = 0
    taken: list[tuple[int, int, int]] = []  # heap of (last phase, size, offset): the next to become free first
    free: dict[int, list[int]] = {}
    for number in sorted(spans, key=lambda n: spans[n]):
        first, last = spans[number]
        while taken and taken[0][0] < first:
            _, size, offset = heappop(taken)
            free.setdefault(size, []).append(offset)
        size = -(-sizes[number] // ALIGNMENT) * ALIGNMENT
        if free.get(size):
            offsets[number] = free[size].pop()
        else:
            offsets[number] = total
            total += size
        heappush(taken, (last, size, offsets[number]))
    return offsets, total
