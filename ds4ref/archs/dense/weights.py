"""Binds a file's tensors to the weights of a dense decoder: checks every tensor, and copies nothing large.

``slots`` is the one list of tensors, used for loading files, writing them and counting bytes. Matrices may have any
storage format that matrix products support. A file with a tensor that is not in the list (such as a bias) is refused,
because leaving the tensor out would change every answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ds4ref.kernels.formats import FORMATS, Matrix

from ...errors import ModelFileError
from ...weights.accounting import Account, inert, settle_tensors
from ..binding import Slot, fields_of, fill_slots, read_slots
from ..keys import check

if TYPE_CHECKING:
    from ...weights.source import TensorInfo, TensorSource
    from .shape import DenseShape

VECTORS = ("F32", "F16", "BF16")
MATRICES = tuple(fmt.name for fmt in FORMATS.values() if fmt.decodes and fmt.name != "I32")
INERT_TENSORS = (inert("frequencies of rope, which the metadata determines", "blk.*.attn_rot_embd.weight"),)
"""Tensors that a GGUF file may contain but the model does not use, with the reasons."""


READERS = {
    "attn_norm": ("attn_q", "attn_k", "attn_v"),
    "kqv_out": ("attn_output",),
    "ffn_norm": ("ffn_gate", "ffn_up", "ffn_gate_inp"),
    "ffn_swiglu": ("ffn_down",),
}
"""Intermediate -> matrices that it is the input of, for the importance matrix (``archs.importance``)."""


@dataclass(frozen=True, kw_only=True)
class LayerWeights:
    """Weights of one layer, named as in the file. Vectors are float32 arrays; a tensor that the family does not have is
    None."""

    attn_norm: np.ndarray  # (dim,)
    attn_q: Matrix
    attn_k: Matrix
    attn_v: Matrix
    attn_q_bias: np.ndarray | None  # (1, heads * head_dim)
    attn_k_bias: np.ndarray | None  # (1, kv_width)
    attn_v_bias: np.ndarray | None  # (1, kv_width)
    attn_q_norm: np.ndarray | None  # (head_dim,)
    attn_k_norm: np.ndarray | None  # (head_dim,)
    attn_output: Matrix
    post_attention_norm: np.ndarray | None  # (dim,)
    post_ffw_norm: np.ndarray | None  # (dim,)
    ffn_norm: np.ndarray  # (dim,)
    ffn_gate: Matrix | None
    ffn_up: Matrix | None
    ffn_down: Matrix | None
    # with experts
    ffn_gate_inp: Matrix | None  # (experts, dim)
    ffn_gate_exps: Matrix | None
    ffn_up_exps: Matrix | None
    ffn_down_exps: Matrix | None


@dataclass(frozen=True, kw_only=True)
class Weights:
    """Weights of a whole model. ``output`` is ``token_embd`` if the file has no separate head."""

    token_embd: Matrix
    output_norm: np.ndarray  # (dim,)
    output: Matrix
    rope_freqs: np.ndarray | None  # (head_dim / 2,), on the host
    input_group: int  # matrix inputs are rounded to int8 in groups of this size; 0: not rounded
    layers: list[LayerWeights]


def slots(shape: DenseShape) -> list[Slot]:
    """Return a slot for every tensor of a model of this shape, in file order."""
    return [*_model_slots(shape), *(slot for layer in range(shape.n_layers) for slot in _layer_slots(shape, layer))]


def _model_slots(s: DenseShape) -> Iterator[Slot]:
    yield Slot("token_embd.weight", "token_embd", (s.dim, s.vocab), MATRICES, "embedding")
    yield Slot("output_norm.weight", "output_norm", (s.dim,), VECTORS, "rest")
    yield Slot("output.weight", "output", (s.dim, s.vocab), MATRICES, "lm_head", optional=True)
    yield Slot("rope_freqs.weight", "rope_freqs", (s.head_dim // 2,), VECTORS, "rest", optional=True)


def _layer_slots(s: DenseShape, layer: int) -> Iterator[Slot]:
    heads, norms = s.n_heads * s.head_dim, ("attn_q_norm", "attn_k_norm") if s.family.qk_norm else ()
    sizes: dict[str, tuple[int, ...]] = {
        "attn_norm": (s.dim,),
        "attn_q": (s.dim, heads),
        "attn_k": (s.dim, s.kv_width),
        "attn_v": (s.dim, s.kv_width),
        **dict.fromkeys(norms, (s.head_dim,)),
        "attn_output": (heads, s.dim),
        "ffn_norm": (s.dim,),
        **dict.fromkeys(("post_attention_norm", "post_ffw_norm") if s.family.gemma else (), (s.dim,)),
    }
    if s.n_experts:
        sizes["ffn_gate_inp"] = (s.dim, s.n_experts)
        for attr, ends in (
            ("gate", (s.dim, s.expert_ff)),
            ("up", (s.dim, s.expert_ff)),
            ("down", (s.expert_ff, s.dim)),
        ):
            sizes[f"ffn_{attr}_exps"] = (*ends, s.n_experts)
    else:
        sizes |= {"ffn_gate": (s.dim, s.ff), "ffn_up": (s.dim, s.ff), "ffn_down": (s.ff, s.dim)}
    for attr, dims in sizes.items():
        part = "experts" if attr.endswith("_exps") else "weights"
        yield Slot(f"blk.{layer}.{attr}.weight", attr, dims, MATRICES if len(dims) > 1 else VECTORS, part, layer)
    for attr in ("attn_q", "attn_k", "attn_v") if s.family.biases else ():
        yield Slot(f"blk.{layer}.{attr}.bias", f"{attr}_bias", sizes[attr][1:], VECTORS, "rest", layer)


def check_tensors(source: TensorSource, shape: DenseShape) -> list[tuple[Slot, TensorInfo]]:
    """Return every slot that has a tensor in the file, with this tensor, without reading data.

    Raise ShapeError naming the first tensors that are missing, wrong or unknown.
    """
    filled, problems = fill_slots(source, slots(shape))
    check(source, problems + account(source, shape).problems())
    return filled


def account(source: TensorSource, shape: DenseShape) -> Account:
    """Return which tensors of the file are used, have no effect or are refused."""
    names = {slot.name for slot in slots(shape)}
    return settle_tensors(source.tensors, names, INERT_TENSORS, shape.family.name)


def bind(source: TensorSource, shape: DenseShape, verify: bool | None = None) -> Weights:
    """Return the weights of ``source``, as views if the source is memory-mapped.

    verify  scan all matrices for NaN and infinite scales; None: only if the tensors have at most ``VERIFY_BYTES``.
    Raise ShapeError for a tensor that does not fit ``shape``, ModelFileError for NaN or infinity.
    """
    model: dict[str, Any] = {}
    layers: list[dict[str, Any]] = [{} for _ in range(shape.n_layers)]
    for slot, _, value in read_slots(source, check_tensors(source, shape), verify):
        value = value.reshape(1, -1) if slot.attr.endswith("_bias") else value  # type: ignore[union-attr]
        (model if slot.layer is None else layers[slot.layer])[slot.attr] = value
    freqs = model.setdefault("rope_freqs", None)
    if freqs is not None and not (freqs > 0).all():
        raise ModelFileError(source.path, "rope_freqs.weight holds a divisor that is not above 0")
    model.setdefault("output", model["token_embd"])
    model["input_group"] = getattr(source, "input_group", 0)
    return Weights(**model, layers=[fields_of(LayerWeights, some) for some in layers])
