"""A small Llama that was trained, exported as llama2.c does it, and told on by the engine and by plain NumPy alike.

transformers' Llama learns one short text by heart in a few seconds; its weights then go through all three layouts.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ds4ref.engine import Engine

from ..weights import llama2c
from ..weights.test_llama2c import told
from .conftest import missing

pytestmark = pytest.mark.oracle

C = llama2c.Config(dim=48, hidden=96, layers=2, heads=6, shared=3, vocab=360, context=256)
TOKENS = llama2c.vocabulary(C)
STEPS = 300


@pytest.fixture(scope="module")
def trained() -> dict[str, np.ndarray]:
    """Weights by llama2.c's names."""
    try:
        import torch
        from transformers import LlamaConfig, LlamaForCausalLM
    except ImportError:
        missing("transformers is not installed (pip install 'ds4ref[oracle]')")
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=C.dim, intermediate_size=C.hidden, num_hidden_layers=C.layers, num_attention_heads=C.heads,
        num_key_value_heads=C.shared, vocab_size=C.vocab, rms_norm_eps=1e-5, tie_word_embeddings=True,
        max_position_embeddings=C.context, bos_token_id=1, eos_token_id=1, pad_token_id=None,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    ids = torch.tensor([llama2c.encode(TOKENS, llama2c.SAMPLE) + [1]])
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = model(ids, labels=ids).loss
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.1, "it did not learn the text"
    state = {name: value.detach().numpy() for name, value in model.state_dict().items()}

    def stack(name: str, heads: int = 0) -> np.ndarray:
        """Rows of all layers; of heads, channels i and i + half side by side, as llama2.c turns them."""
        half = C.size // 2
        pairs = [head * C.size + i + part for head in range(heads) for i in range(half) for part in (0, half)]
        rows = pairs or slice(None)
        return np.array([state[f"model.layers.{i}.{name}.weight"][rows] for i in range(C.layers)])

    return {
        "tok": state["model.embed_tokens.weight"], "last": state["model.norm.weight"],
        "att": stack("input_layernorm"), "ffn": stack("post_attention_layernorm"),
        "wq": stack("self_attn.q_proj", C.heads), "wk": stack("self_attn.k_proj", C.shared),
        "wv": stack("self_attn.v_proj"), "wo": stack("self_attn.o_proj"),
        "w1": stack("mlp.gate_proj"), "w2": stack("mlp.down_proj"), "w3": stack("mlp.up_proj"),
    }  # fmt: skip


def beginning() -> str:
    """Some of the text that is cut into the tokens that begin all of it."""
    ids = llama2c.encode(TOKENS, llama2c.SAMPLE)
    texts = (b"".join(TOKENS[i][1] for i in ids[1:count]).decode()[1:] for count in range(4, len(ids) // 2))
    return next(text for text in texts if llama2c.encode(TOKENS, text) == ids[: len(llama2c.encode(TOKENS, text))])


@pytest.mark.parametrize("layout", ["legacy", "version 1", "version 2"])
def test_what_was_learned_is_told(trained: dict[str, np.ndarray], layout: str, tmp_path: Path) -> None:
    w = trained
    if layout == "version 2":
        data, _, w = llama2c.version_2(C, trained)
    else:
        data = (llama2c.legacy if layout == "legacy" else llama2c.version_1)(C, trained)
    path = llama2c.write(tmp_path, data, TOKENS)
    prompt = beginning()
    with Engine.open(path) as engine:
        for temperature, top_p, seed in ((0, 0.9, 1), (1.0, 0.9, 42), (1.5, 0.95, 7)):
            if layout == "version 2" and temperature > 1:
                continue  # a text of chance: float noise that becomes an int8 code may draw another token
            sampler = llama2c.Sampler(temperature, top_p, seed)
            ids, text = llama2c.generate(C, w, TOKENS, sampler, prompt, 200)
            found = told(engine, prompt, 200, temperature, top_p, seed)
            assert found == (ids, text.decode("utf-8", "replace"))
            if temperature == 0:
                assert prompt + found[1] == llama2c.SAMPLE
