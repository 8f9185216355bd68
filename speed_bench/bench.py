"""One run of ``ds4-bench``: engines opened, rounds measured, results written wherever they belong."""

from __future__ import annotations

import json
import sys
import time
import uuid
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from ds4ref.backends import BACKENDS
from ds4ref.cli.common import Interrupt, Progress, atomic_output, say
from ds4ref.cli.model import choose_model, open_engine, threads
from ds4ref.cli.options import choice, integer
from ds4ref.errors import Cancelled, DataError, UsageError
from ds4ref.numerics import MODES

from .formats import render
from .results import HEADER, CsvWriter, format_row
from .rounds import Arm, rounds
from .samples import Sample, sample, summaries, summary

if TYPE_CHECKING:
    from ds4ref.costs import Costs, Peaks
    from ds4ref.engine import Engine
    from reports.store import Store

PROG = "ds4-bench"
ARM_OPTIONS: dict[str, Callable[[str], Any]] = {
    "model": str,
    "backend": choice(*BACKENDS),
    "numerics": choice(*MODES),
    "threads": integer(),
}


def parse_arm(text: str) -> dict[str, Any]:
    """``backend=cpu,threads=1`` as options; UsageError says which part is wrong."""
    import argparse

    found: dict[str, Any] = {}
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if name not in ARM_OPTIONS or not equals or name in found:
            raise UsageError(f"invalid --arm {text}: NAME=VALUE[,...] with {', '.join(ARM_OPTIONS)}")
        try:
            found[name] = ARM_OPTIONS[name](value)
        except argparse.ArgumentTypeError as error:
            raise UsageError(f"invalid --arm {text}: {name}: {error}") from None
    return found


