"""The dense families and their formulas; ``Family`` and ``Published`` hold the differences between them.

x (T, D) is the residual stream, norm(x) = x / sqrt(mean(x^2) + eps) * w. Each layer adds two halves to it:

    h = norm(x)
    q = h Wq^T    k = h Wk^T    v = h Wv^T
    q, k rotated by RoPE, pair of channels i by the angle pos * theta^(-2 i / head_dim) / divisor_i
    o_t = sum_s softmax_s(q_t . k_s / sqrt(head_dim)) v_s       over s <= t, and in windowed layers s > t - window
    x = x + o Wo^T
    h = norm(x)
    x = x + (silu(h Wg^T) * (h Wu^T)) Wd^T

Each group of query heads shares one key head and one value head. logits = norm(x) Whead^T; where heads are tied, Whead
is the embedding.

* Llama 1 to 3 and llama2.c's stories (Touvron et al. 2023): RoPE pairs channels 2 i and 2 i + 1. Divisors are 1, or
  those of Llama 3, which the file lists or which follow from its RoPE scaling (``rope``). All other families pair
  channel i with i + half.
* Mistral (Jiang et al. 2023): Llama with a sliding window of ``sliding_window`` tokens in every layer: 4096 in version
  0.1 and if the key is missing, no window if it is null. In GGUF files the architecture is llama. The cache keeps every
  row, so a session can rewind to any position.
* Mixtral (Jiang et al. 2024): Mistral with experts; no window if the key is missing; theta is 1e6 unless stated. 8x7B
  and 8x22B use K = 2 of E = 8 experts.
* Qwen2, Qwen2.5 (2024; biases: Su, 2023): q, k and v have biases. Windows only with ``use_sliding_window``, in the
  layers from ``max_window_layers`` on or in those that ``layer_types`` names.
* Qwen3 (2025): instead of biases, each head of q and k is normed; head_dim times the number of heads may differ from D.
  Windows as in Qwen2.
* Qwen3 with experts: K of E experts replace the feed-forward in every layer; there is no shared expert:

      p = softmax(h Wr^T)                                       over the E experts
      S = the K experts of largest p                            ties to the lower number
      x = x + sum_(e in S) p_e / (sum_S p) * (silu(h Wg_e^T) * (h Wu_e^T)) Wd_e^T

  The quotient equals the softmax of the K chosen logits alone, which is what is computed.
* Gemma 3 text models (2025): x starts as sqrt(D) * embedding; norms multiply by 1 + w (GGUF files hold 1 + w, published
  folders w); each head of q and k is normed; the outputs of attention and feed-forward are normed before they are
  added; GELU (tanh) replaces silu. Every sixth layer attends to all tokens, with theta 1e6 and the file's RoPE scaling;
  the others have a window, and theta 1e4 without scaling. 27B has another factor for attention scores and is refused.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ...weights.accounting import inert
from ...weights.config import Config
from . import Dense, Family, published, windows
from .published import Published
from .published_experts import ExpertNames
from .shape import WINDOW_THETA, every

if TYPE_CHECKING:
    from ...weights.published import MetadataEntry
    from ...weights.safetensors import Checkpoint

LLAMA = Dense(Family("llama", halves=False, qk_norm=False, experts="feed_forward_length"))
QWEN2 = Dense(Family("qwen2", halves=True, qk_norm=False, biases=True))
QWEN3 = Dense(Family("qwen3", halves=True, qk_norm=True))
QWEN3_MOE = Dense(Family("qwen3moe", halves=True, qk_norm=True, experts="expert_feed_forward_length"))
GEMMA3 = Dense(Family("gemma3", halves=True, qk_norm=True, gemma=True, full=6))


_WINDOWS = (*published.INERT, windows.INERT)
_MIXTRAL_EXPERTS = ExpertNames(
    "block_sparse_moe", ("w1", "w3", "w2"), ("num_local_experts",), 8, 2, "intermediate_size"
)
_QWEN3_EXPERTS = ExpertNames(
    "mlp", ("gate_proj", "up_proj", "down_proj"), ("num_experts", "num_local_experts"), 128, 8, "moe_intermediate_size",
    (("norm_topk_prob", True, False), ("decoder_sparse_step", 1, 1), ("mlp_only_layers", [], [])),
)  # fmt: skip
"""Configs of Qwen3 with experts whose routing weights are not divided by their sum, or with layers without experts, are
refused: GGUF files of this family cannot express either."""

LLAMA_FOLDER = Published(LLAMA.family, windows.no_window)
MISTRAL_FOLDER = Published(LLAMA.family, partial(windows.everywhere, windows.PUBLISHED))
MIXTRAL_FOLDER = Published(
    LLAMA.family, partial(windows.everywhere, 0), rms_eps=1e-5, rope_theta=1e6, experts=_MIXTRAL_EXPERTS
)
QWEN2_FOLDER = Published(QWEN2.family, windows.layered, (
    *_WINDOWS, inert("positions of text alone", "use_mrope", False),
    inert("queries, keys and values have biases in any case", "attention_bias"),
))  # fmt: skip
QWEN3_FOLDER = Published(QWEN3.family, windows.layered, _WINDOWS)
QWEN3_MOE_FOLDER = Published(QWEN3_MOE.family, windows.switched, _WINDOWS, experts=_QWEN3_EXPERTS)

HEAD_DIM = 256
"""Default of Gemma 3 for ``head_dim`` and ``query_pre_attn_scalar``, if the config does not state them."""


def _gemma_window(config: Config, layers: int) -> windows.Window:
    return windows.fixed(config, every(GEMMA3.family.full, layers)), ()


def _gemma_rope(config: Config) -> Config:
    """Return the config object with the RoPE parameters of layers without a window, which newer configs nest."""
    part = config.part("rope_parameters")
    nested = any(kind in part.values for kind in (windows.FULL, windows.SLIDING))
    return part.part(windows.FULL) if nested else published.rope_values(config)


class _PublishedGemma(Published):
    """Published folders of Gemma 3, whose configs have more keys that must be checked."""

    def metadata(self, config: Config, checkpoint: Checkpoint) -> list[MetadataEntry]:
        if config.flag("use_bidirectional_attention", False):
            raise config.fail("use_bidirectional_attention", "is true, which is not supported here")
        for key in ("attn_logit_softcapping", "final_logit_softcapping"):
            if config.has(key):
                raise config.fail(key, "is given, which is not supported here")
        for key in ("sliding_window_pattern", "_sliding_window_pattern"):
            if config.integer(key, self.family.full) != self.family.full:
                raise config.fail(key, f"is not {self.family.full}, which is not supported here")
        scale, size = config.number("query_pre_attn_scalar", HEAD_DIM), config.integer("head_dim", HEAD_DIM)
        if scale != size:
            raise config.fail("query_pre_attn_scalar", f"is {scale:g}, only head_dim ({size}) is supported here")
        part = config.part("rope_parameters").part(windows.SLIDING)
        if part.text("rope_type", "default") != "default":  # angles of windowed layers are not stretched
            raise part.fail("rope_type", "is not 'default', which is not supported here")
        base = part.number("rope_theta", config.number("rope_local_base_freq", 10000.0))
        return [*super().metadata(config, checkpoint), (f"{self.family.name}.{WINDOW_THETA}", "f64", base)]


GEMMA3_FOLDER = _PublishedGemma(
    GEMMA3.family, _gemma_window, (*published.INERT, inert("how transformers keeps the cache", "cache_implementation")),
    rope=_gemma_rope, head_dim=HEAD_DIM, rope_theta=1e6, tied=True, norm_plus=1.0,
    activation=("hidden_activation", "gelu_pytorch_tanh"),
    names={"post_attention_norm": "post_attention_layernorm", "ffn_norm": "pre_feedforward_layernorm",
           "post_ffw_norm": "post_feedforward_layernorm"},
)  # fmt: skip
