"""Llama 1 to 3 and what is built alike, llama2.c's stories among it: adjacent channels turn together, heads are not
normed. Tensors of ``q`` and ``k`` are in the order of GGUF files and llama2.c's, which Meta's own files have, too
(Hugging Face's checkpoints have another: ``published``). The pass is ``archs.dense``."""

from __future__ import annotations

from ..dense import Dense, Family

FAMILY = Family("llama", halves=False, qk_norm=False)
_ARCH = Dense(FAMILY)
read_shape, bind, model, costs = _ARCH.read_shape, _ARCH.bind, _ARCH.model, _ARCH.costs
collector = _ARCH.collector

__all__ = ["FAMILY", "bind", "collector", "costs", "model", "read_shape"]
