"""What only Linux has is called in few places; a Mac's tools and file systems can do with this tree.

No Mac can be had here: nothing of this was run on one. ``make lint`` also types the rooms as macOS's standard library
would have them (``mypy --platform darwin``).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("ds4ref", "kernels", "eval", "speed_bench", "test_vectors", "reports", "benchmarks")

ALLOWED = {
    "kernels/system.py": "the place for calls that kernels need",
    "ds4ref/environment.py": "the place for facts about machine and process",
    "kernels/cuda/driver/gpu.py": "CUDA devices are in Linux machines",
    "benchmarks/gpu_check.py": "names the driver of NVIDIA where there is one",
    "benchmarks/experts.py": "needs a control group, and says so where there is none",
    "benchmarks/load.py": "watches a server under load, by hand, on Linux",
}

ONLY_LINUX = re.compile(
    r"""sched_[gs]etaffinity | sched_(set|get)(scheduler|param) | posix_f(advise|allocate) | POSIX_FADV_\w+ | fallocate
    | (O_(DIRECT|PATH|TMPFILE|NOATIME|RSYNC|LARGEFILE)) | MADV_(?!WILLNEED|SEQUENTIAL|RANDOM|NORMAL)\w+
    | mremap | fdatasync | sendfile
    | copy_file_range | splice | tee | memfd_create | MFD_\w+ | eventfd\w* | pidfd_\w+ | timerfd_\w+ | inotify\w*
    | epoll | EPOLL\w+ | prctl | PR_SET_\w+ | unshare | setns | CLONE_\w+ | getrandom
    | [gsl]etxattr | (list|remove)xattr
    | pipe2 | preadv2? | pwritev2? | RWF_\w+ | get_?resuid | setres[ug]id | getres[ug]id | prlimit | sched_rr\w+
    | RLIMIT_(SIGPENDING|MSGQUEUE|NICE|RTPRIO|RTTIME|OFILE) | RUSAGE_THREAD
    | SIG(PWR|STKFLT|POLL|CLD|RTMIN|RTMAX) | sig(timedwait|waitinfo)
    | F_(SETPIPE_SZ|GETPIPE_SZ|ADD_SEALS|GET_SEALS|NOTIFY|OFD_\w+|SETLEASE|GETLEASE|SETSIG|GETSIG) | F_SEAL_\w+
    | AF_(NETLINK|PACKET|ALG|VSOCK) | SOCK_(NONBLOCK|CLOEXEC) | TCP_(QUICKACK|USER_TIMEOUT|CORK|DEFER_ACCEPT|KEEPIDLE)
    | SO_(BINDTODEVICE|INCOMING_CPU|PRIORITY) | CLOCK_(BOOTTIME|TAI|MONOTONIC_COARSE|REALTIME_COARSE)
    | fork | forkserver | forkpty | get_nprocs | malloc_trim | mallopt""",
    re.VERBOSE,
)
"""Names that macOS's C library or Python lacks, or that behave otherwise there (fork after threads were started)."""

FOLDERS = re.compile(r"/(proc|sys)(/|$)|(proc|sys)/\w|/dev/(shm|full)")
METHODS = {"splice", "tee", "fork"}
"""Names that others than the system have, too: counted only as members of ``os``."""


def uses(source: str) -> Iterator[tuple[int, str]]:
    """Yield (line, name) of each use of what only Linux has: names, members, imports and paths; not in docstrings."""
    tree = ast.parse(source)
    told = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    }
    for node in ast.walk(tree):
        found: list[str] = []
        if isinstance(node, ast.Attribute):
            others = node.attr in METHODS and not (isinstance(node.value, ast.Name) and node.value.id == "os")
            found = [] if others else [node.attr]
        elif isinstance(node, ast.Name) and node.id not in METHODS:
            found = [node.id]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found = [alias.name for alias in node.names if node.module in ("os", "signal", "select", "socket", "fcntl")]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in told:
            if FOLDERS.match(node.value):
                yield node.lineno, node.value
            found = [node.value] if node.value not in METHODS else []  # as for getattr
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute | ast.Name):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
            words = (*node.args, *(keyword.value for keyword in node.keywords))
            constants = [word.value for word in words if isinstance(word, ast.Constant)]
            found = ["fork"] if "fork" in constants and called in ("get_context", "set_start_method") else []
        for name in found:
            if ONLY_LINUX.fullmatch(name):
                yield node.lineno, name


def sources() -> Iterator[Path]:
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            if not any(part.is_symlink() for part in path.parents):  # rooms are links inside ds4ref
                yield path


@pytest.mark.thorough
def test_what_only_linux_has_is_called_in_few_places():
    found: dict[str, list[str]] = {}
    for path in sources():
        for line, name in uses(path.read_text(encoding="utf-8")):
            found.setdefault(str(path.relative_to(ROOT)), []).append(f"{line}: {name}")
    assert len(list(sources())) > 400
    assert {file: names for file, names in found.items() if file not in ALLOWED} == {}
    assert set(ALLOWED) == set(found), "a file of the list that no longer needs to be there"


@pytest.mark.parametrize(
    "line",
    [
        "import os; os.sched_getaffinity(0)",
        "from os import posix_fadvise",
        "flags = os.O_RDONLY | os.O_DIRECT",
        "multiprocessing.get_context('fork')",
        "multiprocessing.get_context(method='fork')",
        "if os.fork() == 0: pass",
        "open('/proc/self/statm')",
        "(root / 'proc/self/cgroup').read_text()",
        "Path('/sys')",
        "getattr(os, 'eventfd')",
        "os.splice(1, 2, 3)",
        "signal.SIGRTMIN + 1",
        "libc.prctl(1, 9)",
        "select.epoll()",
        "region.madvise(mmap.MADV_HUGEPAGE)",
    ],
)
def test_a_linux_only_call_is_found(line: str):
    assert list(uses(f"def f():\n    {line}\n"))


@pytest.mark.parametrize(
    "line",
    [
        '"""Reads /proc/self/statm."""',
        "self._splice = Splice()",
        "a.splice(b)",
        "compare.fork is None and fork_at",
        "path = '/processed'",
        "parser.add_argument('splice')",
        "os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)",
        "signal.SIGTERM",
    ],
)
def test_what_a_mac_has_is_not_taken_for_it(line: str):
    assert list(uses(f"def f():\n    {line}\n")) == []


# --- file systems that fold case, and normalise Unicode, as macOS's do


# --- the Makefile, for macOS's make 3.81, bash 3.2 and BSD tools
