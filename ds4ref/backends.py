"""Backends by name: a backend is a module that offers the ops of ``kernels.reference``."""

from __future__ import annotations

import importlib
from types import ModuleType

from .errors import BackendError, UsageError

BACKENDS = {"cpu": "kernels.cpu", "reference": "kernels.reference"}
DEFAULT_BACKEND = "cpu"


def load_backend(name: str, threads: int | None = None) -> ModuleType:
    """Import backend ``name`` and set its thread count (None: its own choice). Heavy: imports and compiles kernels."""
    if name not in BACKENDS:
        raise UsageError(f"unknown backend {name!r}: choose from {', '.join(BACKENDS)}")
    try:
        ops = importlib.import_module(BACKENDS[name])
        ops.load()
    except (ImportError, OSError, RuntimeError) as e:
        raise BackendError(f"backend {name} cannot run here: {e}") from e
    if threads is not None:
        ops.set_threads(threads)
    return ops
