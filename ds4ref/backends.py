"""Backends by name: a backend is an object that offers what ``kernels.ops`` declares."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from .errors import BackendError, UsageError

if TYPE_CHECKING:
    from kernels.ops import Backend

BACKENDS = {"cpu": ("kernels.cpu", "CPU"), "reference": ("kernels.reference", "Reference")}
"""Module and class of each."""

DEFAULT_BACKEND = "cpu"


def load_backend(name: str, threads: int | None = None) -> Backend:
    """A new backend ``name`` on ``threads`` threads (None: its own choice). Heavy: imports and compiles kernels."""
    if name not in BACKENDS:
        raise UsageError(f"unknown backend {name!r}: choose from {', '.join(BACKENDS)}")
    module, kind = BACKENDS[name]
    try:
        backend: Backend = getattr(importlib.import_module(module), kind)()
        backend.load()
    except (ImportError, OSError, RuntimeError) as e:
        raise BackendError(f"backend {name} cannot run here: {e}") from e
    if threads is not None:
        backend.threads = threads
    return backend


def private_backend(name: str) -> Backend:
    """A backend of one thread that waits for no other: those of ``load_backend`` share their threads."""
    backend = load_backend(name)
    if name == "cpu":
        workers = importlib.import_module("kernels.cpu.workers").Workers
        backend.workers = workers(1)  # type: ignore[attr-defined]
    return backend
