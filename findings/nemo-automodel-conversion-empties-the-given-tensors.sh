#!/usr/bin/env bash
# NeMo Automodel's conversion of DeepSeek V4.1's published tensors empties the dictionary that it is given.
#
# Guess before the run: state_dict_adapter.from_hf returns a new dictionary, as to_hf does, and leaves the caller's alone.
# Seen (nemo_automodel 0.7.0 with torch 2.13.0 on a CPU, a model with random weights): to_hf makes a new dictionary and
# leaves its input as it is; from_hf removes every entry of its input while it works, all of them by the end. A second call
# with the same dictionary returns nothing, without an error, and load_state_dict(..., strict=False) of that loads nothing
# into the model, without an error, too.
# Who compares two engines on the same loaded tensors compares random weights the second time: give from_hf a copy, and
# look at the missing keys that load_state_dict returns.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
pip() { "$folder/venv/bin/pip" -q --disable-pip-version-check install "$@"; }
pip torch==2.13.0 transformers==5.24.0 numpy pillow pydantic psutil
pip --no-deps nemo_automodel==0.7.0
cd "$folder"
"$folder/venv/bin/python" -W ignore - <<'PY'
from nemo_automodel.components.models.common import BackendConfig
from nemo_automodel.components.models.deepseek_v41.config import DeepseekV41Config
from nemo_automodel.components.models.deepseek_v41.model import DeepseekV41ForCausalLM

text = dict(vocab_size=64, hidden_size=32, moe_intermediate_size=16, num_hidden_layers=2, num_attention_heads=2,
            head_dim=32, qk_rope_head_dim=16, q_lora_rank=16, o_lora_rank=16, o_groups=1, n_routed_experts=4,
            num_experts_per_tok=2, compress_ratios=[0, 2], kv_source_layer_ids=[1], index_source_layer_ids=[1],
            index_head_dim=32, index_n_heads=2, candidate_source_layer_id=-1, engram_layer_ids=[], dtype="float32")
backend = BackendConfig(attn="eager", linear="torch", rms_norm="torch_fp32", experts="torch", dispatcher="torch",
                        enable_hf_state_dict_adapter=True)
model = DeepseekV41ForCausalLM(DeepseekV41Config(text_config=text, vision_config={"num_hidden_layers": 0}),
                               backend=backend)
own = dict(model.state_dict())
before = len(own)
published = model.state_dict_adapter.to_hf(own)
count = len(published)
first = model.state_dict_adapter.from_hf(published)
left, second = len(published), model.state_dict_adapter.from_hf(published)
lacking, unknown = model.load_state_dict(second, strict=False)
print(f"to_hf: {before} tensors, {len(own)} afterwards; from_hf: {count}, {left} afterwards; "
      f"first call {len(first)}, second {len(second)}; not loaded {len(lacking)}")
assert len(own) == before, "the behaviour has changed: to_hf"
assert count and left == 0 and len(first) > 0, "the behaviour has changed: from_hf"
assert len(second) == 0 and len(lacking) > 0 and not unknown, "the behaviour has changed: the second call"
print("as described")
PY
