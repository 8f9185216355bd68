"""How often ``ds4-vectors diagnose`` finds the place of a mistake without a name: op and layer, from logits alone.

    python -m benchmarks.places                        60 mistakes in Hugging Face's model, on the embedded model
    python -m benchmarks.places --trials 200 --top 20 --records R.jsonl
    python -m benchmarks.places --whole                the whole diagnosis: which verdicts, and how long it takes
    python -m benchmarks.places --of strangers         forty mistakes by somebody else (``tests.oracle.strangers``)
    python -m benchmarks.places --fit R.jsonl          fit probabilities on one half of the records, check on the other

Mistakes are drawn by ``tests.oracle.misplaced``, which needs transformers. Prints every miss, then one line of JSON.
Those that change less than ``LEAST`` are left out. With ``--whole`` and ``--of strangers`` each gets a verdict, and
places where that has no name; ``acquitted`` are verdicts of a rounding set whose detection limit is below the change.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ds4ref.engine import Engine
from ds4ref.nano import embedded_path
from ds4ref.test_vectors.diagnosis import Signatures, diagnose
from ds4ref.test_vectors.diagnosis.case import Case
from ds4ref.test_vectors.diagnosis.places import FORM, Effects, places, probabilities
from ds4ref.test_vectors.observation import Observation, from_logits

LEAST = 1e-4
"""Smallest change in nats (rms) that counts."""
FIRST = 3
"""Number of places among which the right op counts."""


EVERY = -2
"""Layer of a mistake that all layers of a kind have, of which any counts."""


def patients(engine: Engine, args: argparse.Namespace) -> Iterator[tuple[Any, Signatures, Observation, float]]:
    """Yield (mistake, signatures of our passes, observed logits, change in nats rms) of ``args.trials`` mistakes from
    number ``args.seed`` on."""
    from tests.oracle.hf import Oracle
    from tests.oracle.misplaced import draw
    from tests.test_vectors.test_sixteen_bits import own_ids

    ids = own_ids(engine, 200)
    oracle, library = Oracle.load(embedded_path("f16"), 1), Signatures(engine, ids)
    right = oracle.logits(ids)
    drawn: Iterator[Any] = (draw(oracle, number) for number in range(args.seed, args.seed + args.trials))
    if args.of == "strangers":
        from tests.oracle.strangers import MISTAKES

        drawn = iter(MISTAKES[args.seed :])
    for mistake in drawn:
        if mistake is None:
            continue
        with mistake.apply(oracle):
            logits = oracle.logits(ids)
        moved = logits - right
        size = float(np.sqrt(np.mean((moved - moved.mean(axis=1, keepdims=True)) ** 2)))
        if size > LEAST:
            seen = from_logits(ids, logits)
            yield mistake, library, seen if args.top is None else seen.top(args.top), size


def at_layer(place: dict[str, Any], mistake: Any) -> bool:
    """Return whether a place is in the mistake's layer."""
    return place["layer"] != -1 if mistake.layer == EVERY else place["layer"] == mistake.layer


def examine(args: argparse.Namespace) -> dict[str, Any]:
    """Locate the drawn mistakes, print those that are missed, and return the shares."""
    records: list[dict[str, Any]] = []
    verdicts: list[str] = []
    acquitted = 0
    kept: dict[int, Effects] = {}
    with Engine.open(embedded_path("f16"), backend="cpu", numerics="exact") as engine:
        for mistake, library, seen, size in patients(engine, args):
            start, mode, verdict = time.process_time(), "exact", "unknown"
            if args.whole or args.of:
                result = diagnose(library, seen, seconds=0)
                mode, verdict = result.mode, result.verdict
                limit = 0.0 if result.limit is None else result.limit["size"]
                verdicts.append(result.fault or (f"acquitted, limit {limit:g}" if result.clean else verdict))
                acquitted += result.clean and size > limit
            known = kept if args.top is None else None  # the observed tokens differ from mistake to mistake
            open_ = verdict in ("unknown", "undecided")
            answer = [
                place.to_json() for place in (places(Case(library, seen, None), mode, 600, kept=known) if open_ else [])
            ]
            took = time.process_time() - start
            ops = [place["op"] in mistake.ops for place in answer[:FIRST]]
            record = {"says": mistake.says, "ops": mistake.ops, "layer": mistake.layer, "rows": len(seen.rows),
                      "op": any(ops), "at_layer": bool(answer) and at_layer(answer[0], mistake), "size": size,
                      "first": any(ops[:1]), "places": answer, "seconds": took,
                      "verdict": verdicts[-1] if verdicts else ""}  # fmt: skip
            records.append(record)
            if args.records:
                with Path(args.records).open("a") as file:
                    file.write(json.dumps(record) + "\n")
            if not (record["op"] and record["at_layer"]):
                first = "; ".join(f"{p['op']} {p['layer']} {p['probability']}" for p in answer[:FIRST])
                says = f"{record['verdict']}; " if verdicts else ""
                print(f"layer {mistake.layer} {mistake.ops[0]}: {mistake.says} -> {says}{first}", flush=True)
    shares = {name: round(float(np.mean([r[name] for r in records])), 3) for name in ("op", "at_layer", "first")}
    named = {name: verdicts.count(name) for name in sorted(set(verdicts))}
    return {"mistakes": len(records), **shares, "verdicts": named, "acquitted": acquitted,
            "seconds": round(float(np.median([r["seconds"] for r in records])), 1)}  # fmt: skip


def fit(path: str) -> dict[str, Any]:
    """Fit ``FORM`` on every second record, and return it with the other half's shares by stated probability."""
    records = [json.loads(line) for line in Path(path).read_text().splitlines()]
    records = [r for r in records if r["places"]]

    def stated(r: dict[str, Any], form: dict[str, float]) -> tuple[np.ndarray, np.ndarray]:
        scores = np.array([p["score"] for p in r["places"]])
        right = np.array([p["op"] in r["ops"] and p["layer"] == r["layer"] for p in r["places"]])
        return probabilities(scores, form), right

    def cost(form: dict[str, float]) -> float:
        each = [
            (p[right].sum() if right.any() else 1 - p.sum()) for p, right in (stated(r, form) for r in records[::2])
        ]
        return -float(np.log(np.maximum(each, 0.01)).sum())

    grid = [{**FORM, "sharpness": a, "blur": b} for a in (0.05, 0.1, 0.2, 0.3, 0.5) for b in (1, 2, 4, 8, 16)]
    form = min(grid, key=cost)
    answers = [stated(r, form) for r in records[1::2]]
    pairs = [(float(p[i]), bool(right[i])) for p, right in answers for i in range(min(FIRST, len(p)))]
    table = []
    for low, high in ((0, 0.05), (0.05, 0.2), (0.2, 0.5), (0.5, 0.8), (0.8, 1.01)):
        inside = [pair for pair in pairs if low <= pair[0] < high]
        if inside:
            table.append([round(float(np.mean([p for p, _ in inside])), 3), sum(r for _, r in inside), len(inside)])
    return {"form": form, "used": FORM, "stated, right, places": table}


def main() -> None:
    """Parse the command line, run, and print one line of JSON."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--trials", type=int, default=60)
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--top", type=int)
    made.add_argument("--records", help="append one JSON line for each mistake")
    made.add_argument("--whole", action="store_true")
    made.add_argument("--of", choices=["strangers"])
    made.add_argument("--fit", metavar="R.jsonl")
    args = made.parse_args()
    print(json.dumps(fit(args.fit) if args.fit else examine(args)))


if __name__ == "__main__":
    main()
