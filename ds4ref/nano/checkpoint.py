"""Writes models in DeepSeek's published layout, safetensors with JSON files: from a GGUF file or from trained weights.

``write_checkpoint`` rounds weights to the formats that DeepSeek publishes: E4M3 with an E8M0 scale per 128 x 128 block
in attention and shared experts, E2M1 with an E8M0 scale per 32 inputs in routed experts, BF16 and F32 in the rest
(weights.md). The result serves to test readers of such checkpoints, at any size.

    with open_source("nano.gguf") as source:
        write_checkpoint(source, "folder")
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..archs.deepseek4.published import EXPERT_NAMES, FLOATS, INTS, LAYER_NAMES, MODEL_NAMES
from ..archs.deepseek4.shape import MERGES_KEY, PREFIX, TOKENS_KEY, ModelShape
from ..archs.deepseek4.tensors import MTP
from ..errors import DataError, UsageError
from ..text.protocol import SPECIALS
from ..text.published import TOKENIZER
from ..weights.safetensors import CONFIG
from ..weights.safetensors_writer import SHARD_BYTES, PlannedTensor, write_folder, write_json

if TYPE_CHECKING:
    from ..weights.source import TensorInfo, TensorSource

FP8 = ("attn_q_a", "attn_q_b", "attn_kv", "attn_output_a", "attn_output_b", "indexer.attn_q_b",
       "ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp")  # fmt: skip
BF16 = ("token_embd", "output", "output_norm", "attn_norm", "ffn_norm", "attn_q_a_norm", "attn_kv_a_norm",
        "attn_compressor_norm", "indexer_compressor_norm", "indexer.proj", "ffn_gate_inp")  # fmt: skip
"""Tensors stored as FP8 and as BF16, named without "blk.N." and ".weight"; others are stored as FP4 (routed experts),
I64 (hash routing) or F32."""

_TINY = re.compile(r".*(?:hc_\w+_(?:base|scale)|attn_sink|gate\.bias)")
"""Published names of the small trained tensors that are stored as F32; ``write_trained`` stores others as BF16."""

SPLITS = (
    r"\p{N}{1,3}",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)
"""Regular expressions by which DeepSeek's pre-tokenizer splits a text, one after the other; ``text.splits`` combines
them into one."""

BLOCK, GROUP = 128, 32
LARGEST_E4M3, LARGEST_E2M1 = 448.0, 6.0


def write_checkpoint(source: TensorSource, folder: str | os.PathLike[str], shard_bytes: int = SHARD_BYTES) -> None:
    """Write the model of ``source`` as a folder, config.json last, so that an interrupted one is not taken for a model.

    shard_bytes: maximum size of a safetensors file. Raise UsageError if a published config cannot express the model,
    DataError if the folder cannot be written.
    """
    shape = ModelShape.from_metadata(source)
    if len(set(shape.swiglu_limit)) != 1:
        raise UsageError("a config has one SwiGLU limit for all layers")
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise DataError(f"cannot make {folder}: {error.strerror or error}") from None
    write_folder(folder, list(plans(source, shape)), shard_bytes)
    if source.metadata.type_of(TOKENS_KEY) == "string[]":
        write_json(Path(folder) / TOKENIZER, tokenizer(source.metadata[TOKENS_KEY], source.metadata[MERGES_KEY]))
    write_json(Path(folder) / CONFIG, config(shape))


def config(shape: ModelShape, quantized: bool = True) -> dict[str, Any]:
    """Return the contents of config.json, with DeepSeek's keys; ``quantized``: weights are stored as FP8 and FP4."""
    values = {key: value for key, _, value in shape.metadata()}
    stored = {
        "expert_dtype": "fp4",
        "quantization_config": {
            "quant_method": "fp8",
            "fmt": "e4m3",
            "scale_fmt": "ue8m0",
            "activation_scheme": "dynamic",
            "weight_block_size": [BLOCK, BLOCK],
        },
    }
    return {
        "architectures": ["DeepseekV4ForCausalLM"],
        "model_type": "deepseek_v4",
        "_name_or_path": shape.name,
        **{theirs: values[PREFIX + ours] for ours, theirs in (*INTS, *FLOATS)},
        "num_key_value_heads": 1,
        "qk_rope_head_dim": shape.rope_dim,
        "num_hash_layers": shape.n_hash_layers,
        "norm_topk_prob": shape.norm_weights,
        "scoring_func": "sqrtsoftplus",
        "swiglu_limit": shape.swiglu_limit[0],
        "compress_ratios": list(shape.ratios),
        "rope_theta": shape.rope_theta,
        "compress_rope_theta": shape.compress_theta,
        "rope_scaling": {
            "type": "yarn",
            "factor": shape.yarn_factor,
            "original_max_position_embeddings": shape.yarn_orig_ctx,
            "beta_fast": shape.yarn_beta_fast,
            "beta_slow": shape.yarn_beta_slow,
        },
        "max_position_embeddings": int(shape.yarn_orig_ctx * shape.yarn_factor),
        "bos_token_id": 0,
        "eos_token_id": 1,
        "tie_word_embeddings": False,
        "hidden_act": "silu",
        "torch_dtype": "bfloat16",
        **(stored if quantized else {}),
    }


