"""Operands of product kernels: matrices, routing of inputs to matrices, packed inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple


class Matrices(NamedTuple):
    """One or two matrices or stacks of one format (``rows2`` is 0 for one) and their output arrays."""

    raw: Any
    raw2: Any
    rows: int
    rows2: int
    row_bytes: int
    n: int
    out: Any
    out2: Any


class Routing(NamedTuple):
    """Which matrix and which inputs a product takes for each pair, so that one kernel serves plain, grouped and expert
    products.

    Result o of pair p is the sum, over s below ``slots``, of row o of a matrix times input (p slots + s) // share. The
    matrix is number ids[p slots + s] of ``experts`` or, without experts, number p mod ``groups``. ``error[0]`` becomes
    ``failure`` if an id is not below ``experts``.
    """

    ids: Any = None
    error: Any = None
    experts: int = 0
    groups: int = 1
    slots: int = 1
    share: int = 1
    failure: int = 0


class Inputs(NamedTuple):
    """Packed inputs (``packing``); in place of arrays that a kernel does not need, any array of that type."""

    codes: Any
    scales: Any
    sums: Any


class Weights(NamedTuple):
    """The raw bytes of a matrix (or stack of matrices) of ``rows`` rows, and the output array of its products."""

    raw: Any
    rows: int
    out: Any


def matrices_of(weights: Sequence[Weights], row_bytes: int, n: int) -> Matrices:
    """Return one or two ``weights`` in the form in which kernels take them."""
    first, second = weights[0], weights[1] if len(weights) > 1 else weights[0]._replace(rows=0)
    return Matrices(first.raw, second.raw, first.rows, second.rows, row_bytes, n, first.out, second.out)
