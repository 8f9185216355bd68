"""The hot loops of the row kernels, and what llvm-mca expects of them: ``python -m benchmarks.rows_code``.

A kernel is named as in ``benchmarks.rows``: IQ2_XXS/q8k. Without ``--asm`` a table is printed: the bytes of weights
that one round of the loop takes, its instructions, those that touch the stack (spills, or constants kept there), its
micro-operations and cycles as llvm-mca (Debian package llvm-22) models the processor, with all data in the first-level
cache; bytes a cycle of the loop alone, and of whole rows of 4096 weights, their ends included. How far such figures are
from measured ones: ``benchmarks.rows_check``.

``--cpu`` compiles for another processor, also an AArch64 one: nothing is run.

    python -m benchmarks.rows_code
    python -m benchmarks.rows_code --cpu apple-m1
    python -m benchmarks.rows_code --cpu sapphirerapids --tier A IQ2_XXS/q8k --asm
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .assembly import around, hot_loop, spills, step_bytes

MCA = "llvm-mca-22"

PROCESSORS = {
    "znver3": "+avx,+avx2,+fma,+f16c,+bmi,+bmi2,+lzcnt,+movbe,+popcnt,+sse4.2",
}
_AVX512 = "avx512f avx512bw avx512vl avx512dq avx512cd avx512vnni avx512vbmi avx512vbmi2 avx512bitalg gfni".split()
for _name in ("znver4", "sapphirerapids", "icelake-server"):
    PROCESSORS[_name] = ",".join([PROCESSORS["znver3"], *(f"+{feature}" for feature in _AVX512), "-prefer-256-bit"])

FOREIGN = {
    **dict.fromkeys(("apple-m1", "apple-m2", "apple-m3", "apple-m4"), "arm64-apple-macosx"),
    **dict.fromkeys(("neoverse-n1", "neoverse-v1", "neoverse-v2", "cortex-x925"), "aarch64-unknown-linux-gnu"),
}
"""AArch64 processors and LLVM's triple of a machine that has them."""

DEFAULT = "IQ2_XXS/q8k Q2_K/q8k Q4_K/q8k Q8_0/a8 IQ2_XXS/float Q2_K/float Q4_K/float Q8_0/float F16/float".split()
ROW = 4096
"""Weights of a row, where rows are simulated whole."""

_ZERO = re.compile(r"v?p?xor\w*\s+(?P<r>%[xyz]mm\d+)(?:, (?P=r)){1,2}$")


@dataclass(frozen=True)
class Expected:
    """What llvm-mca expects of a kernel.

    bytes               of weights that a round of the hot loop takes
    instructions, spills, micro_operations, cycles      of a round; spills are instructions that touch the stack
    row_bytes, row_cycles       of a whole row of ROW weights, in a series of rows
    """

    bytes: int
    instructions: int
    spills: int
    micro_operations: float
    cycles: float
    row_bytes: int
    row_cycles: float

    @property
    def loop_rate(self) -> float:
        """Bytes of weights a cycle, of the loop alone."""
        return self.bytes / self.cycles

    @property
    def rate(self) -> float:
        """Bytes of weights a cycle, of whole rows."""
        return self.row_bytes / self.row_cycles


def readable(lines: Sequence[str]) -> str:
    """Return instructions as llvm-mca must get them.

    Jumps lead nowhere, because their labels are not in the text. LLVM's tables of Intel's processors do not know that
    ``vpxor %xmm1, %xmm1, %xmm1`` waits for nothing: it would wait for what the register held, so rounds that overlap in
    the processor would follow each other. It gets operands that nobody writes.
    """
    written = {match[1] for line in lines if (match := re.search(r"%[xyz]mm(\d+)$", line))}
    idle = next((number for number in range(32) if str(number) not in written), None)
    out = []
    for line in lines:
        if (zero := _ZERO.match(line)) and idle is not None:
            line = f"{line.split()[0]} %xmm{idle}, " + f"%xmm{idle}, " * (line.count(",") - 1) + f"%x{zero['r'][2:]}"
        jump = r"^(j\w+|b\.\w+|b|cbn?z \w+,|cbn?z\s+\w+,|tbn?z\s+\w+, #\d+,)\s.*"
        out.append(re.sub(jump, r"\1 .", line))
    return "\n".join(out) + "\n"