def write_trained(
    folder: str | os.PathLike[str], shape: ModelShape, tensors: Mapping[str, np.ndarray], tokenizer: dict[str, Any]
) -> None:
    """Write trained weights as a folder: matrices and norms as BF16, nothing quantized; config.json comes last.

    tensors: published name -> float32 values; hash routing tables hold whole numbers of any type. The block for
    multi-token prediction (``mtp.0.*``) is written if its tensors are there. tokenizer: contents of tokenizer.json.
    """
    os.makedirs(folder, exist_ok=True)
    write_folder(folder, [_trained(name, values) for name, values in tensors.items()])
    write_json(Path(folder) / TOKENIZER, tokenizer)
    with_mtp = any(name.startswith(MTP) for name in tensors)
    entries = {**config(shape, quantized=False), "num_nextn_predict_layers": int(with_mtp)}
    write_json(Path(folder) / CONFIG, entries)


def _trained(name: str, values: np.ndarray) -> PlannedTensor:
    if name.endswith("tid2eid"):
        return PlannedTensor(name, "I64", values.shape, lambda: np.rint(values).astype("<i8"))
    if _TINY.fullmatch(name):
        return PlannedTensor(name, "F32", values.shape, lambda: np.asarray(values, "<f4"))
    return PlannedTensor(name, "BF16", values.shape, partial(to_bf16, values))


def tokenizer(tokens: list[str], merges: list[str]) -> dict[str, Any]:
    """Return the contents of tokenizer.json for a byte-level vocabulary."""
    bytes_only = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    split = [
        {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False} for regex in SPLITS
    ]
    added = [
        {"id": i, "content": token, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
         "special": True}
        for i, token in enumerate(tokens) if token in SPECIALS
    ]  # fmt: skip
    return {
        "version": "1.0",
        "added_tokens": added,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*split, bytes_only]},
        "decoder": bytes_only,
        "model": {"type": "BPE", "vocab": {token: i for i, token in enumerate(tokens)}, "merges": merges},
    }


def plans(source: TensorSource, shape: ModelShape) -> Iterator[PlannedTensor]:
    """Yield all published tensors, routed experts last."""
    names = [(ours, theirs) for ours, theirs in MODEL_NAMES.items()]
    for layer in range(shape.n_layers):
        names += [(f"blk.{layer}.{ours}", f"layers.{layer}.{theirs}") for ours, theirs in LAYER_NAMES.items()]
    for ours, theirs in names:
        if ours in source.tensors:
            yield from _plain(source, source.tensors[ours], theirs)
    for layer in range(shape.n_layers):
        for ours, theirs in EXPERT_NAMES.items():
            info = source.tensors[f"blk.{layer}.{ours}"]
            for expert in range(shape.n_experts):
                name = f"layers.{layer}.ffn.experts.{expert}.{theirs}"
                yield from _scaled(name, info.shape[1:], "I8", partial(_values, source, info, expert))


def _plain(source: TensorSource, info: TensorInfo, name: str) -> Iterator[PlannedTensor]:
    role = info.name.removesuffix(".weight")
    role = role.split(".", 2)[2] if role.startswith("blk.") else role
    values = partial(_values, source, info)
    if info.fmt.name == "I32":
        yield PlannedTensor(name, "I64", info.shape, lambda: source.raw(info.name).view("<i4").astype("<i8"))
    elif role in FP8:
        yield from _scaled(name.removesuffix(".weight"), info.shape, "F8_E4M3", values)
    elif role in BF16:
        yield PlannedTensor(name, "BF16", info.shape, lambda: to_bf16(values()))
    else:
        yield PlannedTensor(name, "F32", info.shape, values)


