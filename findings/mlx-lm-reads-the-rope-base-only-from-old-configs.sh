#!/usr/bin/env bash
# mlx-lm rotates models that transformers 5 saved with a RoPE base of its own, not with that of config.json.
#
# Guess before the run: a model that transformers saves is the same model in mlx-lm; rope_parameters, where transformers
# 5 keeps base and scaling, is read, or a config without rope_theta is refused.
# Seen (mlx-lm 0.32.2, mlx 0.32.4 on a CPU, transformers 5.24.0, torch 2.13.0, float32, random weights): save_pretrained
# writes neither rope_theta nor rope_scaling. Llama, Mistral, Qwen2 and Mixtral then load with mlx-lm's default bases and
# without scaling: logits differ by 0.5 and more at a base of 500000, and with Llama 3's scaling. With the same numbers
# written the old way, flat, they agree to float noise. Qwen3, whose class reads rope_parameters, agrees either way.
# A model that was only loaded and saved again by transformers 5 answers worse the longer the text, without an error:
# write rope_theta and rope_scaling into its config.json.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" -q --disable-pip-version-check install 'mlx[cpu]==0.32.4' mlx-lm==0.32.2 \
	transformers==5.24.0 torch==2.13.0
cd "$folder"
"$folder/venv/bin/python" - <<'PY' 2>&1 | grep -v "model shards"
import json
from pathlib import Path

import mlx.core as mx
import torch
from mlx_lm.utils import load_model
from transformers import AutoConfig, AutoModelForCausalLM

IDS = list(range(5, 205))
SIZES = {"hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 128, "num_attention_heads": 4, "head_dim": 16,
         "num_key_value_heads": 2, "vocab_size": 300, "max_position_embeddings": 512}
SCALED = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}


def gaps(family, **rope):
    """Return the largest difference of logits, with the config as transformers saves it and with flat keys."""
    torch.manual_seed(0)
    rope = {"rope_type": "default", **rope}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **SIZES, rope_parameters=rope)).eval()
    for weight in model.parameters():
        weight.data *= 4 if weight.dim() > 1 else 1
    model.save_pretrained(family)
    right = model(torch.tensor([IDS])).logits[0].detach()
    path = Path(family, "config.json")
    saved = json.loads(path.read_text())
    assert "rope_parameters" in saved and not {"rope_theta", "rope_scaling"} & set(saved), "transformers has changed"
    nested = saved.pop("rope_parameters")
    flat = saved | {"rope_theta": nested.pop("rope_theta")} | ({"rope_scaling": nested} if len(nested) > 1 else {})
    found = []
    for config in (None, flat):
        if config:
            path.write_text(json.dumps(config))
        logits = load_model(Path(family))[0](mx.array([IDS]))[0]
        found.append((torch.tensor(logits.tolist()) - right).abs().max().item())
    print(f"{family:8} {rope['rope_type']:8} as saved: {found[0]:.2g}, with flat keys: {found[1]:.2g}")
    return found


for family in ("llama", "mistral", "qwen2", "mixtral"):
    saved, flat = gaps(family, rope_theta=500000.0)
    assert saved > 0.1 and flat < 1e-4, "the behaviour has changed"
saved, flat = gaps("llama", rope_theta=500000.0, **SCALED)
assert saved > 0.1 and flat < 1e-4, "the behaviour has changed: scaling"
assert max(gaps("qwen3", rope_theta=500000.0)) < 1e-4, "the behaviour has changed: Qwen3"
print("as described")
PY
