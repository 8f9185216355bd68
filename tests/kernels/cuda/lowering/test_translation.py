"""The translator by itself, on PTX written here: instructions against NumPy, meetings, and every check it makes.

Needs no CUDA package: numba-cuda is what emits PTX, llvmlite what runs it.
"""

from __future__ import annotations

import platform

import numpy as np
import pytest

pytestmark = [
    pytest.mark.thorough,  # the first test compiles what all need, for half a minute
    pytest.mark.skipif(platform.machine() != "x86_64", reason="fibers switch by x86-64 instructions"),
]

if platform.machine() == "x86_64":
    from . import fibers
    from .lowered import LaunchError, Lowered
    from .ptx import PTXError, parse

N = 64
RNG = np.random.default_rng(5)

HEAD = """.version 9.0
.target sm_90
.address_size 64
{shared}
.visible .entry k(.param .u64 k_out, .param .u64 k_a, .param .u64 k_b, .param .u64 k_c) {{
.reg .b64 %rd<20>; .reg .b32 %r<30>; .reg .b16 %rs<9>; .reg .f32 %f<9>; .reg .f64 %d<9>; .reg .pred %p<9>;
mov.u32 %r0, %tid.x;
ld.param.u64 %rd1, [k_out]; ld.param.u64 %rd2, [k_a]; ld.param.u64 %rd3, [k_b]; ld.param.u64 %rd4, [k_c];
mul.wide.u32 %rd5, %r0, 4; mul.wide.u32 %rd6, %r0, 8;
"""
WORDS = """add.u64 %rd7, %rd1, %rd5; add.u64 %rd8, %rd2, %rd5; add.u64 %rd9, %rd3, %rd5; add.u64 %rd10, %rd4, %rd5;
ld.global.u32 %r1, [%rd8]; ld.global.u32 %r2, [%rd9]; ld.global.u32 %r3, [%rd10];
mov.b32 %f1, %r1; mov.b32 %f2, %r2; mov.b32 %f3, %r3;
"""


def run(text, a, b, c, out, threads=N, shared="", blocks=1, dynamic=0, order="forward"):
    """Run a body after HEAD."""
    arrays = [out, a, b, c]
    numbers = [int(array.ctypes.data).to_bytes(8, "little") for array in arrays]
    compiled = Lowered(HEAD.format(shared=shared) + text + "ret;\n}\n")
    compiled.run((blocks, 1, 1), (threads, 1, 1), numbers, arrays, dynamic, order)
    return out


def words(*values):
    return [np.ascontiguousarray(v).view(np.uint32) for v in values]


def integers():
    """Three columns of 32-bit patterns with the awkward ones among them."""
    special = np.array([0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 31, 32, 33, 255, 0x80808080, 0x01020304], np.uint32)
    a, b, c = (RNG.integers(0, 1 << 32, N, np.uint32) for _ in range(3))
    a[:11], b[:11], c[:11] = special, special[::-1], np.roll(special, 3)
    b[20:40], c[20:40] = RNG.integers(0, 40, 20), RNG.integers(0, 40, 20)
    return a, b, c


def signed(x):
    return x.astype(np.uint32).view(np.int32).astype(object)


def plain(x):
    return x.astype(object)


def _bytes(x, kind):
    return np.ascontiguousarray(x).view(kind).reshape(-1, 4).astype(np.int64)


def _prmt(a, b, c):
    pool = np.concatenate((_bytes(a, np.uint8), _bytes(b, np.uint8)), 1)
    out = np.zeros(len(a), np.int64)
    for i in range(4):
        nibble = (c >> (4 * i)).astype(np.int64) & 15
        byte = pool[np.arange(len(a)), nibble & 7]
        out |= np.where(nibble & 8, np.where(byte >= 128, 255, 0), byte) << (8 * i)
    return out


def _shift(x, n, width=32):
    return [v << k if k < width else 0 for v, k in zip(x, n, strict=True)]


def _lop3(a, b, c):
    return (a & b) ^ ~c


def _field(a, b, c, sign):
    out = []
    for value, start, count in zip(a, b & 255, c & 255, strict=True):
        bits = [(int(value) >> min(int(start) + i, 31)) & 1 if start + i < 32 else 0 for i in range(min(count, 32))]
        top = (int(value) >> min(int(start) + int(count) - 1, 31)) & 1 if sign and count else 0
        bits = [(int(value) >> (int(start) + i)) & 1 if start + i < 32 else top for i in range(min(int(count), 32))]
        bits += [top] * (32 - len(bits))
        out.append(sum(bit << i for i, bit in enumerate(bits)))
    return out


