"""Writes trained weights as DeepSeek publishes a model: config.json, tokenizer.json, model.safetensors.

Matrices and norms are BF16. What is tiny (sinks, selection biases, bases and scales of hyper-connections) stays F32,
tables of hash routing are I64. There is no ``quantization_config``, because nothing is quantized.

    write_folder("weights", SHAPE, tensors, tokenizer)
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ...archs.deepseek4.published import EXPERT_NAMES, LAYER_NAMES, MODEL_NAMES, MTP_NAMES
from ...archs.deepseek4.shape import ModelShape
from ...archs.deepseek4.tensors import MTP, Slot, mtp_slots, slots
from ...text.published import TOKENIZER
from ...weights.safetensors import CONFIG
from ...weights.safetensors_writer import PlannedTensor, write_json
from ...weights.safetensors_writer import write_folder as write_weights
from ..checkpoint import config as quantized_config
from ..checkpoint import to_bf16

_F32 = re.compile(r".*(?:hc_\w+_(?:base|scale)|attn_sink|gate\.bias)")
_TABLE = "tid2eid"


def write_folder(
    folder: str | os.PathLike[str], shape: ModelShape, tensors: Mapping[str, np.ndarray], tokenizer: dict[str, Any]
) -> None:
    """Write a model folder; config.json comes last, so that an interrupted folder is not a model.

    tensors: float32 by published name; tables of hash routing hold whole numbers of any type. The block for multi-token
    prediction (``mtp.0.*``) is written if its tensors are there. ``tokenizer``: contents of tokenizer.json.
    """
    with_mtp = any(name.startswith(MTP) for name in tensors)
    wanted = dict(expected(shape, with_mtp))
    os.makedirs(folder, exist_ok=True)
    write_weights(folder, [_plan(name, dims, tensors[name]) for name, dims in wanted.items()])
    write_json(Path(folder) / TOKENIZER, tokenizer)
    write_json(Path(folder) / CONFIG, config(shape, with_mtp))


def config(shape: ModelShape, with_mtp: bool = True) -> dict[str, Any]:
    """Return the contents of config.json of an unquantized model."""
    entries = quantized_config(shape)
    del entries["quantization_config"], entries["expert_dtype"]
    return {**entries, "num_nextn_predict_layers": int(with_mtp)}


def expected(shape: ModelShape, with_mtp: bool = True) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the published name and NumPy shape of every tensor, in the order of the layers."""
    for slot in slots(shape):
        if slot.layer is None:
            yield MODEL_NAMES[slot.name], slot.dims[::-1]
        elif slot.attr != "exp_probs_b" or slot.layer >= shape.n_hash_layers:
            yield from _published(slot, f"blk.{slot.layer}.", f"layers.{slot.layer}.", LAYER_NAMES)
    for slot in mtp_slots(shape) if with_mtp else ():
        yield from _published(slot, MTP, MTP, MTP_NAMES)


def _published(slot: Slot, ours: str, theirs: str, names: Mapping[str, str]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the published tensors that make up a tensor of a layer; ``ours`` and ``theirs`` are its prefixes."""
    name, dims = slot.name.removeprefix(ours), slot.dims[::-1]
    if name not in EXPERT_NAMES:
        yield theirs + names[name], dims
        return
    for expert in range(dims[0]):
        yield f"{theirs}ffn.experts.{expert}.{EXPERT_NAMES[name]}.weight", dims[1:]


def _plan(name: str, dims: tuple[int, ...], values: np.ndarray) -> PlannedTensor:
    if name.endswith(_TABLE):
        return PlannedTensor(name, "I64", dims, lambda: np.rint(values).astype("<i8"))
    if _F32.fullmatch(name):
        return PlannedTensor(name, "F32", dims, lambda: np.asarray(values, "<f4"))
    return PlannedTensor(name, "BF16", dims, partial(to_bf16, values))
