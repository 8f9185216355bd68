"""``ds4-vectors diff``: compare logits at all positions, of files or of targets.

result = differences(a, b)          per position: max, rms, KL, top-1, top-k overlap
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ds4ref.console.flags import add
from ds4ref.console.options import number, parsed
from ds4ref.console.tool import add_target, finish, parser, rows, target_of
from ds4ref.errors import DataError, UsageError
from ds4ref.targets import Ability

from .observation import Ids, Observation, from_logits, log_softmax, preflight
from .reading import FILES, read, read_ids
from .tables import BROKEN, padding, refused

TOP_K = 5


def differences(a: np.ndarray, b: np.ndarray) -> dict[str, np.ndarray]:
    """Compare logits a and b (R, V) position by position; DataError unless the shapes agree. Return arrays (R,):

    max, rms    of the differences between a and b (logits, or log probabilities if only those are known)
    kl          KL(A || B) in nats over the known support
    top1        whether the best token agrees; False where either row holds a NaN
    overlap     share of A's TOP_K best tokens that are among B's TOP_K
    """
    if a.shape != b.shape or a.ndim != 2:
        raise DataError(f"logits of shapes {a.shape} and {b.shape} cannot be compared")
    a, b = a.astype(np.float64), b.astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        # equal infinities (a token that both mask) count as equal
        difference = np.where(a == b, 0.0, np.abs(a - b))
        p, q = log_softmax(a), log_softmax(b)
        weight = np.exp(p)
        kl = np.where(weight > 0, weight * (p - q), 0.0).sum(axis=1)
    best_a, best_b = _best(a), _best(b)
    known = ~(np.isnan(a).any(axis=1) | np.isnan(b).any(axis=1))
    return {
        "max": difference.max(axis=1), "rms": np.sqrt((difference**2).mean(axis=1)), "kl": np.maximum(kl, 0.0),
        "top1": (best_a[:, 0] == best_b[:, 0]) & known,
        "overlap": (best_a[:, :, None] == best_b[:, None, :]).any(axis=2).mean(axis=1),
    }  # fmt: skip


def summary(each: dict[str, np.ndarray], rows: np.ndarray, atol: float) -> dict[str, Any]:
    """Summarise ``each``, the result of ``differences`` at the positions ``rows``, over all positions.

    In the returned object, ``non_finite`` is the number of positions whose difference is not finite (then max, rms and
    kl are None), and ``first_bad`` the first position whose largest difference exceeds ``atol`` or is not finite.
    """
    finite = np.isfinite(each["max"])
    bad = np.flatnonzero(~(each["max"] <= atol))
    means = {"max": each["max"].max(), "rms": np.sqrt(np.mean(each["rms"] ** 2)), "kl": each["kl"].mean()}
    return {
        "positions": len(rows),
        "non_finite": int((~finite).sum()),
        **{name: float(value) if finite.all() else None for name, value in means.items()},
        "top1": float(each["top1"].mean()),
        "overlap": float(each["overlap"].mean()),
        "worst_position": int(rows[int(np.argmax(np.where(finite, each["max"], np.inf)))]),
        "first_bad": int(rows[bad[0]]) if len(bad) else None,
        "atol": atol,
    }


def _best(x: np.ndarray) -> np.ndarray:
    """Return the ids of the TOP_K best tokens of each row, ties to the lower id; NaN counts as worst."""
    return np.argsort(-np.where(np.isnan(x), -np.inf, x), axis=1, kind="stable")[:, :TOP_K]


# ------------------------------------------------------------------------------------------------------- the command


def run(argv: Sequence[str]) -> int:
    """Run ``ds4-vectors diff A B``; return the exit code."""
    flags = parser("ds4-vectors diff", "Compare logits at all positions: files (.npz with ids and logits, .npy, .csv) "
                   "or targets; targets need --token-ids.", "A B [options]",
                   "mine.npz theirs.npz --fail",
                   "local:m.gguf?numerics=exact local:m.gguf?numerics=qat --token-ids ids.json",
                   "golden.npz local:m.gguf --fail",
                   "theirs.npz mine.npz --key hf --key-b logits")  # fmt: skip
    flags.add_argument("sides", nargs="*", metavar="A B", help="a file of logits or a target")
    add(flags, "--token-ids")
    add(flags, "--key", help="name of the array in A's .npz (logits)")
    flags.add_argument("--key-b", metavar="NAME", help="name of the array in B's .npz (same as --key)")
    add(flags, "--atol", type=number(0, 1000000.0), default=0.001, help="largest difference allowed (0.001)")
    add(flags, "--fail", help="exit 1 if any position exceeds --atol")
    add(flags, "--json")
    add_target(flags)
    args = parsed(flags, argv)
    if args is None:
        return 0
    if len(args.sides) != 2:
        raise UsageError(f"expected two sides, A and B, not {len(args.sides)}")
    ids: Ids | None = None if args.token_ids is None else read_ids(args.token_ids)
    sides: dict[str, Observation] = {}
    nameless = False  # whether a table had no token ids, so that its rows were numbered instead
    for name, spec, key in zip("AB", args.sides, (args.key, args.key_b or args.key), strict=True):
        kind = spec.partition(":")[0].partition("?")[0]
        if spec.lower().endswith(FILES) and kind not in ("local", "http", "https", "command"):
            numbered = ids is None and spec.lower().endswith((".npy", ".csv", ".tsv"))
            sides[name] = read(spec, None if ids is None else list(ids), key, numbered=numbered)
            nameless |= numbered
        else:
            with target_of(args, spec) as target:
                target.require(Ability.FULL_LOGITS, needed_for="diff")
                if ids is None:
                    raise UsageError(f"target {spec} needs --token-ids, or a file with ids as side A")
                sides[name] = from_logits(ids, target.logits(list(ids)))
        ids = sides[name].ids if ids is None and not nameless else ids
    notes, broken = [], False
    for (name, side), spec in zip(sides.items(), args.sides, strict=True):
        findings = preflight(side)
        useless = refused(findings)
        if useless is not None or not side.full:
            raise DataError(f"{spec}: {'diff needs full logits' if useless is None else useless.says}")
        notes += [f"{name}: {finding.says}" for finding in findings]
        broken |= any(finding.outcome is BROKEN for finding in findings)
    a, b = sides.values()
    if not nameless and a.ids.tolist() != b.ids.tolist():
        raise DataError("A and B were computed on different token ids")
    shared, in_a, in_b = np.intersect1d(a.rows, b.rows, return_indices=True)
    if not len(shared):
        raise DataError("A and B share no positions")
    only = {"only_a": len(a.rows) - len(shared), "only_b": len(b.rows) - len(shared)}
    if any(only.values()):
        notes.append(f"A has {len(a.rows)} positions, B {len(b.rows)}: compared the {len(shared)} they share")
    absolute = a.raw and b.raw and a.table is not None and b.table is not None
    if a.raw != b.raw:
        notes.append(f"{'A' if a.raw else 'B'} holds logits, the other none: compared as log probabilities")
    tables = [(side.table if absolute else side.logprobs)[at] for side, at in ((a, in_a), (b, in_b))]  # type: ignore[index]
    width = min(table.shape[1] for table in tables)
    for i, name in enumerate("AB"):
        if tables[i].shape[1] > width and padding(tables[i], width):
            notes.append(f"{name}: {tables[i].shape[1] - width} padding columns ignored")
            tables[i] = tables[i][:, :width]
    result: dict[str, Any] = {"a": args.sides[0], "b": args.sides[1], **only}
    result |= summary(differences(*tables), shared, args.atol)
    if result["non_finite"]:
        places = f"{result['non_finite']} of {result['positions']} positions"
        notes.append(f"NaN or infinite difference at {places}, first at {result['worst_position']}")
    show = [(k, _formatted(result[k], bool(result["non_finite"]) and k in ("max", "rms", "kl"))) for k in
            ("positions", "max", "rms", "kl", "top1", "overlap", "worst_position", "first_bad")]  # fmt: skip
    # incomplete or broken data cannot pass
    result["passed"] = result["first_bad"] is None and not broken and not any(only.values())
    result["notes"] = notes
    finish(result, args.json, "\n".join([rows(("measure", "value"), show), *(f"note: {note}" for note in notes)]))
    return 0 if result["passed"] or not args.fail else 1


def _formatted(value: Any, lost: bool) -> str:
    if value is None:
        return "not a number" if lost else "-"
    return f"{value:.3e}" if isinstance(value, float) else str(value)
