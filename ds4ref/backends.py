"""Backends by name: a backend is an object that offers what ``kernels.ops`` declares."""

from __future__ import annotations

import importlib
import importlib.util
import os
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import BackendError, UsageError

if TYPE_CHECKING:
    from kernels.ops import Backend

BACKENDS = {
    "cpu": ("kernels.cpu", "CPU"),
    "reference": ("kernels.reference", "Reference"),
    "cuda": ("kernels.cuda", "CUDA"),
}
"""Module and class of each."""

DEFAULT_BACKEND = "cpu"


def check_kernels() -> None:
    """BackendError if ``kernels`` is not ours: another project has a package of that name, which comes first in some
    folders, or was installed over it."""
    ours = Path(__file__).parents[1] / "kernels" / "__init__.py"
    spec = importlib.util.find_spec("kernels")
    found = spec.origin if spec is not None else None
    # One that lies elsewhere is not imported to be asked: it may be heavy, and does what it likes.
    same = found is not None and os.path.realpath(found) == os.path.realpath(ours)
    if same and getattr(importlib.import_module("kernels"), "DISTRIBUTION", "") == "ds4ref":
        return
    where = "missing" if spec is None else f"another project's: {found or list(spec.submodule_search_locations or ())}"
    raise BackendError(f"the package kernels is {where}; run ds4ref from another folder, or install it by itself")


GPU_MEMORY = "DS4_GPU_MEMORY"
"""Environment variable: most GPU memory to use, GiB."""


def load_backend(name: str, threads: int | None = None, gpu_memory: float | None = None) -> Backend:
    """A new backend ``name`` on ``threads`` threads (None: its own choice). Heavy: imports and compiles kernels.

    gpu_memory: GiB of device memory that it may use (None: what DS4_GPU_MEMORY says, else all there is).
    """
    if name not in BACKENDS:
        raise UsageError(f"unknown backend {name!r}: choose from {', '.join(BACKENDS)}")
    module, kind = BACKENDS[name]
    options = {}
    if name == "cuda":
        limit = _gpu_memory(gpu_memory)
        options = {} if limit is None else {"limit": int(limit * (1 << 30))}
    elif gpu_memory is not None:
        raise UsageError(f"GPU memory is for the backend cuda, not {name}")
    try:
        backend: Backend = getattr(importlib.import_module(module), kind)(**options)
        backend.load()
    except (ImportError, OSError, RuntimeError) as e:
        raise BackendError(f"backend {name} cannot run here: {e}") from e
    if threads is not None:
        backend.threads = threads
    return backend


def _gpu_memory(given: float | None) -> float | None:
    """GiB, or None for all there is."""
    text = os.environ.get(GPU_MEMORY)
    if given is None and text:
        try:
            given = float(text)
        except ValueError:
            raise UsageError(f"invalid value for {GPU_MEMORY}: {text}: a number of GiB is needed") from None
    if given is not None and not 0 < given < float("inf"):
        raise UsageError(f"GPU memory must be a positive number of GiB, got {given:g}")
    return given


def private_backend(name: str) -> Backend:
    """A backend of one thread that waits for no other: those of ``load_backend`` share their threads."""
    backend = load_backend(name)
    if name == "cpu":
        workers = importlib.import_module("kernels.cpu.workers").Workers
        backend.workers = workers(1)  # type: ignore[attr-defined]
    return backend
