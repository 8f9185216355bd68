"""Commands on full logits: diff, freeze, golden; and model, which prints the diagnostic model's path."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ds4ref.console.common import check_output
from ds4ref.console.flags import add
from ds4ref.console.options import integer, number, parsed
from ds4ref.console.tool import add_target, finish, parser, required, rows, target_of
from ds4ref.errors import DataError, UsageError
from ds4ref.targets import Ability

from .logits import Differences, check, differences, load
from .logits import freeze as freeze_logits
from .observation import to_logprobs
from .reading import FILES, RAW, read_ids, read_table
from .tables import BROKEN, of_table, padding, refused

# ------------------------------------------------------------------------------------------------- diff, golden


def diff(argv: Sequence[str]) -> int:
    """Run ``ds4-vectors diff A B``; return the exit code."""
    flags = parser("ds4-vectors diff", "Compare logits at all positions: files (.npz with ids and logits, .npy, .csv) "
                   "or targets; targets need --token-ids.", "A B [options]",
                   "mine.npz theirs.npz --fail",
                   "local:m.gguf?numerics=exact local:m.gguf?numerics=qat --token-ids ids.json",
                   "golden.npz theirs.npz --key hf --key-b logits")  # fmt: skip
    flags.add_argument("sides", nargs="*", metavar="A B", help="a file of logits or a target")
    add(flags, "--token-ids")
    add(flags, "--key", help="name of the array in A's .npz (logits)")
    flags.add_argument("--key-b", metavar="NAME", help="name of the array in B's .npz (same as --key)")
    add(flags, "--atol", type=number(0, 1000000.0), default=0.001, help="largest difference allowed (0.001)")
    add(flags, "--fail", help="exit 1 if any position exceeds --atol")
    _add_json_and_target(flags)
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
        broken |= any(finding.severity == BROKEN for finding in findings)
    shared, in_a, in_b = np.intersect1d(a.rows, b.rows, return_indices=True)
    if not len(shared):
        raise DataError("A and B share no positions")
    only = {"only_a": len(a.rows) - len(shared), "only_b": len(b.rows) - len(shared)}
    if any(only.values()):
        notes.append(f"A has {len(a.rows)} positions, B {len(b.rows)}: compared the {len(shared)} they share")
    logits_a, logits_b, more = _same_scale(a.logits[in_a], b.logits[in_b])
    names = {"a": args.sides[0], "b": args.sides[1], **only}
    return _report(args, differences(logits_a, logits_b, shared), names, args.fail, [*notes, *more],
                   whole=not broken and not any(only.values()))  # fmt: skip


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


def golden(argv: Sequence[str]) -> int:
    """Run ``ds4-vectors golden FILE``; return the exit code."""
    flags = parser("ds4-vectors golden", "Compare an engine, or a file of logits, with a golden file.",
                   "FILE [LOGITS] [options]",
                   "golden.npz --target local:m.gguf", "golden.npz theirs.npz --atol 0.01")  # fmt: skip
    flags.add_argument("files", nargs="*", metavar="FILE [LOGITS]", help="the golden file; logits instead of a target")
    add(flags, "--atol", type=number(0, 1000000.0), default=0.001, help="largest difference allowed (0.001)")
    _add_json_and_target(flags)
    add_target(flags)
    args = parsed(flags, argv)
    if args is None:
        return 0
    if len(args.files) not in (1, 2):
        raise UsageError("name a golden file")
    frozen = load(args.files[0])
    if len(args.files) == 2:
        side, name = _logits_file(args.files[1], frozen.ids.tolist(), "logits"), args.files[1]
        if not np.array_equal(side.rows, np.arange(len(frozen.ids))):
            raise DataError(f"{name} does not hold the {len(frozen.ids)} positions of the golden file")
        logits = side.logits
    else:
        with target_of(args, args.target) as target:
            target.require(Ability.FULL_LOGITS, needed_for="golden")
            logits, name = target.logits(frozen.ids.tolist()), target.name
    return _report(args, check(frozen, logits), {"golden": args.files[0], "against": name}, True)


def freeze(argv: Sequence[str]) -> int:
    """Run ``ds4-vectors freeze OUT --token-ids IDS``; return the exit code."""
    flags = parser("ds4-vectors freeze", "Save an engine's logits as a golden file. Never overwrites a file.",
                   "OUT.npz --token-ids IDS.json [options]",
                   "golden.npz --token-ids ids.json --target local:m.gguf?numerics=exact",
                   "small.npz --token-ids ids.json --target local:m.gguf --top 20")  # fmt: skip
    flags.add_argument("out", nargs="*", metavar="OUT.npz", help="file to write")
    add(flags, "--token-ids")
    add(flags, "--top", type=integer(0), default=0, help="save only the top K tokens of each position")
    add(flags, "--json")
    add_target(flags)
    args = parsed(flags, argv)
    if args is None:
        return 0
    if len(args.out) != 1:
        raise UsageError("name one output file")
    required(args, "token-ids")
    check_output(args.out[0])
    ids = read_ids(args.token_ids)
    with target_of(args, args.target) as target:
        target.require(Ability.FULL_LOGITS, needed_for="freeze")
        identity = target.identity()
        freeze_logits(args.out[0], ids, target.logits(ids), {"target": identity}, args.top)
    finish({"file": args.out[0], "tokens": len(ids), "top": args.top, "target": identity}, args.json,
           f"{len(ids)} positions written to {args.out[0]}")  # fmt: skip
    return 0


def _add_json_and_target(flags: Any) -> None:
    add(flags, "--json")
    if flags.prog.endswith("diff"):
        add_target(flags)


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


def _report(
    args: Namespace, comparison: Differences, names: dict[str, Any], strict: bool, notes: Sequence[str] = (),
    whole: bool = True,
) -> int:  # fmt: skip
    """Print the comparison and return the exit code; without ``whole`` (incomplete or broken data) it cannot pass."""
    result = {**names, **comparison.summary(args.atol)}
    if result["non_finite"]:
        places = f"{result['non_finite']} of {result['positions']} positions"
        notes = [*notes, f"NaN or infinite difference at {places}, first at {result['worst_position']}"]
    show = [(k, _formatted(result[k], bool(result["non_finite"]) and k in ("max", "rms", "kl"))) for k in
            ("positions", "max", "rms", "kl", "top1", "overlap", "worst_position", "first_bad")]  # fmt: skip
    ok = result["first_bad"] is None and whole
    result["passed"], result["notes"] = ok, list(notes)
    finish(result, args.json, "\n".join([rows(("measure", "value"), show), *(f"note: {note}" for note in notes)]))
    return 0 if ok or not strict else 1


def _formatted(value: Any, lost: bool) -> str:
    if value is None:
        return "not a number" if lost else "-"
    return f"{value:.3e}" if isinstance(value, float) else str(value)


def model(argv: Sequence[str]) -> int:
    """Run ``ds4-vectors model``; return the exit code."""
    flags = parser("ds4-vectors model", "Print the file of the diagnostic model, building it if necessary.",
                   "[--write-prompts DIR]", "--write-prompts prompts")  # fmt: skip
    flags.add_argument("--write-prompts", metavar="DIR", help="also write the prompt set there, as NAME.ids.json")
    add(flags, "--json")
    args = parsed(flags, argv)
    if args is None:
        return 0
    from ds4ref.files import atomic_write
    from ds4ref.nano.diagnostic import PROMPTS, diagnostic_path

    path, written = diagnostic_path(), {}
    if args.write_prompts:
        import os

        os.makedirs(args.write_prompts, exist_ok=True)
        for name, make in PROMPTS.items():
            written[name] = os.path.join(args.write_prompts, f"{name}.ids.json")
            with atomic_write(written[name]) as out:
                out.write((json.dumps(make()) + "\n").encode())
    finish({"model": path, "prompts": written}, args.json, path)
    return 0
