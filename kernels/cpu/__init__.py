"""The CPU backend: the ops of ``ds4ref.kernels.ops``, compiled and multi-threaded, reading quantized weights in place.

    sizes, abi, tasktable    sizes and layouts that Python and machine code share
    tasks/, simd/            the source of the compiled code, in Numba; imported only by ``build``
    build, library           compile once per machine and source version; load without Numba
    workers                  the pool of threads, which runs jobs made of steps (abi: a task and its arguments)
    steps                    base class of the op classes: scratch memory, addresses, running steps
    products, ops            the ops
    backend, recording       run the steps of an op at once, or record many ops and run them as one job

Results are bit-identical for any number of threads. A token's result does not depend on the other tokens of its batch,
only on whether there are at least 9: then products use the GEMM for many tokens (``gemm``), which sums in another order
than the kernels for few (row kernels).
"""

from .backend import CPU

__all__ = ["CPU"]
