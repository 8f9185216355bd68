"""Blame on engines that are not ours: Hugging Face, whole and with mistakes in its source; llama.cpp and its metadata.

Dumps of Hugging Face are made by the example of docs/reference/trace.md, run as it stands there.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ds4ref.nano.diagnostic import diagnostic_path
from ds4ref.test_vectors.trace.blame import BlameResult
from ds4ref.test_vectors.trace.dump import Dump
from ds4ref.test_vectors.trace.dumps import read
from ds4ref.test_vectors.trace.ops import OPS
from ds4ref.weights.gguf import GGUFFile
from ds4ref.weights.writer import GGUFWriter, TensorSpec
from tests.test_vectors.test_trace_dumps import example
from tests.test_vectors.tracing import IDS, as_dump, examined, names

SHORT = IDS[:72]


@pytest.fixture(scope="module")
def hf(load_oracle: Callable[[Any], Any]) -> Any:
    """Hugging Face's model of the diagnostic file."""
    return load_oracle(diagnostic_path())


@lru_cache
def page() -> dict[str, Any]:
    """What the example of the page defines."""
    found: dict[str, Any] = {}
    exec(compile(example("python", "register_forward_hook"), "docs/reference/trace.md", "exec"), found)
    return found


def dumped(oracle: Any, ids: list[int], folder: Path) -> Dump:
    path = folder / "hf.npz"
    page()["dump"](oracle.model, ids, path)
    dump = read(str(path))
    assert dump.ids == list(ids)
    return dump


@pytest.mark.oracle
def test_hugging_face_is_clean(hf: Any, tmp_path: Path) -> None:
    """All of its ops that hooks see are ours to float noise."""
    result = examined(dumped(hf, IDS, tmp_path), search=False)
    assert not result.wrong and not result.coarse and not result.unjudged
    assert result.rounding == "exact" and len(result.clean) > 200


# patient: the point to be blamed first, or to lie in the gap that is; or another one, where the mistake shows in two
PATIENTS = {
    "window_short": "raw_window",
    "self_missing": "raw_window",
    "no_sink": "attn_sinks",
    "sink_zero": "attn_sinks",
    "no_inverse_rope": "kqv_back",
    "rope_half_split": "Qcur",
    "key_position_late": "KVrope",
    "no_yarn": "rope_tables|attn_comp_rope_tables",
    "row_rope_end": "attn_comp_rope_tables",
    "no_previous_window": "attn_comp_candidates",
    "no_ape": "attn_comp_score_raw",
    "halves_swapped": "attn_comp_candidates",
    "row_late": "comp_count|indexer_topk",
    "indexer_recent": "indexer_topk",
    "indexer_no_relu": "indexer_scores",
    "router_no_scale": "ffn_moe_weights_scaled",
    "router_not_normalised": "ffn_moe_weights_scaled",
    "router_biased_weights": "ffn_moe_weights_scaled",
    "router_no_bias": "ffn_moe_topk",
    "hash_uniform": "ffn_moe_weights_scaled",
    "no_clamp_shared": "ffn_shexp_mid",
    "gelu": "ffn_shexp_mid",
    "hc_comb_transposed": "hc_attn_post|hc_ffn_post",
    "hc_post_half": "hc_attn_pre_post_weights",
    "sinkhorn_1": "hc_attn_pre_comb",
    "no_q_head_norm": "Qnorm",
    "no_kv_norm": "KVnorm",
}


@pytest.mark.oracle
@pytest.mark.parametrize("name", PATIENTS)
def test_mistakes_in_its_source(hf: Any, tmp_path: Path, name: str) -> None:
    """The op, or the gap that holds it, and the mistake by name."""
    from .patients import LIBRARY_PATIENTS

    patient = next(patient for patient in LIBRARY_PATIENTS if patient.name == name)
    with patient.apply(hf):
        dump = dumped(hf, SHORT, tmp_path)
    result = examined(dump, [0, 2, 3, 4], ids=SHORT)
    assert result.wrong, "acquitted"
    blamed = {point for point, _ in result.wrong[0].bridged}
    assert set(PATIENTS[name].split("|")) & blamed, f"{result.wrong[0].key} was blamed"
    assert name in names(result)


