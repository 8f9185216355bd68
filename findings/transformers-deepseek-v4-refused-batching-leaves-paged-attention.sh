#!/usr/bin/env bash
# transformers: after a refused request for continuous batching, DeepSeek V4 computes other logits without an error.
#
# Guess before the run: generate(cache_implementation="paged") refuses the compressed layers, and the model stays as it was.
# Seen (transformers 5.24.0, torch 2.13.0, a small model with random weights): ValueError "Invalid layer type:
# compressed_sparse_attention", as it should; but config._attn_implementation is then "paged|eager", and every later forward
# pass attends with it: logits change, and those of a token depend on the tokens after it. set_attn_implementation("eager")
# brings the first logits back.
# Who catches the error and goes on with the same model gets wrong answers.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" -q --disable-pip-version-check install torch==2.13.0 transformers==5.24.0 numpy
cd "$folder"
"$folder/venv/bin/python" - <<'PY'
import logging
import warnings

import torch
from transformers import DeepseekV4Config, DeepseekV4ForCausalLM

warnings.simplefilter("ignore")
logging.disable(logging.WARNING)
torch.manual_seed(0)
lm = DeepseekV4ForCausalLM(DeepseekV4Config(
    vocab_size=128, hidden_size=64, num_hidden_layers=3, num_attention_heads=4, head_dim=32, q_lora_rank=32,
    o_lora_rank=16, o_groups=2, n_routed_experts=4, num_experts_per_tok=2, n_shared_experts=1,
    moe_intermediate_size=32, sliding_window=16, index_n_heads=4, index_head_dim=32, index_topk=512, hc_mult=2,
    num_hash_layers=0, compress_ratios=[0, 4, 128], qk_rope_head_dim=16, max_position_embeddings=4096)).eval()
prompt = torch.arange(3, 103)[None]
other_end = prompt.clone()
other_end[0, -1] = 5


@torch.no_grad()
def state():
    logits = lm(prompt, use_cache=False).logits
    ahead = (lm(other_end, use_cache=False).logits[:, :-1] - logits[:, :-1]).abs().max().item()
    return lm.config._attn_implementation, logits, ahead


name, before, ahead = state()
print(f"before: {name}, the last token changes the others by {ahead:.1e}")
assert name == "eager" and ahead == 0
try:
    lm.generate(prompt, max_new_tokens=3, do_sample=False, cache_implementation="paged")
    raise SystemExit("the behaviour has changed: not refused")
except ValueError as error:
    print("refused:", error)
name, after, ahead = state()
print(f"after: {name}, logits changed by {(after - before).abs().max().item():.2f}, "
      f"the last token changes the others by {ahead:.2f}")
assert name == "paged|eager" and (after - before).abs().max() > 0.1 and ahead > 0.01, "the behaviour has changed"
lm.set_attn_implementation("eager")
assert torch.equal(state()[1], before), "the behaviour has changed"
print("as described")
PY
