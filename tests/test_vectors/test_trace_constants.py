"""Wrong constants, and attention to wrong cache rows, found from a single op."""

from __future__ import annotations

import pytest

from ds4ref.test_vectors.trace.constants import _plain
from ds4ref.test_vectors.trace.report import entry
from ds4ref.variants.families import FAMILIES
from tests.marking import sampled

from .tracing import IDS, as_dump, examined, recorded

SHORT = IDS[:72]
UNSEEN = {"raw_window", "comp_count", "rope_tables", "attn_comp_rope_tables", "indexer_comp_rope_tables", "attn_sinks"}
"""Points for which other engines have no tensor."""


def blamed(fault, layers, hidden=frozenset(), ids=SHORT):
    tensors = recorded("exact", [fault], ids=ids)
    return examined(as_dump(tensors, lambda name: name.split(".")[0] not in UNSEEN | hidden), layers, ids=ids)


# family, value -> layers, first point, first position, what is said
CONSTANTS = {
    ("rms_eps", 3e-4): ((0,), "hc_attn_pre_mixes", 0, "attention.layer_norm_rms_epsilon is 0.0003, not 1e-06"),
    ("hc_eps", 2e-5): ((0,), "hc_attn_pre_weights", 0, "hyper_connection.epsilon is 2e-05, not 1e-06"),
    ("rope_base", 23456.0): ((1,), "Qcur", 1, "rope.freq_base is 23456, not 10000"),
    ("compress_rope_base", 1e6): ((2,), "Qcur", 1, "attention.compress_rope_freq_base is 1000000, not 160000"),
    ("yarn_factor", 5.0): ((3,), "Qcur", 1, "rope.scaling.factor is 5, not 16"),
    ("yarn_original_context", 4096.0): (
        (2,), "Qcur", 1, "rope.scaling.original_context_length is 4096, not 65536, or a value near it",
    ),
    ("yarn_beta_fast", 11.0): ((2,), "Qcur", 1, "rope.scaling.yarn_beta_fast is 10, not 32, or a value near it"),
    ("yarn_beta_slow", 4.0): ((2,), "Qcur", 1, "rope.scaling.yarn_beta_slow is 4, not 1, or a value near it"),
    ("routed_scale", 2.5 / 1.5): ((4,), "ffn_moe_weights_scaled", 0, "expert_weights_scale is 2.5, not 1.5"),
    ("window_rows", 23): ((0,), "kqv_out", 16, "attention.sliding_window is 39, not 16"),
    ("window_rows", -7): ((1,), "kqv_out", 9, "attention.sliding_window is 9, not 16"),
    ("indexer_topk", 5): ((2,), "indexer_topk", 23, "attention.indexer.top_k is 5, not 8"),
    ("sinkhorn_rounds", 7): ((0,), "hc_attn_pre_comb", 0, "hyper_connection.sinkhorn_iterations is 7, not 20"),
    ("swiglu_limit", 6.3): ((3,), "ffn_shexp_mid", 0, "swiglu_clamp_exp is 6.3, not 10"),
    ("sink_scale", 0.0625): ((0,), "kqv_out", 0, "attention sinks times 0.0625"),
    ("attention_scale", 0.7): ((0,), "kqv_out", 0, "attention scores times 0.7"),
}  # fmt: skip


@pytest.mark.parametrize(("family", "value"), sampled(list(CONSTANTS), 6))
def test_a_constant_is_fitted_and_named_by_its_key(family, value) -> None:
    """The exact value is found, and that it explains all wrong ops of the layer."""
    layers, point, first, says = CONSTANTS[family, value]
    result = blamed(FAMILIES[family].fault(value), layers)
    assert (result.wrong[0].key, entry(result.wrong[0])["first_row"]) == ((point, layers[0]), first)
    assert result.causes[0].text.removeprefix("deepseek4.").startswith(says), result.causes[0].text
    assert result.rounding == "exact" and all(wrong.causes for wrong in result.wrong)


def test_a_constant_across_a_gap() -> None:
    """Routing weights were not dumped, so their scale is fitted on the output of the experts."""
    result = blamed(FAMILIES["routed_scale"].fault(0.4), (0,), {"ffn_moe_weights_scaled", "ffn_moe_weighted_swiglu"})
    assert result.wrong[0].key == ("ffn_moe_out", 0)
    assert result.causes[0].text.startswith("deepseek4.expert_weights_scale is 0.6, not 1.5")


def test_stored_rows_alone_tell_the_rounding() -> None:
    """Only the cached rows, rounded to e4m3, show which of several rounding sets it is."""
    tensors = recorded("qat", ids=SHORT)
    result = examined(as_dump(tensors), [0], search=False, ids=SHORT)
    assert result.rounding == "qat" and not result.wrong


def test_a_negative_value_that_its_neighbours_equal_has_no_logarithm() -> None:
    assert _plain(-2.5, True, 1.0, lambda value: 0.0) == -2.0
