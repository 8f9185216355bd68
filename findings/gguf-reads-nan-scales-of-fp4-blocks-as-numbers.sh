#!/usr/bin/env bash
# gguf reads the NaN scales of FP4 blocks as numbers, and ignores the sign of NVFP4's scales.
#
# Guess before the run: a scale code that means NaN in its format (E8M0: 255; E4M3: 127 and 255) makes NaN of the block,
# as in torch; a negative E4M3 scale makes it negative.
# Seen (gguf 0.19.0): in NVFP4 the code 127 is 0, so that the block becomes zeros, and 255 is 480, more than the
# format's greatest number, 448; the sign of other codes is ignored: 0xb8, which is -1, is 1. In MXFP4 the code 255 is
# 2^128, so that a weight of 0.5 becomes 1.7e38.
# Weights that overflowed before they were converted are found by their codes only, not by looking for NaN after decoding.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" -q --disable-pip-version-check install gguf==0.19.0 numpy
cd "$folder"
"$folder/venv/bin/python" - <<'PY'
import numpy as np
from gguf import GGMLQuantizationType as Format
from gguf.quants import dequantize


def first(kind, scale, code):
    size, at = {Format.MXFP4: (17, 1), Format.NVFP4: (36, 4)}[kind]
    block = np.zeros((1, size), np.uint8)
    block[:, 0], block[:, at:] = scale, code * 17  # two codes a byte
    with np.errstate(over="ignore"):
        return float(dequantize(block, kind)[0, 0])


ONE, HALF = 2, 1  # codes of E2M1
plain = [first(Format.NVFP4, scale, ONE) for scale in (0x38, 0x7E)]
seen = [first(Format.NVFP4, scale, ONE) for scale in (127, 255, 0xB8)]
print("NVFP4, scales 1 and 448:", plain, "NaN, -NaN, -1:", seen)
assert plain == [1, 448] and seen == [0, 480, 1], "the behaviour has changed: NVFP4"
seen = [first(Format.MXFP4, scale, HALF) for scale in (127, 254, 255)]
print("MXFP4, 0.5 with scales 1, 2^127, NaN:", seen)
assert seen == [0.5, 2.0**126, 2.0**127], "the behaviour has changed: MXFP4"
print("as described")
PY
