"""Hugging Face's DeepseekV4ForCausalLM as an oracle: the same GGUF, float32, eager attention, CPU.

It shares no code with us: the container and the dequantizers come from the ``gguf`` package, the model from
``transformers``; so an error of ours cannot cancel out. Two traps are handled here:

* a default ``DeepseekV4Config()`` has another layer schedule and no YaRN, and only the nested form of
  ``rope_parameters`` leaves nothing to its defaults;
* YaRN's magnitude factor must be forced to 1 (``attention_factor``).

What it leaves out: bf16 (Hugging Face's default dtype), batches, every rounding (there are none in this oracle).

    oracle = Oracle.load("tiny.gguf")
    logits = oracle.logits(ids)                  # (T, V) float32
    trace = oracle.record(ids)                   # streams, router and indexer choices as well
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import gguf
import numpy as np
import torch
from transformers import DeepseekV4Config, DeepseekV4ForCausalLM

PREFIX = "deepseek4."
LAYER_TYPES = {0: "sliding_attention", 4: "compressed_sparse_attention", 128: "heavily_compressed_attention"}

TOP_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output.weight": "lm_head.weight",
    "output_norm.weight": "model.norm.weight",
    "output_hc_fn.weight": "model.hc_head.hc_fn",
    "output_hc_base.weight": "model.hc_head.hc_base",
    "output_hc_scale.weight": "model.hc_head.hc_scale",
}
LAYER_NAMES = {
    "hc_attn_fn.weight": "attn_hc.fn",
    "hc_attn_base.weight": "attn_hc.base",
    "hc_attn_scale.weight": "attn_hc.scale",
    "hc_ffn_fn.weight": "ffn_hc.fn",
    "hc_ffn_base.weight": "ffn_hc.base",
    "hc_ffn_scale.weight": "ffn_hc.scale",
    "attn_norm.weight": "input_layernorm.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "attn_q_a.weight": "self_attn.q_a_proj.weight",
    "attn_q_a_norm.weight": "self_attn.q_a_norm.weight",
    "attn_q_b.weight": "self_attn.q_b_proj.weight",
    "attn_kv.weight": "self_attn.kv_proj.weight",
    "attn_kv_a_norm.weight": "self_attn.kv_norm.weight",
    "attn_sinks.weight": "self_attn.sinks",
    "attn_output_a.weight": "self_attn.o_a_proj.weight",
    "attn_output_b.weight": "self_attn.o_b_proj.weight",
    "attn_compressor_kv.weight": "self_attn.compressor.kv_proj.weight",
    "attn_compressor_gate.weight": "self_attn.compressor.gate_proj.weight",
    "attn_compressor_ape.weight": "self_attn.compressor.position_bias",
    "attn_compressor_norm.weight": "self_attn.compressor.kv_norm.weight",
    "indexer.attn_q_b.weight": "self_attn.compressor.indexer.q_b_proj.weight",
    "indexer.proj.weight": "self_attn.compressor.indexer.scorer.weights_proj.weight",
    "indexer_compressor_kv.weight": "self_attn.compressor.indexer.kv_proj.weight",
    "indexer_compressor_gate.weight": "self_attn.compressor.indexer.gate_proj.weight",
    "indexer_compressor_ape.weight": "self_attn.compressor.indexer.position_bias",
    "indexer_compressor_norm.weight": "self_attn.compressor.indexer.kv_norm.weight",
    "ffn_gate_inp.weight": "mlp.gate.weight",
    "exp_probs_b.bias": "mlp.gate.e_score_correction_bias",
    "ffn_gate_tid2eid.weight": "mlp.gate.tid2eid",
    "ffn_down_exps.weight": "mlp.experts.down_proj",
    "ffn_gate_shexp.weight": "mlp.shared_experts.gate_proj.weight",
    "ffn_up_shexp.weight": "mlp.shared_experts.up_proj.weight",
    "ffn_down_shexp.weight": "mlp.shared_experts.down_proj.weight",
}


def _metadata(reader: gguf.GGUFReader) -> dict[str, Any]:
    """Scalars and small arrays under ``deepseek4.``, prefix removed."""
    return {k[len(PREFIX) :]: f.contents() for k, f in reader.fields.items() if k.startswith(PREFIX)}


def config_from_metadata(meta: dict[str, Any]) -> DeepseekV4Config:
    """The transformers config that a file's ``deepseek4.*`` metadata describes (model.md 1, 2.1, 5)."""
    layers = meta["block_count"]
    head_dim, rotary = meta["attention.key_length"], meta["rope.dimension_count"]
    partial = rotary / head_dim
    if int(head_dim * partial) != rotary:  # transformers truncates the product
        partial = (rotary + 0.5) / head_dim
    limits = set(meta["swiglu_clamp_exp"][:layers])
    if len(limits) != 1:
        raise ValueError(f"transformers has one swiglu limit for all layers, the file has {sorted(limits)}")
    factor = meta["rope.scaling.factor"]
    rope = {
        "main": {
            "rope_type": "default",
            "rope_theta": float(meta["rope.freq_base"]),
            "partial_rotary_factor": partial,
        },
        "compress": {
            "rope_type": "yarn",
            "rope_theta": float(meta["attention.compress_rope_freq_base"]),
            "partial_rotary_factor": partial,
            "factor": float(factor),
            "original_max_position_embeddings": meta["rope.scaling.original_context_length"],
            "beta_fast": float(meta["rope.scaling.yarn_beta_fast"]),
            "beta_slow": float(meta["rope.scaling.yarn_beta_slow"]),
            "attention_factor": 1.0,
        },
    }
    config = DeepseekV4Config(
        vocab_size=meta["vocab_size"],
        hidden_size=meta["embedding_length"],
        moe_intermediate_size=meta["expert_feed_forward_length"],
        num_hidden_layers=layers,
        num_attention_heads=meta["attention.head_count"],
        num_key_value_heads=meta["attention.head_count_kv"],
        head_dim=head_dim,
        q_lora_rank=meta["attention.q_lora_rank"],
        num_experts_per_tok=meta["expert_used_count"],
        n_routed_experts=meta["expert_count"],
        n_shared_experts=meta["expert_shared_count"],
        routed_scaling_factor=float(meta["expert_weights_scale"]),
        norm_topk_prob=bool(meta["expert_weights_norm"]),
        max_position_embeddings=int(meta["rope.scaling.original_context_length"] * factor),
        layer_types=[LAYER_TYPES[r] for r in meta["attention.compress_ratios"][:layers]],
        mlp_layer_types=["hash_moe" if i < meta["hash_layer_count"] else "moe" for i in range(layers)],
        hc_mult=meta["hyper_connection.count"],
        hc_sinkhorn_iters=meta["hyper_connection.sinkhorn_iterations"],
        hc_eps=float(meta["hyper_connection.epsilon"]),
        rms_norm_eps=float(meta["attention.layer_norm_rms_epsilon"]),
        swiglu_limit=float(limits.pop()),
        sliding_window=meta["attention.sliding_window"],
        o_groups=meta["attention.output_group_count"],
        o_lora_rank=meta["attention.output_lora_rank"],
        index_n_heads=meta["attention.indexer.head_count"],
        index_head_dim=meta["attention.indexer.key_length"],
        index_topk=meta["attention.indexer.top_k"],
        partial_rotary_factor=partial,
        rope_parameters=rope,
        pad_token_id=None,
        use_cache=False,
        attn_implementation="eager",
    )
    if config.qk_rope_head_dim != rotary or set(config.rope_parameters) != {"main", "compress"}:
        raise ValueError(f"transformers derived another rope: {config.qk_rope_head_dim} {config.rope_parameters}")
    return config


