"""Facts about the machine: processor, cores, memory, clocks, user folders.

Nothing here is measured; the facts help readers judge whether two results may be compared. Facts that a platform does
not provide are None.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from .errors import DataError


def machine() -> dict[str, Any]:
    """Return a dict with processor, usable cores, memory, clock policy, system and current load."""
    allowed = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    return {
        "cpu": cpu_name(),
        "cores": len(allowed) if allowed is not None else os.cpu_count(),
        "cores_total": os.cpu_count(),
        "affinity": None if allowed is None else ranges(allowed),
        "memory_bytes": memory_bytes(),
        "cache_bytes": cache_bytes(),
        "governor": _line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "huge_pages": _chosen(_line("/sys/kernel/mm/transparent_hugepage/enabled")),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
    }


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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


def cpu_name() -> str:
    """Return the processor's name."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return _sysctl("machdep.cpu.brand_string") or platform.processor() or platform.machine()


def _sysctl(name: str) -> str:
    """Return a value of macOS's sysctl; empty elsewhere."""
    if sys.platform != "darwin":
        return ""
    try:
        query = ["sysctl", "-n", name]
        return subprocess.run(query, capture_output=True, text=True, timeout=5, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def memory_bytes() -> int | None:
    """Return the memory in bytes that this process may use: the machine's, or less within a control group; None if
    unknown."""
    try:
        physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None
    return min([physical, *_cgroup_limits()])


def cache_bytes(root: Path = Path("/sys/devices/system/cpu")) -> int | None:
    """Return the last-level cache in bytes of the cores this process may use, summed over groups of cores sharing
    one."""
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else ()
    sizes_by_group: dict[tuple[int, str], int] = {}
    for core in cores:
        for folder in root.glob(f"cpu{core}/cache/index*"):
            level, size, shared = (_line(str(folder / name)) for name in ("level", "size", "shared_cpu_list"))
            match = re.fullmatch(r"([0-9]+)([KMG]?)", size or "")
            if match is not None and (level or "").isdigit():
                scale = 1 << {"": 0, "K": 10, "M": 20, "G": 30}[match[2]]
                sizes_by_group[int(level or 0), shared or str(core)] = int(match[1]) * scale
    if sizes_by_group:
        last = max(level for level, _ in sizes_by_group)
        return sum(size for (level, _), size in sizes_by_group.items() if level == last)
    sizes = [_sysctl(f"hw.{name}") for name in ("l3cachesize", "perflevel0.l2cachesize", "l2cachesize")]
    return next((int(size) for size in sizes if size.isdigit() and int(size)), None)


def host() -> str:
    """Return a pseudonym of this machine: a digest of its host name."""
    return hashlib.sha256(platform.node().encode()).hexdigest()[:12]


def _cgroup_limits(root: Path = Path("/sys/fs/cgroup")) -> list[int]:
    """Return the memory limits of this process's control groups and their parents (Linux, versions 1 and 2)."""
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
                limits.append(int(text))
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
    """Return the word in brackets of ``always [madvise] never``."""
    return None if text is None else text.partition("[")[2].partition("]")[0] or text
