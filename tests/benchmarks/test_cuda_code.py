"""The table of compiled CUDA code: what it must hold, how it is read, and that it is what the compiler says today."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from benchmarks.cuda_code import (
    CASES,
    PREFILL,
    PROMPTS,
    TABLE,
    UNCOUNTED,
    code_of,
    kind_of,
    often,
    versions,
)
from benchmarks.cuda_compile import Built, sass_lines
from benchmarks.cuda_price import (
    COMPILED,
    DEVICES,
    FILE,
    ISSUE,
    LAUNCH,
    ROOM,
    fits,
    occupancy,
    predicted,
    prefill_shares,
    price,
    token,
)

TABLE_NOW = json.loads(TABLE.read_text())
ROWS = [(arch, row) for arch, rows in TABLE_NOW["kernels"].items() for row in rows if "registers" in row]

LISTING = """
	.headerflags	@"EF_CUDA_TEXMODE_UNIFIED"
.text.kernel:
	//## File "/somewhere/kernel.py", line 7
        /*0000*/                   LDC R1, c[0x0][0x28] ;
.L_x_1:
	//## File "/somewhere/kernel.py", line 9
        /*0010*/                   IDP.4A.S8.S8 R3, R4, R5, R3 ;
        /*0020*/              @!P0 LDS.128 R4, [R2+0x10] ;
        /*0028*/                   IDP.4A.S8.S8 R3, R4, R5, R3 ;
	//## File "/somewhere/kernel.py", line 8
        /*0030*/               @P1 BRA `(.L_x_1) ;
	//## File "/somewhere/kernel.py", line 11
        /*0034*/                   BRA.DIV UR4, `(.L_x_4) ;
        /*0038*/                   SHFL.BFLY PT, R5, R24, 0x10, 0x1f ;
.L_x_2:
        /*0040*/                   EXIT ;
.L_x_4:
        /*0044*/                   SHFL.BFLY PT, R5, R24, 0x10, 0x1f ;
        /*0048*/                   BRA `(.L_x_2) ;
.L_x_3:
        /*0050*/                   BRA `(.L_x_3);
        /*0060*/                   NOP;
