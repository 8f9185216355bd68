"""Our quantizers against ggml's (ggml_quantize_chunk of llama-cpp-python), on the same weights: error and speed.

    python -m benchmarks.quantizers                          every format, with and without importance
    python -m benchmarks.quantizers --formats Q4_K --rows 2048 --cols 4096 --threads 2 --json

Errors are sums over all weights, ours over ggml's: of squares, of squares times the importance of the column, and of
squares weighted as each quantizer's search does (quantize.md). Speed is weights a second on ``--threads`` threads,
interleaved, in CPU time, so that other load does not count.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

from ds4ref.kernels.cpu.quantize import BLOCKED, quantize
from ds4ref.kernels.formats import FORMATS

from .rows import in_threads, split
from .timing import interleave, ratios

MEASURED = (
    "Q8_0", "Q5_0", "Q4_0", "Q6_K", "Q5_K", "Q4_K", "Q3_K", "Q2_K", "IQ4_NL", "IQ4_XS", "IQ2_XXS", "MXFP4",
)  # fmt: skip

TWICE = ("Q5_K", "Q4_K", "Q3_K", "IQ4_NL", "IQ4_XS")
"""Formats for which the mean square of a block counts twice in the weights with importance."""


def ggml() -> Any:
    """Return ggml's base library with its C prototypes set; raises ImportError or OSError if it is missing."""
    import llama_cpp

    folder = Path(llama_cpp.__file__).parent / "lib"
    candidates = sorted(path for path in folder.iterdir() if "ggml-base" in path.name)
    if not candidates:
        raise OSError(f"no ggml-base library in {folder}")
    library = ctypes.CDLL(str(candidates[0]))
    library.ggml_quantize_chunk.restype = ctypes.c_size_t
    library.ggml_quantize_chunk.argtypes = [
        ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p,
    ]  # fmt: skip
    for fmt in MEASURED:
        library.ggml_quantize_init(FORMATS[fmt].ggml_id)
    return library


def ggml_rows(
    library: Any, fmt: str, x: np.ndarray, importance: np.ndarray | None = None, out: np.ndarray | None = None
) -> np.ndarray:
    """Return float32 weights ``x`` (rows, cols) quantized by ggml: uint8 (rows, row_bytes).

    importance   (cols,) or None
    out          array to write to
    """
    rows, cols = x.shape
    if out is None:
        out = np.empty((rows, FORMATS[fmt].row_bytes(cols)), np.uint8)
    importance_address = None if importance is None else importance.ctypes.data
    library.ggml_quantize_chunk(FORMATS[fmt].ggml_id, x.ctypes.data, out.ctypes.data, 0, rows, cols, importance_address)
    return out


