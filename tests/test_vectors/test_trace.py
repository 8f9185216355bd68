"""Blame on recordings of our own pass: correct, with injected bugs, with points missing, stored in 16 bits, damaged."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ds4ref.engine import Engine
from ds4ref.nano import embedded_path
from ds4ref.test_vectors.trace.record import record
from ds4ref.test_vectors.trace.report import page
from ds4ref.variants import Fault
from tests.marking import sampled

from .tracing import IDS, Bent, as_dump, examined, names, recorded, rounding, stored


@pytest.mark.parametrize(
    ("mode", "backend"),
    sampled(
        [(mode, backend) for mode in ("exact", "qat", "ds4") for backend in ("cpu", "reference")],
        [("exact", "reference")],
    ),
)
def test_clean_recordings(mode, backend):
    """Nothing is wrong and everything is judged, whatever the rounding and the order of summation."""
    dump = as_dump(recorded(mode, backend=backend))
    result = examined(dump)
    assert not result.wrong and not result.unjudged and not result.coarse
    assert result.rounding == mode
    assert len(result.clean) > 300


SHORT = IDS[:72]
"""Enough tokens for compressed rows of 4 tokens and for the indexer's top-k; rows of 128 tokens need all of IDS."""

FAULTS = {
    # fault: the point it shows at first, layers to look at
    "window_short": ("raw_window", [0]),
    "no_sink": ("attn_sinks", [0]),
    "no_inverse_rope": ("kqv_back", [0]),
    "rope_half_split": ("Qcur", [0]),
    "yarn_magnitude": ("rope_tables", [2]),
    "key_position_late": ("KVrope", [0]),
    "ring_wrap": ("kqv_out", [0]),
    "no_kv_norm": ("KVnorm", [1]),
    "row_rope_end": ("attn_comp_rope_tables", [2]),
    "no_ape": ("attn_comp_score_raw", [2]),
    "no_previous_window": ("attn_comp_candidates", [2]),
    "row_late": ("comp_count", [2]),
    "indexer_recent": ("indexer_topk", [2]),
    "indexer_no_relu": ("indexer_scores", [2]),
    "indexer_topk_short": ("indexer_topk", [2]),
    "o_groups_interleaved": ("kqv_back", [2]),
    "router_softmax": ("ffn_moe_weights_scaled", [3]),
    "router_no_bias": ("ffn_moe_topk", [3]),
    "hash_previous_token": ("ffn_moe_topk", [0]),
    "expert_off_by_one": ("ffn_moe_topk", [3]),
    "no_clamp_routed": ("ffn_moe_weighted_swiglu", [1]),
    "gelu": ("ffn_shexp_mid", [0]),
    "gate_up_swapped": ("ffn_shexp_mid", [0]),
    "no_shared_expert": ("ffn_shexp", [0]),
    "hc_comb_transposed": ("hc_attn_post", [1]),
    "hc_post_half": ("hc_attn_pre_post_weights", [0]),
    "sinkhorn_short": ("hc_attn_pre_comb", [2]),
    "head_mean": ("result_hc_weights", [-1]),
    "no_output_norm": ("result_norm", [-1]),
    "q2_k_bit_order": ("ffn_moe_out", [0]),
    "iq2_xxs_words": ("ffn_moe_gate", [0]),
    "q8_0_nibbles": ("q_lora", [0]),
}


@pytest.mark.thorough
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_of_the_library(fault):
    point, layers = FAULTS[fault]
    result = examined(as_dump(recorded("exact", [fault], ids=SHORT)), layers, ids=SHORT)
    assert result.wrong[0].key == (point, layers[0])
    assert fault in result.causes[0].names
    assert result.rounding == "exact"


@pytest.mark.parametrize(
    "fault",
    sampled(["no_sink", "router_softmax", "indexer_rows_no_hadamard", "fp8_whole_row", "no_kv_norm"], ["no_sink"]),
)
def test_faults_under_rounding(fault):
    result = examined(as_dump(recorded("ds4", [fault], ids=SHORT)), [2, 3], ids=SHORT)
    assert result.wrong and fault in names(result) and result.rounding == "ds4"


