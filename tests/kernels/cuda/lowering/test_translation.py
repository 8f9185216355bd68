"""The translator by itself, on PTX written here: instructions against NumPy, meetings, and the checks it makes.

Needs no CUDA package: numba-cuda is what emits PTX, llvmlite what runs it.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytestmark = [
    pytest.mark.thorough,  # the first test compiles what all need, for half a minute
    pytest.mark.skipif(platform.machine() != "x86_64", reason="fibers switch by x86-64 instructions"),
]

if platform.machine() == "x86_64":
    from . import fibers
    from .lowered import LaunchError, Lowered
    from .ptx import PTXError

N = 64
RNG = np.random.default_rng(5)
BODY = """.version 9.0
.target sm_90
.address_size 64
.extern .shared .align 16 .b8 tile[];
.visible .entry k(.param .u64 k_out, .param .u64 k_a, .param .u64 k_b, .param .u64 k_c) {
.reg .b64 %rd<20>; .reg .b32 %r<30>; .reg .b16 %rs<9>; .reg .f32 %f<9>; .reg .f64 %d<9>; .reg .pred %p<9>;
mov.u32 %r0, %tid.x; mul.wide.u32 %rd5, %r0, 4;
ld.param.u64 %rd1, [k_out]; ld.param.u64 %rd2, [k_a]; ld.param.u64 %rd3, [k_b]; ld.param.u64 %rd4, [k_c];
add.s64 %rd7, %rd1, %rd5; add.s64 %rd8, %rd2, %rd5; add.s64 %rd9, %rd3, %rd5; add.s64 %rd10, %rd4, %rd5;
ld.global.u32 %r1, [%rd8]; ld.global.u32 %r2, [%rd9]; ld.global.u32 %r3, [%rd10];
mov.b32 %f1, %r1; mov.b32 %f2, %r2; mov.b32 %f3, %r3;
mov.u64 %rd11, tile; add.s64 %rd12, %rd11, %rd5; xor.b32 %r8, %r0, 33; mul.wide.u32 %rd13, %r8, 4;
add.s64 %rd13, %rd11, %rd13;
"""


def run(text: str, a: np.ndarray, b: np.ndarray, c: np.ndarray, order: str = "forward", blocks: int = 1) -> np.ndarray:
    """The words that 64 threads store; arrays but the first are read-only."""
    out = np.zeros(N, np.uint32)
    arrays = [out, *(np.ascontiguousarray(each).view(np.uint32) for each in (a, b, c))]
    for array in arrays[1:]:
        array.flags.writeable = False
    numbers = [int(array.ctypes.data).to_bytes(8, "little") for array in arrays]
    Lowered(BODY + text + "\nret;\n}\n").run((blocks, 1, 1), (N, 1, 1), numbers, arrays, 4 * N, order)
    return out


def signed(x: Any) -> Any:
    return x.astype(np.uint32).view(np.int32).astype(object)


def plain(x: Any) -> Any:
    return x.astype(object)


def _bytes(x: Any, kind: Any) -> Any:
    return np.ascontiguousarray(x).view(kind).reshape(-1, 4).astype(np.int64)


def _prmt(a: Any, b: Any, c: Any) -> Any:
    pool, out = np.concatenate((_bytes(a, np.uint8), _bytes(b, np.uint8)), 1), np.zeros(len(a), np.int64)
    for i in range(4):
        nibble = (c >> (4 * i)).astype(np.int64) & 15
        byte = pool[np.arange(len(a)), nibble & 7]
        out |= np.where(nibble & 8, np.where(byte >= 128, 255, 0), byte) << (8 * i)
    return out


INTEGER: dict[str, Callable[..., Any]] = {
    "sub.s32 %r4, %r1, %r2;": lambda a, b, c: plain(a) - plain(b),
    "mul.wide.s32 %rd14, %r1, %r2; shr.s64 %rd14, %rd14, 16; cvt.u32.u64 %r4, %rd14;": (
        lambda a, b, c: signed(a) * signed(b) >> 16
    ),
    "mad.lo.s32 %r4, %r1, %r2, %r3;": lambda a, b, c: plain(a) * plain(b) + plain(c),
    "min.s32 %r4, %r1, %r2;": lambda a, b, c: np.minimum(signed(a), signed(b)),
    "max.u32 %r4, %r1, %r2;": lambda a, b, c: np.maximum(plain(a), plain(b)),
    "or.b32 %r5, %r2, 1; rem.u32 %r4, %r1, %r5;": lambda a, b, c: plain(a) % plain(b | 1),
    "shl.b32 %r4, %r1, %r2;": lambda a, b, c: [v << k if k < 32 else 0 for v, k in zip(plain(a), b, strict=True)],
    "shr.u32 %r4, %r1, %r2;": lambda a, b, c: plain(a) >> np.minimum(plain(b), 32),
    "shr.s32 %r4, %r1, %r2;": lambda a, b, c: signed(a) >> np.minimum(plain(b), 32),
    "shf.r.clamp.b32 %r4, %r1, %r2, %r3;": lambda a, b, c: (plain(b) << 32 | plain(a)) >> np.minimum(plain(c), 32),
    "prmt.b32 %r4, %r1, %r2, %r3;": _prmt,
    "bfi.b32 %r4, %r1, %r2, 5, 9;": lambda a, b, c: (b & ~np.uint32(511 << 5)) | (a & 511) << 5,
    "dp4a.u32.s32 %r4, %r1, %r2, %r3;": (
        lambda a, b, c: plain(c) + plain((_bytes(a, np.uint8) * _bytes(b, np.int8)).sum(1))
    ),
    "dp2a.lo.s32.u32 %r4, %r1, %r2, %r3;": (
        lambda a, b, c: plain(c) + plain((a.view(np.int16).reshape(-1, 2) * _bytes(b, np.uint8)[:, :2]).sum(1))
    ),
    "setp.lt.s32 %p1, %r1, %r2; selp.b32 %r4, %r1, %r3, %p1;": lambda a, b, c: np.where(signed(a) < signed(b), a, c),
    "setp.gt.u32 %p1, %r1, %r2; @%p1 add.s32 %r4, %r3, 1; @!%p1 mov.u32 %r4, 5;": (
        lambda a, b, c: np.where(a > b, plain(c) + 1, 5)
    ),
    "cvt.u16.u32 %rs1, %r1; cvt.s32.s8 %r4, %rs1;": lambda a, b, c: a.astype(np.uint8).view(np.int8),
    "mov.b64 %rd14, {%r1, %r2}; mov.b64 {%r5, %r4}, %rd14;": lambda a, b, c: b,
    "{ .reg .b32 t; add.s32 t, %r1, 1; { .reg .b32 t; mov.u32 t, 9; } mov.u32 %r4, t; }": lambda a, b, c: plain(a) + 1,
    "mov.u32 %r4, 0; mov.u32 %r5, 0;\n$L_head: setp.ge.s32 %p1, %r5, %r0; @%p1 bra $L_out; add.s32 %r4, %r4, %r5;"
    "add.s32 %r5, %r5, 1; bra.uni $L_head;\n$L_out: add.s32 %r4, %r4, 1;": (
        lambda a, b, c: np.array([t * (t - 1) // 2 + 1 for t in range(N)])
    ),
    # what threads bring to each other
    "shfl.sync.bfly.b32 %r4, %r1, 3, 31, -1;": lambda a, b, c: a[np.arange(N) ^ 3],
    "shfl.sync.idx.b32 %r4|%p1, %r1, 7, 31, -1; @%p1 add.s32 %r4, %r4, 1;": (
        lambda a, b, c: plain(a[np.arange(N) // 32 * 32 + 7]) + 1
    ),
    "st.shared.u32 [%rd12], %r1; bar.sync 0; ld.shared.u32 %r4, [%rd13];": lambda a, b, c: a[np.arange(N) ^ 33],
    "st.shared.u32 [%rd12], 0; bar.sync 0; atom.shared.add.u32 %r5, [tile], 3; bar.sync 0;ld.shared.u32 %r4, [tile];": (
        lambda a, b, c: np.full(N, 3 * N)
    ),
    "cp.async.ca.shared.global [%rd12], [%rd8], 4; cp.async.commit_group; cp.async.wait_group 0; bar.sync 0;"
    "ld.shared.u32 %r4, [%rd13];": lambda a, b, c: a[np.arange(N) ^ 33],
}


@pytest.mark.parametrize("line", INTEGER)
def test_integers(line: str) -> None:
    special = np.array([0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 31, 32, 33, 255, 0x80808080, 0x01020304], np.uint32)
    a, b, c = (RNG.integers(0, 1 << 32, N, np.uint32) for _ in range(3))
    a[:11], b[:11], c[:11] = special, special[::-1], np.roll(special, 3)
    b[20:40], c[20:40] = RNG.integers(0, 40, 20), RNG.integers(0, 40, 20)
    for order in fibers.ORDERS:
        out = run(line + "\nst.global.u32 [%rd7], %r4;", a, b, c, order)
        wanted = np.array([int(x) & 0xFFFFFFFF for x in INTEGER[line](a, b, c)], np.uint32)
        np.testing.assert_array_equal(out, wanted)


def _down(exact: np.ndarray) -> np.ndarray:
    """float64 to the float32 below."""
    near = exact.astype(np.float32)
    return np.where(near.astype(np.float64) > exact, np.nextafter(near, np.float32(-np.inf)), near)


FLOAT: dict[str, Callable[..., Any]] = {
    "fma.rn.f32 %f4, %f1, %f2, %f3;": lambda a, b, c: a * b + c,
    "fma.rm.f32 %f4, %f1, %f2, 0f00000000;": lambda a, b, c: _down(a * b + 0.0),
    "max.f32 %f4, %f1, %f2;": lambda a, b, c: np.fmax(a, b),
    "ex2.approx.ftz.f32 %f4, %f3;": lambda a, b, c: np.exp2(c),
    "rcp.rn.f32 %f4, %f1;": lambda a, b, c: 1 / a,
    "cvt.sat.f32.f32 %f4, %f1;": lambda a, b, c: np.clip(np.nan_to_num(a, nan=0), 0, 1) + 0.0,
    "cvt.rn.f16.f32 %rs1, %f1; cvt.f32.f16 %f4, %rs1;": lambda a, b, c: a.astype(np.float16),
    "cvt.rzi.s32.f32 %r5, %f1; cvt.rn.f32.s32 %f4, %r5;": (
        lambda a, b, c: np.trunc(np.clip(np.nan_to_num(a, nan=0), -(2.0**31), 2.0**31 - 1))
    ),
    "cvt.f64.f32 %d1, %f1; cvt.f64.f32 %d2, %f2; fma.rn.f64 %d3, %d1, %d2, 0d3FE0000000000000;"
    "cvt.rn.f32.f64 %f4, %d3;": lambda a, b, c: a * b + 0.5,
    "setp.leu.f32 %p1, %f1, %f2; selp.f32 %f4, %f3, 0f40490FDB, %p1;": (
        lambda a, b, c: np.where(~(a > b), c, np.float32(np.pi))
    ),
}


@pytest.mark.parametrize("line", FLOAT)
def test_floats(line: str) -> None:
    special = np.array([0, -0.0, 1, np.inf, -np.inf, np.nan, 1e-42, 65519.9, 65520, 6e-8, 2.5, 3.5, 3e9, -1e-7], "f4")
    a, b, c = (RNG.standard_normal(N).astype("f4") * 4 for _ in range(3))
    a[:14], b[20:34], b[:3] = special, special, (0.5, 3, -1)
    out = run(line + "\nst.global.f32 [%rd7], %f4;", a, b, c).view(np.float32)
    with np.errstate(all="ignore"):
        wanted = FLOAT[line](*(x.astype(np.float64) for x in (a, b, c))).astype(np.float32)
    np.testing.assert_array_equal(out, wanted)


FAULTS = {
    "st.global.u32 [%rd1+-4], %r1;": "OUTSIDE",
    "ld.global.v2.u32 {%r4, %r5}, [%rd1+256];": "OUTSIDE",
    "ld.global.u16 %rs1, [%rd1+1];": "MISALIGNED",
    "st.global.u32 [%rd8], %r1;": "READ_ONLY",
    "st.shared.u32 [%rd12+4], %r1;": "OUTSIDE",
    "ld.shared.u32 %r4, [%rd12];": "UNINITIALISED",
    "st.shared.u32 [%rd12], %r1; bar.sync 0; ld.shared.u32 %r4, [%rd13]; st.shared.u32 [%rd12], %r4;": "RACE",
    "st.shared.u32 [%rd11], %r1;": "RACE",
    "st.shared.u32 [%rd12], %r1; bar.warp.sync -1; st.shared.u32 [%rd13], %r1;": "RACE",
    "cp.async.ca.shared.global [%rd12], [%rd8], 4; cp.async.commit_group; cp.async.wait_group 1; bar.sync 0;"
    "ld.shared.u32 %r4, [%rd13];": "UNINITIALISED",
    "setp.lt.u32 %p1, %r0, 5; @%p1 bar.sync 0; @!%p1 bar.warp.sync -1;": "STUCK",
    "shfl.sync.bfly.b32 %r4, %r1, 1, 31, 1;": "STUCK",
}


@pytest.mark.parametrize("line", FAULTS)
def test_faults_are_found(line: str) -> None:
    a = np.zeros(N, np.uint32)
    with pytest.raises(LaunchError) as caught:
        run(line, a, a, a)
    assert caught.value.error == getattr(fibers, FAULTS[line]), str(caught.value)


def test_a_fault_tells_where_and_a_lost_update_shows() -> None:
    a = np.zeros(N, np.uint32)
    told = r"line 12: outside of every array: a store of 4 bytes .*block \(1, 0, 0\), thread \(3, 0, 0\)"
    with pytest.raises(LaunchError, match=told):
        run(
            ".loc 1 12 0\nmov.u32 %r4, %ctaid.x; mul.wide.u32 %rd14, %r4, 244; add.s64 %rd7, %rd7, %rd14;"
            "st.global.u32 [%rd7], %r1;", a, a, a, blocks=2,
        )  # fmt: skip
    text = "ld.global.u32 %r4, [%rd1]; add.s32 %r4, %r4, 1; st.global.u32 [%rd1], %r4;"
    assert [run(text, a, a, a, order)[0] for order in fibers.ORDERS] == [N, N, 1]
    with pytest.raises(PTXError, match="wgmma"):
        run("wgmma.fence.sync.aligned;", a, a, a)