def drawn(kind: str, rows: int, cols: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Draw weights float32 (rows, cols) and importance (cols,).

    ``kind``: "normal", "laplace", "outliers" or "uniform".
    """
    rng = np.random.default_rng(seed)
    if kind == "laplace":
        x = rng.laplace(0, 0.02, (rows, cols))
    elif kind == "uniform":
        x = rng.uniform(-0.05, 0.03, (rows, cols))
    else:
        x = rng.standard_normal((rows, cols)) * 0.02
    if kind == "outliers":
        x *= np.exp(rng.standard_normal((1, cols)) * 0.7) * np.where(rng.random((rows, cols)) < 0.002, 6, 1)
    importance = np.exp(rng.standard_normal(cols) * 1.5)
    return x.astype(np.float32), importance.astype(np.float32)


def errors(fmt: str, x: np.ndarray, raw: np.ndarray, importance: np.ndarray | None) -> dict[str, float]:
    """Return sums of squared errors by measure: plain, weighted by importance, weighted as the quantizer's search does.

    x: weights (rows, cols); raw: their quantized bytes.
    """
    miss = np.square(FORMATS[fmt].dequantize(raw).astype(np.float64) - x)
    sums = {"plain": float(miss.sum())}
    if importance is not None:
        sums["importance"] = float((miss * importance).sum())
    sums["searched"] = float((miss * searched(fmt, x, importance)).sum())
    return sums


def searched(fmt: str, x: np.ndarray, importance: np.ndarray | None) -> np.ndarray:
    """Return the weights (rows, cols) of squared errors that ggml's search for ``fmt`` minimizes; ones if it has
    none."""
    wide, block = x.astype(np.float64), FORMATS[fmt].block_elems
    mean = np.repeat(np.square(wide).reshape(len(x), -1, block).mean(axis=2), block, axis=1)
    if importance is not None:
        if fmt == "Q6_K":
            return np.broadcast_to(importance.astype(np.float64), x.shape)
        return importance * np.sqrt((2 if fmt in TWICE else 1) * mean + np.square(wide))
    if fmt in ("Q4_K", "Q5_K"):
        group = np.repeat(np.square(wide).reshape(len(x), -1, 32).mean(axis=2), 32, axis=1)
        return np.sqrt(group) + np.abs(wide)
    if fmt == "Q2_K":
        return np.abs(wide)
    return np.square(wide) if fmt in ("Q6_K", "Q3_K", "IQ4_NL", "IQ4_XS") else np.ones_like(wide)


def compare(library: Any, fmt: str, x: np.ndarray, importance: np.ndarray | None) -> dict[str, float]:
    """Return our error over ggml's by measure; "same": share of equal bytes."""
    ours = quantize(fmt, x, importance)
    theirs = ggml_rows(library, fmt, x, importance)
    a, b = errors(fmt, x, ours, importance), errors(fmt, x, theirs, importance)
    return {name: a[name] / max(b[name], 1e-300) for name in a} | {"same": float((ours == theirs).mean())}


def speed(
    library: Any, fmt: str, x: np.ndarray, importance: np.ndarray | None, threads: int, rounds: int
) -> tuple[float, float]:
    """Return (our speed over ggml's, the median of the rounds; our speed in million weights per second and thread)."""
    rows, cols = x.shape
    ours = np.empty((rows, FORMATS[fmt].row_bytes(cols)), np.uint8)
    theirs = np.empty_like(ours)
    pieces = split(rows, max(1, (1 << 16) // cols))

    def mine(first: int, last: int) -> None:
        ours[first:last] = quantize(fmt, x[first:last], importance)

    def ggmls(first: int, last: int) -> None:
        ggml_rows(library, fmt, x[first:last], importance, theirs[first:last])

    arms = {
        "ggml": lambda: in_threads(threads, pieces, ggmls),
        "ours": lambda: in_threads(threads, pieces, mine),
    }
    samples = interleave(arms, rounds)
    return statistics.median(ratios(samples["ggml"], samples["ours"])), x.size / 1e6 / threads / min(samples["ours"])


def main() -> None:
    """Measure all chosen formats; print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quantizers", description=__doc__.split("\n")[0])
    parser.add_argument("--formats", nargs="+", default=list(MEASURED), choices=BLOCKED)
    parser.add_argument("--kinds", nargs="+", default=["normal", "laplace", "outliers", "uniform"])
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--cols", type=int, default=4096)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--no-speed", action="store_true")
    args = parser.parse_args()
    library, results = ggml(), []
    started = time.monotonic()
    for fmt in args.formats:
        for weighted in (False, True):
            for kind in args.kinds:
                x, importance = drawn(kind, args.rows, args.cols)
                if fmt == "IQ2_XXS" and not weighted:
                    continue  # ggml refuses it
                row: dict[str, Any] = {"format": fmt, "weights": kind, "importance": weighted}
                row |= compare(library, fmt, x, importance if weighted else None)
                if not args.no_speed and kind == args.kinds[0]:
                    row["speed"], row["mw_s"] = speed(
                        library, fmt, x, importance if weighted else None, args.threads, args.rounds
                    )
                results.append(row)
                if not args.json:
                    print(
                        "  ".join(f"{k}={v:.4f}" if isinstance(v, float) else f"{v}" for k, v in row.items()),
                        flush=True,
                    )
    if args.json:
        print(json.dumps({"seconds": time.monotonic() - started, "rows": results}))


if __name__ == "__main__":
    main()
