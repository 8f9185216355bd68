"""``ds4-vectors diff``: compare logits at all positions, of files or of targets.

result = differences(a, b)          per position: max, rms, KL, top-1, top-k overlap
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ds4ref.console.flags import add
from ds4ref.console.options import number, parsed
from ds4ref.console.tool import add_target, finish, parser, rows, target_of
from ds4ref.errors import DataError, UsageError
from ds4ref.targets import Ability

from .observation import Ids, log_softmax, to_logprobs
from .reading import FILES, RAW, read_ids, read_table
from .tables import BROKEN, of_table, padding, refused

TOP_K = 5


@dataclass(frozen=True)
class Differences:
    """Comparison of B with A at R positions; arrays are (R,).

    rows        positions in the token list
    max, rms    of logit differences, or of log probability differences where only those are known
    kl          KL(A || B) in nats over the known support
    same_top    whether the best token agrees; False where either row holds a NaN
    overlap     share of A's TOP_K best tokens that are among B's TOP_K
    """

    rows: np.ndarray
    max: np.ndarray
    rms: np.ndarray
    kl: np.ndarray
    same_top: np.ndarray
    overlap: np.ndarray

    def first_bad(self, atol: float) -> int | None:
        """Return the first position whose largest difference exceeds ``atol`` or is NaN; None if there is none."""
        bad = np.flatnonzero(~(self.max <= atol))
        return int(self.rows[bad[0]]) if len(bad) else None

    def summary(self, atol: float) -> dict[str, Any]:
        """Return the summary over all positions; None for values that were not compared or are not finite.

        ``non_finite``: number of positions whose difference is not finite; ``atol``: tolerance for ``first_bad``.
        """
        finite = bool(np.isfinite(self.max).all())
        return {
            "positions": len(self.rows),
            "non_finite": int((~np.isfinite(self.max)).sum()),
            "max": float(self.max.max()) if finite else None,
            "rms": float(np.sqrt(np.mean(self.rms**2))) if finite else None,
            "kl": float(self.kl.mean()) if finite else None,
            "top1": float(self.same_top.mean()),
            "overlap": float(self.overlap.mean()),
            "worst_position": int(self.rows[int(np.argmax(np.where(np.isfinite(self.max), self.max, np.inf)))]),
            "first_bad": self.first_bad(atol),
            "atol": atol,
        }


def differences(a: np.ndarray, b: np.ndarray, rows: Ids | None = None) -> Differences:
    """Compare logits a and b (R, V); DataError unless the shapes agree."""
    if a.shape != b.shape or a.ndim != 2:
        raise DataError(f"logits of shapes {a.shape} and {b.shape} cannot be compared")
    a, b = a.astype(np.float64), b.astype(np.float64)
    at = np.arange(len(a)) if rows is None else np.asarray(rows)
    with np.errstate(invalid="ignore", divide="ignore"):
        # equal infinities (a token masked on both sides) are no difference
        difference = np.where(a == b, 0.0, np.abs(a - b))
        p, q = log_softmax(a), log_softmax(b)
        weight = np.exp(p)
        kl = np.where(weight > 0, weight * (p - q), 0.0).sum(axis=1)
    k = min(TOP_K, a.shape[1]) if a.size else 0
    best_a, best_b = _best(a, k), _best(b, k)
    overlap = (best_a[:, :, None] == best_b[:, None, :]).any(axis=2).mean(axis=1) if k else np.zeros(len(a))
    same = (best_a[:, 0] == best_b[:, 0]) if k else np.zeros(len(a), bool)
    same &= ~(np.isnan(a).any(axis=1) | np.isnan(b).any(axis=1))
    return Differences(
        at, difference.max(axis=1, initial=0.0), np.sqrt((difference**2).mean(axis=1)) if k else np.zeros(len(a)),
        np.maximum(kl, 0.0), same, overlap,
    )  # fmt: skip


def _best(x: np.ndarray, k: int) -> np.ndarray:
    """Return the ids of the k best tokens of each row, ties to the lower id; NaN counts as worst."""
    return np.argsort(-np.where(np.isnan(x), -np.inf, x), axis=1, kind="stable")[:, :k]


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
    ids = None if args.token_ids is None else read_ids(args.token_ids)
    a = _side(args, args.sides[0], ids, args.key)
    b = _side(args, args.sides[1], a.ids if ids is None else ids, args.key_b or args.key)
    if a.ids is not None and b.ids is not None and list(a.ids) != list(b.ids):
        raise DataError("A and B were computed on different token ids")
    notes, broken = [], False
    for name, side, spec in (("A", a, args.sides[0]), ("B", b, args.sides[1])):
        findings = of_table(side.logits, side.rows, None if side.ids is None else np.asarray(side.ids, np.int32))
        useless = refused(findings)
        if useless is not None:
            raise DataError(f"{spec}: {useless.says}")
        notes += [f"{name}: {finding.says}" for finding in findings]
        broken |= any(finding.outcome is BROKEN for finding in findings)
    shared, in_a, in_b = np.intersect1d(a.rows, b.rows, return_indices=True)
    if not len(shared):
        raise DataError("A and B share no positions")
    only = {"only_a": len(a.rows) - len(shared), "only_b": len(b.rows) - len(shared)}
    if any(only.values()):
        notes.append(f"A has {len(a.rows)} positions, B {len(b.rows)}: compared the {len(shared)} they share")
    logits_a, logits_b, more = _same_scale(a.logits[in_a], b.logits[in_b])
    names = {"a": args.sides[0], "b": args.sides[1], **only}
    result: dict[str, Any] = {**names, **differences(logits_a, logits_b, shared).summary(args.atol)}
    notes += more
    if result["non_finite"]:
        places = f"{result['non_finite']} of {result['positions']} positions"
        notes.append(f"NaN or infinite difference at {places}, first at {result['worst_position']}")
    show = [(k, _formatted(result[k], bool(result["non_finite"]) and k in ("max", "rms", "kl"))) for k in
            ("positions", "max", "rms", "kl", "top1", "overlap", "worst_position", "first_bad")]  # fmt: skip
    # what is incomplete or broken cannot pass
    result["passed"] = result["first_bad"] is None and not broken and not any(only.values())
    result["notes"] = notes
    finish(result, args.json, "\n".join([rows(("measure", "value"), show), *(f"note: {note}" for note in notes)]))
    return 0 if result["passed"] or not args.fail else 1


def _same_scale(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Return both tables on one scale and without padding, and notes on the conversions."""
    notes = []
    width = min(a.shape[1], b.shape[1])
    for name, table in (("A", a), ("B", b)):
        if table.shape[1] > width and padding(table, width):
            notes.append(f"{name}: {table.shape[1] - width} padding columns ignored")
    a, b = (t[:, :width] if t.shape[1] > width and padding(t, width) else t for t in (a, b))
    (logs_a, kind_a), (logs_b, kind_b) = to_logprobs(a), to_logprobs(b)
    if kind_a == kind_b and kind_a in ("logits", "log"):
        return a, b, notes
    names = {"log": "log probabilities", "log10": "logarithms to base 10", "log2": "logarithms to base 2"}
    scales = f"A holds {names.get(kind_a, kind_a)}, B {names.get(kind_b, kind_b)}"
    return logs_a, logs_b, [*notes, f"{scales}: both converted to natural log probabilities"]


