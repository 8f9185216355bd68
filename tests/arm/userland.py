"""A Python for AArch64 below one folder: Debian's packages unpacked, wheels beside them, run by qemu's user emulation.

Nothing is installed or registered on this machine: apt keeps its state in that folder, and the interpreter is a script
that starts qemu. Programs of this machine (sh, git) run as they are; only Python and what it loads is emulated.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from shlex import quote
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
QEMU = ("qemu-aarch64-static", "qemu-aarch64")
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
RELEASE = "bookworm"
PYTHON = "3.11"
"""Python of that release of Debian."""

PACKAGES = (f"python{PYTHON}", "libstdc++6")
LEFT_OUT = frozenset({"ruff", "mypy", "import-linter", "pandas", "distributed"})
"""Requirements of the whole suite that the tests run here do without."""

AS_HERE = ("numba", "llvmlite", "numpy")
"""Packages of which the version of this interpreter is taken: it compiles the kernels that are loaded there."""

GLIBC = range(17, 37)
"""Minor versions of glibc 2 whose wheels run on it."""


class UserlandError(Exception):
    """The user space cannot be made here; the message is one line."""


class Machine(NamedTuple):
    """An emulated processor: its name for LLVM and for qemu, and how Linux describes it in /proc/cpuinfo."""

    cpu: str
    qemu: str
    part: int
    features: str


_FIRST = "fp asimd evtstrm crc32 cpuid"
_LATER = f"{_FIRST} aes pmull sha1 sha2 atomics fphp asimdhp asimdrdm lrcpc dcpop asimddp ssbs"
MACHINES = {
    "C": Machine("cortex-a72", "cortex-a72", 0xD08, _FIRST),
    "N": Machine("neoverse-n1", "neoverse-n1", 0xD0C, _LATER),
}
"""The machine of each tier. An instruction beyond the tier ends the process (SIGILL)."""


def required() -> list[str]:
    """Return the packages that the suite needs, as pip reads them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *project["optional-dependencies"]["test"]]
    names = {line: re.split(r"[^\w.-]", line, maxsplit=1)[0] for line in lines}
    exact = [f"{name}=={importlib.metadata.version(name)}" for name in AS_HERE]
    return [*exact, *(line for line, name in names.items() if name not in LEFT_OUT and name not in AS_HERE)]


def make(folder: Path) -> Path:
    """Make the user space in ``folder``, unless it is there, and return its interpreter. Raise UserlandError."""
    python, stamp = folder / "venv/bin/python", folder / "made"
    recipe = hashlib.sha256("\n".join([str(folder), Path(__file__).read_text(), *required()]).encode()).hexdigest()
    if stamp.exists() and stamp.read_text() == recipe:
        return python
    qemu = emulator()
    print(f"arm: making an AArch64 Python in {folder}, once: 20 MB of packages, 200 MB of wheels", file=sys.stderr)
    for name in ("made", "apt", "root", "venv"):
        path = folder / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    unpack(folder / "apt", folder / "root")
    install(folder / "venv" / "lib" / f"python{PYTHON}" / "site-packages")
    interpreter(folder, qemu)
    run([str(python), "-c", "import ctypes, sqlite3, ssl, numpy, llvmlite.binding"], "the emulated Python")
    stamp.write_text(recipe)
    return python


def emulator() -> str:
    """Return the path of qemu; raise UserlandError if there is none."""
    for name in QEMU:
        if found := shutil.which(name):
            return found
    raise UserlandError(f"no {QEMU[0]} (Debian and Ubuntu: apt install qemu-user-static)")


