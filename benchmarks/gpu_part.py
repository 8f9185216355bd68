"""One part of ``gpu_check`` in a process of its own, which ``gpu_children`` starts and kills.

    python -m benchmarks.gpu_part MODULE:FUNCTION --rows FD --seconds S [--facts JSON] [--rehearse] [--share 1/2]

The function gets a ``Check`` and adds rows to it; each is written as a line into the pipe FD at once, so what was
measured before a crash has been told. If the parent dies, this process and all that it started do, too.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

from .report import Row
from .timing import Budget, OutOfTime


@dataclass
class Check:
    """What a part is given: what it may know, its time, and where its figures go.

    tell        writes a message (``gpu_children``)
    rehearsal   whether it runs without a GPU, so that timed figures mean nothing and are left out
    facts       about the device
    budget      the part's time
    """

    tell: Callable[[dict[str, Any]], None]
    rehearsal: bool = False
    facts: dict[str, Any] = field(default_factory=dict)
    budget: Budget = field(default_factory=lambda: Budget(None))

    def add(
        self, item: str, value: float | None, unit: str = "", bar: float | None = None, better: str = "higher",
        note: str = "", timed: bool = False,
    ) -> None:  # fmt: skip
        """Add a row to the table; ``timed``: whether the value depends on the clock."""
        if timed and self.rehearsal:
            value, bar, note = None, None, "a rehearsal has no speed"
        row = Row(item, None if value is None else float(value), bar, None, unit, better, n=1, note=note)
        self.tell({"row": {**{k: sayable(v) for k, v in asdict(row).items()}, "met": row.met}})

    def keep(self, entry: Any) -> None:
        """Add an entry to the part's details in the file."""
        self.tell({"detail": entry})

    def need(self, seconds: float) -> None:
        """Raise OutOfTime unless the part has ``seconds`` left."""
        self.budget.need(seconds)


def sayable(value: Any) -> Any:
    """Return ``value`` with NaN and infinities, which JSON lacks, replaced by their names."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def perform(work: Callable[[Check], None], check: Check) -> None:
    """Do the work of a part, and tell how it ended."""
    try:
        check.need(0)
        work(check)
        state = "done"
    except OutOfTime as late:
        state = f"cut short: {late}"
    except Exception as error:
        check.keep({"traceback": traceback.format_exc().splitlines()})
        state = f"failed: {type(error).__name__}: {' '.join(str(error).split())}"
    check.tell({"ended": state})


def device(check: Check) -> None:
    """Tell what GPU there is, or why none can be used ("refusal"); in a rehearsal, whether kernels can be compiled."""
    if check.rehearsal:
        from tests.kernels.cuda.lowering.hosted import missing

        refusal = missing()
        refusal = refusal and f"CUDA kernels cannot be compiled and run here: {refusal}"
        facts: dict[str, Any] = {"device": "none", "capability": [9, 0]}
    else:
        facts, refusal = asked()
    check.tell({"facts": {"device": None, "refusal": refusal} if refusal else facts})


def asked() -> tuple[dict[str, Any], str | None]:
    """Return facts about the GPU, and why it cannot be used, None if it can."""
    try:
        from ds4ref.kernels.cuda.driver import devices
    except (ImportError, OSError) as error:
        return {}, " ".join(str(error).split())
    if reason := devices.refusal():
        return {}, reason
    first = devices.devices()[0]
    facts = {"device": first.name, "capability": list(first.capability), "memory_bytes": first.memory}
    with contextlib.suppress(OSError):
        facts["driver"] = Path("/proc/driver/nvidia/version").read_text().splitlines()[0].strip()
    with contextlib.suppress(metadata.PackageNotFoundError):
        facts["numba_cuda"] = metadata.version("numba-cuda")
    return facts, None


def compiled_kernels() -> Any:
    """Return a context manager in which CUDA kernels run on this processor."""
    from tests.kernels.cuda.lowering.hosted import hosted

    return hosted()


def end_with_parent() -> None:
    """Kill this process's group once the parent, which holds the other end of stdin, is gone."""
    while os.read(0, 1 << 10):
        pass
    os.killpg(0, signal.SIGKILL)


def keep_to(share: str) -> None:
    """Restrict this process to a share of its cores: "1/2" to the first half of them."""
    place, count = map(int, share.split("/"))
    if not hasattr(os, "sched_setaffinity"):
        return
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) >= count > 1:
        os.sched_setaffinity(0, cores[(place - 1) * len(cores) // count : place * len(cores) // count])


def main(argv: Sequence[str] | None = None) -> int:
    """Do the part that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_part")
    parser.add_argument("work")
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--facts", type=json.loads, default={})
    parser.add_argument("--rehearse", action="store_true")
    parser.add_argument("--share", default="1/1")
    args = parser.parse_args(argv)
    threading.Thread(target=end_with_parent, daemon=True).start()
    keep_to(args.share)
    with open(args.rows, "w") as lines:

        def tell(message: dict[str, Any]) -> None:
            print(json.dumps(message, allow_nan=False), file=lines, flush=True)

        check = Check(tell, args.rehearse, args.facts, Budget(args.seconds))
        module, _, name = args.work.partition(":")

        def work(check: Check) -> None:  # the import, too, may fail
            function = getattr(import_module(module), name)
            with compiled_kernels() if args.rehearse and function is not device else contextlib.nullcontext():
                function(check)

        perform(work, check)
    return 0


if __name__ == "__main__":
    # Run as the module that parts import: its functions and classes exist once.
    sys.exit(import_module("benchmarks.gpu_part").main())
