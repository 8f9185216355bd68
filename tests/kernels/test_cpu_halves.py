"""binary16 in the compiled code, by instructions where the processor has them and in integers where it has not."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]

PLAIN = {"NUMBA_CPU_NAME": "x86-64", "NUMBA_CPU_FEATURES": "+sse2", "DS4_SIMD_TIER": ""}
"""An x86-64 without F16C, where LLVM would call conversion routines that no loaded library has, and abort."""

CONVERT = """
import numpy as np
from numba import njit
from ds4ref.kernels.cpu.simd.tiers import FEATURES, TIER
from ds4ref.kernels.cpu.tasks.lang import JIT, f32p, load_f16, round_f16, store_f16
from ds4ref.kernels.cpu.tasks.tiles import widen

@njit(**JIT)
def narrow(x, out, n):
    for i in range(n):
        store_f16(out + 2 * i, f32p(x)[i])

@njit(**JIT)
def load(x, out, n):
    for i in range(n):
        f32p(out)[i] = load_f16(x + 2 * i)

@njit(**JIT)
def through(x, out, n):
    for i in range(n):
        f32p(out)[i] = round_f16(f32p(x)[i])

def run(function, x, kind):
    out = np.zeros(x.size, kind)
    function(x.ctypes.data, out.ctypes.data, x.size)
    return out

np.seterr(all="ignore")
halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
wide = halves.astype(np.float32)
for function in (widen, load):
    got = run(function, halves, np.float32)
    assert (np.isnan(got) == np.isnan(wide)).all()
    assert (got.view(np.uint32) >> 31 == halves.view(np.uint16) >> 15).all()
    assert (got.view(np.uint32) == wide.view(np.uint32))[~np.isnan(wide)].all()
    assert (got.view(np.uint32)[np.isnan(wide)] & 0x400000 != 0).all()  # no signalling NaN comes out
between = (wide[:-1] + wide[1:]) / 2
random = np.random.default_rng(1).integers(0, 1 << 32, 1 << 20, np.uint32).view(np.float32)
edges = np.float32([65504, 65519.99, 65520, 65536, 3e38, np.inf, 2.0**-24, 2.0**-25, 1e-45])
x = np.concatenate([wide, between, random, edges, -edges])
x = np.concatenate([x, np.nextafter(x, np.float32(np.inf)), np.nextafter(x, np.float32(-np.inf))])
x = np.concatenate([x, np.uint32([0x7F800001, 0xFF800001, 0x7FC00000, 0x7FFFFFFF]).view(np.float32)])
want = x.astype(np.float16)
got = run(narrow, x, np.float16)
assert (np.isnan(got) == np.isnan(x)).all()
assert (got.view(np.uint16) == want.view(np.uint16))[~np.isnan(x)].all()
assert (got.view(np.uint16) >> 15 == x.view(np.uint32) >> 31).all()
got, want = run(through, x, np.float32), want.astype(np.float32)
assert (np.isnan(got) == np.isnan(x)).all()
assert (got.view(np.uint32) == want.view(np.uint32))[~np.isnan(x)].all()
print(TIER, FEATURES.get("f16c", False))
"""


@pytest.mark.thorough
@pytest.mark.parametrize("plain", [False, pytest.param(True, id="without F16C")])
def test_every_half_and_what_lies_between(plain: bool):
    if plain and platform.machine() != "x86_64":
        pytest.skip("feature strings of x86-64")
    environment = dict(os.environ, **(PLAIN if plain else {}), PYTHONPATH=str(ROOT))
    done = subprocess.run([sys.executable, "-c", CONVERT], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    if plain:
        assert done.stdout == "C False\n"
