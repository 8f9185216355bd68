"""Llama 1 to 3 and similar models, llama2.c's stories included: rope on adjacent channels, no norm of heads.

Rows of ``attn_q`` and ``attn_k`` are in the order of GGUF, llama2.c's and Meta's own files; Hugging Face's checkpoints
use another order, which ``published`` converts. The pass is ``archs.dense``.
"""

from __future__ import annotations

from ..dense import Dense, Family

FAMILY = Family("llama", halves=False, qk_norm=False)
_ARCH = Dense(FAMILY)
read_shape, bind, model, costs = _ARCH.read_shape, _ARCH.bind, _ARCH.model, _ARCH.costs
collector = _ARCH.collector

__all__ = ["FAMILY", "bind", "collector", "costs", "model", "read_shape"]
