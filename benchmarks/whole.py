"""The whole engine on a slice of Flash: decode against its bandwidth bound, prefill against the peak of its GEMMs."""

from __future__ import annotations

import time

import numpy as np

from ds4ref.archs.deepseek4.costs import Costs
from ds4ref.engine import Engine
from ds4ref.kernels.cpu import CPU
from ds4ref.kernels.formats.matrix import Matrix

from .context import Context
from .depth import session_at
from .goals import FORMATS
from .matvec import random_matrix, reading
from .timing import Arm, clocked, interleave, ratios

PREFILL = 512


def weights(engine: Engine) -> list[np.ndarray]:
    """Return the dense matrices of all layers as stored in the file, most of the bytes that a token reads."""
    arrays = []
    for layer in engine.model.weights.layers:
        for value in vars(layer).values():
            if isinstance(value, Matrix) and value.data.ndim == 2:
                arrays.append(value.data)
    return arrays


def decoding(engine: Engine, pos: int, tokens: int) -> Arm:
    """Return an arm that measures the seconds per token, over ``tokens`` tokens from position ``pos``."""
    session = session_at(engine, pos, pos + 100_000)
    vocab = engine.shape.vocab
    state = {"next": 5}

    def arm() -> float:
        started = time.perf_counter()
        for _ in range(tokens):
            session.eval(state["next"] % vocab)
            state["next"] += 17
        return (time.perf_counter() - started) / tokens

    return arm


def decode(context: Context) -> None:
    """Measure the rows "decode" and "decode ms" of the CPU table."""
    engine, rounds = context.engine, context.rounds
    arrays = weights(engine)
    size = sum(array.nbytes for array in arrays)
    pos = 1024
    costs = Costs.of_file(engine.source, engine.shape).decode(pos)
    tokens = 2 if context.quick else 3
    arms = {"read": reading(context.threads, *arrays), "decode": decoding(engine, pos, tokens)}
    samples = interleave(arms, 2 * rounds + 1)
    note = f"{costs.bytes / 1e6:.0f} MB a token at position {pos}, {context.engine.threads} threads"
    context.add("decode", ratios(samples["read"], samples["decode"], costs.bytes / size), note)
    context.add("decode ms", [1e3 * s for s in samples["decode"]])


def gemm_arm(cpu: CPU, fmt: str, tokens: int, matrices: int = 4) -> tuple[Arm, float]:
    """Return (arm that multiplies ``tokens`` inputs with 4096 x 2048 weights, operations of one call).

    Calls take ``matrices`` matrices in turn, so that weights come from memory.
    """
    ws = [random_matrix(fmt, 0, 2048) for _ in range(matrices)]
    ws = [Matrix(fmt, np.tile(w.data, (4096 // w.rows, 1)), 4096, 2048) for w in ws]
    x = np.random.default_rng(3).standard_normal((tokens, 2048), np.float32)

    def work() -> None:
        for w in ws:
            cpu.linear(x, w, FORMATS[fmt])

    return clocked(work), 2.0 * tokens * 4096 * 2048 * matrices


def prefill(context: Context) -> None:
    """Measure the rows "gemm peak", "prefill" and "prefill tps" of the CPU table."""
    engine = context.engine
    ids = [int(i) for i in np.random.default_rng(4).integers(0, engine.shape.vocab, PREFILL)]
    arms, operations = {}, {}
    for fmt in ("Q8_0", "IQ2_XXS"):
        arms[fmt], operations[fmt] = gemm_arm(CPU(context.threads), fmt, PREFILL)
    arms["prefill"] = clocked(lambda: engine.session(PREFILL + 1).sync(ids))
    samples = interleave(arms, 2 if context.quick else 7)
    best = [max(operations[f] / 1e9 / samples[f][i] for f in operations) for i in range(len(samples["prefill"]))]
    context.add("gemm peak", best)
    operations_needed = Costs.of_file(engine.source, engine.shape).prefill(0, PREFILL, PREFILL).ops / 1e9
    share = [operations_needed / seconds / peak for seconds, peak in zip(samples["prefill"], best, strict=True)]
    context.add("prefill", share, f"{operations_needed / PREFILL:.2f} GOP a token")
    context.add("prefill tps", [PREFILL / seconds for seconds in samples["prefill"]])


def nano(context: Context) -> None:
    """Measure the row "nano" of the CPU table: decode of the random model."""
    from ds4ref.nano import random_path

    with Engine.open(random_path(), numerics="ds4", threads=context.threads) as engine:
        arm = decoding(engine, 64, 50 if context.quick else 200)
        context.add("nano", [1 / s for s in interleave({"nano": arm}, context.rounds)["nano"]], "mode ds4")
