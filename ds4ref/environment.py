"""Describe the machine and this process: processor, cores, memory, clocks, user folders.

Nothing here is measured; the descriptions help readers judge whether two results may be compared. What a platform does
not provide is None. With ``ds4ref.kernels.system`` this is the one place that reads /proc and /sys.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import sys
from pathlib import Path
from typing import Any

from .errors import DataError
from .kernels.system import allowed_cores, sysctl, sysctl_number, usable_cores
from .kernels.system import is_aarch64 as is_aarch64


def machine() -> dict[str, Any]:
    """Return a dict with processor, usable cores, memory, clock policy, system and current load."""
    allowed = allowed_cores()
    return {
        "cpu": cpu_name(),
        "cores": usable_cores(),
        "cores_total": os.cpu_count(),
        "affinity": None if allowed is None else ranges(allowed),
        "memory_bytes": memory_bytes(),
        "cache_bytes": cache_bytes(),
        "governor": _line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "huge_pages": _chosen(_line("/sys/kernel/mm/transparent_hugepage/enabled")),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
    }


def data_dir() -> Path:
    """Return the folder for users' data, which may not exist yet.

    $DS4_DATA_DIR, else $XDG_DATA_HOME/ds4ref, else ~/.local/share/ds4ref (macOS: ~/Library/Application Support/ds4ref).
    """
    configured = os.environ.get("DS4_DATA_DIR")
    if configured:
        return Path(configured)
    home = os.environ.get("XDG_DATA_HOME", "")
    if os.path.isabs(home):  # the XDG rules: a relative path counts as unset
        return Path(home) / "ds4ref"
    try:
        base = Path.home()
    except RuntimeError:
        raise DataError("no home directory for results: set DS4_DATA_DIR to a writable folder") from None
    return base / ("Library/Application Support" if sys.platform == "darwin" else ".local/share") / "ds4ref"


def resident_bytes() -> int | None:
    """Return the resident memory of this process in bytes, mapped model pages included."""
    text = _line("/proc/self/statm")
    return None if text is None else int(text.split()[1]) * os.sysconf("SC_PAGE_SIZE")


def threads_waited(folder: str = "/proc/self/task") -> dict[str, float] | None:
    """Return by thread id the seconds that each thread of this process has waited for a processor; None where the
    system does not count them."""
    try:
        threads = os.listdir(folder)
    except OSError:
        return None
    seconds = {}
    for thread in threads:
        try:
            with open(f"{folder}/{thread}/schedstat") as file:
                seconds[thread] = 1e-9 * int(file.read().split()[1])
        except (OSError, ValueError, IndexError):
            continue  # the thread has ended
    return seconds or None


def cpu_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return the processor's name; on AArch64 the names of its kinds of cores, joined by " + "."""
    kinds: dict[str, None] = {}
    implementer = ""
    try:
        for line in cpuinfo.read_text().splitlines():
            name, _, value = (word.strip() for word in line.partition(":"))
            if name == "model name":
                return value
            if name == "CPU implementer":
                implementer = value
            elif name == "CPU part":
                core = f"{implementer}:{value}"
                kinds[ARM_CORES.get(core, f"AArch64 core {core}")] = None
    except OSError:
        pass
    return " + ".join(kinds) or _text("machdep.cpu.brand_string") or platform.processor() or platform.machine()


ARM_CORES = {
    "0x41:0xd08": "Cortex-A72",
    "0x41:0xd0b": "Cortex-A76",
    "0x41:0xd0c": "Neoverse-N1",
    "0x41:0xd40": "Neoverse-V1",
    "0x41:0xd49": "Neoverse-N2",
    "0x41:0xd4f": "Neoverse-V2",
    "0x41:0xd84": "Neoverse-V3",
    "0x41:0xd85": "Cortex-X925",
    "0x41:0xd87": "Cortex-A725",
}
"""Names of AArch64 cores by "implementer:part": Linux reports these two numbers alone. Only cores that ds4ref is likely
to meet are listed."""


def _text(name: str) -> str:
    """Return a text value of macOS's sysctl; "" on other systems."""
    return sysctl(name).rstrip(b"\0").decode(errors="replace").strip()


def memory_bytes() -> int | None:
    """Return the memory in bytes that this process may use: the machine's memory, or the limit of a control group
    (container) if that is lower; None if unknown."""
    try:
        physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return sysctl_number("hw.memsize")
    return min([physical, *(limit for limit, _ in _cgroups())])


def cache_bytes(root: Path = Path("/sys/devices/system/cpu")) -> int | None:
    """Return the size in bytes of the last-level caches of the cores this process may use; a cache that several cores
    share counts once."""
    sizes_by_group: dict[tuple[int, str], int] = {}
    for core in allowed_cores() or ():
        for folder in root.glob(f"cpu{core}/cache/index*"):
            level, size, shared = (_line(str(folder / name)) for name in ("level", "size", "shared_cpu_list"))
            match = re.fullmatch(r"([0-9]+)([KMG]?)", size or "")
            if match is not None and (level or "").isdigit():
                scale = 1 << {"": 0, "K": 10, "M": 20, "G": 30}[match[2]]
                sizes_by_group[int(level or 0), shared or str(core)] = int(match[1]) * scale
    if sizes_by_group:
        last = max(level for level, _ in sizes_by_group)
        return sum(size for (level, _), size in sizes_by_group.items() if level == last)
    sizes = (sysctl_number(f"hw.{name}") for name in ("l3cachesize", "perflevel0.l2cachesize", "l2cachesize"))
    return next((size for size in sizes if size), None)


def host() -> str:
    """Return a pseudonym of this machine: a digest of its host name."""
    return hashlib.sha256(platform.node().encode()).hexdigest()[:12]


def available_bytes() -> int | None:
    """Return the memory in bytes that this process could still take without driving other processes out of it, system
    caches that can be dropped included; None if unknown."""
    for line in (_line("/proc/meminfo") or "").splitlines():
        if line.startswith("MemAvailable:"):
            return min([1024 * int(line.split()[1]), *(limit - taken for limit, taken in _cgroups())])
    return memory_bytes()


def _cgroups(root: Path = Path("/sys/fs/cgroup")) -> list[tuple[int, int]]:
    """Return (memory limit, bytes in use) of each control group of this process and of their parent groups that has a
    limit. Cached files do not count as in use."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    limits = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        name = "memory.limit_in_bytes" if controllers else "memory.max"
        place = Path(path.lstrip("/"))
        for folder in (place, *place.parents):
            text = _line(str(root / controllers / folder / name))
            if text is not None and text.isdigit():
                words = (_line(str(root / controllers / folder / "memory.stat")) or "").split()
                stat = dict(zip(words[::2], words[1::2], strict=False))
                limits.append((int(text), int(stat.get("total_rss" if controllers else "anon", 0))))
    return limits


def ranges(numbers: list[int]) -> str:
    """Format ``[0, 1, 2, 5]`` as ``0-2,5``."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)


def _line(path: str) -> str | None:
    try:
        return Path(path).read_text().strip() or None
    except (OSError, UnicodeDecodeError):
        return None


def _chosen(text: str | None) -> str | None:
    """Return the word in brackets, which is the active setting, of a text such as ``always [madvise] never``."""
    return None if text is None else text.partition("[")[2].partition("]")[0] or text
