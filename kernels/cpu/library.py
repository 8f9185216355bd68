"""The compiled kernels of this machine: loaded from the user's cache (``cachedir``), or first built, with a message.

The name of a build's folder is a hash over every source file involved, the versions of Python, Numba and llvmlite, and
the processor with its features, so code that is out of date is never loaded. Loading needs llvmlite only. Building runs
in separate processes (Numba's compiler holds one lock per process), writes to a temporary folder and renames it into
place; another process that needs the same kernels meanwhile waits for it.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import hashlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ..cachedir import cache_dir
from ..system import available_cores
from . import aarch64

KERNELS = Path(__file__).resolve().parent.parent
SETTINGS = ("DS4_SIMD_TIER", "NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES", "NUMBA_ENABLE_AVX")
"""Environment variables that affect the generated code."""

QUANTIZE = "quantize"
"""Name of the group of kernels that quantize weights, and of their folder; the engine's kernels do not depend on it."""

GROUPS = {"engine": "CPU kernels", QUANTIZE: "quantizers"}
"""What messages call each group of kernels; a group is compiled and loaded together (``build.GROUPS``)."""

KEEP_SECONDS = 7 * 86400
"""Seconds after its last use when a build is deleted."""


class KernelError(RuntimeError):
    """The kernels could not be compiled or loaded; the message is one line."""


class Report:
    """Reports the progress of long work: calls ``progress`` with a line of text at most once a second or, if that is
    None, prints the lines to stderr.

    In a terminal each line replaces the one before. Elsewhere (a log, a notebook) only the first and the last line are
    printed.
    """

    def __init__(self, progress: Callable[[str], None] | None = None):
        self.progress = progress
        self._told: float | None = None

    def __call__(self, line: str, last: bool = False) -> None:
        """Report ``line``; ``last`` means that no more lines follow."""
        first, now = self._told is None, time.monotonic()
        if self.progress is not None:
            if first or last or now - (self._told or 0.0) >= 1:
                self._told = now
                self.progress(line)
            return
        self._told = now
        if sys.stderr.isatty():
            print(f"\rds4ref: {line:70}", end="\n" if last else "", file=sys.stderr, flush=True)
        elif first or last:
            print(f"ds4ref: {line}", file=sys.stderr, flush=True)


def cache_key(group: str = "engine") -> str:
    """Return a hash of everything that determines the machine code of a group of kernels (``build.GROUPS``)."""
    import llvmlite.binding as ll

    digest = hashlib.sha256()
    for name in ("numba", "llvmlite"):
        digest.update(f"{name} {importlib.metadata.version(name)}\n".encode())
    digest.update(f"{sys.version} {ll.get_process_triple()} {ll.get_host_cpu_name()}\n".encode())
    digest.update(ll.get_host_cpu_features().flatten().encode())
    digest.update(aarch64.flags(aarch64.of_this_machine(ll.get_host_cpu_name())).encode())
    for name in SETTINGS:
        digest.update(f"{name}={os.environ.get(name)}\n".encode())
    for folder in ("cpu", "formats"):
        for path in sorted((KERNELS / folder).rglob("*.*")):
            if path.suffix not in (".py", ".npz"):
                continue
            if group == QUANTIZE or QUANTIZE not in path.relative_to(KERNELS).parts:
                digest.update(f"{path.relative_to(KERNELS)}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:24]


@contextlib.contextmanager
def locked(path: Path, progress: Callable[[str], None] | None = None) -> Iterator[None]:
    """Hold an exclusive lock on the file ``path``, which the system releases when the process ends.

    While another process holds the lock, wait and report that to ``progress`` (see ``Report``).
    """
    with open(path, "w") as handle:
        started, report, waited = time.monotonic(), Report(progress), False
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                waited = True
                report(f"another process is compiling kernels, waiting: {time.monotonic() - started:.0f} s")
                time.sleep(0.1)
            except OSError:  # a file system without locks: building twice costs time but harms nothing
                break
        if waited:
            report(f"waited {time.monotonic() - started:.0f} s for the process that compiled them", last=True)
        yield


def build(target: Path, group: str = "engine", progress: Callable[[str], None] | None = None) -> None:
    """Compile all kernels of a group in parallel processes and move the result to ``target``."""
    started, report, what = time.monotonic(), Report(progress), GROUPS[group]
    report(f"compiling the {what} for this machine, once; it takes about a minute")
    parts = max(1, min(4, available_cores()))
    work = Path(tempfile.mkdtemp(prefix=".build-", dir=target.parent))
    # the build optimizes all modules together at the end, so Numba need not optimize each one first
    environment = dict(os.environ, NUMBA_CACHE_DIR=str(work / "numba"), NUMBA_OPT="0")
    package_root = str(Path(__file__).parents[3])  # the parent of the package ds4ref
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (package_root, os.environ.get("PYTHONPATH"))))
    command = [sys.executable, "-P", "-m", __package__ + ".build", str(work)]  # -P: nothing from the current directory
    workers = []

    def done() -> int:
        return sum((work / f"{part}.log").read_bytes().count(b"\n") for part in range(parts))

    try:
        for part in range(parts):
            log = open(work / f"{part}.log", "w+")
            arguments = [*command, str(part), str(parts), group]
            options: dict[str, Any] = {"env": environment, "stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
            workers.append((subprocess.Popen(arguments, **options), log))
        while any(process.poll() is None for process, _ in workers):
            time.sleep(0.1)
            seconds = time.monotonic() - started
            if seconds >= 2:  # leave the first line in place long enough to be read
                report(f"compiling the {what} for this machine, once: {done()} done, {seconds:.0f} s")
        for process, log in workers:
            if process.returncode:
                log.seek(0)
                lines = log.read().strip().splitlines() or ["no output"]
                if os.environ.get("DS4_DEBUG"):
                    print("\n".join(lines), file=sys.stderr)
                raise KernelError(f"compiling the {what} failed: {lines[-1]}")
        report(f"compiled {done()} {what} in {time.monotonic() - started:.0f} s", last=True)
        (work / "parts").write_text(str(parts))
        shutil.rmtree(work / "numba", ignore_errors=True)
        shutil.rmtree(target, ignore_errors=True)  # a damaged build
        os.rename(work, target)
    finally:
        for process, log in workers:
            if process.poll() is None:
                process.kill()
                process.wait()
            log.close()
        shutil.rmtree(work, ignore_errors=True)


def sweep(home: Path, keep: Path) -> None:
    """Delete the builds and abandoned work folders in ``home`` that were not used for a week, except ``keep``."""
    for path in home.iterdir():
        with contextlib.suppress(OSError):
            if path != keep and path.is_dir() and time.time() - path.stat().st_mtime > KEEP_SECONDS:
                shutil.rmtree(path, ignore_errors=True)


def writable(home: Path) -> Path:
    """Create the folder ``home`` and return it or, if it cannot be written to, a temporary folder."""
    try:
        home.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=home):
            return home
    except OSError as error:
        return temporary(error)


