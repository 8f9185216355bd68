"""What operating systems do each in their own way, for the kernels and all above them: cores, sysctl, priorities.

Calls that only Linux has lie here or in ``ds4ref.environment``. Nothing fails where a
system lacks one: the answer is None, empty, or the portable one.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import platform
import sys
from functools import cache
from pathlib import Path
from typing import Any

FAST = 0.8
"""Capacity, as a share of the fastest core's, from which a core counts as a performance core.

Equal cores differ by their highest clock: 1007 to 1024 on NVIDIA's Grace, three classes of Cortex-X925 on GB10. The
kinds of a chip lie further apart.
"""

USER_INTERACTIVE = 0x21
"""QOS_CLASS_USER_INTERACTIVE of macOS's <sys/qos.h>: the class that the scheduler keeps on performance cores."""


@cache
def _libc() -> Any:
    """Return the C library of this process."""
    return ctypes.CDLL(None, use_errno=True)


def sysctl(name: str) -> bytes:
    """Return the raw value of a name of macOS's sysctl; empty where there is none, and on other systems."""
    if sys.platform != "darwin":
        return b""
    size = ctypes.c_size_t(0)
    ask = _libc().sysctlbyname
    # unlike a call without types, this passes pointers and sizes whole
    ask.argtypes = (ctypes.c_char_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_size_t), ctypes.c_void_p, ctypes.c_size_t)
    if ask(name.encode(), None, ctypes.byref(size), None, 0) or not size.value:
        return b""
    buffer = ctypes.create_string_buffer(size.value)
    return b"" if ask(name.encode(), buffer, ctypes.byref(size), None, 0) else buffer.raw[: size.value]


def sysctl_number(name: str) -> int | None:
    """Return an integer value of macOS's sysctl, of 4 or 8 bytes; None where there is none."""
    raw = sysctl(name)
    return int.from_bytes(raw, sys.byteorder) if raw else None


def prefer_performance_cores() -> None:
    """Ask macOS to run the calling thread on performance cores; do nothing on other systems."""
    if sys.platform == "darwin":
        _libc().pthread_set_qos_class_self_np(ctypes.c_uint(USER_INTERACTIVE), ctypes.c_int(0))


def anonymous_memory(size: int) -> mmap.mmap:
    """Return ``size`` bytes of zeros that take memory only once they are written, in huge pages where there are any.

    Raise OSError if the system grants no such range.
    """
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | (MAP_NORESERVE if sys.platform == "linux" else 0)
    memory = mmap.mmap(-1, size, flags=flags)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


MAP_NORESERVE = 0x4000
"""Linux: no swap space is set aside for a mapping. Python has the name from 3.13 on."""

LOCK_STEP = 64 << 20
"""Bytes that are locked into memory at once."""


def lock_memory(address: int, size: int) -> int:
    """Keep a range in memory, as far as the system lets this process; return the bytes from its start that are kept.

    On Linux pages are kept once they are written (MLOCK_ONFAULT); elsewhere nothing is locked.
    """
    try:
        lock = _libc().mlock2
    except AttributeError:
        return 0
    lock.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint)
    for done in range(0, size, LOCK_STEP):
        if lock(address + done, min(LOCK_STEP, size - done), 1):
            return done
    return size


def will_need(address: int, size: int) -> None:
    """Ask for the pages of a mapped file around ``size`` bytes; waits at most for the queue of the disk."""
    start = address // mmap.PAGESIZE * mmap.PAGESIZE
    advise = _libc().madvise
    advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    advise(start, address + size - start, 3)  # MADV_WILLNEED, everywhere


def open_uncached(path: str) -> int:
    """Open a file to be read in whole pages past the system's cache, where its file system can do that; return a file
    descriptor. Raise OSError."""
    if hasattr(os, "O_DIRECT"):
        with contextlib.suppress(OSError):
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT)
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    if sys.platform == "darwin":
        import fcntl

        with contextlib.suppress(OSError):
            fcntl.fcntl(handle, 48, 1)  # F_NOCACHE
    return handle


def is_aarch64(machine: str | None = None) -> bool:
    """Return whether ``machine``, by default this one, is AArch64; a triple begins with it."""
    return (platform.machine() if machine is None else machine).lower() in ("aarch64", "arm64")


def allowed_cores() -> list[int] | None:
    """Return the numbers of the cores that this process may use; None where the system has no affinity masks."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None


def usable_cores() -> int:
    """Return the number of cores that this process may use, efficiency cores included."""
    allowed = allowed_cores()
    return os.cpu_count() or 1 if allowed is None else len(allowed)


def available_cores(root: Path = Path("/")) -> int:
    """Return the number of threads that computing is best spread over.

    They are the performance cores that this process may use, capped by the CPU quotas of its control groups (files in
    ``root``). Threads of a phase wait for each other, so an efficiency core would hold up the others.
    """
    return max(1, min([_performance_cores(root), *_granted_cores(root)]))


def _performance_cores(root: Path) -> int:
    """Return the number of performance cores that this process may use; all cores where there is one kind."""
    allowed = allowed_cores()
    if allowed is None:
        return sysctl_number("hw.perflevel0.physicalcpu") or usable_cores()
    capacities = []
    for core in allowed:
        try:
            capacities.append(int((root / f"sys/devices/system/cpu/cpu{core}/cpu_capacity").read_text()))
        except (OSError, ValueError):  # x86, and whoever does not say
            return len(allowed)
    return sum(capacity >= FAST * max(capacities) for capacity in capacities)


def _granted_cores(root: Path) -> list[int]:
    """Return the CPU quotas, in cores rounded up, of this process's control groups and their parents."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:  # not Linux
        return []
    granted = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        names = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if controllers else ("cpu.max",)  # version 1, version 2
        group = Path(path.lstrip("/"))
        for folder in (group, *group.parents):
            with contextlib.suppress(OSError, ValueError):  # no such file; the word max
                files = (root / "sys/fs/cgroup" / controllers / folder / name for name in names)
                quota, period = (int(word) for file in files for word in file.read_text().split())
                if quota > 0 and period > 0:  # -1: no limit
                    granted.append(-(-quota // period))
    return granted
