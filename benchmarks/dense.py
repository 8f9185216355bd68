"""Decode at Qwen3-0.6B's shape against the bandwidth bound of its bytes, with synthetic weights.

    python -m benchmarks.dense                       Q8_0 and BF16, all cores; about 2 GB in a temporary folder
    python -m benchmarks.dense --formats Q8_0 --threads 1 --rounds 5 --json
    python -m benchmarks.dense --formats Q8_0 --prefill 512,2048        also prefill, interleaved with llama.cpp

Each round times a plain read of the weights and decode in turn, each the best of three, since tens of milliseconds are
either undisturbed or interrupted for long. The reported share is read time over decode time within a round. Speed does
not depend on the weights' values, as long as they are finite.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ds4ref.archs import arch_of
from ds4ref.archs.dense.shape import DenseShape
from ds4ref.archs.dense.weights import slots
from ds4ref.archs.qwen3 import FAMILY
from ds4ref.engine import Engine
from ds4ref.kernels.formats import FORMATS, Matrix
from ds4ref.kernels.system import available_cores
from ds4ref.runs.provenance import stamp
from ds4ref.weights.container import TensorSpec
from ds4ref.weights.writer import GGUFWriter

from .matvec import REPEAT, reading
from .report import Goal, Row, document, print_table, row
from .timing import Arm, interleave, ratios
from .worker import Worker

QWEN3_06B = DenseShape(
    FAMILY, n_layers=28, dim=1024, ff=3072, n_heads=16, n_kv_heads=8, head_dim=128, vocab=151936, trained_ctx=40960,
    rope_theta=1e6, rms_eps=1e-6, name="shape of Qwen3-0.6B",
)  # fmt: skip
BAR = 0.85
PIECE = 1 << 22
PAST = 64


def pieces(fmt: str, count: int) -> Iterator[np.ndarray]:
    """Yield ``count`` small finite weights in format ``fmt`` as uint8 arrays of a few megabytes."""
    rng = np.random.default_rng(1)
    layout, block = FORMATS[fmt].layout, FORMATS[fmt].block_elems
    while count:
        step = min(count, PIECE)
        if fmt == "Q8_0":
            out = np.empty(step // block, layout)
            out["d"], out["q"] = 3e-4, rng.integers(-127, 128, (step // block, block), np.int8)
        else:
            values = (0.02 * rng.standard_normal(step, np.float32)).view(np.uint32)
            out = (values >> 16).astype("<u2") if fmt == "BF16" else values.view(np.float32).astype(layout)
        yield out.view(np.uint8)
        count -= step


def write(path: Path, shape: DenseShape, fmt: str) -> Path:
    """Write a model of this shape, with its output head tied to the embedding; return the path."""
    specs = [
        TensorSpec(slot.name, fmt if len(slot.dims) > 1 else "F32", slot.dims)
        for slot in slots(shape)
        if not slot.optional
    ]
    no_words = ("tokenizer.ggml.model", "string", "none")  # llama.cpp opens no file without it
    with GGUFWriter(path, [*shape.metadata(), no_words], specs) as out:
        for spec in specs:
            ones = np.ones(spec.elements, np.float32)
            out.write(spec.name, ones if len(spec.dims) == 1 else pieces(fmt, spec.elements))
    return path


def decoding(engine: Engine, tokens: int) -> Arm:
    """Return an arm that measures the seconds per decoded token after 64 tokens, the best of a few runs."""
    session = engine.session(4096)
    session.sync(list(range(1, PAST + 1)))
    start = session.snapshot()

    def arm() -> float:
        session.restore(start)
        session.eval(7)  # warm up: cores that were doing something else are slow for a while
        seconds = []
        for token in range(tokens):
            started = time.perf_counter()
            session.eval(11 + token)
            seconds.append(time.perf_counter() - started)
        return min(seconds)

    return arm


def measure(path: Path, numerics: str, threads: int | None, rounds: int, tokens: int) -> list[Row]:
    """Return the rows of one model file: share of the bandwidth bound, tokens per second."""
    with Engine.open(path, numerics=numerics, threads=threads) as engine:
        for _ in engine.source.touch():  # exclude disk reads from the measurement
            pass
        weights = engine.model.weights
        values = [value for part in (weights, *weights.layers) for value in vars(part).values()]
        matrices = {id(w): w for w in values if isinstance(w, Matrix)}
        arrays = [w.data for w in matrices.values()]
        costs = arch_of(engine.source).costs(engine.source, engine.shape, engine.model.numerics.act_quant)
        work = costs.decode(PAST + tokens // 2)
        arms = {"read": reading(engine.threads, *arrays), "decode": decoding(engine, tokens)}
        samples = interleave(arms, rounds)
        fmt = next(iter(matrices.values())).fmt
        name = f"Qwen3-0.6B's shape, {fmt}, mode {numerics}"
        size = sum(array.nbytes for array in arrays)
        note = f"{work.bytes / 1e6:.0f} MB a token, {engine.threads} threads"
        shares = ratios(samples["read"], samples["decode"], work.bytes / size)
        speeds = [1 / seconds for seconds in samples["decode"]]
        bandwidth = [size / 1e9 / seconds for seconds in samples["read"]]
        return [
            row(Goal(f"{name}: decode / bandwidth bound", "", BAR), shares, note),
            row(Goal(f"{name}: decode", "tok/s"), speeds),
            row(Goal(f"{name}: read bandwidth beside it", "GB/s"), bandwidth),
        ]


def against_llama(path: Path, name: str, threads: int, rounds: int, tokens: list[int]) -> list[Row]:
    """Return rows of prefill: llama.cpp's time over ours, on the same file and threads, in separate processes."""
    with Worker("ours", str(path), threads) as ours, Worker("llama", str(path), threads) as theirs:
        rows = []
        for count in tokens:
            arms = {"ours": partial(ours.ask, "prefill", tokens=count),
                    "theirs": partial(theirs.ask, "prefill", tokens=count)}  # fmt: skip
            samples = interleave(arms, rounds)
            speeds = [count / seconds for seconds in samples["ours"]]
            rows += [
                row(Goal(f"{name}: prefill of {count} / llama.cpp's", ""), ratios(samples["theirs"], samples["ours"])),
                row(Goal(f"{name}: prefill of {count}", "tok/s"), speeds),
            ]
        return rows


