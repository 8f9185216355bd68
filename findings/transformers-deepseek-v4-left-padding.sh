#!/usr/bin/env bash
# transformers' DeepSeek V4 answers a left-padded prompt of a batch as if the padding were text.
#
# Guess before the run: with an attention mask, a prompt that is padded on the left to the length of another one gets the
# logits and the greedy continuation that it gets alone, as in other decoder models there.
# Seen (transformers 5.24.0, torch 2.13.0, float32, a small model with random weights): in DeepseekV4ForCausalLM logits
# differ from the first compressed row on (position 3 of the text), by several units, whatever the number of padding
# tokens, multiples of the ratios 4 and 128 included; generate() continues differently and says nothing. A Llama model
# of the same size gives the same logits up to float noise. A V4 model with ratios 0 only agrees, too: the compressors
# take padding tokens into their rows, and the mask does not hide these rows.
# Who evaluates V4 with transformers in batches must group prompts by length.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" -q --disable-pip-version-check install torch==2.13.0 transformers==5.24.0 numpy
cd "$folder"
"$folder/venv/bin/python" - <<'PY'
import torch
from transformers import DeepseekV4Config, DeepseekV4ForCausalLM, LlamaConfig, LlamaForCausalLM

LENGTH, PADS = 150, (1, 4, 128)


def model(kind, config):
    torch.manual_seed(0)
    made = kind(config).eval()
    for weight in made.parameters():
        if weight.dim() > 1:
            torch.nn.init.normal_(weight, std=0.15)
    return made


def deepseek(ratios):
    return model(DeepseekV4ForCausalLM, DeepseekV4Config(
        vocab_size=128, hidden_size=64, num_hidden_layers=len(ratios), num_attention_heads=4, head_dim=32,
        q_lora_rank=32, o_lora_rank=16, o_groups=2, n_routed_experts=4, num_experts_per_tok=2, n_shared_experts=1,
        moe_intermediate_size=32, sliding_window=16, index_n_heads=4, index_head_dim=32, index_topk=512, hc_mult=2,
        num_hash_layers=0, compress_ratios=ratios, qk_rope_head_dim=16, max_position_embeddings=4096))


llama = model(LlamaForCausalLM, LlamaConfig(
    vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=4, num_attention_heads=4,
    num_key_value_heads=4, max_position_embeddings=4096))
torch.manual_seed(1)
ids = torch.randint(3, 128, (1, LENGTH))


@torch.no_grad()
def examine(name, lm):
    alone, worst = lm(ids, use_cache=False).logits[0], []
    for pad in PADS:
        padded = torch.cat([torch.zeros(1, pad, dtype=torch.long), ids], 1)
        mask = torch.cat([torch.zeros(1, pad, dtype=torch.long), torch.ones_like(ids)], 1)
        places = (mask.cumsum(1) - 1).clamp(min=0)
        logits = lm(padded, attention_mask=mask, position_ids=places, use_cache=False).logits[0, pad:]
        apart = (logits - alone).abs().amax(1)
        wrong = (apart > 1e-2).nonzero().flatten().tolist()
        worst.append((pad, round(apart.max().item(), 5), wrong[0] if wrong else None))
    options = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0, "eos_token_id": -1}
    one = lm.generate(ids, attention_mask=torch.ones_like(ids), **options)[0, LENGTH:].tolist()
    both = lm.generate(padded, attention_mask=mask, **options)[0, -12:].tolist()
    print(f"{name}: (padding, largest difference, first position) {worst}, same continuation: {one == both}")
    return worst, one == both


compressed = examine("DeepSeek V4, ratios 0 4 128 4", deepseek([0, 4, 128, 4]))
plain = examine("DeepSeek V4, ratios 0", deepseek([0, 0, 0, 0]))
other = examine("Llama", llama)
assert all(place == 3 for _, _, place in compressed[0]) and not compressed[1], "the behaviour has changed: V4"
assert all(place is None for _, _, place in plain[0] + other[0]), "the behaviour has changed: the others"
assert plain[1] and other[1], "the behaviour has changed: continuations of the others"
print("as described")
PY
