"""``ds4-bench``: measures throughput against context depth; ``ds4-bench plot`` draws the results.

``ds4-bench model`` computes the highest speeds that a machine's hardware allows. ``options`` parses the command line
of a sweep, ``runner`` runs it, ``output`` writes the results.

    ds4-bench -m model.gguf --prompt-file book.txt --ctx-start 2048 --ctx-max 65536 --csv m3.csv
    ds4-bench -t 1,2 --csv threads.csv
    ds4-bench --target 'local?draft=off' --target 'local?draft=lookup'
    ds4-bench -p 512 -n 128 -d 0,8192 -t 1,2 -o md
    ds4-bench --target http://127.0.0.1:8000/v1 --concurrency 1-8*2 --csv served.csv
    ds4-bench --target http://127.0.0.1:8000/v1 --request-rate 1,2,4 --requests 64 --goodput ttft:500,tpot:50
    ds4-bench drafts 'local?draft=off' 'local?draft=auto'
    ds4-bench plot m3.csv
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from ds4ref.console.common import Interrupt, Progress, check_output, run, say
from ds4ref.console.flags import add
from ds4ref.console.model import single_instance
from ds4ref.console.options import Parser, parsed
from ds4ref.console.tool import parser
from ds4ref.errors import DataError, UsageError

from .options import PROG, build_parser, choose_models, read_plan

if TYPE_CHECKING:
    from ds4ref.runs.shards import ShardFolder
    from ds4ref.runs.store import Run, Store

    from .output import Output
    from .plan import Plan
    from .runner import MeasuredTarget, Measurement


def bench(args: Namespace) -> int:
    """Run the sweep described by ``args``, or resume an earlier one; return the exit code."""
    from .output import Output
    from .runner import Measurement

    with ExitStack() as stack:
        store, first = None, None
        if args.resume is not None:
            store = open_store(stack, args.store)
            first = unfinished(store, args.resume)
            argv = first.facts["command"][1:]
            args = Namespace(**{**vars(build_parser().parse(argv)), "store": args.store, "argv": argv})
        plan = choose_models(read_plan(args))
        if store is None and not args.no_store and args.shard is None:
            store = open_store(stack, args.store)
        stack.enter_context(single_instance(PROG))
        output, progress_line = Output(args, plan.targets), ProgressLine()
        measurement = Measurement(
            plan, store, label=output.label, say=progress_line.say, progress=progress_line.start, stopping=Interrupt,
            on_row=progress_line.aside(output.row), command=[PROG, *args.argv],
        )  # fmt: skip
        if first is not None:
            measurement.resume(first.id)
        share = None
        if args.shard is not None:
            share = stack.enter_context(_shared(args, plan, measurement, progress_line, output))
            if share.done or not share.mine:
                share.finish()
                say(PROG, f"{share.path}: this shard is finished")
                return 0
        output.begin(measurement)
        try:
            measurement.execute()
            output.conclude()
            if share is not None:
                share.finish()
        except BrokenPipeError:  # the program that reads our output has ended
            raise
        except BaseException:
            output.stopped()
            raise
    return 0


@contextmanager
def _shared(
    args: Namespace, plan: Plan, measurement: Measurement, line: ProgressLine, output: Output
) -> Iterator[ShardFolder]:
    """Context manager: the folder of the run's shard; the measurement goes on from the rows in it, and keeps its rows
    there."""
    import json

    from ds4ref.files import atomic_write
    from ds4ref.runs import shards

    from . import shares

    out = args.shard_folder
    with shards.work(out, args.shard, shares.TOOL, shares.plan_of(plan), shares.units_of(plan)) as folder:
        with atomic_write(folder.path / "command.json") as file:
            file.write(json.dumps(args.argv).encode())
        share = shares.Share(folder, measurement)
        shown = line.aside(output.row)

        def keep(target: MeasuredTarget) -> None:
            share.keep(target)
            shown(target)

        measurement.on_row = keep
        yield folder


def open_store(stack: ExitStack, path: str | None) -> Store:
    """Open the run store at ``path`` (None: the default); it is closed with ``stack``."""
    from ds4ref.runs.store import Store

    return stack.enter_context(Store.open(path))


def unfinished(store: Store, name: str) -> Run:
    """Return the unfinished run to resume, by its name in the store or "latest"; raises DataError if there is none."""
    if name == "latest":
        candidate = next((run for run in store.runs(kind="bench") if run.status != "complete"), None)
        if candidate is None:
            raise DataError("no run is unfinished: nothing to resume")
    else:
        candidate = store.find(name)
    if candidate.status == "complete":
        raise DataError(f"run {candidate.id} is complete: nothing to resume")
    if (candidate.fact("command") or [""])[0] != PROG:
        raise DataError(f"run {candidate.id} was not started by {PROG}: it cannot be resumed")
    return candidate


class ProgressLine:
    """The progress line of a run on the terminal, which is cleared before anything else is printed."""

    def __init__(self) -> None:
        self.line: Progress | None = None

    def start(self, activity: str) -> Progress:
        """Start a new progress line with the title ``activity``."""
        self.line = Progress(activity)
        return self.line

    def say(self, message: str) -> None:
        """Clear the progress line and print a message on stderr."""
        self.aside(say)(PROG, message)

    def aside(self, write: Callable[..., None]) -> Callable[..., None]:
        """Return a function that clears the progress line and then calls ``write``."""

        def clear(*args: Any) -> None:
            if self.line is not None:
                self.line.clear()
            write(*args)

        return clear


def plot_parser() -> Parser:
    """Return the parser of ``ds4-bench plot``."""
    made = parser(PROG, "Speed curves of one or several CSVs: panels for prefill and decode, one colour per file.",
                  "plot CSV... [--load] [-o FILE]... [--title TEXT]", "plot m3.csv m4.csv -o both.svg")  # fmt: skip
    made.add_argument("csv", metavar="CSV", nargs="*", help="results of ds4-bench, ds4's own included")
    add(made, "--output", action="append", default=[], help=".svg, .png or .pdf; may be repeated (<first CSV>_ts.svg)")
    made.add_argument("--load", action="store_true", help="endpoints: throughput and latency over streams or rate")
    add(made, "--title", help="(from the name of the first CSV)")
    return made


def draw(argv: Sequence[str]) -> int:
    """Run ``ds4-bench plot``; return the exit code."""
    args = parsed(plot_parser(), argv)
    if args is None:
        return 0
    if not args.csv:
        raise UsageError("plot needs at least one CSV")
    from .plot import check_suffix, plot

    for path in args.output:
        check_suffix(path)
        check_output(path)
    for path in plot(args.csv, args.output, args.title, args.load):
        print(path)
    return 0


def model(argv: Sequence[str]) -> int:
    """Run ``ds4-bench model``; return the exit code."""
    from .model import model_command

    return model_command(argv)


def drafts(argv: Sequence[str]) -> int:
    """Run ``ds4-bench drafts``; return the exit code."""
    from .drafts import run as run_drafts

    return run_drafts(argv)


def merge(argv: Sequence[str]) -> int:
    """Run ``ds4-bench merge``; return the exit code."""
    from .shares import merge as merge_shares

    return merge_shares(argv)


COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    "plot": draw, "model": model, "drafts": drafts, "merge": merge,
}  # fmt: skip


def body(argv: Sequence[str]) -> int:
    """Run the subcommand that ``argv`` names, or a sweep if it names none; return the exit code."""
    if argv and argv[0] in COMMANDS:
        return COMMANDS[argv[0]](argv[1:])
    args = parsed(build_parser(), argv)
    if args is None:
        return 0
    args.argv = list(argv)
    return bench(args)


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``ds4-bench`` with the arguments ``argv`` (None: those of the process); return the exit code."""
    return run(PROG, body, argv)


if __name__ == "__main__":
    sys.exit(main())
