"""What kernels of products are given: matrices, which of them belong to which inputs, packed inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple


class Matrices(NamedTuple):
    """One or two matrices or stacks of one format (``rows2`` is 0 for one) and where results go."""

    raw: Any
    raw2: Any
    rows: int
    rows2: int
    row_bytes: int
    n: int
    out: Any
    out2: Any


class Routing(NamedTuple):
    """Which matrix and which inputs belong to a pair.

    Of pair p, result o is the sum over slots s of row o of a matrix times input (p slots + s) // share. The matrix is
    number ids[p slots + s] of ``experts``; if there are none, p mod ``groups``. ``error[0]`` becomes ``failure`` if an
    id is not below ``experts``.
    """

    ids: Any
    experts: int
    groups: int
    slots: int
    share: int
    error: Any
    failure: int


class Inputs(NamedTuple):
    """Packed inputs (``packing``); where nothing is needed, any array of the kind."""

    codes: Any
    scales: Any
    sums: Any


class Weights(NamedTuple):
    """A matrix, or the first of a stack, of ``rows`` rows, and where the results of its products go."""

    raw: Any
    rows: int
    out: Any


def matrices_of(weights: Sequence[Weights], row_bytes: int, n: int) -> Matrices:
    """One or two ``weights`` as kernels take them."""
    first, second = weights[0], weights[1] if len(weights) > 1 else weights[0]._replace(rows=0)
    return Matrices(first.raw, second.raw, first.rows, second.rows, row_bytes, n, first.out, second.out)