def main(argv: list[str] | None = None) -> int:
    """Run from the command line; exit code 1 if a bar is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dense", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--formats", default="Q8_0,BF16", help="Q8_0, BF16, F16 or F32, by comma (%(default)s)")
    parser.add_argument("--numerics", default="ds4", help="numerics mode (%(default)s)")
    parser.add_argument("--threads", type=int, help="threads (all cores)")
    parser.add_argument("--rounds", type=int, default=9, help="rounds of reading and decoding (%(default)s)")
    parser.add_argument(
        "--tokens",
        type=int,
        default=REPEAT,
        help="tokens a round, of which the best counts; 0: no decoding (%(default)s)",
    )
    parser.add_argument("--prefill", default="", help="also prefill of so many tokens, by comma, against llama.cpp")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of a table")
    args = parser.parse_args(argv)
    rows: list[Row] = []
    for fmt in args.formats.split(","):
        if fmt not in ("Q8_0", "BF16", "F16", "F32"):
            parser.error(f"no format {fmt!r} here")
        with tempfile.TemporaryDirectory() as folder:
            path = write(Path(folder) / f"{fmt}.gguf", QWEN3_06B, fmt)
            if args.tokens > 0:
                rows += measure(path, args.numerics, args.threads, args.rounds, args.tokens)
            if args.prefill:
                name, threads = f"Qwen3-0.6B's shape, {fmt}", args.threads or available_cores()
                counts = [int(count) for count in args.prefill.split(",")]
                rows += against_llama(path, name, threads, max(2, args.rounds // 3), counts)
    facts: dict[str, Any] = {**stamp(), "command": ["python", "-m", "benchmarks.dense", *(argv or sys.argv[1:])]}
    if args.json:
        print(document(rows, facts))
    else:
        print_table(rows)
    return 1 if any(figure.met is False for figure in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
