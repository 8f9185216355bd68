"""One run of ``ds4-bench``: engines opened, rounds measured, results written wherever they belong."""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import IO, TYPE_CHECKING, Any

from ds4ref.backends import BACKENDS
from ds4ref.cli.common import Interrupt, Progress, say
from ds4ref.cli.model import choose_model, open_engine, threads
from ds4ref.cli.options import choice, integer
from ds4ref.errors import Cancelled, UsageError
from ds4ref.numerics import MODES

from .output import PROG, Lane, Output, csv_stream, lanes_of
from .results import CsvWriter
from .rounds import Arm, rounds
from .samples import sample, summary

if TYPE_CHECKING:
    from ds4ref.archs.deepseek4.costs import Costs
    from ds4ref.costs import Peaks
    from ds4ref.engine import Engine
    from ds4ref.runs.store import Store

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
    """Everything of one run on the local engine; ``execute`` does it."""

    def __init__(self, args: Namespace, tokens: list[int], eos: int, depths: list[int], prompt: dict[str, Any]):
        self.args, self.tokens, self.eos, self.depths, self.prompt = args, tokens, eos, depths, prompt
        self.output = Output(args, lanes_of(args.arm or [""], "ab" if args.in_turn else ()))
        self.arms: list[Arm] = []
        self.costs: list[Costs] = []
        self.peaks: list[Peaks | None] = []

    def execute(self) -> None:
        """Measure, then write; what was measured before a failure or Ctrl-C is written, too."""
        args, lanes = self.args, self.output.lanes
        with ExitStack() as stack:
            store = None if args.no_store else open_store(stack, args.store)
            for options, lane in zip(args.arms or [{}], lanes, strict=True):
                self._open(stack, store, options, lane)
            say(PROG, buffers(self.arms[0].engine, args.ctx_alloc))
            status = "failed"
            try:
                with csv_stream(self.output.csv(lanes[0]) if args.csv else None, args.output is None) as stream:
                    self._measure(stream)
                status = "complete"
            except Cancelled:
                status = "stopped"
                rows = len(args.probes or self.depths)
                done, wanted = sum(len(lane.samples) for lane in lanes), rows * args.reps * len(lanes)
                say(PROG, f"stopped; {done} of {wanted} rows were measured and kept")
                raise
            finally:
                self.output.keep(store, status)
        self.output.conclude()

    def _open(self, stack: ExitStack, store: Store | None, options: dict[str, Any], lane: Lane) -> None:
        from ds4ref.archs.deepseek4.costs import Costs
        from ds4ref.runs.provenance import engine_facts, stamp

        from .peaks import as_peaks, machine_peaks, remark

        args = Namespace(**{**vars(self.args), **options})
        if "model" in options:
            args.model = str(choose_model(PROG, options["model"]).path)
        engine = stack.enter_context(open_engine(PROG, args))
        several = len(self.output.lanes) > 1
        self.arms.append(Arm(lane.name, engine, threads(args.threads) or engine.threads if several else None))
        self.costs.append(Costs.of_engine(engine))
        with Progress("hashing the model, once") as progress:
            facts = engine_facts(engine, store, progress)
        facts |= {"prompt_sha256": self.prompt["sha256"], **stamp([PROG, *self.args.argv])}
        if not self.args.no_roofline:
            facts["peaks"] = machine_peaks(store, facts["threads"])
        self.peaks.append(as_peaks(facts["peaks"], self.costs[-1].weight_bytes()) if "peaks" in facts else None)
        if "peaks" in facts and len(self.peaks) == 1 and (note := remark(facts["peaks"], self.peaks[0] is not None)):
            say(PROG, note)
        facts["walk"] = walk_facts(args, self.depths)
        if "seed" in self.prompt:
            facts["seed"] = self.prompt["seed"]
        lane.facts = facts

    def _measure(self, stream: IO[str] | None) -> None:
        """Rows as they come. One repetition streams into the CSV; several end up there at the end of each round."""
        from .sweep import warm_up

        args, lanes = self.args, self.output.lanes
        live = CsvWriter(stream) if stream is not None and args.reps == 1 else None
        last = len(args.probes or self.depths)
        with Interrupt() as interrupt, Progress("measuring") as progress:
            if not args.no_warmup:
                for arm in self.arms:
                    arm.take_turn()
                    warm_up(arm.engine.session(args.ctx_alloc), self.tokens, self.eos)
            start = time.perf_counter()
            measured = rounds(
                self.arms, self.tokens, self.depths, args.gen_tokens, self.eos, ctx=args.ctx_alloc, reps=args.reps,
                delay=args.delay, probes=args.probes, progress=progress, cancel=interrupt,
            )  # fmt: skip
            for index, row in measured:
                entry, lane = sample(row, self.costs[index], self.peaks[index], start), lanes[index]
                lane.samples.append(entry)
                if live is not None and index == 0:
                    live.write(summary([entry]))
                if args.csv and args.reps > 1 and len(lane.samples) % last == 0:
                    self.output.write_csv(lane)


def walk_facts(args: Namespace, depths: Sequence[int]) -> dict[str, Any]:
    """What was asked for, for the facts of a run."""
    facts: dict[str, Any] = {"reps": args.reps, "delay": args.delay, "warmup": not args.no_warmup}
    if args.probes:
        return {"tests": [probe.name for probe in args.probes], **facts}
    return {"depths": [depths[0], depths[-1], len(depths)], "gen_tokens": args.gen_tokens, **facts}


def open_store(stack: ExitStack, path: str | None) -> Store:
    """The run store, closed with ``stack``."""
    from ds4ref.runs.store import Store

    return stack.enter_context(Store.open(path))


def buffers(engine: Engine, ctx: int) -> str:
    """ds4's line about the memory of a context."""
    from ds4ref.costs import prefill_chunk

    shape = engine.shape
    return (
        f"context buffers {shape.kv_bytes(ctx) / 2**20:.2f} MiB (ctx={ctx}, backend={engine.backend}, "
        f"prefill_chunk={min(prefill_chunk(), ctx)}, raw_kv_rows={min(shape.window, ctx)}, "
        f"compressed_kv_rows={ctx // 4 + 2})"
    )


def check_arms(given: Sequence[str]) -> list[dict[str, Any]]:
    """The options of each arm; two or none."""
    if given and len(given) != 2:
        raise UsageError(f"--arm must be given twice, for A and for B, not {len(given)} time(s)")
    return [parse_arm(text) for text in given]
