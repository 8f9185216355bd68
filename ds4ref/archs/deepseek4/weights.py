"""Binds a file's tensors to the weights of the forward pass: every tensor checked, nothing large copied.

``check_tensors`` compares a file's header with ``tensors.slots`` (model.md 2.2): name, rank, dimensions and format of
every tensor, without touching data. ``bind`` then binds the data: matrices become views of the mapped file, small
vectors float32 arrays.

``bind`` always verifies that all vectors are finite and that all hash-routing ids name an expert. Verifying the block
scales of every matrix takes a pass over the file, so it is done by default only up to ``VERIFY_BYTES`` of tensor data,
and otherwise with ``verify=True``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ds4ref.kernels.formats import Matrix

from ...errors import ModelFileError, ShapeError
from ...weights.accounting import Account, inert, settle_tensors
from ...weights.cursor import quote
from ...weights.source import matrix_rows
from .shape import ARCHITECTURE, summary
from .tensors import RECIPES, Recipe, Slot, expected_tensors, part_slots, slots

if TYPE_CHECKING:
    from ds4ref.kernels.ops import Backend

    from ...weights.source import TensorInfo, TensorSource
    from .shape import ModelShape

__all__ = ["RECIPES", "LayerWeights", "Recipe", "Weights", "bind", "check_tensors", "expected_tensors", "verify_finite"]

VERIFY_BYTES = 64 << 20

INERT_TENSORS = (inert("the block for multi-token prediction is a model of its own", "mtp.*"),)
"""Tensors of a GGUF file that are no weights of the model."""

# Read elementwise and small, so they are expanded to float32 although they are stored as matrices.
_EXPANDED = ("attn_compressor_ape", "indexer_compressor_ape")


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
class LayerWeights:
    """Weights of one layer. Vectors are float32 arrays; None where the layer's kind has no such tensor."""

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

    def mixing(self, half: str) -> MixingWeights:
        """Return the weights of the hyper-connection around one half, "attn" or "ffn"."""
        return MixingWeights(*(getattr(self, f"hc_{half}_{name}") for name in MixingWeights._fields))

    def compressor(self, prefix: str) -> CompressorWeights:
        """Return the weights of the compressor ``prefix``, "attn" or "indexer", which the layer must have."""
        return CompressorWeights(*(getattr(self, f"{prefix}_compressor_{name}") for name in CompressorWeights._fields))


@dataclass(frozen=True, kw_only=True)
class Weights:
    """Weights of a model; of a part of one without its first layer there is no ``token_embd``, without its last no
    output head (``bind_part``)."""

    token_embd: Matrix
    output_hc_base: np.ndarray  # (hc,)
    output_hc_fn: Matrix
    output_hc_scale: np.ndarray  # (1,)
    output_norm: np.ndarray  # (dim,)
    output: Matrix
    layers: list[LayerWeights]


def placed(weights: Weights, ops: Backend) -> Weights:
    """Return the weights moved to the memory of ``ops``; a backend with its own memory is told their total size
    first."""
    matrices = [
        value for part in (weights, *weights.layers) for value in vars(part).values() if isinstance(value, Matrix)
    ]
    if hasattr(ops, "prepare"):
        sizes = [(getattr(ops, "placed_bytes", lambda w: w.nbytes)(w), bool(w.experts)) for w in matrices]
        ops.prepare(sum(size for size, _ in sizes), sum(size for size, routed in sizes if routed))

    layers = [LayerWeights(**placed_values(vars(w), ops)) for w in weights.layers]
    own = {name: value for name, value in vars(weights).items() if name != "layers"}
    return Weights(**placed_values(own, ops), layers=layers)


def placed_values(values: Mapping[str, Any], ops: Backend) -> dict[str, Any]:
    """Return weights by attribute, moved to the memory of ``ops``."""

    def place(value: Any) -> Any:
        if isinstance(value, Matrix):
            return ops.place(value)
        return ops.upload(value) if isinstance(value, np.ndarray) else value

    return {name: place(value) for name, value in values.items()}


def check_tensors(source: TensorSource, shape: ModelShape) -> list[tuple[Slot, TensorInfo]]:
    """Return every slot that the file fills, with its tensor; raise ShapeError naming the first tensors that are
    missing, wrong, or have no slot.
    """
    filled, problems = fill_slots(source, slots(shape))
    problems += account(source, shape).problems()
    if problems:
        raise ShapeError(source.path, summary(problems))
    return filled


def fill_slots(source: TensorSource, wanted: list[Slot]) -> tuple[list[tuple[Slot, TensorInfo]], list[str]]:
    """Return every slot that the file fills, with its tensor, and one sentence for each that is missing or wrong."""
    filled, problems = [], []
    for slot in wanted:
        info = source.tensors.get(slot.name)
        if info is None:
            if not slot.optional:
                problems.append(f"{slot.name} is missing")
            continue
        if info.dims != slot.dims:
            problems.append(f"{slot.name} has dims {list(info.dims)}, wanted {list(slot.dims)}")
        elif info.fmt.name not in slot.fmts:
            problems.append(f"{slot.name} is {info.fmt.name}, wanted {' or '.join(slot.fmts)}")
        filled.append((slot, info))
    for gate in (slot.name for slot in wanted if slot.attr == "ffn_gate_exps"):
        pair = [source.tensors.get(name) for name in (gate, gate.replace("gate", "up"))]
        if pair[0] and pair[1] and pair[0].fmt != pair[1].fmt:
            problems.append(f"{pair[0].name} is {pair[0].fmt.name}, but {pair[1].name} is {pair[1].fmt.name}")
    return filled, problems


