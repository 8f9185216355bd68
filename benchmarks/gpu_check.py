"""All GPU checks in one command: is it right, how fast is it, as fast as predicted?

    python -m benchmarks.gpu_check                    all parts, eight minutes at most: a table, and out/gpu_check.json
    python -m benchmarks.gpu_check --only models      one part
    python -m benchmarks.gpu_check --rehearse         without a GPU: compiled kernels on this processor, tiny sizes

Parts, each with its share of the time (``gpu_models``, ``gpu_products``, ``gpu_speed``):

    models     golden models if present, the random model, and a slice of Flash's dimensions: logits in every mode
    products   GB/s of every format against a measured copy, and against what its machine code predicts; torch beside it
    speed      decode and prefill on slices of 4 and 6 layers, extrapolated to 43 layers, against the bound
    ops        the tests of the op table and of the products, on the device

Nothing is downloaded: models are generated, in the model cache. The JSON is rewritten after every figure, so a part
that fails, times out or is stopped by Ctrl-C loses only its remaining figures. Exit code: 0 if all bars are met, 1 if
one is missed, a part failed or there is no device, 2 for wrong arguments, 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ds4ref.files import atomic_write
from ds4ref.runs.provenance import stamp

from . import gpu_models, gpu_products, gpu_speed
from .report import Row, print_table
from .timing import Budget, OutOfTime

ROOT = Path(__file__).resolve().parents[1]
SECONDS = 470.0
"""Default time limit of all parts: eight minutes, less start and stop."""


@dataclass
class Check:
    """The results of one run, and the file they are saved to.

    rehearsal   whether it runs without a GPU, so that timed figures mean nothing and are left out
    facts       machine and versions
    rows        rows of the table as (part, row)
    parts       how each part ended
    details     further data of each part, for the JSON
    part        the running part
    budget      its time budget
    """

    out: Path | None
    rehearsal: bool
    facts: dict[str, Any] = field(default_factory=dict)
    rows: list[tuple[str, Row]] = field(default_factory=list)
    parts: dict[str, dict[str, Any]] = field(default_factory=dict)
    details: dict[str, list[Any]] = field(default_factory=dict)
    part: str = ""
    budget: Budget = field(default_factory=lambda: Budget(None))

    def add(
        self, item: str, value: float | None, unit: str = "", bar: float | None = None, better: str = "higher",
        note: str = "", timed: bool = False,
    ) -> None:  # fmt: skip
        """Add a row to the table; ``timed``: whether the value depends on the clock."""
        if timed and self.rehearsal:
            value, bar, note = None, None, "a rehearsal has no speed"
        number = None if value is None else float(value)
        self.rows.append((self.part, Row(item, number, bar, None, unit, better, n=1, note=note)))
        self.save()

    def keep(self, entry: Any) -> None:
        """Add an entry to the running part's details in the JSON."""
        self.details.setdefault(self.part, []).append(entry)

    def need(self, seconds: float) -> None:
        """Raise OutOfTime unless the running part has ``seconds`` left."""
        self.budget.need(seconds)

    def document(self) -> dict[str, Any]:
        """Return the results as JSON values."""
        rows = [{"part": part, **{k: sayable(v) for k, v in asdict(row).items()}, "met": row.met}
                for part, row in self.rows]  # fmt: skip
        return {**self.facts, "rehearsal": self.rehearsal, "parts": self.parts, "rows": rows, "details": self.details}

    def save(self) -> None:
        """Write the results so far to the output file."""
        if self.out is not None:
            text = json.dumps(self.document(), indent=1, allow_nan=False)
            with atomic_write(self.out) as file:
                file.write(text.encode() + b"\n")


