"""Which wheels a Mac and Linux on AArch64 get: every dependency and extra, resolved for a platform that is not here.

    python -m tests.wheels              asks the package index; prints the table of docs/reference/platforms.md

uv resolves, because pip judges a requirement's conditions ("on Linux only") by the machine it runs on.
"""

from __future__ import annotations

import datetime
import itertools
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from packaging.tags import Tag, compatible_tags, cpython_tags, mac_platforms
from packaging.utils import parse_wheel_filename

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
BASE = "base"
SETS = (BASE, *PROJECT["optional-dependencies"])
PYTHONS = tuple(line.rpartition(" ")[2] for line in PROJECT["classifiers"] if re.search(r":: Python :: 3\.\d+$", line))
MAC, LINUX = "macOS arm64", "Linux AArch64"
PLATFORMS = {MAC: "aarch64-apple-darwin", LINUX: "aarch64-manylinux_2_28"}
MACOS = "14.0"
"""The oldest macOS that all extras are resolved for."""

WITHOUT = {
    "peers": "llama-cpp-python comes as source alone; pip builds it with CMake and a C++ compiler (on a Mac: "
    "`xcode-select --install`)",
}
"""Sets of which something has no wheel, and why."""


@dataclass(frozen=True)
class Wheels:
    """What a set resolves to.

    packages  number of packages
    compiled  name and version of each package that has code of its own, and the versions in its wheel's platform tag:
              of macOS, or of the C library
    reason    why it does not resolve, "" if it does
    """

    packages: int = 0
    compiled: tuple[tuple[str, tuple[int, ...]], ...] = ()
    reason: str = ""


def command(extra: str, platform: str, python: str) -> list[str]:
    """Return the call of uv that resolves a set; sources are not built."""
    chosen = [] if extra == BASE else ["--extra", extra]
    where = ["--python-platform", PLATFORMS[platform], "--python-version", python]
    options = ["--no-config", "--no-header", "--no-build", "--format", "pylock.toml", "-q"]
    return [sys.executable, "-m", "uv", "pip", "compile", str(ROOT / "pyproject.toml"), *chosen, *where, *options]


def resolve(extra: str, platform: str, python: str) -> Wheels:
    """Resolve a set for a platform and a Python. Raise subprocess.TimeoutExpired after five minutes."""
    environment = os.environ | {"MACOSX_DEPLOYMENT_TARGET": MACOS}
    asked = command(extra, platform, python)
    done = subprocess.run(asked, capture_output=True, text=True, timeout=300, env=environment)
    if done.returncode:
        return Wheels(reason=" ".join(done.stderr.split()))
    return read(done.stdout, platform, python)


def read(lock: str, platform: str, python: str) -> Wheels:
    """Read a pylock.toml: each package has to have a wheel for platform and Python; those that have none are the
    reason."""
    packages = [entry for entry in tomllib.loads(lock)["packages"] if "directory" not in entry]
    compiled, missing = [], []
    for entry in packages:
        names = [wheel.get("name") or wheel["url"].rpartition("/")[2] for wheel in entry.get("wheels", [])]
        versions = [version for name in names if (version := system(name, platform, python)) is not None]
        label = f"{entry['name']} {entry['version']}"
        if not versions:
            missing.append(label)
        elif () not in versions:
            compiled.append((label, min(versions)))
    return Wheels(len(packages), tuple(compiled), f"no wheel of {', '.join(missing)}" if missing else "")


@cache
def supported(platform: str, python: str) -> frozenset[Tag]:
    """Return the tags that a Python (``3.12``) takes on a platform, its newest systems included."""
    if platform == MAC:
        platforms = list(mac_platforms((30, 0), "arm64"))
    else:
        platforms = ["manylinux2014_aarch64", *(f"manylinux_2_{minor}_aarch64" for minor in range(17, 60))]
    version, name = tuple(map(int, python.split("."))), f"cp{python.replace('.', '')}"
    return frozenset([*cpython_tags(version, [name], platforms), *compatible_tags(version, name, platforms)])


def system(wheel: str, platform: str, python: str) -> tuple[int, ...] | None:
    """Return the oldest system that a wheel is for, () if for any; None if it is for another platform or Python."""
    fits = {tag.platform for tag in parse_wheel_filename(wheel)[3] & supported(platform, python)}
    if "any" in fits:
        return ()
    return min(map(_versions, fits), default=None)


def _versions(tag: str) -> tuple[int, ...]:
    """Return (2, 28) of manylinux_2_28_aarch64, (11, 0) of macosx_11_0_arm64."""
    old = {"manylinux1": (2, 5), "manylinux2010": (2, 12), "manylinux2014": (2, 17)}
    return old.get(tag.partition("_")[0]) or tuple(map(int, re.findall(r"_(\d+)(?=_)", tag)))


def cells() -> Iterator[tuple[str, str, str, Wheels]]:
    """Yield (extra, platform, python, result), resolved one after the other."""
    for extra in SETS:
        for platform in PLATFORMS:
            for python in PYTHONS:
                yield extra, platform, python, resolve(extra, platform, python)


def main() -> int:
    """Print the table; return 1 if something does not resolve that is not in WITHOUT."""
    results = {(extra, platform, python): wheels for extra, platform, python, wheels in cells()}
    print(f"| packages on {datetime.date.today()} | " + " | ".join(PLATFORMS) + " |")
    print("|---" * (1 + len(PLATFORMS)) + "|")
    for extra in SETS:
        row = []
        for platform in PLATFORMS:
            texts = [(python, shown(results[extra, platform, python], platform)) for python in PYTHONS]
            row.append("; ".join(grouped(texts)))
        print(f"| {extra} | " + " | ".join(row) + " |")
    bad = {key: wheels.reason for key, wheels in results.items() if wheels.reason}
    if bad:
        print(json.dumps({" ".join(key): reason[:400] for key, reason in bad.items()}, indent=1), file=sys.stderr)
    return int(any(extra not in WITHOUT for extra, _, _ in bad))


def grouped(texts: list[tuple[str, str]]) -> Iterator[str]:
    """Say once what neighbouring Pythons have in common."""
    for text, group in itertools.groupby(texts, key=lambda one: one[1]):
        pythons = [python for python, _ in group]
        yield f"{pythons[0]} to {pythons[-1]}: {text}" if len(pythons) > 1 else f"{pythons[0]}: {text}"


def shown(wheels: Wheels, platform: str) -> str:
    """Return what a cell of the table says."""
    if wheels.reason:
        return "**no**"
    if not wheels.compiled:
        return "nothing to compile"
    oldest = ".".join(map(str, max(version for _, version in wheels.compiled)))
    system = "macOS" if platform == "macOS arm64" else "glibc"
    return f"{wheels.packages}, of which {len(wheels.compiled)} compiled, for {system} {oldest}"


if __name__ == "__main__":
    raise SystemExit(main())
