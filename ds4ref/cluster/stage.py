"""A stage: some consecutive layers of a model with their caches, in one process.

It is a model of its own (``ModelShape.part``), whose layers are numbered from 0; in V4.1 the first may be an earlier
one whose rows they read. ``do`` carries out an instruction of the coordinator, which is one of the public methods below
it. Stages are not thread-safe.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from ..archs import arch_of
from ..archs.deepseek4.cache import Cache, Projections
from ..archs.deepseek4.dimensions import Dimensions
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

FAMILIES = ("deepseek4", "deepseek41")
"""Architectures whose layers can be distributed over stages."""


class StageSpec(NamedTuple):
    """What a worker should load: path of the model file on the worker, layers, and options of the engine."""

    path: str
    layers: range
    options: EngineOptions


class Facts(NamedTuple):
    """What a worker reports about itself and its stage.

    digest          digest of the stage's tensors, and their size in bytes, ``nbytes`` (``part_digest``)
    kernels         kind of machine code that it runs (``_kernels``)
    records         whether the backend can record the operations of a pass and replay them
    prefill_chunk   number of tokens in a prefill chunk, None if the backend has no preference
    """

    digest: str
    nbytes: int
    version: str
    processor: str
    kernels: str
    records: bool
    prefill_chunk: int | None
    threads: int


class Ranked(NamedTuple):
    """The most likely next tokens after each token of a recorded pass: ids (``best``) and logits (``values``)."""

    best: list[list[int]]
    values: list[list[float]]


@dataclass
class StageSequence:
    """A sequence on a stage: its caches, recordings of operations, and on the last stage the outputs of its last pass.

    decoder   replays recorded passes of single tokens, None if the backend cannot record
    streams   what the output head takes: residual streams (T, C, D), or their weighted sum
    logits    logits (T, vocab), None unless the pass was recorded
    """

    cache: Cache
    decoder: Decoder | None
    streams: Any = None
    logits: Any = None


def check_family(source: TensorSource) -> None:
    """Raise ModelFileError unless the layers of models of this architecture can be distributed over stages."""
    name = architecture(source)
    if name not in FAMILIES:
        raise ModelFileError(source.path, f"a cluster runs {' and '.join(FAMILIES)} alone, not {name[:40]!r}")


def part_digest(source: TensorSource, shape: Dimensions, layers: range) -> tuple[str, int]:
    """Return (digest, size in bytes) of the tensors of ``layers``.

    The digest also covers the model's shape, which has all metadata of the file that results depend on.
    """
    names = [slot.name for slot in arch_of(source).part("weights").part_slots(shape, layers)]
    size = sum(source.tensors[name].nbytes for name in names if name in source.tensors)
    return tensors_digest(source, names, repr(replace(shape, name=""))), size


class Stage:
    """The layers ``spec.layers`` of a model file, with the caches of any number of sequences."""

    def __init__(self, spec: StageSpec):
        """Map the model file and load the backend; raise ModelFileError, ShapeError or BackendError if that fails."""
        self.source = open_source(spec.path)
        try:
            check_family(self.source)
            arch, mode = arch_of(self.source), numerics(spec.options.numerics)
            whole = arch.read_shape(self.source)
            weights = arch.part("weights").bind_part(self.source, whole, spec.layers)
            needs = arch.kernels(self.source, whole, mode.act_quant)
            self.ops = load_backend(spec.options.backend, spec.options.threads, formats=needs)
            digest, size = part_digest(self.source, whole, spec.layers)
            memory = memory_bytes()
            advise = memory is not None and size > memory
            self.model: Any = arch.model_of(whole, spec.layers, weights, self.ops, mode, advise)
            self._layers = len(spec.layers)
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
        """Call the method ``name`` with ``arguments``, and ``incoming`` if given; return its result and seconds."""
        begun = time.perf_counter()
        further = {} if incoming is None else {"incoming": incoming}
        result = getattr(self, name)(*arguments, **further)
        return result, time.perf_counter() - begun

    # --- sequences

    def open(self, key: int, ctx: int) -> None:
        """Create the sequence ``key`` with an empty cache for ``ctx`` tokens."""
        cache = self.model.cache(ctx)
        self._sequences[key] = StageSequence(cache, Decoder.of(self.model, cache))

    def drop(self, sequences: Sequence[int], snapshots: Sequence[int]) -> None:
        """Delete sequences and snapshots, given by their keys."""
        for key in sequences:
            self._sequences.pop(key, None)
        for key in snapshots:
            self._snapshots.pop(key, None)

    def run(
        self, key: int, ids: Sequence[int], recorded: bool, ranks: int, incoming: np.ndarray | None = None
    ) -> np.ndarray | Ranked | None:
        """Compute a pass of the tokens ``ids`` and append them to a sequence.

        recorded   replay it from a recording of operations, if the backend can record
        ranks      number of most likely next tokens to return
        incoming   state from the previous stage, None on the first stage

        Return the state (T, n) for the next stage; on the last one, the likeliest next tokens of a recorded pass,
        else None.
        """
        sequence = self._sequences[key]
        sequence.streams = sequence.logits = None
        if recorded and sequence.decoder is not None:
            sequence.decoder.ranks = max(ranks, sequence.decoder.ranks)
            (rows,) = sequence.decoder.run(ids, incoming=incoming)
            if not self.is_last:
                return self.model.joined(rows.streams, incoming)  # a copy: the next replay may overwrite them
            sequence.streams, sequence.logits = rows.streams, rows.logits
            return Ranked(rows.best, rows.values)
        streams = self.model.forward(np.asarray(ids, np.int32), sequence.cache, incoming=incoming)
        if not self.is_last:
            return self.model.joined(streams, incoming)
        sequence.streams = streams
        return None

    def prepare(self, key: int, positions: Sequence[int]) -> int:
        """Record the operations that single tokens at ``positions`` need; return the number of new recordings."""
        decoder = self._sequences[key].decoder
        return 0 if decoder is None else decoder.prepare(positions)

    def streams(self, key: int, start: int, stop: int) -> np.ndarray:
        """Return what the output head takes of the tokens [start, stop) of the last pass, (n, ...)."""
        return np.array(self.ops.host(self._sequences[key].streams[start:stop]))

    def logits(self, key: int, start: int, stop: int) -> np.ndarray:
        """Return the logits after the tokens [start, stop) of the last pass, (n, vocab)."""
        sequence = self._sequences[key]
        if sequence.logits is not None:
            return np.array(self.ops.host(sequence.logits[start:stop]))
        pos0 = sequence.cache.pos - len(sequence.streams) + start
        return self.ops.host(self.model.logits(sequence.streams[start:stop], pos0))

    def rewind(self, key: int, pos: int) -> None:
        """Go back to the state of a sequence after ``pos`` tokens."""
        self._sequences[key].cache.rewind(pos)

    def rewindable(self, key: int, pos: int) -> bool:
        """Return whether ``rewind`` to ``pos`` is possible."""
        return self._sequences[key].cache.rewindable(pos)

    def snapshot(self, key: int, number: int) -> None:
        """Keep the present state of sequence ``key`` as snapshot ``number``."""
        self._snapshots[number] = self._sequences[key].cache.snapshot()

    def reset(self, key: int, number: int) -> None:
        """Restore sequence ``key`` from snapshot ``number``."""
        sequence = self._sequences[key]
        sequence.cache.reset(self._snapshots[number])
        sequence.streams = sequence.logits = None

    # --- saved sessions, and numbers

    def rows(self, key: int, layer: int) -> tuple[np.ndarray, dict[str, tuple[np.ndarray, Projections | None]]]:
        """Return the uncompressed cache rows of a layer, given by its place in ``shape.cached``; and by compressor, its
        compressed rows and pending projections.

        Pending are those of the newest tokens, which are not yet compressed into a row; None where none wait.
        """
        cache = self._sequences[key].cache
        rings = cache.layers[layer].projections
        return cache.raw_rows(layer), {
            kind: (np.array(cache.compressed(layer, kind)), cache.waiting(layer, kind) if kind in rings else None)
            for kind in self.model.shape.row_widths(layer)
        }

    def restart(self, key: int, tokens: Sequence[int]) -> None:
        """Make ``tokens`` those of an empty sequence, before ``put`` writes their cache rows."""
        cache = self._sequences[key].cache
        cache.restart(len(tokens))
        cache.note(0, tokens)

    def put(self, key: int, layer: int, compressed: dict[str, np.ndarray], raw: np.ndarray, projections: dict) -> None:
        """Write a layer's cache rows (see ``rows``), to restore a saved session."""
        cache = self._sequences[key].cache
        for kind, rows in compressed.items():
            cache.put_compressed(layer, kind, rows)
        cache.put(layer, raw, {kind: Projections(*rows) for kind, rows in projections.items()})

    def nbytes(self, key: int) -> int:
        """Return the size of a sequence's caches in bytes."""
        return self._sequences[key].cache.nbytes

    def counts(self) -> np.ndarray:
        """Return how often each routed expert was chosen, (layers, experts)."""
        return np.array(self.ops.host(self.model.experts.counts))[-self._layers :]

    def set_threads(self, count: int) -> None:
        """Compute with ``count`` threads."""
        self.ops.threads = count

    def close(self) -> None:
        """Delete all sequences, close the model and unmap its file."""
        self._sequences, self._snapshots = {}, {}
        self.model.close()
        self.source.close()


def _kernels(backend: str) -> str:
    """Return the kind of machine code that a backend runs on this CPU; with another kind, last bits may differ."""
    if backend != "cpu":
        return backend
    from ds4ref.kernels.cpu.simd.tiers import TIER

    return f"tier {TIER}"