def test_one_wrong_op_shows_alone_however_wrong_everything_after_it_is():
    result = examined(as_dump(recorded("exact", ["no_kv_norm"], ids=SHORT)), search=False, ids=SHORT)
    assert {wrong.key for wrong in result.wrong} == {("KVnorm", layer) for layer in range(6)}


# --- gaps

FEW = {"hc_attn_in", "attn_norm", "q_lora_norm", "KVcur", "KVcompress", "kqv_back", "hc_attn_post", "ffn_norm",
       "ffn_moe_topk", "ffn_shexp", "ffn_out", "hc_ffn_post"}  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("fault", "point"),
    [
        ("no_q_head_norm", "kqv_back"),
        ("window_long", "kqv_back"),
        ("sink_zero", "kqv_back"),
        ("no_kv_norm", "KVcur"),
        ("row_rope_late", "KVcompress"),
        ("indexer_no_weights", "kqv_back"),
        ("router_not_normalised", "ffn_out"),
        ("no_clamp_shared", "ffn_shexp"),
        ("hc_identity", "hc_attn_post"),
        ("halves_swapped", "KVcompress"),
    ],
)
def test_half_of_the_ops_missing(fault, point):
    """The span of ops that is blamed contains the point with the injected bug, and the bug is named nevertheless."""
    layer = 4
    dump = as_dump(recorded("exact", [fault], ids=SHORT), lambda name: name.split(".")[0] in FEW)
    result = examined(dump, [layer], ids=SHORT)
    assert result.wrong[0].key == (point, layer)
    assert fault in names(result)
    assert len(result.wrong[0].bridged) > 1
    assert result.missing


# --- single rows, and engines that compute in 16 bits


def one_row(point: str, row: int, share: float) -> Fault:
    """Return a mistake in one row of a point, in every layer: off by ``share`` of its size."""

    def bent(value, layer, chunk, taps):
        out = value.copy()
        noise = np.random.default_rng(layer + 1).standard_normal(out[row].shape)
        out[row] += share * np.sqrt(np.square(out[row]).mean()) * noise
        return out

    return Fault("one_row", "a row of its own", edits={point: bent})


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(
    ("point", "row", "layers"),
    sampled([("kqv_out", 64, 6), ("attn_out", 71, 6), ("Qraw", 0, 6), ("KVraw", 7, 6), ("ffn_out", 40, 6),
             ("attn_norm", 33, 6), ("result_norm", 30, 1), ("result_output", 64, 1)], 2),
)  # fmt: skip
def test_one_row_is_not_hidden_by_the_others(point, row, layers, kind):
    """An error of 12 % at a single position, which medians and shares of rows do not show."""
    faults = [] if kind == "float32" else [rounding(kind)]
    bent = recorded("exact", [*faults, one_row(point, row, 0.12)], "reference", ids=SHORT)
    result = examined(as_dump(bent), search=False, ids=SHORT)
    assert {wrong.key[0] for wrong in result.wrong} == {point} and len(result.wrong) == layers
    assert all(list(wrong.rows[wrong.judgement.beyond]) == [row] for wrong in result.wrong)
    assert all(wrong.judgement.ratio > 1 and 0.05 < wrong.judgement.largest < 0.3 for wrong in result.wrong)
    first = next(line for line in page(result, 10).splitlines() if line.startswith("off by"))
    assert f"in 1 of 72 rows, position {row} first" in first and "(median of all rows" in first


def halved(value, layer, chunk, taps):
    """Return windows (first row, number of rows) of which ``QUERIES`` have the newer half."""
    first, count = (each.copy() for each in value)
    lost = count[QUERIES] // 2
    first[QUERIES] += lost
    count[QUERIES] -= lost
    return first, count


def unsunk(value, layer, chunk, taps):
    """Return attention outputs of which those of ``QUERIES`` lack the sink's share."""
    out = value.copy()
    out[QUERIES] *= np.float32(1.12)
    return out


