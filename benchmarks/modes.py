"""How far numerics modes, processors and backends part, on the trained model and on the random one.

    python -m benchmarks.modes                 a table; conversations of the skills for the one, prose for the other
    python -m benchmarks.modes --tokens 4000   more of them

A random model is a chaotic map: it answers with probabilities close to each other, so whatever turns a rounding turns
its choice. What is measured on it says little about a model that knows what comes next, and the other way round.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ds4ref.engine import Engine
from ds4ref.nano import embedded_path, random_path
from ds4ref.nano.skills import GRADED, held_out, tokenizer
from ds4ref.nano.skills.base import conversation
from ds4ref.variants.quantized import divergence

from .skill_tables import markdown

MODELS = ("trained", "trained q2", "random")
TIER_VARIABLE = "DS4_SIMD_TIER"
PAIRS = (
    ("exact", "cpu", "", "exact", "reference", ""),
    ("qat", "cpu", "", "qat", "reference", ""),
    ("ds4", "cpu", "", "ds4", "reference", ""),
    ("exact", "cpu", "", "qat", "cpu", ""),
    ("exact", "cpu", "", "ds4", "cpu", ""),
    ("qat", "cpu", "", "ds4", "cpu", ""),
    ("exact", "cpu", "", "exact", "cpu", "C"),
    ("ds4", "cpu", "", "ds4", "cpu", "B"),
    ("ds4", "cpu", "", "ds4", "cpu", "C"),
)
"""Mode, backend and SIMD tier ("": the best) of what is compared."""


def texts(model: str, path: str, tokens: int) -> list[list[int]]:
    """Return rows of token ids that the model was made for: questions with their replies, or prose."""
    if not model.startswith("trained"):
        from ds4ref.nano.prose import prose

        ids = Engine.open(path, backend="reference").tokenizer.encode(prose(8 * tokens))[:tokens]
        return [ids[at : at + 400] for at in range(0, len(ids), 400)]
    rows: list[list[int]] = []
    names = [name for name in GRADED if name != "recall/far"]
    while sum(map(len, rows)) < tokens:
        item = held_out(names[len(rows) % len(names)], 1, seed=1000 + len(rows))[0]
        rows.append(conversation([item]).encode(tokenizer())[0])
    return rows


def logits(path: str, mode: str, backend: str, rows: Sequence[Sequence[int]]) -> np.ndarray:
    """Return the logits (T, V) after every token of all rows."""
    engine = Engine.open(path, backend=backend, numerics=mode)
    return np.concatenate([engine.session(len(row) + 1).extend(list(row)) for row in rows])


def run(path: str, mode: str, backend: str, tier: str, rows: Sequence[Sequence[int]]) -> np.ndarray:
    """Return ``logits`` of a process of its own, in which kernels are of a SIMD tier."""
    with tempfile.TemporaryDirectory() as folder:
        asked, out = Path(folder) / "rows.json", Path(folder) / "logits.npy"
        asked.write_text(json.dumps([path, mode, backend, list(map(list, rows)), str(out)]))
        environment = {name: value for name, value in os.environ.items() if name != TIER_VARIABLE}
        environment |= {TIER_VARIABLE: tier} if tier else {}
        subprocess.run([sys.executable, "-m", "benchmarks.modes", "--worker", str(asked)], env=environment, check=True)
        return np.load(out)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.modes", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=2000, help="of each model (%(default)s)")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS, help="which models (all)")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if args.worker:
        path, mode, backend, rows, out = json.loads(args.worker.read_text())
        np.save(out, logits(path, mode, backend, rows))
        return 0
    table = []
    for model in args.models:
        path = random_path() if model == "random" else embedded_path("q2" if model.endswith("q2") else "f16")
        rows = texts(model, path, args.tokens)
        kept: dict[tuple[str, str, str], np.ndarray] = {}
        for pair in PAIRS:
            for side in (pair[:3], pair[3:]):
                if side not in kept:
                    kept[side] = run(path, *side, rows)
            d = divergence(kept[pair[:3]], kept[pair[3:]])
            sides = [" ".join(filter(None, (mode, backend, tier and f"tier {tier}"))) for mode, backend, tier in
                     (pair[:3], pair[3:])]  # fmt: skip
            figures = [f"{d[name]:.2g}" for name in ("kl_median", "kl_mean", "kl_max")]
            apart = np.abs(kept[pair[:3]] - kept[pair[3:]]).max()
            table.append([model, *sides, *figures, f"{d['same_top1']:.4f}", f"{apart:.2g}"])
            print(*table[-1], file=sys.stderr)
    columns = ["model", "one", "other", "KL: median", "mean", "max", "same first choice", "largest gap of a logit"]
    print(markdown(columns, table))
    return 0


if __name__ == "__main__":
    sys.exit(main())
