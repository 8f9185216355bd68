"""How far ``benchmarks.rows_code`` is from measured speed: ``python -m benchmarks.rows_check [--seconds 20]``.

The code that llvm-mca reads is loaded and run on one thread: 512 KB of rows, once the same row again and again (first
level cache), once one after the other (second level). Bytes a cycle need the actual clock, which a chain of dependent
integer operations tells before and after each run. A second loop of independent additions tells whether another
hardware thread or process takes part of the core: it then takes more cycles than usual, and the run does not count. So
runs of kernels take turns with both loops, on a machine that others use, too; medians and quartiles of what counts.

    python -m benchmarks.rows_check
    python -m benchmarks.rows_check --tier B Q2_K/q8k Q2_K/float
"""

from __future__ import annotations

import argparse
import ctypes
import json
import platform
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from ds4ref.kernels.cpu.numba_internals import cross_target

from .rows import random_rows
from .rows_code import DEFAULT, MCA, OUTSIDE, ROW, Expected, compiled, expected, machine, other_process, refuse

BYTES = 512 << 10
CHAIN = 5
"""Cycles of a round of ``_chain`` on Intel's and AMD's processors: shift, exclusive or, and a multiplication of 3."""
ROUNDS = 6000
SAME = 0.08, 0.02
"""How much of the additions' usual cycles, and of the clock, may differ in a run that counts."""


@njit("int64(int64,int64)", nogil=True)
def _chain(x, rounds):
    for _ in range(rounds):
        x = (x ^ (x >> 13)) * 6364136223846793005
    return x


@njit("int64(int64,int64)", nogil=True)
def _independent(x, rounds):
    a, b, c, d, e, f = x, x + 1, x + 2, x + 3, x + 4, x + 5
    for i in range(rounds):
        a = (a - i) ^ 91
        b = (b - i) ^ 92
        c = (c - i) ^ 93
        d = (d - i) ^ 94
        e = (e - i) ^ 95
        f = (f - i) ^ 96
    return a ^ b ^ c ^ d ^ e ^ f


def nanoseconds(work: Any, *arguments: int) -> int:
    """Return the wall time of one call."""
    started = time.perf_counter_ns()
    work(*arguments)
    return time.perf_counter_ns() - started


class Probe(NamedTuple):
    """The clock in GHz, and the cycles of a round of independent additions."""

    ghz: float
    cycles: float


def probe() -> Probe:
    """Measure clock and additions, now."""
    empty = nanoseconds(_chain, 1, 0)
    ghz = CHAIN * ROUNDS / max(1, nanoseconds(_chain, 1, ROUNDS) - empty)
    return Probe(ghz, ghz * (nanoseconds(_independent, 1, 2 * ROUNDS) - empty) / (2 * ROUNDS))


class Run(NamedTuple):
    """Bytes a cycle of one run, and the probes before and after it."""

    rate: float
    before: Probe
    after: Probe


def usual(runs: list[Run]) -> float:
    """Return the cycles of the additions on a core that nobody shares: what the lowest tenth agree on."""
    cycles = np.sort([p.cycles for run in runs for p in (run.before, run.after)])
    shared = np.searchsorted(cycles, cycles * (1 + SAME[0]), side="right") - np.arange(len(cycles))
    first = int(np.argmax(shared >= len(cycles) / 10))
    return float(np.median(cycles[first : first + shared[first]]))


def alone(run: Run, cycles: float) -> bool:
    """Whether the core was this thread's own, and its clock steady."""
    at_most = (1 + SAME[0]) * cycles
    steady = abs(run.before.ghz / run.after.ghz - 1) <= SAME[1]
    return steady and max(run.before.cycles, run.after.cycles) <= at_most


class Kernel:
    """A loaded row kernel with weights and one packed input."""

    def __init__(self, fmt: str, act: str, module: Any, target: Any):
        import llvmlite.binding as ll

        from ds4ref.kernels.cpu.library import symbol
        from ds4ref.kernels.cpu.simd import KERNELS

        self._engine = ll.create_mcjit_compiler(ll.parse_assembly(""), target)
        self._engine.add_object_file(ll.ObjectFileRef.from_data(target.emit_object(module)))
        self._engine.finalize_object()
        self._rows = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 6)(self._engine.get_function_address(symbol("rows")))
        rng, kernel = np.random.default_rng(1), KERNELS[fmt, act]
        drawn = random_rows(fmt, 64, ROW, rng)
        self.row_bytes = drawn.shape[1]
        self.count = BYTES // self.row_bytes
        self._weights = np.zeros(self.count * self.row_bytes + 64, np.uint8)
        self._at = self._weights.ctypes.data + 63 & ~63
        place = self._at - self._weights.ctypes.data
        self._weights[place : place + self.count * self.row_bytes] = np.resize(drawn, self.count * self.row_bytes)
        self._packed = np.zeros(kernel.packed_bytes(ROW) + 64, np.uint8)
        packed = self._packed.ctypes.data + 63 & ~63
        x = rng.standard_normal(ROW, np.float32)
        kernel.pack(x.ctypes.data, ROW, packed)
        self.out = np.zeros(self.count, np.float32)
        self._table = np.array([packed, self.out.ctypes.data], np.int64)
        self._table_at = self._table.ctypes.data

    def measured(self, same_row: bool) -> Run:
        """Run the kernel over its rows, or as often over the first one."""
        stride = 0 if same_row else self.row_bytes
        arguments = stride, ROW, self._table_at
        self._rows(self._at, 0, self.count, *arguments)
        before = probe()
        empty = nanoseconds(self._rows, self._at, 0, 0, *arguments)
        spent = nanoseconds(self._rows, self._at, 0, self.count, *arguments) - empty
        after = probe()
        return Run(self.count * self.row_bytes / (spent * (before.ghz + after.ghz) / 2), before, after)


