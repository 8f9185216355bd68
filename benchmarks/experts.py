"""A model larger than memory: decode with a cache of experts, against plain mapping and against what the disk allows.

    python -m ds4ref.cli.ds4 nano slice slice.gguf && python -m benchmarks.experts slice.gguf

Every run is a process of its own in a control group with a memory limit, and starts with the file out of the page
cache; arms take turns. Arms:

    plain      the mapped file, no advice
    advised    the same, chosen experts asked for
    cached     a cache of experts
    memory     the same with everything in it, without a limit: computing alone
    disk       no model: experts read at random by the cache's own threads, bytes a second
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from .timing import interleave

ARMS = "plain", "advised", "cached", "memory", "disk"
TOKENS, WARM = 24, 24
ROOT = Path("/sys/fs/cgroup")


@contextmanager
def memory_group(limit: int) -> Iterator[Path]:
    """Create a control group limited to ``limit`` bytes; SystemExit where that is impossible."""
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


def child(model: str, arm: str, group: str, readers: int, decoded: int) -> dict[str, Any]:
    """Return, in the child, what an arm measured."""
    if group:
        Path(group, "cgroup.procs").write_text(str(os.getpid()))
    handle = os.open(model, os.O_RDONLY)
    with suppress(AttributeError):
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    from ds4ref.engine import Engine
    from ds4ref.residency import resident

    resident.READERS = readers
    if arm == "disk":
        return {"rate": disk_rate(model, readers)}
    options: dict[str, Any] = {"expert_cache": "auto"}
    if arm in ("plain", "advised"):
        options = {"expert_cache": "off", "advise": arm == "advised"}
    elif arm == "memory":
        options = {"expert_cache": 1 << 40}
    with Engine.open(model, numerics="ds4", **options) as engine:
        session = engine.session(256)
        ids = drawn(engine.shape.vocab, decoded)
        session.sync(ids[:2])
        cache = engine.model.experts.resident
        if arm == "memory":
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
            "mb": (_bytes_read() - read) / decoded / 1e6,
            "hits": (after["hits"] - before["hits"]) / uses if uses else None,
            "waited_ms": 1e3 * (after["seconds_waited"] - before["seconds_waited"]) / decoded if uses else None,
            "cache_gb": after.get("bytes", 0) / 1e9,
        }


def drawn(vocab: int, decoded: int) -> list[int]:
    """Return a prompt of 2 tokens, those of the warm-up, and those that are timed."""
    return [int(i) for i in np.random.default_rng(6).integers(3, vocab, WARM + decoded + 2)]


def disk_rate(model: str, threads: int, seconds: float = 2.0, size: int = 2 << 20) -> float:
    """Return the bytes a second that as many threads as the cache has read of a file, in random pieces."""
    from ds4ref.residency.readers import NOW, Job, Readers, read_pages
    from ds4ref.residency.resident import Memory

    whole, rng = os.stat(model).st_size, np.random.default_rng(int(time.time() * 1e3))
    memory, done = Memory(size * threads * 2), [0]
    memory.view[:] = b"\1" * len(memory.view)
    readers, end = Readers(model, whole, threads), time.perf_counter() + seconds
    offsets = iter(rng.integers(0, whole // size - 1, 1 << 20).tolist())

    def work(slot: int, handle: int) -> None:
        while time.perf_counter() < end:
            place = memory.view[slot * size : (slot + 1) * size]
            read_pages(handle, model, place, next(offsets) * size, size)
            done[0] += size

    jobs = [Job(lambda handle, slot=slot: work(slot, handle), NOW) for slot in range(threads)]
    begun = time.perf_counter()
    readers.submit(jobs)
    readers.wait(jobs)
    rate = done[0] / (time.perf_counter() - begun)
    readers.close()
    return rate


def measure(model: str, arms: Sequence[str], rounds: int, limit: int, readers: int, tokens: int) -> None:
    """Run the arms in turn and print a line for each, and the ratios within rounds."""
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in arms}
    with memory_group(limit) as group:

        def arm(name: str) -> float:
            inside = "" if name == "memory" else str(group)
            command = [sys.executable, "-m", "benchmarks.experts", model, "--child", name, "--group", inside]
            command += ["--readers", str(readers), "-n", str(tokens)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            results[name].append(json.loads(done.stdout))
            print(name, done.stdout.strip(), file=sys.stderr, flush=True)
            return results[name][-1].get("ms", 0.0)

        samples = interleave({name: lambda name=name: arm(name) for name in arms}, rounds, warm=False)

    def median(name: str, key: str) -> float:
        return float(np.median([found[key] for found in results[name] if found[key] is not None]))

    for name in arms:
        if name != "disk":
            cached = name not in ("plain", "advised")
            more = (
                f", hits {100 * median(name, 'hits'):.0f} %, waited {median(name, 'waited_ms'):.0f} ms"
                if cached
                else ""
            )
            size = f", cache {median(name, 'cache_gb'):.2f} GB" if cached else ""
            print(f"{name:8} {median(name, 'ms'):7.1f} ms a token, {median(name, 'mb'):6.1f} MB read{more}{size}")
    if "disk" in arms:
        print(f"disk     {median('disk', 'rate') / 1e6:7.0f} MB/s with {readers} threads")
    if {"cached", "plain"} <= set(arms):
        ratios = np.array(samples["plain"]) / np.array(samples["cached"])
        print(f"cached against plain: {np.median(ratios):.2f} times ({ratios.min():.2f} to {ratios.max():.2f})")
    if {"cached", "disk", "memory"} <= set(arms):
        reading = 1e9 * median("cached", "mb") / median("disk", "rate")
        alone, took = median("memory", "ms"), median("cached", "ms")
        shares = f"{max(reading, alone) / took:.2f}, of both in turn {(reading + alone) / took:.2f}"
        print(f"cached: reading alone {reading:.0f} ms, computing {alone:.0f} ms; of the longer one's speed {shares}")


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description="decode of a model larger than memory")
    parser.add_argument("model")
    parser.add_argument("--arms", default=",".join(ARMS), help="in turn")
    parser.add_argument("-r", "--rounds", type=int, default=5)
    parser.add_argument("--limit", type=float, default=3.2, help="memory of the control group, 1e9 bytes")
    parser.add_argument("--readers", type=int, default=4)
    parser.add_argument("-n", "--tokens", type=int, default=TOKENS)
    parser.add_argument("--child")
    parser.add_argument("--group", default="")
    args = parser.parse_args()
    if args.child:
        print(json.dumps(child(args.model, args.child, args.group, args.readers, args.tokens)))
    else:
        measure(args.model, args.arms.split(","), args.rounds, int(args.limit * 1e9), args.readers, args.tokens)


if __name__ == "__main__":
    main()
