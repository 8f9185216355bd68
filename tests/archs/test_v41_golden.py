"""DeepSeek V4.1 beside mlx-lm (and SGLang's Engram), on tiny drawn models: logits, streams, selected rows, roundings.

Mode exact is compared from end to end. In mode qat a value near the border of two codes may round to the other one, and
random weights make the difference grow, so each layer is run from the streams that the other implementation had.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ds4ref import Engine, Recorder
from ds4ref.archs.deepseek41 import indexer
from ds4ref.errors import Ds4Error, ModelFileError, UsageError
from tests.kernels import cpu, reference
from tests.v41 import config, golden, model

BAR = 1e-4
NAMES = ("a", "b", "engram")
BACKENDS = ("reference", "cpu")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: model(tmp_path_factory.mktemp(name), name) for name in NAMES}


@pytest.fixture(scope="module")
def engines(folders: dict[str, Path]) -> Any:
    made: dict[tuple[str, str, str], Engine] = {}

    def get(name: str, backend: str, numerics: str = "exact") -> Engine:
        key = name, backend, numerics
        if key not in made:
            made[key] = Engine.open(folders[name], backend=backend, numerics=numerics, threads=1)
        return made[key]

    yield get
    for engine in made.values():
        engine.close()


def worst(got: np.ndarray, want: np.ndarray) -> float:
    return float(np.abs(got.astype(np.float64) - want).max())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("chunk", [None, 37, 1])
def test_logits_of_prefill_and_decode_in_any_chunks(engines: Any, name: str, backend: str, chunk: int | None) -> None:
    z, engine = golden(), engines(name, backend)
    ids = z[f"{name}.ids"].tolist()
    if backend == "reference" and (chunk == 1 or name == "b"):
        ids = ids[: 50 if chunk == 1 else 250]
    session = engine.session(len(ids) + 1)
    if chunk == 1:
        got = np.stack([session.eval(token) for token in ids])  # recorded passes, where the backend records
    else:
        got = session.extend(ids, chunk=chunk)
    at = z[f"{name}.positions"]
    at = at[at < len(ids)]
    assert worst(got[at], z[f"{name}.logits"][: len(at)]) <= BAR


def test_scores_of_a_long_chunk_are_computed_in_parts(engines: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    z, engine = golden(), engines("a", "cpu")
    ids = z["a.ids"].tolist()
    whole = engine.session(201).extend(ids)
    monkeypatch.setattr(indexer, "SCORES_AT_ONCE", 1000)
    np.testing.assert_array_equal(engine.session(201).extend(ids), whole)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", NAMES)
def test_streams_of_every_layer_and_selected_rows(engines: Any, name: str, backend: str) -> None:
    z, engine = golden(), engines(name, backend)
    session, recorder = engine.session(1024), Recorder("hc_ffn_post", "indexer_topk")
    session.hooks = recorder
    session.sync(z[f"{name}.ids"].tolist())
    at = z[f"{name}.hidden_positions"]
    for layer in range(engine.shape.n_layers):
        assert worst(recorder["hc_ffn_post", layer][at], z[f"{name}.hidden"][layer]) <= BAR, layer
        if f"{name}.select.{layer}" in z:
            # golden rows are sorted with -1 in front, for rows that do not exist; ours have it at the end
            rows = np.sort(recorder["indexer_topk", layer][at], axis=1)
            np.testing.assert_array_equal(rows, z[f"{name}.select.{layer}"])


@pytest.mark.parametrize("backend", BACKENDS)
def test_layers_of_mode_qat_one_by_one(engines: Any, backend: str) -> None:
    z, engine = golden(), engines("a", backend, "qat")
    own, count = engine.model, len(z["a.qat.hidden32"][0])
    cache = own.cache(64, exact=True)
    c = own.chunk(z["a.ids"][:count].astype(np.int32), cache)
    X, weights = own.enter(c)
    for layer, w in enumerate(own.weights.layers):
        c.at_layer(layer, w, cache.layers[layer])
        got, pre = own.half_layer(c, "ffn", *own.half_layer(c, "attn", X, weights))
        X, weights = (np.ascontiguousarray(z[f"a.qat.{key}"][layer]) for key in ("hidden32", "pre32"))
        assert worst(got, X) <= 1e-5 * np.abs(X).max(), layer
        assert worst(pre, weights) <= 1e-5, layer


def test_roundings_are_those_of_mlx() -> None:
    z = golden()
    x = z["rounding.x"]
    for ops in (reference, cpu):
        np.testing.assert_array_equal(ops.round_e4m3(x, None, 32), z["rounding.fp8_32"])
        np.testing.assert_array_equal(ops.round_e2m1(x), z["rounding.mxfp4_32"])
        np.testing.assert_array_equal(ops.round_nvfp4(x), z["rounding.nvfp4_16"])
        assert (ops.round_e4m3(x, None, 64) != z["rounding.fp8_32"]).any(), "the data shows the size of a block"


@pytest.mark.parametrize("backend", BACKENDS)
def test_hashes_and_gate_are_sglangs(engines: Any, backend: str) -> None:
    z, own = golden(), engines("engram", backend).model
    np.testing.assert_array_equal(own.weights.hashing.numbers, z["engram.token_map"])
    ids, hashes, at = z["engram.ids"].astype(np.int64), z["engram.hash_ids"], z["engram.hidden_positions"]
    for which in range(2):
        np.testing.assert_array_equal(own.weights.hashing.rows(which, ids, np.full(3, -1)), hashes[:, which])
    w = own.weights.layers[1]
    rows = w.engram_embd.rows_at(hashes[at, 0].reshape(-1)).reshape(len(at), -1)
    joined = own.ops.linear(rows, w.engram_kv, "float")
    got = own.ops.engram_gate(z["engram.gate_in"], joined, w.engram_gate, 1e-20)
    assert worst(got, z["engram.gate_out"]) <= 5e-6


# ---- refusals


def refused(folder: Path, error: type[Ds4Error] = ModelFileError, **options: Any) -> str:
    with pytest.raises(error) as raised:
        Engine.open(folder, backend="reference", **options)
    return str(raised.value)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"surprise": 1}, "text_config.surprise is 1: unknown here"),
        ({"scoring_func": "softmax"}, "text_config.scoring_func is 'softmax', wanted 'sqrtsoftplus'"),
        ({"compress_ratios": [0, 0, 2, 2, 2, 1, 1, 4, 1]}, "compress_ratios holds 4, wanted 0, 1 or 2"),
        ({"compress_ratios": [0, 0, 2, 2, 2, 1, 1, 2, 1]}, "layer 7 has ratio 2, but no kv source before it has"),
        ({"kv_source_layer_ids": [2, 6]}, "kv_source_layer_ids has a layer that index_source_layer_ids lacks"),
        ({"candidate_source_layer_id": 7}, "candidate_source_layer_id 7 is no kv source"),
        ({"candidate_source_layer_id": 2}, "after candidate_source_layer_id 2 have another ratio"),
        ({"candidate_topk_blocks": 3}, "index_topk 12 exceeds the 9 rows that candidate blocks surely have"),
        ({"index_topk": None}, "text_config.index_topk is missing"),
        ({"head_dim": 48}, "key_length 48 is not a multiple of 32"),
        ({"num_hidden_layers": 10}, "compress_ratios has 9 entries for 10 layers"),
        ({"num_hidden_layers": 8}, "has no place in a deepseek_v41 model here"),
    ],
)  # fmt: skip
def test_configs_that_mean_another_model_are_refused(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    assert says in refused(model(tmp_path, "a", **changes), Ds4Error)


def test_what_engram_needs_is_checked(tmp_path: Path) -> None:
    folder = model(tmp_path / "map", "engram", engram_compressed_vocab_size=98)
    assert "makes 97 different tokens for Engram, engram_compressed_vocab_size is 98" in refused(folder)
    folder = model(tmp_path / "rows", "engram", engram_num_embeddings=[384, 551])
    assert "engram.rows is [384, 551], primes make [384, 552]" in refused(folder, Ds4Error)
    (folder / "tokenizer.json").unlink()
    assert "needs the token map, which is computed from tokenizer.json: it is missing" in refused(folder)


def test_the_pad_of_engram_has_either_of_two_names(tmp_path: Path) -> None:
    """transformers calls it otherwise than SGLang and NeMo do."""
    folder = model(tmp_path / "pad", "engram")
    whole = json.loads((folder / "config.json").read_text())
    whole["text_config"]["engram_pad_id"] = whole["text_config"].pop("engram_pad_token_id") + 1
    (folder / "config.json").write_text(json.dumps(whole))
    with Engine.open(folder, backend="reference") as engine:
        assert engine.shape.engram_pad == 3


def test_mode_ds4_is_refused_and_images_are_left_out(tmp_path: Path) -> None:
    folder = model(tmp_path / "a", "a")
    assert "numerics ds4 is not known for deepseek41" in refused(folder, UsageError, numerics="ds4")
    left_out = ("vision.patch.weight", "aligner.w1.weight", "image_start", "mtp.0.main_norm.weight")
    folder = model(tmp_path / "more", "a", (*left_out, *(f"layers.{i}.ffn.gate.bias_vl" for i in range(9))))
    (folder / "config.json").write_text(json.dumps(config("a") | {"vision_config": {"depth": 3}, "image_token_id": 7}))
    Engine.open(folder, backend="reference").close()
    folder = model(tmp_path / "extra", "a", ("layers.0.extra",))
    assert "layers.0.extra has no place in a deepseek_v41 model here" in refused(folder)
