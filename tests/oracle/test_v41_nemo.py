"""Engram of DeepSeek V4.1 against NVIDIA's NeMo Automodel, torch on the CPU: rows of n-grams, and the gate.

pip install --no-deps nemo_automodel==0.7.0
"""

from __future__ import annotations

from importlib.util import find_spec
from types import SimpleNamespace

import numpy as np
import pytest

from ds4ref.archs.deepseek4.hooks import Recorder
from ds4ref.engine import Engine
from ds4ref.session.session import Session
from tests.v41 import config, golden, model

pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore")]  # of torch and packages around it


def test_rows_and_gate_are_those_of_nemo(tmp_path):
    if find_spec("nemo_automodel") is None:
        pytest.skip("nemo_automodel is not installed: pip install --no-deps nemo_automodel==0.7.0")
    import torch
    from nemo_automodel.components.models.deepseek_v41.engram import DeepseekV41Engram, DeepseekV41NgramHash
    from transformers import PreTrainedTokenizerFast

    folder, ids = model(tmp_path / "engram", "engram"), golden()["a.ids"].tolist()
    theirs = SimpleNamespace(**config("engram")["text_config"])
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    rows = DeepseekV41NgramHash(theirs, tokenizer)(torch.tensor([ids]))[0].numpy()
    with Engine.open(folder, backend="reference", numerics="exact", threads=1) as engine:
        session, seen = Session(engine.model, 256), Recorder("engram_in", "engram_rows", "engram_out")
        session.hooks = seen
        session.extend(ids, chunk=len(ids))
        for which, layer in enumerate(engine.shape.engram_layers):
            lookup, w = engine.model.lookups[layer], engine.model.weights.layers[layer]
            before = np.full(engine.shape.engram_grams - 1, -1)
            assert np.array_equal(lookup.hashing.rows(which, np.array(ids), before), rows[:, which])
            gate = DeepseekV41Engram.__new__(DeepseekV41Engram)
            torch.nn.Module.__init__(gate)
            gate.hidden_size, gate.hc_mult, gate.eps = engine.shape.dim, engine.shape.hc, engine.shape.rms_eps
            gate.hash_heads, gate.num_embeddings = rows.shape[2], engine.shape.engram_rows[which]
            looked_up = torch.tensor(seen["engram_rows", layer]).unflatten(-1, (gate.hash_heads, -1))
            gate.embed = lambda _, found=looked_up: found[None]
            gate.embed.process_group = None
            gate.wkv = lambda z, own=w.engram_kv: torch.tensor(engine.model.ops.linear(z[0].numpy(), own, "float"))[
                None
            ]
            gate.q_weight, gate.k_weight = torch.tensor(w.engram_gate), torch.ones(w.engram_gate.shape)
            out = gate(torch.tensor(seen["engram_in", layer])[None], torch.tensor(rows[None, :, which]))[0].numpy()
            assert np.abs(out - seen["engram_out", layer]).max() <= 1e-5 * np.abs(out).max()