def _insert(a, b, c, d=None):
    out = []
    for value, old, spec in zip(a, b, c, strict=True):
        start, count = int(spec) & 31, int(spec) >> 5 & 31
        mask = ((1 << count) - 1) << start
        out.append((int(old) & ~mask) | (int(value) << start) & mask)
    return out


INTEGER = {
    "add.s32 %r4, %r1, %r2;": lambda a, b, c: plain(a) + plain(b),
    "sub.u32 %r4, %r1, %r2;": lambda a, b, c: plain(a) - plain(b),
    "add.sat.s32 %r4, %r1, %r2;": lambda a, b, c: np.clip(signed(a) + signed(b), -(1 << 31), (1 << 31) - 1),
    "mul.lo.s32 %r4, %r1, %r2;": lambda a, b, c: signed(a) * signed(b),
    "mul.hi.s32 %r4, %r1, %r2;": lambda a, b, c: (signed(a) * signed(b)) >> 32,
    "mul.hi.u32 %r4, %r1, %r2;": lambda a, b, c: (plain(a) * plain(b)) >> 32,
    "mad.lo.u32 %r4, %r1, %r2, %r3;": lambda a, b, c: plain(a) * plain(b) + plain(c),
    "mad.wide.s32 %rd11, %r1, %r2, 7; shr.u64 %rd11, %rd11, 16; cvt.u32.u64 %r4, %rd11;": lambda a, b, c: (
        ((signed(a) * signed(b) + 7) & ((1 << 64) - 1)) >> 16
    ),
    "min.s32 %r4, %r1, %r2;": lambda a, b, c: np.minimum(signed(a), signed(b)),
    "max.u32 %r4, %r1, %r2;": lambda a, b, c: np.maximum(plain(a), plain(b)),
    "or.b32 %r5, %r2, 1; div.s32 %r4, %r1, %r5;": lambda a, b, c: [
        abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1) for x, y in zip(signed(a), signed(b | 1), strict=True)
    ],
    "or.b32 %r5, %r2, 1; rem.u32 %r4, %r1, %r5;": lambda a, b, c: plain(a) % plain(b | 1),
    "and.b32 %r4, %r1, %r2;": lambda a, b, c: a & b,
    "not.b32 %r4, %r1;": lambda a, b, c: ~a,
    "shl.b32 %r4, %r1, %r2;": lambda a, b, c: _shift(plain(a), plain(b)),
    "shr.u32 %r4, %r1, %r2;": lambda a, b, c: plain(a) >> np.minimum(plain(b), 32),
    "shr.s32 %r4, %r1, %r2;": lambda a, b, c: signed(a) >> np.minimum(plain(b), 32),
    "shf.r.wrap.b32 %r4, %r1, %r2, %r3;": lambda a, b, c: (plain(b) << 32 | plain(a)) >> (plain(c) & 31),
    "shf.r.clamp.b32 %r4, %r1, %r2, %r3;": lambda a, b, c: (plain(b) << 32 | plain(a)) >> np.minimum(plain(c), 32),
    "shf.l.wrap.b32 %r4, %r1, %r2, %r3;": lambda a, b, c: ((plain(b) << 32 | plain(a)) << (plain(c) & 31)) >> 32,
    "lop3.b32 %r4, %r1, %r2, %r3, 149;": lambda a, b, c: _lop3(a, b, c),
    "prmt.b32 %r4, %r1, %r2, %r3;": _prmt,
    "prmt.b32 %r4, %r1, %r2, 0x5410;": lambda a, b, c: (a & 0xFFFF) | (b << 16),
    "bfe.u32 %r4, %r1, %r2, %r3;": lambda a, b, c: _field(a, b, c, False),
    "bfe.s32 %r4, %r1, %r2, %r3;": lambda a, b, c: _field(a, b, c, True),
    "and.b32 %r5, %r3, 31; bfe.u32 %r6, %r3, 5, 5; bfi.b32 %r4, %r1, %r2, %r5, %r6;": _insert,
    "popc.b32 %r4, %r1;": lambda a, b, c: [int(x).bit_count() for x in a],
    "clz.b32 %r4, %r1;": lambda a, b, c: [32 - int(x).bit_length() for x in a],
    "brev.b32 %r4, %r1;": lambda a, b, c: [int(f"{x:032b}"[::-1], 2) for x in a],
    "dp4a.s32.s32 %r4, %r1, %r2, %r3;": lambda a, b, c: (
        signed(c) + (_bytes(a, np.int8) * _bytes(b, np.int8)).sum(1).astype(object)
    ),
    "dp4a.u32.s32 %r4, %r1, %r2, %r3;": lambda a, b, c: (
        signed(c) + (_bytes(a, np.uint8) * _bytes(b, np.int8)).sum(1).astype(object)
    ),
    "dp2a.lo.s32.s32 %r4, %r1, %r2, %r3;": lambda a, b, c: (
        signed(c) + (a.view(np.int16).reshape(-1, 2).astype(np.int64) * _bytes(b, np.int8)[:, :2]).sum(1).astype(object)
    ),
    "sad.u32 %r4, %r1, %r2, %r3;": lambda a, b, c: abs(plain(a) - plain(b)) + plain(c),
    "abs.s32 %r4, %r1;": lambda a, b, c: abs(signed(a)),
    "neg.s32 %r4, %r1;": lambda a, b, c: -signed(a),
    "setp.lt.s32 %p1, %r1, %r2; selp.b32 %r4, %r1, %r3, %p1;": lambda a, b, c: np.where(signed(a) < signed(b), a, c),
    "setp.hi.u32 %p1, %r1, %r2; @%p1 add.u32 %r4, %r3, 1; @!%p1 mov.u32 %r4, 5;": lambda a, b, c: np.where(
        a > b, plain(c) + 1, 5
    ),
    "setp.ne.s32 %p2, %r3, 33; "
    "setp.ge.and.u32 %p1|%p3, %r1, %r2, %p2; selp.u32 %r4, 1, 0, %p1;\n@%p3 add.u32 %r4, %r4, 2;": (
        lambda a, b, c: np.where((a >= b) & (c != 33), 1, 0) + np.where((a < b) & (c != 33), 2, 0)
    ),
    "cvt.s8.s32 %rs1, %r1; cvt.s32.s16 %r4, %rs1;": lambda a, b, c: a.astype(np.uint8).view(np.int8),
    "cvt.sat.u8.s32 %r4, %r1;": lambda a, b, c: np.clip(signed(a), 0, 255),
    "mov.b64 %rd11, {%r1, %r2}; mov.b64 {%r5, %r4}, %rd11; add.u32 %r4, %r4, %r5;": lambda a, b, c: plain(a) + plain(b),
    "add.cc.u32 %r5, %r1, %r2; addc.u32 %r4, %r3, 0;": lambda a, b, c: plain(c) + ((plain(a) + plain(b)) >> 32),
    "{ .reg .b32 t; add.u32 t, %r1, 1; { .reg .b32 t; mov.u32 t, 9; } mov.u32 %r4, t; }": lambda a, b, c: plain(a) + 1,
    "bfind.u32 %r4, %r1;": lambda a, b, c: [int(x).bit_length() - 1 for x in a],
}


