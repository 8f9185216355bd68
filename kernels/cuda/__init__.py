"""The CUDA backend, class ``CUDA``: every op as kernels written in Numba's CUDA dialect (docs/explanation/cuda.md).

Importing this package imports neither Numba nor a driver; using ``CUDA`` does (``driver.shim``).
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