def unpack(apt: Path, root: Path) -> None:
    """Fetch Debian's arm64 packages, with all that they depend on, and unpack them into ``root``."""
    for tool in ("apt-get", "dpkg-deb"):
        if not shutil.which(tool):
            raise UserlandError(f"no {tool}: the packages of an AArch64 Python are fetched by Debian's tools")
    if not KEYRING.exists():
        raise UserlandError(f"no {KEYRING} (apt install debian-archive-keyring)")
    for name in ("state/lists/partial", "cache/archives/partial", "etc/apt.conf.d", "etc/preferences.d"):
        (apt / name).mkdir(parents=True, exist_ok=True)
    (apt / "etc/sources.list").write_text(f"deb [signed-by={KEYRING}] {mirror()} {RELEASE} main\n")
    (apt / "state/status").write_text("")  # nothing is installed: every dependency is fetched
    settings = [
        'APT::Architecture "arm64"', 'APT::Architectures { "arm64"; }', 'APT::Sandbox::User ""',
        f'Dir::State "{apt}/state"', f'Dir::State::status "{apt}/state/status"', f'Dir::Cache "{apt}/cache"',
        f'Dir::Etc "{apt}/etc"', 'Dir::Etc::sourceparts "/dev/null"', 'Acquire::Languages "none"',
    ]  # fmt: skip
    (apt / "apt.conf").write_text("".join(f"{setting};\n" for setting in settings))
    environment = os.environ | {"APT_CONFIG": str(apt / "apt.conf")}
    run(["apt-get", "-q", "update"], "apt-get update", environment)
    fetch = ["apt-get", "-q", "-y", "--no-install-recommends", "--download-only", "install", *PACKAGES]
    run(fetch, "fetching arm64 packages", environment)
    root.mkdir()
    for package in sorted((apt / "cache/archives").glob("*.deb")):
        run(["dpkg-deb", "-x", str(package), str(root)], f"unpacking {package.name}")


def mirror() -> str:
    """Return the address of the mirror of Debian that this machine's apt uses; raise UserlandError if it knows none."""
    chosen = ["Created-By: Packages", "Component: main", "Origin: Debian"]
    asked = ["apt-get", "indextargets", "--format", "$(SITE)", *chosen]
    for site in run(asked, "apt-get indextargets").split():
        if site.rstrip("/").endswith("/debian"):
            return site
    raise UserlandError("apt knows no mirror of Debian (run apt-get update; on Ubuntu name one in sources.list)")


def install(site: Path) -> None:
    """Install AArch64 wheels of what the suite needs into ``site``, and a link to this tree."""
    platforms = [f"--platform=manylinux{tag}_aarch64" for tag in ("2014", *(f"_2_{minor}" for minor in GLIBC))]
    wheels = ["--only-binary=:all:", f"--python-version={PYTHON}", "--implementation=cp", *platforms]
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", "install", "--no-compile"]
    run([*pip, f"--target={site}", *wheels, *required()], "installing AArch64 wheels")
    (site / "ds4ref.pth").write_text(f"{ROOT}\n")


def interpreter(folder: Path, qemu: str) -> None:
    """Write the interpreter: a script, so that ``sys.executable`` starts an emulated Python from anywhere."""
    python = folder / "venv/bin/python"
    python.parent.mkdir()
    real = folder / f"root/usr/bin/python{PYTHON}"
    start = f'exec {quote(qemu)} -L {quote(f"{folder}/root")} -0 "$0" {quote(str(real))} "$@"'
    machine = MACHINES["C"].qemu
    python.write_text(f'#!/bin/sh\nQEMU_CPU="${{QEMU_CPU:-{machine}}}" {start}\n')
    python.chmod(0o755)
    (folder / "venv/pyvenv.cfg").write_text(f"home = {real.parent}\ninclude-system-site-packages = false\n")


def enter(folder: Path, tier: str) -> dict[str, str]:
    """Let the user space be the machine of a tier, and return the environment for its interpreter.

    The name of the processor is read from /proc/cpuinfo, by LLVM and by us; qemu reads files below its root first.
    """
    machine = MACHINES[tier]
    lines = [
        "processor\t: 0", f"Features\t: {machine.features}", "CPU implementer\t: 0x41", "CPU architecture: 8",
        "CPU variant\t: 0x0", f"CPU part\t: {machine.part:#x}", "CPU revision\t: 1",
    ]  # fmt: skip
    (folder / "root/proc").mkdir(exist_ok=True)
    (folder / "root/proc/cpuinfo").write_text("".join(f"{line}\n" for line in lines))
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**inherited, "QEMU_CPU": machine.qemu, "DS4_SIMD_TIER": tier}


def run(command: list[str], what: str, environment: dict[str, str] | None = None) -> str:
    """Run a command and return what it printed; raise UserlandError with its last line if it fails."""
    done = subprocess.run(command, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        lines = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()
        raise UserlandError(f"{what} failed: {lines[-1]}")
    return done.stdout
