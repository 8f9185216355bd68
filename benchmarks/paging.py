"""A model larger than memory: decode with read-ahead advice for the chosen experts, against plain mapping.

Each variant runs in a process of its own inside a control group with a memory limit, and starts with the file out of
the page cache. Page cache counts against the limit, so experts are read from disk again and again.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from .context import Context
from .timing import OutOfTime, interleave, ratios

LIMIT = 3 << 30
TOKENS = 24
ROOT = Path("/sys/fs/cgroup")


@contextlib.contextmanager
def memory_group(limit: int) -> Iterator[Path]:
    """Create a control group limited to ``limit`` bytes; raises OutOfTime (noted in the rows) if that is impossible."""
    for root, name in ((ROOT / "memory", "memory.limit_in_bytes"), (ROOT, "memory.max")):
        group = root / f"ds4ref-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            (group / name).write_text(str(limit))
            yield group
            return
        except OSError:
            continue
        finally:
            with contextlib.suppress(OSError):
                group.rmdir()
    raise OutOfTime("no control group with a memory limit can be made here")


def measure(context: Context) -> None:
    """Measure the rows "paging" and "paging tps" of the CPU table."""
    if context.quick:
        raise OutOfTime("not in a quick run")
    size = os.stat(context.model).st_size
    if size < 1.5 * LIMIT:
        raise OutOfTime(f"the model ({size / 1e9:.1f} GB) is not larger than the limit ({LIMIT / 1e9:.1f} GB)")
    runs_of: dict[str, list[dict]] = {"plain": [], "advised": []}
    with memory_group(LIMIT) as group:

        def arm(name: str) -> float:
            command = [sys.executable, "-m", "benchmarks.paging", context.model, str(group), name, str(context.threads)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            runs_of[name].append(json.loads(done.stdout))
            return runs_of[name][-1]["seconds"]

        arms = {name: lambda name=name: arm(name) for name in runs_of}
        samples = interleave(arms, 5, warm=False)
    read = {name: np.median([run["read"] / TOKENS for run in runs]) / 1e6 for name, runs in runs_of.items()}
    faults = {name: np.median([run["faults"] / TOKENS for run in runs]) for name, runs in runs_of.items()}
    note = (
        f"{size / 1e9:.1f} GB in {LIMIT / 1e9:.1f} GB; a token waits for {faults['plain']:.0f} page faults "
        f"({faults['advised']:.0f} with advice) and reads {read['plain']:.0f} ({read['advised']:.0f}) MB from disk"
    )
    context.add("paging", ratios(samples["plain"], samples["advised"]), note)
    context.add("paging tps", [1 / seconds for seconds in samples["advised"]])


def _decode(model: str, group: str, advise: bool, threads: int) -> dict[str, float]:
    """Return, in the child, seconds a token, major page faults and bytes read from disk in all."""
    import resource

    from ds4ref.engine import Engine

    Path(group, "cgroup.procs").write_text(str(os.getpid()))
    handle = os.open(model, os.O_RDONLY)
    os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    with Engine.open(model, numerics="ds4", threads=threads, advise=advise) as engine:
        session = engine.session(256)
        ids = [int(i) for i in np.random.default_rng(6).integers(3, engine.shape.vocab, TOKENS + 4)]
        session.sync(ids[:2])
        for token in ids[2:4]:
            session.eval(token)  # read the dense weights and record the pass
        read, faults = _bytes_read(), resource.getrusage(resource.RUSAGE_SELF).ru_majflt
        started = time.perf_counter()
        for token in ids[4:]:
            session.eval(token)
        spent = time.perf_counter() - started
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_majflt - faults
        return {"seconds": spent / TOKENS, "faults": faults, "read": _bytes_read() - read}


def _bytes_read() -> int:
    for line in Path("/proc/self/io").read_text().splitlines():
        if line.startswith("read_bytes:"):
            return int(line.split()[1])
    return 0


if __name__ == "__main__":
    print(json.dumps(_decode(sys.argv[1], sys.argv[2], sys.argv[3] == "advised", int(sys.argv[4]))))
