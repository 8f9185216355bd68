"""Qwen3 with experts in Hugging Face's layout: names and config of its checkpoints, by ``archs.dense.published``."""

from __future__ import annotations

from functools import partial

from ..dense import published, windows
from ..dense.published_experts import ExpertNames
from . import FAMILY

EXPERTS = ExpertNames(
    "mlp", ("gate_proj", "up_proj", "down_proj"), ("num_experts", "num_local_experts"), 128, 8, "moe_intermediate_size",
    (("norm_topk_prob", True, False), ("decoder_sparse_step", 1, 1), ("mlp_only_layers", [], [])),
)  # fmt: skip
"""Refused: weights that are not divided by their sum, layers without experts. GGUF files of this family say neither."""
OWN = published.Own(windows.switched, experts=EXPERTS)
INERT, INERT_TENSORS = (*published.INERT, windows.INERT), published.INERT_TENSORS
metadata = partial(published.metadata, family=FAMILY, own=OWN)
parts = partial(published.parts, family=FAMILY, own=OWN)
