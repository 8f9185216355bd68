"""Model families: what the engine, its sessions and the tools need to know of each, behind one door.

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

if TYPE_CHECKING:
    import numpy as np

    from kernels.ops import Backend

    from ..numerics import Numerics
    from ..weights.source import TensorSource

ARCHS = {
    "deepseek4": "ds4ref.archs.deepseek4",
    "llama": "ds4ref.archs.llama",
    "qwen3": "ds4ref.archs.qwen3",
}
"""Module of each family, by the name that model files give it."""


class Shape(Protocol):
    """Every dimension of a model; what all families have."""

    @property
    def name(self) -> str: ...
    @property
    def n_layers(self) -> int: ...
    @property
    def dim(self) -> int: ...
    @property
    def vocab(self) -> int: ...


class Cache(Protocol):
    """What a timeline remembers at position ``pos``."""

    pos: int
    moves: int
    """Grows whenever a buffer is another one than before."""

    def reserve(self, count: int) -> None:
        """Make room for ``count`` tokens after ``pos``. ContextError if there is none."""

    def advance(self, count: int) -> None:
        """``count`` tokens after ``pos`` were computed."""

    def rewindable(self, pos: int) -> bool:
        """Whether ``rewind(pos)`` is possible."""

    def rewind(self, pos: int) -> None:
        """Back to ``pos`` without computing anything."""

    def snapshot(self) -> Any:
        """This frontier, for ``reset`` of this or another cache of the model."""

    def reset(self, snapshot: Any) -> None:
        """To a frontier. ContextError, with nothing changed, if it does not fit."""

    @property
    def nbytes(self) -> int:
        """Bytes in use."""


class Model(Protocol):
    """The immutable part, shared by all sessions. ``streams`` are what ``forward`` leaves for ``logits``."""

    shape: Any
    weights: Any
    ops: Backend
    numerics: Numerics
    experts: Any

    def cache(self, ctx: int, exact: bool = False) -> Any:
        """An empty cache for ``ctx`` tokens; ``exact``: store everything in float32."""

    def forward(self, ids: np.ndarray, cache: Any, hooks: Any = None, cancel: Callable[[], bool] | None = None) -> Any:
        """Advance ``cache`` by tokens ids (T,); their streams, token axis first."""

    def logits(self, X: Any, pos0: int = 0, hooks: Any = None) -> Any:
        """Streams of tokens from ``pos0`` on -> logits (T, vocab) float32, where the backend keeps them."""

    def plan_token(self, cache: Any) -> tuple[Any, Hashable]:
        """What the pass of the next token decides from its position, and a key equal for equal decisions."""

    def record_token(self, recording: Any, cache: Any, plan: Any) -> tuple[Any, Any, Callable[[int, int], None]]:
        """Record that pass: its streams (1, ...) and logits (1, vocab), which are results of ops other than ``embed``,
        and ``move(token, pos)``. ``ds4ref.decode`` seals the recording."""

    def save(self, file: BinaryIO | str | os.PathLike[str], tokens: Sequence[int], logits: np.ndarray, cache: Any):
        """Write a session."""

    def load(self, file: BinaryIO | str | os.PathLike[str], cache: Any) -> tuple[list[int], np.ndarray]:
        """Read a session into an empty cache: tokens and logits. PayloadError says why not."""

    def saved_bytes(self, tokens: int) -> int:
        """Size of a saved session."""


class Arch(Protocol):
    """A family: the names its module offers."""

    def read_shape(self, source: TensorSource, strict: bool = False) -> Any:
        """The dimensions a file declares; ShapeError if they do not fit together, or, if ``strict``, are not those of
        the family's published model."""

    def bind(self, source: TensorSource, shape: Any) -> Any:
        """The weights of a file. ShapeError, ModelFileError."""

    def model(self, shape: Any, weights: Any, ops: Backend, numerics: Numerics, advise: bool = False) -> Model:
        """A model that computes."""

    def costs(self, source: TensorSource, shape: Any, act_quant: bool) -> Any:
        """Bytes and operations of its tokens (``ds4ref.costs.Costs``)."""


class Collector(Protocol):
    """Hooks that add up the squares of what the matrices of a pass read.

    A family whose pass takes hooks may offer ``collector(shape)`` beside the names of ``Arch``; importance of weights
    is collected with it (``ds4ref.importance``).
    """

    sums: dict[str, tuple[np.ndarray, np.ndarray]]
    """By tensor: sums of squares float64 (vectors, cols), and how many inputs each is over (vectors,)."""

    routes: int
    """Tokens times experts that were seen."""


def architecture(source: TensorSource) -> str:
    """What a file says it is; files that do not say are of the first family."""
    key = "general.architecture"
    if source.metadata.type_of(key) != "string":
        return next(iter(ARCHS))
    return source.metadata[key]


def arch_of(source: TensorSource) -> Arch:
    """The family of a model file; ModelFileError if this engine does not know it."""
    name = architecture(source)
    if name not in ARCHS:
        raise ModelFileError(source.path, f"architecture {name[:40]!r} is not one of {', '.join(ARCHS)}")
    return importlib.import_module(ARCHS[name])


__all__ = ["ARCHS", "Arch", "Cache", "Collector", "Model", "Shape", "arch_of", "architecture"]
