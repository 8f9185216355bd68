"""Binds a file's tensors to the weights of the forward pass: checks every tensor, and copies nothing large.

``check_tensors`` compares a file's header with ``tensors.slots`` (model.md 2.2): name, rank, dimensions and format of
every tensor, without touching data. ``bind`` then binds the data: matrices become views of the mapped file, small
vectors float32 arrays.

``bind`` always verifies that all vectors are finite and that all hash-routing ids name an expert. Verifying the block
scales of every matrix takes a pass over the file, so it is done by default only up to ``VERIFY_BYTES`` of tensor data,
and otherwise with ``verify=True``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ds4ref.kernels.formats import Matrix

from ...errors import ModelFileError
from ...weights.accounting import Account, inert, settle_tensors
from ...weights.cursor import quote
from ..binding import Slot, fields_of, fill_slots, of_part, read_slots
from ..keys import check
from .shape import ARCHITECTURE
from .tensors import READERS, RECIPES, Recipe, expected_tensors, slots

if TYPE_CHECKING:
    from ...weights.source import TensorInfo, TensorSource
    from .shape import ModelShape

__all__ = ["READERS", "RECIPES", "LayerWeights", "Recipe", "Weights", "bind", "check_tensors", "expected_tensors"]

INERT_TENSORS = (
    inert("the drafter is a model of its own", "mtp.*"),
    inert("images are not read", "blk.*.exp_probs_b_vl.bias"),
)
"""Tensors that a GGUF file may contain but the model does not use, with the reasons."""

MOST_DRAFTING_BLOCKS = 8
"""Maximum number of drafter blocks after the layers in a file of llama.cpp."""


class MixingWeights(NamedTuple):
    """Weights of one hyper-connection (docs/explanation/model.md 3)."""

    fn: Matrix  # (mix, hc * dim)
    scale: np.ndarray  # (3,)
    base: np.ndarray  # (mix,)


class CompressorWeights(NamedTuple):
    """Weights of one compressor (docs/explanation/model.md 6)."""

    kv: Matrix
    gate: Matrix
    ape: np.ndarray  # (ratio, comp_width)
    norm: np.ndarray  # (row width,)


@dataclass(frozen=True, kw_only=True)
class CommonWeights:
    """Weights that layers of all families have, named as in the file. Vectors are float32 arrays; a tensor that the
    layer does not have is None."""

    hc_attn_fn: Matrix
    hc_attn_scale: np.ndarray  # (3,)
    hc_attn_base: np.ndarray  # (mix,)
    attn_norm: np.ndarray  # (dim,)
    attn_q_a: Matrix
    attn_q_a_norm: np.ndarray  # (q_rank,)
    attn_q_b: Matrix
    attn_kv: Matrix
    attn_kv_a_norm: np.ndarray  # (head_dim,)
    attn_sinks: np.ndarray  # (heads,)
    attn_output_a: Matrix
    attn_output_b: Matrix
    hc_ffn_fn: Matrix
    hc_ffn_scale: np.ndarray  # (3,)
    hc_ffn_base: np.ndarray  # (mix,)
    ffn_norm: np.ndarray  # (dim,)
    ffn_gate_inp: Matrix
    exp_probs_b: np.ndarray | None  # (experts,)
    ffn_gate_tid2eid: np.ndarray | None  # int32 (vocab, used): hash layers
    ffn_gate_exps: Matrix
    ffn_up_exps: Matrix
    ffn_down_exps: Matrix
    ffn_gate_shexp: Matrix
    ffn_up_shexp: Matrix
    ffn_down_shexp: Matrix

    def mixing(self, half: str) -> MixingWeights:
        """Return the weights of the hyper-connection around attention or FFN (``half``: "attn" or "ffn")."""
        return MixingWeights(*(getattr(self, f"hc_{half}_{name}") for name in MixingWeights._fields))


@dataclass(frozen=True, kw_only=True)
class LayerWeights(CommonWeights):
    """Weights of one layer."""

    # ratio 4 and 128
    attn_compressor_kv: Matrix | None
    attn_compressor_gate: Matrix | None
    attn_compressor_ape: np.ndarray | None  # (ratio, comp_width)
    attn_compressor_norm: np.ndarray | None  # (head_dim,)
    # ratio 4
    indexer_attn_q_b: Matrix | None
    indexer_proj: Matrix | None
    indexer_compressor_kv: Matrix | None
    indexer_compressor_gate: Matrix | None
    indexer_compressor_ape: np.ndarray | None  # (4, 2 index_dim)
    indexer_compressor_norm: np.ndarray | None  # (index_dim,)

    def compressor(self, prefix: str) -> CompressorWeights:
        """Return the weights of the layer's compressor ``prefix``, "attn" or "indexer"; the layer must have it."""
        return CompressorWeights(*(getattr(self, f"{prefix}_compressor_{name}") for name in CompressorWeights._fields))


