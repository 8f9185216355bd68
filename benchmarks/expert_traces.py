"""Routing traces: which experts every token of a text chose in every layer. Recorded from a model, or drawn.

    python -m benchmarks.expert_traces OUT.npz -m MODEL -n 512       decode greedily and keep the routing

A trace is an array of int16, (tokens, layers, chosen).
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ds4ref.files import atomic_write


class Trace(NamedTuple):
    """``ids`` (tokens, layers, chosen) of ``experts`` in every layer, and where they are from."""

    ids: np.ndarray
    experts: int
    about: str


def recorded(model: str | None, tokens: int, prompt: str, backend: str = "cpu") -> Trace:
    """Decode a text greedily, and return the routing of its tokens."""
    from ds4ref.archs.deepseek4.hooks import Recorder
    from ds4ref.engine import Engine

    with Engine.open(model, backend=backend, numerics="ds4") as engine:
        ids = engine.tokenizer.encode(prompt)
        session = engine.session(len(ids) + tokens + 1)
        session.extend(ids)
        session.hooks = recorder = Recorder("ffn_moe_topk")
        for _ in range(tokens):
            session.append(session.argmax())
        chosen = np.stack([recorder["ffn_moe_topk", layer] for layer in range(engine.shape.n_layers)], 1)
        return Trace(chosen.astype(np.int16), engine.shape.n_experts, f"{tokens} greedy tokens of {engine.path}")


def save(trace: Trace, path: str) -> None:
    """Write a trace."""
    with atomic_write(Path(path)) as file:
        np.savez_compressed(file, ids=trace.ids, experts=trace.experts, about=trace.about)


def load(path: str) -> Trace:
    """Read a trace."""
    with np.load(path) as data:
        return Trace(data["ids"], int(data["experts"]), str(data["about"]))


class Skew(NamedTuple):
    """How uneven a drawn trace is.

    exponent  an expert of rank r is drawn with a weight of 1 / (r + 1)^exponent
    topic     tokens after which a quarter of the ranks are dealt anew, as if the text went on to something else
    hashed    layers at the front whose experts follow from the token alone, tokens by Zipf's law of exponent 1
    """

    exponent: float
    topic: int = 256
    hashed: int = 3


def drawn(
    skew: Skew, tokens: int, layers: int = 43, experts: int = 256, chosen: int = 6, vocab: int = 129280, seed: int = 1
) -> Trace:
    """Draw a trace: without replacement within a token, tokens independent of one another."""
    rng = np.random.default_rng(seed)
    ids = np.empty((tokens, layers, chosen), np.int16)
    logs = -skew.exponent * np.log(np.arange(1, experts + 1))
    ranks = np.stack([rng.permutation(experts) for _ in range(layers)])
    for start in range(0, tokens, skew.topic):
        count = min(skew.topic, tokens - start)
        for layer in range(skew.hashed, layers):
            if start:
                some = rng.choice(experts, experts // 4, replace=False)
                ranks[layer, some] = ranks[layer, rng.permutation(some)]
            # the largest of log-weights with Gumbel noise are a draw without replacement
            noisy = logs[ranks[layer]] + rng.gumbel(size=(count, experts))
            ids[start : start + count, layer] = np.argpartition(-noisy, chosen, 1)[:, :chosen]
    table = np.stack([rng.choice(experts, chosen, replace=False) for _ in range(4096)])
    words = np.minimum(vocab - 1, np.exp(rng.uniform(0, np.log(vocab), tokens)).astype(np.int64))
    for layer in range(skew.hashed):
        ids[:, layer] = table[(words * 2654435761 + 977 * layer) % len(table)]
    return Trace(ids, experts, f"drawn: exponent {skew.exponent:g}, a new topic every {skew.topic} tokens")


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.expert_traces", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("out", help="file to write (.npz)")
    parser.add_argument("-m", "--model", help="model file (default: the embedded model)")
    parser.add_argument("-n", "--tokens", type=int, default=512)
    parser.add_argument("-p", "--prompt", default="Once upon a time", help="text to begin with (%(default)s)")
    parser.add_argument("--backend", default="cpu")
    args = parser.parse_args()
    trace = recorded(args.model, args.tokens, args.prompt, args.backend)
    save(trace, args.out)
    print(f"{args.out}: {trace.about}, {trace.ids.shape[1]} layers, {trace.ids.shape[2]} of {trace.experts} experts")


if __name__ == "__main__":
    main()