@dataclass(frozen=True)
class LogitsTable:
    """Logits of one side of a comparison.

    logits  (R, V)
    rows    (R,) positions of the rows in ``ids``
    ids     token ids, None if unknown
    """

    logits: np.ndarray
    rows: np.ndarray
    ids: Sequence[int] | None


def _logits_file(path: str, ids: Sequence[int] | None, key: str) -> LogitsTable:
    """Read the logits of a file without conversion; DataError unless they are a table that fits the ids."""
    suffix = "." + path.rpartition(".")[2].lower()
    if suffix in RAW:
        from .dumps import raw

        logits, own, at = raw(path, None if ids is None else len(ids), None), None, None
    elif suffix in (".json", ".jsonl"):
        raise UsageError(f"{path}: this command needs full logits: .npz, .npy, .csv, .tsv or {', '.join(RAW)}")
    else:
        logits, own, at = read_table(path, key)
    if logits.ndim != 2 or logits.dtype.kind not in "fiu":
        raise DataError(f"{path}: logits must be a table of numbers, not {logits.dtype} of shape {logits.shape}")
    if own is not None and ids is not None and own.tolist() != list(ids):
        raise DataError(f"{path} was computed on different token ids")
    positions = np.arange(len(logits)) if at is None else np.asarray(at)
    if positions.shape != (len(logits),) or positions.dtype.kind not in "iu":
        raise DataError(f"{path}: {positions.size} positions for {len(logits)} rows of logits")
    if len(np.unique(positions)) != len(positions):
        raise DataError(f"{path}: a position is listed twice")
    return LogitsTable(logits, positions.astype(np.int64), ids if own is None else own.tolist())


def _side(args: Namespace, spec: str, ids: Sequence[int] | None, key: str) -> LogitsTable:
    kind = spec.partition(":")[0].partition("?")[0]
    if spec.lower().endswith(FILES) and kind not in ("local", "http", "https", "command"):
        return _logits_file(spec, ids, key)
    with target_of(args, spec) as target:
        target.require(Ability.FULL_LOGITS, needed_for="diff")
        if ids is None:
            raise UsageError(f"target {spec} needs --token-ids, or a file with ids as side A")
        logits = target.logits(ids)
    return LogitsTable(logits, np.arange(len(logits)), ids)


def _formatted(value: Any, lost: bool) -> str:
    if value is None:
        return "not a number" if lost else "-"
    return f"{value:.3e}" if isinstance(value, float) else str(value)
