"""The machine: processor, cores, memory, clocks, where its user keeps things.

Nothing here is measured; it is what a reader needs to judge whether two results may be compared.
Facts a platform does not tell are None.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

from .errors import DataError


def machine() -> dict[str, Any]:
    """Processor, usable cores, memory, clock policy, system, and how busy it is right now."""
    allowed = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    return {
        "cpu": cpu_name(),
        "cores": len(allowed) if allowed is not None else os.cpu_count(),
        "cores_total": os.cpu_count(),
        "affinity": None if allowed is None else ranges(allowed),
        "memory_bytes": memory_bytes(),
        "governor": _line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "huge_pages": _chosen(_line("/sys/kernel/mm/transparent_hugepage/enabled")),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
    }


def data_dir() -> Path:
    """The folder for what users want to keep: $DS4_DATA_DIR, else $XDG_DATA_HOME/ds4ref, else ~/.local/share/ds4ref
    (macOS: ~/Library/Application Support/ds4ref). It may not exist yet."""
    given = os.environ.get("DS4_DATA_DIR")
    if given:
        return Path(given)
    home = os.environ.get("XDG_DATA_HOME", "")
    if os.path.isabs(home):  # the XDG rules: a relative path counts as unset
        return Path(home) / "ds4ref"
    try:
        base = Path.home()
    except RuntimeError:
        raise DataError("no home directory for results: set DS4_DATA_DIR to a writable folder") from None
    return base / ("Library/Application Support" if sys.platform == "darwin" else ".local/share") / "ds4ref"


def resident_bytes() -> int | None:
    """Memory of this process that is resident now, mapped model pages included."""
    text = _line("/proc/self/statm")
    return None if text is None else int(text.split()[1]) * os.sysconf("SC_PAGE_SIZE")


def cpu_name() -> str:
    """The processor's name as its maker writes it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    if sys.platform == "darwin":
        try:
            query = ["sysctl", "-n", "machdep.cpu.brand_string"]
            return subprocess.run(query, capture_output=True, text=True, timeout=5, check=True).stdout.strip()
        except (OSError, subprocess.SubprocessError):
            pass
    return platform.processor() or platform.machine()


def memory_bytes() -> int | None:
    """Memory this process may use: what the machine has, or less where a control group says so."""
    try:
        physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None
    return min([physical, *_cgroup_limits()])


def _cgroup_limits(root: Path = Path("/sys/fs/cgroup")) -> list[int]:
    """Memory limits of this process's control groups and of those around them (Linux, versions 1 and 2)."""
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
    """``[0, 1, 2, 5]`` as ``0-2,5``."""
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
    """The word in brackets of ``always [madvise] never``."""
    return None if text is None else text.partition("[")[2].partition("]")[0] or text