@pytest.mark.parametrize("line", INTEGER)
def test_integers(line):
    a, b, c = integers()
    out = np.zeros(N, np.uint32)
    run(WORDS + line + "\nst.global.u32 [%rd7], %r4;", a, b, c, out)
    with np.errstate(over="ignore"):
        wanted = np.array([int(x) & 0xFFFFFFFF for x in INTEGER[line](a, b, c)], np.uint32)
    np.testing.assert_array_equal(out, wanted)


def floats():
    special = np.array(
        [0, -0.0, 1, np.inf, -np.inf, np.nan, 1e-42, -3e-45, 65519.9, 65520, 6e-8, 2.5, 3.5, 3e9, -1e-7], "f4"
    )
    a, b, c = (RNG.standard_normal(N).astype("f4") * 4 for _ in range(3))
    a[: len(special)] = special
    b[20:35] = special
    b[:3] = 0.5, 3, -1
    c[40:] *= 1e-8
    return a, b, c


def _f64(x):
    return x.astype(np.float64)


def _down(exact):
    """float64, exact for these products, to the float32 below."""
    near = exact.astype(np.float32)
    return np.where(_f64(near) > exact, np.nextafter(near, np.float32(-np.inf)), near)


def _bf16(x):
    bits = x.view(np.uint32)
    return (((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) << 16).view(np.float32)


def _flush(x):
    return np.where(abs(x) < np.finfo(np.float32).tiny, np.copysign(np.float32(0), x), x)


def _clipped(x, kind):
    low, high = np.iinfo(kind).min, np.iinfo(kind).max
    return np.array(
        [0 if np.isnan(v) else int(min(max(np.rint(v) if np.isfinite(v) else v, low), high)) for v in _f64(x)]
    )


FLOAT = {
    "add.f32 %f4, %f1, %f2;": lambda a, b, c: a + b,
    "mul.ftz.f32 %f4, %f1, %f2;": lambda a, b, c: _flush(_flush(a) * _flush(b)),
    "fma.rn.f32 %f4, %f1, %f2, %f3;": lambda a, b, c: (_f64(a) * _f64(b) + _f64(c)).astype(np.float32),
    "mul.rm.f32 %f4, %f1, %f2;": lambda a, b, c: _down(_f64(a) * _f64(b)),
    "div.rn.f32 %f4, %f1, %f2;": lambda a, b, c: a / b,
    "max.f32 %f4, %f1, %f2;": lambda a, b, c: np.fmax(a, b),
    "min.NaN.f32 %f4, %f1, %f2;": lambda a, b, c: np.minimum(a, b),
    "neg.f32 %f5, %f1; abs.f32 %f4, %f5;": lambda a, b, c: abs(a),
    "sqrt.rn.f32 %f4, %f1;": lambda a, b, c: np.sqrt(a),
    "rcp.rn.f32 %f4, %f1;": lambda a, b, c: 1 / a,
    "ex2.approx.ftz.f32 %f4, %f3;": lambda a, b, c: np.exp2(_f64(c)).astype(np.float32),
    "cvt.sat.f32.f32 %f4, %f1;": lambda a, b, c: np.clip(np.nan_to_num(a, nan=0), 0, 1) + 0.0,
    "cvt.rni.f32.f32 %f4, %f1;": lambda a, b, c: np.rint(a),
    "cvt.rn.f16.f32 %rs1, %f1; cvt.f32.f16 %f4, %rs1;": lambda a, b, c: a.astype(np.float16).astype(np.float32),
    "cvt.rn.bf16.f32 %rs1, %f1; cvt.f32.bf16 %f4, %rs1;": lambda a, b, c: _bf16(a),
    "cvt.rn.f16x2.f32 %r5, %f1, %f2; mov.b32 {%rs1, %rs2}, %r5; cvt.f32.f16 %f4, %rs2;": (
        lambda a, b, c: a.astype(np.float16).astype(np.float32)
    ),
    "cvt.rni.s32.f32 %r5, %f1; cvt.rn.f32.s32 %f4, %r5;": lambda a, b, c: _clipped(a, np.int32).astype(np.float32),
    "cvt.rni.u32.f32 %r5, %f1; cvt.rn.f32.u32 %f4, %r5;": lambda a, b, c: _clipped(a, np.uint32).astype(np.float32),
    "cvt.f64.f32 %d1, %f1; cvt.f64.f32 %d2, %f2; "
    "fma.rn.f64 %d3, %d1, %d2, 0d3FE0000000000000; cvt.rn.f32.f64 %f4, %d3;": (
        lambda a, b, c: (_f64(a) * _f64(b) + 0.5).astype(np.float32)
    ),
    "setp.gtu.f32 %p1, %f1, %f2; selp.f32 %f4, %f3, 0f40490FDB, %p1;": lambda a, b, c: np.where(
        ~(a <= b), c, np.float32(np.pi)
    ),
    "setp.le.f32 %p1, %f1, %f2; selp.f32 %f4, %f1, %f2, %p1;": lambda a, b, c: np.where(a <= b, a, b),
    "copysign.f32 %f4, %f1, %f2;": lambda a, b, c: np.copysign(b, a),
    "cvt.rn.f16x2.f32 %r5, %f1, %f2; cvt.rn.f16x2.f32 %r6, %f3, %f3; "
    "fma.rn.f16x2 %r7, %r5, %r6, %r6; mov.b32 {%rs1, %rs2}, %r7; "
    "cvt.f32.f16 %f4, %rs1;": lambda a, b, c: (
        _f64(b.astype("f2")) * _f64(c.astype("f2")) + _f64(c.astype("f2"))
    ).astype("f2").astype("f4"),
}  # fmt: skip


@pytest.mark.parametrize("line", FLOAT)
def test_floats(line):
    a, b, c = floats()
    out = np.zeros(N, np.float32)
    run(WORDS + line + "\nst.global.f32 [%rd7], %f4;", a, b, c, out)
    with np.errstate(all="ignore"):
        wanted = FLOAT[line](a, b, c).astype(np.float32)
    np.testing.assert_array_equal(out, wanted)
    finite = ~np.isnan(wanted)
    np.testing.assert_array_equal(np.signbit(out[finite]), np.signbit(wanted[finite]))


def test_e4m3_both_ways():
    """All codes come back, and what lies between two goes to the nearer one, the even one in the middle."""
    codes = np.array([c for c in range(256) if c & 0x7F != 0x7F])
    size = np.where(codes & 0x78, 2.0 ** ((codes >> 3 & 15) - 7.0) * (1 + (codes & 7) / 8), (codes & 7) / 8 * 2.0**-6)
    exact = (np.where(codes < 128, size, -size)).astype(np.float32)
    middle = ((size[:126] + size[1:127]) / 2).astype(np.float32)
    values = np.concatenate((exact, middle, [449, -1e9, np.nan, 2.0**-11])).astype(np.float32)
    even = np.where(codes[:126] % 2 == 0, exact[:126], exact[1:127])
    wanted = np.concatenate((exact, even, [448, -448, np.nan, 0])).astype(np.float32)
    count = len(values)
    text = (
        WORDS
        + """cvt.rn.satfinite.e4m3x2.f32 %rs1, %f1, %f2; cvt.rn.f16x2.e4m3x2 %r5, %rs1; mov.b32 {%rs2, %rs3}, %r5;
cvt.f32.f16 %f4, %rs3; st.global.f32 [%rd7], %f4;"""
    )
    out = run(text, values, values, values, np.zeros(count, np.float32), threads=count)
    np.testing.assert_array_equal(out, wanted)


def test_loops_tables_and_functions():
    """A loop, a jump by index, a device function with parameters, and a loop's trip count that differs by thread."""
    function = """.func (.param .b32 r0) twice(.param .b32 p0) { .reg .b32 %r<3>;
ld.param.b32 %r1, [p0]; add.s32 %r2, %r1, %r1; st.param.b32 [r0], %r2; ret; }
"""
    text = (
        WORDS
        + """mov.u32 %r4, 0; mov.u32 %r5, 0;
$L_head: setp.ge.u32 %p1, %r5, %r0; @%p1 bra $L_out; add.u32 %r4, %r4, %r5; add.u32 %r5, %r5, 1; bra.uni $L_head;
$L_out: and.b32 %r6, %r0, 3;
$L_table: .branchtargets $L_a, $L_b, $L_c, $L_a;
brx.idx %r6, $L_table;
$L_a: add.u32 %r4, %r4, 1000; bra $L_end;
$L_b: add.u32 %r4, %r4, 2000; bra $L_end;
$L_c: { .param .b32 param0; st.param.b32 [param0], %r4; .param .b32 retval0;
call.uni (retval0), twice, (param0); ld.param.b32 %r4, [retval0]; }
$L_end: st.global.u32 [%rd7], %r4;
"""
    )
    a = np.zeros(N, np.uint32)
    out = run(text, a, a, a, np.zeros(N, np.uint32), shared=function)
    sums = np.array([t * (t - 1) // 2 for t in range(N)])
    extra = np.array([1000, 2000, 0, 1000] * (N // 4))
    np.testing.assert_array_equal(out, np.where(np.arange(N) % 4 == 2, 2 * sums, sums + extra))


# --- meetings


@pytest.mark.parametrize("order", ["forward", "backward"])
@pytest.mark.parametrize("how", ["up", "down", "bfly", "idx"])
@pytest.mark.parametrize("width", [32, 8])
def test_shuffles(how, width, order):
    c = (32 - width) << 8 | (0 if how == "up" else 31)
    a = RNG.integers(0, 1 << 32, N, np.uint32)
    text = (
        WORDS + f"shfl.sync.{how}.b32 %r4|%p1, %r1, 3, {c}, -1; @!%p1 add.u32 %r4, %r4, 1; st.global.u32 [%rd7], %r4;"
    )
    out = run(text, a, a, a, np.zeros(N, np.uint32), order=order)
    wanted = []
    for lane in range(N):
        segment = lane // width * width
        source = {"up": lane - 3, "down": lane + 3, "bfly": lane ^ 3, "idx": segment + 3}[how]
        inside = segment <= source < segment + width
        wanted.append(int(a[source]) if inside else int(a[lane]) + 1)
    np.testing.assert_array_equal(out, np.array(wanted) & 0xFFFFFFFF)


def test_votes_matches_and_reductions():
    a = RNG.integers(0, 4, N, np.uint32)
    lines = {
        "setp.eq.u32 %p1, %r1, 2; vote.sync.ballot.b32 %r4, %p1, -1;": lambda w: (
            [sum(int(v == 2) << i for i, v in enumerate(w))] * 32
        ),
        "setp.lt.u32 %p1, %r1, 4; vote.sync.all.pred %p2, %p1, -1; selp.u32 %r4, 1, 0, %p2;": lambda w: [1] * 32,
        "match.any.sync.b32 %r4, %r1, -1;": lambda w: [sum(int(v == x) << i for i, v in enumerate(w)) for x in w],
        "redux.sync.add.s32 %r4, %r1, -1;": lambda w: [int(w.sum())] * 32,
        "redux.sync.max.u32 %r4, %r1, -1;": lambda w: [int(w.max())] * 32,
    }
    for line, wanted in lines.items():
        out = run(WORDS + line + "st.global.u32 [%rd7], %r4;", a, a, a, np.zeros(N, np.uint32))
        np.testing.assert_array_equal(out, np.concatenate([wanted(w) for w in a.reshape(-1, 32)]), err_msg=line)


def test_half_a_warp_meets_by_itself():
    text = (
        WORDS
        + """setp.lt.u32 %p1, %r0, 16; @!%p1 bra $L_end;
shfl.sync.bfly.b32 %r1, %r1, 1, 31, 0xffff;
$L_end: st.global.u32 [%rd7], %r1;"""
    )
    a = np.arange(N, dtype=np.uint32)
    out = run(text, a, a, a, np.zeros(N, np.uint32))
    np.testing.assert_array_equal(out, np.where(a < 16, a ^ 1, a))


MMA = {
    "s8": ("m16n8k32.row.col.s32.s8.s8.s32", np.int8, 32),
    "f16": ("m16n8k16.row.col.f32.f16.f16.f32", np.float16, 16),
    "bf16": ("m16n8k16.row.col.f32.bf16.bf16.f32", np.uint16, 16),
    "tf32": ("m16n8k8.row.col.f32.tf32.tf32.f32", np.float32, 8),
}


@pytest.mark.parametrize("kind", MMA)
def test_matrix_instructions(kind):
    """Operands laid out by the manual's formulas (9.7.14.5), element by element."""
    name, store, k = MMA[kind]
    if kind == "s8":
        A, B, C = RNG.integers(-128, 128, (16, k)), RNG.integers(-128, 128, (k, 8)), RNG.integers(-9999, 9999, (16, 8))
    else:
        A, B, C = (RNG.integers(-64, 65, shape) / 8 for shape in ((16, k), (k, 8), (16, 8)))
    size = np.dtype(store).itemsize
    per = 4 // size

    def word(values):
        if kind == "bf16":
            values = (np.array(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)
        return np.array(values).astype(store).view(np.uint32)[0]

    a, b, c = (
        np.zeros((32, 4), np.uint32),
        np.zeros((32, 2), np.uint32),
        np.zeros((32, 4), np.int32 if kind == "s8" else np.float32),
    )
    rows = np.zeros((32, 4, 2), int)
    for lane in range(32):
        group, within = lane // 4, lane % 4
        for register in range(4):
            row = group + 8 * (register % 2)
            column = within * per + 4 * per * (register // 2)
            a[lane, register] = word(A[row, column : column + per])
            rows[lane, register] = group + 8 * (register // 2), 2 * within + register % 2
            c[lane, register] = C[tuple(rows[lane, register])]
        for register in range(2):
            start = within * per + 4 * per * register
            b[lane, register] = word(B[start : start + per, group])
    out = np.zeros((32, 4), c.dtype)
    text = f"""mul.wide.u32 %rd5, %r0, 16; add.u64 %rd7, %rd1, %rd5; add.u64 %rd8, %rd2, %rd5;
add.u64 %rd10, %rd4, %rd5; add.u64 %rd9, %rd3, %rd6;
ld.global.v4.b32 {{%r1,%r2,%r3,%r4}}, [%rd8]; ld.global.v2.b32 {{%r5,%r6}}, [%rd9];
ld.global.v4.b32 {{%r7,%r8,%r9,%r10}}, [%rd10];
mma.sync.aligned.{name} {{%r11,%r12,%r13,%r14}}, {{%r1,%r2,%r3,%r4}}, {{%r5,%r6}}, {{%r7,%r8,%r9,%r10}};
st.global.v4.b32 [%rd7], {{%r11,%r12,%r13,%r14}};"""
    run(text, a, b, c, out, threads=32)
    result = A @ B + C
    np.testing.assert_array_equal(out, result[rows[..., 0], rows[..., 1]])


@pytest.mark.parametrize("transposed", [False, True])
def test_ldmatrix(transposed):
    values = np.arange(4 * 64, dtype=np.uint16)
    out = np.zeros((32, 4), np.uint32)
    trans = ".trans" if transposed else ""
    text = f"""mul.wide.u32 %rd5, %r0, 16; add.u64 %rd8, %rd2, %rd5; ld.global.v4.b32 {{%r1,%r2,%r3,%r4}}, [%rd8];
mov.u64 %rd9, tile; add.u64 %rd9, %rd9, %rd5; st.shared.v4.b32 [%rd9], {{%r1,%r2,%r3,%r4}}; bar.warp.sync -1;
cvt.u32.u64 %r9, %rd9;
ldmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 {{%r5,%r6,%r7,%r8}}, [%r9];
add.u64 %rd7, %rd1, %rd5; st.global.v4.b32 [%rd7], {{%r5,%r6,%r7,%r8}};"""
    run(text, values, values, values, out, threads=32, shared=".shared .align 16 .b8 tile[512];")
    tiles = values.reshape(4, 8, 8)
    tiles = tiles.swapaxes(1, 2) if transposed else tiles
    wanted = tiles.reshape(4, 32, 2).swapaxes(0, 1)
    np.testing.assert_array_equal(out.view(np.uint16).reshape(32, 4, 2), wanted)


SHARED = ".shared .align 16 .b8 tile[256];"
TILE = (
    WORDS
    + "mov.u64 %rd11, tile; add.u64 %rd12, %rd11, %rd5; "
    + "xor.b32 %r9, %r0, 32; mul.wide.u32 %rd13, %r9, 4; add.u64 %rd13, %rd11, %rd13;\n"
)


def test_shared_memory_and_a_barrier():
    a = RNG.integers(0, 1 << 32, N, np.uint32)
    text = TILE + "st.shared.u32 [%rd12], %r1; bar.sync 0; ld.shared.u32 %r4, [%rd13]; st.global.u32 [%rd7], %r4;"
    for order in fibers.ORDERS:
        out = run(text, a, a, a, np.zeros(N, np.uint32), shared=SHARED, order=order)
        np.testing.assert_array_equal(out, np.roll(a, 32))


def test_barriers_of_some_threads_and_with_counts():
    """Each half of the block has a barrier of its own; then all are counted."""
    text = (
        TILE
        + """xor.b32 %r9, %r0, 1; mul.wide.u32 %rd13, %r9, 4; add.u64 %rd13, %rd11, %rd13;
st.shared.u32 [%rd12], %r1; setp.lt.u32 %p1, %r0, 32; @%p1 bar.sync 1, 32; @!%p1 bar.sync 2, 32;
ld.shared.u32 %r4, [%rd13];
setp.gt.u32 %p2, %r1, 9; barrier.sync 0; bar.red.popc.u32 %r5, 0, %p2; add.u32 %r4, %r4, %r5;
st.global.u32 [%rd7], %r4;"""
    )
    a = RNG.integers(0, 20, N, np.uint32)
    out = run(text, a, a, a, np.zeros(N, np.uint32), shared=SHARED)
    np.testing.assert_array_equal(out, a[np.arange(N) ^ 1] + (a > 9).sum())


def test_atomics_and_blocks():
    text = (
        WORDS
        + """mov.u32 %r5, %ctaid.x; atom.global.add.u32 %r4, [%rd1], %r1; atom.global.max.s32 %r6, [%rd1+4], %r1;
red.global.add.f32 [%rd1+8], 0f3F000000; atom.global.cas.b32 %r7, [%rd1+12], 0, %r5;"""
    )
    a = RNG.integers(0, 1000, N, np.uint32)
    out = run(text, a, a, a, np.zeros(4, np.uint32), blocks=3)
    assert out[0] == 3 * a.sum() and out[1] == a.max() and out.view(np.float32)[2] == 96 and out[3] == 1


def test_copies_arrive_when_they_are_waited_for():
    a = RNG.integers(0, 1 << 32, N, np.uint32)
    text = (
        TILE
        + """mul.wide.u32 %rd14, %r0, 16; add.u64 %rd15, %rd2, %rd14; add.u64 %rd16, %rd11, %rd14;
setp.lt.u32 %p1, %r0, 16;
@%p1 cp.async.cg.shared.global [%rd16], [%rd15], 16; cp.async.commit_group; {wait}
bar.sync 0; ld.shared.u32 %r4, [%rd12]; st.global.u32 [%rd7], %r4;"""
    )
    out = run(text.replace("{wait}", "cp.async.wait_group 0;"), a, a, a, np.zeros(N, np.uint32), shared=SHARED)
    np.testing.assert_array_equal(out, a)
    with pytest.raises(LaunchError) as early:
        run(text.replace("{wait}", "cp.async.wait_group 1;"), a, a, a, np.zeros(N, np.uint32), shared=SHARED)
    assert early.value.error == fibers.UNINITIALISED


@pytest.mark.parametrize("order", ["forward", "backward", "interleaved"])
def test_a_lost_update_shows_when_threads_are_interleaved(order):
    """Reading, adding and writing is right only for atomics."""
    text = WORDS + "ld.global.u32 %r4, [%rd1]; add.u32 %r4, %r4, 1; st.global.u32 [%rd1], %r4; "
    text += "red.global.add.u32 [%rd1+4], 1;"
    a = np.zeros(N, np.uint32)
    out = run(text, a, a, a, np.zeros(2, np.uint32), order=order)
    assert out[1] == N and out[0] == (1 if order == "interleaved" else N)


# --- what must not be

FAULTS = {
    "outside above": ("ld.global.u32 %r4, [%rd7+256];", fibers.OUTSIDE),
    "outside below": ("st.global.u32 [%rd1+-4], %r1;", fibers.OUTSIDE),
    "one byte over": ("add.u64 %rd14, %rd1, 252; ld.global.u64 %rd15, [%rd14];", fibers.MISALIGNED),
    "wide at the end": ("ld.global.v2.u32 {%r4, %r5}, [%rd1+256];", fibers.OUTSIDE),
    "misaligned": ("ld.global.u16 %rs1, [%rd1+1];", fibers.MISALIGNED),
    "read-only": ("st.global.u32 [%rd8], %r1;", fibers.READ_ONLY),
    "atomic on read-only": ("red.global.add.u32 [%rd8], %r1;", fibers.READ_ONLY),
    "past shared": ("st.shared.u32 [%rd12+4], %r1;", fibers.OUTSIDE),
    "generic past shared": (
        "cvta.shared.u64 %rd14, %rd11; add.u64 %rd14, %rd14, 256; st.u32 [%rd14], %r1;", fibers.OUTSIDE,
    ),
    "unwritten": ("ld.shared.u32 %r4, [%rd12];", fibers.UNINITIALISED),
    "no barrier": ("st.shared.u32 [%rd12], %r1; ld.shared.u32 %r4, [%rd13];", (fibers.RACE, fibers.UNINITIALISED)),
    "write after read": (
        "st.shared.u32 [%rd12], %r1; bar.sync 0; ld.shared.u32 %r4, [%rd13]; st.shared.u32 [%rd12], %r4;", fibers.RACE,
    ),
    "two writers": ("st.shared.u32 [%rd11], %r1;", fibers.RACE),
    "warp barrier for a block": (
        "st.shared.u32 [%rd12], %r1; bar.warp.sync -1; ld.shared.u32 %r4, [%rd13];",
        (fibers.RACE, fibers.UNINITIALISED),
    ),
    "shuffle for a barrier": (
        "st.shared.u32 [%rd12], %r1; shfl.sync.bfly.b32 %r5, %r1, 1, 31, -1; "
        "xor.b32 %r9, %r0, 1; mul.wide.u32 %rd13, %r9, 4; "
        "add.u64 %rd13, %rd11, %rd13; ld.shared.u32 %r4, [%rd13];", fibers.RACE,
    ),
    "barrier in a branch": ("setp.lt.u32 %p1, %r0, 5; @%p1 bar.sync 0; @!%p1 bar.sync 1;", fibers.STUCK),
    "shuffle in a branch": (
        "setp.lt.u32 %p1, %r0, 5; @%p1 shfl.sync.bfly.b32 %r4, %r1, 1, 31, -1; @!%p1 bar.warp.sync -1;", fibers.STUCK,
    ),
    "not in its mask": ("shfl.sync.bfly.b32 %r4, %r1, 1, 31, 1;", fibers.STUCK),
    "trap": ("setp.eq.u32 %p1, %r0, 7; @%p1 trap;", fibers.TRAP),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_found(name):
    line, error = FAULTS[name]
    a, out = np.zeros(N, np.uint32), np.zeros(N, np.uint32)
    a.flags.writeable = False
    with pytest.raises(LaunchError) as caught:
        run(TILE + line, a, a, a, out, shared=SHARED)
    assert caught.value.error in (error if isinstance(error, tuple) else (error,)), str(caught.value)


def test_fault_tells_where():
    a = np.zeros(N, np.uint32)
    with pytest.raises(
        LaunchError,
        match=r"line 12: outside of every array: a store of 4 bytes .*block \(1, 0, 0\), thread \(3, 0, 0\)",
    ):
        text = (
            WORDS
            + """.loc 1 12 0
mov.u32 %r4, %ctaid.x; mul.lo.u32 %r4, %r4, 244; cvt.u64.u32 %rd11, %r4; add.u64 %rd7, %rd7, %rd11;
st.global.u32 [%rd7], %r1;
"""
        )
        run(text, a, a, a, np.zeros(N, np.uint32), blocks=2)


def test_unknown_instructions_are_refused():
    a = np.zeros(N, np.uint32)
    with pytest.raises(PTXError, match="wgmma"):
        run("wgmma.fence.sync.aligned;", a, a, a, a)


def test_variables_of_every_space():
    module = parse(""".version 8.0
.target sm_90
.const .align 4 .b8 table[6] = {1, 2, 0xff, 4};
.extern .shared .align 16 .b8 dynamic[];
.global .u64 counter;
.visible .entry f() .maxntid 64, 1, 1 { .local .align 8 .b8 depot[16]; ret; }
""")
    found = {v.name: v for v in module.variables}
    assert found["table"].initial == ("1", "2", "0xff", "4") and found["table"].size == 6
    assert found["dynamic"].size == 0 and found["counter"].size == 8
    assert module.entry.limits["maxntid"].strip() == "64, 1, 1" and module.entry.variables[0].size == 16
