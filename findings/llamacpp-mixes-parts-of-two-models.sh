#!/usr/bin/env bash
# llama.cpp joins the first part of one split model and the second part of another one without a word.
#
# Guess before the run: something in a split GGUF ties its parts together, so that a part of another model is refused or
# warned about.
# Seen (xllamacpp 2026.10.11549, parts written by gguf 0.19.0): later parts carry only split.no, split.count and
# split.tensors.count. Two models of one shape, split alike, have the same file names and the same numbers in all three.
# With the second part of the other model in its place the model opens, no line of the log mentions it, and it answers,
# with other log probabilities than either model.
# So after an upstream update a folder with parts of both revisions is a working, wrong model. Compare checksums.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" -q --disable-pip-version-check install xllamacpp==2026.10.11549 gguf==0.19.0 numpy
cd "$folder"
cat > ask.py <<'PY'
import json
import os
import sys
import urllib.request

import xllamacpp

params = xllamacpp.CommonParams()
params.model.path, params.n_ctx, params.n_parallel, params.cpuparams.n_threads = sys.argv[1], 256, 1, 1
server = xllamacpp.Server(params)
body = json.dumps({"prompt": "abcdefgh", "max_tokens": 1, "temperature": 0, "logprobs": 5, "grammar": "root ::= [a-z]+"}).encode()
request = urllib.request.Request(server.listening_address + "/v1/completions", body, {"Content-Type": "application/json"})
with urllib.request.urlopen(request) as reply:
    choice = json.load(reply)["choices"][0]
    first = choice["logprobs"]["content"][0]
print("ANSWER", json.dumps([[entry["id"], round(entry["logprob"], 4)] for entry in first["top_logprobs"]]), flush=True)
os._exit(0)
PY
"$folder/venv/bin/python" - <<'PY'
import json
import os
import shutil
import subprocess
import sys

import gguf
import numpy

plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
letters = {byte: chr(byte) for byte in plain}
letters |= {byte: chr(256 + i) for i, byte in enumerate(b for b in range(256) if b not in plain)}
TOKENS = [letters[byte] for byte in range(256)]
PARTS = ("model-00001-of-00002.gguf", "model-00002-of-00002.gguf")


def write(folder, seed):
    os.mkdir(folder)
    random = numpy.random.default_rng(seed)
    writer = gguf.GGUFWriter(f"{folder}/model.gguf", "llama", split_max_tensors=6)
    for add, value in (("block_count", 1), ("context_length", 512), ("embedding_length", 32), ("head_count", 2),
                       ("head_count_kv", 2), ("feed_forward_length", 64), ("rope_dimension_count", 16),
                       ("layer_norm_rms_eps", 1e-5), ("vocab_size", 256), ("tokenizer_model", "gpt2"),
                       ("tokenizer_pre", "gpt-2"), ("token_list", TOKENS), ("token_types", [1] * 256),
                       ("token_merges", ["a b"]), ("bos_token_id", 0), ("eos_token_id", 1)):
        getattr(writer, f"add_{add}")(value)
    for tensor, shape in {"token_embd": (256, 32), "output_norm": (32,), "output": (256, 32), "blk.0.attn_norm": (32,),
                          "blk.0.attn_q": (32, 32), "blk.0.attn_k": (32, 32), "blk.0.attn_v": (32, 32),
                          "blk.0.attn_output": (32, 32), "blk.0.ffn_norm": (32,), "blk.0.ffn_gate": (64, 32),
                          "blk.0.ffn_up": (64, 32), "blk.0.ffn_down": (32, 64)}.items():
        values = random.standard_normal(shape) * 0.2 if len(shape) == 2 else numpy.ones(shape)
        writer.add_tensor(f"{tensor}.weight", values.astype(numpy.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert sorted(os.listdir(folder)) == [*PARTS], os.listdir(folder)


def ask(folder):
    run = subprocess.run([sys.executable, "ask.py", f"{folder}/{PARTS[0]}"], capture_output=True, text=True)
    answers = [line for line in run.stdout.splitlines() if line.startswith("ANSWER")]
    assert len(answers) == 1, run.stdout + run.stderr
    log = run.stdout + run.stderr
    words = [line for line in log.splitlines() if "split" in line.lower() and ("warn" in line.lower() or "error" in line.lower())]
    return json.loads(answers[0].removeprefix("ANSWER")), words


write("old", 1)
write("new", 2)
os.mkdir("mixed")
shutil.copy(f"new/{PARTS[0]}", "mixed")
shutil.copy(f"old/{PARTS[1]}", "mixed")
for part in PARTS:
    fields = gguf.GGUFReader(f"mixed/{part}").fields
    print(part, {name: int(fields[name].parts[-1][0]) for name in fields if name.startswith("split.")})
answers = {folder: ask(folder) for folder in ("old", "new", "mixed")}
for folder, (answer, words) in answers.items():
    print(f"{folder:6} {answer} warnings: {words}")
assert not answers["mixed"][1], "the behaviour has changed: it is mentioned"
assert answers["mixed"][0] not in (answers["old"][0], answers["new"][0]), "the behaviour has changed: the answer"
print("as described")
PY
