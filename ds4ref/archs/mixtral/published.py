"""Mixtral in Hugging Face's layout: names and config of its checkpoints, by ``archs.dense.published``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..dense import published, windows
from ..dense.published_experts import ExpertNames
from ..llama import FAMILY

if TYPE_CHECKING:
    from ...weights.config import Config
    from ...weights.published import MetadataEntry, TensorParts
    from ...weights.safetensors import Checkpoint

EXPERTS = ExpertNames("block_sparse_moe", ("w1", "w3", "w2"), ("num_local_experts",), 8, 2, "intermediate_size")
OWN = published.Own(windows.mixtral, rms_eps=1e-5, rope_theta=1e6, experts=EXPERTS)
INERT, INERT_TENSORS = published.INERT, published.INERT_TENSORS
METHODS = published.METHODS


def metadata(config: Config, checkpoint: Checkpoint) -> list[MetadataEntry]:
    """Implement ``weights.published.Family.metadata``."""
    return published.metadata(config, checkpoint, FAMILY, OWN)


def parts(config: Config, checkpoint: Checkpoint) -> list[TensorParts]:
    """Implement ``weights.published.Family.parts``."""
    return published.parts(config, checkpoint, FAMILY, OWN)
