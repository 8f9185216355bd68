"""Qwen2 in Hugging Face's layout: names and config of its checkpoints, by ``archs.dense.published``."""

from __future__ import annotations

from functools import partial

from ...weights.accounting import inert
from ..dense import published, windows
from . import FAMILY

OWN = published.Own(windows.layered)
INERT = (
    *published.INERT, windows.INERT, inert("positions of text alone", "use_mrope", False),
    inert("queries, keys and values have biases in any case", "attention_bias"),
)  # fmt: skip
INERT_TENSORS = published.INERT_TENSORS
metadata = partial(published.metadata, family=FAMILY, own=OWN)
parts = partial(published.parts, family=FAMILY, own=OWN)