@pytest.mark.oracle
@pytest.mark.parametrize("stored", [np.float16, None], ids=["float16", "bfloat16"])
def test_its_values_stored_coarsely(hf: Any, tmp_path: Path, stored: Any) -> None:
    """Nothing is accused, and a mistake still shows."""
    from .patients import LIBRARY_PATIENTS

    def coarse(dump: Dump) -> Dump:
        tensors = {}
        for name, pieces in dump.tensors.items():
            values = pieces[0].load()
            if values.dtype == np.float32:
                bits = values.view(np.uint32)
                bits = ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).view(np.float32)
                values = bits if stored is None else np.clip(values, -6e4, 6e4).astype(stored)
            tensors[name] = values
        return as_dump(tensors)

    clean = examined(coarse(dumped(hf, SHORT, tmp_path)), [2], ids=SHORT)
    assert not clean.wrong, [wrong.key for wrong in clean.wrong]
    patient = next(patient for patient in LIBRARY_PATIENTS if patient.name == "no_kv_norm")
    with patient.apply(hf):
        bent = coarse(dumped(hf, SHORT, tmp_path))
    result = examined(bent, [2], ids=SHORT)
    assert ("KVnorm", 2) in result.wrong[0].bridged and "no_kv_norm" in names(result)


# --- llama.cpp


def graph(llama: Any, path: Any, flash: bool, f32: bool) -> Dump:
    with llama.Llama(path, f32_cache=f32, flash=flash) as engine:
        _, taken = engine.record(SHORT, lambda name: "(" not in name and not name.startswith(("node", "leaf", "cache")))
    return as_dump(taken)


@pytest.mark.peers
@pytest.mark.parametrize(("flash", "f32"), [(False, True), (True, False), (False, False)])
def test_llama_cpp_is_clean(llama: Any, flash: bool, f32: bool) -> None:
    """Its conversions are recognised; with an f16 cache and plain attention, those of the softmax are told."""
    result = examined(graph(llama, diagnostic_path(), flash, f32), ids=SHORT)
    assert not result.wrong, [wrong.key for wrong in result.wrong]
    assert result.rounding.startswith("llama.cpp")
    assert set(result.coarse) <= {"kqv_out"}


METADATA = {
    # key: wrong value, layer to look at, points one of which must be in the first gap
    "rope.freq_base": (20000.0, 0, {"rope_tables"}),
    "attention.compress_rope_freq_base": (10000.0, 2, {"rope_tables", "attn_comp_rope_tables"}),
    "attention.sliding_window": (15, 0, {"raw_window"}),
    "expert_weights_scale": (1.0, 3, {"ffn_moe_weights_scaled"}),
    "attention.layer_norm_rms_epsilon": (1e-3, 0, {"attn_norm", "hc_attn_pre_mixes"}),
    "hyper_connection.sinkhorn_iterations": (3, 0, {"hc_attn_pre_comb"}),
    "attention.indexer.top_k": (6, 2, {"indexer_topk"}),
}


def with_metadata(path: Path, key: str, value: Any) -> Path:
    with GGUFFile.open(diagnostic_path()) as good:
        whole = f"deepseek4.{key}"
        assert whole in good.metadata
        metadata = [(k, good.metadata.type_of(k), value if k == whole else good.metadata[k]) for k in good.metadata]
        specs = [TensorSpec(t.name, t.fmt.name, t.dims) for t in good.tensors.values()]
        with GGUFWriter(path, metadata, specs) as out:
            for spec in specs:
                out.write(spec.name, good.raw(spec.name))
    return path


@pytest.mark.peers
@pytest.mark.parametrize("key", METADATA)
def test_wrong_metadata_in_llama_cpp(llama: Any, tmp_path: Path, key: str) -> None:
    value, layer, points = METADATA[key]
    dump = graph(llama, with_metadata(tmp_path / "bad.gguf", key, value), False, True)
    result: BlameResult = examined(dump, [layer], search=False, ids=SHORT)
    assert result.wrong, "acquitted"
    assert points & {point for point, _ in result.wrong[0].bridged}, result.wrong[0].key
    assert result.rounding.startswith("llama.cpp")


@pytest.mark.peers
def test_names_of_the_graph_are_points() -> None:
    """Every point that the preset knows exists, and no name stands for two."""
    from ds4ref.test_vectors.trace.names import load

    table = load("llama.cpp")
    assert set(table.points) <= set(OPS)
    used = [source.name for sources in table.points.values() for source in sources]
    assert len(used) == len(set(used))
