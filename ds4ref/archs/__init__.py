"""Model families: the interface between an architecture and the engine, its sessions and the tools.

An ``Arch`` is a family; ``arch_of`` returns the one that a model file names in its metadata key
``general.architecture``. A family's model runs chunks of tokens on the family's own kind of cache; sessions, decoding,
snapshots and saving use only the methods declared here, so they work with every family.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from importlib import import_module
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

from ..errors import ModelFileError, UsageError
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
    "deepseek41": "ds4ref.archs.deepseek41:ARCH",
    "gemma3": "ds4ref.archs.dense.families:GEMMA3",
    "llama": "ds4ref.archs.dense.families:LLAMA",
    "qwen2": "ds4ref.archs.dense.families:QWEN2",
    "qwen3": "ds4ref.archs.dense.families:QWEN3",
    "qwen3moe": "ds4ref.archs.dense.families:QWEN3_MOE",
}
"""Where each family is defined, as "module:object"; the key is its name in ``general.architecture``."""


class Cache(Protocol):
    """The KV cache of one sequence of tokens, filled up to position ``pos``."""

    pos: int
    moves: int
    """Number of times a buffer was replaced. A change makes recorded passes unusable, as they hold buffer addresses."""

    def reserve(self, count: int) -> None:
        """Make room for ``count`` tokens after ``pos``; raise ContextError if they exceed the context."""

    def advance(self, count: int) -> None:
        """Move ``pos`` forward by ``count`` tokens, after their cache rows have been written."""

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
        """Return the cache arrays that a pass reads and writes, in the same order for all caches of a model."""

    @property
    def nbytes(self) -> int:
        """Return the number of cache bytes in use."""


class Model(Protocol):
    """The immutable part of a model, shared by all sessions.

    Below, ``streams`` are the hidden states after the last layer, which ``forward`` returns and ``logits`` takes.
    """

    shape: Any
    weights: Any
    ops: Backend
    numerics: Numerics
    experts: Any
    steering: Directions | None = None
    """Directions by which attention and FFN outputs are changed, None without steering. Set only on a copy of the
    model, before its first session (``Engine.steered``)."""
    closed: bool = False
    """Whether the engine was closed; its sessions then raise SessionError."""

    def places(self) -> list[dict[str, Any]] | None:
        """Return, for a model spread over several machines, which worker has which layers; None on one machine."""
        return None

    def decoder(self, *caches: Any) -> Any:
        """Return the object that runs passes of a few tokens on these caches; None to use ``decode.Decoder``."""
        return None

    def last(self, X: Any, count: int) -> Any:
        """Return a copy of the streams of the last ``count`` tokens of X, so that the rest of X can be freed."""
        return self.ops.upload(self.ops.host(X[-count:]).copy())

    def save(self, file: BinaryIO | str | os.PathLike[str], tokens: Sequence[int], logits: np.ndarray, cache: Any):
        """Write a session (tokens, last logits, cache) to a path or an open file."""

    def load(self, file: BinaryIO | str | os.PathLike[str], cache: Any) -> tuple[list[int], np.ndarray]:
        """Read a session into an empty cache and return its tokens and logits (vocab,); raise PayloadError for a bad
        file."""

    def saved_bytes(self, tokens: int) -> int:
        """Return the size in bytes of a saved session of ``tokens`` tokens."""

    def close(self) -> None:
        """Stop the threads that read experts from the file, if there are any."""
        self.experts.close()

    def cache(self, ctx: int, exact: bool = False) -> Any:
        """Return an empty cache for ``ctx`` tokens; ``exact`` stores all cached values in float32."""

    def forward(self, ids: np.ndarray, cache: Any, hooks: Any = None, cancel: Callable[[], bool] | None = None) -> Any:
        """Run tokens ids (T,) through all layers, advance ``cache`` by T, and return their streams, token axis
        first.

        hooks: see and may replace intermediates. Raise Cancelled if ``cancel()``, called between layers, is true.
        """

    def logits(self, X: Any, pos0: int = 0, hooks: Any = None) -> Any:
        """Compute logits (T, vocab) float32, an array of the backend, from the streams X of T tokens, the first one at
        position ``pos0``."""

    def plan_rows(self, cache: Any, pos: int, count: int) -> tuple[Any, Hashable]:
        """Return a plan for a pass of ``count`` tokens at ``pos``, the decisions that depend on their positions, and a
        key: passes with equal keys can replay the same recording."""

    def record_rows(
        self, recording: Any, caches: Sequence[Any], counts: Sequence[int], plans: Sequence[Any]
    ) -> tuple[Any, Any, Inputs]:
        """Record the ops of a pass of T tokens in all: ``counts`` tokens, planned by ``plans``, for each of ``caches``.

        Return the pass's streams (T, ...), its logits (T, vocab) and its inputs; for a model without an output head
        its state, a tuple of arrays, None and its inputs. All arrays must be results of ops other than ``embed``. The
        caller, ``ds4ref.decode``, completes the recording.
        """


class Arch(ABC):
    """A model family. Its code is in the folder ``package``: the modules ``weights``, ``forward``, ``costs`` and
    ``report``, which are imported on first use."""

    package: str
    rounds_inputs = True
    """Whether it is known how an engine rounds the inputs of this family's matrices (mode ds4)."""

    @abstractmethod
    def read_shape(self, source: TensorSource, strict: bool = False) -> Any:
        """Read the dimensions from a file's metadata.

        Raise ShapeError if they do not fit together or, if ``strict``, are not those of the family's published model.
        """

    def part(self, name: str) -> Any:
        """Import and return the module ``name`` of the family's folder."""
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

        advise    tell the operating system, once routed experts are chosen, that their pages will be read
        resident  the cache of the routed experts of ``weights`` (``experts.cached``), used instead of ``advise``
        """
        self.check_numerics(numerics)
        made: Model = self.part("forward").Model(shape, weights, ops, numerics, advise, resident)
        return made

    def model_of(
        self, whole: Any, layers: range, weights: Any, ops: Backend, numerics: Numerics, advise: bool = False
    ) -> Model:
        """Return a runnable model of some consecutive ``layers`` of a model of shape ``whole``; ``weights``: theirs
        (``bind_part``)."""
        return self.model(whole.part(layers), weights, ops, numerics, advise)

    def check_numerics(self, numerics: Numerics) -> None:
        """Raise UsageError for a numerics mode that is not known for this family."""
        if numerics.act_quant and not self.rounds_inputs:
            raise UsageError(f"numerics {numerics.name} is not known for {self.package}: use exact or qat")

    def kernels(self, source: TensorSource, shape: Any, act_quant: bool) -> set[str]:
        """Return the groups of kernels that a model needs, for ``load_backend``: the formats of its matrices, the
        family's, those for experts, and those for inputs rounded to integers if ``act_quant``."""
        more = {self.package: True, "experts": shape.n_experts > 0, "integers": act_quant}
        formats = {info.fmt.name for info in source.tensors.values() if len(info.dims) > 1}
        return formats | {name for name, used in more.items() if used}

    def collector(self, shape: Any) -> Any:
        """Return hooks that collect the data of an importance matrix (``importance.Collector``)."""
        from .importance import Collector

        weights = self.part("weights")
        return Collector(weights.READERS, weights.slots(shape), shape.n_experts)

    def costs(self, source: TensorSource, shape: Any, act_quant: bool = True) -> Costs:
        """Return the cost model: bytes read and operations done per token.

        act_quant: whether inputs of quantized matrices are rounded to int8.
        """
        costs: Costs = self.part("costs").Costs.of_file(source, shape, act_quant)
        return costs


def arch_of(source: TensorSource) -> Arch:
    """Return the family of a model file; raise ModelFileError for an unknown ``general.architecture``."""
    name = architecture(source)
    if name in NOT_MODELS:
        raise ModelFileError(source.path, f"is {NOT_MODELS[name]}")
    if name not in ARCHS:
        raise ModelFileError(source.path, f"architecture {name[:40]!r} is not one of {', '.join(ARCHS)}")
    arch: Arch = resolve_name(ARCHS[name])
    return arch


def costs_of(source: TensorSource, act_quant: bool = True) -> Costs:
    """Return the cost model (bytes and operations per token) of a model file; raise ModelFileError or ShapeError.

    act_quant: whether inputs of quantized matrices are rounded to int8.
    """
    arch = arch_of(source)
    return arch.costs(source, arch.read_shape(source), act_quant)


__all__ = ["ARCHS", "Arch", "Cache", "Model", "arch_of", "costs_of"]