def _tensor(tensor: gguf.ReaderTensor) -> torch.Tensor:
    """Dequantized values in NumPy order, float32, or int64 for the routing table."""
    if tensor.tensor_type == gguf.GGMLQuantizationType.I32:
        return torch.from_numpy(np.array(tensor.data, dtype=np.int64))
    values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
    return torch.from_numpy(np.array(values, dtype=np.float32))


def state_dict(reader: gguf.GGUFReader, layers: int, experts: int) -> dict[str, torch.Tensor]:
    """The file's tensors under their transformers names; shapes are the same, nothing is transposed."""
    tensors = {t.name: t for t in reader.tensors}
    state = {theirs: _tensor(tensors[ours]) for ours, theirs in TOP_NAMES.items()}
    for layer in range(layers):
        ours, theirs = f"blk.{layer}.", f"model.layers.{layer}."
        for suffix, target in LAYER_NAMES.items():
            if ours + suffix in tensors:
                state[theirs + target] = _tensor(tensors[ours + suffix])
        pair = [_tensor(tensors[f"{ours}ffn_{half}_exps.weight"]) for half in ("gate", "up")]
        state[theirs + "mlp.experts.gate_up_proj"] = torch.cat(pair, dim=1)
        if theirs + "mlp.gate.tid2eid" in state:  # hash layers have no use for a selection bias
            state.pop(theirs + "mlp.gate.e_score_correction_bias", None)
        else:
            state.setdefault(theirs + "mlp.gate.e_score_correction_bias", torch.zeros(experts))
    return state


