"""What ``benchmarks.rows_code`` reads in an assembly text."""

import pytest

from benchmarks.rows_code import DEFAULT, PROCESSORS, expected, hot_loop, loops, step_bytes
from ds4ref.kernels.cpu.simd import KERNELS

TEXT = """
    vpxor %xmm0, %xmm0, %xmm0
.LBB0_1:
    addq $8, %rax
    jne .LBB0_1
.LBB0_2:
    testq %rbx, %rbx
    je .LBB0_4
.LBB0_3:
    # a comment
    vpaddd (%r14), %ymm0, %ymm0
    {step}
    addq $416, %r15
    decq %rcx
    jne .LBB0_3
.LBB0_4:
    jmp .LBB0_2
"""


def test_the_hot_loop_is_the_longest_without_a_jump_inside():
    text = TEXT.format(step="addq $66, %r14")
    assert len(loops(text)) == 2  # not the outer one, which starts at .LBB0_2
    assert [line.split()[0] for line in hot_loop(text)] == ["vpaddd", "addq", "addq", "decq", "jne"]


@pytest.mark.parametrize("step, size", [("addq $66, %r14", 66), ("leaq 132(%r14), %r14", 132)])
def test_the_step_is_the_increment_in_blocks(step, size):
    assert step_bytes(hot_loop(TEXT.format(step=step)), 66) == size


def test_an_increment_of_another_register_is_no_step():
    with pytest.raises(ValueError):
        step_bytes(hot_loop(TEXT.format(step="leaq 66(%r13), %r14")), 66)


def test_what_llvm_mca_says_is_read(tmp_path):
    """A stand-in that answers in llvm-mca's words, and demands that the loop arrives without a label."""
    command = tmp_path / "mca"
    answer = r"Iterations:  100\nTotal Cycles:      3456\nTotal uOps:        17900\n"
    command.write_text(f"#!/bin/sh\ngrep -q LBB && exit 3\nprintf '{answer}'\n")
    command.chmod(0o755)
    assert expected(hot_loop(TEXT.format(step="addq $66, %r14")), str(command), "znver3") == (179, 34.56)


def test_the_defaults_exist():
    assert {tuple(name.split("/")) for name in DEFAULT} <= set(KERNELS)
    assert "+avx512vnni" not in PROCESSORS["znver3"] and "+avx512vnni" in PROCESSORS["znver4"]
