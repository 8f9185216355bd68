"""A stage: some consecutive layers of a model with their caches, in one process.

It is a model of its own (``ModelShape.part``), whose layers are numbered from 0. ``do`` carries out one instruction of
the coordinator; its instructions are the public methods below ``do``. Not thread-safe.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from ..archs import arch_of
from ..archs.deepseek4.cache import Cache, Projections
from ..archs.deepseek4.shape import ARCHITECTURE, ModelShape
from ..archs.deepseek4.tensors import part_slots
from ..archs.deepseek4.weights import bind_part
from ..backends import load_backend
from ..decode import Decoder
from ..engine_options import EngineOptions
from ..environment import cpu_name, memory_bytes
from ..errors import ModelFileError
from ..numerics import numerics
from ..version import __version__
from ..weights import open_source
from ..weights.source import TensorSource, architecture
from .digest import tensors_digest


class StageSpec(NamedTuple):
    """What a worker is asked to hold: the file by its path on the worker, layers, and the engine's options."""

    path: str
    layers: range
    options: EngineOptions


class Facts(NamedTuple):
    """What a worker says about itself and its stage; ``digest`` is that of ``digest.tensors_digest``."""

    digest: str
    nbytes: int
    version: str
    processor: str
    kernels: str
    records: bool
    prefill_chunk: int | None
    threads: int


class Ranked(NamedTuple):
    """Ids and logits of the most likely next tokens after each row of a recorded pass."""

    best: list[list[int]]
    values: list[list[float]]


@dataclass
class StageSequence:
    """A sequence's cache, the recordings of its passes, and the outputs of the last one: streams (T, C, D), and logits
    (T, V) if it was recorded."""

    cache: Cache
    decoder: Decoder | None
    streams: Any = None
    logits: Any = None


def check_family(source: TensorSource) -> None:
    """Raise ModelFileError unless the file's layers can be split."""
    if architecture(source) != ARCHITECTURE:
        raise ModelFileError(source.path, f"a cluster runs {ARCHITECTURE} alone, not {architecture(source)[:40]!r}")


def part_digest(source: TensorSource, shape: ModelShape, layers: range) -> tuple[str, int]:
    """Return a digest of a model's shape, which is all the metadata that its pass depends on, and of the tensors of
    ``layers``; and their bytes."""
    names = [slot.name for slot in part_slots(shape, layers)]
    size = sum(source.tensors[name].nbytes for name in names if name in source.tensors)
    return tensors_digest(source, names, repr(replace(shape, name=""))), size


