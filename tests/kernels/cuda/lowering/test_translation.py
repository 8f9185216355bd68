"""The checks that the translator makes, on PTX written here. What instructions compute is seen in kernels' results.

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
    from .ptx import PTXError

N = 64
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