def simulated(lines: Sequence[str], times: int, command: str, triple: str, cpu: str) -> tuple[float, float]:
    """Return (micro-operations, cycles) of instructions that run again and again, for one time: the difference between
    ``2 * times`` and ``times``, so that filling and draining the processor does not count."""
    totals = []
    for iterations in (times, 2 * times):
        arguments = [command, f"-mtriple={triple}", f"-mcpu={cpu}", f"-iterations={iterations}"]
        arguments += ["-instruction-info=0", "-resource-pressure=0"]
        try:
            done = subprocess.run(arguments, input=readable(lines), capture_output=True, text=True)
        except OSError as error:
            raise SystemExit(f"rows_code: cannot run {command}: {error.strerror}") from None
        if done.returncode:
            raise SystemExit(f"rows_code: {command} failed: {done.stderr.strip().splitlines()[-1]}")
        totals.append({k: int(v) for k, v in re.findall(r"^Total (Cycles|uOps):\s+(\d+)", done.stdout, re.MULTILINE)})
    once, twice = totals
    return (twice["uOps"] - once["uOps"]) / times, (twice["Cycles"] - once["Cycles"]) / times


OUTSIDE = {("A", "IQ2_XXS/q8k"): 1}
"""Rounds of a row that run before and after the hot loop, by tier and kernel: what decodes a round ahead."""


