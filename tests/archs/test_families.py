"""Every dense family as a folder: what its config says, logits of Hugging Face and of the plain pass, windows and
experts at their edges, what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ds4ref.archs.dense.shape import Scaling
from ds4ref.cli import ds4
from ds4ref.cli.quantize import main as quantize
from ds4ref.engine import Engine
from ds4ref.errors import ModelFileError, ShapeError
from ds4ref.importance import collect

from . import dense, families
from .test_dense import BAR, apart, ids_of

each_kind = pytest.mark.parametrize("kind", families.KINDS)
GOLDEN = Path(__file__).parents[1] / "data" / "families.npz"
GOLDEN_BAR = 2e-4 / 2.6
"""Largest difference to Hugging Face in standard deviations of the logits, of DeepSeek's drawn models."""
SPARSE = {"mixtral", "qwen3moe"}


@each_kind
@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_logits_of_hugging_face(kind: str, backend: str, tmp_path: Path) -> None:
    """Stored by ``tests.oracle.golden_families``; the whole text, and its end token by token."""
    model = families.golden(kind)
    with (
        np.load(GOLDEN) as stored,
        Engine.open(model.folder(tmp_path / "m"), backend=backend, numerics="exact") as engine,
    ):
        wanted, rows = stored[kind], families.GOLDEN_ROWS
        session = engine.session(60)
        whole = engine.session(60).extend(model.ids)[-rows:]
        session.sync(model.ids[:-rows])
        decoded = np.array([session.eval(token) for token in model.ids[-rows:]])
    assert apart(whole, wanted) < GOLDEN_BAR and apart(decoded, wanted) < GOLDEN_BAR


@each_kind
def test_a_folder_is_its_config_and_the_plain_pass(kind: str, tmp_path: Path) -> None:
    """Also through a GGUF file made of the folder, to the bit."""
    models = (families.draw(kind, seed) for seed in range(1, 30))
    plain = {"llama3": "llama3"}.get(kind, "none")
    model = next(model for model in models if model.shape.scaling.kind == plain and model.shape.head_dim > 2)
    path, out = model.folder(tmp_path / "m"), tmp_path / "m.gguf"
    assert quantize([str(path), "-o", str(out), "--recipe", "f32"]) == 0
    with Engine.open(path, numerics="exact") as engine, Engine.open(out, numerics="exact") as other:
        # Llama 3's stretching is a tensor, as llama.cpp has it
        shape = replace(model.shape, scaling=Scaling()) if kind == "llama3" else model.shape
        assert ("rope_freqs.weight" in other.source.tensors) is (kind == "llama3")
        assert replace(engine.shape, name=shape.name) == replace(other.shape, name=shape.name) == shape
        got = engine.logits(model.ids)
        assert np.array_equal(other.logits(model.ids), got)
    if kind != "llama3":
        assert apart(got, model.logits()) < BAR


def windowed(folder: Path, window: int, layers: int = 1) -> tuple[Path, Any]:
    """A GGUF file of a model with a window in its last layer."""
    pattern = tuple(layer == layers - 1 for layer in range(layers))
    shape = replace(dense.draw_shape(3, dense.FAMILIES["llama"]), n_layers=layers, window=window, windowed=pattern)
    return dense.write(folder / "windowed.gguf", shape, dense.draw_tensors(shape, 3, False)), shape


@pytest.mark.parametrize("mode", ["exact", "ds4"])
def test_windows_are_kept_by_rewinding_snapshots_and_saving(mode: str, tmp_path: Path) -> None:
    path, shape = windowed(tmp_path, 9, layers=3)
    ids = ids_of(shape, 90)
    with Engine.open(path, numerics=mode) as engine:
        wanted = engine.session(100).extend(ids, one_by_one=True)
        session = engine.session(100)
        session.sync(ids[:40])
        kept = session.snapshot()
        session.sync(ids)
        session.rewind(33)
        again = [session.eval(token) for token in ids[33:50]]
        session.restore(kept)
        restored = [session.eval(token) for token in ids[40:70]]
        session.save(tmp_path / "saved")
        fresh = engine.session(100)
        fresh.load(tmp_path / "saved")
        loaded = [fresh.eval(token) for token in ids[70:]]
    bar = BAR if mode == "exact" else 5e-2
    for got, at in ((again, 33), (restored, 40), (loaded, 70)):
        assert apart(np.array(got), wanted[at : at + len(got)]) < bar


