"""The one import of ``numba.cuda``: whatever provides it, under one name.

``cuda`` is numba-cuda's if that package is installed (the extra ``cuda``; it takes the name over), else Numba's bundled
target, or, where NUMBA_ENABLE_CUDASIM=1, the simulator of either, with blocks scheduled by ``simulation``. Nothing else
imports ``numba.cuda``, and nothing outside ``kernels.cuda`` imports this: it takes seconds.
"""

from __future__ import annotations

import warnings
from typing import Any

with warnings.catch_warnings():
    # The bundled target says on import that it is deprecated; whoever has nothing else need not hear it each time.
    warnings.simplefilter("ignore")
    from numba import config, cuda

SIMULATED: bool = bool(config.ENABLE_CUDASIM)
"""Whether kernels are run by Python, thread by thread, instead of being compiled."""

if SIMULATED:
    from .simulation import install

    install()

__all__ = ["SIMULATED", "cuda", "extending"]


def extending() -> tuple[Any, Any, Any, Any]:
    """What compiled intrinsics are defined with: the decorator, types, helpers for LLVM, and ``signature``. The two
    targets have them in different places."""
    from numba.cuda.extending import intrinsic

    try:
        from numba.cuda import cgutils, types
        from numba.cuda.typing import signature
    except ImportError:
        from numba.core import cgutils, types
        from numba.core.typing import signature
    return intrinsic, types, cgutils, signature
