"""The hot loops of the row kernels, and what llvm-mca expects of them: ``python -m benchmarks.rows_code``.

A kernel is named as in ``benchmarks.rows``: IQ2_XXS/q8k. Without ``--asm`` a table is printed: the bytes of weights
that one round of the loop takes, its instructions, micro-operations and cycles as llvm-mca (Debian package llvm-19)
models the processor, with all data in the first-level cache, and bytes a cycle. ``--cpu`` compiles for another
processor: nothing is run, so tier A can be read on a machine that lacks it.

    python -m benchmarks.rows_code --mca llvm-mca-19
    python -m benchmarks.rows_code --cpu sapphirerapids --tier A IQ2_XXS/q8k --asm
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys

PROCESSORS = {
    "znver3": "+avx,+avx2,+fma,+f16c,+bmi,+bmi2,+lzcnt,+movbe,+popcnt,+sse4.2",
}
_AVX512 = "avx512f avx512bw avx512vl avx512dq avx512cd avx512vnni avx512vbmi avx512vbmi2 avx512bitalg gfni".split()
for _name in ("znver4", "sapphirerapids", "icelake-server"):
    PROCESSORS[_name] = ",".join([PROCESSORS["znver3"], *(f"+{feature}" for feature in _AVX512), "-prefer-256-bit"])

DEFAULT = "IQ2_XXS/q8k Q2_K/q8k Q4_K/q8k Q8_0/a8 IQ2_XXS/float Q2_K/float Q4_K/float Q8_0/float".split()


def loops(text: str) -> list[str]:
    """Return the straight-line loops of an assembly text: from a label to a jump back to it, with no jump between."""
    lines = [line.strip() for line in text.splitlines()]
    at = {line[:-1]: number for number, line in enumerate(lines) if line.startswith(".LBB") and line.endswith(":")}
    jumps = {number: line.split()[-1] for number, line in enumerate(lines) if re.match(r"j\w+\s", line)}
    bodies = [(at[target], number) for number, target in jumps.items() if at.get(target, number) < number]
    return ["\n".join(lines[a : b + 1]) for a, b in bodies if not any(a < jump < b for jump in jumps)]


def hot_loop(text: str) -> list[str]:
    """Return the instructions of the longest straight-line loop."""
    longest = max(loops(text), key=len).splitlines()
    return [line for line in longest if line and not line.startswith((".", "#")) and not line.endswith(":")]


def step_bytes(loop: list[str], block_bytes: int) -> int:
    """Return the bytes of weights that a round takes: the one pointer increment that is a multiple of the block."""
    steps = [int(match[1]) for line in loop if (match := re.match(r"addq\s+\$(\d+), ", line))]
    steps += [int(match[1]) for line in loop if (match := re.match(r"leaq\s+(\d+)\((%r\w+)\), \2", line))]
    (step,) = {step for step in steps if step % block_bytes == 0}
    return step


def expected(loop: list[str], command: str, cpu: str) -> tuple[float, float]:
    """Return (micro-operations, cycles) of one round, from llvm-mca's simulation of 100."""
    # the branch target is outside the text that llvm-mca reads
    text = "\n".join(re.sub(r"^(j\w+)\s.*", r"\1 .", line) for line in loop) + "\n"
    arguments = [command, f"-mcpu={cpu}", "-iterations=100", "-instruction-info=0", "-resource-pressure=0"]
    done = subprocess.run(arguments, input=text, capture_output=True, text=True, check=True)
    totals = dict(re.findall(r"^Total (Cycles|uOps):\s+(\d+)", done.stdout, re.MULTILINE))
    return int(totals["uOps"]) / 100, int(totals["Cycles"]) / 100


def assembly(fmt: str, act: str, inputs: int) -> str:
    """Compile the row kernel of this process's tier for one, two or four inputs, and return its assembly."""
    from numba import int64

    from ds4ref.kernels.cpu.simd import KERNELS

    rows = KERNELS[fmt, act].rows[inputs]
    rows.compile((int64,) * 6)
    return rows.inspect_asm()[(int64,) * 6]


def main(argv: list[str] | None = None) -> int:
    """Print loops or the table; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.rows_code", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kernels", nargs="*", default=DEFAULT, metavar="KERNEL", help="FORMAT/ACTIVATION")
    parser.add_argument("--cpu", choices=sorted(PROCESSORS), help="compile for this processor instead of the host")
    parser.add_argument("--tier", choices="ABC", help="kernels of this tier (default: the best that the target has)")
    parser.add_argument(
        "--inputs", type=int, choices=(1, 2, 4), default=1, help="kernels of so many inputs (default 1)"
    )
    parser.add_argument("--mca", default="llvm-mca-19", help="name of llvm-mca (default llvm-mca-19)")
    parser.add_argument("--asm", action="store_true", help="print the hot loops instead of the table")
    args = parser.parse_args(argv)
    if args.cpu or args.tier:  # Numba and the tier read these once, at import
        target = {"NUMBA_CPU_NAME": args.cpu, "NUMBA_CPU_FEATURES": PROCESSORS[args.cpu]} if args.cpu else {}
        environment = os.environ | target | ({"DS4_SIMD_TIER": args.tier} if args.tier else {})
        rest = [*args.kernels, "--mca", args.mca, "--inputs", str(args.inputs), *["--asm"] * args.asm]
        return subprocess.run([sys.executable, "-m", "benchmarks.rows_code", *rest], env=environment).returncode
    from ds4ref.kernels.cpu.simd.tiers import CPU, TIER
    from ds4ref.kernels.formats import FORMATS

    if not args.asm:
        print(f"tier {TIER}, {CPU}, {args.mca}")
        print(f"{'kernel':14s} {'bytes':>6s} {'instr':>6s} {'uops':>6s} {'cycles':>7s} {'bytes/cycle':>12s}")
    for name in args.kernels:
        fmt, act = name.split("/")
        loop = hot_loop(assembly(fmt, act, args.inputs))
        if args.asm:
            print(f"# {name}", *loop, sep="\n")
            continue
        size = step_bytes(loop, FORMATS[fmt].block_bytes)
        uops, cycles = expected(loop, args.mca, CPU)
        print(f"{name:14s} {size:6d} {len(loop):6d} {uops:6.0f} {cycles:7.1f} {size / cycles:12.2f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
