"""The whole engine on a slice of DeepSeek V4 Flash: decode compared with what read bandwidth allows, prefill with the
speed of its matrix products, and how the times of both grow with the context."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np

from ds4ref.archs import costs_of
from ds4ref.engine import Engine
from ds4ref.kernels.cpu import CPU
from ds4ref.kernels.formats.matrix import Matrix

from .context import Context
from .depth import session_at
from .harness import Row, Target, clocked, interleave, ratios, row
from .matvec import FORMATS, random_matrix, reading

PREFILL = 512
DEPTHS = {"2k": 2048, "32k": 32 << 10, "128k": 128 << 10, "512k": 512 << 10, "1M": 1 << 20}


def decoding(engine: Engine, pos: int, tokens: int) -> Target:
    """Return a target that measures the seconds per decoded token, over ``tokens`` tokens from position ``pos``."""
    session = session_at(engine, pos, pos + 100_000)
    vocab = engine.shape.vocab

    def target() -> float:
        started = time.perf_counter()
        for _ in range(tokens):
            session.eval((5 + 17 * session.pos) % vocab)
        return (time.perf_counter() - started) / tokens

    return target


def drawn(engine: Engine) -> list[int]:
    """Return the random tokens of a prompt."""
    return np.random.default_rng(4).integers(0, engine.shape.vocab, PREFILL).tolist()


def decode(context: Context) -> Iterator[Row]:
    """Yield the rows for decoding on the slice, compared with reading its dense matrices, which are most of the bytes
    that a token reads."""
    engine, pos = context.engine, 1024
    matrices = [value for layer in engine.model.weights.layers for value in vars(layer).values()]
    arrays = [w.data for w in matrices if isinstance(w, Matrix) and w.data.ndim == 2]
    costs = costs_of(engine.source).decode(pos)
    tokens = 2 if context.quick else 3
    targets = {"read": reading(context.threads, *arrays), "decode": decoding(engine, pos, tokens)}
    samples = interleave(targets, 2 * context.rounds + 1)
    note = f"{costs.bytes / 1e6:.0f} MB a token at position {pos}, {context.engine.threads} threads"
    shares = ratios(samples["read"], samples["decode"], costs.bytes / sum(array.nbytes for array in arrays))
    yield row("slice, whole decode step / bandwidth bound of its bytes", shares, "", 0.8, note=note)
    yield row("slice, decode", [1e3 * seconds for seconds in samples["decode"]], "ms", better="lower")


def gemm_target(cpu: CPU, fmt: str, tokens: int, matrices: int = 4) -> tuple[Target, float]:
    """Return a target that multiplies ``tokens`` inputs by 4096 x 2048 weights, and the operations of one call.

    Successive calls use ``matrices`` matrices in turn, so that weights come from memory rather than a cache.
    """
    ws = [random_matrix(fmt, 0, 2048) for _ in range(matrices)]
    ws = [Matrix(fmt, np.tile(w.data, (4096 // w.rows, 1)), 4096, 2048) for w in ws]
    x = np.random.default_rng(3).standard_normal((tokens, 2048), np.float32)

    def work() -> None:
        for w in ws:
            cpu.linear(x, w, FORMATS[fmt][0])

    return clocked(work), 2.0 * tokens * 4096 * 2048 * matrices


def prefill(context: Context) -> Iterator[Row]:
    """Yield the rows for prefill on the slice, compared with the fastest matrix product of many inputs."""
    engine = context.engine
    ids = drawn(engine)
    targets, operations = {}, {}
    for fmt in ("Q8_0", "IQ2_XXS"):
        targets[fmt], operations[fmt] = gemm_target(CPU(context.threads), fmt, PREFILL)
    targets["prefill"] = clocked(lambda: engine.session(PREFILL + 1).sync(ids))
    samples = interleave(targets, 2 if context.quick else 7)
    best = [max(operations[f] / 1e9 / samples[f][i] for f in operations) for i in range(len(samples["prefill"]))]
    yield row("prefill GEMM, best format at T = 512", best, "GOP/s")
    operations_needed = costs_of(engine.source).prefill(0, PREFILL, PREFILL).ops / 1e9
    share = [operations_needed / seconds / peak for seconds, peak in zip(samples["prefill"], best, strict=True)]
    note = f"{operations_needed / PREFILL:.2f} GOP a token"
    yield row("slice, prefill of 512 tokens / GEMM peak", share, "", 0.6, note=note)
    yield row("slice, prefill of 512 tokens", [PREFILL / seconds for seconds in samples["prefill"]], "tok/s")


def nano(context: Context) -> Iterator[Row]:
    """Measure decoding with the small random model; yield one row of the table."""
    from ds4ref.nano import random_path

    with Engine.open(random_path(), numerics="ds4", threads=context.threads) as engine:
        target = decoding(engine, 64, 50 if context.quick else 200)
        speeds = [1 / seconds for seconds in interleave({"nano": target}, context.rounds)["nano"]]
    yield row("random model, decode", speeds, "tok/s", 500, note="mode ds4")


def growth(context: Context) -> Iterator[Row]:
    """Yield the rows for decoding after contexts of various lengths."""
    engine = context.engine
    depths = ("2k", "1M") if context.quick else tuple(DEPTHS)
    costs = costs_of(engine.source)
    targets = {name: decoding(engine, DEPTHS[name], 2 if context.quick else 3) for name in depths}
    samples = interleave(targets, context.rounds)
    more = costs.decode(DEPTHS["1M"]).ops / costs.decode(DEPTHS["2k"]).ops
    shares, note = ratios(samples["1M"], samples["2k"], 1 / more), f"operations grow {more:.2f}-fold on this slice"
    yield row("growth of decode, 1M vs 2k / growth of its operations", shares, "", 1.3, "lower", note)
    for name in depths[1:]:
        yield row(f"slice, decode at {name}", [1e3 * seconds for seconds in samples[name]], "ms", better="lower")


def depth(context: Context) -> Iterator[Row]:
    """Yield the row for prefill after a long context: a chunk of 512 tokens after 32k tokens, compared with 2k."""
    engine = context.engine
    costs, ids, targets = costs_of(engine.source), drawn(engine), {}
    for name in ("2k", "32k"):
        session = session_at(engine, DEPTHS[name] - PREFILL, DEPTHS[name] + 1)
        before = session.snapshot()

        def work(session=session, before=before) -> None:
            session.restore(before)
            session.sync([1] * session.pos + ids)

        targets[name] = clocked(work)
    samples = interleave(targets, 2 if context.quick else 7)
    near, deep = (costs.prefill(DEPTHS[k] - PREFILL, DEPTHS[k], PREFILL).ops for k in ("2k", "32k"))
    shares, note = ratios(samples["32k"], samples["2k"], near / deep), f"operations grow {deep / near:.2f}-fold"
    yield row("growth of prefill, 32k vs 2k / growth of its operations", shares, "", 1.3, "lower", note)
