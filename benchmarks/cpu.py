"""Every figure of the CPU table, with its bar: ``python -m benchmarks.cpu [--quick] [--json]``.

Figures are ratios wherever possible, and the two sides of a ratio are interleaved in the same run, so that other load
cancels. A value is the median over the rounds; the range shows how far to trust it. A section that could not be
measured is a row that says why. The real-shape figures come from a slice of Flash (4 layers), which is written to the
model cache on first use: 8 experts with --quick (0.9 GB), 256 otherwise (7.7 GB).

    python -m benchmarks.cpu --quick --json     under a minute, one JSON document
    python -m benchmarks.cpu --only decode nano
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence

from . import matvec, whole
from .context import Context
from .harness import Budget, OutOfTime, Row, add_json, show

QUICK_SECONDS = 34.0

SECTIONS: dict[str, tuple[Callable[[Context], Iterator[Row]], float]] = {
    "matvec": (matvec.measure, 10),
    "decode": (whole.decode, 6),
    "nano": (whole.nano, 3),
    "growth": (whole.growth, 5),
    "prefill": (whole.prefill, 10),
    "depth": (whole.depth, 8),
}
"""Sections of the table: name -> (function that yields its rows, minimum seconds of a quick run)."""


def run(context: Context, chosen: Sequence[str]) -> Iterator[Row]:
    """Yield the rows of the chosen sections; for a section that could not be measured, a row with the reason."""
    for name in chosen:
        work, least = SECTIONS[name]
        if sys.stderr.isatty():
            print(f"\rmeasuring: {name:12s}", end="", file=sys.stderr, flush=True)
        try:
            context.budget.need(least)
            yield from work(context)
        except OutOfTime as late:
            yield Row(name, note=str(late))
        except Exception as error:  # one failing figure must not stop the others
            yield Row(name, note=f"failed: {type(error).__name__}: {error}")


def main(argv: Sequence[str] | None = None) -> int:
    """Measure the chosen sections, print table or JSON; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.cpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small sizes, few rounds, under a minute")
    add_json(parser)
    parser.add_argument("--model", metavar="FILE", help="measure this model instead of the slice")
    parser.add_argument("--only", nargs="+", choices=list(SECTIONS), metavar="SECTION", help=", ".join(SECTIONS))
    args = parser.parse_args(argv)
    from ds4ref.kernels.cpu import CPU
    from ds4ref.kernels.system import available_cores
    from ds4ref.nano.cache import slice_path

    model = args.model or slice_path(4, 8 if args.quick else 256, 4096, "q2")
    threads = min(2, available_cores())
    CPU().load()  # the first run on a machine compiles for minutes, which the time budget does not include
    budget = Budget(QUICK_SECONDS if args.quick else None)
    # keep what libraries print out of the JSON
    with contextlib.redirect_stdout(sys.stderr):
        rows = list(run(Context(args.quick, threads, model, budget), args.only or list(SECTIONS)))
    if sys.stderr.isatty():
        print("\r" + " " * 30 + "\r", end="", file=sys.stderr)
    show(rows, "CPU speed", args.json, threads=threads, quick=args.quick, seconds=round(budget.spent, 1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
