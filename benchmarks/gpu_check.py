"""All GPU checks in one command: is it right, how fast is it, as fast as its memory allows?

    python -m benchmarks.gpu_check                    all parts, eight minutes at most: a table, and out/gpu_check.json
    python -m benchmarks.gpu_check --only models      one part
    python -m benchmarks.gpu_check --rehearse         without a GPU: compiled kernels on this processor, tiny sizes

Parts, in this order:

    products   launches and copies; GB/s of every format against a copy measured beside it; products of many inputs
    speed      decode and prefill on a slice of 4 layers, against the bound by bytes
    models     golden models if present, the random model, and a slice of Flash's dimensions: logits in every mode
    ops        the tests of the op table and of the products, on the device

Every part is a process of its own, as a GPU's context does not outlive a wrong access, and this one never touches a
GPU: a part that fails, crashes, hangs or is stopped by Ctrl-C loses only its remaining figures. The JSON is written
anew after every figure. Nothing is downloaded: models are generated, in the model cache. Exit code: 0 if all bars are
met, 1 if one is missed, a part failed or there is no device, 2 for wrong arguments, 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from ds4ref.files import atomic_write
from ds4ref.runs.provenance import stamp

from .harness import Budget, OutOfTime, Row, print_table

ROOT = Path(__file__).resolve().parents[1]
SECONDS = 470.0
"""Default time limit of all parts together: eight minutes, less the time to start and stop."""
ASKING = 60.0
"""Maximum seconds for finding out which GPU there is."""
DEVICE = "benchmarks.gpu_check:device"
PARTS = {
    "products": (0.25, "benchmarks.gpu_products:measure"),
    "speed": (0.2, "benchmarks.gpu_speed:measure"),
    "models": (0.25, "benchmarks.gpu_models:measure"),
    "ops": (0.3, "benchmarks.gpu_ops:measure"),
}
"""Name of each part -> its share of the time, and its function as MODULE:FUNCTION. Later parts may use the time that
earlier ones leave."""


@dataclass
class Check:
    """The argument of a part's function.

    tell       function that sends a message (a dictionary, such as a row of the table) to the main process
    rehearsal  whether this is a rehearsal without a GPU
    budget     the time that the part may take
    """

    tell: Callable[[dict[str, Any]], None]
    rehearsal: bool = False
    budget: Budget = field(default_factory=lambda: Budget(None))

    def add(
        self, item: str, value: float | None, unit: str = "", bar: float | None = None, better: str = "higher",
        note: str = "", timed: bool = False,
    ) -> None:  # fmt: skip
        """Add a row to the table (arguments as in ``harness.Row``); a value that is ``timed``, such as a speed, is left
        out in a rehearsal."""
        if timed and self.rehearsal:
            value, bar, note = None, None, "a rehearsal has no speed"
        value = None if value is None else float(value)
        self.tell({"row": asdict(Row(item, value, unit, bar, better, note=note))})

    def need(self, seconds: float) -> None:
        """Raise OutOfTime unless the part has ``seconds`` left."""
        self.budget.need(seconds)


def device(check: Check) -> None:
    """Report to the main process which GPU there is, or why none can be used; in a rehearsal, why kernels cannot be
    compiled, if so."""
    if check.rehearsal:
        from tests.kernels.cuda.lowering.hosted import missing

        refusal = missing()
        check.tell({"facts": {"refusal": refusal} if refusal else {"device": "none"}})
        return
    from ds4ref.kernels.cuda.driver import devices

    if refusal := devices.refusal():
        check.tell({"facts": {"refusal": refusal}})
        return
    first = devices.devices()[0]
    facts = {"device": first.name, "capability": list(first.capability), "memory_bytes": first.memory}
    with contextlib.suppress(OSError):
        facts["driver"] = Path("/proc/driver/nvidia/version").read_text().splitlines()[0].strip()
    check.tell({"facts": facts})


def perform(work: str, check: Check) -> None:
    """Run a part in this process, and report to the main process how it ended.

    work: the part's function, as MODULE:FUNCTION
    """
    try:
        module, _, name = work.partition(":")
        function = getattr(import_module(module), name)
        with contextlib.ExitStack() as stack:
            if check.rehearsal and work != DEVICE:
                from tests.kernels.cuda.lowering.hosted import hosted

                stack.enter_context(hosted())
            function(check)
        state = "done"
    except OutOfTime as late:
        state = f"cut short: {late}"
    except Exception as error:
        state = f"failed: {type(error).__name__}: {' '.join(str(error).split())}"
    check.tell({"ended": state})


def end_with_parent() -> None:
    """Wait until the parent process, which holds the other end of stdin, is gone; then kill this process and those that
    it started."""
    while os.read(0, 1 << 10):
        pass
    os.killpg(0, signal.SIGKILL)


@dataclass
class Record:
    """The results of one run, and the file that they are written to.

    out    the file
    facts  information about machine and GPU
    rows   (name of the part, row of the table)
    parts  name of a part -> how it ended, and the like
    """

    out: Path
    facts: dict[str, Any]
    rows: list[tuple[str, Row]] = field(default_factory=list)
    parts: dict[str, dict[str, Any]] = field(default_factory=dict)

    def take(self, part: str, line: str) -> None:
        """Process a line that the process of a part printed: add the message in it (a row, facts about the machine, how
        the part ended) to the results, or print any other line to stderr."""
        try:
            ((kind, value),) = json.loads(line).items()
        except (ValueError, AttributeError):
            print(line, end="", file=sys.stderr)
            return
        if kind == "row":
            self.rows.append((part, Row(**value)))
        elif kind == "facts":
            self.facts |= value
        else:
            self.parts[part]["state"] = value
        self.save()

    def save(self) -> None:
        """Write the results so far to the output file, as JSON."""
        rows = [{"part": part, **asdict(row), "met": row.met} for part, row in self.rows]
        with atomic_write(self.out) as file:
            file.write(json.dumps({**self.facts, "parts": self.parts, "rows": rows}, indent=1).encode() + b"\n")

    def good(self) -> bool:
        """Return whether no part failed and every value reached its bar."""
        well = all(part["state"].startswith(("done", "cut short")) for part in self.parts.values())
        return well and not any(row.met is False for _, row in self.rows)


def run_part(record: Record, name: str, work: str, seconds: float, rehearsal: bool) -> None:
    """Run a part in a separate process, for at most ``seconds``, and add its messages to the record; at the end, kill
    the process and all that it started.

    work: the part's function, as MODULE:FUNCTION
    """
    print(f"gpu_check: {name}, {seconds:.0f} s at most", file=sys.stderr, flush=True)
    record.parts[name] = {"state": "running"}
    record.save()
    command = [sys.executable, "-m", "benchmarks.gpu_check", "--part", work, "--seconds", str(0.95 * seconds)]
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
    start = time.monotonic()
    child = subprocess.Popen(
        [*command, *(["--rehearse"] if rehearsal else [])], env=os.environ | {"PYTHONPATH": path},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip

    def kill() -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)

    timer, part = threading.Timer(seconds, kill), record.parts[name]
    timer.start()
    try:
        assert child.stdout is not None
        for line in child.stdout:
            record.take(name, line)
            if part["state"] != "running":  # it has ended, but processes that it started may hold the pipe open
                break
        if part["state"] == "running" and time.monotonic() - start >= seconds:
            part["state"] = f"killed: not through after {seconds:.0f} s"
    except KeyboardInterrupt:
        part["state"] = "stopped"
        raise
    finally:
        timer.cancel()
        kill()
        child.communicate()  # closes the pipes
        code = child.returncode
        if part["state"] == "running":
            part["state"] = f"died: {signal.Signals(-code).name if code < 0 else f'exit code {code}'}"
        part["seconds"] = round(time.monotonic() - start, 1)
        record.save()


def run(record: Record, parts: Mapping[str, tuple[float, str]], seconds: float, rehearsal: bool) -> None:
    """Run the parts one after the other, within ``seconds`` in total."""
    end = time.monotonic() + seconds
    shares = sum(share for share, _ in parts.values())
    for name, (share, work) in parts.items():
        run_part(record, name, work, max(1.0, (end - time.monotonic()) * share / shares), rehearsal)
        shares -= share


def main(
    argv: Sequence[str] | None = None, parts: Mapping[str, tuple[float, str]] = PARTS, device: str = DEVICE
) -> int:
    """Run the check; return the exit code.

    parts, device: functions to run instead of the usual ones, for tests
    """
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu_check", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-o", "--output", metavar="FILE", default="out/gpu_check.json", help="figures (%(default)s)")
    parser.add_argument("--only", nargs="+", choices=list(parts), metavar="PART", help=", ".join(parts))
    parser.add_argument("--seconds", type=float, default=SECONDS, metavar="S", help="for everything (%(default)s)")
    parser.add_argument("--rehearse", action="store_true", help="without a GPU, tiny sizes, no speeds")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.part:
        threading.Thread(target=end_with_parent, daemon=True).start()
        perform(args.part, Check(lambda m: print(json.dumps(m), flush=True), args.rehearse, Budget(args.seconds)))
        return 0
    start, out = time.monotonic(), Path(args.output)
    out.parent.mkdir(parents=True, exist_ok=True)
    record = Record(out, {**stamp(), "rehearsal": args.rehearse})
    try:
        run_part(record, "device", device, ASKING, args.rehearse)
        if "device" not in record.facts:
            reason = record.facts.get("refusal") or f"the GPU did not answer: {record.parts['device']['state']}"
            print(f"gpu_check: {reason}", file=sys.stderr)
            return 1
        chosen = {name: part for name, part in parts.items() if name in (args.only or parts)}
        run(record, chosen, args.seconds - (time.monotonic() - start), args.rehearse)
        code = 0 if record.good() else 1
    except KeyboardInterrupt:
        code = 130
    print_table([row for _, row in record.rows], "GPU")
    for name, part in record.parts.items():
        if part["state"] != "done":
            print(f"{name}: {part['state']}")
    print(f"written: {out}")
    return code


if __name__ == "__main__":
    raise SystemExit(main())
