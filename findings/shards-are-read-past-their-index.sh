#!/usr/bin/env bash
# mlx-lm and transformers take tensors of a split model from other files than its index says.
#
# Guess before the run: model.safetensors.index.json says for each tensor which file has it, so both take it from there;
# files that the index does not name are left alone.
# Seen (mlx-lm 0.32.2, mlx 0.32.4 on a CPU, transformers 5.24.0, torch 2.13.0, safetensors 0.8.0, a small Llama with
# random weights): mlx-lm loads every model*.safetensors of the folder, so that a part left over from an earlier
# download, under a name that the index does not have, replaces tensors; transformers leaves it alone. Where one part has
# an old copy of a tensor that the index places in another part, transformers takes the copy of the last file, right or
# wrong, and mlx-lm that of the file that the folder lists last. No error, no warning.
# A folder that was updated in place may be another model in each of the two: delete what the index does not name.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" -q --disable-pip-version-check install 'mlx[cpu]==0.32.4' mlx-lm==0.32.2 transformers==5.24.0 \
	torch==2.13.0 safetensors==0.8.0
cd "$folder"
"$folder/venv/bin/python" - <<'PY' 2>&1 | grep -v -e "model shards" -e "Loading weights"
import glob
import json
import shutil
from pathlib import Path

import torch
from mlx_lm.utils import load_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

NAME, RIGHT, STALE = "model.norm.weight", 1.0, 7.0
OLD = {NAME: torch.full((64,), STALE)}
model = LlamaForCausalLM(LlamaConfig(hidden_size=64, num_hidden_layers=2, intermediate_size=128, num_attention_heads=4,
                                     num_key_value_heads=2, vocab_size=300))
model.save_pretrained("right", max_shard_size="200KB")
places = json.loads(Path("right", "model.safetensors.index.json").read_text())["weight_map"]
first, middle, last = sorted(set(places.values()))
assert places[NAME] == middle


def read(file):
    """Write an old copy of NAME into a file beside the right one; return what transformers and mlx-lm load for NAME, and
    whether the changed file is the last of the two where mlx-lm lists the folder."""
    shutil.rmtree("model", ignore_errors=True)
    shutil.copytree("right", "model")
    others = load_file(f"model/{file}") if Path("model", file).exists() else {}
    save_file(others | OLD, f"model/{file}", metadata={"format": "pt"})
    listed = [Path(path).name for path in glob.glob("model/model*.safetensors")]
    theirs = AutoModelForCausalLM.from_pretrained("model").model.norm.weight
    here = load_model(Path("model"))[0].model.norm.weight
    return theirs[0].item(), here[0].item(), listed.index(file) > listed.index(middle)


assert read(middle)[:2] == (STALE, STALE)  # the changed file is the one that the index names
for file, expected in (first, RIGHT), (last, STALE):
    theirs, here, later = read(file)
    print(f"index: {middle}, old copy in {file}: transformers {theirs}, mlx-lm {here}")
    assert theirs == expected, "the behaviour has changed: transformers"
    assert here == (STALE if later else RIGHT), "the behaviour has changed: mlx-lm"
replaced = 0
for n in range(1, 11):  # the order of a folder depends on the file system: try several names
    theirs, here, later = read(f"model-{n:05}-of-00010.safetensors")
    assert theirs == RIGHT, "the behaviour has changed: transformers reads a file that the index does not name"
    assert here == (STALE if later else RIGHT), "the behaviour has changed: mlx-lm"
    replaced += later
print(f"a file that the index does not name: transformers never reads it, mlx-lm took its tensor for {replaced} of 10 names")
assert replaced > 0, "the behaviour has changed: mlx-lm"
print("as described")
PY
