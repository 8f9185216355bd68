"""Gemma 3's text models in Hugging Face's layout: names and config of its checkpoints, by ``archs.dense.published``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...weights.accounting import inert
from ...weights.config import Config
from ..dense import published, windows
from ..dense.shape import WINDOW_THETA, every
from . import FAMILY

if TYPE_CHECKING:
    from ...weights.published import MetadataEntry, TensorParts
    from ...weights.safetensors import Checkpoint

HEAD_DIM = 256
"""Value of an absent ``head_dim`` and of an absent ``query_pre_attn_scalar``."""
SPLIT = ("full_attention", "sliding_attention")


def _window(config: Config, layers: int) -> windows.Window:
    return windows.fixed(config, every(FAMILY.full, layers)), ()


def _rope(config: Config) -> Config:
    """Return the rope of layers without a window, nested in newer configs."""
    part = config.part("rope_parameters")
    return part.part("full_attention") if any(kind in part.values for kind in SPLIT) else published.rope_values(config)


OWN = published.Own(
    _window, rope=_rope, head_dim=HEAD_DIM, rope_theta=1e6, tied=True, norm_plus=1.0,
    activation=("hidden_activation", "gelu_pytorch_tanh"),
    names={"post_attention_norm": "post_attention_layernorm", "ffn_norm": "pre_feedforward_layernorm",
           "post_ffw_norm": "post_feedforward_layernorm"},
)  # fmt: skip
INERT = (*published.INERT, inert("how transformers keeps the cache", "cache_implementation"))
INERT_TENSORS = published.INERT_TENSORS


def metadata(config: Config, checkpoint: Checkpoint) -> list[MetadataEntry]:
    """Implement ``weights.published.Family.metadata``."""
    if config.flag("use_bidirectional_attention", False):
        raise config.fail("use_bidirectional_attention", "is true, which is not supported here")
    for key in ("attn_logit_softcapping", "final_logit_softcapping"):
        if config.has(key):
            raise config.fail(key, "is given, which is not supported here")
    for key in ("sliding_window_pattern", "_sliding_window_pattern"):
        if config.integer(key, FAMILY.full) != FAMILY.full:
            raise config.fail(key, f"is not {FAMILY.full}, which is not supported here")
    scale, size = config.number("query_pre_attn_scalar", HEAD_DIM), config.integer("head_dim", HEAD_DIM)
    if scale != size:
        raise config.fail("query_pre_attn_scalar", f"is {scale:g}, only head_dim ({size}) is supported here")
    base = (FAMILY.name + "." + WINDOW_THETA, "f64", _window_base(config))
    return [*published.metadata(config, checkpoint, FAMILY, OWN), base]


def parts(config: Config, checkpoint: Checkpoint) -> list[TensorParts]:
    """Implement ``weights.published.Family.parts``."""
    return published.parts(config, checkpoint, FAMILY, OWN)


def _window_base(config: Config) -> float:
    """Return the base of rope in windowed layers, whose angles are not stretched."""
    part = config.part("rope_parameters").part("sliding_attention")
    if part.text("rope_type", "default") != "default":
        raise part.fail("rope_type", "is not 'default', which is not supported here")
    return part.number("rope_theta", config.number("rope_local_base_freq", 10000.0))