def report(fmt_act: str, model: Expected, runs: dict[bool, list[Run]], cycles: float) -> dict[str, Any]:
    """Return the figures of a kernel; those of runs are None where fewer than five count."""
    row: dict[str, Any] = {"kernel": fmt_act, "expected": model.rate}
    for same_row, name in ((True, "L1"), (False, "L2")):
        rates = [run.rate for run in runs[same_row] if alone(run, cycles)]
        low, middle, high = np.percentile(rates, [25, 50, 75]).tolist() if len(rates) >= 5 else (None, None, None)
        row |= {name: middle, f"{name} low": low, f"{name} high": high, f"{name} runs": len(rates)}
    row["error"] = None if row["L1"] is None else model.rate / row["L1"] - 1
    return row


def options() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.rows_check", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kernels", nargs="*", default=DEFAULT, metavar="KERNEL", help="FORMAT/ACTIVATION")
    parser.add_argument(
        "--tier", choices=list("ABCNI"), help="kernels of this tier (default: the best that this machine has)"
    )
    parser.add_argument("--seconds", type=float, default=20, help="time to measure (default 20)")
    parser.add_argument("--mca", default=MCA, help=f"name of llvm-mca (default {MCA})")
    parser.add_argument("--model", metavar="CPU", help="llvm-mca's model (default: this processor's)")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of a table")
    return parser


def prepared(names: Sequence[str], mca: str, model: str | None) -> tuple[dict[str, Kernel], dict[str, Expected]]:
    """Compile and load kernels of this process's tier; return them, and what llvm-mca expects of each."""
    from ds4ref.kernels.cpu.simd.tiers import CPU, TIER, TRIPLE
    from ds4ref.kernels.formats import FORMATS

    target = machine()
    kernels, models = {}, {}
    for name in names:
        fmt, act = name.split("/")
        module = compiled(fmt, act, 1, target)
        layout = FORMATS[fmt]
        text = target.emit_assembly(module)
        outside = OUTSIDE.get((TIER, name), 0)
        models[name] = expected(text, layout.block_elems, layout.block_bytes, mca, TRIPLE, model or CPU, outside)
        kernels[name] = Kernel(fmt, act, module, target)
    return kernels, models


def in_turns(kernels: Mapping[str, Kernel], seconds: float) -> dict[str, dict[bool, list[Run]]]:
    """Run kernels in turns for ``seconds``; return their runs over the same row again and again, and over all rows."""
    runs: dict[str, dict[bool, list[Run]]] = {name: {True: [], False: []} for name in kernels}
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for name, kernel in kernels.items():
            for same_row in (True, False):
                runs[name][same_row].append(kernel.measured(same_row))
    return runs


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the rows of ``report`` as a table."""
    lines = [
        f"{'kernel':14s} {'expected':>8s} {'L1':>6s} {'quartiles':>13s} {'error':>6s} {'L2':>6s} {'quartiles':>13s}"
    ]
    for row in rows:
        cells = f"{row['kernel']:14s} {row['expected']:8.2f}"
        for name in ("L1", "L2"):
            if row[name] is None:
                cells += f" {'-':>6s} {'':13s}"
            else:
                span = f"{row[name + ' low']:.2f} - {row[name + ' high']:.2f}"
                cells += f" {row[name]:6.2f} {span:>13s}"
            if name == "L1":
                cells += f" {'-' if row['error'] is None else format(row['error'], '+.0%'):>6s}"
        lines.append(cells)
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """Print expected and measured bytes a cycle; return the exit code."""
    parser = options()
    args = parser.parse_args(argv)
    if args.tier:
        rest = [*args.kernels, "--seconds", str(args.seconds), "--mca", args.mca]
        rest += (["--model", args.model] if args.model else []) + ["--json"] * args.json
        return other_process(None, args.tier, ["benchmarks.rows_check", *rest]).returncode
    if platform.machine() != "x86_64":
        parser.error("the cycles of its chain are known for x86-64 alone")
    if cross_target():
        parser.error("DS4_CROSS_TARGET is set: its code cannot run here")
    if args.seconds <= 0:
        parser.error("--seconds must be above 0")
    refuse(parser, args.kernels)
    from ds4ref.kernels.cpu.simd.tiers import CPU, TIER

    kernels, models = prepared(args.kernels, args.mca, args.model)
    runs = in_turns(kernels, args.seconds)
    everything = [run for pair in runs.values() for some in pair.values() for run in some]
    cycles = usual(everything)
    rows = [report(name, models[name], runs[name], cycles) for name in kernels]
    counted = sum(alone(run, cycles) for run in everything) / len(everything)
    if args.json:
        facts = {"tier": TIER, "cpu": CPU, "model": args.model or CPU, "additions": cycles, "counted": counted}
        print(json.dumps(facts | {"rows": rows}))
        return 0
    print(f"tier {TIER}, {CPU}, {args.mca} -mcpu={args.model or CPU}; bytes of weights a cycle, medians and quartiles")
    print(table(rows))
    errors = sorted(abs(row["error"]) for row in rows if row["error"] is not None)
    if errors:
        print(f"error: median {np.median(errors):.0%}, largest {errors[-1]:.0%}; ", end="")
    print(f"{counted:.0%} of the runs count: a round of additions within {SAME[0]:.0%} of {cycles:.2f} cycles")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
