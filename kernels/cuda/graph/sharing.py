"""Share work between products of a recording: pack inputs once, multiply two matrices in one launch.

An op packs its inputs and multiplies. In a recording these become two launches, so that what several products read
(gate and up; queries, keys and values) is packed for all of them at once. Then

    two products with the same packed inputs, of one format, are one launch with two matrices
    SwiGLU whose only reader packs its result is computed while packing

Each computes the bits that the ops by themselves do: ``layouts.together`` says where sums keep their order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...formats.matrix import Matrix
from ..driver.arrays import DeviceArray
from ..driver.experts import SplitStack
from ..driver.launch import Launch, same_values, written_between
from ..products import dispatch, layouts, packing, plain
from ..products.units import UNITS
from ..rows import routing
from .merging import merged

PACKED: dict[Callable[..., None], Callable[..., None]] = {
    dispatch.linear: dispatch.linear_packed,
    dispatch.expert_linear: dispatch.expert_linear_packed,
    dispatch.expert_sum: dispatch.expert_sum_packed,
}
"""Functions of products by the function that packs, too."""


def shared(launches: list[Launch], kept: set[int], flags: set[int], empty: Callable[..., DeviceArray]) -> list[Launch]:
    """Apply all kinds of sharing. ``kept``: ids of buffers read after the launches; ``flags``: of those written in any
    order; ``empty`` makes new places."""
    return _gated(merged(_packed(launches, empty), _fit, _both, flags), kept)


def _packed(launches: list[Launch], empty: Callable[..., DeviceArray]) -> list[Launch]:
    """Split products from their packing, and pack once for all that read the same inputs."""
    out: list[Launch] = []
    known: dict[tuple[Any, ...], tuple[DeviceArray, DeviceArray, DeviceArray]] = {}
    for launch in launches:
        product = PACKED.get(launch.function)
        if product is not None and launch.matrices[0].fmt in UNITS:
            w, x, ids = launch.matrices[0], launch.reads[0], launch.reads[1:]
            act = next(number for number in launch.numbers if isinstance(number, str))
            needs_sums = UNITS[w.fmt].minima and act == "float"
            key = id(x.buffer), x.offset, x.size, w.cols, act, needs_sums
            if key not in known:
                known[key] = _pack(out, x, w.cols, act, needs_sums, empty)
            launch = Launch(product, launch.writes, [*known[key], *ids], launch.numbers, matrices=launch.matrices)
        out.append(launch)
        written = {id(array.buffer) for array in launch.writes}
        known = {key: inputs for key, inputs in known.items() if key[0] not in written}
    return out


def _pack(
    out: list[Launch], x: DeviceArray, n: int, act: str, needs_sums: bool, empty: Callable[..., DeviceArray]
) -> tuple[DeviceArray, DeviceArray, DeviceArray]:
    """Append the launch that packs rows of n values of ``x``; return the three arrays a product reads."""
    count = x.size // n
    size = packing.sizes(act, n, needs_sums)
    if act == "float":
        if not needs_sums:
            return x, x, x
        sums = empty(count * size.sums)
        out.append(Launch(packing.pack_sums, [sums], [x], (count, n)))
        return x, x, sums
    codes, scales = empty(count * size.words, dtype=np.int32), empty(count * size.scales)
    if act == "a8":
        out.append(Launch(packing.pack_a8, [codes, scales], [x], (count, n)))
        return codes, scales, codes
    sums = empty(count * size.sums, dtype=np.int32)
    out.append(Launch(packing.pack_q8k, [codes, scales, sums], [x], (count, n)))
    return codes, scales, sums


def _few(launch: Launch) -> bool:
    """Whether this is a product of few tokens, whose kernel can take two matrices."""
    if launch.function in (dispatch.linear_packed, dispatch.linear):  # the latter with plain numbers
        tokens, groups, _ = launch.numbers
        return tokens < dispatch.MANY_TOKENS and groups == 1
    if launch.function is dispatch.expert_linear_packed:
        tokens, slots, experts = launch.numbers[:3]
        return not dispatch.worth_sorting(tokens * slots, experts)
    return False


def _fit(launch: Launch, later: Launch) -> bool:
    """Whether one launch of both, products of the same packed inputs, gives the same bits."""
    if later.function is not launch.function or not _few(launch) or list(later.numbers) != list(launch.numbers):
        return False
    a, b = launch.matrices[0], later.matrices[0]
    if (
        (a.fmt, a.cols) != (b.fmt, b.cols)
        or _slots(a) != _slots(b)
        or not all(map(same_values, launch.reads, later.reads))
    ):
        return False
    pairs, act = launch.numbers[0], launch.numbers[2]
    if launch.function is dispatch.expert_linear_packed:
        if a.rows != b.rows:
            return False
        pairs, act = pairs * launch.numbers[1], launch.numbers[3]
    if launch.function is dispatch.linear:
        return plain.warps_a_row(a.rows, pairs) == plain.warps_a_row(b.rows, pairs)
    return layouts.together(a.fmt, act, [a.rows, b.rows], a.cols, pairs)


def _slots(w: Matrix) -> int | None:
    """Number of experts of a stack on the device; None where all are."""
    data: Any = w.data
    return data.slots if isinstance(data, SplitStack) else None


def _both(launch: Launch, later: Launch) -> Launch:
    """Make one launch of both."""
    matrices = *launch.matrices, *later.matrices
    writes = [launch.writes[0], later.writes[0], *launch.writes[1:]]
    if launch.function is dispatch.expert_linear_packed:
        return Launch(dispatch.expert_linear_both, writes, launch.reads, launch.numbers, matrices=matrices)
    tokens, _, act = launch.numbers
    if launch.function is dispatch.linear:
        return Launch(dispatch.linear_both_plain, writes, launch.reads, (tokens,), matrices=matrices)
    return Launch(dispatch.linear_both, writes, launch.reads, (tokens, act), matrices=matrices)


def _gated(launches: list[Launch], kept: set[int]) -> list[Launch]:
    """Compute SwiGLU while packing where that packing is its only reader."""
    readers: dict[int, list[int]] = {}
    for number, launch in enumerate(launches):
        for array in launch.reads:
            readers.setdefault(id(array.buffer), []).append(number)
    instead = {packing.pack_a8: packing.pack_swiglu_a8, packing.pack_q8k: packing.pack_swiglu_q8k}
    out: list[Launch | None] = list(launches)
    for number, launch in enumerate(launches):
        if launch.function is not routing.swiglu:
            continue
        result = launch.writes[0]
        found = readers.get(id(result.buffer), [])
        if len(found) != 1 or id(result.buffer) in kept:
            continue
        later = launches[found[0]]
        function = instead.get(later.function)
        fits = (
            function is not None and same_values(later.reads[0], result) and tuple(later.numbers) == launch.numbers[:2]
        )
        if fits and not written_between(launches[number + 1 : found[0]], launch):
            out[found[0]] = Launch(function, later.writes, launch.reads, launch.numbers)  # type: ignore[arg-type]
            out[number] = None
    return [launch for launch in out if launch is not None]
