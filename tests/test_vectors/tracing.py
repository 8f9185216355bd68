"""Helpers of the trace tests: recordings of the diagnostic model, with and without faults, and their blame results."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import cache
from typing import Any

import numpy as np

from ds4ref.archs.deepseek4.hooks import Recorder
from ds4ref.engine import Engine
from ds4ref.nano.diagnostic import PROMPTS, diagnostic_path
from ds4ref.test_vectors.trace.blame import BlameResult, Blaming, blame
from ds4ref.test_vectors.trace.causes import explain
from ds4ref.test_vectors.trace.dumps import Dump, DumpChunk
from ds4ref.test_vectors.trace.names import guess
from ds4ref.test_vectors.trace.ops import OPS
from ds4ref.test_vectors.trace.record import record
from ds4ref.test_vectors.trace.theirs import Theirs
from ds4ref.variants import LIBRARY, Fault

IDS = PROMPTS["mixed"]()


class Bent(Recorder):
    """A recorder of a pass into which faults (bugs) are injected."""

    def __init__(self, faults: Sequence[Fault], layers: set[int]):
        super().__init__(layers=layers)
        self.bent = [fault.hooks() for fault in faults]

    def begin(self, chunk: Any) -> None:
        for part in self.bent:
            part.begin(chunk)

    def tap(self, name: str, layer: int, value: Any, chunk: Any) -> Any:
        for part in self.bent:
            value = part.tap(name, layer, value, chunk)
        return super().tap(name, layer, value, chunk)


def stored(tensors: dict[str, np.ndarray], kind: str) -> dict[str, np.ndarray]:
    """Return tensors stored in a 16-bit type: as float16, or for bfloat16 rounded but with dtype float32."""

    def bits(values: np.ndarray) -> np.ndarray:
        raw = values.view(np.uint32)
        return ((raw + 0x7FFF + ((raw >> 16) & 1)) & 0xFFFF0000).view(np.float32)

    def one(values: np.ndarray) -> np.ndarray:
        if values.dtype.kind != "f":
            return values
        with np.errstate(over="ignore"):
            return values.astype(np.float16) if kind == "float16" else bits(values)

    return {name: one(values) for name, values in tensors.items()}


def rounding(kind: str) -> Fault:
    """Return a fault that makes an engine compute in a 16-bit type: it rounds all points except top-k choices."""

    def rounded(value: Any, layer: int, chunk: Any, taps: Any) -> Any:
        parts = value if isinstance(value, tuple) else (value,)
        parts = tuple(None if part is None else stored({"": part}, kind)[""].astype(part.dtype) for part in parts)
        return parts if isinstance(value, tuple) else parts[0]

    keep = {"raw_window", "comp_count", "indexer_rows", "attn_sinks", "ffn_moe_topk", "indexer_topk"}
    return Fault("computes_in", kind, edits=dict.fromkeys(set(OPS) - keep, rounded))


@cache
def engine(numerics: str = "exact", backend: str = "cpu", path: str = "") -> Engine:
    """Open an engine once for the whole test run."""
    return Engine.open(path or diagnostic_path(), backend=backend, numerics=numerics, threads=1)


def recorded(
    numerics: str = "exact",
    faults: Sequence[str | Fault] = (),
    backend: str = "cpu",
    layers: Collection[int] | None = None,
    path: str = "",
    ids: Sequence[int] = IDS,
) -> dict[str, np.ndarray]:
    """Record tensors as ``trace record`` writes them."""
    bent = [LIBRARY[fault] if isinstance(fault, str) else fault for fault in faults]
    return record(engine(numerics, backend, path), ids, layers, watch=lambda wanted: Bent(bent, wanted))[0]


def as_dump(tensors: dict[str, np.ndarray], keep: Callable[[str], bool] = lambda name: True) -> Dump:
    """Return a dump in memory of the tensors that ``keep`` accepts."""
    dump = Dump("memory")
    for name, values in tensors.items():
        if keep(name):
            dump.add(name, DumpChunk(values.shape, values.dtype.name, lambda values=values: values))
    return dump


def examined(
    dump: Dump,
    layers: Collection[int] | None = None,
    numerics: str | None = None,
    search: bool = True,
    ids: Sequence[int] = IDS,
    path: str = "",
) -> BlameResult:
    """Blame a dump and explain the wrong ops; ``path``: a model other than the diagnostic one."""
    own_engine = engine(path=path)
    _, matches = guess(dump.tensors, own_engine.shape.n_layers)
    blaming = Blaming(own_engine, Theirs(dump, matches, own_engine.shape, len(ids)), ids, layers)
    result = blame(blaming, numerics)
    explain(blaming, result, search)
    return result


def names(result: BlameResult) -> list[str]:
    """Return the names of all causes, in order."""
    return [name for cause in result.causes for name in cause.names]
