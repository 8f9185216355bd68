"""Matrix-vector products, run as the engine does, with all threads, compared with the machine's read bandwidth."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ds4ref.kernels.cpu import CPU
from ds4ref.kernels.cpu import tasktable as t
from ds4ref.kernels.cpu.abi import Step
from ds4ref.kernels.cpu.products import CHUNK_BYTES
from ds4ref.kernels.cpu.sizes import READ_LINE
from ds4ref.kernels.formats import FORMATS as DECLARED
from ds4ref.kernels.formats.format import PowerOfTwo
from ds4ref.kernels.formats.matrix import Matrix

from .context import Context
from .harness import Row, Target, clocked, interleave, ratios, row

N = 4096
REPEAT = 3
FORMATS = {
    "Q8_0": ("a8", 0.88),
    "F16": ("float", 0.88),
    "Q4_K": ("q8k", 0.88),
    "Q2_K": ("q8k", 0.75),
    "IQ2_XXS": ("q8k", 0.7),
}
"""Weight formats, each with the rounding of inputs that mode ds4 uses for it, and its bar."""


def random_rows(fmt: str, rows: int, n: int, rng: np.random.Generator) -> np.ndarray:
    """Return random rows of ``n`` weights in a format, uint8 (rows, row_bytes), with scales of an ordinary size."""
    layout = DECLARED[fmt]
    if fmt in ("F32", "F16", "BF16"):
        values = rng.standard_normal((rows, n), np.float32)
        if fmt == "BF16":
            return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
        return values.astype(np.float16 if fmt == "F16" else np.float32).view(np.uint8)
    blocks = rng.integers(0, 256, (rows, n // layout.block_elems, layout.block_bytes), np.uint8)
    for scale in (layout.scale, layout.minimum):
        if isinstance(scale, PowerOfTwo):
            blocks[:, :, scale.byte] = rng.integers(112, 122, blocks.shape[:2])
        elif scale is not None:
            values = rng.uniform(0.001, 0.01, blocks.shape[:2]).astype(np.float16)
            blocks[:, :, scale.byte : scale.byte + 2] = values[..., None].view(np.uint8)
    return blocks.reshape(rows, -1)


def random_matrix(fmt: str, megabytes: int, n: int = N) -> Matrix:
    """Return a matrix of about ``megabytes`` MB with rows of ``n`` weights: 64 random rows, repeated."""
    rows = random_rows(fmt, 64, n, np.random.default_rng(1))
    data = np.tile(rows, (max(1, (megabytes << 20) // rows.nbytes), 1))
    return Matrix(fmt, data, len(data), n)


def product(threads: int, w: Matrix, act: str, times: int = 1, inputs: int = 1) -> Target:
    """Return a target that multiplies ``inputs``, rounded as ``act`` says, by ``w``, so many ``times``."""
    recording = CPU(threads).record()
    x = np.random.default_rng(2).standard_normal((inputs, w.cols)).astype(np.float32)
    recording.seal(*[recording.linear(x, w, act) for _ in range(times)])
    return _replayed(recording, w.data)


def reading(threads: int, *arrays: np.ndarray) -> Target:
    """Return a target that reads all bytes of ``arrays``, except a rest of less than 256 bytes of each."""
    recording = CPU(threads).record()
    for array in arrays:
        out = recording.empty(16 * threads, dtype=np.int32)
        values = recording.at(array), recording.at(out)
        recording.run([Step(t.READ, array.nbytes // READ_LINE, CHUNK_BYTES // READ_LINE, values)])
    recording.seal()
    return _replayed(recording, arrays)


def _replayed(recording: Any, kept: Any) -> Target:
    """Return a target that replays a recording; ``kept`` are objects to keep alive, whose memory it uses."""
    return clocked(lambda kept=kept: recording.replay(), REPEAT)


def measure(context: Context) -> Iterator[Row]:
    """Yield the rows of read bandwidth and of products with each format."""
    megabytes, rounds = (64, 5) if context.quick else (192, 15)
    for fmt, (act, bar) in FORMATS.items():
        context.budget.need(4)
        w = random_matrix(fmt, megabytes)
        targets = {"read": reading(context.threads, w.data), fmt: product(context.threads, w, act)}
        samples = interleave(targets, rounds)
        if fmt == "Q8_0":
            rates = [w.data.nbytes / 1e9 / seconds for seconds in samples["read"]]
            yield row("read bandwidth", rates, "GB/s", note=f"{context.threads} threads")
        shares = ratios(samples["read"], samples[fmt])
        yield row(f"mat-vec / read bandwidth: {fmt}", shares, "", bar, note=f"{act} activations")
