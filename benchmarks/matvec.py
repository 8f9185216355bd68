"""Mat-vecs against the machine's read bandwidth, as the engine runs them: pool, chunks and all."""

from __future__ import annotations

import numpy as np

from kernels.cpu.program import Program
from kernels.cpu.workers import POOL
from kernels.formats.matrix import Matrix

from .context import Context
from .goals import FORMATS
from .rows import random_rows
from .timing import Arm, clocked, interleave, ratios

N = 4096
REPEAT = 3


def random_matrix(fmt: str, megabytes: int, n: int = N) -> Matrix:
    """About so many megabytes of rows of n weights; 64 rows are drawn and repeated."""
    some = random_rows(fmt, 64, n, np.random.default_rng(1))
    data = np.tile(some, (max(1, (megabytes << 20) // some.nbytes), 1))
    return Matrix(fmt, data, len(data), n)


def product(w: Matrix, act: str) -> Arm:
    """Seconds of one input through ``w``."""
    program = Program()
    x = program.array(w.cols)
    x[:] = np.random.default_rng(2).standard_normal(w.cols)
    program.linear(program.pack(x, w, act), w, program.array(w.rows))
    program.seal()
    program.keep(w.data)
    return clocked(program.run, REPEAT)


def reading(*arrays: np.ndarray) -> Arm:
    """Seconds of reading all of ``arrays``."""
    program = Program()
    for array in arrays:
        program.read(array)
    program.seal()
    return clocked(program.run, REPEAT)


def measure(context: Context) -> None:
    """Rows "read", "read 1", "matvec ...", "float ..."."""
    megabytes, rounds = (64, 5) if context.quick else (192, 15)
    POOL.resize(context.threads)
    block = np.ones(megabytes << 20, np.uint8)
    read = reading(block)
    many = interleave({"read": read}, rounds)["read"]
    POOL.resize(1)
    one = interleave({"read": read}, rounds)["read"]
    POOL.resize(context.threads)
    context.add("read", [block.nbytes / 1e9 / s for s in many], f"{context.threads} threads")
    context.add("read 1", [block.nbytes / 1e9 / s for s in one])
    del block, read
    for fmt, act in FORMATS.items():
        context.budget.need(4)
        w = random_matrix(fmt, megabytes)
        arms = {"read": reading(w.data), act: product(w, act)}
        if not context.quick and act != "float":
            arms["float"] = product(w, "float")
        samples = interleave(arms, rounds)
        context.add(f"matvec {fmt}", ratios(samples["read"], samples[act]), f"{act} activations")
        if act != "float" and "float" in samples:
            context.add(f"float {fmt}", ratios(samples["read"], samples["float"]))