@pytest.mark.parametrize("kind", sorted(SPARSE))
def test_importance_of_experts(kind: str, tmp_path: Path) -> None:
    """Every matrix of a layer is met; an expert by the tokens that chose it."""
    model = families.draw(kind, 2)
    shape = model.shape
    with Engine.open(model.folder(tmp_path / "m"), numerics="exact") as engine:
        entries = collect(engine, [model.ids]).entries
        use = engine.expert_use()
    matrices = {name for name, values in model.tensors.items() if name.startswith("blk.") and values.ndim > 1}
    assert set(entries) == matrices
    routes = len(model.ids) * shape.n_used
    for layer in range(shape.n_layers):
        for part in ("gate", "up", "down"):
            entry = entries[f"blk.{layer}.ffn_{part}_exps.weight"]
            assert entry.counts.sum() == routes and np.array_equal(entry.means.any(axis=1), entry.counts > 0)
    assert use["choices"] == routes * shape.n_layers


def test_costs_and_the_report_count_what_a_token_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of experts those that it takes, of rows those in the window."""
    model = families.draw("qwen3moe", 1)
    shape = replace(model.shape, window=9, windowed=())
    path = dense.write(tmp_path / "m.gguf", shape, model.tensors, "F32")
    with Engine.open(path, numerics="exact") as engine:
        costs = engine.costs()
        sizes = {name: 4 * values.size for name, values in model.tensors.items()}
        experts = sum(size for name, size in sizes.items() if "_exps" in name)
        rest = sum(size for name, size in sizes.items() if "_exps" not in name)
        if "output.weight" in sizes:
            rest -= sizes["token_embd.weight"]
        row = 4 * shape.dim
        assert costs.weight_bytes() == pytest.approx(rest + row + experts * shape.n_used / shape.n_experts, abs=9)
        kv = 4 * 2 * shape.n_layers * shape.kv_width
        for depth, rows in ((0, 0), (8, 8), (9, 9), (1000, 9)):
            assert costs.decode(depth).bytes - costs.decode(0).bytes == rows * kv == shape.kv_read_bytes(depth)
        whole = costs.prefill(0, 100, 100)
        assert whole.bytes < rest + row * 100 + experts + kv * 100 + 1
        assert whole.bytes > 0.99 * (rest + experts)
    assert ds4.main(["--inspect", str(path)]) == 0
    out = capsys.readouterr().out
    assert f"{shape.n_experts} of width {shape.expert_ff}, {shape.n_used} per token" in out
    assert f"9 tokens, in all of {shape.n_layers} layers" in out


SLIDING, FULL = "sliding_attention", "full_attention"


def changed(kind: str, changes: dict[str, Any], folder: Path) -> Path:
    """The folder of a drawn model, keys of its config changed, or left out (...)."""
    model = families.draw(kind, 1)
    path = model.folder(folder)
    about = json.loads((path / "config.json").read_text()) | changes
    about = {key: value for key, value in about.items() if value is not ...}
    (path / "config.json").write_text(json.dumps(about))
    return path


REFUSED = {
    "mistral: an empty window": ({"sliding_window": 0}, "sliding_window is 0"),
    "mistral: layers that differ": ({"sliding_window": 5, "layer_types": [FULL]}, "layer_types has no 'sliding"),
    "mixtral: no experts": ({"num_local_experts": 0}, "num_local_experts is 0"),
    "mixtral: more used than there are": ({"num_experts_per_tok": 99}, "num_experts_per_tok is 99"),
    "mixtral: more than there are": ({"num_local_experts": 90}, ".weight' is missing"),
    "mixtral: fewer than there are": ({"num_local_experts": 1, "num_experts_per_tok": 1}, "has no place"),
    "qwen3moe: weights as they are": ({"norm_topk_prob": False}, "norm_topk_prob is false"),
    "qwen3moe: the same, unsaid": ({"norm_topk_prob": ...}, "norm_topk_prob is false"),
    "qwen3moe: every other layer": ({"decoder_sparse_step": 2}, "decoder_sparse_step is 2"),
    "qwen3moe: a layer without": ({"mlp_only_layers": [0]}, "mlp_only_layers is [0]"),
    "qwen3moe: biases": ({"attention_bias": True}, "attention_bias is true"),
    "qwen2: a layer too many": ({"use_sliding_window": True, "layer_types": [FULL] * 4}, "has 4 values for 3 layers"),
    "qwen2: an unknown layer": ({"use_sliding_window": True, "layer_types": ["linear"] * 3}, "has 'linear', not one"),
    "qwen2: layers without a window": ({"use_sliding_window": False, "layer_types": [SLIDING] * 3},
                                       "layer_types has 'sliding_attention' where"),
    "gemma3: layers in another order": ({"layer_types": [SLIDING] * 8}, "layer_types "),
    "gemma3: another pattern": ({"sliding_window_pattern": 4}, "sliding_window_pattern is not 6"),
    "gemma3: scores of another scale": ({"query_pre_attn_scalar": 168}, "query_pre_attn_scalar is 168, only"),
    "gemma3: an exact GELU": ({"hidden_activation": "gelu"}, "hidden_activation is 'gelu', wanted 'gelu_py"),
    "gemma3: capped logits": ({"final_logit_softcapping": 30.0}, "final_logit_softcapping is given"),
    "gemma3: capped scores": ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping is given"),
    "gemma3: both ways": ({"use_bidirectional_attention": True}, "use_bidirectional_attention is true"),
    "gemma3: windows that are stretched": (
        {"rope_parameters": {"sliding_attention": {"rope_type": "linear", "factor": 2.0}}}, "rope_type is not"),
    "llama3: a window": ({"use_sliding_window": True}, "use_sliding_window is true"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_configs_that_mean_another_model(case: str, tmp_path: Path) -> None:
    changes, says = REFUSED[case]
    with pytest.raises(ModelFileError) as found:
        Engine.open(changed(case.split(":")[0], changes, tmp_path / "m"))
    assert says in str(found.value) and "\n" not in str(found.value)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"n_used": 0}, "expert_used_count is 0, wanted 1 to"),
        ({"n_used": 12}, "expert_used_count is 12, wanted 1 to"),
        ({"n_experts": 4097}, "expert_count is 4097, wanted 1 to 4096"),
        ({"expert_ff": 0}, "expert_feed_forward_length is 0"),
        ({"n_experts": 3}, "ffn_gate_inp.weight has dims"),
    ],
)
def test_files_whose_experts_do_not_fit(changes: dict[str, int], says: str, tmp_path: Path) -> None:
    shape = replace(dense.draw_shape(5, dense.WITH_EXPERTS["qwen3moe"]), n_experts=4, n_used=2, expert_ff=5)
    path = dense.write(tmp_path / "m.gguf", shape, dense.draw_tensors(shape, 5, False))
    with Engine.open(path):
        pass
    tensors = dense.draw_tensors(shape, 5, False)
    path = dense.write(tmp_path / "bad.gguf", replace(shape, **changes), tensors)
    with pytest.raises(ShapeError, match=says):
        Engine.open(path)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"window": 0}, "sliding_window"),
        ({"window_theta": 1.0}, "freq_base_swa is 1"),
        ({"n_layers": 62}, "block_count is 62"),
    ],
)
def test_gemma_files_that_mean_another_model(changes: dict[str, Any], says: str, tmp_path: Path) -> None:
    shape = families.draw("gemma3", 1).shape
    path = dense.write(tmp_path / "bad.gguf", replace(shape, **changes), dense.draw_tensors(shape, 1, True))
    with pytest.raises(ShapeError, match=says):
        Engine.open(path)
