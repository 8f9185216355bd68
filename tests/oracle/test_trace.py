"""Blame on engines that are not ours: Hugging Face, whole and with mistakes in its source; llama.cpp and its metadata.

Dumps of Hugging Face are made by the example of docs/reference/trace.md, run as it stands there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from ds4ref.nano.diagnostic import diagnostic_path
from ds4ref.test_vectors.trace.blame import BlameResult
from ds4ref.test_vectors.trace.dumps import Dump, read
from ds4ref.test_vectors.trace.report import entry
from tests.badfiles import Draft
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


# bug: the point to be blamed first, or to lie in the gap that is; or another one, where the mistake shows in two
BUGS = {
    "no_sink": "attn_sinks",
    "rope_half_split": "Qcur",
    "no_previous_window": "attn_comp_candidates",
    "indexer_recent": "indexer_topk",
    "router_not_normalised": "ffn_moe_weights_scaled",
    "no_clamp_shared": "ffn_shexp_mid",
    "sinkhorn_1": "hc_attn_pre_comb",
    "no_kv_norm": "KVnorm",
}


@pytest.mark.oracle
@pytest.mark.parametrize("name", BUGS)
def test_mistakes_in_its_source(hf: Any, tmp_path: Path, name: str) -> None:
    """The op, or the gap that holds it, and the mistake by name."""
    from .bugs_library import LIBRARY_BUGS

    bug = next(bug for bug in LIBRARY_BUGS if bug.name == name)
    with bug.apply(hf):
        dump = dumped(hf, SHORT, tmp_path)
    result = examined(dump, [0, 2, 3, 4], ids=SHORT)
    assert result.wrong, "acquitted"
    blamed = {point for point, _ in result.wrong[0].bridged}
    assert set(BUGS[name].split("|")) & blamed, f"{result.wrong[0].key} was blamed"
    assert name in names(result)


# --- llama.cpp


def graph(llama: Any, path: Any, flash: bool, f32: bool, ids: Sequence[int] = SHORT) -> Dump:
    with llama.Llama(path, f32_cache=f32, flash=flash) as engine:
        _, taken = engine.record(ids, lambda name: "(" not in name and not name.startswith(("node", "leaf", "cache")))
    return as_dump(taken)


@pytest.mark.peers
@pytest.mark.parametrize(("flash", "f32"), [(False, True), (True, False), (False, False)])
def test_llama_cpp_is_clean(llama: Any, flash: bool, f32: bool) -> None:
    """Its conversions are recognised; with an f16 cache and plain attention, those of the softmax are told."""
    result = examined(graph(llama, diagnostic_path(), flash, f32), ids=SHORT)
    assert not result.wrong, [wrong.key for wrong in result.wrong]
    assert result.rounding.startswith("llama.cpp")
    assert set(result.coarse) <= {"kqv_out"}


METADATA: dict[str, tuple[Any, int, set[str], int, str]] = {
    # key: wrong value, layer to look at, points one of which must be in the first gap, first position, what is said
    "attention.sliding_window": (32, 0, {"raw_window"}, 16, "is 32, not 16"),
    "attention.compress_rope_freq_base": (10000.0, 2, {"rope_tables"}, 1, "is 10000, not 160000"),
    "attention.layer_norm_rms_epsilon": (1e-3, 0, {"hc_attn_pre_mixes"}, 0, "is 0.001, not 1e-06"),
    "hyper_connection.sinkhorn_iterations": (3, 0, {"hc_attn_pre_comb"}, 0, "is 3, not 20"),
    "expert_weights_scale": (1.0, 3, {"ffn_moe_weights_scaled"}, 0, ""),  # a mistake of the library: router_no_scale
    "attention.indexer.top_k": (6, 2, {"indexer_topk"}, 27, "is 6, not 8"),
    "rope.scaling.type": ("linear", 2, {"rope_tables"}, 1, ""),  # a key that this engine does not read
}


def with_metadata(path: Path, key: str, value: Any) -> Path:
    draft = Draft(diagnostic_path())
    draft.set(key, value)
    draft.write(path)
    return path


@pytest.mark.peers
@pytest.mark.parametrize("key", METADATA)
def test_wrong_metadata_in_llama_cpp(llama: Any, tmp_path: Path, key: str) -> None:
    """As a user runs it: fused attention, rows in f16. The op, its first position, and where it can be the key."""
    value, layer, points, first, says = METADATA[key]
    dump = graph(llama, with_metadata(tmp_path / "bad.gguf", key, value), True, False, IDS[:96])
    result: BlameResult = examined(dump, [layer], search=bool(says), ids=IDS[:96])
    assert result.wrong, "acquitted"
    assert points & {point for point, _ in result.wrong[0].bridged}, result.wrong[0].key
    assert entry(result.wrong[0])["first_row"] == first
    assert not says or result.causes[0].text.startswith(f"deepseek4.{key} {says}")
    assert result.rounding.startswith("llama.cpp")
