#!/usr/bin/env bash
# mlx-lm saves a prompt cache of DeepSeek V4.1 that it cannot load.
#
# Guess before the run: save_prompt_cache either writes a file from which load_prompt_cache makes an equal cache, or says
# that this kind of model has none.
# Seen (mlx-lm 0.32.2 with mlx on a CPU, small models with random weights): for V4.1 the file is written without a
# word; loading it ends in KeyError: 'LayerCache'. The class of V4.1's cache is not among those that the loader knows.
# A Llama model's cache of the same version goes to the file and back, and the next logits are equal.
# Who keeps long prompts between runs learns of it at the second run; load the file once after it was saved.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" -q --disable-pip-version-check install 'mlx[cpu]' mlx-lm==0.32.2
cd "$folder"
"$folder/venv/bin/python" - <<'PY'
import mlx.core as mx
from mlx_lm.models import deepseek_v41, llama
from mlx_lm.models.cache import load_prompt_cache, make_prompt_cache, save_prompt_cache

SMALL = {"vocab_size": 64, "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "head_dim": 32}
ids, more = mx.array([[3 + i % 50 for i in range(30)]]), mx.array([[7]])


def examine(module, **fields):
    mx.random.seed(0)
    model = module.Model(module.ModelArgs.from_dict({**SMALL, **fields}))
    cache = make_prompt_cache(model)
    mx.eval(model(ids, cache))
    save_prompt_cache("cache.safetensors", cache)
    try:
        again = load_prompt_cache("cache.safetensors")
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "equal" if mx.array_equal(model(more, cache), model(more, again)) else "different"


v41 = examine(
    deepseek_v41, model_type="deepseek_v41", q_lora_rank=32, qk_rope_head_dim=16, o_groups=2, o_lora_rank=16,
    moe_intermediate_size=32, n_routed_experts=4, num_experts_per_tok=2, sliding_window=16, compress_ratios=(0, 4, 4, 4),
    kv_source_layer_ids=(1,), index_source_layer_ids=(1,), index_n_heads=4, index_head_dim=32, index_topk=8, hc_mult=2)
other = examine(llama, model_type="llama", intermediate_size=128, rms_norm_eps=1e-5)
print("V4.1:", v41, "Llama:", other)
assert v41 == "KeyError: 'LayerCache'", "the behaviour has changed: V4.1"
assert other == "equal", "the behaviour has changed: Llama"
print("as described")
PY