def sayable(value: Any) -> Any:
    """Return ``value`` with NaN and infinities, which JSON lacks, replaced by their names."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def ops(check: Check) -> None:
    """Run the tests that compare every op and product with the reference, in a separate process."""
    files = [
        f"tests/kernels/{name}.py" for name in ("test_ops", "test_top", "cuda/test_products", "cuda/test_recording")
    ]
    without = ("-p", "no:cacheprovider", "-p", "no:benchmark")  # beside xdist the latter's warning is an error
    command = [sys.executable, "-m", "pytest", "-q", "-m", "cuda", *without, *files]
    if check.rehearsal:
        command += ["-k", "rms_norm"]
    elif find_workers() > 1:
        command += ["-n", str(find_workers())]
    environment = os.environ | ({} if check.rehearsal else {"DS4_TEST_CUDA": "device"})
    check.need(20)
    left = None if check.budget.seconds is None else check.budget.seconds - check.budget.spent
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=left, check=False
        )
    except subprocess.TimeoutExpired:
        raise OutOfTime(f"the tests were not through after {left:.0f} s") from None
    lines = done.stdout.strip().splitlines() or [done.stderr.strip()[-200:]]
    counts = {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|error|skipped)", lines[-1])}
    for line in lines:
        if line.startswith(("FAILED", "ERROR")):
            check.keep(line[:300])
    passed, failed = counts.get("passed", 0), counts.get("failed", 0) + counts.get("error", 0)
    if not passed and not failed:
        raise RuntimeError(f"pytest said: {lines[-1][:200]}")
    check.add("tests that passed", passed, "", note=lines[-1].strip("= "))
    check.add("tests that failed", failed, "", bar=0, better="lower")


def find_workers() -> int:
    """Return the number of parallel test processes; most of their time is spent compiling kernels."""
    from importlib.util import find_spec

    return min(8, os.cpu_count() or 1) if find_spec("xdist") else 1


PARTS: dict[str, tuple[Callable[[Check], None], float]] = {
    "models": (gpu_models.measure, 0.27),
    "products": (gpu_products.measure, 0.23),
    "speed": (gpu_speed.measure, 0.25),
    "ops": (ops, 0.25),
}
"""Each part's function and its share of the time; unused time goes to later parts."""


def run(check: Check, chosen: Sequence[str], seconds: float | None, parts: Any = None) -> int:
    """Run the chosen parts; return the exit code. KeyboardInterrupt ends the run, keeping the results so far."""
    parts = parts or PARTS
    start, code = time.monotonic(), 0
    shares = sum(parts[name][1] for name in chosen)
    for name in parts:
        if name not in chosen:
            check.parts[name] = {"state": "not asked for"}
    for name in chosen:
        work, share = parts[name]
        left = None if seconds is None else (seconds - (time.monotonic() - start)) * share / shares
        shares -= share
        check.part, check.budget, state = name, Budget(left), "done"
        say(f"{name}{'' if left is None else f', {left:.0f} s at most'}")
        try:
            check.need(0)
            work(check)
        except OutOfTime as late:
            state = f"cut short: {late}"
        except KeyboardInterrupt:
            state, code = "stopped", 130
        except Exception as error:  # one failing part must not stop the others
            state, code = f"failed: {type(error).__name__}: {' '.join(str(error).split())}", 1
        check.parts[name] = {"state": state, "seconds": round(check.budget.spent, 1)}
        check.save()
        if code == 130:
            break
    missed = any(row.met is False for _, row in check.rows)
    return code or int(missed)


def say(text: str) -> None:
    """Print progress on stderr."""
    print(f"gpu_check: {text}", file=sys.stderr, flush=True)


def printed(check: Check) -> None:
    """Print the table, and how each part ended."""
    print_table([row for _, row in check.rows], title="GPU")
    for name, outcome in check.parts.items():
        if outcome["state"] != "done":
            print(f"{name}: {outcome['state']}")


def first_device() -> dict[str, Any]:
    """Return name and compute capability of the GPU; raises RuntimeError if none can be used."""
    from ds4ref.kernels.cuda.driver.devices import devices, refusal

    if reason := refusal():
        raise RuntimeError(reason)
    device = devices()[0]
    return {"device": device.name, "capability": list(device.capability)}


def compiled_kernels() -> Any:
    """Return a context manager in which CUDA kernels run on this processor; raises RuntimeError if they cannot."""
    from tests.kernels.cuda.lowering.hosted import hosted, missing

    if reason := missing():
        raise RuntimeError(f"CUDA kernels cannot be compiled and run here: {reason}")
    return hosted()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the check; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu_check", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-o", "--output", metavar="FILE", default="out/gpu_check.json", help="figures (%(default)s)")
    parser.add_argument("--only", nargs="+", choices=list(PARTS), metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--seconds", type=float, default=SECONDS, metavar="S", help="for everything (%(default)s)")
    parser.add_argument("--rehearse", action="store_true", help="without a GPU, tiny sizes, no speeds")
    args = parser.parse_args(argv)
    try:
        device = {"device": "none", "capability": [9, 0]} if args.rehearse else first_device()
        kernels = compiled_kernels() if args.rehearse else contextlib.nullcontext()
    except (ImportError, OSError, RuntimeError) as error:
        print(f"gpu_check: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    out = Path(args.output)
    out.parent.mkdir(parents=True, exist_ok=True)
    check = Check(out, args.rehearse, device | stamp())
    with kernels:
        code = run(check, args.only or list(PARTS), args.seconds)
    printed(check)
    print(f"written: {out}")
    return code


if __name__ == "__main__":
    raise SystemExit(main())
