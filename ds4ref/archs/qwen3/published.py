"""Qwen3 in Hugging Face's layout: names and config of its checkpoints, by ``archs.dense.published``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..dense import published, windows
from . import FAMILY

if TYPE_CHECKING:
    from ...weights.config import Config
    from ...weights.published import MetadataEntry, TensorParts
    from ...weights.safetensors import Checkpoint

OWN = published.Own(windows.layered)
INERT, INERT_TENSORS = (*published.INERT, windows.INERT), published.INERT_TENSORS
METHODS = published.METHODS


def metadata(config: Config, checkpoint: Checkpoint) -> list[MetadataEntry]:
    """Implement ``weights.published.Family.metadata``."""
    return published.metadata(config, checkpoint, FAMILY, OWN)


def parts(config: Config, checkpoint: Checkpoint) -> list[TensorParts]:
    """Implement ``weights.published.Family.parts``."""
    return published.parts(config, checkpoint, FAMILY, OWN)
