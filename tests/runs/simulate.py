"""Simulated benchmark runs: speeds with the noise of a shared machine and known differences."""

from __future__ import annotations

import numpy as np

from ds4ref.runs.store import Measured, Run

DEPTHS = tuple(range(2048, 2048 * 9, 2048))


def run(name: str, rows, kind="bench", facts=None, status="complete") -> Measured:
    base = {"model": {"sha256": "a" * 64}, "prompt_sha256": "b" * 64, "numerics": "ds4"}
    return Measured(Run(0, name, kind, "2026-11-21", name, status, base | (facts or {}), (), len(rows)), list(rows))


def arms(seed, *, slower=0.0, reps=5, noise=0.02, spikes=0.05, drift=0.02, depths=DEPTHS, in_turn=True):
    """Simulate two runs, B slower than A by the share ``slower``.

    noise   standard deviation of every single speed
    spikes  share of cells that something else on the machine slowed down by 5 to 40 %
    drift   standard deviation of the machine's speed from one round to the next (in turn: common to both arms;
            else every run gets its own)
    """
    rng = np.random.default_rng(seed)
    common = np.cumsum(rng.normal(0, drift, reps))
    group = {"arms": {"group": f"g{seed}"}} if in_turn else {}
    runs = []
    for name, change in (("A", 0.0), ("B", np.log1p(-slower))):
        weather = common if in_turn else np.cumsum(rng.normal(0, drift, reps))
        rows = []
        for rep in range(reps):
            for depth in depths:
                logs = [rng.normal(0, noise) + weather[rep] + change + _disturbance(rng, spikes) for _ in range(2)]
                prefill, decode = (400 - depth / 200) * np.exp(logs[0]), (25 - depth / 20000) * np.exp(logs[1])
                rows.append(
                    {
                        "rep": rep, "ctx_tokens": depth, "prefill_tokens": 2048, "gen_tokens": 128,
                        "prefill_tps": float(prefill), "gen_tps": float(decode),
                    }
                )  # fmt: skip
        runs.append(run(name, rows, facts=group))
    return runs


def _disturbance(rng, share):
    return np.log(1 - rng.uniform(0.05, 0.4)) if rng.random() < share else 0.0