@dataclass
class Trace:
    """Everything one teacher-forced pass leaves behind, as float32 or int64 arrays.

    logits      (T, V)
    streams     (2 L + 1, T, C * D): the embedding, then after attention and after ffn of every layer
    scores      layer -> (T, n) indexer scores before causal masking; selected: layer -> (T, k) row ids, -1 for none
    gate        layer -> (T, E) router logits; experts: layer -> (T, used) chosen ids
    """

    logits: np.ndarray
    streams: np.ndarray
    scores: dict[int, np.ndarray] = field(default_factory=dict)
    selected: dict[int, np.ndarray] = field(default_factory=dict)
    gate: dict[int, np.ndarray] = field(default_factory=dict)
    experts: dict[int, np.ndarray] = field(default_factory=dict)

    def margin(self, ratio: int, top_k: int, used: int, bias: dict[int, np.ndarray]) -> float:
        """How close the closest discrete choice was to its alternative, in standard deviations of its scores.

        Choices are the indexer's top-k rows and the router's experts; ``bias`` has the selection bias of each layer
        that is not hash-routed. Infinity if nothing had to be chosen.
        """
        least = np.inf
        for scores in self.scores.values():
            visible = (np.arange(len(scores)) + 1) // ratio
            for t in np.flatnonzero(visible > top_k):
                row = np.sort(scores[t, : visible[t]])
                least = min(least, float(row[-top_k] - row[-top_k - 1]) / float(row.std()))
        for layer, b in bias.items():
            score = np.sort(np.sqrt(np.logaddexp(0, self.gate[layer].astype(np.float64))) + b, axis=1)
            least = min(least, float((score[:, -used] - score[:, -used - 1]).min()) / float(score.std()))
        return least

    def before(self, layer: int) -> np.ndarray:
        """Input stream of a layer, (T, C * D)."""
        return self.streams[2 * layer]

    def after_attention(self, layer: int) -> np.ndarray:
        """Stream between a layer's two halves, (T, C * D)."""
        return self.streams[2 * layer + 1]

    def after(self, layer: int) -> np.ndarray:
        """Output stream of a layer, (T, C * D)."""
        return self.streams[2 * layer + 2]


