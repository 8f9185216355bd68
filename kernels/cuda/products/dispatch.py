"""Matrix products as the backend calls them: choose the kernel, pack the inputs, launch.

All functions take flat device arrays and matrices whose ``data`` is one, launch on ``stream`` and return nothing;
``scratch(shape, dtype)`` allocates memory that stays valid until the results are written. Raw rows are multiplied as
stored in the file. What each product computes: ``ds4ref.kernels.ops``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...formats import FORMATS
from ...formats.matrix import Matrix
from ..driver.experts import Spread
from . import embedding, grouping, matmat, matmat_float, matvec, packing, plain, tiling
from .operands import Elsewhere, Inputs, Place, Routing, Weights
from .units import UNITS

Scratch = Callable[[tuple[int, ...], Any], Any]
NO_FAILURE = 0
MANY_TOKENS = 16
"""From this many tokens on, decoding weights once per tile of tokens beats reading them again for each."""
PAIRS_PER_EXPERT = 4


def worth_sorting(pairs: int, experts: int) -> bool:
    """Return whether to sort pairs by expert: on average each expert has several."""
    return PAIRS_PER_EXPERT * experts <= pairs and experts <= grouping.MOST_EXPERTS


def rounds(fmt: str, act: str) -> bool:
    """Return whether a kernel for weights of this format supports this activation rounding."""
    return act == "float" or fmt in UNITS and act == UNITS[fmt].activation


def pack(stream: Any, x: Any, count: int, n: int, fmt: str, act: str, scratch: Scratch) -> Inputs:
    """Pack ``x`` (count, n) for products with weights of ``fmt``."""
    unit = UNITS[fmt]
    size = packing.sizes(act, n, unit.minima)
    sums = x
    if act == "float":
        if size.sums:
            sums = scratch((count * size.sums,), np.float32)
            packing.pack_sums(stream, sums, x, count, n)
        return Inputs(x, x, sums)
    codes, scales = scratch((count * size.words,), np.int32), scratch((count * size.scales,), np.float32)
    if act == "a8":
        packing.pack_a8(stream, codes, scales, x, count, n)
        return Inputs(codes, scales, codes)
    sums = scratch((count * size.sums,), np.int32)
    packing.pack_q8k(stream, codes, scales, sums, x, count, n)
    return Inputs(codes, scales, sums)


def _parts(matrices: Sequence[Matrix], outs: Sequence[Any]) -> list[Weights]:
    """Return matrices or stacks with the arrays of their results."""
    data: list[Any] = [w.data for w in matrices]
    raws = [each.near if isinstance(each, Spread) else each for each in data]
    return [Weights(raw, w.rows, out) for raw, w, out in zip(raws, matrices, outs, strict=True)]


def _routing(
    matrices: Sequence[Matrix], ids: Any, experts: int, slots: int, share: int, error: Any, failure: int
) -> Routing:
    """Return the routing of pairs to experts ``ids`` of one or two stacks."""
    first: Any = matrices[0].data
    last: Any = matrices[-1].data
    elsewhere = Elsewhere(first.slots, first.far, last.far) if isinstance(first, Spread) else 0
    return Routing(ids, experts, 1, slots, share, error, failure, elsewhere)


def _launch(
    stream: Any, parts: list[Weights], routing: Routing, inputs: Inputs, w: Matrix, act: str, pairs: int
) -> None:  # fmt: skip
    """Multiply packed inputs with ``parts``, which share the format and row length of ``w``, by mat-vec."""
    spread = isinstance(routing.elsewhere, Elsewhere)
    kernel = matvec.chosen(w.fmt, act, [part.rows for part in parts], w.cols, pairs, routing.slots, spread)
    matvec.launch(stream, kernel, parts, FORMATS[w.fmt].row_bytes(w.cols), w.cols, routing, inputs, pairs)


def _in_groups(unused: Any, groups: int) -> Routing:
    """Return ``Routing`` without experts; ``unused`` is any array, of integers where inputs are: ids and errors are
    integers, so that one compiled kernel serves both."""
    return Routing(unused, 0, groups, 1, 1, unused, NO_FAILURE)


def linear(
    stream: Any, out: Any, x: Any, w: Matrix, tokens: int, groups: int, act: str, *, scratch: Scratch
) -> None:  # fmt: skip
    """Multiply x (tokens, groups, n) with rows -> out (tokens, rows). Group g uses rows g r .. (g + 1) r - 1, r = rows
    / groups."""
    if not tokens:
        return
    if w.fmt in plain.VALUE_BYTES:
        if tokens >= MANY_TOKENS:
            matmat_float.in_order(stream, out, x, x, w, tokens, groups, scratch=scratch)
            return
        parts = [Weights(w.data, w.rows // groups, out)]
        plain.rows(stream, parts, x, w.fmt, _in_groups(out, groups), w.cols, tokens * groups)
        return
    inputs = pack(stream, x, tokens * groups, w.cols, w.fmt, act, scratch)
    linear_packed(stream, out, *inputs, w, tokens, groups, act, scratch=scratch)


def linear_packed(
    stream: Any, out: Any, codes: Any, scales: Any, sums: Any, w: Matrix, tokens: int, groups: int, act: str, *,
    scratch: Scratch,
) -> None:  # fmt: skip
    """Run ``linear`` on packed inputs, for block formats."""
    inputs = Inputs(codes, scales, sums)
    if tokens >= MANY_TOKENS and matmat.has(w.fmt, act):
        row_bytes = FORMATS[w.fmt].row_bytes(w.cols)
        matmat.in_order(stream, out, inputs, w.data, row_bytes, w.fmt, tokens, groups, w.rows // groups, w.cols)
    elif tokens >= MANY_TOKENS and act == "float":
        matmat_float.in_order(stream, out, codes, sums, w, tokens, groups, scratch=scratch)
    else:
        parts = [Weights(w.data, w.rows // groups, out)]
        _launch(stream, parts, _in_groups(codes, groups), inputs, w, act, tokens * groups)


def linear_both(
    stream: Any, out: Any, out2: Any, codes: Any, scales: Any, sums: Any, w: Matrix, w2: Matrix, tokens: int,
    act: str, *, scratch: Scratch,
) -> None:  # fmt: skip
    """Run ``linear_packed`` with two matrices of one format, few tokens, no groups, in one launch (``sharing``)."""
    parts = [Weights(w.data, w.rows, out), Weights(w2.data, w2.rows, out2)]
    _launch(stream, parts, _in_groups(codes, 1), Inputs(codes, scales, sums), w, act, tokens)


def linear_both_plain(
    stream: Any, out: Any, out2: Any, x: Any, w: Matrix, w2: Matrix, tokens: int, *, scratch: Scratch
) -> None:  # fmt: skip
    """Run ``linear`` with two matrices of plain numbers, without groups, in one launch (``sharing``)."""
    parts = [Weights(w.data, w.rows, out), Weights(w2.data, w2.rows, out2)]
    plain.rows(stream, parts, x, w.fmt, _in_groups(out, 1), w.cols, tokens)


def linear_both_stored(
    stream: Any, ring: Any, ring2: Any, x: Any, ape: Any, at: Any, w: Matrix, w2: Matrix, tokens: int, slots: int,
    ratio: int, *, scratch: Scratch,
) -> None:  # fmt: skip
    """Run ``linear_both_plain``, and ``windows.store_both`` of its results (``folding``)."""
    parts = [Weights(w.data, w.rows, ring), Weights(w2.data, w2.rows, ring2)]
    plain.rows(stream, parts, x, w.fmt, _in_groups(ring, 1), w.cols, tokens, Place(at, ape, slots, ratio))


def _by_tiles(
    stream: Any, out: Any, error: Any, inputs: Inputs, ids: Any, w: Matrix, pairs: int, share: int, experts: int,
    act: str, failure: int, scratch: Scratch,
) -> None:  # fmt: skip
    """Run every pair of ids (pairs,) through its expert -> out (pairs, rows); ``share`` consecutive pairs have one
    input."""
    tiles = grouping.tiles(stream, ids, pairs, experts, error, failure, scratch)
    if act == "float":
        x, sums = inputs.codes, inputs.sums
        matmat_float.by_expert(stream, out, x, sums, w, tiles, pairs // share, share, scratch=scratch)
    else:
        row_bytes = FORMATS[w.fmt].row_bytes(w.cols)
        matmat.by_expert(stream, out, inputs, w.data, row_bytes, w.fmt, tiles, share, w.rows, w.cols)


def _experts(
    stream: Any, out: Any, error: Any, inputs: Inputs, ids: Any, w: Matrix, tokens: int, slots: int, experts: int,
    act: str, failure: int, scratch: Scratch, summed: bool,
) -> None:  # fmt: skip
    """Run packed inputs, or float ones of plain weights, through experts: one input of all of a token's slots, or, if
    ``summed``, one a slot, whose results are added in slot order."""
    pairs = tokens * slots
    if worth_sorting(pairs, experts) and (act == "float" or matmat.has(w.fmt, act)):
        parts = scratch((pairs * w.rows,), np.float32) if summed else out
        _by_tiles(
            stream, parts, error, inputs, ids, w, pairs, 1 if summed else slots, experts, act, failure, scratch
        )  # fmt: skip
        if summed:
            tiling.add_slots(stream, out, parts, tokens * w.rows, slots, w.rows)
        return
    shape, count = ((slots, 1), tokens) if summed else ((1, slots), pairs)
    routing = _routing([w], ids, experts, *shape, error, failure)
    if w.fmt in plain.VALUE_BYTES:
        plain.rows(stream, _parts([w], [out]), inputs.codes, w.fmt, routing, w.cols, count)
    else:
        _launch(stream, _parts([w], [out]), routing, inputs, w, act, count)


def expert_linear(
    stream: Any, out: Any, error: Any, x: Any, ids: Any, w: Matrix, tokens: int, slots: int, experts: int, act: str,
    failure: int, *, scratch: Scratch,
) -> None:  # fmt: skip
    """Run x (tokens, n) through experts ids (tokens, slots) -> out (tokens, slots, rows). ``error[0]`` becomes
    ``failure`` if an id is not below ``experts``."""
    if tokens * slots:
        inputs = _expert_inputs(stream, x, tokens, w, act, scratch)
        _experts(stream, out, error, inputs, ids, w, tokens, slots, experts, act, failure, scratch, False)


def _expert_inputs(stream: Any, x: Any, count: int, w: Matrix, act: str, scratch: Scratch) -> Inputs:
    return Inputs(x, x, x) if w.fmt in plain.VALUE_BYTES else pack(stream, x, count, w.cols, w.fmt, act, scratch)


def expert_linear_packed(
    stream: Any, out: Any, error: Any, codes: Any, scales: Any, sums: Any, ids: Any, w: Matrix, tokens: int,
    slots: int, experts: int, act: str, failure: int, *, scratch: Scratch,
) -> None:  # fmt: skip
    """Run ``expert_linear`` on packed inputs, for block formats."""
    inputs = Inputs(codes, scales, sums)
    _experts(stream, out, error, inputs, ids, w, tokens, slots, experts, act, failure, scratch, False)


def expert_linear_both(
    stream: Any, out: Any, out2: Any, error: Any, codes: Any, scales: Any, sums: Any, ids: Any, w: Matrix, w2: Matrix,
    tokens: int, slots: int, experts: int, act: str, failure: int, *, scratch: Scratch,
) -> None:  # fmt: skip
    """Run ``expert_linear_packed`` with two stacks of one format, few tokens, in one launch (``sharing``)."""
    routing = _routing([w, w2], ids, experts, 1, slots, error, failure)
    _launch(stream, _parts([w, w2], [out, out2]), routing, Inputs(codes, scales, sums), w, act, tokens * slots)


def expert_sum(
    stream: Any, out: Any, error: Any, mid: Any, ids: Any, w: Matrix, tokens: int, slots: int, experts: int, act: str,
    failure: int, *, scratch: Scratch,
) -> None:  # fmt: skip
    """Run mid (tokens, slots, n), each through its own expert, and add results in slot order -> out (tokens, rows)."""
    if tokens:
        inputs = _expert_inputs(stream, mid, tokens * slots, w, act, scratch)
        _experts(stream, out, error, inputs, ids, w, tokens, slots, experts, act, failure, scratch, True)


def expert_sum_packed(
    stream: Any, out: Any, error: Any, codes: Any, scales: Any, sums: Any, ids: Any, w: Matrix, tokens: int,
    slots: int, experts: int, act: str, failure: int, *, scratch: Scratch,
) -> None:  # fmt: skip
    """Run ``expert_sum`` on packed inputs, for block formats."""
    inputs = Inputs(codes, scales, sums)
    _experts(stream, out, error, inputs, ids, w, tokens, slots, experts, act, failure, scratch, True)


def hc_mix(stream: Any, out: Any, x: Any, fn: Matrix, tokens: int, eps: float, *, scratch: Scratch) -> None:
    """Divide x (tokens, n) by its root mean square and multiply with fn -> out (tokens, rows)."""
    if not tokens:
        return
    if fn.fmt not in plain.VALUE_BYTES:
        raise ValueError(f"no kernel mixes streams with {fn.fmt} weights: F16, BF16 or F32")
    plain.hc_mix(stream, out, x, fn.data, fn.fmt, tokens, fn.rows, fn.cols, eps)


def embed(
    stream: Any, out: Any, error: Any, ids: Any, table: Matrix, count: int, failure: int, *, scratch: Scratch
) -> None:  # fmt: skip
    """Look up rows ids (count,) of the table -> out (count, n). ``error[0]`` becomes ``failure`` if an id is out of
    range."""
    row_bytes = FORMATS[table.fmt].row_bytes(table.cols)
    embedding.look_up(stream, out, error, ids, table.data, table.fmt, count, table.rows, row_bytes, table.cols, failure)
