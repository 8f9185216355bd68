"""The CUDA backend: numba.cuda kernels for the whole op table. ``CUDA`` is the backend; cuda.md has the tour.

Importing this package imports neither numba nor a driver: that is done by ``shim``, which ``backend`` asks for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .backend import CUDA

__all__ = ["CUDA"]


def __getattr__(name: str) -> Any:
    if name == "CUDA":
        from .backend import CUDA

        return CUDA
    raise AttributeError(name)
