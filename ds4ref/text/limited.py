"""Runs templates, tokenizers and grammars from untrusted files and requests in a separate process with limits.

    opening = {"do": "template", "template": source, "limit": 10000}
    process = LimitedProcess("the chat template", opening, size=len(source))
    process.ask({"do": "render", "variables": {...}}, size=1000)["text"]

Jinja and regular expressions can loop for ever, and a definition of a hundred bytes can need gigabytes. The process
(``limited_worker``) has limits on processor time and memory for every request, in proportion to the request's size. A
request that exceeds them raises a one-line ``TextError``, and the next request starts a new process.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import TextError

SECONDS = 3.0
SECONDS_PER_MB = 5.0
"""Processor time for a request in seconds, and additional seconds per MB: the `tokenizers` library handles 1 to 10 MB a
second."""
MEMORY = 256 << 20
MEMORY_PER_BYTE = 320
"""Memory of the process in bytes, and additional bytes per byte of a request: the library needs up to 200."""
MEMORY_PER_DEFINED = 12
"""Additional memory per byte of the opening request: the library needs 290 MB for a tokenizer.json of 34 MB."""
_PATIENCE = 10.0
"""Seconds of elapsed time allowed per second of processor time, since a process has to wait on a busy machine."""
_WORKER = Path(__file__).with_name("limited_worker.py")
_ENVIRONMENT = {"MALLOC_ARENA_MAX": "1", "TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"}
"""One thread and one heap: each additional one reserves address space, which counts against the memory limit."""


class LimitedProcess:
    """A worker process, started by the first request. Several threads may use it; they wait for each other.

    name     what runs in it, for error messages: "the chat template"
    opening  the request that every new process gets first, which defines the template or tokenizer
    size     size of that definition in bytes, from which its limits and those of all later requests are computed
    seconds  processor time for a request, before the additional time for its size
    """

    def __init__(self, name: str, opening: Mapping[str, Any], *, size: int, seconds: float = SECONDS):
        self.name = name
        self._opening, self._size, self._seconds = opening, size, seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def open(self) -> dict[str, Any]:
        """Start a new process and return its answer to the opening request."""
        with self._lock:
            return self._start()[1]

    def ask(self, request: Mapping[str, Any], size: int) -> dict[str, Any]:
        """Return the worker's answer to a request; raise TextError if it fails or exceeds a limit.

        size: number of bytes to be processed, more than 0, from which the limits are computed.
        """
        with self._lock:
            return self._ask(self._started(), request, size)

    def _ask(self, process: subprocess.Popen[bytes], request: Mapping[str, Any], size: int = 0) -> dict[str, Any]:
        assert process.stdin is not None and process.stdout is not None
        seconds = self._seconds + (size or self._size) / 1e6 * SECONDS_PER_MB
        memory = MEMORY + MEMORY_PER_BYTE * size + MEMORY_PER_DEFINED * self._size
        limits = {"seconds": seconds, "memory": memory}
        end = time.monotonic() + _PATIENCE * seconds
        try:
            # the worker reads a whole line before it writes, so this blocks only until it has read
            process.stdin.write(json.dumps({**request, **limits}).encode() + b"\n")
            process.stdin.flush()
            line = bytearray()
            while not line.endswith(b"\n"):
                remaining = end - time.monotonic()
                if remaining <= 0 or not select.select([process.stdout], [], [], remaining)[0]:
                    raise self._failed(f"not done after {_PATIENCE * seconds:.3g} seconds")
                piece = process.stdout.read1(1 << 16)  # type: ignore[attr-defined]
                if not piece:
                    raise self._failed(self._end_of(process, seconds))
                line += piece
            reply: dict[str, Any] = json.loads(line)
        except OSError as error:
            self._close()
            raise self._failed(error.strerror or str(error)) from None
        except BaseException:
            self._close()
            raise
        if "error" in reply:
            raise self._failed(str(reply["error"]))
        return reply

    def _end_of(self, process: subprocess.Popen[bytes], seconds: float) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = process.wait(1.0)
            if code == -signal.SIGXCPU:
                return f"not done after {seconds:.3g} seconds"
            if code < 0 and -code in (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL):
                return f"its process crashed ({signal.Signals(-code).name})"
        return "its process ended, out of memory perhaps"

    def _failed(self, reason: str) -> TextError:
        return TextError(f"{self.name} failed: {' '.join(reason.split())[:300]}")

    def _started(self) -> subprocess.Popen[bytes]:
        running = self._process is not None and self._process.poll() is None
        return self._process if running else self._start()[0]  # type: ignore[return-value]

    def _start(self) -> tuple[subprocess.Popen[bytes], dict[str, Any]]:
        self._close()
        process = self._process = subprocess.Popen(
            [sys.executable, "-P", str(_WORKER)], env=os.environ | _ENVIRONMENT,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            return process, self._ask(process, self._opening)
        except BaseException:
            self._close()
            raise

    def close(self) -> None:
        """Kill the process; the next request starts a new one."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                with contextlib.suppress(OSError):
                    stream.close()  # type: ignore[union-attr]

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self._close()
