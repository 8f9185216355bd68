"""Simulates experts that do not all fit on a GPU: hit rates by policy, and the tokens/s they allow. No GPU is needed.

    python -m benchmarks.expert_cache                              DeepSeek V4 Flash, recipe q2, on four cards
    python -m benchmarks.expert_cache --trace FILE.npz             with recorded routing (ds4 imatrix --routing)
    python -m benchmarks.expert_cache --bus 12 --disk 3 --host 64  GB/s of bus and disk, GiB of host memory

Policies, layer by layer, on the same trace:

    engine   what the backend does (``residency.Residency``): fading counts, a few moves between two tokens
    lru      every miss takes the slot that was used longest ago (``Recent`` of ``ds4ref.residency``)
    oracle   every miss takes the slot of what is wanted again last (``Oracle``)

A token takes its kernels, as ``cuda_price`` expects them with everything on the device, then the bytes of missed
experts over the bus; moves share the bus while kernels run. Where host memory is smaller than the experts, a layer
waits for the host, and what its memory lacks comes from disk.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ds4ref.archs.deepseek4.shape import FLASH
from ds4ref.archs.deepseek4.tensors import expected_tensors
from ds4ref.kernels.cuda.driver.residency import Move, Residency
from ds4ref.residency.policy import Order, Recent
from ds4ref.residency.simulation import Oracle, Routing, simulate

from .cuda_price import DEVICES, Device, token

GIB = float(1 << 30)
MOVES = 16
"""Moves between two tokens, as ``kernels.cuda.driver.experts`` has it (which cannot be imported without numba.cuda)."""
WARM = 512
"""Tokens of a trace before counting begins."""
RESERVED = 0.6
"""GiB of a card that the driver and a display have, an assumption."""
WORKING = 2.0
"""GiB that the backend leaves for caches, results and staging (``backend.WORKING``)."""
HOST_MS = 4.0
"""Milliseconds of a layer that waits for the host: measured with the stand-in for the driver (cuda.md)."""


class Card(NamedTuple):
    """A card of ``memory`` GiB, priced as ``device``."""

    memory: int
    device: Device


CARDS = (
    Card(24, DEVICES["RTX 5090"]), Card(32, DEVICES["RTX 5090"]), Card(48, DEVICES["RTX 5090"]),
    Card(80, DEVICES["H100"]),
)  # fmt: skip
"""Cards of 24 and 48 GB are priced as if an RTX 5090 had that much memory: no table is kept for theirs."""


class Sizes(NamedTuple):
    """Bytes of a model: everything but routed experts, all of these, one of one layer."""

    dense: int
    experts: int
    expert: int


def sizes(recipe: str = "q2") -> Sizes:
    """Bytes of DeepSeek V4 Flash by its tensors."""
    tensors = expected_tensors(FLASH, recipe)
    experts = sum(t.nbytes for t in tensors if "_exps" in t.name)
    dense = sum(t.nbytes for t in tensors) - experts
    return Sizes(dense, experts, experts // (FLASH.n_layers * FLASH.n_experts))


def slots_of(card: Card, model: Sizes, experts: int = FLASH.n_experts) -> int:
    """Experts of a layer that have slots: as ``backend.prepare`` plans it."""
    room = (card.memory - RESERVED) * GIB
    if model.dense + model.experts + WORKING * GIB <= room:
        return experts
    return max(1, int(experts * (room - WORKING * GIB - model.dense) / model.experts))


class Skew(NamedTuple):
    """How uneven drawn routing is.

    exponent  an expert of rank r is drawn with a weight of 1 / (r + 1)^exponent
    topic     tokens after which a quarter of the ranks are dealt anew, as if the text went on to something else
    hashed    layers at the front whose experts follow from the token alone, tokens by Zipf's law of exponent 1
    """

    exponent: float
    topic: int = 256
    hashed: int = 3


def drawn(
    skew: Skew, tokens: int, layers: int = 43, experts: int = 256, chosen: int = 6, vocab: int = 129280, seed: int = 1
) -> Routing:
    """Draw routing: without replacement within a token, tokens independent of one another."""
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
    return Routing(ids, np.array([0]), np.ones(layers, np.int64), experts)


class Run(NamedTuple):
    """What a policy did with a trace: share of hits, misses and moves of a token."""

    hits: float
    misses: float
    moves: float


def counts_of(trace: Routing) -> np.ndarray:
    """Uses of each expert by token, (tokens, layers, experts)."""
    counts = np.zeros((*trace.ids.shape[:2], trace.experts), np.int32)
    np.put_along_axis(counts, trace.ids.astype(np.int64), 1, 2)
    return counts


def engine(trace: Routing, slots: int, moves: int = MOVES) -> Run:
    """Replay a trace as the backend does: while a token runs the host looks at the one before and chooses moves, they
    are under way while the next one runs, and have arrived before the one after that."""
    residency = Residency(trace.ids.shape[1], trace.experts, slots)
    residency.fill()
    counts, flying = counts_of(trace), list[Move]()
    start = min(WARM, len(counts) // 2)
    hits = misses = moved = 0
    for number, used in enumerate(counts):
        residency.arrived(flying)
        flying = list(residency.coming)
        if number >= start:
            chosen = used > 0
            found = int(np.count_nonzero(chosen & (residency.slot_of >= 0)))
            hits, misses = hits + found, misses + int(np.count_nonzero(chosen)) - found
            moved += len(flying)
        if number:
            residency.used(counts[number - 1])
            residency.choose(moves - len(residency.coming))
    return _run(hits, misses, moved, len(counts) - start)


def _simulated(trace: Routing, slots: int, order: Callable[[Routing], Order]) -> Run:
    """Try an order on each layer's slots by itself, empty at first; every miss takes one."""
    start, hits, misses = min(WARM, len(trace.ids) // 2), 0, 0
    for layer in range(trace.ids.shape[1]):
        one = trace._replace(ids=trace.ids[:, layer : layer + 1], bytes=np.ones(1, np.int64))
        found = simulate(one, slots, order(one), start)
        hits, misses = hits + found.hits, misses + found.uses - found.hits
    return _run(hits, misses, misses, len(trace.ids) - start)


def lru(trace: Routing, slots: int) -> Run:
    """Every miss comes, in place of what was used longest ago."""
    return _simulated(trace, slots, lambda one: Recent(1, one.experts))


def oracle(trace: Routing, slots: int) -> Run:
    """Every miss comes, in place of what is wanted again last."""
    return _simulated(trace, slots, Oracle)


POLICIES = {"engine": engine, "lru": lru, "oracle": oracle}


def _run(hits: int, misses: int, moves: int, tokens: int) -> Run:
    return Run(hits / (hits + misses), misses / tokens, moves / tokens)


class Rates(NamedTuple):
    """GB/s of bus and disk, GiB of host memory."""

    bus: float
    disk: float
    host: float


class Parts(NamedTuple):
    """Milliseconds of a token: its kernels, missed experts over the bus, waits of layers for the host, what comes from
    disk; and of the bus, moves, which run beside kernels."""

    kernels: float
    missed: float
    waits: float
    disk: float
    moves: float

    @property
    def tokens_per_second(self) -> float:
        return 1e3 / (max(self.kernels, self.moves) + self.missed + self.waits + self.disk)

    @property
    def prefetched(self) -> float:
        """Tokens/s if every missed expert were known early enough to come while kernels run, and nothing else did."""
        return 1e3 / (max(self.kernels, self.missed) + self.waits + self.disk)


def parts(kernels: float, run: Run, model: Sizes, rates: Rates) -> Parts:
    """Price a token whose kernels take ``kernels`` seconds."""
    moving = 1e3 * model.expert / (rates.bus * 1e9)
    short = max(0.0, 1 - max(0.0, rates.host - 4) * GIB / model.experts)  # of the experts, no room for them
    if not short:
        return Parts(1e3 * kernels, run.misses * moving, 0.0, 0.0, run.moves * moving)
    from_disk = 1e3 * run.misses * short * model.expert / (rates.disk * 1e9)
    return Parts(1e3 * kernels, run.misses * moving, HOST_MS * FLASH.n_layers, from_disk, 0.0)


def kernels_of(device: Device, case: str = "q2/ds4/2048") -> float:
    """Seconds of a token's kernels with everything on the device, as expected (benchmarks.cuda_code)."""
    from .cuda_code import TABLE

    rows = json.loads(TABLE.read_text())["kernels"][device.arch]
    return token(device, [row for row in rows if row["case"] == case])["predicted"]


def line(name: str, slots: Any, run: Run, model: Sizes, found: Parts) -> str:
    """A row of the table."""
    return (
        f"{name:34} {slots:>5} {run.hits:6.3f} {run.misses:6.1f} {run.moves:6.1f} "
        f"{run.misses * model.expert / 1e6:8.0f} {found.kernels:8.1f} {found.missed:7.1f} "
        f"{found.waits:6.1f} {found.disk:7.1f} {found.moves:6.1f} {found.tokens_per_second:9.1f} "
        f"{found.prefetched:9.1f}"
    )


HEAD = (
    f"{'':34} {'slots':>5} {'hits':>6} {'misses':>6} {'moves':>6} {'MB/token':>8} {'kernels':>8} {'missed':>7} "
    f"{'waits':>6} {'disk':>7} {'moves':>6} {'tokens/s':>9} {'prefetch':>9}"
)


def report(traces: Mapping[str, Routing], cards: Sequence[Card], rates: Rates, policies: Sequence[str]) -> None:
    """Print the table."""
    model = sizes()
    print(
        f"DeepSeek V4 Flash, q2: dense weights {model.dense / GIB:.2f} GiB, experts {model.experts / GIB:.2f} GiB, one "
        f"of a layer {model.expert / 1e6:.2f} MB; bus {rates.bus:g} GB/s, disk {rates.disk:g} GB/s, host "
        f"{rates.host:g} GiB\nms of a token: kernels + missed + waits + disk, moves beside kernels\n\n{HEAD}"
    )
    a_token = FLASH.n_layers * FLASH.n_used
    for hits in (1.0, 0.9, 0.0):
        card = next(card for card in CARDS if card.memory == 32)
        run = Run(hits, (1 - hits) * a_token, 0.0)
        found = parts(kernels_of(card.device), run, model, rates)
        print(line(f"32 GB, {hits:.0%} hits, given", slots_of(card, model), run, model, found))
    for about, trace in traces.items():
        print(f"\n{about}, {len(trace.ids)} tokens")
        for card in cards:
            slots = slots_of(card, model, trace.experts)
            if slots == trace.experts:
                continue
            for name in policies:
                run = POLICIES[name](trace, slots)
                # of a model with other dimensions, the rates of hits and moves are those of Flash's tokens
                scale = a_token / (trace.ids.shape[1] * trace.ids.shape[2])
                run = run._replace(misses=run.misses * scale, moves=run.moves * scale)
                found = parts(kernels_of(card.device), run, model, rates)
                print(line(f"{card.memory} GB, {name}", slots, run, model, found))


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.expert_cache", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--trace", action="append", default=[], help="recorded trace (.npz), repeatable")
    parser.add_argument("--skew", default="0.5,1.0", help="exponents of drawn traces, without --trace (%(default)s)")
    parser.add_argument("--topic", type=int, default=256, help="tokens of a topic of a drawn trace (%(default)s)")
    parser.add_argument("--tokens", type=int, default=1536, help="of a drawn trace (%(default)s)")
    parser.add_argument("--bus", type=float, default=25.0, help="GB/s of the bus (%(default)s)")
    parser.add_argument("--disk", type=float, default=3.0, help="GB/s of the disk (%(default)s)")
    parser.add_argument("--host", type=float, default=128.0, help="GiB of host memory (%(default)s)")
    parser.add_argument("--cards", default="24,32,48,80", help="GB of memory (%(default)s)")
    parser.add_argument("--policies", default=",".join(POLICIES))
    args = parser.parse_args()
    traces = {path: Routing.read(path) for path in args.trace} or {
        f"drawn: exponent {exponent}, a new topic every {args.topic} tokens": drawn(
            Skew(float(exponent), args.topic), args.tokens
        )
        for exponent in args.skew.split(",")
    }
    cards = [card for card in CARDS if str(card.memory) in args.cards.split(",")]
    report(traces, cards, Rates(args.bus, args.disk, args.host), args.policies.split(","))


if __name__ == "__main__":
    main()
