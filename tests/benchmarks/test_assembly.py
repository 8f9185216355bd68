"""What ``benchmarks.assembly`` reads in assembly texts of x86-64 and AArch64."""

import pytest

from benchmarks.assembly import around, hot_loop, loops, spills, step_bytes

X86 = """
    vpxor %xmm0, %xmm0, %xmm0
.LBB0_1:
    addq $8, %rax
    jne .LBB0_1
.LBB0_2:
    testq %rbx, %rbx
    je .LBB0_4
    .p2align 4
.LBB0_3:
    # a comment
    vpaddd (%r14), %ymm0, %ymm0
    {step}
    addq $416, %r15
    decq %rcx
    jne .LBB0_3
    testb $64, %al
    je .LBB0_4
    vpaddd (%r14), %xmm0, %xmm0
    vpaddd (%r15), %xmm0, %xmm0
.LBB0_4:
    vmovss %xmm0, (%r10)
    decq %rdx
    jne .LBB0_2
    retq
"""

ELF_ARM = """
rows:
    cmp x2, x1
    b.le .LBB0_5
.LBB0_1:                                // =>This Loop Header: Depth=1
    cbz x8, .LBB0_4
.LBB0_2:                                // Parent Loop BB0_1 Depth=1
    ldr q0, [x9, #16]
    sdot v1.4s, v0.16b, v2.16b
    {line}
    add x9, x9, #84
    add x10, x10, #320
    subs x11, x11, #1
    {jump} .LBB0_2
// %bb.3:
    tbz w4, #6, .LBB0_4
    sdot v1.4s, v0.16b, v2.16b
.LBB0_4:
    addv s1, v1.4s
    str s1, [x12], #4
    add x1, x1, #1
    cmp x1, x2
    b.lt .LBB0_1
.LBB0_5:
    ret
"""

MACH_O_ARM = """
_rows:                                  ; @rows
	.cfi_startproc
LBB0_1:                                 ; =>This Inner Loop Header: Depth=1
	ldp	q0, q1, [x8], #34
	sdot.4s	v2, v0, v1              ; a comment
	subs	x9, x9, #1
	b.ne	LBB0_1
	ret
"""


def arm(line="nop", jump="b.ne"):
    return ELF_ARM.format(line=line, jump=jump)


def test_loops_have_no_jump_inside():
    text = X86.format(step="addq $66, %r14")
    assert len(loops(text)) == 2  # not the outer one, which starts at .LBB0_2
    words = [line.split()[0] for line in hot_loop(text, 66)]
    assert words == ["vpaddd", "addq", "addq", "decq", "jne"]


@pytest.mark.parametrize("jump", ["b.ne", "cbnz x11,", "tbnz x11, #3,", "b.hi"])
def test_loops_of_aarch64(jump):
    words = [line.split()[0] for line in hot_loop(arm(jump=jump), 84)]
    assert words == ["ldr", "sdot", "nop", "add", "add", "subs", jump.split()[0]]


def test_labels_of_macos_have_no_dot():
    loop = hot_loop(MACH_O_ARM, 34)
    assert [line.split()[0] for line in loop] == ["ldp", "sdot.4s", "subs", "b.ne"]
    assert loop[1] == "sdot.4s\tv2, v0, v1"


@pytest.mark.parametrize(
    "step, size", [("addq $66, %r14", 66), ("leaq 132(%r14), %r14", 132), ("subq $-198, %r14", 198)]
)
def test_the_step_is_the_increment_in_blocks(step, size):
    assert step_bytes(hot_loop(X86.format(step=step), 66), 66) == size


def test_the_step_of_a_load_that_moves_its_pointer():
    assert step_bytes(hot_loop(MACH_O_ARM, 34), 34) == 34


def test_a_step_in_whole_blocks_is_demanded():
    with pytest.raises(ValueError, match="no straight-line loop over blocks of 66 bytes"):
        hot_loop(X86.format(step="leaq 66(%r13), %r14"), 66)  # another register's
    assert step_bytes(hot_loop(arm(), 84), 84) == 84
    with pytest.raises(ValueError):
        hot_loop(arm(), 66)


def test_the_loop_of_most_weights_is_hot():
    """A loop over single weights may be unrolled to more instructions."""
    small = ".LBB1_1:\n    addq $2, %r14\n" + "    nop\n" * 9 + "    jne .LBB1_1\n"
    assert "vpaddd (%r14), %ymm0, %ymm0" in hot_loop(small + X86.format(step="addq $66, %r14"), 2)


def test_the_way_to_the_next_row_leaves_out_what_whole_rounds_do_not_run():
    text = X86.format(step="addq $66, %r14")
    way = around(text, hot_loop(text, 66))
    assert [line.split()[0] for line in way] == ["testb", "je", "vmovss", "decq", "jne", "testq", "je"]
    way = around(arm(), hot_loop(arm(), 84))
    assert [line.split()[0] for line in way] == ["tbz", "addv", "str", "add", "cmp", "b.lt", "cbz"]


def test_a_loop_without_a_way_back():
    assert around(MACH_O_ARM, hot_loop(MACH_O_ARM, 34)) == []


@pytest.mark.parametrize(
    "line, count",
    [
        ("ldr q3, [sp, #32]", 1),
        ("str q3, [sp]", 1),
        ("stp q3, q4, [sp, #-32]!", 1),
        ("ldr q3, [x3, #32]", 0),
        ("add x3, x3, #4", 0),
    ],
)
def test_a_planted_spill_is_seen(line, count):
    assert spills(hot_loop(arm(line), 84)) == count


@pytest.mark.parametrize(
    "line, count", [("vmovups %zmm3, 64(%rsp)", 1), ("vpaddd (%rsp), %ymm1, %ymm1", 1), ("nop", 0)]
)
def test_a_planted_spill_is_seen_on_x86(line, count):
    assert spills(hot_loop(X86.format(step=f"addq $66, %r14\n    {line}"), 66)) == count