def temporary(error: OSError) -> Path:
    """Return a new folder that is deleted when the process exits, and print to stderr why it is needed: ``error``."""
    print(f"ds4ref: cannot write the kernel cache ({error}); compiling for this process only", file=sys.stderr)
    home = Path(tempfile.mkdtemp(prefix="ds4ref-kernels-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    return home


def objects(group: str = "engine", progress: Callable[[str], None] | None = None) -> Path:
    """Return the folder with the object files of a group of kernels for this machine; build them if necessary."""
    if os.environ.get("DS4_CROSS_TARGET"):
        raise KernelError("DS4_CROSS_TARGET is set: kernels compiled for another machine cannot run here")
    key = cache_key(group)
    try:
        home = cache_dir() / "kernels"
    except FileNotFoundError as error:
        home = temporary(error)
    if not complete(home / key):
        home = writable(home)
        with locked(home / "lock", progress):
            while not complete(home / key):
                build(home / key, group, progress)
                if cache_key(group) != key:  # sources were edited during the build: it mixes old and new code
                    shutil.rmtree(home / key)
                    key = cache_key(group)
            sweep(home, home / key)
    with contextlib.suppress(OSError):
        os.utime(home / key)
    return home / key


def complete(directory: Path) -> bool:
    """Return whether ``directory`` holds a complete build whose object files match their recorded hashes."""
    try:
        listings = sorted(directory.glob("*.txt"))
        for listing in listings:
            code = listing.with_suffix(".o").read_bytes()
            if hashlib.sha256(code).hexdigest() != listing.read_text().split("\n", 1)[0]:
                return False
        return bool(listings) and len(listings) == int((directory / "parts").read_text())
    except (OSError, ValueError):
        return False


def target_machine(triple: str, **options: Any) -> Any:
    """Return LLVM's target machine for ``triple``, to compile kernels (``options``: cpu and features) or to load
    them."""
    import llvmlite.binding as ll

    # The loader may place code, constants and libc gigabytes apart, because a GPU's driver, for example, reserves most
    # of the address space. So the code uses full addresses; 32-bit offsets (on AArch64: 128 MiB) would make LLVM abort.
    model = {"reloc": "default", "codemodel": "large"}
    return ll.Target.from_triple(triple).create_target_machine(opt=3, **model, **options)


def symbol(name: str) -> str:
    """Return the symbol in the object file of the entry point ``name``."""
    return "ds4_" + re.sub(r"\W", "_", name)


class Library:
    """The loaded machine code of a group of kernels; its entry points are C functions, found by name."""

    def __init__(self, group: str = "engine", progress: Callable[[str], None] | None = None) -> None:
        import llvmlite.binding as ll

        ll.initialize_native_target()
        ll.initialize_native_asmprinter()
        directory = objects(group, progress)
        machine = target_machine(ll.get_process_triple())
        self._engine = ll.create_mcjit_compiler(ll.parse_assembly(""), machine)
        self._addresses: dict[str, int] = {}
        names: list[str] = []
        try:
            for listing in sorted(directory.glob("*.txt")):
                self._engine.add_object_file(ll.object_file.ObjectFileRef.from_path(str(listing.with_suffix(".o"))))
                names += listing.read_text().split()[1:]
            self._engine.finalize_object()
        except (OSError, RuntimeError) as error:
            raise KernelError(f"cannot load the compiled kernels in {directory}: {error}") from None
        for name in names:
            self._addresses[name] = self._engine.get_function_address(symbol(name))

    def __contains__(self, name: str) -> bool:
        return name in self._addresses

    def address(self, name: str) -> int:
        """Return the address of the C function ``name``; raise KernelError if the build has none."""
        try:
            return self._addresses[name]
        except KeyError:
            raise KernelError(f"the compiled kernels have no {name}") from None

    def function(self, name: str, arguments: int) -> Callable[..., None]:
        """Return the C function ``name`` as a Python function of ``arguments`` integers (int64); the GIL is released
        during a call."""
        return ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * arguments)(self.address(name))


_loaded: dict[str, Library] = {}


def library(group: str = "engine", progress: Callable[[str], None] | None = None) -> Library:
    """Return a group's machine code, loaded (and if necessary built) on first use in this process; ``progress`` as in
    ``Report``."""
    if group not in _loaded:
        _loaded[group] = Library(group, progress)
    return _loaded[group]
