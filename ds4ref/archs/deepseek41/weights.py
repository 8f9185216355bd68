"""Binds a model's tensors to the weights of the forward pass: checks every tensor, and copies nothing large.

Engram's tables stay in the mapped file, on any backend: a token reads a few rows of them (``hashing.Lookup``).
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from ds4ref.kernels.formats import Matrix

from ...weights.accounting import Account, settle_tensors
from ...weights.published import PublishedSource
from ..binding import Slot, fields_of, of_part, read_slots
from ..deepseek4.weights import INERT_TENSORS, CommonWeights, fill_checked
from ..keys import check
from .hashing import Hashing
from .shape import ARCHITECTURE
from .tensors import READERS, ROW264, slots, table_names

if TYPE_CHECKING:
    from ...weights.source import TensorInfo, TensorSource
    from .shape import ModelShape

__all__ = ["READERS", "LayerWeights", "Weights", "bind", "check_tensors", "slots"]

_OF_ROWS = "attn_q_a", "attn_compressor", "indexer"
"""Beginnings of the names of weights that make a kv source's rows and its choice of rows."""
ON_HOST = ("engram_embd",)
"""Weights that are never moved to a backend's memory."""


@dataclass(frozen=True, kw_only=True)
class LayerWeights(CommonWeights):
    """Weights of one layer. No layer of this family chooses experts by token id."""

    # kv sources
    attn_compressor_kv: Matrix | None
    attn_compressor_gate: Matrix | None  # ratio 2
    attn_compressor_norm: np.ndarray | None  # (head_dim,)
    indexer_attn_k: Matrix | None
    indexer_k_norm: np.ndarray | None  # (index_dim,)
    # index sources
    indexer_attn_q_b: Matrix | None
    indexer_proj: Matrix | None
    # layers with Engram
    engram_embd: Matrix | None
    engram_kv: Matrix | None
    engram_gate: np.ndarray | None  # (hc, dim): the product of q and k weights


@dataclass(frozen=True, kw_only=True)
class Weights:
    """Weights of a model; ``hashing``: what Engram's hash is made of, None without Engram. In a part of a model that
    lacks the first layer ``token_embd`` is None, without the last one ``output`` and its norm."""

    token_embd: Matrix
    output_norm: np.ndarray  # (dim,)
    output: Matrix
    hashing: Hashing | None
    layers: list[LayerWeights]


def check_tensors(source: TensorSource, shape: ModelShape) -> list[tuple[Slot, TensorInfo]]:
    """Return every slot with its tensor; raise ShapeError naming the first tensors that are missing, wrong or
    unknown."""
    filled, problems = fill_checked(_decoded(source, shape), slots(shape))
    problems += account(source, shape).problems()
    check(source, problems)
    return filled


def _decoded(source: TensorSource, shape: ModelShape) -> Any:
    """Return the path and tensors of ``source``: ds4's Engram tables, matrices of I8, as what their bytes mean; those
    of a published folder with their bytes in its files."""
    tensors = dict(source.tensors)
    if isinstance(source, PublishedSource):
        tensors = {name: info._replace(nbytes=source.stored_bytes(name)) for name, info in tensors.items()}
    for name in table_names(shape):
        info = tensors.get(name)
        if info is not None and info.fmt.name == "I8" and shape.engram_dim % ROW264.block_elems == 0:
            if info.dims[0] == ROW264.row_bytes(shape.engram_dim):
                tensors[name] = info._replace(fmt=ROW264, dims=(shape.engram_dim, *info.dims[1:]))
    return SimpleNamespace(path=source.path, tensors=tensors)


def account(source: TensorSource, shape: ModelShape) -> Account:
    """Return which tensors of the file are used, have no effect or are refused."""
    return settle_tensors(source.tensors, {slot.name for slot in slots(shape)}, INERT_TENSORS, ARCHITECTURE)


def bind(source: TensorSource, shape: ModelShape, verify: bool | None = None) -> Weights:
    """Return the weights of ``source``, as views if the source is memory-mapped.

    verify  scan all matrices for NaN and infinite scales; None: only if the tensors have at most ``VERIFY_BYTES``.
    Raise ShapeError for a tensor that does not fit ``shape``, ModelFileError for NaN or infinity, or if the arrays of
    Engram's hash do not fit.
    """
    return bind_part(source, shape, range(shape.n_layers), verify)


def part_slots(shape: ModelShape, layers: range) -> list[Slot]:
    """Return the slots that consecutive ``layers`` need, and those of the earlier layer whose rows they read, as far as
    the rows need them."""
    sources = shape.needs(layers.start)
    rows = [slot for slot in slots(shape) if slot.layer in sources and slot.attr.startswith(_OF_ROWS)]
    return rows + of_part(slots(shape), shape, layers)


def bind_part(source: TensorSource, shape: ModelShape, layers: range, verify: bool | None = None) -> Weights:
    """Return the weights of consecutive ``layers`` of a model of ``shape``, without reading those of other layers.

    Embedding and output head are None unless the first or the last layer is included. ``verify`` and errors are those
    of ``bind``.
    """
    tables = [which for which, layer in enumerate(shape.engram_layers) if layer in layers]
    model: dict[str, Any] = dict.fromkeys(("token_embd", "output_norm", "output"))
    model["hashing"] = Hashing.read(source, shape).of(tables) if tables else None
    names = {slot.name for slot in part_slots(shape, layers)}
    filled = [(slot, info) for slot, info in check_tensors(source, shape) if slot.name in names]
    fields: dict[int, dict[str, Any]] = {layer: {} for layer in shape.cached(layers)}
    for slot, _, value in read_slots(source, filled, verify):
        (model if slot.layer is None else fields[slot.layer])[slot.attr] = value
    for some in fields.values():
        if "engram_embd" in some:
            some["engram_gate"] = some["engram_q_norm"] * some["engram_k_norm"]
    return Weights(**model, layers=[fields_of(LayerWeights, some) for some in fields.values()])
