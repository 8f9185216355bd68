"""Qwen2 in Hugging Face's layout: names and config of its checkpoints, by ``archs.dense.published``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...weights.accounting import inert
from ..dense import published, windows
from . import FAMILY

if TYPE_CHECKING:
    from ...weights.config import Config
    from ...weights.published import MetadataEntry, TensorParts
    from ...weights.safetensors import Checkpoint

OWN = published.Own(windows.layered)
INERT = (
    *published.INERT, windows.INERT, inert("positions of text alone", "use_mrope", False),
    inert("queries, keys and values have biases in any case", "attention_bias"),
)  # fmt: skip
INERT_TENSORS = published.INERT_TENSORS
METHODS = published.METHODS


def metadata(config: Config, checkpoint: Checkpoint) -> list[MetadataEntry]:
    """Implement ``weights.published.Family.metadata``."""
    return published.metadata(config, checkpoint, FAMILY, OWN)


def parts(config: Config, checkpoint: Checkpoint) -> list[TensorParts]:
    """Implement ``weights.published.Family.parts``."""
    return published.parts(config, checkpoint, FAMILY, OWN)
