#!/usr/bin/env bash
# safetensors.numpy saves FP8 arrays of ml_dtypes and cannot load them; BF16 it loads only once ml_dtypes was imported.
#
# Guess before the run: what safetensors.numpy saves it also loads, and loading does not depend on other imports.
# Seen (safetensors 0.8.0, ml_dtypes 0.6.0, numpy 2.4.6): save_file() writes float8_e4m3fn and float8_e8m0fnu arrays as
# F8_E4M3 and F8_E8M0, right files that its load_file() ends in AttributeError: module 'numpy' has no attribute
# 'float8_e4m3fn', with ml_dtypes imported or not. A BF16 file ends in TypeError: data type 'bfloat16' not understood in a
# process that has not imported ml_dtypes, and loads in one that has, whoever imported it. A tool that reads checkpoints
# without torch passes or fails by what else is installed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" -q --disable-pip-version-check install safetensors==0.8.0 ml_dtypes==0.6.0 "numpy<2.5"
cd "$folder"
cat > load.py <<'PY'
import sys

if sys.argv[1] == "with":
    import ml_dtypes
from safetensors.numpy import load_file

for name in sys.argv[2:]:
    try:
        print(name, load_file(f"{name}.safetensors")["weight"].dtype)
    except Exception as error:
        print(name, f"{type(error).__name__}: {error}")
PY
cat > save.py <<'PY'
import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

for name in ("bfloat16", "float8_e4m3fn", "float8_e8m0fnu"):
    save_file({"weight": np.ones((2, 4)).astype(getattr(ml_dtypes, name))}, f"{name}.safetensors")
    print(name, open(f"{name}.safetensors", "rb").read()[8:40])
PY
"$folder/venv/bin/python" save.py
for import in without with; do
    "$folder/venv/bin/python" load.py $import bfloat16 float8_e4m3fn float8_e8m0fnu > $import.txt
    echo "$import ml_dtypes:"
    cat $import.txt
    grep -q "^float8_e4m3fn AttributeError" $import.txt || { echo "the behaviour has changed: FP8" >&2; exit 1; }
    grep -q "^float8_e8m0fnu AttributeError" $import.txt || { echo "the behaviour has changed: E8M0" >&2; exit 1; }
done
grep -q "^bfloat16 TypeError" without.txt || { echo "the behaviour has changed: BF16 without ml_dtypes" >&2; exit 1; }
grep -q "^bfloat16 bfloat16" with.txt || { echo "the behaviour has changed: BF16 with ml_dtypes" >&2; exit 1; }