class Stage:
    """Layers ``spec.layers`` of a file, opened by ``open``."""

    def __init__(self, spec: StageSpec):
        """Map the file and load the backend; raise ModelFileError, ShapeError, BackendError."""
        self.source = open_source(spec.path)
        try:
            check_family(self.source)
            whole = arch_of(self.source).read_shape(self.source)
            weights = bind_part(self.source, whole, spec.layers)
            self.ops = load_backend(spec.options.backend, spec.options.threads)
            digest, size = part_digest(self.source, whole, spec.layers)
            memory = memory_bytes()
            advise = memory is not None and size > memory
            part, mode = whole.part(spec.layers), numerics(spec.options.numerics)
            self.model: Any = arch_of(self.source).model(part, weights, self.ops, mode, advise)
        except BaseException:
            self.source.close()
            raise
        self.is_first, self.is_last = weights.token_embd is not None, weights.output is not None
        self._sequences: dict[int, StageSequence] = {}
        self._snapshots: dict[int, Any] = {}
        records, chunk = self.ops.record() is not None, getattr(self.ops, "prefill_chunk", None)
        self.facts = Facts(
            digest, size, __version__, cpu_name(), _kernels(spec.options.backend), records, chunk, self.ops.threads
        )  # fmt: skip

    def do(self, name: str, *arguments: Any, incoming: np.ndarray | None = None) -> tuple[Any, float]:
        """Carry out an instruction and return its result and the seconds it took; ``incoming`` as in ``run``."""
        begun = time.perf_counter()
        further = {} if incoming is None else {"incoming": incoming}
        result = getattr(self, name)(*arguments, **further)
        return result, time.perf_counter() - begun

    # --- sequences

    def open(self, key: int, ctx: int) -> None:
        """Begin sequence ``key`` with an empty cache for ``ctx`` tokens."""
        cache = self.model.cache(ctx)
        self._sequences[key] = StageSequence(cache, Decoder.of(self.model, cache))

    def drop(self, sequences: Sequence[int], snapshots: Sequence[int]) -> None:
        """Forget sequences and snapshots."""
        for key in sequences:
            self._sequences.pop(key, None)
        for key in snapshots:
            self._snapshots.pop(key, None)

    def run(
        self, key: int, ids: Sequence[int], recorded: bool, ranks: int, incoming: np.ndarray | None = None
    ) -> np.ndarray | Ranked | None:
        """Advance a sequence by ``ids``; return the streams (T, C, D) for the next stage, from the last one the ranking
        of a recorded pass.

        incoming: streams of the stage before.
        """
        sequence = self._sequences[key]
        sequence.streams = sequence.logits = None
        if recorded and sequence.decoder is not None:
            sequence.decoder.ranks = max(ranks, sequence.decoder.ranks)
            (rows,) = sequence.decoder.run(ids, incoming=incoming)
            if not self.is_last:
                return rows.streams.copy()  # on its way while the recording is replayed for the next token
            sequence.streams, sequence.logits = rows.streams, rows.logits
            return Ranked(rows.best, rows.values)
        streams = self.model.forward(np.asarray(ids, np.int32), sequence.cache, incoming=incoming)
        if not self.is_last:
            return self.ops.host(streams)
        sequence.streams = streams
        return None

    def prepare(self, key: int, positions: Sequence[int]) -> int:
        """Make the recordings of a sequence that single tokens at ``positions`` need; return the number made."""
        decoder = self._sequences[key].decoder
        return 0 if decoder is None else decoder.prepare(positions)

    def streams(self, key: int, start: int, stop: int) -> np.ndarray:
        """Return the final streams of rows of the last pass, (n, C, D)."""
        return np.array(self.ops.host(self._sequences[key].streams[start:stop]))

    def logits(self, key: int, start: int, stop: int) -> np.ndarray:
        """Return the logits of rows of the last pass, (n, V)."""
        sequence = self._sequences[key]
        if sequence.logits is not None:
            return np.array(self.ops.host(sequence.logits[start:stop]))
        pos0 = sequence.cache.pos - len(sequence.streams) + start
        return self.ops.host(self.model.logits(sequence.streams[start:stop], pos0))

    def rewind(self, key: int, pos: int) -> None:
        """Set a sequence back to ``pos``."""
        self._sequences[key].cache.rewind(pos)

    def rewindable(self, key: int, pos: int) -> bool:
        """Return whether ``rewind`` is possible."""
        return self._sequences[key].cache.rewindable(pos)

    def snapshot(self, key: int, number: int) -> None:
        """Keep the state of a sequence as snapshot ``number``."""
        self._snapshots[number] = self._sequences[key].cache.snapshot()

    def reset(self, key: int, number: int) -> None:
        """Restore a sequence from a snapshot."""
        sequence = self._sequences[key]
        sequence.cache.reset(self._snapshots[number])
        sequence.streams = sequence.logits = None

    # --- saved sessions, and numbers

    def rows(self, key: int, layer: int) -> tuple[np.ndarray, dict[str, tuple[np.ndarray, Projections]]]:
        """Return a layer's attention rows, and by compressor its compressed rows and its open windows."""
        cache = self._sequences[key].cache
        kinds = cache.layers[layer].projections
        return cache.raw_rows(layer), {
            kind: (np.array(cache.compressed(layer, kind)), cache.waiting(layer, kind)) for kind in kinds
        }

    def restart(self, key: int, pos: int) -> None:
        """Set an empty sequence to ``pos``, for ``put``."""
        self._sequences[key].cache.restart(pos)

    def put(self, key: int, layer: int, compressed: dict[str, np.ndarray], raw: np.ndarray, projections: dict) -> None:
        """Write a layer's rows, as ``archs.deepseek4.cache`` takes them."""
        cache = self._sequences[key].cache
        for kind, rows in compressed.items():
            cache.put_compressed(layer, kind, rows)
        cache.put(layer, raw, {kind: Projections(*rows) for kind, rows in projections.items()})

    def nbytes(self, key: int) -> int:
        """Return the bytes of a sequence's cache."""
        return self._sequences[key].cache.nbytes

    def counts(self) -> np.ndarray:
        """Return how often each routed expert was chosen, (layers, experts)."""
        return np.array(self.ops.host(self.model.experts.counts))

    def set_threads(self, count: int) -> None:
        """Compute with ``count`` threads."""
        self.ops.threads = count

    def close(self) -> None:
        """Drop all sequences, close the model and unmap the file."""
        self._sequences, self._snapshots = {}, {}
        self.model.close()
        self.source.close()


def _kernels(backend: str) -> str:
    """Return the kind of machine code that a backend runs here: results of another kind may differ in last bits."""
    if backend != "cpu":
        return backend
    from ds4ref.kernels.cpu.simd.tiers import TIER

    return f"tier {TIER}"
