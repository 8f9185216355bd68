"""Coverage-guided inputs for one parser, in a process of its own: ``python -m benchmarks.campaign.fuzz NAME FOLDER``.

libFuzzer (the package atheris) changes the parser's smallest valid inputs so that they reach new code. The process
writes FOLDER/status.json as it goes, and keeps the inputs that reached something new in FOLDER/corpus, where the next
run begins. The first input of each kind of failure (class of the exception, and where it was raised) is kept in
FOLDER/failures; further ones are only counted. FOLDER/last is the input at which the process itself died.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

SECONDS, MEGABYTES = 10.0, 500
"""Limits of one input: processor time, and growth of the process."""


def main(name: str, folder: Path, tries: int, seconds: float, seed: int) -> None:
    """Try inputs until there were ``tries``, or ``seconds`` are over; does not return."""
    import atheris  # type: ignore[import-not-found]

    from benchmarks.campaign.kinds import plain_line

    for part in ("corpus", "failures"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("error", RuntimeWarning)  # NumPy's, which would be lines beside ours on a terminal
    with atheris.instrument_imports(include=["ds4ref"], exclude=_kernels()):
        from benchmarks.campaign.parsers import PARSERS

        base = "/dev/shm" if os.path.isdir("/dev/shm") else None
        seeds, read = PARSERS[name](Path(tempfile.mkdtemp(prefix="campaign-", dir=base)))
        for number, data in enumerate(seeds):
            read(data)  # what is valid is read; only then a refusal means something
            (folder / "corpus" / f"seed{number}").write_bytes(data)
    signal.signal(signal.SIGALRM, _too_long)
    counts: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    last = os.open(folder / "last", os.O_RDWR | os.O_CREAT, 0o600)
    end, spoken = time.monotonic() + seconds, 0.0

    def status() -> None:
        (folder / "status.tmp").write_text(json.dumps({**counts, "kinds": kinds}))
        os.replace(folder / "status.tmp", folder / "status.json")

    def one(data: bytes) -> None:
        nonlocal spoken
        os.pwrite(last, data, 0)
        os.ftruncate(last, len(data))
        before = _peak()
        signal.setitimer(signal.ITIMER_REAL, 3 * SECONDS)  # a busy machine is no fault of ours
        clock = time.process_time()
        kind = trace = ""
        try:
            read(data)
            counts["read"] += 1
        except Exception as error:
            kind, trace = plain_line(error), traceback.format_exc()
            counts["refused"] += kind == ""
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        if not kind and time.process_time() - clock > SECONDS:
            kind = f"takes more than {SECONDS:g} s"
        if not kind and _peak() - before > MEGABYTES << 10:
            kind = f"takes more than {MEGABYTES} MB"
        counts["tries"] += 1
        if kind:
            kinds[kind] += 1
            if kinds[kind] == 1:
                file = folder / "failures" / hashlib.sha256(kind.encode()).hexdigest()[:12]
                file.write_bytes(data)
                file.with_suffix(".txt").write_text(f"{kind}\n{trace}")
        if time.monotonic() > spoken + 2 or counts["tries"] >= tries:
            spoken = time.monotonic()
            status()
        if counts["tries"] >= tries or time.monotonic() > end:
            status()
            os._exit(0)

    atheris.Setup([sys.argv[0], f"-seed={seed}", "-max_len=65536", "-timeout=60", "-rss_limit_mb=4096", "-verbosity=0",
                   f"-artifact_prefix={folder}/failures/", str(folder / "corpus")], one)  # fmt: skip
    atheris.Fuzz()


def _kernels() -> list[str]:
    """Return the modules that are compiled from their bytecode, which must not be instrumented."""
    import pkgutil

    from ds4ref import kernels

    return [module.name for module in pkgutil.walk_packages(kernels.__path__, "ds4ref.kernels.")]


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _too_long(number: int, frame: FrameType | None) -> Any:
    raise TimeoutError(f"no answer after {3 * SECONDS:g} s")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]), int(sys.argv[5]))
