#!/usr/bin/env bash
# safetensors reads an FP4 tensor whole, but no slice of it; get_slice() says twice the columns that torch's tensor has.
#
# Guess before the run: get_slice() works for every dtype that get_tensor() reads, and its shape is that of the tensor.
# Seen (safetensors 0.8.0, torch 2.13.0, CPU): a (4, 8) tensor of float4_e2m1fn_x2, two values a byte, is saved with dtype
# F4 and shape [4, 16]. load_file() and get_tensor() give (4, 8) back, equal. get_slice().get_shape() says [4, 16], and
# every slice, of whole rows too, ends in RuntimeError: shape '[4, 16]' is invalid for input of size 32. Slices of
# float8_e4m3fn and float8_e8m0fnu work. A loader that shards FP4 experts by get_slice() must read them whole.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" -q --disable-pip-version-check install safetensors==0.8.0 torch==2.13.0 numpy
cd "$folder"
"$folder/venv/bin/python" - <<'PY'
import torch
from safetensors import safe_open
from safetensors.torch import save_file

raw = torch.arange(32, dtype=torch.uint8).reshape(4, 8)
for name in ("float4_e2m1fn_x2", "float8_e4m3fn", "float8_e8m0fnu"):
    save_file({"weight": raw.view(getattr(torch, name))}, f"{name}.safetensors")
    with safe_open(f"{name}.safetensors", "pt") as file:
        whole, part = file.get_tensor("weight"), file.get_slice("weight")
        assert tuple(whole.shape) == (4, 8) and torch.equal(whole.view(torch.uint8), raw)
        outcomes = []
        for index in (slice(0, 2), slice(0, 4), (slice(None), slice(0, 4))):
            try:
                outcomes.append(tuple(part[index].shape))
            except RuntimeError as error:
                outcomes.append(str(error))
        print(name, "shape of the slice:", part.get_shape(), "slices:", outcomes)
        if name.startswith("float4"):
            assert part.get_shape() == [4, 16], "the behaviour has changed: shape of an FP4 slice"
            assert all("invalid for input of size 32" in str(each) for each in outcomes), "it has changed: FP4 slices"
        else:
            assert part.get_shape() == [4, 8] and outcomes == [(2, 8), (4, 8), (4, 4)]
PY
