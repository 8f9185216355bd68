"""Mistakes with a size, and two at once: what a diagnosis that fits parameters and residuals is held against.

FAMILIES  name -> what the size is, the right one, wrong ones, and how Hugging Face's model gets a size
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from .hf import Oracle
from .patients_library import BACK, LIBRARY_PATIENTS, row_position
from .surgery import (
    ATTENTION,
    EXPERTS,
    HASHED,
    HEAD,
    INDEXER,
    LEARNED,
    MIXING,
    NORM,
    PLAIN_NORM,
    ROPE,
    SHARED,
    Apply,
    Patient,
    attribute,
    both,
    configured,
    edit,
    layers,
    modules,
    output,
    rope_changed,
    weights,
)


@dataclass(frozen=True)
class Family:
    """One number that an engine can have wrong. ``make(size)`` is the mistake; ``unit`` says what the size means."""

    name: str
    says: str
    unit: str
    sizes: tuple[float, ...]
    make: Callable[[float], Apply]

    def patients(self) -> list[Patient]:
        """One for each size, named FAMILY=SIZE."""
        return [Patient(f"{self.name}={size:g}", f"{self.says}: {size:g}", self.make(size)) for size in self.sizes]


def _absolute(kinds: object, name: str) -> Callable[[float], Apply]:
    return lambda size: attribute(kinds, name, lambda right: type(right)(size))


def _factor(kinds: object, name: str) -> Callable[[float], Apply]:
    return lambda size: attribute(kinds, name, lambda right: right * size)


def _more(kinds: object, name: str) -> Callable[[float], Apply]:
    return lambda size: attribute(kinds, name, lambda right: right + int(size))


def _norm_eps(size: float) -> Apply:
    return both(attribute(NORM, "variance_epsilon", lambda _: size), attribute(PLAIN_NORM, "eps", lambda _: size))


def _mixing_eps(size: float) -> Apply:
    return both(attribute(MIXING, "hc_eps", lambda _: size), attribute(HEAD, "eps", lambda _: size))


def _rope(kind: str, key: str) -> Callable[[float], Apply]:
    return lambda size: rope_changed(kind, **{key: lambda _: size})


def _inverse_base(kind: str) -> Callable[[float], Apply]:
    def make(size: float) -> Apply:
        def apply(oracle: Oracle) -> Any:
            config = copy.deepcopy(oracle.config)
            config.rope_parameters[kind]["rope_theta"] = size
            turned = f"cos, sin = {kind}_base(hidden_states, position_ids=position_ids, layer_type='{kind}')"
            wrong = f"if self.rope_layer_type == '{kind}':\n        {turned}\n    {BACK}"
            return edit(ATTENTION, "forward", (BACK, wrong), given={f"{kind}_base": ROPE(config)})(oracle)

        return apply

    return make


def _ramp(size: float) -> Apply:
    """Frequencies of the compressed layers, written down with ``size`` pairs added to both ends of the ramp."""

    def apply(oracle: Oracle) -> Any:
        rope = oracle.config.rope_parameters["compress"]
        dim, base = oracle.config.qk_rope_head_dim, rope["rope_theta"]
        context = rope["original_max_position_embeddings"]

        def pair(turns: float) -> float:
            return dim * math.log(context / (2 * math.pi * turns)) / (2 * math.log(base))

        first = math.floor(pair(rope["beta_fast"])) + size
        last = math.ceil(pair(rope["beta_slow"])) + size
        number = torch.arange(dim // 2)
        plain = base ** (-2.0 * number / dim)
        slow = ((number - first) / (last - first)).clamp(0, 1)
        table = plain / rope["factor"] * slow + plain * (1 - slow)
        return weights(lambda o: [m.compress_inv_freq for m in modules(o, ROPE)], lambda _: table)(oracle)

    return apply


def _window(size: float) -> Apply:
    return configured(sliding_window=lambda right: right + int(size))


def _bias(size: float) -> Apply:
    def choose(oracle: Oracle) -> list:
        return [module.e_score_correction_bias for module in modules(oracle, LEARNED)]

    return weights(choose, lambda right: right * size)


FAMILIES = [
    Family("sinkhorn_iters", "Sinkhorn rounds", "rounds", (2, 3, 4, 5, 7, 10, 15, 19),
           _absolute(MIXING, "hc_sinkhorn_iters")),
    Family("route_scale", "route scale of learned and hash layers", "factor",
           (0.5, 0.8, 0.9, 0.95, 0.98, 1.03, 1.1, 1.4), _factor((LEARNED, HASHED), "routed_scaling_factor")),
    Family("window", "window", "rows more", (-8, -3, -2, 2, 3, 5, 16), _window),
    Family("indexer_topk", "indexer top-k", "rows more", (-4, -2, 1, 2, 4), _more(INDEXER, "index_topk")),
    Family("rms_eps", "RMS norm eps", "value", (1e-5, 3e-5, 1e-4, 1e-3, 1e-2), _norm_eps),
    Family("hc_eps", "hyper-connections' eps", "value", (1e-5, 1e-4, 1e-3, 1e-2), _mixing_eps),
    Family("attn_scale", "attention scale", "factor", (0.7, 0.9, 0.97, 0.99, 1.02, 1.1, 1.5),
           _factor(ATTENTION, "scaling")),
    Family("swiglu_limit", "clamp", "value", (4, 6, 8, 9.5, 10.5, 12, 15, 30),
           _absolute((EXPERTS, SHARED), "limit")),
    Family("shared_scale", "shared expert", "factor", (0.5, 0.9, 0.98, 1.02, 1.2, 2),
           lambda size: output(layers("mlp.shared_experts"), lambda y: y * size)),
    Family("logit_scale", "logits", "factor", (0.9, 0.99, 1.01, 1.1),
           lambda size: output(lambda oracle: [oracle.model.lm_head], lambda y: y * size)),
    Family("rope_theta", "rope base", "value", (5000, 9000, 11000, 20000, 100000), _rope("main", "rope_theta")),
    Family("compress_theta", "compressed rope base", "value", (40000, 120000, 200000, 1000000),
           _rope("compress", "rope_theta")),
    Family("yarn_factor", "YaRN factor", "value", (2, 4, 8, 32, 40), _rope("compress", "factor")),
    Family("yarn_beta_fast", "YaRN beta_fast", "value", (8, 16, 24, 48), _rope("compress", "beta_fast")),
    Family("yarn_ramp", "YaRN's whole ramp, as by another context", "pairs more", (-2, -1, 1, 2), _ramp),
    Family("yarn_original_context", "YaRN's original context", "value", (4096, 45000, 131072),
           _rope("compress", "original_max_position_embeddings")),
    Family("yarn_beta_slow", "YaRN beta_slow", "value", (0.5, 2, 4), _rope("compress", "beta_slow")),
    Family("inverse_rope_base", "base of the inverse rotation, layers without compression", "value",
           (5000, 9000, 100000, 160000, 1000000), _inverse_base("main")),
    Family("inverse_compress_rope_base", "base of the inverse rotation, compressed layers", "value",
           (10000, 40000, 100000, 200000), _inverse_base("compress")),
    Family("compressed_position", "position of compressed rows", "positions more", (-3, -1, 1, 2),
           lambda size: row_position(f"({int(size)})")),
    Family("router_bias_scale", "router's selection bias", "factor", (-1, 0.3, 0.7, 0.9, 1.3), _bias),
]  # fmt: skip

FAMILY_PATIENTS = [patient for family in FAMILIES for patient in family.patients()]


def pairs(count: int = 24, seed: int = 1) -> list[Patient]:
    """Two library mistakes at once, drawn; such that each is still there beside the other.

    Mistakes of one group (hc_, router_ ...) are not paired: one often replaces the other.
    """
    every = list(itertools.combinations(LIBRARY_PATIENTS, 2))
    drawn = [every[i] for i in np.random.default_rng(seed).permutation(len(every))]
    apart = [(a, b) for a, b in drawn if a.name.split("_")[0] != b.name.split("_")[0] and not _replaced(a.name, b.name)]
    return [Patient(f"{a.name}+{b.name}", f"{a.says}; {b.says}", both(a.apply, b.apply)) for a, b in apart[:count]]


_COVERS = {
    "no_compressed_rows": ("row", "no_ape", "halves", "first", "no_previous", "acausal", "indexer", "chunk", "yarn",
                           "state", "previous", "compressed"),
    "no_inverse_rope": ("inverse",),
    "no_kv_norm": ("kv_norm",),
    "no_q_lora_norm": ("q_lora_norm",),
    "no_shared_expert": ("no_clamp_shared", "chunk"),
    "no_routed_experts": ("no_clamp_routed", "router", "routed", "expert", "hash", "chunk", "iq2", "q2"),
    "gelu": ("gate",),
    "hc_identity": ("sinkhorn", "hc"),
    "sinkhorn_1": ("sinkhorn", "hc_eps"),
    "no_output_norm": ("rms_eps",),
    "compressed_main_rope": ("no_yarn", "yarn", "plain_compressed_rope"),
    "plain_compressed_rope": ("no_yarn", "yarn"),
    "indexer_all": ("indexer", "no_ape"),
}  # fmt: skip
"""What is gone or replaced when the mistake of that name is there, by the beginnings of names."""


def _replaced(first: str, second: str) -> bool:
    """Whether one of two mistakes removes what the other is about, or both are too small to be sought in a pair."""
    quiet = {"gate_clamped_below", "rms_eps_1e5", "hc_eps_0", "sinkhorn_short"}
    covered = any(
        other.startswith(parts) for one, other in ((first, second), (second, first)) if (parts := _COVERS.get(one))
    )
    return covered or bool({first, second} & quiet)
