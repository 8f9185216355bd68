"""Model families: the interface between an architecture and the engine, its sessions and the tools.

An ``Arch`` is a family; ``arch_of`` returns the one that a model file names in its metadata key
``general.architecture``. Its model runs chunks of tokens on its own kind of cache; sessions, decoding, snapshots and
saving use only the methods declared here, so they work with every family.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from importlib import import_module
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

from ..errors import ModelFileError
from ..weights.source import NOT_MODELS, architecture

if TYPE_CHECKING:
    import numpy as np

    from ds4ref.kernels.ops import Backend

    from ..costs import Costs
    from ..numerics import Numerics
    from ..residency.resident import ResidentExperts
    from ..weights.source import TensorSource
    from .inputs import Inputs
    from .steering import Directions

ARCHS = {
    "deepseek4": "ds4ref.archs.deepseek4:ARCH",
    "gemma3": "ds4ref.archs.dense.families:GEMMA3",
    "llama": "ds4ref.archs.dense.families:LLAMA",
    "qwen2": "ds4ref.archs.dense.families:QWEN2",
    "qwen3": "ds4ref.archs.dense.families:QWEN3",
    "qwen3moe": "ds4ref.archs.dense.families:QWEN3_MOE",
}
"""Module and object of each family, by its name in ``general.architecture``."""


class Cache(Protocol):
    """The KV cache of one sequence of tokens, filled up to position ``pos``."""

    pos: int
    moves: int
    """Number of times a buffer was replaced; a change invalidates recordings, which hold buffer addresses."""

    def reserve(self, count: int) -> None:
        """Make room for ``count`` tokens after ``pos``; raise ContextError if they exceed the context."""

    def advance(self, count: int) -> None:
        """Move ``pos`` forward by ``count`` tokens, whose rows have been written."""

    def rewindable(self, pos: int) -> bool:
        """Return whether ``rewind(pos)`` is possible, that is, whether everything a token at ``pos`` reads is still
        cached."""

    def rewind(self, pos: int) -> None:
        """Set the position back to ``pos`` without computing anything."""

    def snapshot(self) -> Any:
        """Return a snapshot of the cache at ``pos``, for ``reset`` of any cache of the same model."""

    def reset(self, snapshot: Any) -> None:
        """Restore the cache from a snapshot; raise ContextError, with nothing changed, if the snapshot does not fit."""

    def buffers(self) -> list[Any]:
        """Return the arrays that the pass of a token reads and writes, in the same order for all caches of a model."""

    @property
    def nbytes(self) -> int:
        """Return the number of cache bytes in use."""


class Model(Protocol):
    """The immutable part of a model, shared by all sessions.

    ``streams`` below are the hidden states that ``forward`` returns and ``logits`` takes.
    """

    shape: Any
    weights: Any
    ops: Backend
    numerics: Numerics
    experts: Any
    steering: Directions | None = None
    """What the half layers are steered with; set before the first session, on a copy (``Engine.steered``)."""
    closed: bool = False
    """Whether the engine was closed: its sessions say so."""

    def places(self) -> list[dict[str, Any]] | None:
        """Return the workers that have the layers, None on one machine."""
        return None

    def decoder(self, *caches: Any) -> Any:
        """Return what replays passes of a few tokens for these caches, None for the usual one (``decode.Decoder``)."""
        return None

    def last(self, X: Any, count: int) -> Any:
        """Copy the streams of the last ``count`` tokens, so that the memory of the others is released."""
        return self.ops.upload(self.ops.host(X[-count:]).copy())

    def save(self, file: BinaryIO | str | os.PathLike[str], tokens: Sequence[int], logits: np.ndarray, cache: Any):
        """Write a session (tokens, last logits, cache) to a path or an open file."""

    def load(self, file: BinaryIO | str | os.PathLike[str], cache: Any) -> tuple[list[int], np.ndarray]:
        """Read a session into an empty cache and return its tokens and logits (vocab,); raise PayloadError for a bad
        file."""

    def saved_bytes(self, tokens: int) -> int:
        """Return the size in bytes of a saved session of ``tokens`` tokens."""

    def close(self) -> None:
        """Stop reading experts."""
        self.experts.close()

    def cache(self, ctx: int, exact: bool = False) -> Any:
        """Return an empty cache for ``ctx`` tokens; ``exact`` stores all cached values in float32."""

    def forward(self, ids: np.ndarray, cache: Any, hooks: Any = None, cancel: Callable[[], bool] | None = None) -> Any:
        """Run tokens ids (T,) through all layers, advance ``cache`` by T, and return their streams, token axis
        first."""

    def logits(self, X: Any, pos0: int = 0, hooks: Any = None) -> Any:
        """Compute logits (T, vocab) float32, an array of the backend, of the streams of T tokens from position ``pos0``
        on."""

    def plan_rows(self, cache: Any, pos: int, count: int) -> tuple[Any, Hashable]:
        """Return the decisions that the positions of ``count`` tokens imply for their pass, and a key that is equal for
        equal passes."""

    def record_rows(
        self, recording: Any, caches: Sequence[Any], counts: Sequence[int], plans: Sequence[Any]
    ) -> tuple[Any, Any, Inputs]:
        """Record the ops of a pass of T rows, ``counts`` tokens of each of ``caches``; return its streams (T, ...), its
        logits (T, vocab) and its inputs.

        Both arrays must be results of ops other than ``embed``. ``ds4ref.decode`` seals the recording.
        """


class Arch(ABC):
    """A family: what is in the modules ``weights``, ``forward``, ``costs`` and ``report`` of its folder, ``package``,
    which are imported when they are needed."""

    package: str

    @abstractmethod
    def read_shape(self, source: TensorSource, strict: bool = False) -> Any:
        """Read the dimensions from a file's metadata.

        Raise ShapeError if they do not fit together or, if ``strict``, are not those of the family's published model.
        """

    def part(self, name: str) -> Any:
        """Return a module of the family."""
        return import_module(f".{self.package}.{name}", __name__)

    def bind(self, source: TensorSource, shape: Any) -> Any:
        """Return the weights of a file; raise ShapeError or ModelFileError if its tensors do not fit ``shape``."""
        return self.part("weights").bind(source, shape)

    def model(
        self,
        shape: Any,
        weights: Any,
        ops: Backend,
        numerics: Numerics,
        advise: bool = False,
        resident: ResidentExperts | None = None,
    ) -> Model:
        """Return a runnable model.

        advise    ask the system for routed experts once they are chosen
        resident  what reads the routed experts of ``weights`` (``experts.cached``), in place of that
        """
        made: Model = self.part("forward").Model(shape, weights, ops, numerics, advise, resident)
        return made

    def collector(self, shape: Any) -> Any:
        """Return hooks that collect the importance of the weights (``importance.Collector``)."""
        from .importance import Collector

        weights = self.part("weights")
        return Collector(weights.READERS, weights.slots(shape), shape.n_experts)

    def costs(self, source: TensorSource, shape: Any, act_quant: bool = True) -> Costs:
        """Return the cost model: bytes read and operations done per token; ``act_quant``: int8 inputs of quantized
        matrices."""
        costs: Costs = self.part("costs").Costs.of_file(source, shape, act_quant)
        return costs


def arch_of(source: TensorSource) -> Arch:
    """Return the family module of a model file; raise ModelFileError for an unknown ``general.architecture``."""
    name = architecture(source)
    if name in NOT_MODELS:
        raise ModelFileError(source.path, f"is {NOT_MODELS[name]}")
    if name not in ARCHS:
        raise ModelFileError(source.path, f"architecture {name[:40]!r} is not one of {', '.join(ARCHS)}")
    arch: Arch = resolve_name(ARCHS[name])
    return arch


def costs_of(source: TensorSource, act_quant: bool = True) -> Costs:
    """Return the cost model (bytes and operations per token) of a model file; raise ModelFileError or ShapeError.

    ``act_quant``: quantized matrices take int8 inputs.
    """
    arch = arch_of(source)
    return arch.costs(source, arch.read_shape(source), act_quant)


__all__ = ["ARCHS", "Arch", "Cache", "Model", "arch_of", "costs_of"]
