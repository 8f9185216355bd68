"""What a result says about where it came from: model, prompt, machine, software, command (measurement.md)."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ds4ref.cli.model import identity

if TYPE_CHECKING:
    from ds4ref.engine import Engine

HASH_LIMIT = 2 << 30  # larger model files are identified by size and header only


def collect(engine: Engine, command: Sequence[str], prompt_sha256: str) -> dict[str, Any]:
    """Everything but the rows, ready for JSON."""
    facts = identity(engine)
    path = Path(engine.path)
    if path.stat().st_size <= HASH_LIMIT:
        with open(path, "rb") as file:
            facts["model"]["sha256"] = hashlib.file_digest(file, "sha256").hexdigest()
    return {
        **facts,
        "prompt_sha256": prompt_sha256,
        "threads": engine.threads,
        "command": list(command),
        "commit": commit(),
        "machine": machine(),
        "versions": versions(),
    }


def machine() -> dict[str, Any]:
    """Processor, usable cores, memory, system."""
    return {
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": _memory(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
    }


def versions() -> dict[str, str]:
    """Of everything that computes."""
    found = {"python": platform.python_version()}
    for name in ("numpy", "numba", "llvmlite", "tokenizers"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            pass
    return found


def commit() -> str | None:
    """The git commit of this source tree, with ``+`` if it has changes; None for an installed copy."""
    root = Path(__file__).resolve().parents[1]
    if not (root / ".git").exists():
        return None
    try:
        head, status = (
            subprocess.run(
                ["git", "-C", str(root), *args], capture_output=True, text=True, timeout=10, check=True
            ).stdout
            for args in (("rev-parse", "HEAD"), ("status", "--porcelain", "--untracked-files=no"))
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return head.strip() + ("+" if status.strip() else "")


def _cpu_name() -> str:
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


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None
