#!/usr/bin/env bash
# transformers: texts packed into one row are kept apart in DeepSeek V4's window, but not in its compressed layers.
#
# Guess before the run: position_ids that start again at 0 separate texts, as in other models without a cache and a mask, or
# are refused.
# Seen (transformers 5.24.0, torch 2.13.0, a small model with random weights): with compress_ratios 0 the second text's
# logits are those of the text alone to float noise; with ratios 4 they differ by a tenth and more, without a
# warning.
# Fine-tuning on packed texts learns from neighbours, although the same code keeps them apart in a model with a window only.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" -q --disable-pip-version-check install torch==2.13.0 transformers==5.24.0 numpy
cd "$folder"
"$folder/venv/bin/python" - <<'PY'
import warnings

import torch
from transformers import DeepseekV4Config, DeepseekV4ForCausalLM

warnings.simplefilter("ignore")
FIRST = 64  # a multiple of the ratio 4: no group of four tokens spans both texts
texts = torch.arange(3, 103)[None]
positions = torch.cat([torch.arange(FIRST), torch.arange(100 - FIRST)])[None]


@torch.no_grad()
def apart(ratios):
    torch.manual_seed(0)
    lm = DeepseekV4ForCausalLM(DeepseekV4Config(
        vocab_size=128, hidden_size=64, num_hidden_layers=4, num_attention_heads=4, head_dim=32, q_lora_rank=32,
        o_lora_rank=16, o_groups=2, n_routed_experts=4, num_experts_per_tok=2, n_shared_experts=1,
        moe_intermediate_size=32, sliding_window=16, index_n_heads=4, index_head_dim=32, index_topk=512, hc_mult=2,
        num_hash_layers=0, compress_ratios=ratios, qk_rope_head_dim=16, max_position_embeddings=4096)).eval()
    packed = lm(texts, position_ids=positions, use_cache=False).logits[:, FIRST:]
    return (packed - lm(texts[:, FIRST:], use_cache=False).logits).abs().max().item()


window, compressed = apart([0, 0, 0, 0]), apart([0, 4, 4, 4])
print(f"second text against the text alone: ratios 0 {window:.1e}, ratios 0 4 4 4 {compressed:.2f}")
assert window < 1e-5 and compressed > 0.05, "the behaviour has changed"
print("as described")
PY
