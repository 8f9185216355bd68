"""Installs clients into the user's cache, each into its own virtual environment or npm folder.

    place = installed(kind) or install(kind, log)
    place.python, place.program("codex")

Clients are installed by name and version with pip or npm. The file MARK is written into a folder last; a folder without
it is incomplete and installed anew. Nothing is ever installed into the environment that runs this.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import IO

from ..errors import DataError
from ..nano.cache import building
from .clients import Kind, home
from .talk import shown

MARK = "installed.json"
MOST_SECONDS = 1800


@dataclass(frozen=True)
class Place:
    """An installed client: its folder (None: the environment of this interpreter) and its version."""

    folder: Path | None
    version: str

    @property
    def python(self) -> str:
        """Path of the interpreter in which the client is installed."""
        return sys.executable if self.folder is None else str(self.folder / "venv" / "bin" / "python")

    def program(self, name: str) -> str:
        """Return the path of the client's command ``name``."""
        assert self.folder is not None
        for where in (self.folder / "venv" / "bin", self.folder / "node_modules" / ".bin"):
            if (where / name).exists():
                return str(where / name)
        raise DataError(f"{self.folder} has no command {name}")

    @property
    def path(self) -> str:
        """PATH for running the client's commands; its own Node.js comes before the system's."""
        own = [] if self.folder is None else [str(self.folder / "node_modules" / ".bin")]
        return os.pathsep.join([*own, os.environ.get("PATH", os.defpath)])


def installed(kind: Kind) -> Place | None:
    """Return where ``kind`` is installed: in this interpreter (same version) or in the cache; None if in neither."""
    if not kind.registry:
        return Place(None, "")
    if kind.runs == "probe":
        try:
            if metadata.version(kind.package) == kind.version:
                return Place(None, kind.version)
        except metadata.PackageNotFoundError:
            pass
    folder = Path(home()) / kind.folder
    try:
        return Place(folder, json.loads((folder / MARK).read_text())["version"])
    except (OSError, ValueError, LookupError):
        return None


def install(kind: Kind, log: IO[str]) -> Place:
    """Install ``kind``, writing the output of pip or npm to ``log``; raises DataError if that fails."""
    folder = Path(home()) / kind.folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with building(folder):
        place = installed(kind)
        if place is not None:
            return place
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        version = (_pip if kind.registry == "pip" else _npm)(kind, folder, log)
        (folder / MARK).write_text(json.dumps({"package": kind.package, "version": version}))
    return Place(folder, version)


def _pip(kind: Kind, folder: Path, log: IO[str]) -> str:
    python = str(folder / "venv" / "bin" / "python")
    _run([sys.executable, "-m", "venv", str(folder / "venv")], kind, log)
    wanted = kind.package if kind.version == "latest" else kind.requirement
    pip = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", wanted, *kind.more]
    _run(pip, kind, log)
    name = kind.package.partition("[")[0]
    ask = f"import importlib.metadata as m; print(m.version({name!r}))"
    return subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True).stdout.strip()


def _npm(kind: Kind, folder: Path, log: IO[str]) -> str:
    npm = shutil.which("npm")
    if npm is None:
        raise DataError(f"{kind.name} comes from npm, which is not here")
    (folder / "package.json").write_text('{"private": true}')
    options = ["--prefix", str(folder), "--no-audit", "--no-fund", "--loglevel=error"]
    _run([npm, "install", *options, kind.requirement, *kind.more], kind, log)
    manifest = json.loads((folder / "node_modules" / kind.package / "package.json").read_text())
    return str(manifest["version"])


def _run(command: list[str], kind: Kind, log: IO[str]) -> None:
    log.write(f"$ {' '.join(command)}\n")
    log.flush()
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, timeout=MOST_SECONDS
        )
    except subprocess.TimeoutExpired:
        raise DataError(f"{kind.name} {kind.version} was not installed within {MOST_SECONDS} s") from None
    if done.returncode:
        raise DataError(f"{kind.name} {kind.version} cannot be installed: {_complaint(log.name)}")


def _complaint(path: str) -> str:
    """Return the first error message of pip or npm in the log file ``path``, as one line."""
    lines = [line.partition("rror")[2].lstrip(": ") for line in Path(path).read_text().splitlines() if "rror" in line]
    messages = [line for line in lines if line.count(" ") > 2]
    return shown(messages[0] if messages else f"see {path}")
