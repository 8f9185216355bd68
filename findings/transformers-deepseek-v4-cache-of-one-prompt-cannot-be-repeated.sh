#!/usr/bin/env bash
# transformers: the cache of a DeepSeek V4 prompt cannot be repeated for several answers.
#
# Guess before the run: batch_repeat_interleave makes of the cache of one prompt that of a batch, as for other models with
# a sliding window, or refuses.
# Seen (transformers 5.24.0, torch 2.13.0, a small model with random weights): batch_repeat_interleave and
# batch_select_indices return; the next forward pass ends in RuntimeError "Sizes of tensors must match", since compressed rows
# and unfinished groups still have the old batch size. reorder_cache, which beam search uses, handles them. A V4 model
# with ratios 0 only goes on to float noise.
# Who evaluates a prompt once and samples several answers from it must repeat the prompt instead, or copy the cache.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" -q --disable-pip-version-check install torch==2.13.0 transformers==5.24.0 numpy
cd "$folder"
"$folder/venv/bin/python" - <<'PY'
import warnings

import torch
from transformers import DeepseekV4Config, DeepseekV4ForCausalLM, DynamicCache

warnings.simplefilter("ignore")
prompts = torch.arange(3, 103).reshape(2, 50)
more = torch.arange(40, 60)[None]
CHANGES = {
    "repeat": (lambda cache: cache.batch_repeat_interleave(2), [0, 0, 1, 1]),
    "select": (lambda cache: cache.batch_select_indices(torch.tensor([1])), [1]),
    "reorder": (lambda cache: cache.reorder_cache(torch.tensor([1, 0])), [1, 0]),
}


@torch.no_grad()
def outcomes(ratios):
    torch.manual_seed(0)
    lm = DeepseekV4ForCausalLM(DeepseekV4Config(
        vocab_size=128, hidden_size=64, num_hidden_layers=4, num_attention_heads=4, head_dim=32, q_lora_rank=32,
        o_lora_rank=16, o_groups=2, n_routed_experts=4, num_experts_per_tok=2, n_shared_experts=1,
        moe_intermediate_size=32, sliding_window=16, index_n_heads=4, index_head_dim=32, index_topk=512, hc_mult=2,
        num_hash_layers=0, compress_ratios=ratios, qk_rope_head_dim=16, max_position_embeddings=4096)).eval()
    found = {}
    for name, (change, rows) in CHANGES.items():
        cache = DynamicCache(config=lm.config)
        lm(prompts, past_key_values=cache, use_cache=True)
        change(cache)
        batch = more.expand(len(rows), -1)
        try:
            resumed = lm(batch, past_key_values=cache, use_cache=True).logits
        except RuntimeError as error:
            found[name] = str(error).split(".")[0]
            continue
        fresh = lm(torch.cat([prompts[rows], batch], 1), use_cache=False).logits[:, prompts.shape[1] :]
        found[name] = "equal" if (resumed - fresh).abs().max() < 1e-4 else "different"
    return found


compressed, plain = outcomes([0, 4, 128, 4]), outcomes([0, 0, 0, 0])
print("ratios 0 4 128 4:", compressed)
print("ratios 0:        ", plain)
assert set(plain.values()) == {"equal"} and compressed["reorder"] == "equal", "the behaviour has changed"
assert all("Sizes of tensors must match" in compressed[name] for name in ("repeat", "select")), "it has changed"
print("as described")
PY
