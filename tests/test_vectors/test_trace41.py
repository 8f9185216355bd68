"""trace on DeepSeek V4.1: its own recordings are right, bugs are found at their op, single layers are judged alone."""

from __future__ import annotations

import numpy as np
import pytest

from ds4ref.nano.diagnostic41 import diagnostic41_path
from ds4ref.variants import V41, Fault
from tests.marking import sampled

from .tracing import as_dump, examined, names, recorded

PATH = diagnostic41_path()


def blamed(fault=None, numerics="exact", only=None, rounding=None, search=True):
    """Record a pass with a bug and blame it; ``only``: layers that are dumped."""
    tensors = recorded(numerics, [] if fault is None else [fault], layers=only, path=PATH)
    kept = {name: values for name, values in tensors.items() if only is None or _layer(name) in only}
    return examined(as_dump(kept), numerics=rounding, search=search, path=PATH)


def _layer(name):
    number = name.removesuffix(".0").removesuffix(".1").rpartition(".")[2] if "." in name else ""
    return int(number or name.split(".")[1] if "." in name else -1)


@pytest.mark.parametrize("numerics", ["exact", "qat"])
def test_own_recordings_are_right_at_every_point(numerics):
    result = blamed(numerics=numerics)
    assert not result.wrong and not result.unjudged and result.rounding == numerics
    assert result.missing == []


AT = {
    "read_unlagged": "hc_attn_pre", "query_heads_normed": "Qraw", "index_key_rotated": "indexer_KVcompress",
    "newest_block_lost": "candidates", "pooling_mean": "attn_comp_candidates", "not_reindexed": "indexer_topk",
    "scores_no_relu": "indexer_scores", "engram_no_root": "engram_out", "engram_late": "engram_rows",
    "bounded_replay": "raw_window", "rows_late": "comp_count", "candidates_bind_source": "indexer_topk",
    "no_temperature": "ffn_moe_logits", "no_sink": "attn_sinks",
}  # fmt: skip
"""Bug -> the op at which its first wrong value is."""


@pytest.mark.parametrize("name", sampled(list(AT), ["read_unlagged", "newest_block_lost"]))
def test_bugs_are_found_at_their_op_and_named(name):
    result = blamed(V41[name])
    assert AT[name] in {wrong.key[0] for wrong in result.wrong}
    assert name in names(result)


@pytest.mark.parametrize("layer", [3, 4, 7, -1])
def test_one_layer_is_judged_alone(layer):
    """Its rows, choices and input come from layers that were not dumped, but are right."""
    late = Fault("far", "far", edits={"attn_out": lambda value, at, chunk, taps: value * np.float32(1 + (at == 7))})
    assert not blamed(only=[layer], rounding="exact").wrong
    wrong = {w.key[0] for w in blamed(late, only=[layer], rounding="exact", search=False).wrong}
    assert ("attn_out" in wrong) == (layer == 7) and (bool(wrong) == (layer in (7, -1)))
