"""Backends by name: objects that implement ``ds4ref.kernels.ops``."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from .environment import memory_bytes
from .errors import BackendError, UsageError, did_you_mean

if TYPE_CHECKING:
    from ds4ref.kernels.ops import Backend

BACKENDS = {
    "cpu": ("ds4ref.kernels.cpu", "CPU"),
    "reference": ("ds4ref.kernels.reference", "Reference"),
    "cuda": ("ds4ref.kernels.cuda", "CUDA"),
}
"""Module and class of each backend."""

DEFAULT_BACKEND = "cpu"


GPU_MEMORY = "DS4_GPU_MEMORY"
"""Environment variable with the maximum GPU memory in GiB."""


def load_backend(
    name: str,
    threads: int | None = None,
    gpu_memory: float | None = None,
    progress: Callable[[str], None] | None = None,
    formats: Collection[str] = (),
) -> Backend:
    """Return a new backend ``name`` (a key of ``BACKENDS``) with ``threads`` threads (default: the backend's own
    choice). May take a while: kernels are compiled at their first use on a machine.

    gpu_memory: GiB of device memory that it may use (None: the value of DS4_GPU_MEMORY, else all of it).
    progress: called with a line while kernels compile (None: lines on stderr).
    formats: groups of kernels that will be used (``Arch.kernels``); others are compiled when they are needed.
    """
    if name not in BACKENDS:
        raise UsageError(f"unknown backend {name!r}: choose from {', '.join(BACKENDS)}{did_you_mean(name, BACKENDS)}")
    module, kind = BACKENDS[name]
    options: dict[str, Any] = {}
    if name == "cuda":
        limit = _gpu_memory(gpu_memory)
        options = {
            "raises": BackendError, "limit": None if limit is None else int(limit * (1 << 30)),
            "host_memory": memory_bytes(),
        }  # fmt: skip
    elif gpu_memory is not None:
        raise UsageError(f"GPU memory is for the backend cuda, not {name}")
    try:
        backend: Backend = getattr(importlib.import_module(module), kind)(**options)
        backend.load(progress, formats)
    except (ImportError, OSError, RuntimeError, MemoryError, BackendError) as e:
        raise BackendError(f"backend {name} cannot run here: {e}") from e
    if threads is not None:
        try:
            backend.threads = threads
        except ValueError as error:
            raise UsageError(str(error)) from None
    return backend


def _gpu_memory(requested: float | None) -> float | None:
    """Return the limit on GPU memory in GiB: ``requested``, else that of the environment variable; None for all
    memory."""
    text = os.environ.get(GPU_MEMORY)
    if requested is None and text:
        try:
            requested = float(text)
        except ValueError:
            raise UsageError(f"invalid value for {GPU_MEMORY}: {text}: a number of GiB is needed") from None
    if requested is not None and not 0 < requested < float("inf"):
        raise UsageError(f"GPU memory must be a positive number of GiB, got {requested:g}")
    return requested


def private_backend(name: str) -> Backend:
    """Return a backend that computes on one thread of its own, whereas the backends of ``load_backend`` share their
    threads."""
    backend = load_backend(name)
    if name == "cpu":
        workers = importlib.import_module("ds4ref.kernels.cpu.workers").Workers
        backend.workers = workers(1)  # type: ignore[attr-defined]
    return backend
