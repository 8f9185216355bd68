"""``ds4-vectors damage A B``: measure the error that quantization adds to each op, and find bugs among these errors.

A is the unquantized model, B the quantized one.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ds4ref.console.common import Progress
from ds4ref.console.flags import add
from ds4ref.console.model import add_engine, engine_options
from ds4ref.console.options import integer, parsed
from ds4ref.console.tool import finish, parser, rows
from ds4ref.errors import DataError, UsageError

from .reading import read_ids
from .trace.ops import OPS

if TYPE_CHECKING:
    from ds4ref.variants.quantized import Reading

BUGS = {
    "engine": "has a larger error than its weights explain: the op computes something else (a bug in the engine)",
    "weights": "differ by more than the format's rounding: they are not the same weights (a bug in the conversion)",
}
ROW = "differs by more than the format's rounding, the other rows do not (a bug in the conversion)"


def run(argv: Sequence[str]) -> int:
    """Run ``ds4-vectors damage A B``; return the exit code."""
    flags = parser("ds4-vectors damage",
                   "Measure the error of quantization: run the same tokens through A, the unquantized model, and B, "
                   "the quantized one, every op of B on A's values. Exit code 1 if an error is a bug instead.",
                   "A B [options]",
                   "model/ model-q2.gguf", "bf16.gguf q4.gguf --token-ids ids.json")  # fmt: skip
    flags.add_argument("models", nargs="*", metavar="A B", help="two model files or folders")
    add(flags, "--token-ids", help="JSON list of token ids (random ones)")
    add(flags, "--tokens", type=integer(2, 4096), default=64, help="number of random token ids (64)")
    add(flags, "--seed", default=0, help="seed of the random token ids (0)")
    add(flags, "--json")
    add_engine(flags, numerics={"default": "exact"})
    args = parsed(flags, argv)
    if args is None:
        return 0
    if len(args.models) != 2:
        raise UsageError(f"name two models, A and B, not {len(args.models)}")
    from ds4ref.engine import Engine
    from ds4ref.variants.quantized import compare, divergence

    options = engine_options(args)
    with Engine.open(args.models[0], **options) as a, Engine.open(args.models[1], **options) as b:
        ids = _ids(args, a.shape.vocab)
        points = {name: op.tensors for name, op in OPS.items()}
        with Progress("layer") as progress:
            readings = list(compare(a, b, ids, points, lambda n: progress(n, a.shape.n_layers)))
        logits = divergence(a.logits(ids), b.logits(ids))
    bugs = [reading for reading in readings if reading.verdict in BUGS]
    result = {
        "a": args.models[0], "b": args.models[1], "tokens": len(ids), "numerics": args.numerics, "logits": logits,
        "verdict": bugs[0].verdict if bugs else "quantization",
        "ops": [{**vars(r), "verdict": r.verdict} for r in readings],
    }  # fmt: skip
    finish(result, args.json, _page(readings, bugs, logits))
    return 1 if bugs else 0


def _ids(args: Any, vocab: int) -> list[int]:
    if args.token_ids is None:
        import numpy as np

        return np.random.default_rng(args.seed).integers(0, vocab, args.tokens).tolist()
    ids = read_ids(args.token_ids)
    if max(ids) >= vocab:
        raise DataError(f"token id {max(ids)} is outside the vocabulary of {vocab}")
    return ids


def _page(readings: list[Reading], bugs: list[Reading], logits: dict[str, float]) -> str:
    """Return the report as text: a row per op family and format, the distance of the logits, and the verdicts.

    readings  measurement of every op
    bugs      those of them that quantization does not explain
    logits    KL divergence and agreement of the best token between A and B
    """
    groups: dict[tuple[str, str], list[Reading]] = defaultdict(list)
    for reading in readings:
        if reading.family:
            groups[reading.family, " ".join(dict.fromkeys(reading.formats))].append(reading)
    body = []
    for (family, formats), members in groups.items():
        worst = max(members, key=lambda r: r.error)
        body.append([family, formats, str(len(members)), f"{statistics.median(r.error for r in members):.3g}",
                     f"{worst.error:.3g}", f"{worst.point}, {_layer(worst.layer)}",
                     f"{min(r.cosine for r in members):.5f}", f"{max(r.weights for r in members):.3g}",
                     f"{max(r.loss for r in members):.3g}", f"{max(r.worst for r in members):.3g}"])  # fmt: skip
    head = ["family", "format", "ops", "error", "worst", "where", "cosine", "weights", "allowed", "worst row"]
    lines = [rows(head, body)]
    lines.append(f"logits: KL {logits['kl_mean']:.4g} nats per token (99 % below {logits['kl_p99']:.4g}), "
                 f"same top token {100 * logits['same_top1']:.1f} %")  # fmt: skip
    if not bugs:
        lines.append(
            "verdict: quantization. Every op's error follows from its weights, theirs from the format's rounding"
        )
    for bug in bugs[:8]:
        tensor, number = bug.row
        if bug.verdict == "weights" and bug.weights <= bug.loss:
            lines.append(f"verdict: row {number} of {tensor} {ROW}; error {bug.worst:.3g}, allowed {bug.lost:.3g}")
            continue
        subject = ", ".join(bug.tensors) if bug.verdict == "weights" else f"{bug.point} of {_layer(bug.layer)}"
        lines.append(f"verdict: {subject} {BUGS[bug.verdict]}; error {bug.error:.3g}, allowed {bug.allowed:.3g}, "
                     f"error of the weights {bug.weights:.3g}, allowed {bug.loss:.3g}"
                     + (f"; worst row {number} of {tensor}, {bug.worst:.3g}" if tensor else ""))  # fmt: skip
    if len(bugs) > 8:
        lines.append(f"and {len(bugs) - 8} more")
    return "\n".join(lines)


def _layer(layer: int) -> str:
    return "head" if layer < 0 else f"layer {layer}"
