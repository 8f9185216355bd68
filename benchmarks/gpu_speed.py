"""Speed of decode and prefill with a slice of DeepSeek V4 Flash, compared with the bound by bytes that a token reads.

The slice has 4 layers, one of every kind, and 8 experts instead of 256; a token reads six of them either way. The bound
is the time that a copy, at its measured GB/s, takes for those bytes.
"""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

import numpy as np

from ds4ref.archs.deepseek4.costs import Costs
from ds4ref.engine import Engine

from .depth import session_at
from .gpu_models import SLICE

if TYPE_CHECKING:
    from .gpu_check import Check

DEPTHS = (2048, 16384)
TOKENS = 40
WARM = 9
"""Untimed tokens at the start, after which both kinds of pass have been recorded: for tokens that complete a
compression window of 4, and for others."""
PREFILL = 2048
DECODE_BAR = 0.5


def per_token(engine: Engine, depth: int, tokens: int, warm: int = WARM) -> float:
    """Return the median seconds per decoded token at ``depth``, after ``warm`` untimed tokens.

    The cache rows before them are random (``benchmarks.depth``).
    """
    session = session_at(engine, depth, depth + tokens + warm + 64)
    taken = []
    for number in range(tokens + warm):
        start = time.perf_counter()
        session.append((5 + 17 * number) % engine.shape.vocab)
        taken.append(time.perf_counter() - start)
    return statistics.median(taken[warm:])


def chunk_seconds(engine: Engine, tokens: int, rounds: int, warm: int = 1) -> float:
    """Return the median seconds to prefill ``tokens`` tokens, after ``warm`` untimed rounds, which compile kernels."""
    ids = np.random.default_rng(4).integers(0, engine.shape.vocab, tokens).tolist()
    taken = []
    for _ in range(rounds + warm):
        session = engine.session(tokens + 1)
        start = time.perf_counter()
        session.sync(ids)
        taken.append(time.perf_counter() - start)
    return statistics.median(taken[warm:])


def measure(check: Check) -> None:
    """Run the part "speed" of ``gpu_check``."""
    from ds4ref.nano import random_path
    from ds4ref.nano.cache import slice_path

    from .gpu_products import Bench

    if check.rehearsal:
        path, depths, tokens, prefill, warm, rounds = random_path(), (64,), 1, 2, 0, 1
    else:
        path, depths, tokens, prefill, warm, rounds = slice_path(4, **SLICE), DEPTHS, TOKENS, PREFILL, WARM, 3
    copy = Bench(check.rehearsal).copy()
    check.add("copy", copy, "GB/s", timed=True)
    check.need(20)
    with Engine.open(path, backend="cuda", numerics="ds4") as engine:
        costs = Costs.of_file(engine.source, engine.shape)
        for depth in depths:
            seconds = per_token(engine, depth, tokens, warm)
            check.add(f"decode at {depth}", 1e3 * seconds, "ms", timed=True)
            share, bar = costs.decode(depth).bytes / (1e9 * copy) / seconds, DECODE_BAR if depth == depths[0] else None
            check.add(f"decode at {depth} / bound", share, "", bar, note="bytes over the copy's GB/s", timed=True)
        taken = chunk_seconds(engine, prefill, rounds, min(1, warm))
        check.add(f"prefill of {prefill}", prefill / taken, "tok/s", timed=True)
