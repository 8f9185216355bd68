"""All GPU checks in one command: is it right, how fast is it, as fast as predicted?

    python -m benchmarks.gpu_check                    all parts, eight minutes at most: a table, and out/gpu_check.json
    python -m benchmarks.gpu_check --only models      one part
    python -m benchmarks.gpu_check --rehearse         without a GPU: compiled kernels on this processor, tiny sizes

Parts, in this order; those that are timed run alone, the last two but one beside one another:

    basics     one launch, chains and lanes of launches in a graph, copies, one pack: 20 seconds
    kernels    every launch of a decoded token by itself, against what its machine code predicts
    products   GB/s of every format against a measured copy, and against what its machine code predicts; torch beside it
    speed      decode and prefill on slices of 4 and 6 layers, extrapolated to 43 layers, against the bound
    models     golden models if present, the random model, and a slice of Flash's dimensions: logits in every mode
    ops        the tests of the op table and of the products, on the device
    races      compute-sanitizer's racecheck on one token, where compute-sanitizer is

Every part is a process of its own (``gpu_children``), and this one never touches a GPU: a part that fails, crashes,
hangs or is stopped by Ctrl-C loses only its remaining figures. The JSON is written before the first part and anew after
every figure. Nothing is downloaded: models are generated, in the model cache. Exit code: 0 if all bars are met, 1 if
one is missed, a part failed or there is no device, 2 for wrong arguments, 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ds4ref.files import atomic_write
from ds4ref.runs.provenance import stamp

from .gpu_children import Child, Message, as_row, follow
from .report import print_table

SECONDS = 470.0
"""Default time limit of everything: eight minutes, less start and stop."""
ASKING = 60.0
"""Seconds at most for the question which GPU there is."""
LEAST = 1.0
"""Seconds under which no part is started."""
DEVICE = "benchmarks.gpu_part:device"
"""The part that tells which GPU there is."""


STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that end the run: parts are not the terminal's, and would go on."""


class Stage(NamedTuple):
    """Parts that run at the same time (each with its share of the cores), as MODULE:FUNCTION by name, and their share
    of the time; what one stage leaves is the later ones'."""

    share: float
    parts: Mapping[str, str]


STAGES = (
    Stage(0.06, {"basics": "benchmarks.gpu_basics:measure"}),
    Stage(0.07, {"kernels": "benchmarks.gpu_kernels:measure"}),
    Stage(0.18, {"products": "benchmarks.gpu_products:measure"}),
    Stage(0.19, {"speed": "benchmarks.gpu_speed:measure"}),
    Stage(0.38, {"models": "benchmarks.gpu_models:measure", "ops": "benchmarks.gpu_ops:measure"}),
    Stage(0.12, {"races": "benchmarks.gpu_races:measure"}),
)


def names(stages: Sequence[Stage]) -> list[str]:
    """Return the names of all parts in their order."""
    return [name for stage in stages for name in stage.parts]


@dataclass
class Record:
    """The results of one run, and the file they are saved to.

    facts     machine, versions, device
    rows      rows of the table, each with its part
    parts     how each part ended
    details   further data of each part
    """

    out: Path
    facts: dict[str, Any] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    parts: dict[str, dict[str, Any]] = field(default_factory=dict)
    details: dict[str, list[Any]] = field(default_factory=dict)

    def take(self, child: Child, message: Message) -> None:
        """Add what a part said."""
        if "row" in message:
            self.rows.append({"part": child.name, **message["row"]})
        elif "detail" in message:
            self.details.setdefault(child.name, []).append(message["detail"])
        elif "facts" in message:
            self.facts |= message["facts"]
        else:
            self.parts[child.name] = {"state": message["ended"], "seconds": round(child.spent, 1)}
        self.save()

    def save(self) -> None:
        """Write the results so far to the output file."""
        document = {**self.facts, "parts": self.parts, "rows": self.rows, "details": self.details}
        with atomic_write(self.out) as file:
            file.write(json.dumps(document, indent=1).encode() + b"\n")

    def stop(self) -> None:
        """Say of the parts that are running that they were stopped."""
        for part in self.parts.values():
            if part["state"] == "running":
                part["state"] = "stopped"
        self.save()

    def good(self) -> bool:
        """Return whether no part failed and no bar was missed."""
        well = all(part["state"].startswith(("done", "cut short", "not asked for")) for part in self.parts.values())
        return well and not any(row["met"] is False for row in self.rows)


