#!/usr/bin/env bash
# transformers: tokens that resize_token_embeddings adds to a DeepSeek V4 model cannot be used.
#
# Guess before the run: the table that names the experts of each token id, in the hash layers, grows as the embedding
# does, or resizing is refused.
# Seen (transformers 5.24.0, torch 2.13.0, a small model with random weights): embedding and head get the new rows, config
# says the new size, and a pass over a new token ends in IndexError: the table (tid2eid) keeps its length. Without hash layers
# the same model works. Every published V4 has three hash layers.
# Who adds tokens for fine-tuning must extend the tables by hand, and choose experts for the new tokens.
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


@torch.no_grad()
def with_a_new_token(hash_layers):
    torch.manual_seed(0)
    lm = DeepseekV4ForCausalLM(DeepseekV4Config(
        vocab_size=128, hidden_size=64, num_hidden_layers=4, num_attention_heads=4, head_dim=32, q_lora_rank=32,
        o_lora_rank=16, o_groups=2, n_routed_experts=4, num_experts_per_tok=2, n_shared_experts=1,
        moe_intermediate_size=32, sliding_window=16, index_n_heads=4, index_head_dim=32, index_topk=512, hc_mult=2,
        num_hash_layers=hash_layers, compress_ratios=[0, 0, 4, 128], qk_rope_head_dim=16)).eval()
    lm.resize_token_embeddings(130)
    assert lm.config.vocab_size == len(lm.get_input_embeddings().weight) == len(lm.lm_head.weight) == 130
    tables = {len(value) for name, value in lm.state_dict().items() if name.endswith("tid2eid")}
    try:
        return tables, tuple(lm(torch.tensor([[5, 129]]), use_cache=False).logits.shape)
    except IndexError as error:
        return tables, f"IndexError: {error}"


hashed, scored = with_a_new_token(2), with_a_new_token(0)
print("lengths of the tables, outcome; two hash layers:", hashed, "none:", scored)
assert hashed[0] == {128} and hashed[1].startswith("IndexError"), "the behaviour has changed"
assert scored == (set(), (1, 2, 130)), "the behaviour has changed"
print("as described")
PY
