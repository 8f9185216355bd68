"""Shared by the tests of trace: recordings of the diagnostic model, whole or bent, and what is found in them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import cache

import numpy as np

from ds4ref.engine import Engine
from ds4ref.nano.diagnostic import PROMPTS, diagnostic_path
from ds4ref.variants import LIBRARY
from test_vectors.trace.blame import Case, Result, blame
from test_vectors.trace.causes import explain
from test_vectors.trace.dumps import Dump, Piece
from test_vectors.trace.names import guess
from test_vectors.trace.record import record
from test_vectors.trace.theirs import Theirs

IDS = PROMPTS["mixed"]()


@cache
def engine(numerics: str = "exact", backend: str = "cpu", path: str = "") -> Engine:
    """One engine each; they live as long as the test run."""
    return Engine.open(path or diagnostic_path(), backend=backend, numerics=numerics, threads=1)


def recorded(
    numerics: str = "exact",
    faults: Sequence[str] = (),
    backend: str = "cpu",
    layers: Collection[int] | None = None,
    path: str = "",
    ids: Sequence[int] = IDS,
) -> dict[str, np.ndarray]:
    """Tensors as ``trace record`` writes them."""
    bent = [LIBRARY[name] for name in faults]
    return record(engine(numerics, backend, path), ids, layers=layers, faults=bent)[0]


def as_dump(tensors: dict[str, np.ndarray], keep: Callable[[str], bool] = lambda name: True) -> Dump:
    """A dump in memory."""
    dump = Dump("memory")
    for name, values in tensors.items():
        if keep(name):
            dump.add(name, Piece(values.shape, values.dtype.name, lambda values=values: values))
    return dump


def examined(
    dump: Dump,
    layers: Collection[int] | None = None,
    numerics: str | None = None,
    search: bool = True,
    ids: Sequence[int] = IDS,
) -> Result:
    """What blame finds, with causes."""
    mine = engine()
    _, found = guess(dump.tensors, mine.shape.n_layers)
    case = Case(mine, Theirs(dump, found, mine.shape, len(ids)), ids, layers)
    result = blame(case, numerics)
    explain(case, result, search)
    return result


def names(result: Result) -> list[str]:
    """Everything named as a cause, the first cause's first."""
    return [name for cause in result.causes for name in cause.names]
