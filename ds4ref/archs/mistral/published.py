"""Mistral in Hugging Face's layout: names and config of its checkpoints, by ``archs.dense.published``."""

from __future__ import annotations

from functools import partial

from ..dense import published, windows
from ..llama import FAMILY

OWN = published.Own(windows.mistral)
INERT, INERT_TENSORS = published.INERT, published.INERT_TENSORS
metadata = partial(published.metadata, family=FAMILY, own=OWN)
parts = partial(published.parts, family=FAMILY, own=OWN)
