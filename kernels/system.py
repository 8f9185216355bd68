"""What differs between operating systems, for the kernels and all above them: cores, sysctl, priorities, memory.

Calls that only Linux has are here or in ``ds4ref.environment``. Where a system lacks one, nothing fails: the functions
return None, something empty, or what a portable call gives.
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
"""Capacity (Linux's ``cpu_capacity``), as a share of the fastest core's, from which a core counts as a performance
core.

Cores of the same kind differ by their highest clock: 1007 to 1024 on NVIDIA's Grace, three classes of Cortex-X925 on
GB10. Different kinds of cores on one chip are further apart.
"""

USER_INTERACTIVE = 0x21
"""QOS_CLASS_USER_INTERACTIVE of macOS's <sys/qos.h>: the class that the scheduler keeps on performance cores."""


@cache
def _libc() -> Any:
    """Return the C library of this process."""
    return ctypes.CDLL(None, use_errno=True)


def sysctl(name: str) -> bytes:
    """Return the raw value that macOS's sysctl has for ``name``; empty if it has none, and on other systems."""
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
    """Return the integer (4 or 8 bytes) that macOS's sysctl has for ``name``; None if it has none."""
    raw = sysctl(name)
    return int.from_bytes(raw, sys.byteorder) if raw else None


def prefer_performance_cores() -> None:
    """Ask macOS to run the calling thread on performance cores; do nothing on other systems."""
    if sys.platform == "darwin":
        _libc().pthread_set_qos_class_self_np(ctypes.c_uint(USER_INTERACTIVE), ctypes.c_int(0))


def anonymous_memory(size: int) -> mmap.mmap:
    """Return ``size`` zero bytes that take memory only once they are written, in huge pages where the system has them.

    Raise OSError if the system does not grant a range of that size.
    """
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | (MAP_NORESERVE if sys.platform == "linux" else 0)
    memory = mmap.mmap(-1, size, flags=flags)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


MAP_NORESERVE = 0x4000
"""Linux's flag of mmap to set no swap space aside for a mapping; Python's mmap has the name only from 3.13 on."""

LOCK_STEP = 64 << 20
"""Bytes that are locked into memory per system call."""


def lock_memory(address: int, size: int) -> int:
    """Lock a range into memory as far as the system allows; return how many bytes from its start are locked.

    On Linux a page is locked once it is written (MLOCK_ONFAULT); on other systems nothing is locked.
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
    """Ask the system to read the pages of a mapped file that hold ``size`` bytes at ``address``; do not wait for the
    data, at most for a place in the disk's queue."""
    start = address // mmap.PAGESIZE * mmap.PAGESIZE
    advise = _libc().madvise
    advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    advise(start, address + size - start, 3)  # MADV_WILLNEED, everywhere


def no_read_ahead(address: int, size: int) -> None:
    """Tell the system that single pages of a mapped file will be read, in no order: not to read their neighbours."""
    start = address // mmap.PAGESIZE * mmap.PAGESIZE
    advise = _libc().madvise
    advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    advise(start, address + size - start, 1)  # MADV_RANDOM, everywhere


def open_uncached(path: str) -> int:
    """Open a file to be read in whole pages without filling the system's cache, if its file system can do that.

    Return a file descriptor; raise OSError if the file cannot be opened.
    """
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
    """Return whether ``machine`` (None: this one), the first word of an LLVM target triple, means AArch64."""
    return (platform.machine() if machine is None else machine).lower() in ("aarch64", "arm64")


def allowed_cores() -> list[int] | None:
    """Return the numbers of the cores that this process may use; None where the system has no affinity masks."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None


def usable_cores() -> int:
    """Return the number of cores that this process may use, efficiency cores included."""
    allowed = allowed_cores()
    return os.cpu_count() or 1 if allowed is None else len(allowed)


def available_cores(root: Path = Path("/")) -> int:
    """Return the best number of threads to compute with.

    It is the number of performance cores that this process may use, limited by the CPU quotas of its control groups
    (files below ``root``). Threads wait for each other after every step, so an efficiency core would hold up the rest.
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
        except (OSError, ValueError):  # x86, and other machines without these files
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
