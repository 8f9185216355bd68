#!/usr/bin/env bash
# torch, ml_dtypes and mlx round a float64 twice on its way to 16, 8 and 4 bits: to float32 first. numpy rounds once.
#
# Guess before the run: a cast gives the nearest value of the new type, as IEEE 754 says and as numpy's float16 does.
# Seen (torch 2.13.0, ml_dtypes 0.6.0, mlx 0.32.4 on a CPU, numpy 2.4.6, numpy-quaddtype 1.0.0): 1 + 2^-11 + 2^-40 is above
# the middle of two float16 values and becomes 1, the lower one, in torch and mlx; the same in bfloat16 and FP8 (E4M3,
# E5M2) at their middles, in ml_dtypes in its FP4, too. Below a middle they go up. Of numbers drawn between 1 and 2 one in
# 16000 gets another float16, one in 131000 another bfloat16. numpy's float64 to float16 is right; numpy-quaddtype's
# quad to float32 goes through float64 and has the same fault.
# A reference in double precision that is rounded at the end is not the correctly rounded one: two right programs may differ
# by a whole unit, and torch and ml_dtypes agree in the wrong value.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" -q --disable-pip-version-check install torch==2.13.0 ml_dtypes==0.6.0 'mlx[cpu]==0.32.4' \
	numpy==2.4.6 numpy-quaddtype==1.0.0
cd "$folder"
"$folder/venv/bin/python" - <<'PY'
import ml_dtypes
import mlx.core as mx
import numpy as np
import torch
from numpy_quaddtype import QuadPrecision

BITS = {"float16": 11, "bfloat16": 8, "float8_e4m3fn": 4, "float8_e5m2": 3, "float4_e2m1fn": 2}


def by_numpy(x, name):
    kind = np.float16 if name == "float16" else getattr(ml_dtypes, name)
    return x.astype(kind).astype(np.float64)


def by_torch(x, name):
    return torch.from_numpy(x).to(getattr(torch, name)).double().numpy()


def by_mlx(x, name):
    rounded = mx.array(x, dtype=mx.float64).astype(getattr(mx, name), stream=mx.cpu)
    return np.array(rounded.astype(mx.float32, stream=mx.cpu), np.float64)


def once(x, name):
    """Return x, from 1 to 2, rounded to the nearest value of the type, halves to even."""
    return np.rint(np.ldexp(x, BITS[name] - 1)) / 2.0 ** (BITS[name] - 1)


drawn = 1 + np.random.default_rng(0).random(1 << 22)
for cast, names in (by_torch, [*BITS][:4]), (by_numpy, [*BITS]), (by_mlx, [*BITS][:2]):
    for name in names:
        unit = 2.0 ** (1 - BITS[name])
        x = np.array([1 + unit / 2 + 2.0**-40, 1 + unit * 1.5 - 2.0**-40])
        right, found = once(x, name), cast(x, name)
        others = int((once(drawn, name) != cast(drawn, name)).sum())
        print(f"{cast.__name__:8} {name:13} right {right}, found {found}; {others} others of {len(drawn)} drawn")
        assert right.tolist() == [1 + unit] * 2
        numpy = cast is by_numpy and name == "float16"
        assert found.tolist() == (right.tolist() if numpy else [1, 1 + 2 * unit]), "the behaviour has changed"
        assert name[-2:] != "16" or (others == 0 if numpy else others > 10), "the behaviour has changed: drawn numbers"
quad = np.array([QuadPrecision(1) + QuadPrecision(2) ** -24 + QuadPrecision(2) ** -70])
print("quad to float32: right", 1 + 2.0**-23, "found", float(quad.astype(np.float32)[0]))
assert quad.astype(np.float32)[0] == 1, "the behaviour has changed: quad"
print("as described")
PY
