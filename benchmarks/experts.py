"""Decoding with a model larger than memory: a cache of experts, compared with plainly mapping the file, and with having
everything in memory.

    python -m ds4ref.cli.ds4 nano slice slice.gguf && python -m benchmarks.experts slice.gguf

Every run is a separate process in a control group with a memory limit, and starts without the file in the system's page
cache. The targets take turns:

    plain      map the file; nothing else
    advised    the same, but ask the system to read chosen experts ahead (madvise)
    cached     use a cache of experts
    memory     the same with all experts in it and no memory limit, which leaves the time of computing alone
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from .harness import Row, add_json, interleave, ratios, row, show

TARGETS = "plain", "advised", "cached", "memory"
TOKENS, WARM = 24, 24
ROOT = Path("/sys/fs/cgroup")


@contextmanager
def memory_group(limit: int) -> Iterator[Path]:
    """Create a control group that may use ``limit`` bytes of memory, and yield its folder; raise SystemExit if that is
    impossible."""
    for root, name in ((ROOT / "memory", "memory.limit_in_bytes"), (ROOT, "memory.max")):
        group = root / f"ds4ref-{os.getpid()}"
        with suppress(OSError):
            group.mkdir()
            try:
                (group / name).write_text(str(limit))
                yield group
                return
            finally:
                group.rmdir()
    raise SystemExit("no control group with a memory limit can be made here")


def _bytes_read() -> int:
    """Return the bytes that this process has read from disk."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith("read_bytes:")), 0)


def child(model: str, target: str, group: str) -> dict[str, Any]:
    """Measure one target, in the process started for it: return its figures, such as ms per token.

    group: folder of the control group to run in; "" for none
    """
    if group:
        Path(group, "cgroup.procs").write_text(str(os.getpid()))
    handle = os.open(model, os.O_RDONLY)
    with suppress(AttributeError):
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    from ds4ref.engine import Engine

    options: dict[str, Any] = {"expert_cache": "auto"}
    if target in ("plain", "advised"):
        options = {"expert_cache": "off", "advise": target == "advised"}
    elif target == "memory":
        options = {"expert_cache": 1 << 40}
    with Engine.open(model, numerics="ds4", **options) as engine:
        session = engine.session(256)
        # a prompt of 2 tokens, then tokens to warm up, then those that are timed
        ids = np.random.default_rng(6).integers(3, engine.shape.vocab, 2 + WARM + TOKENS).tolist()
        session.sync(ids[:2])
        cache = engine.model.experts.resident
        if target == "memory":
            shape = cache.contents.place.shape
            cache.preload([(layer, expert) for layer in range(shape[0]) for expert in range(shape[1])])
            while cache._jobs and not cache.failed:
                time.sleep(0.1)
        for token in ids[2 : 2 + WARM]:
            session.eval(token)
        read, before = _bytes_read(), engine.expert_use().get("cache", {})
        seconds = []
        for token in ids[2 + WARM :]:
            begun = time.perf_counter()
            session.eval(token)
            seconds.append(time.perf_counter() - begun)
        after = engine.expert_use().get("cache", {})
        uses = after.get("uses", 0) - before.get("uses", 0)
        return {
            "ms": 1e3 * float(np.median(seconds)),
            "mb": (_bytes_read() - read) / TOKENS / 1e6,
            "hits": (after["hits"] - before["hits"]) / uses if uses else None,
            "waited_ms": 1e3 * (after["seconds_waited"] - before["seconds_waited"]) / TOKENS if uses else None,
            "cache_gb": after.get("bytes", 0) / 1e9,
        }


def measure(model: str, rounds: int, limit: int) -> Iterator[Row]:
    """Run the targets in turn for some rounds, with ``limit`` bytes of memory; yield the rows of the table."""
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in TARGETS}
    with memory_group(limit) as group:

        def target(name: str) -> float:
            inside = "" if name == "memory" else str(group)
            command = [sys.executable, "-m", "benchmarks.experts", model, "--child", name, "--group", inside]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            results[name].append(json.loads(done.stdout))
            return results[name][-1].get("ms", 0.0)

        samples = interleave({name: partial(target, name) for name in TARGETS}, rounds, warm=False)

    def median(name: str, key: str) -> float:
        return float(np.median([result[key] for result in results[name] if result[key] is not None]))

    for name in TARGETS:
        note = f"{median(name, 'mb'):.1f} MB read"
        if name in ("cached", "memory"):
            note += f", hits {100 * median(name, 'hits'):.0f} %, waited {median(name, 'waited_ms'):.0f} ms"
            note += f", cache {median(name, 'cache_gb'):.2f} GB"
        yield row(f"a token, {name}", samples[name], "ms", better="lower", note=note)
    yield row("speed of cached / plain", ratios(samples["plain"], samples["cached"]))
    yield row("speed of cached / memory", ratios(samples["memory"], samples["cached"]))


def main() -> None:
    """Run the benchmark (or, in a process that it started, one target) and print the result."""
    parser = argparse.ArgumentParser(description="decode of a model larger than memory")
    parser.add_argument("model")
    parser.add_argument("-r", "--rounds", type=int, default=5)
    parser.add_argument("--limit", type=float, default=3.2, help="memory of the control group, 1e9 bytes")
    add_json(parser)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--group", default="", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(child(args.model, args.child, args.group)))
        return
    rows = list(measure(args.model, args.rounds, int(args.limit * 1e9)))
    show(rows, f"a model in {args.limit:g} GB", args.json, model=args.model, limit=args.limit)


if __name__ == "__main__":
    main()
