"""The CPU backend: the ops of ``ds4ref.kernels.ops``, compiled, multi-threaded, on raw quantized rows.

    sizes, abi, tasktable    what Python and machine code agree on
    tasks/, simd/            the compiled code, in Numba; imported only by ``build``
    build, library           compile once per machine and source version; load without Numba
    workers                  threads, and jobs made of steps
    steps                    what ops are written with: check shapes, take places, describe steps
    products, norm, ...      the ops
    backend, recording       run the steps of an op at once, or keep them and run many ops as one job

Every op gives bit-identical results for any number of threads. A token's result does not depend on which others are in
the batch, but on whether they are many: from 8 tokens on products go through the GEMM (``gemm``), whose sums run in
another order than the row kernels'.
"""

from .backend import CPU

__all__ = ["CPU"]