QUERIES = [23, 47, 71]


@pytest.mark.parametrize(("point", "edit"), [("raw_window", halved), ("kqv_out", unsunk)])
def test_a_few_queries_are_not_acquitted_and_the_search_ends(point, edit):
    """Three of 72 in every layer: all are blamed, and no constant is fitted where its logarithm does not exist."""
    few = Fault("few", "a few queries", edits={point: edit})
    dump = as_dump(recorded("exact", [few], ids=SHORT), lambda name: not name.startswith("raw_window"))
    result = examined(dump, [0, 1], ids=SHORT)
    assert {wrong.key for wrong in result.wrong} == {("kqv_out", 0), ("kqv_out", 1)}
    assert all(set(wrong.rows[wrong.judgement.beyond]) == set(QUERIES) for wrong in result.wrong)


def in_type(weights, kind):
    """Return weights with their vectors in a 16-bit type."""
    vectors = {name: v for name, v in vars(weights).items() if isinstance(v, np.ndarray) and v.dtype == np.float32}
    return replace(weights, **{name: v.astype(np.float32) for name, v in stored(vectors, kind).items()})


@pytest.mark.parametrize("kind", ["bfloat16", "float16"])
def test_an_engine_that_computes_in_16_bits_is_right(kind):
    """Nothing is blamed, although every step and weight is rounded, even between the points of the dump."""
    some = ("hc_attn_in", "attn_norm", "q_lora_norm", "KVnorm", "KVcompress", "indexer_topk", "kqv_back", "attn_out",
            "hc_attn_post", "ffn_norm", "ffn_moe_topk", "ffn_moe_weights", "ffn_shexp.", "ffn_out", "hc_ffn_post",
            "hc_attn_pre_post", "hc_ffn_pre_post", "result_")  # fmt: skip
    path = embedded_path("f16")
    with Engine.open(path, numerics="exact", threads=1) as other:
        weights = other.model.weights
        other.model.weights = replace(in_type(weights, kind), layers=[in_type(w, kind) for w in weights.layers])
        tensors = record(other, IDS, watch=lambda wanted: Bent([rounding(kind)], wanted))[0]
    for keep in (lambda name: True, lambda name: name.startswith(some)):
        result = examined(as_dump(tensors, keep), search=False, path=path)
        assert not result.wrong, [(wrong.key, wrong.judgement.ratio) for wrong in result.wrong]


# --- storage, positions


@pytest.mark.parametrize("kind", sampled(["float16", "bfloat16"], ["bfloat16"]))
def test_coarse_storage_is_no_mistake(kind):
    result = examined(as_dump(stored(recorded("exact"), kind)), [1, 2, 3])
    assert not result.wrong, [wrong.key for wrong in result.wrong]


@pytest.mark.parametrize(
    ("fault", "kind"),
    sampled(
        [(fault, kind) for fault in ("no_kv_norm", "router_softmax", "no_ape", "gelu", "hc_post_half")
         for kind in ("float16", "bfloat16")],
        [("hc_post_half", "float16")],
    ),
)  # fmt: skip
def test_faults_show_through_coarse_storage(kind, fault):
    result = examined(as_dump(stored(recorded("exact", [fault], ids=SHORT), kind)), [4], ids=SHORT)
    assert fault in names(result) and result.wrong[0].key[0] == FAULTS[fault][0]


def test_some_positions_only():
    """Ops on single tokens are judged; ops that read earlier tokens, which are missing, are reported as not judged."""
    rows = list(range(150, 200))
    tensors = {
        name: values[rows] if len(values) == 200 else values
        for name, values in recorded("exact", ["no_kv_norm"]).items()
    }
    dump = as_dump(tensors)
    dump.positions = rows
    result = examined(dump, [0], search=False)
    assert [wrong.key for wrong in result.wrong] == [("KVnorm", 0)]
    assert "earlier tokens" in result.unjudged["kqv_out", 0]
    assert list(result.wrong[0].rows) == rows
