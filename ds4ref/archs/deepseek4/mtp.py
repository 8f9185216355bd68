"""The block for multi-token prediction: one more layer, beside the model, that predicts the token after the next
(docs/explanation/model.md 15).

Its input is a *pair*: the model's residual streams after the last layer at position p, and the token at p + 1. Its
logits predict the token at p + 2. Its own output streams can replace the model's at p + 1 in the next pair, so it can
go on without the model. Embedding and output matrix are the model's; all other weights are in a file of their own
(``tensors.mtp_slots``).

    block = Block.open("mtp.gguf", model)
    rows = Window(block)
    streams, logits = block.forward(X[-1:], [token], rows)    # X: the model's streams, up to position rows.pos
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np

from ds4ref.kernels.formats import Matrix

from ...errors import BackendError, ModelFileError, ShapeError, UsageError
from ...weights import open_source
from ...weights.accounting import settle_tensors
from ...weights.published import PublishedSource
from ..binding import fields_of, placed_values
from ..experts import ExpertUse
from ..keys import check
from ..steering import Directions
from . import attention, head, moe
from .cache import REACH, LayerCache
from .chunk import Chunk, Plan
from .forward import Model
from .shape import ARCHITECTURE, PLAIN, ModelShape
from .tensors import MTP, check_drafter, is_dspark, mtp_slots
from .weights import LayerWeights, Weights, fill_checked, read_checked

if TYPE_CHECKING:
    from ...weights.source import TensorSource

T = TypeVar("T")


def opened(
    path: str | os.PathLike[str], model: Any, kind: Callable[[TensorSource], Callable[[Model, TensorSource], T]]
) -> T:
    """Open the file, or published folder, of a drafter and return what the class that ``kind`` chooses makes of it.

    Raise UsageError for a model of another family, and the errors of the class, with the file closed.
    """
    if not isinstance(model, Model):
        raise UsageError(f"{os.fspath(path)}: a drafter goes with a DeepSeek V4 model, this one is {model.shape.name}")
    location = Path(path)
    published = location.is_dir() or location.suffix == ".json"
    source = PublishedSource.open(path, mtp=True) if published else open_source(path)
    try:
        if model.ops.name == "cuda" and hasattr(source, "in_place"):
            source.in_place = False  # its kernels read rows of a storage format
        return kind(source)(model, source)
    except BaseException:
        source.close()
        raise


@dataclass(frozen=True, kw_only=True)
class BlockWeights:
    """Weights of the block. ``inner`` holds them as a model of one layer: the block's layer and head, with the model's
    embedding and output matrix."""

    enorm: np.ndarray  # (dim,), norm of the token's embedding
    hnorm: np.ndarray  # (dim,), norm of each stream
    e_proj: Matrix
    h_proj: Matrix
    inner: Weights

    @property
    def layer(self) -> LayerWeights:
        """Return the weights of the block's layer."""
        return self.inner.layers[0]


def bind_block(source: TensorSource, shape: ModelShape, model: Weights, ops: Any) -> BlockWeights:
    """Return the weights of the block in ``source``, for a model of these dimensions, in the memory of the backend
    ``ops``.

    model: weights of the model, already in this memory. Raise ModelFileError if the file contains no such block, or a
    NaN; ShapeError for tensors that are missing, wrong or unknown.
    """
    check_drafter(source.path, source.tensors)
    if is_dspark(source.tensors):
        raise ModelFileError(source.path, "it is a DSpark drafter, no block for multi-token prediction: --draft dspark")
    if not any(name.startswith(MTP) for name in source.tensors):
        kind = "it is a whole model; " if "token_embd.weight" in source.tensors else ""
        raise ModelFileError(source.path, f"{kind}it has no block for multi-token prediction ({MTP}*)")
    slots = mtp_slots(shape)
    filled, problems = fill_checked(source, slots)
    width = source.tensors.get(f"{MTP}enorm.weight")
    if width is not None and width.dims != (shape.dim,):
        raise ShapeError(source.path, f"it is a block of width {width.dims[0]}, the model's width is {shape.dim}")
    mine = [name for name in source.tensors if name.startswith("mtp.")]  # as in ds4, ignore all others
    problems += settle_tensors(mine, {slot.name for slot in slots}, (), ARCHITECTURE).problems()
    check(source, problems)
    values = placed_values({slot.attr: value for slot, value in read_checked(source, filled, shape)}, ops)
    own = {name: values.pop(name) for name in ("enorm", "hnorm", "e_proj", "h_proj")}
    heads = {f"output_hc_{name}": values.pop(f"hc_head_{name}") for name in ("base", "fn", "scale")}
    heads["output_norm"] = values.pop("norm")
    inner = Weights(token_embd=model.token_embd, output=model.output, layers=[fields_of(LayerWeights, values)], **heads)
    return BlockWeights(inner=inner, **own)


