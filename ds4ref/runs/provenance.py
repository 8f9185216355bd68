"""Metadata that say where a result comes from: command, commit, machine, versions, engine, model.

    facts = {**engine_facts(engine, store, progress), **stamp(["ds4-bench", *argv])}

All tools record them in this form. ``environment`` describes the machine; this module adds the code and the model.
"""

from __future__ import annotations

import calendar
import hashlib
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..environment import machine
from ..files import file_digest
from ..weights.source import files_of

if TYPE_CHECKING:
    from ..engine import Engine
    from ..weights.source import TensorSource
    from .store import Store

PACKAGES = ("numpy", "numba", "llvmlite", "tokenizers", "scipy")
FORM = "%Y-%m-%dT%H:%M:%SZ"
HASH_LIMIT = 2 << 30
"""Size in bytes above which a model file is not hashed, only its header, unless a run store caches the hash."""


def stamp(command: Sequence[str] | None = None) -> dict[str, Any]:
    """Return metadata on this process: time (UTC), command, commit, machine and versions.

    ``command`` is the command line to record; None: that of this process.
    """
    return {
        "created": now(),
        "command": list(own_command() if command is None else command),
        "commit": commit(),
        "machine": machine(),
        "versions": versions(),
    }


def now() -> str:
    """Return the current UTC time as the string that the run store uses."""
    return time.strftime(FORM, time.gmtime())


def age(then: str | None, now: str) -> float | None:
    """Return the seconds from one of the run store's timestamps to another; None if either cannot be parsed."""
    try:
        return float(calendar.timegm(time.strptime(now, FORM)) - calendar.timegm(time.strptime(then or "", FORM)))
    except ValueError:
        return None


def own_command() -> list[str]:
    """Return the command line of this process, with the program's name ("python -m MODULE") instead of its path."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is not None:
        return ["python", "-m", spec.name.removesuffix(".__main__"), *sys.argv[1:]]
    return [Path(sys.argv[0]).name, *sys.argv[1:]]


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages used for computing."""
    versions_by_name = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions_by_name[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            pass
    return versions_by_name


def commit() -> str | None:
    """Return the git commit of this source tree, with ``+`` appended if there are uncommitted changes.

    None if it is unknown, as in an installed copy.
    """
    root = Path(__file__).resolve().parents[2]
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


def identity(engine: Engine) -> dict[str, Any]:
    """Return a dict with engine, model file, backend, numerics, and all other settings that change results.

    The latter are in ``Engine.also``. The model's digest covers the file's header, not the weights: hashing 80 GB would
    take longer than most uses.
    """
    from ..archs.deepseek4.checkpoint import release_of
    from ..version import __version__

    source = engine.source
    return {
        "engine": f"ds4ref {__version__}",
        "model": {
            "name": source.metadata.get("general.name"),
            "file": Path(engine.path).name,
            "bytes": source.size,
            "header_sha256": header_digest(source),
            **release_of(source),
        },
        "backend": engine.backend,
        "numerics": engine.model.numerics.name,
        **engine.also,
    }


def engine_facts(
    engine: Engine, store: Store | None = None, progress: Callable[[int, int], None] | None = None
) -> dict[str, Any]:
    """Return the metadata of an engine: ``identity``, number of threads, workers of a cluster, hash of the model file.

    A file above ``HASH_LIMIT`` is hashed only if ``store`` is given, which caches the hash. ``progress`` is called with
    (bytes read, bytes in all) while hashing.
    """
    facts = {**identity(engine), "threads": engine.threads}
    if (places := engine.cluster) is not None:
        facts["cluster"] = places
    paths = [Path(path) for path in files_of(engine.source)]
    known = [_weights_digest(path, store, progress) for path in paths]
    if None not in known:
        digests = [str(digest) for digest in known]
        split = hashlib.sha256("\n".join(digests).encode()).hexdigest()  # of a split model: from its files' digests
        facts["model"]["sha256"] = digests[0] if len(digests) == 1 else split
    return facts


def _weights_digest(
    path: Path, store: Store | None, progress: Callable[[int, int], None] | None
) -> str | None:  # fmt: skip
    """Return the SHA-256 of a model file or folder; None for a file above ``HASH_LIMIT`` if no store is given."""
    if store is not None:
        return store.sha256(path, progress)
    if path.is_dir():
        return file_digest(path).partition(":")[2]  # of a folder: from its files' digests
    if path.stat().st_size > HASH_LIMIT:
        return None
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def header_digest(source: TensorSource) -> str:
    """Return the SHA-256 of a model's header, which is everything before the first tensor's data.

    Of a split model the headers of all files are hashed, of a safetensors folder only its config.json.
    """
    path = Path(source.path)
    digest = hashlib.sha256()
    for part, file in enumerate([str(path / "config.json")] if path.is_dir() else files_of(source)):
        size = os.path.getsize(file)
        offsets = [] if path.is_dir() else [t.offset for t in source.tensors.values() if t.part == part]
        remaining = min(offsets, default=size)
        with open(file, "rb") as stream:
            while remaining > 0 and (block := stream.read(min(remaining, 1 << 20))):
                digest.update(block)
                remaining -= len(block)
    return digest.hexdigest()
