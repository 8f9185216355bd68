#!/usr/bin/env bash
# transformers leaves out the RoPE scaling of a GGUF, that of its keys and Llama 3's rope_freqs.weight.
#
# Guess before the run: from_pretrained(folder, gguf_file=NAME) of a llama GGUF gives llama.cpp's numbers for the same
# file, or refuses or warns about a key or tensor that it does not use.
# Seen (transformers 5.24.0, torch 2.13.0, float32, gguf 0.19.0, xllamacpp 2026.10.11549, random weights): without scaling
# log probabilities of the next token agree to 0.01, with any rope.freq_base. With rope.scaling.type linear or yarn, and
# with the tensor rope_freqs.weight, llama.cpp's move by several units, transformers' do not move at all, and config says
# rope_type default. No warning. And attention.head_count_kv, which a file may leave out if it is head_count, must be
# there: without it the rows of attn_k stay in llama.cpp's order, and all numbers are wrong.
# Llama 3.1 and later have their scaling in that tensor: who loads llama.cpp's file into transformers as the reference
# compares with another model. Set rope_parameters in the config by hand.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" -q --disable-pip-version-check install torch==2.13.0 transformers==5.24.0 gguf==0.19.0 accelerate \
	xllamacpp==2026.10.11549
cd "$folder"
"$folder/venv/bin/python" - <<'PY' 2>&1 | grep -E "^(as described|[a-z]+: )|Error"
import json
import os
import urllib.request

import gguf
import numpy as np
import torch
import xllamacpp
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM

IDS = np.random.default_rng(1).integers(0, 254, 100).tolist()
KEYS = {"block_count": 1, "context_length": 512, "embedding_length": 64, "head_count": 4, "head_count_kv": 4,
        "feed_forward_length": 128, "rope_dimension_count": 16, "layer_norm_rms_eps": 1e-5, "vocab_size": 256,
        "tokenizer_model": "gpt2", "tokenizer_pre": "gpt-2", "token_list": sorted(pre_tokenizers.ByteLevel.alphabet()),
        "token_types": [1] * 256, "token_merges": ["a b"], "bos_token_id": 254, "eos_token_id": 255}
SHAPES = {"token_embd": (256, 64), "output_norm": (64,), "output": (256, 64), "blk.0.attn_norm": (64,)}
SHAPES |= {f"blk.0.attn_{part}": (64, 64) for part in ("q", "k", "v", "output")}
SHAPES |= {"blk.0.ffn_norm": (64,), "blk.0.ffn_gate": (128, 64), "blk.0.ffn_up": (128, 64), "blk.0.ffn_down": (64, 128)}
servers = []  # kept until the end


def both(name, factors=False, **more):
    random, writer = np.random.default_rng(0), gguf.GGUFWriter(f"{name}.gguf", "llama")
    for key, value in (KEYS | more).items():
        if value is None:
            continue
        getattr(writer, f"add_{key}")(value)
    for part, shape in SHAPES.items():
        values = random.standard_normal(shape) * 0.3 if len(shape) == 2 else np.ones(shape)
        if part == "output":
            values[94:] = 0  # the likeliest token is an ASCII character
        writer.add_tensor(f"{part}.weight", values.astype(np.float32))
    if factors:
        writer.add_tensor("rope_freqs.weight", np.linspace(1, 8, 8, dtype=np.float32))
    for step in ("header_to_file", "kv_data_to_file", "tensors_to_file"):
        getattr(writer, f"write_{step}")()
    writer.close()
    model = AutoModelForCausalLM.from_pretrained(".", gguf_file=f"{name}.gguf", dtype=torch.float32)
    theirs = model(torch.tensor([IDS])).logits[0, -1].log_softmax(-1).tolist()
    params = xllamacpp.CommonParams()
    params.model.path, params.n_ctx, params.n_parallel, params.cpuparams.n_threads = f"{name}.gguf", 512, 1, 1
    servers.append(xllamacpp.Server(params))
    body = json.dumps({"prompt": IDS, "n_predict": 1, "n_probs": 256, "temperature": 0}).encode()
    head = {"Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(servers[-1].listening_address + "/completion", body, head)) as reply:
        entries = json.load(reply)["completion_probabilities"][0]["top_logprobs"]
    gap = max(abs(theirs[entry["id"]] - entry["logprob"]) for entry in entries)
    print(f"{name}: largest difference of {len(entries)} log probabilities {gap:.3g}; {model.config.rope_parameters}")
    return theirs, gap


plain, gap = both("plain")
other, gap_base = both("base", rope_freq_base=500000.0)
assert gap < 0.1 and gap_base < 0.1 and other != plain, "the behaviour has changed: without scaling"
kinds = gguf.RopeScalingType
for name, more in (("linear", {"rope_scaling_type": kinds.LINEAR, "rope_scaling_factor": 4.0}),
                   ("yarn", {"rope_scaling_type": kinds.YARN, "rope_scaling_factor": 4.0, "rope_scaling_orig_ctx_len": 128}),
                   ("freqs", {"factors": True})):
    same, gap = both(name, **more)
    assert same == plain and gap > 1, f"the behaviour has changed: {name}"
assert both("without", head_count_kv=None)[1] > 1, "the behaviour has changed: no head_count_kv"
print("as described", flush=True)
os._exit(0)
PY
