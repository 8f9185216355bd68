"""Decode and prefill on slices of Flash's dimensions, extrapolated to all 43 layers.

A slice of 4 layers has every kind of layer; one of 6 has two more, one with an indexer and one without, like all later
pairs. So with d seconds on the short slice and D on the long one

    43 layers = d + (43 - 4) / 2 * (D - d) + head

where ``head`` is the extra time of the product with 129280 rows over the one with the slice's rows, both measured. The
bound is the bytes that a token of the whole model reads, over a copy's measured GB/s. Slices have 8 experts instead of
256: a token reads six either way; for a prefill chunk, the time to read the missing experts at the copy's speed is
added.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ds4ref.archs.deepseek4.costs import Costs
from ds4ref.archs.deepseek4.shape import FLASH
from ds4ref.engine import Engine

from .depth import session_at
from .gpu_models import SLICE

if TYPE_CHECKING:
    from .gpu_check import Check

SHORT, LONG = 4, 6
DEPTHS = (2048, 16384)
TOKENS = 40
WARM = 9
"""Untimed tokens at the start, so that both recordings exist: with and without a closing compression window of 4."""
PREFILL = 2048
DECODE_BAR = 0.5
HEAD = "Q8_0", "a8"


def carried(short: float, long: float, head: float, more: float = 0.0) -> tuple[float, str]:
    """Extrapolate seconds on the slices to all layers of Flash (formula: see the module); return them with the
    arithmetic as text, in ms.

    head   extra seconds of the full output head over a slice's
    more   extra seconds for weights that the slices lack
    """
    steps = (FLASH.n_layers - SHORT) / (LONG - SHORT)
    seconds = short + steps * (long - short) + head + more
    ms = [f"{1e3 * value:.3f}" for value in (short, long, head, more)]
    added = f" + {ms[3]}" if more else ""
    return seconds, f"{ms[0]} + {steps:g} x ({ms[1]} - {ms[0]}) + {ms[2]}{added} = {1e3 * seconds:.2f} ms"


def per_token(engine: Engine, depth: int, tokens: int, warm: int = WARM) -> float:
    """Return the median seconds per decoded token at ``depth``, after ``warm`` untimed tokens.

    The cache rows before are random (``benchmarks.depth``).
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

    if check.rehearsal:
        paths = {SHORT: random_path(), LONG: random_path()}
        depths, tokens, prefill, warm, rounds = (64,), 1, 2, 0, 1
    else:
        paths = {layers: slice_path(layers, **SLICE) for layers in (SHORT, LONG)}
        depths, tokens, prefill, warm, rounds = DEPTHS, TOKENS, PREFILL, WARM, 3
    copy, head = heads(check)
    decoded: dict[int, dict[int, float]] = {}
    chunks: dict[int, float] = {}
    for layers, path in paths.items():
        check.need(10)
        with Engine.open(path, backend="cuda", numerics="ds4") as engine:
            decoded[layers] = {depth: per_token(engine, depth, tokens, warm) for depth in depths}
            for depth, seconds in decoded[layers].items():
                item = f"slice of {layers} layers, decode at {depth}"
                share = Costs.of_file(engine.source, engine.shape).decode(depth).bytes / copy / seconds
                bar = DECODE_BAR if layers == SHORT and depth == depths[0] else None
                check.add(item, 1e3 * seconds, "ms", timed=True)
                check.add(f"{item} / bound", share, "", bar, note="bytes over the copy's GB/s", timed=True)
            check.need(10)
            chunks[layers] = chunk_seconds(engine, prefill, rounds, min(1, warm))
            check.add(f"slice of {layers} layers, prefill of {prefill}", prefill / chunks[layers], "tok/s", timed=True)
    carry(check, decoded, chunks, copy, head, prefill)


def heads(check: Check) -> tuple[float, float]:
    """Return (bytes per second of a copy, extra seconds of the full output head over a slice's)."""
    from .gpu_products import Bench, dense

    bench = Bench(check.rehearsal)
    copy = 1e9 * bench.copy()
    check.add("copy", copy / 1e9, "GB/s", timed=True)
    rows = (512, 256) if check.rehearsal else (FLASH.vocab, SLICE["vocab"])
    times = [dense(bench, *HEAD, count, 256 if check.rehearsal else FLASH.dim)[1] for count in rows]
    return copy, 1e-6 * (times[0] - times[1])


def carry(
    check: Check, decoded: dict[int, dict[int, float]], chunks: dict[int, float], copy: float, head: float, prefill: int
) -> None:
    """Add rows of the extrapolation to all 43 layers."""
    costs = Costs.of_recipe(FLASH, SLICE["recipe"])
    for depth in decoded[SHORT]:
        seconds, arithmetic = carried(decoded[SHORT][depth], decoded[LONG][depth], head)
        bound = costs.decode(depth).bytes / copy
        check.add(f"43 layers, decode at {depth}", 1 / seconds, "tok/s", note=arithmetic, timed=True)
        note = f"{costs.decode(depth).bytes / 1e9:.2f} GB a token, {1e3 * bound:.2f} ms"
        check.add(f"43 layers, decode at {depth} / bound", bound / seconds, note=note, timed=True)
    slice_costs = Costs.of_recipe(replace(FLASH, n_experts=SLICE["experts"]), SLICE["recipe"])
    extra = (costs.prefill(0, prefill).bytes - slice_costs.prefill(0, prefill).bytes) / copy
    seconds, arithmetic = carried(chunks[SHORT], chunks[LONG], head, extra)
    check.add(f"43 layers, prefill of {prefill}", prefill / seconds, "tok/s", note=arithmetic, timed=True)