def expected(
    text: str, block_elems: int, block_bytes: int, command: str, triple: str, cpu: str, outside: int = 0
) -> Expected:
    """Return what llvm-mca expects of the kernel with this assembly, from 100 rounds of its loop and 10 rows.

    outside: rounds of a row that are not in the loop. Raise ValueError for rows that are no whole rounds.
    """
    loop = hot_loop(text, block_bytes)
    size = step_bytes(loop, block_bytes)
    row_bytes = ROW // block_elems * block_bytes
    ends = around(text, loop)
    if row_bytes % size or not ends:
        raise ValueError(f"a row of {row_bytes} bytes is no number of rounds of {size} and a way back")
    row = loop * (row_bytes // size - outside) + ends
    micro_operations, cycles = simulated(loop, 100, command, triple, cpu)
    row_cycles = simulated(row, 10, command, triple, cpu)[1]
    return Expected(size, len(loop), spills(loop), micro_operations, cycles, row_bytes, row_cycles)


def refuse(parser: argparse.ArgumentParser, kernels: Sequence[str], inputs: int = 1) -> None:
    """End with a usage error unless this process's tier has these kernels for so many inputs."""
    from ds4ref.kernels.cpu.simd import KERNELS

    named = {"/".join(pair): kernel for pair, kernel in KERNELS.items()}
    for name in kernels:
        if name not in named:
            parser.error(f"no kernel {name}; there are {', '.join(named)}")
        if inputs not in named[name].rows:
            parser.error(f"{name} takes {', '.join(map(str, named[name].rows))} inputs at once, not {inputs}")


def machine() -> Any:
    """Return LLVM's machine that this process compiles kernels for; a foreign one if DS4_CROSS_TARGET names it."""
    import llvmlite.binding as ll

    from ds4ref.kernels.cpu.build import cross_machine
    from ds4ref.kernels.cpu.library import target_machine
    from ds4ref.kernels.cpu.numba_internals import cross_target, target_cpu, target_features

    if cross_target():
        return cross_machine()
    ll.initialize_native_target()
    ll.initialize_native_asmprinter()
    return target_machine(ll.get_process_triple(), cpu=target_cpu(), features=target_features())


def compiled(fmt: str, act: str, inputs: int, target: Any) -> Any:
    """Compile the row kernel of this process's tier for one, two or four inputs; return its optimized LLVM module, in
    which it is the one visible function, of six int64."""
    from numba import cfunc, int64, void

    from ds4ref.kernels.cpu.build import compile_entry, optimized
    from ds4ref.kernels.cpu.simd import KERNELS

    rows = KERNELS[fmt, act].rows[inputs]

    def entry(weights, first, last, row_bytes, n, table):
        rows(weights, first, last, row_bytes, n, table)

    module = compile_entry("rows", lambda: cfunc(void(*[int64] * 6), error_model="numpy")(entry))
    return optimized([module], target)


def other_process(cpu: str | None, tier: str | None, arguments: Sequence[str], **options: Any) -> Any:
    """Run ``python -m`` with ``arguments`` for another processor or tier, which Numba and the tier read at import."""
    target = {}
    if cpu in FOREIGN:
        target = {"DS4_CROSS_TARGET": f"{FOREIGN[cpu]}:{cpu}"}
    elif cpu:
        target = {"NUMBA_CPU_NAME": cpu, "NUMBA_CPU_FEATURES": PROCESSORS[cpu]}
    environment = os.environ | target | ({"DS4_SIMD_TIER": tier} if tier else {})
    return subprocess.run([sys.executable, "-m", *arguments], env=environment, **options)


def main(argv: list[str] | None = None) -> int:
    """Print loops or the table; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.rows_code", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kernels", nargs="*", default=DEFAULT, metavar="KERNEL", help="FORMAT/ACTIVATION")
    parser.add_argument("--cpu", choices=[*PROCESSORS, *FOREIGN], help="compile for this processor instead of the host")
    parser.add_argument(
        "--tier", choices=list("ABCNI"), help="kernels of this tier (default: the best that the target has)"
    )
    parser.add_argument(
        "--inputs", type=int, choices=(1, 2, 4), default=1, help="kernels of so many inputs (default 1)"
    )
    parser.add_argument("--model", metavar="CPU", help="llvm-mca's model (default: of the processor compiled for)")
    parser.add_argument("--mca", default=MCA, help=f"name of llvm-mca (default {MCA})")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--asm", action="store_true", help="print the hot loops instead of the table")
    form.add_argument("--json", action="store_true", help="print JSON: kernel -> figures")
    args = parser.parse_args(argv)
    os.environ["NUMBA_OPT"] = "0"  # as kernels are built
    if args.cpu or args.tier:
        rest = [*args.kernels, "--mca", args.mca, "--inputs", str(args.inputs)]
        rest += ["--asm"] * args.asm + ["--json"] * args.json + (["--model", args.model] if args.model else [])
        return other_process(args.cpu, args.tier, ["benchmarks.rows_code", *rest]).returncode
    refuse(parser, args.kernels, args.inputs)
    target = machine()
    from ds4ref.kernels.cpu.simd.tiers import CPU, TIER, TRIPLE
    from ds4ref.kernels.formats import FORMATS

    model = args.model or CPU
    figures = {}
    if not args.asm and not args.json:
        print(f"tier {TIER}, {CPU}, {args.mca} -mcpu={model}, {args.inputs} input(s)")
        print(f"{'kernel':14s} {'bytes':>6s} {'instr':>6s} {'spills':>6s} {'uops':>6s} {'cycles':>7s}", end="")
        print(f" {'bytes/cycle':>12s} {'of rows':>8s}")
    for name in args.kernels:
        fmt, act = name.split("/")
        layout = FORMATS[fmt]
        text = target.emit_assembly(compiled(fmt, act, args.inputs, target))
        if args.asm:
            print(f"# {name}", *hot_loop(text, layout.block_bytes), sep="\n")
            continue
        outside = OUTSIDE.get((TIER, name), 0)
        row = expected(text, layout.block_elems, layout.block_bytes, args.mca, TRIPLE, model, outside)
        figures[name] = asdict(row)
        if not args.json:
            print(
                f"{name:14s} {row.bytes:6d} {row.instructions:6d} {row.spills:6d} {row.micro_operations:6.0f}", end=""
            )
            print(f" {row.cycles:7.1f} {row.loop_rate:12.2f} {row.rate:8.2f}", flush=True)
    if args.json:
        import json

        print(json.dumps({"tier": TIER, "cpu": CPU, "model": model, "kernels": figures}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