@dataclass(frozen=True, kw_only=True)
class Weights:
    """Weights of a model, or of some of its layers (``bind_part``): without the first layer ``token_embd`` is None,
    without the last one all ``output*`` are None."""

    token_embd: Matrix
    output_hc_base: np.ndarray  # (hc,)
    output_hc_fn: Matrix
    output_hc_scale: np.ndarray  # (1,)
    output_norm: np.ndarray  # (dim,)
    output: Matrix
    layers: list[LayerWeights]


def check_tensors(source: TensorSource, shape: ModelShape) -> list[tuple[Slot, TensorInfo]]:
    """Return every slot that has a tensor in the file, with this tensor; raise ShapeError naming the first tensors that
    are missing, wrong or unknown.
    """
    filled, problems = fill_checked(source, slots(shape))
    problems += account(source, shape).problems()
    check(source, problems)
    return filled


def fill_checked(source: TensorSource, wanted: list[Slot]) -> tuple[list[tuple[Slot, TensorInfo]], list[str]]:
    """Return what ``fill_slots`` returns, with one more check: that the experts' gate and up matrices of a layer have
    the same storage format."""
    filled, problems = fill_slots(source, wanted)
    for gate in (slot.name for slot in wanted if slot.attr == "ffn_gate_exps"):
        pair = [source.tensors.get(name) for name in (gate, gate.replace("gate", "up"))]
        if pair[0] and pair[1] and pair[0].fmt != pair[1].fmt:
            problems.append(f"{pair[0].name} is {pair[0].fmt.name}, but {pair[1].name} is {pair[1].fmt.name}")
    return filled, problems


def account(source: TensorSource, shape: ModelShape) -> Account:
    """Return which tensors of the file are used, have no effect or are refused."""
    hashed = inert(
        "layers that route by token id choose no experts by score",
        " ".join(f"blk.{layer}.exp_probs_b.bias" for layer in range(shape.n_hash_layers)),
    )
    computed = {slot.name for slot in slots(shape)} - set(hashed.names)
    after = range(shape.n_layers, shape.n_layers + MOST_DRAFTING_BLOCKS)
    blocks = [f"blk.{block}.*" for block in after if f"blk.{block}.nextn.eh_proj.weight" in source.tensors]
    drafter = inert("the drafter is a model of its own", " ".join(blocks))
    return settle_tensors(source.tensors, computed, (*INERT_TENSORS, hashed, drafter), ARCHITECTURE)


def bind(source: TensorSource, shape: ModelShape, verify: bool | None = None) -> Weights:
    """Return the weights of ``source``, as views if the source is memory-mapped.

    verify  scan all matrices for NaN and infinite scales; None: only if the tensors have at most ``VERIFY_BYTES``.
    Raise ShapeError for a tensor that does not fit ``shape``, ModelFileError for NaN, infinity or an expert id out of
    range.
    """
    return bind_part(source, shape, range(shape.n_layers), verify)


def part_slots(shape: ModelShape, layers: range) -> list[Slot]:
    """Return the slots that consecutive ``layers`` need."""
    return of_part(slots(shape), shape, layers)


def bind_part(source: TensorSource, shape: ModelShape, layers: range, verify: bool | None = None) -> Weights:
    """Return the weights of consecutive ``layers`` of a model of ``shape``, without reading those of other layers.

    Embedding and output head are None unless the first or the last layer is included. ``verify`` and errors are those
    of ``bind``.
    """
    names = {slot.name for slot in part_slots(shape, layers)}
    filled = [(slot, info) for slot, info in check_tensors(source, shape) if slot.name in names]
    model: dict[str, Any] = {name: None for name in Weights.__dataclass_fields__ if name != "layers"}
    fields: dict[int, dict[str, Any]] = {layer: {} for layer in layers}
    for slot, value in read_checked(source, filled, shape, verify):
        (model if slot.layer is None else fields[slot.layer])[slot.attr] = value
    return Weights(**model, layers=[fields_of(LayerWeights, some) for some in fields.values()])


def read_checked(
    source: TensorSource, filled: list[tuple[Slot, TensorInfo]], shape: ModelShape, verify: bool | None = None
) -> Iterator[tuple[Slot, Matrix | np.ndarray]]:
    """Yield every filled slot with its weights, as ``read_slots`` does, and check expert ids; ``verify`` and errors are
    those of ``bind``."""
    for slot, info, value in read_slots(source, filled, verify):
        if slot.part == "hash":
            _check_experts(source, info, value, shape.n_experts)
        yield slot, value


def _check_experts(source: TensorSource, info: TensorInfo, table: Any, n_experts: int) -> None:
    """Raise ModelFileError unless all expert ids of a routing table are in range: kernels use them as array indices."""
    low, high = int(table.min()), int(table.max())
    if low < 0 or high >= n_experts:
        wrong = low if low < 0 else high
        reason = f"tensor {quote(info.name)} names expert {wrong}, there are {n_experts}"
        raise ModelFileError(source.path, reason, info.offset + 4 * int(np.flatnonzero(table == wrong)[0]))
