"""One run of ``ds4-bench`` on targets that are not in this process: endpoints and ds4-bench binaries.

Several targets, and several numbers of streams on an endpoint, are lanes. Whole walks take turns, A B, B A, ..., since
what a binary does between its rows is out of reach.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ds4ref import __version__
from ds4ref.cli.common import Interrupt, Progress, say
from ds4ref.errors import Cancelled, UsageError
from ds4ref.runs.provenance import stamp
from ds4ref.targets.openai import HttpTarget

from . import binary, endpoint
from .bench import open_store, walk_facts
from .binary import Binary
from .endpoint import Endpoint
from .output import PROG, Output, csv_stream, lanes_of
from .results import CsvWriter
from .rounds import rest, turn_order
from .samples import Sample, summary

Walk = Callable[..., Iterator[Sample]]
LOCAL_ONLY = ("model", "backend", "numerics", "threads", "warm_weights", "strict")


def is_remote(spec: str) -> bool:
    """Whether a target is an endpoint or a binary; UsageError for one that is nothing at all."""
    if spec == "local":
        return False
    kind = spec.partition(":")[0]
    if kind in ("http", "https", "command"):
        return True
    raise UsageError(f"unknown target {spec!r}: local, http(s)://HOST/v1 or command:BINARY ARGS (a model file: -m)")


class RemoteRun:
    """Everything of one run; ``execute`` does it. ``text`` is what is walked."""

    def __init__(self, args: Namespace, text: str, depths: list[int], prompt: dict[str, Any]):
        self.args, self.text, self.depths, self.prompt = args, text, depths, prompt
        names, self.plan = [], []
        for number, spec in enumerate(args.target):
            prefix = f"target {chr(ord('A') + number)}" if len(args.target) > 1 else ""
            levels = args.concurrency if spec.startswith("http") else [1]
            for streams in levels:
                level = f"{streams} stream{'s' if streams > 1 else ''}" if len(args.concurrency) > 1 else ""
                names.append(", ".join(filter(None, (prefix, level))))
                self.plan.append((spec, streams))
        self.output = Output(args, lanes_of(names))
        self.walks: list[Walk] = []
        self.targets: list[HttpTarget] = []

    def execute(self) -> None:
        """Measure, then write; what was measured before a failure or Ctrl-C is written, too."""
        args, lanes = self.args, self.output.lanes
        with ExitStack() as stack:
            store = None if args.no_store else open_store(stack, args.store)
            opened: dict[str, tuple[dict[str, Any], Callable[[int], Walk]]] = {}
            for (spec, streams), lane in zip(self.plan, lanes, strict=True):
                if spec not in opened:
                    opened[spec] = (self._endpoint if spec.startswith("http") else self._binary)(stack, store, spec)
                about, walk_for = opened[spec]
                walk = {**walk_facts(args, self.depths), "streams": streams}
                seed = {"seed": self.prompt["seed"]} if "seed" in self.prompt else {}
                lane.facts = {**self._facts(), **about, **seed, "walk": walk}
                self.walks.append(walk_for(streams))
            status = "failed"
            try:
                with csv_stream(self.output.csv(lanes[0]) if args.csv else None, args.output is None) as stream:
                    self._measure(CsvWriter(stream) if stream is not None and args.reps == 1 else None)
                status = "complete"
                for note in itertools.chain.from_iterable(target.notes() for target in self.targets):
                    say(PROG, note)
            except Cancelled:
                status = "stopped"
                say(PROG, f"stopped; {sum(len(lane.samples) for lane in lanes)} rows were measured and kept")
                raise
            finally:
                self.output.keep(store, status)
        self.output.conclude()

    def _measure(self, live: CsvWriter | None) -> None:
        args, start = self.args, time.perf_counter()
        with Interrupt() as interrupt, Progress("measuring") as progress:
            for rep in range(args.reps):
                if rep and args.delay:
                    rest(args.delay, interrupt)
                for index in turn_order(len(self.walks), rep):
                    lane = self.output.lanes[index]
                    for entry in self.walks[index](rep=rep, start=start, progress=progress, cancel=interrupt):
                        lane.samples.append(entry)
                        if live is not None and index == 0:
                            live.write(summary([entry]))
                    if args.csv and args.reps > 1:
                        self.output.write_csv(lane)

    def _endpoint(self, stack: ExitStack, store: Any, spec: str) -> tuple[dict[str, Any], Callable[[int], Walk]]:
        """Facts, and the walk for a number of streams."""
        args = self.args
        # A retry inside a window would be measured as the server's time.
        target = HttpTarget(spec, args.model_name, dialect=args.dialect, key_env=args.key_env, attempts=1,
                            timeout=args.timeout, extra={"ignore_eos": True} if args.ignore_eos else None)  # fmt: skip
        stack.callback(target.close)
        self.targets.append(target)
        chat = args.api == "chat" or args.chat_prompt_file is not None
        made = Endpoint(target, self.text, chat=chat, system=args.system if chat else "")
        made.calibrate()
        about = {"target": target.identity(), "backend": "http", "model": {"name": target.model, "file": spec},
                 "prompt_style": "chat" if chat else "completions"}  # fmt: skip
        return about, lambda streams: functools.partial(
            endpoint.walk, made, self.depths, args.gen_tokens, streams
        )  # fmt: skip

    def _binary(self, stack: ExitStack, store: Any, spec: str) -> tuple[dict[str, Any], Callable[[int], Walk]]:
        args, made = self.args, Binary(spec.partition(":")[2])
        model = made.model
        facts: dict[str, Any] = {"name": None, "file": model.name if model else made.name}
        if model is not None and model.is_file() and store is not None:
            with Progress("hashing the model, once") as progress:
                facts["sha256"] = store.sha256(model, progress)
        given = args.prompt_file if args.prompt_file is not None else args.chat_prompt_file
        if given in (None, "-"):
            import tempfile

            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="ds4-bench-"))
            given = str(Path(folder, "prompt.txt"))
            Path(given).write_bytes(self.text.encode("utf-8", "surrogateescape"))
        options = binary.flags(args, Path(given))
        about = {"target": made.identity(), "backend": "binary", "model": facts}
        return about, lambda streams: functools.partial(binary.walk, made, options, len(self.depths))

    def _facts(self) -> dict[str, Any]:
        return {
            "engine": f"measured by ds4ref {__version__}",
            "numerics": None,
            "threads": None,
            "prompt_sha256": self.prompt["sha256"],
            **stamp([PROG, *self.args.argv]),
        }


def check_remote(args: Namespace) -> None:
    """UsageError for what only the local engine can do."""
    if args.arm or args.probes:
        raise UsageError("--arm and --test are for the local engine; give --target twice for two arms")
    for name in LOCAL_ONLY:
        if getattr(args, name):
            raise UsageError(f"--{name.replace('_', '-')} is for the local engine, not for --target")
    if args.step_listed and any(spec.startswith("command") for spec in args.target):
        raise UsageError("a binary takes --ctx-start, --ctx-max and steps, no --frontiers")


def remote_text(text: str | None, tokens: int) -> tuple[str, dict[str, Any]]:
    """What is walked, and its facts: a file's text, or prose long enough for so many tokens."""
    from ds4ref.nano.prose import prose

    from .prompt import PROSE_SEED

    made = prose(8 * tokens + 4000, PROSE_SEED) if text is None else text
    digest = hashlib.sha256(made.encode("utf-8", "surrogateescape")).hexdigest()
    return made, {"sha256": digest} | ({"seed": PROSE_SEED} if text is None else {})