def account(source: TensorSource, shape: ModelShape) -> Account:
    """Return what becomes of every tensor of the file."""
    hashed = inert(
        "layers that route by token id choose no experts by score",
        " ".join(f"blk.{layer}.exp_probs_b.bias" for layer in range(shape.n_hash_layers)),
    )
    computed = {slot.name for slot in slots(shape)} - set(hashed.names)
    return settle_tensors(source.tensors, computed, (*INERT_TENSORS, hashed), ARCHITECTURE)


def bind(source: TensorSource, shape: ModelShape, verify: bool | None = None) -> Weights:
    """Return the weights of ``source``, as views if the source is memory-mapped.

    verify  scan all matrices for NaN and infinite scales; None: only if they have at most ``VERIFY_BYTES``.
    Raise ShapeError for a tensor that does not fit ``shape``, ModelFileError for NaN, infinity or an expert out of
    range.
    """
    return bind_part(source, shape, range(shape.n_layers), verify)


def bind_part(source: TensorSource, shape: ModelShape, layers: range, verify: bool | None = None) -> Weights:
    """Return the weights of consecutive ``layers`` of a model of ``shape``, None for what only other layers need; the
    rest is as in ``bind``. The bytes of other layers are not touched.
    """
    names = {slot.name for slot in part_slots(shape, layers)}
    filled = [(slot, info) for slot, info in check_tensors(source, shape) if slot.name in names]
    model: dict[str, Any] = {name: None for name in Weights.__dataclass_fields__ if name != "layers"}
    fields: dict[int, dict[str, Any]] = {layer: {} for layer in layers}
    for slot, values in read_slots(source, filled, shape, verify):
        (model if slot.layer is None else fields[slot.layer])[slot.attr] = values
    return Weights(**model, layers=[layer_weights(values) for values in fields.values()])


def read_slots(
    source: TensorSource, filled: list[tuple[Slot, TensorInfo]], shape: ModelShape, verify: bool | None = None
) -> Iterator[tuple[Slot, Matrix | np.ndarray]]:
    """Yield every filled slot with its weights; ``verify`` and errors are those of ``bind``."""
    if verify or (verify is None and sum(info.nbytes for _, info in filled) <= VERIFY_BYTES):
        verify_finite(source, [info for _, info in filled])
    for slot, info in filled:
        yield slot, _load(source, slot, info, shape)


def verify_finite(source: TensorSource, tensors: list[TensorInfo]) -> None:
    """Check the block scales of ``tensors``; raise ModelFileError naming the first tensor with a NaN or infinite
    one."""
    for info in tensors:
        bad = info.fmt.first_non_finite(source.raw(info.name))
        if bad is not None:
            raise _not_finite(source, info, bad)


def layer_weights(fields: Mapping[str, Any]) -> LayerWeights:
    """Return the weights of a layer, None where ``fields`` has none."""
    return LayerWeights(**{name: fields.get(name) for name in LayerWeights.__dataclass_fields__})  # type: ignore[arg-type]


def _load(source: TensorSource, slot: Slot, info: TensorInfo, shape: ModelShape) -> Matrix | np.ndarray:
    if len(info.dims) > 1 and slot.attr not in _EXPANDED and slot.part != "hash":
        return Matrix(info.fmt.name, matrix_rows(source, info), info.dims[1], info.dims[0])
    raw = source.raw(info.name)
    if slot.part == "hash":
        return _hash_table(source, info, raw.view("<i4").reshape(info.shape), shape.n_experts)
    bad = info.fmt.first_non_finite(raw)
    if bad is not None:
        raise _not_finite(source, info, bad)
    if info.fmt.name == "F32":
        return raw.view("<f4").reshape(info.shape)
    return info.fmt.dequantize(raw).reshape(info.shape)


def _hash_table(source: TensorSource, info: TensorInfo, table: np.ndarray, n_experts: int) -> np.ndarray:
    """Return the routing table, with all expert ids in range: they index memory in the kernels."""
    low, high = int(table.min()), int(table.max())
    if low < 0 or high >= n_experts:
        wrong = low if low < 0 else high
        reason = f"tensor {quote(info.name)} names expert {wrong}, there are {n_experts}"
        raise ModelFileError(source.path, reason, info.offset + 4 * int(np.flatnonzero(table == wrong)[0]))
    return table


def _not_finite(source: TensorSource, info: TensorInfo, block: int) -> ModelFileError:
    kind = "value" if info.fmt.block_elems == 1 else "scale"
    offset = info.offset + block * info.fmt.block_bytes
    return ModelFileError(source.path, f"tensor {quote(info.name)} holds a NaN or infinite {kind}", offset)
