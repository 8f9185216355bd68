"""Folders of all published checkpoints, made from their specification: config.json and every tensor, of true size.

The files are holes. Names of tensors beyond the layers, and how many there are, are those that others report of the
published folders.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from ds4ref.archs.deepseek4.shape import FLASH, PRO, VISION_EXP, ModelShape
from ds4ref.archs.deepseek4.tensors import expected_tensors
from ds4ref.kernels.formats import FORMATS
from ds4ref.nano.checkpoint import config, plans
from ds4ref.text.chat import MAX_PREFIX
from ds4ref.text.official import BEYOND_PREFIX
from ds4ref.weights.safetensors_writer import PlannedTensor, write_folder, write_json
from ds4ref.weights.source import TensorInfo

MAY, JULY = MAX_PREFIX, MAX_PREFIX + BEYOND_PREFIX
SPARK = {"dspark_block_size": 5, "dspark_noise_token_id": 128799, "dspark_target_layer_ids": [40, 41, 42],
         "dspark_markov_rank": 256, "num_nextn_predict_layers": 1}  # fmt: skip
PRO_SPARK = SPARK | {"dspark_target_layer_ids": [58, 59, 60], "dspark_markov_rank": 512}
VISION = {"vision_n_layers": 32, "vision_dim": 1024, "vision_n_heads": 16, "vision_inter_dim": 2816,
          "vision_patch_size": 14, "vision_rope_theta": 10000.0, "vision_downsample_ratio": 3,
          "vision_max_n_token": 384, "vision_min_pixels": 147456, "vision_max_wh_ratio": 8,
          "image_token_id": 129264}  # fmt: skip


class Release(NamedTuple):
    """A published folder: its constants, keys of config.json beside May's, the text of its encoder, whether its experts
    are FP8, and what it has to be called."""

    shape: ModelShape
    keys: dict[str, Any]
    encoding: str
    fp8: bool
    name: str


MTP = {"num_nextn_predict_layers": 1, "topk_method": "noaux_tc", "first_k_dense_replace": 0}
RELEASES = {
    "DeepSeek-V4-Flash": Release(FLASH, MTP, MAY, False, "DeepSeek V4 Flash preview (April 2026)"),
    "DeepSeek-V4-Flash-Base": Release(FLASH, MTP, "", True, "DeepSeek V4 Flash preview (April 2026), base"),
    "DeepSeek-V4-Pro": Release(PRO, MTP, MAY, False, "DeepSeek V4 Pro preview (April 2026)"),
    "DeepSeek-V4-Pro-Base": Release(PRO, MTP, "", True, "DeepSeek V4 Pro preview (April 2026), base"),
    "DeepSeek-V4-Flash-DSpark": Release(
        FLASH, SPARK, MAY, False, "DeepSeek V4 Flash preview with the DSpark drafter (June 2026)"),
    "DeepSeek-V4-Pro-DSpark": Release(
        PRO, PRO_SPARK, MAY, False, "DeepSeek V4 Pro preview with the DSpark drafter (June 2026)"),
    "DeepSeek-V4-Flash-0731": Release(FLASH, SPARK, JULY, False, "DeepSeek V4 Flash 0731"),
    "DeepSeek-V4-Pro-0813": Release(PRO, PRO_SPARK, JULY, False, "DeepSeek V4 Pro 0813"),
    "DeepSeek-V4-Flash-Vision-Exp": Release(
        VISION_EXP, SPARK | VISION | {"num_nextn_predict_layers": 3}, JULY, False,
        "DeepSeek V4 Flash Vision-Exp (August 2026)"),
}  # fmt: skip


def write_release(folder: Path, release: Release) -> list[PlannedTensor]:
    """Write the folder, and return its tensors."""
    tensors = list(tensors_of(release))
    folder.mkdir()
    write_folder(folder, tensors, sum(tensor.nbytes for tensor in tensors) // 46)
    stages = 3 if "dspark_block_size" in release.keys else 1
    ratios = {"compress_ratios": [*release.shape.ratios, *[0] * stages]}
    write_json(folder / "config.json", config(release.shape) | ratios | release.keys)
    (folder / "encoding").mkdir()
    (folder / "encoding" / "encoding_dsv4.py").write_text(release.encoding)
    return tensors


def tensors_of(release: Release) -> Iterator[PlannedTensor]:
    """Yield the tensors: the model, its drafter, the parts for images."""
    shape, keys = release.shape, release.keys
    for tensor in _planned(shape):
        yield _as_fp8(tensor) if release.fp8 and ".experts." in tensor.name else tensor
    layer = replace(shape, n_layers=1, n_hash_layers=0, ratios=(0,), swiglu_limit=(10.0,))
    stage = [tensor for tensor in _planned(layer) if tensor.name.startswith("layers.0.")]
    stages = len(keys.get("dspark_target_layer_ids", [0]))
    for number in range(stages):
        yield from (tensor._replace(name=tensor.name.replace("layers.0", f"mtp.{number}")) for tensor in stage)
    yield from _drafter(shape, keys.get("dspark_markov_rank"), stages)
    if "vision_dim" in keys:
        yield from _vision(shape, stages)


def _planned(shape: ModelShape) -> Iterator[PlannedTensor]:
    specs = expected_tensors(shape, "q4")
    tensors = {s.name: TensorInfo(s.name, FORMATS[s.fmt], s.dims, 0, s.nbytes) for s in specs}
    for tensor in plans(SimpleNamespace(tensors=tensors), shape):  # type: ignore[arg-type]
        yield tensor._replace(make=None)


def _as_fp8(tensor: PlannedTensor) -> PlannedTensor:
    """Return a tensor of an expert as the base models have it: scales of 128 x 128."""
    rows, cols = tensor.shape
    if tensor.dtype == "I8":
        return tensor._replace(dtype="F8_E4M3", shape=(rows, 2 * cols))
    return tensor._replace(shape=(rows // 128, cols // 4))


def _of(dtype: str, prefix: str, **shapes: tuple[int, ...]) -> Iterator[PlannedTensor]:
    for name, shape in shapes.items():
        yield PlannedTensor(prefix + name.replace("__", "."), dtype, shape, None)


def _drafter(shape: ModelShape, rank: int | None, stages: int) -> Iterator[PlannedTensor]:
    """Yield what a drafter has beside its layers."""
    dim, blocks = shape.dim, shape.dim // 128
    end = f"mtp.{stages - 1}."
    yield from _of("BF16", end, norm__weight=(dim,))
    yield from _of("F32", end, hc_head_fn=(shape.hc, shape.hc * dim), hc_head_base=(shape.hc,), hc_head_scale=(1,))
    if rank is None:
        yield from _of("BF16", end, enorm__weight=(dim,), hnorm__weight=(dim,))
        yield from _of("F8_E4M3", end, e_proj__weight=(dim, dim), h_proj__weight=(dim, dim))
        yield from _of("F8_E8M0", end, e_proj__scale=(blocks, blocks), h_proj__scale=(blocks, blocks))
        return
    yield from _of("F8_E4M3", "mtp.0.", main_proj__weight=(dim, 3 * dim))
    yield from _of("F8_E8M0", "mtp.0.", main_proj__scale=(blocks, 3 * blocks))
    yield from _of("BF16", "mtp.0.", main_norm__weight=(dim,))
    table = (shape.vocab, rank)
    yield from _of("BF16", end + "markov_head.", markov_w1__weight=table, markov_w2__weight=table)
    yield from _of("BF16", end + "confidence_head.", proj__weight=(1, dim + rank))


def _vision(shape: ModelShape, stages: int) -> Iterator[PlannedTensor]:
    """Yield the encoder of images, and the router's bias for their tokens."""
    for block in [*(f"layers.{i}." for i in range(shape.n_layers)), *(f"mtp.{i}." for i in range(stages))]:
        yield from _of("F32", block, ffn__gate__bias_vl=(shape.n_experts,))
    dim, inner, patch = VISION["vision_dim"], VISION["vision_inter_dim"], VISION["vision_patch_size"]
    for layer in range(VISION["vision_n_layers"]):
        yield from _of(
            "BF16", f"vision.blocks.{layer}.", attn__wo__bias=(dim,), attn__wo__weight=(dim, dim),
            attn__wqkv__bias=(3 * dim,), attn__wqkv__weight=(3 * dim, dim), mlp__w1__weight=(2 * inner, dim),
            mlp__w2__weight=(dim, inner), norm1__weight=(dim,), norm2__weight=(dim,),
        )  # fmt: skip
    yield from _of("BF16", "vision.", norm__weight=(dim,), patch_embed__weight=(dim, 3, patch, patch),
                   patch_embed__bias=(dim,))  # fmt: skip
    wide = 9 * dim
    yield from _of("BF16", "aligner.", w1__weight=(shape.dim, wide), w1__bias=(shape.dim,),
                   w2__weight=(shape.dim, shape.dim), w2__bias=(shape.dim,))  # fmt: skip
    yield from _of("BF16", "image_", start=(shape.dim,), end=(shape.dim,), newline=(shape.dim,), pad=(shape.dim,))