"""

PTX = """.version 9.0
.target sm_90
.address_size 64
.visible .entry k(.param .u64 k_out) {
.reg .b32 %r<9>; .reg .pred %p<3>;
.loc 1 7 0
mov.u32 %r1, 0;
$L__1:
.loc 1 9 0
dp4a.s32.s32 %r2, %r3, %r4, %r2;
.loc 1 8 0
add.s32 %r1, %r1, 1;
setp.lt.s32 %p1, %r1, 40;
@%p1 bra $L__1;
.loc 1 11 0
add.s32 %r1, %r1, 1;
ret;
}
"""


def test_a_listing_is_read() -> None:
    lines, places = sass_lines(LISTING, {})
    assert lines[1] == ".L_x_1:" and lines[2] == "IDP.4A.S8.S8 R3, R4, R5, R3"
    assert places[:6] == (7, 0, 9, 9, 9, 8)
    assert "NOP" not in code_of(lines) and len(code_of(lines)) == 10
    assert [kind_of(lines[n]) for n in (2, 3)] == [("multiply", 1.0), ("memory", 4.0)]
    assert kind_of("@P0 I2FP.F32.S32 R1, R2")[0] == "convert" and kind_of("UIADD3 UR4, UR4, 0x1, URZ")[0] == ""
    assert (
        kind_of("LOP3.LUT R1, R2, 0xf, RZ, 0xc0, !PT")[0] == "integer" and kind_of("FFMA R1, R2, R3, R1")[0] == "float"
    )


def test_how_often_a_line_runs() -> None:
    """A loop of 40 rounds that ptxas wrote out twice, then a shuffle whose other way nobody takes."""
    from tests.kernels.cuda.lowering.ptx import Label, parse

    body = parse(PTX).entry.body
    rounds = [40 if not isinstance(item, Label) and item.line in (8, 9) else 1 for item in body]
    lines, places = sass_lines(LISTING, {})
    found = often(body, rounds, Built(0, 0, 0, 0, 0, lines, places))
    rates = {text.split()[0]: rate for text, rate in zip(lines, found, strict=True) if rate}
    assert rates == {"LDC": 1, "IDP.4A.S8.S8": 20, "@!P0": 20, "@P1": 20, "BRA.DIV": 1, "SHFL.BFLY": 1, "EXIT": 1}
    assert sum(rate for text, rate in zip(lines, found, strict=True) if text.startswith("SHFL")) == 1


@pytest.mark.parametrize(
    ("threads", "registers", "shared", "blocks"),
    [
        (256, 32, 0, 8),
        (256, 64, 0, 4),
        (128, 64, 26880, 8),
        (512, 64, 102912, 2),
        (1024, 40, 12288, 1),
        (32, 16, 0, 32),
    ],
)
def test_blocks_that_an_h100_holds(threads: int, registers: int, shared: int, blocks: int) -> None:
    """Worked out by hand from the limits: 2048 threads, 65536 registers, 228 KB of which a block costs 1 KB more."""
    assert occupancy(DEVICES["H100"], threads, registers, shared) == blocks


def test_the_formula() -> None:
    device = DEVICES["H100"]
    cycles = device.multiprocessors * device.clock * 1e9
    moved = device.bandwidth * 1e9  # a second's worth
    row = {"instructions": 2 * ISSUE * cycles, "units": {"integer": 0, "convert": 0, "memory": 0}}
    assert predicted(device, moved, row) == {"issue": 0.5, "units": 0.5}
    row = {"instructions": ISSUE * cycles / 2, "units": {"integer": 0, "convert": 2 * cycles, "memory": 0}}
    assert predicted(device, moved, row) == {"issue": 1.0, "units": 0.25}


H100 = DEVICES["H100"]
CLOCK = H100.clock * 1e9


def row(**columns: Any) -> dict[str, Any]:
    """A launch of one block of one warp that does nothing."""
    plain = {"grid": [1], "block": [32], "blocks_held": 1, "bytes": 0, "launches": 1, "instructions": 0, "units": {}}
    return {**plain, "longest": 0, **columns}


@pytest.mark.parametrize(
    ("columns", "seconds"),
    [
        ({"bytes": H100.bandwidth}, 1e-9),
        # one block has one multiprocessor, and its warp one of four schedulers
        ({"instructions": 1000}, 1000 / CLOCK),
        ({"instructions": 1000, "block": [128]}, 250 / CLOCK),
        ({"instructions": 1000, "block": [1024]}, 250 / CLOCK),
        # 133 blocks: one multiprocessor has two of them, side by side if it holds two
        ({"instructions": 1330, "grid": [133]}, 20 / CLOCK),
        ({"instructions": 1330, "grid": [133], "blocks_held": 2}, 10 / CLOCK),
        ({"units": {"convert": 50.0, "float": 100.0}}, 100 / CLOCK),
        ({"longest": 100}, 100 / CLOCK),
        ({"longest": 100, "grid": [19, 7]}, 200 / CLOCK),
        ({"longest": 100, "grid": [133], "blocks_held": 2}, 100 / CLOCK),
    ],
)
def test_the_price_of_a_launch(columns: dict[str, Any], seconds: float) -> None:
    """Worked out by hand, at perfect issue."""
    assert price(H100, row(**columns), 1.0).seconds == pytest.approx(LAUNCH + seconds)


def test_what_a_warp_waits_for_counts_its_own_instructions_alone() -> None:
    launch = row(longest=100, instructions=1000)
    assert price(H100, launch, 10.0).seconds == pytest.approx(LAUNCH + 1000 / CLOCK)
    assert price(H100, launch, 20.0).seconds == pytest.approx(LAUNCH + 2000 / CLOCK)


def test_a_token_is_the_sum_of_its_launches() -> None:
    uncounted = {"bytes": H100.bandwidth * 1e9, "launches": 2}
    product = row(bytes=H100.bandwidth * 1e9, weights=["Q8_0", 1, 1, 1])
    found = token(H100, [uncounted, product])
    assert found["launches"] == 3 and found["bound"] == 1.0
    assert found["predicted"] == found["perfect"] == pytest.approx(3 + 3 * LAUNCH)
    assert found["share"] == pytest.approx(1 / 3, rel=1e-5)


def test_which_gpu_the_file_fits() -> None:
    assert {name for name, device in DEVICES.items() if fits(device)} == {"H200", "RTX PRO 6000"}
    assert fits(H100, 80e9 - ROOM) and not fits(H100, 80e9 - ROOM + 1) and FILE > 80e9


# --- what the kept table says


def test_all_architectures_and_formats_are_there() -> None:
    assert TABLE_NOW["kernels"].keys() == COMPILED.keys()
    for rows in TABLE_NOW["kernels"].values():
        formats = {row["weights"][0] for row in rows if "weights" in row}
        assert formats >= {"Q8_0", "F16", "Q4_K", "Q2_K", "IQ2_XXS"}
        assert all(row["occupancy"] > 0 and row["registers"] > 0 for row in rows)


BARS = {"Q8_0": 0.85, "F16": 0.85, "Q4_K": 0.85, "Q2_K": 0.7, "IQ2_XXS": 0.7}


@pytest.mark.parametrize("fmt", BARS)
def test_instructions_leave_room_for_the_bandwidth(fmt: str) -> None:
    """At the shapes of a decoded token, with integer inputs (F16: float ones), on all architectures."""
    products = [(arch, row) for arch, row in ROWS if row["kernel"].startswith(("matvec.", "plain."))]
    rows = [(arch, row) for arch, row in products if row["weights"][0] == fmt and row["case"].endswith("ds4")]
    shares = {
        (arch, row["kernel"], *row["weights"]): predicted(COMPILED[arch], row["bytes"], row)["issue"]
        for arch, row in rows
    }
    assert len({arch for arch, _ in rows}) == len(COMPILED)
    assert not {key: share for key, share in shares.items() if share < BARS[fmt]}


def test_every_launch_says_what_a_multiprocessor_holds() -> None:
    """Each row of every token, recomputed from what ptxas said."""
    for arch, rows in TABLE_NOW["kernels"].items():
        assert {row["case"] for row in rows} == {*CASES, PREFILL, *PROMPTS}
        for row in rows:
            threads = math.prod(row["block"])
            held = occupancy(COMPILED[arch], threads, row["registers"], row["shared"])
            assert row["blocks_held"] == held
            assert row["occupancy"] == pytest.approx(held * -(-threads // 32) * 32 / COMPILED[arch].threads, abs=1e-3)


def test_what_bounds_a_product_of_many_tokens() -> None:
    device = DEVICES["A100"]
    cycles = device.multiprocessors * device.clock * 1e9
    row = {"tensor": cycles / 2, "int8": False, "instructions": ISSUE * cycles / 2, "units": {"memory": cycles / 4},
           "bytes": device.bandwidth * 1e8}  # fmt: skip
    assert prefill_shares(device, row) == {"tensor": 1.0, "issue": 0.5, "units": 0.25, "memory": 0.1, "seconds": 1.0}


def test_every_format_is_prefilled_on_tensor_cores() -> None:
    """With float inputs all of them, with integer ones those that have a kernel; what bounds them is published."""
    for rows in TABLE_NOW["kernels"].values():
        found = {row["kernel"]: row for row in rows if "tensor" in row}
        formats = {"Q8_0", "Q4_K", "Q2_K", "IQ2_XXS"}
        assert found.keys() == {f"matmat.multiply {fmt}" for fmt in formats} | {
            f"matmat_float.multiply {fmt}" for fmt in formats | {"BF16", "F32"}
        } | {"matmat_half.multiply"}


def test_every_kernel_is_priced_by_its_instructions() -> None:
    uncounted = {row["kernel"] for _, row in ROWS if "longest" not in row}
    assert uncounted == set(UNCOUNTED)
    assert all(0 < row["longest"] <= row["instructions"] for _, row in ROWS if "longest" in row)


def test_nothing_spills_in_products() -> None:
    """But for 16 bytes of Q8_0's tiles of 128 inputs, which the compiler for sm_120 has no register for."""
    spilling = {(arch, row["kernel"], row["spills"]) for arch, row in ROWS if "weights" in row and row["spills"]}
    assert spilling <= {("sm_120", "matmat.multiply Q8_0", 16)}


