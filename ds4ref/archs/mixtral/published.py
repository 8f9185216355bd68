"""Mixtral in Hugging Face's layout: names and config of its checkpoints, by ``archs.dense.published``."""

from __future__ import annotations

from functools import partial

from ..dense import published, windows
from ..dense.published_experts import ExpertNames
from ..llama import FAMILY

EXPERTS = ExpertNames("block_sparse_moe", ("w1", "w3", "w2"), ("num_local_experts",), 8, 2, "intermediate_size")
OWN = published.Own(windows.mixtral, rms_eps=1e-5, rope_theta=1e6, experts=EXPERTS)
INERT, INERT_TENSORS = published.INERT, published.INERT_TENSORS
metadata = partial(published.metadata, family=FAMILY, own=OWN)
parts = partial(published.parts, family=FAMILY, own=OWN)
