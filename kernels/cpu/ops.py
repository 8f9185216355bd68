"""Ops of the CPU backend other than matrix products, declared in ``ds4ref.kernels.ops``.

An op that consists of one task (a compiled function, see ``abi``) is made from its line in ``tasktable``; ops of
several tasks, or with choices to make, are written here.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..binding import bind
from ..ops import OPS
from . import tasktable as t
from .abi import Step, Task
from .sizes import (
    HEAD_GROUP,
    INDEX_BLOCK,
    QUERY_GROUP,
    RANK_BLOCK,
    attend_bytes,
    attention_bytes,
    index_bytes,
    index_query_floats,
)
from .steps import Steps, is_half

_MOST = 2
"""Maximum number of arrays that ``call`` can wait for, and of arrays whose readers can wait for it."""


class HostCall:
    """A Python function in the form that compiled code can call: ``function(ids)`` with ids int32 (T, K), an array that
    is valid until the function returns.

    It must not raise, because nothing could catch the exception. Keep this object as long as recordings that call it.
    """

    def __init__(self, function: Callable[[np.ndarray], None]):
        def entry(ids: int, rows: int, width: int) -> None:
            values = (ctypes.c_int32 * (rows * width)).from_address(ids)
            function(np.frombuffer(values, np.int32).reshape(rows, width))

        self._kept = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 3)(entry)
        self.address = ctypes.cast(self._kept, ctypes.c_void_p).value or 0


class TaskOps(Steps):
    """The ops for attention, index scores, ranking, counts and calls of Python; and every op that is one task, added
    below."""

    @bind
    def attention(
        self, q, raw, raw_first, raw_count, comp, comp_count, selected, sinks, scale, out, T, H, d, N, M, k, failure
    ):
        selects = comp is not None and selected is not None  # without compressed rows there is nothing to select from
        group = min(HEAD_GROUP, H)
        if T * -(-H // group) < self.threads:  # half the heads an item, which still fill a tile
            group = min(HEAD_GROUP // 2, H)
        groups = -(-H // group)
        values = (
            *map(self.at, (q, raw, raw_first, raw_count, comp)), is_half(comp),
            *map(self.at, (comp_count, selected if selects else None, sinks, out)),
            N, M, k if selects else 0, H, d, group, groups, scale,
        )  # fmt: skip
        self.run([Step(t.ATTENTION, T * groups, 1, values, attention_bytes(d))], failure)

    @bind
    def attend(self, q, keys, values, first, row_counts, scale, out, T, N, K, g, d, failure):
        group = max(1, min(HEAD_GROUP, g))
        groups = -(-g // group)
        tile = max(1, min(T, QUERY_GROUP // group))  # tokens scored against a block of rows together
        numbers = (
            *map(self.at, (q, keys, values, first, row_counts, out)), is_half(keys), is_half(values),
            N, T, K, g, group, groups, tile, d, scale,
        )  # fmt: skip
        self.run([Step(t.ATTEND, -(-T // tile) * K * groups, 1, numbers, attend_bytes(d))], failure)

    @bind
    def index_scores(self, iq, rows, w, count, out, T, H, d, n):
        packed = self.temp(4 * index_query_floats(H, d) * T)
        pack = Step(t.INDEX_PACK, T, self.chunk(T, H * d), (self.at(iq), self.at(w), packed, H, d))
        scores = packed, self.at(rows), is_half(rows), self.at(count), self.at(out), T, n, H, d
        self.run([pack, Step(t.INDEX_SCORES, -(-n // INDEX_BLOCK) * T, 1, scores, index_bytes(d))])

    @bind
    def block_scores(self, iq, rows, w, blocks, size, out, T, H, d, n, b):
        packed = self.temp(4 * index_query_floats(H, d) * T)
        pack = Step(t.INDEX_PACK, T, self.chunk(T, H * d), (self.at(iq), self.at(w), packed, H, d))
        scores = packed, self.at(rows), is_half(rows), self.at(blocks), self.at(out), n, H, d, size, b
        each = self.chunk(T * b, size * H * d)
        self.run([pack, Step(t.BLOCK_SCORES, T * b, each, scores, index_bytes(d))])

    @bind
    def top(self, x, k, values, ids, T, n):
        blocks = -(-n // RANK_BLOCK)
        items = T * blocks
        peaks, starts = self.temp(4 * items), self.temp(4 * items)
        ranked = self.at(x), peaks, starts, self.at(values), self.at(ids), n, blocks, k
        peak = Step(t.RANK_PEAKS, items, self.chunk(items, RANK_BLOCK), (self.at(x), peaks, starts, n, blocks))
        self.run([peak, Step(t.TOP, T, 1, ranked)])

    @bind
    def count(self, ids, counts, E):
        # one chunk: threads would overwrite each other's counts
        self.run([Step(t.COUNT, ids.size, max(1, ids.size), (self.at(ids), self.at(counts), E))])

    def call(
        self, function: HostCall, ids: np.ndarray, after: Sequence[np.ndarray] = (), before: Sequence[np.ndarray] = ()
    ) -> None:
        """Call ``function`` with ids, int32 (T, K), in the middle of a pass: after the arrays ``after`` have been
        computed, and before later ops read the arrays ``before``, at most two each. Calls with an array of ``before``
        in common keep their order."""
        first, table = ([*map(self.at, arrays), *[0] * _MOST][:_MOST] for arrays in (after, before))
        self.run([Step(t.CALL, 1, 1, (function.address, self.at(ids), *ids.shape, *first, *table))])


def _launch(task: Task) -> Any:
    """Return the launch (see ``binding``) of an op that consists of this task alone, generated from its declaration."""
    op = OPS[task.name]
    arrays = {*task.reads, *task.writes}
    values = [f"self.at({value})" if i in arrays else value for i, value in enumerate(task.values)]
    step = f"Step(task, items, self.chunk(items, {task.cost}), ({', '.join(values)},))"
    body = f"    items = {task.items}\n    self.run([{step}]{', failure' if task.checks else ''})\n"
    known = [each.name for each in (*op.operands, *op.results)] + ["failure"]
    known += re.findall(
        r"[A-Za-z]\w*", " ".join(dim for each in (*op.operands, *op.results) for dim in each.dims or ())
    )
    wanted = [name for name in dict.fromkeys(known) if re.search(rf"(?<![\w.]){name}\b", body)]
    space: dict[str, Any] = {"__name__": __name__, "task": task, "Step": Step, "is_half": is_half}
    exec(f"def {task.name}(self, {', '.join(wanted)}):\n{body}", space)
    return space[task.name]


for _task in Task.registry.values():
    if _task.items:
        setattr(TaskOps, _task.name, bind(_launch(_task)))