def test_stacks_and_spills_elsewhere_are_known() -> None:
    """For sm_120 NVVM does not write out the loop in which tiles of float inputs write their results, once at the end:
    their 64 sums (16 of ``matmat_half``) go by way of the stack there. Attention of many tokens spills a few words of
    the 128 registers that 16 warps have each."""
    known = {("sm_120", f"matmat_float.multiply {row['weights'][0]}", 256) for _, row in ROWS if "weights" in row}
    known |= {("sm_120", "matmat.multiply Q8_0", 8), ("sm_120", "matmat_half.multiply", 64)}
    known |= {(arch, "attending_many.attend_rows", stack) for arch in ("sm_80", "sm_90") for stack in (8, 16, 24)}
    found = {(arch, row["kernel"], row["stack"]) for arch, row in ROWS if row["spills"] or row["stack"]}
    assert not {key for key in found if key not in known}


@pytest.mark.cuda
def test_the_table_is_what_the_compiler_says() -> None:
    """For the products of a token, whose numbers are published, with the versions that the table was made by."""
    if versions() != TABLE_NOW["versions"]:
        pytest.skip(f"made by {TABLE_NOW['versions']}, here are {versions()}")
    from benchmarks.cuda_code import Compiled
    from benchmarks.cuda_launches import token_launches

    kept = {
        (row["kernel"], tuple(row["weights"])): row
        for arch, row in ROWS
        if arch == "sm_90" and "weights" in row and row["case"] == CASES[0]
    }
    compiled = {}
    for launch in token_launches():
        if launch.weights[0]:
            key = launch.kernel, launch.signature
            if key not in compiled:
                compiled[key] = Compiled(launch, (9, 0)).built
            made, row = compiled[key], kept[launch.name, launch.weights]
            found = made.registers, made.spill_stores + made.spill_loads, made.shared + launch.dynamic
            assert found == (row["registers"], row["spills"], row["shared"]), launch.name