class Run:
    """Everything of one run; ``execute`` does it."""

    def __init__(self, args: Namespace, tokens: list[int], eos: int, depths: list[int], prompt: dict[str, Any]):
        self.args, self.tokens, self.eos, self.depths, self.prompt = args, tokens, eos, depths, prompt
        self.arms: list[Arm] = []
        self.costs: list[Costs] = []
        self.samples: list[list[Sample]] = []
        self.peaks: list[Peaks | None] = []
        self.facts: list[dict[str, Any]] = []
        self.numbers: list[int | None] = []

    def execute(self) -> None:
        """Measure, then write; what was measured before a failure or Ctrl-C is written, too."""
        args = self.args
        with ExitStack() as stack:
            store = None if args.no_store else self._store(stack)
            for options, name in zip(args.arms or [{}], args.arm or [""], strict=True):
                self._open(stack, store, options, name)
            say(PROG, buffers(self.arms[0].engine, args.ctx_alloc))
            status = "failed"
            try:
                with csv_stream(self._csv(0) if args.csv else None, args.output is None) as stream:
                    self._measure(stream)
                status = "complete"
            except Cancelled:
                status = "stopped"
                done, wanted = sum(map(len, self.samples)), len(self.depths) * args.reps * len(self.arms)
                say(PROG, f"stopped; {done} of {wanted} rows were measured and kept")
                raise
            finally:
                self._keep(store, status)
        self._conclude()

    def _store(self, stack: ExitStack) -> Store:
        from reports.store import Store

        return stack.enter_context(Store.open(self.args.store))

    def _open(self, stack: ExitStack, store: Store | None, options: dict[str, Any], name: str) -> None:
        from ds4ref.costs import Costs

        from .facts import collect
        from .peaks import as_peaks, machine_peaks

        args = Namespace(**{**vars(self.args), **options})
        if "model" in options:
            args.model = str(choose_model(PROG, options["model"]).path)
        engine = stack.enter_context(open_engine(PROG, args))
        several = len(self.args.arms or ()) > 1
        self.arms.append(Arm(name, engine, threads(args.threads) or engine.threads if several else None))
        self.costs.append(Costs.of_engine(engine))
        self.samples.append([])
        with Progress("hashing the model, once") as progress:
            facts = collect(engine, [PROG, *self.args.argv], self.prompt["sha256"], store, progress)
        if not self.args.no_roofline:
            facts["peaks"] = machine_peaks(store, facts["threads"])
        self.peaks.append(as_peaks(facts["peaks"]) if "peaks" in facts else None)
        facts["walk"] = {
            "depths": [self.depths[0], self.depths[-1], len(self.depths)], "gen_tokens": args.gen_tokens,
            "reps": args.reps, "delay": args.delay, "warmup": not args.no_warmup,
        }  # fmt: skip
        if "seed" in self.prompt:
            facts["seed"] = self.prompt["seed"]
        self.facts.append(facts)

    def _measure(self, stream: IO[str] | None) -> None:
        """Rows as they come. One repetition streams into the CSV; several end up there at the end of each round."""
        from .sweep import warm_up

        args = self.args
        live = CsvWriter(stream) if stream is not None and args.reps == 1 else None
        with Interrupt() as interrupt, Progress("measuring") as progress:
            if not args.no_warmup:
                for arm in self.arms:
                    arm.take_turn()
                    warm_up(arm.engine.session(args.ctx_alloc), self.tokens, self.eos)
            start = time.perf_counter()
            measured = rounds(
                self.arms, self.tokens, self.depths, args.gen_tokens, self.eos, ctx=args.ctx_alloc,
                reps=args.reps, delay=args.delay, progress=progress, cancel=interrupt,
            )  # fmt: skip
            for index, row in measured:
                entry = sample(row, self.costs[index], self.peaks[index], start)
                self.samples[index].append(entry)
                if live is not None and index == 0:
                    live.write(summary([entry]))
                if args.csv and args.reps > 1 and row.ctx_tokens == self.depths[-1]:
                    self._write_csv(index)

    # --- results

    def _csv(self, arm: int) -> str:
        path = Path(self.args.csv)
        return str(path) if len(self.arms) < 2 else str(path.with_name(f"{path.stem}-{'ab'[arm]}{path.suffix}"))

    def _write_csv(self, arm: int) -> None:
        with atomic_output(self._csv(arm)) as out:
            lines = [HEADER, *map(format_row, summaries(self.samples[arm]))]
            out.write(("\n".join(lines) + "\n").encode())

    def _keep(self, store: Store | None, status: str) -> None:
        """Runs into the store, one an arm, tied together by their group."""
        group = uuid.uuid4().hex[:12]
        for index, arm in enumerate(self.arms):
            if len(self.arms) > 1:
                self.facts[index]["arms"] = {"group": group, "arm": "AB"[index], "options": arm.name}
            number = None
            if store is not None and self.samples[index]:
                number = store.add(
                    "bench", self.facts[index], self.samples[index], label=self._label(index), status=status
                )
            self.numbers.append(number)

    def _label(self, index: int) -> str:
        label = self.args.label or (Path(self.args.csv).stem if self.args.csv else "")
        name = self.arms[index].name
        return f"{label}: {name}" if label and name else label or name

    def _conclude(self) -> None:
        args, facts = self.args, self.facts[0]
        if args.output is not None:
            for samples, about in zip(self.samples, self.facts, strict=True):
                sys.stdout.write(render(args.output, samples, about))
        elif args.csv is None and args.reps > 1:
            sys.stdout.write(render("csv", self.samples[0], facts))
        if args.csv is None:
            for number in self.numbers:
                if number is not None:
                    say(PROG, f"kept as run {number}; ds4-report show {number}")
            return
        files = self._files()
        from .table import print_table

        for index, about in enumerate(self.facts):
            print_table(summaries(self.samples[index]), about, self._label(index))
        for kind, names in files.items():
            print(f"{kind:6} {names}")
        runs = [number for number in self.numbers if number is not None]
        if runs:
            print(f"{'runs':6} {' '.join(map(str, runs))}")
        rows = sum(len(summaries(samples)) for samples in self.samples)
        print(json.dumps({"rows": rows, "files": files, "runs": runs, **facts}))

    def _files(self) -> dict[str, str]:
        """The files beside the CSV, and the plot."""
        args = self.args
        csvs = [self._csv(index) for index in range(len(self.arms))]
        files = {"csv": ", ".join(csvs)}
        described = []
        for index, name in enumerate(csvs):
            path = Path(name)
            if path.exists() and not path.is_file():
                continue
            if args.reps > 1 or len(csvs) > 1:
                self._write_csv(index)
            described.append(str(path.with_suffix(".json")))
            # Times of single steps stay in the store: here they would outweigh everything else.
            samples = [{k: v for k, v in entry.items() if k != "steps_s"} for entry in self.samples[index]]
            content = {"columns": HEADER.split(","), **self.facts[index], "samples": samples}
            with atomic_output(described[-1]) as out:
                out.write(json.dumps(content, indent=1).encode() + b"\n")
        if described:
            files["facts"] = ", ".join(described)
        if args.plot and len(self.depths) < 2:
            say(PROG, "one row makes no curve: nothing plotted")
        elif args.plot:
            from .plot import plot

            files["plot"] = ", ".join(str(path) for path in plot(csvs, args.plot))
        return files


def buffers(engine: Engine, ctx: int) -> str:
    """ds4's line about the memory of a context."""
    shape = engine.shape
    return (
        f"context buffers {shape.kv_bytes(ctx) / 2**20:.2f} MiB (ctx={ctx}, backend={engine.backend}, "
        f"raw_kv_rows={min(shape.window, ctx)}, compressed_kv_rows={ctx // 4 + 2})"
    )


@contextmanager
def csv_stream(path: str | None, stdout: bool) -> Iterator[IO[str] | None]:
    """Where the CSV goes: a file, standard output, or nowhere."""
    if path is None:
        yield sys.stdout if stdout else None
        return
    try:
        file = open(path, "w", newline="", encoding="utf-8")
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror}") from None
    with file:
        yield file


def check_arms(given: Sequence[str]) -> list[dict[str, Any]]:
    """The options of each arm; two or none."""
    if given and len(given) != 2:
        raise UsageError(f"--arm must be given twice, for A and for B, not {len(given)} time(s)")
    return [parse_arm(text) for text in given]
