"""Dense decoders in Hugging Face's layout: maps tensor names and config values to those of a GGUF file.

Keys and tensors that are neither used here nor listed in ``INERT`` and ``INERT_TENSORS`` are refused
(``weights.accounting``). Rows of Llama's query and key matrices are reordered as in GGUF files, where the two channels
of a RoPE pair are adjacent. Llama 3's RoPE scaling becomes the tensor ``rope_freqs.weight``, as in llama.cpp.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ...errors import ModelFileError
from ...weights.accounting import Inert, inert
from ...weights.cursor import quote
from ...weights.published import TensorParts
from .published_experts import ExpertNames
from .rope import llama3_divisors
from .shape import Family, Scaling, expert_entries, scaling_entries, window_entries, yarn_magnitude

if TYPE_CHECKING:
    from ...weights.config import Config
    from ...weights.published import MetadataEntry
    from ...weights.safetensors import Checkpoint

MODEL_NAMES = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
HEAD = "lm_head.weight"
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
MAX_LAYERS, MAX_HEADS, MAX_HEAD_DIM = 1024, 1 << 12, 1 << 12

INERT = (
    inert("channels are paired in halves, the only way here", "rope_interleaved", False),
    inert("describes the file", "is_llama_config transformers.js_config.* max_sequence_length"),
)
"""Keys of config.json that have no effect in dense families, in addition to those of ``weights.inert.CONFIG``."""
INERT_TENSORS = (
    inert("frequencies of rope, which the config determines", "model.layers.*.self_attn.rotary_emb.inv_freq"),
)


def rope_values(config: Config) -> Config:
    """Return the config object with RoPE's base and scaling: ``rope_scaling`` if the config has it, as in transformers,
    else ``rope_parameters``."""
    return config.part("rope_scaling" if config.values.get("rope_scaling") else "rope_parameters")


@dataclass(frozen=True)
class Published:
    """How to read a family's folders in Hugging Face's layout; implements ``weights.published.Family``.

    INERT, INERT_TENSORS  config keys and tensors that have no effect
    window      function of ``windows`` that reads the sliding window: tokens (0: none), which layers (empty: all)
    rms_eps     default of ``rms_norm_eps``, if the config does not state it
    rope_theta  default of ``rope_theta``
    experts     how the family's configs and tensors name experts; None: it has none
    names       GGUF name -> module name, where it differs from ``LAYER_NAMES``
    norm_plus   number to add to the weights of norms
    tied        default of ``tie_word_embeddings``
    activation  config key of the activation function, and the only supported value
    rope        function that returns the config object with RoPE's base and scaling
    head_dim    default of ``head_dim``; 0: the width divided by the number of heads
    """

    family: Family
    window: Callable[[Config, int], tuple[int, tuple[bool, ...]]]
    INERT: tuple[Inert, ...] = INERT
    INERT_TENSORS: tuple[Inert, ...] = INERT_TENSORS
    rms_eps: float = 1e-6
    rope_theta: float = 10000.0
    experts: ExpertNames | None = None
    names: dict[str, str] | None = None
    norm_plus: float = 0.0
    tied: bool = False
    activation: tuple[str, str] = ("hidden_act", "silu")
    rope: Callable[[Config], Config] = rope_values
    head_dim: int = 0

    def metadata(self, config: Config, checkpoint: Checkpoint) -> list[MetadataEntry]:
        """Implement ``weights.published.Family.metadata``."""
        self._refuse_what_differs(config)
        layers, heads, shared, size = self._sizes(config)
        window, windowed = self.window(config, layers)
        scaling = self._scaling(config)
        at = self.family.name + "."
        return [
            ("general.architecture", "string", self.family.name),
            ("general.name", "string", config.text("_name_or_path", "") or checkpoint.folder.resolve().name),
            (at + "block_count", "u32", layers),
            (at + "embedding_length", "u32", config.integer("hidden_size")),
            (at + "feed_forward_length", "u32", config.integer("intermediate_size")),
            (at + "vocab_size", "u32", config.integer("vocab_size")),
            (at + "context_length", "u32", config.integer("max_position_embeddings", 1 << 30)),
            (at + "attention.head_count", "u32", heads),
            (at + "attention.head_count_kv", "u32", shared),
            (at + "attention.key_length", "u32", size),
            (at + "attention.value_length", "u32", size),
            (at + "rope.dimension_count", "u32", size),
            # f64 keeps the number as the config states it; f32 would round it
            (at + "attention.layer_norm_rms_epsilon", "f64", config.number("rms_norm_eps", self.rms_eps)),
            (at + "rope.freq_base", "f64", self._theta(config)),
            *((key, "f64" if kind == "f32" else kind, value)
              for key, kind, value in scaling_entries(at, Scaling() if scaling.kind == "llama3" else scaling)),
            *window_entries(at, window, windowed),
            *(expert_entries(at, self.family, self.experts.sizes(config)) if self.experts else []),
        ]  # fmt: skip

    def parts(self, config: Config, checkpoint: Checkpoint) -> list[TensorParts]:
        """Implement ``weights.published.Family.parts``. Missing tensors are left out; binding reports them by their
        GGUF names."""
        layers, heads, shared, size = self._sizes(config)
        tensors = checkpoint.tensors
        tensor_parts = [TensorParts(ours, (theirs,)) for ours, theirs in MODEL_NAMES.items() if theirs in tensors]
        # if there is a head tensor, use it, even if the config ties the head, as transformers does since version 5
        tied = config.flag("tie_word_embeddings", self.tied)
        if HEAD in tensors:
            tensor_parts.append(TensorParts("output.weight", (HEAD,)))
        elif not tied:
            raise ModelFileError(checkpoint.path, f"tensor {HEAD} is missing, and the config does not tie the head")
        scaling = self._scaling(config)
        if scaling.kind == "llama3":
            divisors = llama3_divisors(size, self._theta(config), scaling)
            tensor_parts.append(TensorParts("rope_freqs.weight", (), made=divisors))
        tensor_parts += self._layer_parts(layers, heads, shared, size, tensors)
        if self.norm_plus:
            tensor_parts = [
                part._replace(plus=self.norm_plus * part.name.endswith("norm.weight")) for part in tensor_parts
            ]
        if self.experts:
            count = self.experts.sizes(config)[0]
            tensor_parts += [part for layer in range(layers) for part in self.experts.parts(layer, count)]
        return tensor_parts

    def _layer_parts(
        self, layers: int, heads: int, shared: int, size: int, tensors: Collection[str]
    ) -> Iterator[TensorParts]:
        orders = {} if self.family.halves else {"attn_q": adjacent(heads, size), "attn_k": adjacent(shared, size)}
        for layer in range(layers):
            for ours, theirs in (LAYER_NAMES | (self.names or {})).items():
                name = f"model.layers.{layer}.{theirs}.weight"
                if name in tensors:
                    yield TensorParts(f"blk.{layer}.{ours}.weight", (name,), orders.get(ours))
            for ours in ("attn_q", "attn_k", "attn_v") if self.family.biases else ():
                name = f"model.layers.{layer}.{LAYER_NAMES[ours]}.bias"
                if name in tensors:
                    yield TensorParts(f"blk.{layer}.{ours}.bias", (name,))

    def _sizes(self, config: Config) -> tuple[int, int, int, int]:
        """Return the numbers of layers, query heads, KV heads and channels per head."""
        layers = config.integer("num_hidden_layers", low=1, high=MAX_LAYERS)
        heads = config.integer("num_attention_heads", low=1, high=MAX_HEADS)
        shared = config.integer("num_key_value_heads", heads, low=1, high=MAX_HEADS)
        size = config.integer(
            "head_dim", self.head_dim or config.integer("hidden_size") // heads, low=2, high=MAX_HEAD_DIM
        )
        if size % 2:
            raise config.fail("head_dim", f"is {size}, rope needs an even one")
        return layers, heads, shared, size

    def _refuse_what_differs(self, config: Config) -> None:
        key, wanted = self.activation
        if config.text(key, wanted) != wanted:
            raise config.fail(key, f"is {quote(config.text(key), 40)}, wanted {wanted!r}")
        for key in ("mlp_bias",) if self.family.biases else ("attention_bias", "mlp_bias"):
            if config.flag(key, False):
                raise config.fail(key, "is true, which is not supported here")
        for part in (config, self.rope(config)):
            if part.number("partial_rotary_factor", 1.0) != 1.0:
                raise part.fail("partial_rotary_factor", "is not 1, which is not supported here")

    def _theta(self, config: Config) -> float:
        return self.rope(config).number("rope_theta", config.number("rope_theta", self.rope_theta))

    def _scaling(self, config: Config) -> Scaling:
        part = self.rope(config)
        kind = part.agreed("rope_type", "type", default="default")
        if kind == "default":
            return Scaling()
        if kind not in ("linear", "yarn", "llama3"):
            raise part.fail("rope_type", f"is {quote(kind, 40)}, not one of default, linear, yarn, llama3")
        factor = part.number("factor")
        if kind == "linear":
            return Scaling(kind, factor)
        trained = _trained(config, part)
        if kind == "llama3":
            return Scaling(kind, factor, trained, part.number("high_freq_factor"), part.number("low_freq_factor"))
        if not part.flag("truncate", True):
            raise part.fail("truncate", "is false, which is not supported here")
        fast, slow = part.number("beta_fast", 32.0), part.number("beta_slow", 1.0)
        return Scaling(kind, factor, trained, fast, slow, _yarn_gain(part, factor))


def adjacent(heads: int, size: int) -> np.ndarray:
    """Return the order of rows, new -> old (heads * size,), that makes the two channels of each RoPE pair adjacent,
    which were half a head apart; ``size``: channels per head."""
    return np.arange(heads * size).reshape(heads, 2, size // 2).swapaxes(1, 2).reshape(-1)


def _trained(config: Config, part: Config) -> int:
    """Return the context length before RoPE scaling: as the config states it, else as ``part``, its RoPE object,
    does, else the whole context."""
    key = "original_max_position_embeddings"
    outer, inner = config.integer(key, 0), part.integer(key, 0)
    if outer and inner and outer != inner:
        raise config.fail(key, f"is {outer}, and {inner} where rope is scaled")
    return outer or inner or config.integer("max_position_embeddings", 0)


def _yarn_gain(part: Config, factor: float) -> float:
    """Return the factor of cos and sin in addition to YaRN's own, which llama.cpp's metadata state separately.

    ``attention_factor`` replaces YaRN's own factor; so does a ratio that follows from ``mscale`` and ``mscale_all_dim``
    (both above 0), if the config has both.
    """
    own = yarn_magnitude(factor)
    if part.has("attention_factor"):
        return part.number("attention_factor") / own
    if part.has("mscale") and part.has("mscale_all_dim"):
        scales = part.number("mscale"), part.number("mscale_all_dim")
        if min(scales) <= 0:
            raise part.fail("mscale" if scales[0] <= 0 else "mscale_all_dim", "is not above 0")
        above, below = ((own - 1) * scale + 1 for scale in scales)
        return above / below / own
    return 1.0
