"""ggml's dot products (libggml-cpu of llama-cpp-python), called row by row from compiled code, compared with ours."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types

from ds4ref.kernels.cpu.simd import KERNELS
from ds4ref.kernels.cpu.tasks.lang import JIT, op
from ds4ref.kernels.formats import FORMATS

from .rows import PIECE, Case, in_threads, split
from .timing import interleave, ratios


class Traits(ctypes.Structure):
    """The C struct ggml_type_traits_cpu of ggml-cpu.h."""

    _fields_ = [
        ("from_float", ctypes.c_void_p),
        ("vec_dot", ctypes.c_void_p),
        ("vec_dot_type", ctypes.c_int),
        ("nrows", ctypes.c_int64),
    ]


def _library() -> Any:
    import llama_cpp

    folder = Path(llama_cpp.__file__).parent / "lib"
    candidates = sorted(path for path in folder.iterdir() if "ggml-cpu" in path.name)
    if not candidates:
        raise OSError(f"no ggml-cpu library in {folder}")
    library = ctypes.CDLL(str(candidates[0]))
    library.ggml_get_type_traits_cpu.restype = ctypes.POINTER(Traits)
    library.ggml_cpu_init()
    return library


def _call_vec_dot(builder: ir.IRBuilder, values: list[ir.Value]) -> None:
    """Call void vec_dot(int n, float *s, size_t bs, const void *x, size_t bx, const void *y, size_t by, int nrc)."""
    i32, i64 = ir.IntType(32), ir.IntType(64)
    function, n, out, x, y = values
    kind = ir.FunctionType(ir.VoidType(), [i32, i64, i64, i64, i64, i64, i64, i32])
    zero = ir.Constant(i64, 0)
    arguments = [builder.trunc(n, i32), out, zero, x, zero, y, zero, ir.Constant(i32, 1)]
    builder.call(builder.inttoptr(function, kind.as_pointer()), arguments)


call_vec_dot = op(types.none, [types.int64] * 5, _call_vec_dot)


@njit(**JIT)
def dot_rows(function, weights, first, last, row_bytes, n, x, out):
    """Multiply rows ``first`` to ``last`` - 1 with the packed input ``x`` into ``out``, one ggml call per row."""
    for row in range(first, last):
        call_vec_dot(function, n, out + 4 * row, weights + row_bytes * row, x)


def against_ours(fmt: str, act: str, threads: int, megabytes: int, rounds: int) -> list[float]:
    """Return, per round, ggml's time over ours for multiplying rows of 4096 weights in memory (not in caches)."""
    case = Case(fmt, act, KERNELS[fmt, act], 4096, megabytes, cached=False)
    traits = _library().ggml_get_type_traits_cpu(FORMATS[fmt].ggml_id).contents

    input_traits = _library().ggml_get_type_traits_cpu(traits.vec_dot_type).contents
    pack = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(input_traits.from_float)
    x = np.random.default_rng(1).standard_normal(case.n, np.float32)
    packed = np.zeros(8 * case.n + 4096, np.uint8)
    pack(x.ctypes.data, packed.ctypes.data, case.n)
    case.kernel.pack(x.ctypes.data, case.n, case.at)
    w, row_bytes, function = case.weights.ctypes.data, case.weights.shape[1], traits.vec_dot
    out = np.zeros(len(case.weights), np.float32)
    pieces = split(len(case.weights), max(1, PIECE // row_bytes))

    def theirs() -> float:
        return in_threads(
            threads,
            pieces,
            lambda a, b: dot_rows(function, w, a, b, row_bytes, case.n, packed.ctypes.data, out.ctypes.data),
        )

    samples = interleave({"ggml": theirs, "ours": lambda: case.seconds(threads)}, rounds)
    difference = np.abs(out - case.out[0]).max()
    if not difference <= 0.02 * np.abs(out).max():
        raise RuntimeError(f"ggml and we disagree about {fmt} by {difference:g}")
    return ratios(samples["ggml"], samples["ours"])