def run(record: Record, stages: Sequence[Stage], chosen: Collection[str], seconds: float, rehearsal: bool) -> None:
    """Run the chosen parts within ``seconds``."""
    start = time.monotonic()
    for name in names(stages):
        record.parts[name] = {"state": "not started" if name in chosen else "not asked for"}
    asked = [Stage(stage.share, {k: v for k, v in stage.parts.items() if k in chosen}) for stage in stages]
    asked = [stage for stage in asked if stage.parts]
    shares = sum(stage.share for stage in asked)
    for stage in asked:
        left = (seconds - (time.monotonic() - start)) * stage.share / shares
        shares -= stage.share
        say(f"{' and '.join(stage.parts)}, {max(0, left):.0f} s at most")
        together(record, stage.parts, left, rehearsal)


def together(record: Record, parts: Mapping[str, str], seconds: float, rehearsal: bool) -> None:
    """Run parts at the same time, for ``seconds`` at most, each on its share of the cores."""
    if seconds < LEAST:
        record.parts |= {name: {"state": "cut short: no time was left", "seconds": 0.0} for name in parts}
        record.save()
        return
    record.parts |= {name: {"state": "running"} for name in parts}
    record.save()
    known = {key: record.facts[key] for key in ("device", "capability") if key in record.facts}
    options = ["--facts", json.dumps(known), *(["--rehearse"] if rehearsal else [])]
    children = [
        Child(name, work, seconds, [*options, "--share", f"{place}/{len(parts)}"])
        for place, (name, work) in enumerate(parts.items(), 1)
    ]
    follow(children, record.take)


def say(text: str) -> None:
    """Print progress on stderr."""
    print(f"gpu_check: {text}", file=sys.stderr, flush=True)


def printed(record: Record) -> None:
    """Print the table, and how each part ended."""
    order = list(record.parts)
    rows = sorted(record.rows, key=lambda row: order.index(row["part"]))
    try:
        print_table([as_row({k: v for k, v in row.items() if k != "part"}) for row in rows], title="GPU")
    except ImportError:  # a rented machine may lack rich
        for row in rows:
            print(*(row[key] for key in ("part", "item", "value", "unit", "bar", "note")), sep="\t")
    for name, part in record.parts.items():
        if part["state"] != "done":
            print(f"{name}: {part['state']}")


def stop(*signal_and_frame: Any) -> None:
    """End as Ctrl-C does, but once: a second one would come while parts are being killed."""
    for number in STOPPING:
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def main(argv: Sequence[str] | None = None, stages: Sequence[Stage] = STAGES, device: str = DEVICE) -> int:
    """Run the check; return the exit code. ``stages`` and ``device`` are other ones in tests."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu_check", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    order = names(stages)
    parser.add_argument("-o", "--output", metavar="FILE", default="out/gpu_check.json", help="figures (%(default)s)")
    parser.add_argument("--only", nargs="+", choices=order, metavar="PART", help=", ".join(order))
    parser.add_argument("--seconds", type=float, default=SECONDS, metavar="S", help="for everything (%(default)s)")
    parser.add_argument("--rehearse", action="store_true", help="without a GPU, tiny sizes, no speeds")
    args = parser.parse_args(argv)
    start, out = time.monotonic(), Path(args.output)
    for number in STOPPING:
        signal.signal(number, stop)
    out.parent.mkdir(parents=True, exist_ok=True)
    record = Record(out, {**stamp(), "rehearsal": args.rehearse})
    try:
        together(record, {"device": device}, min(ASKING, args.seconds), args.rehearse)
        if not record.facts.get("device"):
            say(record.facts.get("refusal") or f"the GPU did not answer: {record.parts['device']['state']}")
            return 1
        run(record, stages, args.only or order, args.seconds - (time.monotonic() - start), args.rehearse)
        code = 0 if record.good() else 1
    except KeyboardInterrupt:
        record.stop()
        code = 130
    printed(record)
    print(f"written: {out}")
    return code


if __name__ == "__main__":
    raise SystemExit(main())