class Oracle:
    """A loaded model. Single sequence, float32; every method takes a list of token ids."""

    def __init__(self, config: DeepseekV4Config, model: DeepseekV4ForCausalLM, path: str):
        self.config, self.model, self.path = config, model, path

    @classmethod
    def load(cls, path: str | os.PathLike[str], threads: int = 2) -> Oracle:
        """Read ``path`` with gguf-py; raises if a tensor has no place in the model, or the model lacks one."""
        torch.set_num_threads(threads)
        reader = gguf.GGUFReader(os.fspath(path))
        config = config_from_metadata(_metadata(reader))
        config._experts_implementation = "eager"
        state = state_dict(reader, config.num_hidden_layers, config.n_routed_experts)
        with torch.device("meta"):
            model = DeepseekV4ForCausalLM(config)
        model.load_state_dict(state, strict=True, assign=True)
        _materialise_rope(model, config)
        model.eval().requires_grad_(False)
        left = [n for n, t in (*model.named_parameters(), *model.named_buffers()) if t.is_meta]
        if left:
            raise ValueError(f"never filled: {left}")
        wrong = {str(p.dtype) for p in model.parameters()} - {"torch.float32"}
        if wrong:
            raise ValueError(f"parameters of other types than float32: {wrong}")
        return cls(config, model, os.fspath(path))

    def logits(self, ids: Sequence[int]) -> np.ndarray:
        """One pass without a cache: (T, V) float32."""
        with torch.inference_mode():
            return self.model(torch.tensor([list(ids)]), use_cache=False).logits[0].numpy().copy()

    def decode(self, ids: Sequence[int], prompt: int = 1) -> np.ndarray:
        """``prompt`` tokens at once, then one by one through the cache: (T, V) float32."""
        from transformers import DynamicCache

        cache, rows = DynamicCache(config=self.config), []
        # transformers 5.24 renamed the argument and warns about the name of before.
        name = "cache" if "cache" in inspect.signature(self.model.forward).parameters else "past_key_values"
        with torch.inference_mode():
            for piece in (ids[:prompt], *([i] for i in ids[prompt:])):
                out = self.model(torch.tensor([list(piece)]), use_cache=True, **{name: cache})
                rows.append(out.logits[0].numpy().copy())
        return np.concatenate(rows)

    def record(self, ids: Sequence[int]) -> Trace:
        """One pass without a cache, with everything a comparison needs to find where two engines part."""
        trace = Trace(np.empty(0), np.empty(0))
        streams: dict[int, np.ndarray] = {}
        with _hooks(self.model, trace, streams), torch.inference_mode():
            trace.logits = self.model(torch.tensor([list(ids)]), use_cache=False).logits[0].numpy().copy()
        trace.streams = np.stack([streams[i] for i in range(len(streams))])
        return trace

    def margin(self, trace: Trace) -> float:
        """``Trace.margin`` with this model's numbers."""
        config = self.config
        bias = {
            index: layer.mlp.gate.e_score_correction_bias.double().numpy()
            for index, layer in enumerate(self.model.model.layers)
            if not layer.mlp.is_hash and config.num_experts_per_tok < config.n_routed_experts
        }
        rate = config.compress_rates["compressed_sparse_attention"]
        return trace.margin(rate, config.index_topk, config.num_experts_per_tok, bias)


def _materialise_rope(model: DeepseekV4ForCausalLM, config: DeepseekV4Config) -> None:
    """Rope frequencies are non-persistent buffers, so no checkpoint fills them: build them where data is real."""
    from transformers.models.deepseek_v4.modeling_deepseek_v4 import DeepseekV4RotaryEmbedding

    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, DeepseekV4RotaryEmbedding):
                setattr(module, name, DeepseekV4RotaryEmbedding(config))


@contextmanager
def _hooks(model: DeepseekV4ForCausalLM, trace: Trace, streams: dict[int, np.ndarray]) -> Iterator[None]:
    """Record into ``trace`` and ``streams`` while the context is open."""

    def array(tensor: torch.Tensor) -> np.ndarray:
        return tensor.detach().numpy().copy()

    def stream(slot: int) -> Any:
        def hook(_module: Any, args: tuple[torch.Tensor, ...]) -> None:
            streams[slot] = array(args[0][0].flatten(1))

        return hook

    def output(store: dict[int, np.ndarray], layer: int, pick: Any) -> Any:
        def hook(_module: Any, _args: Any, out: Any) -> None:
            store[layer] = array(pick(out))

        return hook

    handles = []
    for index, layer in enumerate(model.model.layers):
        handles.append(layer.attn_hc.register_forward_pre_hook(stream(2 * index)))
        handles.append(layer.ffn_hc.register_forward_pre_hook(stream(2 * index + 1)))
        handles.append(layer.mlp.gate.register_forward_hook(output(trace.gate, index, lambda out: out[0])))
        handles.append(layer.mlp.gate.register_forward_hook(output(trace.experts, index, lambda out: out[2])))
        indexer = getattr(layer.self_attn.compressor, "indexer", None)
        if indexer is not None:
            handles.append(indexer.scorer.register_forward_hook(output(trace.scores, index, lambda out: out[0])))
            handles.append(indexer.register_forward_hook(output(trace.selected, index, lambda out: out[0])))
    last = 2 * len(model.model.layers)
    handles.append(model.model.hc_head.register_forward_pre_hook(stream(last)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
