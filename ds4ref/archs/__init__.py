"""Model families: the interface between an architecture and the engine, its sessions and the tools.

An ``Arch`` is a module with the names below; ``arch_of`` finds the one a model file names in
``general.architecture``. A model made by it computes chunks of tokens on caches that only it understands; sessions,
decoding, snapshots and saving work on any.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

from ..errors import ModelFileError
from ..weights.source import architecture

if TYPE_CHECKING:
    import numpy as np

    from ds4ref.kernels.ops import Backend

    from ..costs import Costs
    from ..numerics import Numerics
    from ..weights.source import TensorSource
    from .inputs import Inputs

ARCHS = {
    "deepseek4": "ds4ref.archs.deepseek4",
    "llama": "ds4ref.archs.llama",
    "qwen3": "ds4ref.archs.qwen3",
}
"""Module of each family, by its name in model files."""


class Shape(Protocol):
    """Dimensions that the models of all families have."""

    @property
    def name(self) -> str: ...
    @property
    def n_layers(self) -> int: ...
    @property
    def dim(self) -> int: ...
    @property
    def vocab(self) -> int: ...


class Cache(Protocol):
    """The cached state of a timeline at position ``pos``."""

    pos: int
    moves: int
    """Incremented whenever a buffer is replaced."""

    def reserve(self, count: int) -> None:
        """Make room for ``count`` tokens after ``pos``. ContextError beyond the context."""

    def advance(self, count: int) -> None:
        """Record that ``count`` tokens after ``pos`` were computed."""

    def rewindable(self, pos: int) -> bool:
        """Return whether ``rewind(pos)`` is possible."""

    def rewind(self, pos: int) -> None:
        """Return to ``pos`` without computing anything."""

    def snapshot(self) -> Any:
        """Return a snapshot of this frontier, for ``reset`` of this or another cache of the model."""

    def reset(self, snapshot: Any) -> None:
        """Restore a frontier. ContextError, with nothing changed, if it does not fit."""

    def buffers(self) -> list[Any]:
        """Return the arrays that the pass of a token reads and writes, in the same order for all caches of a model."""

    @property
    def nbytes(self) -> int:
        """Bytes in use."""


class Model(Protocol):
    """The immutable part of a model, shared by all sessions. ``streams`` are the output of ``forward`` for
    ``logits``."""

    shape: Any
    weights: Any
    ops: Backend
    numerics: Numerics
    experts: Any

    def cache(self, ctx: int, exact: bool = False) -> Any:
        """Return an empty cache for ``ctx`` tokens; ``exact``: store everything in float32."""

    def forward(self, ids: np.ndarray, cache: Any, hooks: Any = None, cancel: Callable[[], bool] | None = None) -> Any:
        """Advance ``cache`` by tokens ids (T,) and return their streams, token axis first."""

    def logits(self, X: Any, pos0: int = 0, hooks: Any = None) -> Any:
        """Compute logits (T, vocab) float32 of the streams of tokens from ``pos0`` on, as an array of the backend."""

    def plan_token(self, cache: Any) -> tuple[Any, Hashable]:
        """Return what the next token's pass depends on from its position, and a key that is equal for equal passes."""

    def record_token(self, recording: Any, cache: Any, plan: Any) -> tuple[Any, Any, Inputs]:
        """Record the pass of one token; return its streams (1, ...), its logits (1, vocab) and its inputs.

        Both arrays must be results of ops other than ``embed``. ``ds4ref.decode`` seals the recording.
        """

    def save(self, file: BinaryIO | str | os.PathLike[str], tokens: Sequence[int], logits: np.ndarray, cache: Any):
        """Write a session."""

    def load(self, file: BinaryIO | str | os.PathLike[str], cache: Any) -> tuple[list[int], np.ndarray]:
        """Read a session into an empty cache and return tokens and logits. PayloadError says why not."""

    def saved_bytes(self, tokens: int) -> int:
        """Return the size of a saved session in bytes."""


class Arch(Protocol):
    """Interface of a family's module."""

    def read_shape(self, source: TensorSource, strict: bool = False) -> Any:
        """Read the dimensions of a file.

        ShapeError if they do not fit together or, if ``strict``, are not those of the family's published model.
        """

    def bind(self, source: TensorSource, shape: Any) -> Any:
        """Return the weights of a file. Raises ShapeError or ModelFileError."""

    def model(self, shape: Any, weights: Any, ops: Backend, numerics: Numerics, advise: bool = False) -> Model:
        """Return a model that computes."""

    def costs(self, source: TensorSource, shape: Any, act_quant: bool) -> Costs:
        """Return the bytes and operations of its tokens."""


class Collector(Protocol):
    """Hooks that add up the squares of the inputs of a pass's matrices.

    A family whose pass takes hooks may offer ``collector(shape)`` beside the names of ``Arch``; importance of weights
    is collected with it (``ds4ref.importance``).
    """

    sums: dict[str, tuple[np.ndarray, np.ndarray]]
    """By tensor: sums of squares float64 (vectors, cols), and the number of inputs of each (vectors,)."""

    routes: int
    """Number of (token, expert) routes so far."""


def arch_of(source: TensorSource) -> Arch:
    """Return the family of a model file; ModelFileError if this engine does not know it."""
    name = architecture(source)
    if name not in ARCHS:
        raise ModelFileError(source.path, f"architecture {name[:40]!r} is not one of {', '.join(ARCHS)}")
    return importlib.import_module(ARCHS[name])


def costs_of(source: TensorSource, act_quant: bool = True) -> Costs:
    """Return the bytes and operations of a model file's tokens. Raises ModelFileError or ShapeError.

    ``act_quant``: quantized matrices take int8 inputs.
    """
    arch = arch_of(source)
    costs: Costs = arch.costs(source, arch.read_shape(source), act_quant)
    return costs


__all__ = ["ARCHS", "Arch", "Cache", "Collector", "Model", "Shape", "arch_of", "costs_of"]
