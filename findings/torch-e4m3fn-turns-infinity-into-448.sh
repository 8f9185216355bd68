#!/usr/bin/env bash
# torch turns infinity and every other overflow into 448 in float8_e4m3fn; its three other FP8 types and ml_dtypes do not.
#
# Guess before the run: all overflow alike. E4M3FN has no infinity, so it gives NaN, as float8_e4m3fnuz and ml_dtypes do.
# Seen (torch 2.13.0, ml_dtypes 0.6.0, CPU): 465, 10000 and infinity become 448.0 in torch's float8_e4m3fn, from float32
# and bfloat16, a single value and a vector alike; NaN stays NaN. float8_e5m2 gives infinity, float8_e4m3fnuz and
# float8_e5m2fnuz give NaN, and ml_dtypes gives NaN for the same values in float8_e4m3fn.
# An overflow before a cast to FP8 leaves no trace: who looks for infinities must look before the cast.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" -q --disable-pip-version-check install torch==2.13.0 ml_dtypes==0.6.0 numpy
cd "$folder"
"$folder/venv/bin/python" - <<'PY'
import math
import warnings

import ml_dtypes
import numpy as np
import torch

warnings.simplefilter("ignore")
VALUES = [465.0, 1e4, math.inf]


def cast(kind, values, source=torch.float32):
    return torch.tensor(values, dtype=source).to(kind).float().tolist()


seen = [cast(torch.float8_e4m3fn, VALUES, source) for source in (torch.float32, torch.bfloat16)]
seen.append([cast(torch.float8_e4m3fn, [value] * 64)[40] for value in VALUES])
print("torch, float8_e4m3fn:", *seen)
assert seen == [[448.0] * 3] * 3, "the behaviour has changed: overflow in float8_e4m3fn"
assert cast(torch.float8_e4m3fn, [-math.inf]) == [-448.0] and math.isnan(cast(torch.float8_e4m3fn, [math.nan])[0])
others = {kind: cast(getattr(torch, kind), [1e9])[0] for kind in ("float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")}
print("1e9 in other types:", others)
assert math.isinf(others["float8_e5m2"]), "the behaviour has changed: float8_e5m2"
assert math.isnan(others["float8_e4m3fnuz"]) and math.isnan(others["float8_e5m2fnuz"])
numpys = np.array(VALUES, np.float32).astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
print("ml_dtypes, float8_e4m3fn:", numpys)
assert np.isnan(numpys).all(), "the behaviour has changed: ml_dtypes"
print("as described")
PY