def _values(source: TensorSource, info: TensorInfo, expert: int | None = None) -> np.ndarray:
    """Return the values of a tensor, or of its matrix for one expert, as float32."""
    raw = source.raw(info.name).reshape(*info.shape[:-1], -1)
    return info.fmt.dequantize(raw if expert is None else raw[expert])


def _scaled(name: str, shape: tuple[int, ...], dtype: str, values: Callable[[], np.ndarray]) -> Iterator[PlannedTensor]:
    """Yield two tensors for a matrix, its codes and its scales; both are computed when the first one is written, and
    released when the second one is."""
    rows, cols = shape
    results: list[tuple[np.ndarray, np.ndarray]] = []

    def make(index: int) -> np.ndarray:
        if not results:
            results.append(to_fp8(values()) if dtype == "F8_E4M3" else to_fp4(values()))
        return results[0][index] if index == 0 else results.pop()[index]

    if dtype == "F8_E4M3":
        codes, scales = (rows, cols), (-(-rows // BLOCK), -(-cols // BLOCK))
    else:
        codes, scales = (rows, cols // 2), (rows, cols // GROUP)
    yield PlannedTensor(f"{name}.weight", dtype, codes, lambda: make(0))
    yield PlannedTensor(f"{name}.scale", "F8_E8M0", scales, lambda: make(1))


def to_bf16(values: np.ndarray) -> np.ndarray:
    """Return float32 values rounded to bfloat16, ties to even, as uint16 bit patterns; NaN stays NaN."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(values), (bits >> 16) | 0x40, rounded).astype("<u2")


def to_fp8(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Quantize float32 (rows, cols) to E4M3 codes (rows, cols) and E8M0 scales (rows / 128, cols / 128), these
    dimensions rounded up."""
    rows, cols = values.shape
    high, wide = -(-rows // BLOCK), -(-cols // BLOCK)
    padded = np.zeros((high * BLOCK, wide * BLOCK), np.float32)
    padded[:rows, :cols] = values
    blocks = padded.reshape(high, BLOCK, wide, BLOCK)
    exponent = _exponent(np.abs(blocks).max(axis=(1, 3)), LARGEST_E4M3)
    codes = _nearest(np.ldexp(blocks, -exponent[:, None, :, None]), 3, -9, 7)
    return codes.reshape(high * BLOCK, wide * BLOCK)[:rows, :cols], (exponent + 127).astype(np.uint8)


def to_fp4(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Quantize float32 (rows, cols) to E2M1 codes (rows, cols / 2), two per byte, the first in the low 4 bits, and E8M0
    scales (rows, cols / 32).
    """
    rows, cols = values.shape
    groups = values.reshape(rows, cols // GROUP, GROUP)
    exponent = _exponent(np.abs(groups).max(axis=2), LARGEST_E2M1)
    codes = _nearest(np.ldexp(groups, -exponent[:, :, None]), 1, -1, 3).reshape(rows, cols)
    return codes[:, ::2] | codes[:, 1::2] << 4, (exponent + 127).astype(np.uint8)


def _exponent(largest: np.ndarray, most: float) -> np.ndarray:
    """Return the smallest exponent e, in the range of E8M0, with ``largest`` / 2^e at most ``most``."""
    fraction, exponent = np.frexp(largest / np.float32(most))
    power = np.where(fraction == 0.5, exponent - 1, exponent)
    return np.where(largest == 0, 0, power).clip(-127, 127).astype(np.int32)


def _nearest(values: np.ndarray, fraction: int, least: int, sign_bit: int) -> np.ndarray:
    """Return the codes of the nearest floats with ``fraction`` mantissa bits and steps of at least 2^``least``.

    Ties go to the even code. Codes of one exponent follow those of the one below, so rounding up may carry into it.
    """
    size = np.abs(values).astype(np.float32)
    exponent = (size.view(np.uint32) >> 23).astype(np.int32) - 127 - fraction
    np.maximum(exponent, least, out=exponent)
    code = np.rint(np.ldexp(size, -exponent)).astype(np.int32) + ((exponent - least) << fraction)
    return (code | np.signbit(values).astype(np.int32) << sign_bit).astype(np.uint8)
