"""Every figure of the CPU table, with its bar: ``python -m benchmarks.cpu [--quick] [--json]``.

Figures are ratios wherever possible, and the two sides of a ratio are interleaved in the same run, so that other load
cancels. A value is the median over the rounds; the range shows how far to trust it. A figure that could not be measured
has no value and says why. The real-shape figures come from a slice of Flash (4 layers), which is written to the model
cache on first use: 8 experts with --quick (0.9 GB), 256 otherwise (7.7 GB).

    python -m benchmarks.cpu --quick --json     under a minute, one JSON document
    python -m benchmarks.cpu --only start nano
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase

from ds4ref.runs.provenance import stamp

from . import growth, matvec, start, whole
from .context import Context
from .goals import GOALS
from .report import document, print_table
from .timing import Budget, OutOfTime

QUICK_SECONDS = 34.0

SECTIONS: dict[str, tuple[Callable[[Context], None], tuple[str, ...], float]] = {
    "matvec": (matvec.measure, ("read*", "matvec *", "float *"), 10),
    "cached": (matvec.cached, ("cached *",), 2),
    "decode": (whole.decode, ("decode", "decode ms"), 6),
    "nano": (whole.nano, ("nano",), 3),
    "start": (start.measure, ("help", "start"), 6),
    "growth": (growth.decode, ("growth decode", "decode *[kM]"), 5),
    "prefill": (whole.prefill, ("prefill*", "gemm peak"), 10),
    "depth": (growth.prefill, ("growth prefill",), 8),
    "compile": (start.cold_compile, ("compile",), 0),
}
"""Sections of the table: name -> (function, name patterns of its rows, minimum seconds of a quick run)."""


def run(context: Context, chosen: Sequence[str]) -> None:
    """Run the chosen sections; afterwards each of their rows has a value or the reason why not."""
    for name in chosen:
        work, patterns, least = SECTIONS[name]
        reason = "not measured"
        try:
            context.budget.need(least)
            progress(name)
            work(context)
        except OutOfTime as late:
            reason = str(late)
        except Exception as error:  # one failing figure must not stop the others
            reason = f"failed: {type(error).__name__}: {error}"
        for row in GOALS:
            if any(fnmatchcase(row, pattern) for pattern in patterns):
                context.skip(row, reason)


def progress(name: str) -> None:
    """Print the name of the section being measured, if stderr is a terminal."""
    if sys.stderr.isatty():
        print(f"\rmeasuring: {name:12s}", end="", file=sys.stderr, flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure the chosen sections, print table and JSON; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.cpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small sizes, few rounds, under a minute")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout instead of the table")
    parser.add_argument("--threads", type=int, metavar="N", help="threads (default: 2, or 1 on a single core)")
    parser.add_argument("--model", metavar="FILE", help="measure this model instead of the slice")
    parser.add_argument("--only", nargs="+", choices=list(SECTIONS), metavar="SECTION", help=", ".join(SECTIONS))
    args = parser.parse_args(argv)
    from ds4ref.kernels.cpu import CPU
    from ds4ref.kernels.system import available_cores
    from ds4ref.nano.cache import slice_path

    model = args.model or slice_path(4, 8 if args.quick else 256, 4096, "q2")
    threads = args.threads or min(2, available_cores())
    CPU().load()
    budget = Budget(
        QUICK_SECONDS if args.quick else None
    )  # a machine's first run compiles for minutes, which is no part
    context = Context(args.quick, threads, model, budget)
    # keep what libraries print out of the JSON
    with contextlib.redirect_stdout(sys.stderr):
        run(context, args.only or list(SECTIONS))
    if sys.stderr.isatty():
        print("\r" + " " * 30 + "\r", end="", file=sys.stderr)
    rows = [context.rows[name] for name in GOALS if name in context.rows]
    if args.json:
        print(document(rows, {"threads": threads, "quick": args.quick, "seconds": round(budget.spent, 1)} | stamp()))
    else:
        print_table(rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
