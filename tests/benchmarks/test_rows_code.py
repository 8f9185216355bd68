"""What ``benchmarks.rows_code`` asks llvm-mca, and reads in its answers."""

import re
import subprocess
import sys

import pytest

from benchmarks.rows_code import DEFAULT, FOREIGN, PROCESSORS, Expected, expected, readable, simulated
from ds4ref.kernels.cpu.simd import KERNELS

TEXT = """
.LBB0_2:
    movq %rsi, %r14
.LBB0_3:
    vpxor %xmm1, %xmm1, %xmm1
    vpdpbusd (%r14), %ymm2, %ymm1
    addq $66, %r14
    decq %rcx
    jne .LBB0_3
    vmovss %xmm0, (%r10)
    jne .LBB0_2
"""

# Answers in llvm-mca's words: 5 cycles to fill, then 2 an instruction; refuses labels, which it would not find.
MCA = """#!{python}
import re, sys
text = sys.stdin.read()
if "LBB" in text:
    sys.exit("<stdin>:1: error: unknown label")
times = int(next(a for a in sys.argv if a.startswith("-iterations=")).split("=")[1])
lines = len(text.splitlines())
print(f"Iterations:  {{times}}\\nTotal Cycles:      {{5 + 2 * lines * times}}")
print(f"Total uOps:        {{3 * lines * times}}")
"""


@pytest.fixture
def mca(tmp_path):
    command = tmp_path / "mca"
    command.write_text(MCA.format(python=sys.executable))
    command.chmod(0o755)
    return str(command)


def test_the_filling_of_the_processor_does_not_count(mca):
    assert simulated(["nop"] * 4, 10, mca, "x86_64-linux-gnu", "znver3") == (12, 8)


def test_what_is_expected_of_loop_and_row(mca):
    got = expected(TEXT, 256, 66, mca, "x86_64-linux-gnu", "znver3")
    assert got == Expected(66, 5, 0, 15, 10, 16 * 66, 2 * (16 * 5 + 3))
    assert got.loop_rate == 6.6 and got.rate == pytest.approx(1056 / 166)


def test_a_refusal_of_llvm_mca_is_one_line(tmp_path):
    command = tmp_path / "mca"
    command.write_text("#!/bin/sh\necho 'warning: one' >&2\necho 'error: two' >&2\nexit 1\n")
    command.chmod(0o755)
    with pytest.raises(SystemExit, match=f"^rows_code: {command} failed: error: two$"):
        simulated(["nop"], 1, str(command), "x86_64-linux-gnu", "znver3")
    with pytest.raises(SystemExit, match="^rows_code: cannot run no-such-mca: No such file"):
        simulated(["nop"], 1, "no-such-mca", "x86_64-linux-gnu", "znver3")


def test_zeroing_waits_for_nothing():
    """The register is read from one that nobody writes, so that no round waits for the one before."""
    lines = [
        "vpxor %xmm0, %xmm0, %xmm0",
        "vpaddd %ymm2, %ymm0, %ymm1",
        "xorps %xmm3, %xmm3",
        "vpxor %xmm4, %xmm5, %xmm6",
    ]
    got = readable(lines).splitlines()
    assert got[0] == "vpxor %xmm2, %xmm2, %xmm0"
    assert got[2] == "xorps %xmm2, %xmm3"
    assert got[1] == lines[1] and got[3] == lines[3]


@pytest.mark.parametrize(
    "line, text",
    [
        ("jne\t.LBB0_3", "jne ."),
        ("b.ne .LBB0_3", "b.ne ."),
        ("b LBB0_3", "b ."),
        ("cbnz x11, .LBB0_3", "cbnz x11, ."),
        ("tbz w4, #6, LBB0_3", "tbz w4, #6, ."),
        ("bic v0.16b, v1.16b, v2.16b", "bic v0.16b, v1.16b, v2.16b"),
    ],
)
def test_jumps_lead_nowhere(line, text):
    assert readable([line]) == text + "\n"


def test_the_defaults_exist():
    assert {tuple(name.split("/")) for name in DEFAULT} <= set(KERNELS)
    assert "+avx512vnni" not in PROCESSORS["znver3"] and "+avx512vnni" in PROCESSORS["znver4"]


@pytest.mark.thorough
def test_code_for_a_mac_is_read_without_one():
    """Compiled for AArch64 in a process of its own: its loop has the format's step, and AArch64's instructions."""
    assert "apple-m1" in FOREIGN
    command = [sys.executable, "-m", "benchmarks.rows_code", "--cpu", "apple-m1", "Q8_0/a8", "--asm"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    loop = done.stdout.splitlines()
    assert loop[0] == "# Q8_0/a8" and re.match(r"(b\.\w+|cbn?z)\s", loop[-1])
    assert re.search(r"add\s+(x\d+), \1, #(34|68|136|272)$", done.stdout, re.MULTILINE)