class Block:
    """The MTP block of a model. Immutable, shared by all sessions that draft with it.

    ``shape`` has the dimensions of a model of one layer, with sliding-window attention only and experts routed by
    score. The block is never steered.
    """

    steering: Directions | None = None

    def __init__(self, model: Model, source: TensorSource):
        """Bind the block in ``source``, which must stay open; use ``open`` instead."""
        ops = model.ops
        self.source, self.ops, self.numerics, self.rope = source, ops, model.numerics, model.rope
        self.shape = replace(
            model.shape, n_layers=1, n_hash_layers=0, ratios=(PLAIN,), swiglu_limit=model.shape.swiglu_limit[-1:]
        )
        try:
            self.weights = bind_block(source, model.shape, model.weights, ops)
        except MemoryError as error:
            raise BackendError(f"no memory for the block for multi-token prediction: {error}") from error
        advise = model.experts.advise or model.experts.resident is not None  # a cache of experts covers only the model
        self.experts = ExpertUse(ops, self.weights.inner.layers, self.shape.n_experts, advise)

    @classmethod
    def open(cls, path: str | os.PathLike[str], model: Any) -> Self:
        """Open the block of ``model`` from a GGUF file (one that ``ds4-quantize --mtp-block`` writes, or ds4's), or
        from the model's published folder.

        Raise UsageError for a model of another family, and the errors of ``bind_block`` if the file does not fit.
        """
        return opened(path, model, lambda source: cls)

    def close(self) -> None:
        """Unmap the file; the block becomes unusable."""
        self.source.close()

    def forward(self, X: Any, ids: Sequence[int] | np.ndarray, rows: Window) -> tuple[Any, Any]:
        """Run T pairs: the model's streams X (T, C, D), a host array, at positions from ``rows.pos`` on, and the tokens
        ids (T,) that follow these positions. Write their cache rows and advance ``rows`` by T.

        Return the block's streams (1, C, D) and logits (1, V) of the last pair only, arrays of the backend. T is at
        most ``rows.most``.
        """
        out = self._run(Pairs(self, X, ids, rows), rows)
        rows.advance(len(ids))
        return out

    def _run(self, c: Pairs, rows: Window) -> tuple[Any, Any]:
        ops, s, w = c.ops, self.shape, self.weights
        e = ops.rms_norm(ops.embed(w.inner.token_embd, c.ids), w.enorm, s.rms_eps)
        e = ops.linear(e, w.e_proj, c.act(w.e_proj))
        h = ops.rms_norm(c.streams(), w.hnorm, s.rms_eps)
        h = ops.linear(h.reshape(-1, s.dim), w.h_proj, c.act(w.h_proj)).reshape(len(e), s.hc, s.dim)
        X = ops.add(ops.streams(e, s.hc), h)
        c.at_layer(0, w.layer, rows.layers[0])
        X = attention.half_layer(c, X)
        X = moe.half_layer(c, X[-1:])
        return X, head.logits(c, w.inner, X)

    def record_rows(
        self, recording: Any, caches: Sequence[Window], counts: Sequence[int], plans: Sequence[None]
    ) -> tuple[Any, Any, Pairs]:
        """Record a pass of ``counts[0]`` pairs for one sequence, whose rows are ``caches[0]`` (``decode.recorded``).

        Return streams, logits and inputs. Before each replay, call ``set`` of the inputs; after it, ``advance`` of the
        rows.
        """
        (rows,), (count,) = caches, counts
        c = Pairs(self, np.zeros((count, self.shape.hc, self.shape.dim), np.float32), [0] * count, rows, recording)
        return *self._run(c, rows), c.leave()


class Pairs(Chunk):
    """The pairs of one pass through the block: streams X (T, C, D) at positions pos0 .. pos0 + T - 1, and the tokens
    ids (T,) that follow these positions."""

    def __init__(self, block: Block, X: np.ndarray, ids: Sequence[int] | np.ndarray, rows: Window, ops: Any = None):
        self._values, self._first = X, rows.first
        super().__init__(block, ids, rows.pos, Plan({}, 0), None, ops)

    def set(self, X: np.ndarray, ids: Sequence[int] | np.ndarray, rows: Window) -> None:
        """Refill the inputs for T other pairs, at the position of ``rows``."""
        self._values, self._first = X, rows.first
        self.move(np.asarray(ids, np.int32), rows.pos)
        self._values = np.broadcast_to(np.float32(0), X.shape)  # keep no reference to X: its memory may be reused

    def streams(self) -> np.ndarray:
        """Return the streams of the pairs (T, C, D): the model's, or the block's own in their stead."""
        return self.input("streams", lambda c: (c._values,))[0]

    def raw_window(self) -> tuple[np.ndarray, np.ndarray]:
        """Return first position and length of each pair's sliding window, int32 (T,) each; it does not reach before
        the first position whose row is cached."""

        def compute(c: Pairs) -> tuple[np.ndarray, np.ndarray]:
            first = np.maximum(c.positions - (c.shape.window - 1), c._first)
            return first.astype(np.int32), (c.positions - first + 1).astype(np.int32)

        first, count = self.input("window", compute)
        return first, count


class Window:
    """A drafter's KV cache for one sequence: the attention rows of its newest positions, first .. pos - 1, by layer.

    It is a ring buffer of two sliding windows and ``REACH`` more rows. Rewinding by up to ``REACH`` tokens keeps a full
    window; rewinding further leaves a shorter one. The length of the sequence is not limited.
    """

    def __init__(self, block: Any):
        s, ops = block.shape, block.ops
        self.most = s.window
        """Maximum number of pairs in one pass, and of rows that a pass reads."""
        self._rows = 2 * self.most + REACH
        self.layers = [LayerCache(ops.array(self._rows, s.head_dim), None, None, {}) for _ in range(s.n_layers)]
        self.restart(0)

    def restart(self, pos: int) -> None:
        """Forget all rows; the next pair will be at position ``pos``."""
        self.first = self.pos = self._newest = pos

    def advance(self, count: int) -> None:
        """Move ``pos`` forward by ``count`` positions, after their rows have been written."""
        self.pos += count
        self._newest = self.pos

    def rewind(self, pos: int) -> None:
        """Forget the rows of positions ``pos`` and later; ``pos`` is at most the current position."""
        kept = max(self.first, self._newest - self._rows)  # older rows have been overwritten
        self.first, self.pos, self._newest = min(pos, kept), pos, pos

    def buffers(self) -> list[np.ndarray]:
        """Return the cache arrays that a pass reads and writes, for ``decode.recorded``."""
        return [layer.raw for layer in self.layers]
