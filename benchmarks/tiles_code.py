"""The tiles of products for many tokens, and what llvm-mca expects of them: ``python -m benchmarks.tiles_code``.

A tile is that of four tokens (``kernels.cpu.simd.gemm``). Figures are multiplications and additions a cycle (MAC), with
all data in the first-level cache: of the tile alone; with the decoding of the weights it is fed, for 12 tokens (an
expert's share of a chunk) and 128; and of the row kernel that takes the most inputs at once, which does this work where
there is no tile. What such figures are worth: ``benchmarks.rows_check``.

    python -m benchmarks.tiles_code --cpu apple-m1
    python -m benchmarks.tiles_code --cpu neoverse-v2 --tier N --json
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from . import assembly, rows_code

KERNELS = ("Q8_0/a8", "Q4_K/q8k", "Q2_K/q8k", "IQ2_XXS/q8k", "F16/float")
TOKENS = (12, 128)
PRODUCTS = {"smmla": 32, "sdot": 16, "fmla": 4}
"""Multiplications of an instruction; a loop is told by the first of them that it has."""


@dataclass(frozen=True)
class Expected:
    """What llvm-mca expects of a tile and of what feeds it.

    macs, cycles    of the tile, a chunk of inputs times all its rows and four tokens
    instructions, spills    of its hot loop; spills are instructions that touch the stack
    decode_cycles   of as many weights as the chunk has, one row
    decoded         weights of a row in a chunk
    row_rate        MAC a cycle of the row kernel
    """

    macs: int
    cycles: float
    instructions: int
    spills: int
    decode_cycles: float
    decoded: int
    row_rate: float

    @property
    def rate(self) -> float:
        """MAC a cycle of the tile alone."""
        return self.macs / self.cycles

    def with_decoding(self, tokens: int) -> float:
        """Return the MAC a cycle of a product with so many tokens."""
        macs = tokens * self.decoded
        return macs / (self.decode_cycles + macs / self.rate)


def products(loop: Sequence[str]) -> int:
    """Return the multiplications of a loop's tile."""
    words = [line.split()[0].partition(".")[0] for line in loop]
    return next((size * words.count(word) for word, size in PRODUCTS.items() if word in words), 0)


def expected(fmt: str, act: str, command: str, model: str, target: Any) -> Expected:
    """Return what llvm-mca expects of the tile of this process's tier. Raise ValueError where it has none."""
    from ds4ref.kernels.cpu.build import compile_entry, entries, optimized
    from ds4ref.kernels.cpu.simd import GEMMS, KERNELS
    from ds4ref.kernels.cpu.simd.tiers import TRIPLE
    from ds4ref.kernels.cpu.sizes import TILE_TOKENS
    from ds4ref.kernels.formats import FORMATS

    def text(name: str) -> str:
        return target.emit_assembly(optimized([compile_entry(name, entries()[name])], target))

    def cycles(lines: Sequence[str]) -> float:
        return rows_code.simulated(lines, 20, command, TRIPLE, model)[1]

    if (fmt, act) not in GEMMS:
        raise ValueError(f"this tier has no tiles of {fmt}/{act}")
    parts, layout = GEMMS[fmt, act], FORMATS[fmt]
    tile = text(f"gemm_multiply.{'floats' if act == 'float' else f'{fmt}.{act}'}.{TILE_TOKENS}")
    hot = max((loop.splitlines() for loop in assembly.loops(tile)), key=products)
    macs = parts.chunk * parts.rows * TILE_TOKENS
    chunk = hot * (macs // products(hot)) + assembly.around(tile, hot)
    decode = max((loop.splitlines() for loop in assembly.loops(text(f"gemm_decode.{fmt}.{act}"))), key=len)
    inputs = max(KERNELS[fmt, act].rows)
    row = target.emit_assembly(rows_code.compiled(fmt, act, inputs, target))
    row_cycles = rows_code.expected(row, layout.block_elems, layout.block_bytes, command, TRIPLE, model).row_cycles
    return Expected(
        macs, cycles(chunk), len(hot), assembly.spills(hot), cycles(decode), max(parts.chunk, layout.block_elems),
        inputs * rows_code.ROW / row_cycles,
    )  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    """Print the table; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.tiles_code", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cpu", choices=list(rows_code.FOREIGN), required=True, help="compile for this processor")
    parser.add_argument("--tier", choices=list("NI"), help="tiles of this tier (default: the best that it has)")
    parser.add_argument("--model", metavar="CPU", help="llvm-mca's model (default: of the processor)")
    parser.add_argument("--mca", default=rows_code.MCA, help=f"name of llvm-mca (default {rows_code.MCA})")
    parser.add_argument("--json", action="store_true", help="print JSON: kernel -> figures")
    args = parser.parse_args(argv)
    os.environ["NUMBA_OPT"] = "0"  # as kernels are built
    from ds4ref.kernels.cpu.numba_internals import cross_target

    if not cross_target():
        options = ["--model", args.model] if args.model else []
        options += ["--cpu", args.cpu, "--mca", args.mca, *["--json"] * args.json]
        return rows_code.other_process(args.cpu, args.tier, ["benchmarks.tiles_code", *options]).returncode
    from ds4ref.kernels.cpu.simd.tiers import TIER

    target, model = rows_code.machine(), args.model or args.cpu
    figures = {name: expected(*name.split("/"), args.mca, model, target) for name in KERNELS}
    if args.json:
        print(json.dumps({"tier": TIER, "kernels": {name: asdict(row) for name, row in figures.items()}}))
        return 0
    print(f"tier {TIER}, {args.cpu}, {args.mca} -mcpu={model}: MAC a cycle")
    print(f"{'kernel':14s} {'instr':>6s} {'spills':>6s} {'tile':>7s}", end="")
    print("".join(f" {n:>4d} tok." for n in TOKENS), f"{'rows':>9s}")
    for name, row in figures.items():
        print(f"{name:14s} {row.instructions:6d} {row.spills:6d} {row.rate:7.1f}", end="")
        print("".join(f" {row.with_decoding(tokens):9.1f}" for tokens in TOKENS), f"{row.row_rate:9.1f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
