"""What kernels need and numba.cuda lacks: warp primitives, byte arithmetic, wide loads, asynchronous copies, mma.

Every function here has two bodies under one name. Compiled, it is an LLVM instruction, an NVVM intrinsic or a line of
inline PTX (``ptx.PTX`` has all of those lines). Under the simulator it is plain Python, and says what it means
(``simulated_intrinsics``). Kernels use nothing of the kind but through this module, and are the same source for both.

A warp is 32 threads that follow each other in x, then y: launch blocks of whole warps, and call what has "warp" or
"lane" in its name, and ``mma_*``, from all 32 lanes. Words are int32; where bytes of one are meant, byte 0 is the
lowest. Arrays are one-dimensional, indices count their elements, and what is read or written as four words at once
must lie at a multiple of 16 bytes.
"""

from __future__ import annotations

from .shim import SIMULATED

if SIMULATED:
    from .simulated_intrinsics import *  # noqa: F403
    from .simulated_intrinsics import __all__
else:
    from .compiled_intrinsics import *  # type: ignore[assignment]  # noqa: F403
    from .compiled_intrinsics import __all__

__all__ = list(__all__)
