#!/usr/bin/env bash
# torch and ml_dtypes make different E8M0 scales of zero and of negative numbers.
#
# Guess before the run: E8M0 has neither zero nor a sign, so both give NaN for what it cannot hold.
# Seen (torch 2.13.0, ml_dtypes 0.6.0): ml_dtypes gives NaN for 0, -1 and -2. torch gives 2^-127 for 0, and for a negative
# number its size: -2 becomes 2. Positive numbers, also subnormal ones, agree.
# A block of zeros gets the scale 2^-127 in one library and NaN in the other, and 0 times NaN is NaN: give such a block
# a scale of its own before the cast.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" -q --disable-pip-version-check install torch==2.13.0 ml_dtypes==0.6.0 numpy
cd "$folder"
"$folder/venv/bin/python" - <<'PY'
import warnings

import ml_dtypes
import numpy as np
import torch

warnings.simplefilter("ignore")
NAN = 255


def codes(values):
    x = np.array(values, np.float32)
    ours = torch.from_numpy(x).to(torch.float8_e8m0fnu).view(torch.uint8).tolist()
    return ours, x.astype(ml_dtypes.float8_e8m0fnu).view(np.uint8).tolist()


agreed = codes([1, 1.25, 1.5, 3, 2.0**-127, 1e-42, 2.0**127, 3e38, np.inf, np.nan])
print("positive numbers, torch and ml_dtypes:", *agreed)
assert agreed[0] == agreed[1], "the behaviour has changed: positive numbers"
torchs, numpys = codes([0, -1, -2])
print("0, -1, -2: torch", torchs, "ml_dtypes", numpys)
assert torchs == [0, 127, 128], "the behaviour has changed: torch"
assert numpys == [NAN] * 3, "the behaviour has changed: ml_dtypes"
print("as described")
PY
