"""Dense Qwen3: rope on halves of a head, after a norm of query and key heads. The pass is ``archs.dense``."""

from __future__ import annotations

from ..dense import Dense, Family

FAMILY = Family("qwen3", halves=True, qk_norm=True)
_ARCH = Dense(FAMILY)
read_shape, bind, model, costs = _ARCH.read_shape, _ARCH.bind, _ARCH.model, _ARCH.costs
collector = _ARCH.collector

__all__ = ["FAMILY", "bind", "collector", "costs", "model", "read_shape"]
