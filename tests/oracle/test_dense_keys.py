"""llama.cpp with one metadata key of a trained model changed, and right engines: ``benchmarks.dense_keys`` in part."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.dense_keys import ROWS, changed, judged, model_path, observed
from ds4ref.engine import Engine
from ds4ref.test_vectors.observation import Observation, from_logits

from .conftest import missing

pytestmark = pytest.mark.peers


@pytest.fixture(scope="module", params=ROWS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Any]]:
    """Name and engine of a trained model."""
    for package in ("llama_cpp", "xllamacpp"):
        if importlib.util.find_spec(package) is None:
            missing(f"{package} is not installed (pip install 'ds4ref[peers]')")
    path = model_path(request.param, tmp_path_factory.mktemp("model"))
    if path is None:
        pytest.skip(f"the package of {request.param} is not installed")
    with Engine.open(path, numerics="exact") as engine:
        yield request.param, engine


@pytest.mark.parametrize("key", ["rope.freq_base", "rope.dimension_count", "add_bos_token"])
def test_the_key_is_named(model: tuple[str, Any], key: str, tmp_path: Path) -> None:
    name, engine = model
    row = next((row for row in ROWS[name] if row.key.endswith(key)), None)
    if row is None:
        pytest.skip(f"llama.cpp does not load {name} with another {key}")
    path = changed(Path(engine.path), tmp_path / "changed.gguf", row.changes)
    says, outcome = judged(engine, observed(engine, path, row.ways[0], 64), row.key.format(engine.shape.family.name))
    assert outcome == "named", says


@pytest.mark.parametrize("way", ["logits", "http"])
def test_llama_cpp_is_not_accused(model: tuple[str, Any], way: str) -> None:
    _, engine = model
    says, outcome = judged(engine, observed(engine, Path(engine.path), way, 64, slots=2), "")
    assert outcome == "right", says


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_transformers_is_not_accused(model: tuple[str, Any], dtype: str) -> None:
    name, engine = model
    seen = of_transformers(engine, dtype, 64)
    says, outcome = judged(engine, seen, "")
    assert outcome in (("right",) if dtype == "float32" else ("right", "open")), says


def of_transformers(engine: Any, dtype: str, count: int) -> Observation:
    """Logits of Hugging Face's module with the file's weights, dequantized, in a type of torch."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from ds4ref.nano.prose import prose
    from ds4ref.text.chat import text_start

    shape, weights, text = engine.shape, engine.model.weights, prose(4000, seed=7)
    ids = (text_start(engine.tokenizer, text) + engine.tokenizer.encode(text))[:count]
    kind = "Gemma3Text" if shape.family.gemma else "Llama"
    more: dict[str, Any] = {}
    if shape.family.gemma:
        layers = ["sliding_attention" if has else "full_attention" for has in shape.windowed]
        rope = {"full_attention": {"rope_type": "default", "rope_theta": shape.rope_theta},
                "sliding_attention": {"rope_type": "default", "rope_theta": shape.window_theta}}  # fmt: skip
        more = {"sliding_window": shape.window, "layer_types": layers, "rope_parameters": rope,
                "query_pre_attn_scalar": shape.head_dim}  # fmt: skip
    else:
        more = {"rope_parameters": {"rope_type": "default", "rope_theta": shape.rope_theta}}
    config = getattr(transformers, f"{kind}Config")(
        hidden_size=shape.dim, intermediate_size=shape.ff, num_hidden_layers=shape.n_layers, vocab_size=shape.vocab,
        num_attention_heads=shape.n_heads, num_key_value_heads=shape.n_kv_heads, head_dim=shape.head_dim,
        rms_norm_eps=shape.rms_eps, max_position_embeddings=shape.trained_ctx, tie_word_embeddings=True,
        attn_implementation="eager", **more,
    )  # fmt: skip
    class_name = "Gemma3ForCausalLM" if shape.family.gemma else "LlamaForCausalLM"
    module = getattr(transformers, class_name)(config).to(getattr(torch, dtype)).eval()

    def halves(values: np.ndarray, heads: int) -> np.ndarray:
        """Rows of a projection in Hugging Face's order: RoPE pairs channel i with i + half."""
        if shape.family.halves:
            return values
        return values.reshape(heads, shape.head_dim // 2, 2, -1).swapaxes(1, 2).reshape(values.shape)

    def matrix(w: Any) -> np.ndarray:
        return np.asarray(w.dequantize(), np.float32)

    plus = np.float32(1 if shape.family.gemma else 0)  # Gemma's norms multiply by 1 + w
    state = {"model.embed_tokens.weight": matrix(weights.token_embd), "model.norm.weight": weights.output_norm - plus}
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    for number, w in enumerate(weights.layers):
        at = f"model.layers.{number}."
        state |= {
            at + "self_attn.q_proj.weight": halves(matrix(w.attn_q), shape.n_heads),
            at + "self_attn.k_proj.weight": halves(matrix(w.attn_k), shape.n_kv_heads),
            at + "self_attn.v_proj.weight": matrix(w.attn_v), at + "self_attn.o_proj.weight": matrix(w.attn_output),
            at + "mlp.gate_proj.weight": matrix(w.ffn_gate), at + "mlp.up_proj.weight": matrix(w.ffn_up),
            at + "mlp.down_proj.weight": matrix(w.ffn_down), at + "input_layernorm.weight": w.attn_norm - plus,
        }  # fmt: skip
        norms = {"post_attention_layernorm": w.ffn_norm}
        if shape.family.gemma:
            norms = {"post_attention_layernorm": w.post_attention_norm, "pre_feedforward_layernorm": w.ffn_norm,
                     "post_feedforward_layernorm": w.post_ffw_norm, "self_attn.q_norm": w.attn_q_norm,
                     "self_attn.k_norm": w.attn_k_norm}  # fmt: skip
        state |= {f"{at}{norm}.weight": values - plus for norm, values in norms.items()}
    tensors = {key: torch.from_numpy(np.array(value)).to(getattr(torch, dtype)) for key, value in state.items()}
    lost = module.load_state_dict(tensors, strict=False)
    assert not lost.missing_keys and not lost.unexpected_keys, lost
    with torch.no_grad():
        logits = module(torch.tensor([ids])).logits[0].float().numpy()
    return from_logits(ids, logits, vocab=shape.vocab)
