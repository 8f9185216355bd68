"""The compiled kernels of this machine: loaded from the user's cache (``cachedir``), or first built, with a message.

The name of a build's folder is a hash over every source file involved, the versions of Python, Numba and llvmlite, and
the processor with its features, so code that is out of date is never loaded. Loading needs llvmlite only. Building runs
in separate processes (Numba's compiler holds one lock per process), writes to a temporary folder and renames it into
place; another process that needs the same kernels meanwhile waits for it.

Kernels are built in groups, each when it is first needed: "engine", what every model needs; those of ``TASKS``; two for
a storage format, one with its kernels for inputs rounded to integers; and "quantize", which quantizes weights.
``prepare`` builds several at once, which is faster.
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
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from ..cachedir import cache_dir
from ..formats import FORMATS
from ..system import available_cores
from . import aarch64
from .sizes import AMX

KERNELS = Path(__file__).resolve().parent.parent
SETTINGS = ("DS4_SIMD_TIER", "NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES", "NUMBA_ENABLE_AVX")
"""Environment variables that affect the generated code."""

ENGINE, QUANTIZE = "engine", "quantize"
"""Names of groups; "quantize" is also the folder of those kernels, on which no others depend."""
INTEGERS = "integers"
TASKS = {
    "deepseek4": "attention hadamard hc_expand hc_head_weights hc_reduce hc_split index_pack index_scores pool"
    " position_bias round_e2m1 round_e4m3 round_f16 select_rows streams windows",
    "dense": "attend geglu",
    "experts": "advise_experts call_python count expert_gemm expert_linear_rows expert_sum_rows gemm_pack_pairs"
    " group_pairs route sum_slots",
    INTEGERS: "quantize_a8 quantize_q8k scale_codes",
    "extras": "block_maxima block_rows block_scores engram_gate read_lines remove_along round_i8 round_nvfp4",
}
"""Groups of tasks (``tasktable``): of two families of models, of experts, of rounded inputs, and the rest."""

_GROUP_OF_TASK = {task: group for group, tasks in TASKS.items() for task in tasks.split()}
ROUNDED = {name: f"{name}.{fmt.activation}" for name, fmt in FORMATS.items() if fmt.activation in ("a8", "q8k")}
"""By format, the group of its kernels for inputs rounded to integers."""

GROUPS = (ENGINE, *TASKS, *FORMATS, *ROUNDED.values())
"""All groups but QUANTIZE."""

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


def group_of(name: str) -> str:
    """Return the group of the entry point ``name``: "rows.Q8_0.float" is one of Q8_0's, "rope" one of the engine's."""
    first, fmt, act = [*name.split("."), "", ""][:3]
    if first == QUANTIZE:
        return QUANTIZE
    if fmt in FORMATS:
        return ROUNDED[fmt] if ROUNDED.get(fmt) == f"{fmt}.{act.removesuffix(AMX)}" else fmt
    return _GROUP_OF_TASK.get(name, ENGINE)


def groups_for(needs: Collection[str]) -> list[str]:
    """Return the groups that a model needs: the engine's and those named in ``needs``; with INTEGERS also the kernels
    of the named formats for rounded inputs."""
    rounded = {ROUNDED.get(fmt) for fmt in needs} if INTEGERS in needs else set()
    return [group for group in GROUPS if group == ENGINE or group in needs or group in rounded]


def label(groups: Collection[str]) -> str:
    """Return what messages call some groups of kernels."""
    if QUANTIZE in groups:
        return "quantizers"
    return "CPU kernels" + (f" of {', '.join(groups)}" if ENGINE not in groups else "")


def cache_keys(groups: Collection[str]) -> dict[str, str]:
    """Return, by group, a hash of everything that determines the machine code of a group of kernels."""
    import llvmlite.binding as ll

    digest = hashlib.sha256()
    for name in ("numba", "llvmlite"):
        digest.update(f"{name} {importlib.metadata.version(name)}\n".encode())
    digest.update(f"{sys.version} {ll.get_process_triple()} {ll.get_host_cpu_name()}\n".encode())
    digest.update(ll.get_host_cpu_features().flatten().encode())
    digest.update(aarch64.flags(aarch64.of_this_machine(ll.get_host_cpu_name())).encode())
    for name in SETTINGS:
        digest.update(f"{name}={os.environ.get(name)}\n".encode())
    quantizers = QUANTIZE in groups
    for folder in ("cpu", "formats"):
        for path in sorted((KERNELS / folder).rglob("*.*")):
            if path.suffix not in (".py", ".npz"):
                continue
            if quantizers or QUANTIZE not in path.relative_to(KERNELS).parts:
                digest.update(f"{path.relative_to(KERNELS)}\n".encode() + path.read_bytes())
    base = digest.hexdigest()
    return {group: hashlib.sha256(f"{base} {group}".encode()).hexdigest()[:24] for group in groups}


def cache_key(group: str = ENGINE) -> str:
    """Return the key of one group (``cache_keys``)."""
    return cache_keys([group])[group]


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


def build(targets: Mapping[str, Path], progress: Callable[[str], None] | None = None) -> None:
    """Compile groups of kernels in parallel processes and move the results to ``targets``, folders by group."""
    started, report, what = time.monotonic(), Report(progress), label(targets)
    report(f"compiling the {what} for this machine, once")
    parts = max(1, min(4, available_cores()))
    work = Path(tempfile.mkdtemp(prefix=".build-", dir=next(iter(targets.values())).parent))
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
            arguments = [*command, str(part), *targets]
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
        for group, target in targets.items():
            (work / group / "parts").write_text(str(parts))
            shutil.rmtree(target, ignore_errors=True)  # a damaged build
            os.rename(work / group, target)
    finally:
        for process, log in workers:
            if process.poll() is None:
                process.kill()
                process.wait()
            log.close()
        shutil.rmtree(work, ignore_errors=True)


def sweep(home: Path, keep: Collection[Path]) -> None:
    """Delete the builds and abandoned work folders in ``home`` that were not used for a week, except those in
    ``keep``."""
    for path in home.iterdir():
        with contextlib.suppress(OSError):
            if path not in keep and path.is_dir() and time.time() - path.stat().st_mtime > KEEP_SECONDS:
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


def objects(group: str = ENGINE, progress: Callable[[str], None] | None = None) -> Path:
    """Return the folder with the object files of a group of kernels for this machine; build them if necessary."""
    return prepare([group], progress)[group]


def prepare(groups: Collection[str], progress: Callable[[str], None] | None = None) -> dict[str, Path]:
    """Return the folders of several groups of kernels by group, built together where they are missing."""
    if os.environ.get("DS4_CROSS_TARGET"):
        raise KernelError("DS4_CROSS_TARGET is set: kernels compiled for another machine cannot run here")
    keys = cache_keys(groups)
    try:
        home = cache_dir() / "kernels"
    except FileNotFoundError as error:
        home = temporary(error)
    if not all(complete(home / key) for key in keys.values()):
        home = writable(home)
        with locked(home / "lock", progress):
            while missing := {group: home / key for group, key in keys.items() if not complete(home / key)}:
                build(missing, progress)
                if (now := cache_keys(groups)) != keys:
                    for path in missing.values():  # sources were edited during the build: it mixes old and new code
                        shutil.rmtree(path)
                    keys = now
            sweep(home, [home / key for key in keys.values()])
    for key in keys.values():
        with contextlib.suppress(OSError):
            os.utime(home / key)
    return {group: home / key for group, key in keys.items()}


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

    def __init__(self, group: str = ENGINE, progress: Callable[[str], None] | None = None) -> None:
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
                if here := listing.read_text().split()[1:]:
                    code = ll.object_file.ObjectFileRef.from_path(str(listing.with_suffix(".o")))
                    self._engine.add_object_file(code)
                    names += here
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
_loading = threading.Lock()


def library(group: str = ENGINE, progress: Callable[[str], None] | None = None) -> Library:
    """Return a group's machine code, loaded (and if necessary built) on first use in this process; ``progress`` as in
    ``Report``."""
    with _loading:  # of two loaded at once, the one that is dropped would free code that a thread runs
        if group not in _loaded:
            _loaded[group] = Library(group, progress)
        return _loaded[group]


def available(name: str) -> bool:
    """Return whether there is an entry point ``name``, in whatever group."""
    return name in library(group_of(name))


def entry_address(name: str) -> int:
    """Return the address of the C function ``name``, in whatever group; raise KernelError if there is none."""
    return library(group_of(name)).address(name)


def entry(name: str, arguments: int) -> Callable[..., None]:
    """Return the C function ``name``, in whatever group, as ``Library.function`` does."""
    return library(group_of(name)).function(name, arguments)
