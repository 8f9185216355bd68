"""The commands on full logits: diff, freeze, golden, diagnose, model."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ds4ref.cli.common import Progress, check_output
from ds4ref.cli.options import choice, integer, number
from ds4ref.errors import DataError, UsageError
from ds4ref.targets import Ability

from .logits import Differences, check, compare, load
from .logits import freeze as freeze_logits
from .observation import Observation, read, read_ids
from .options import add_target, finish, parsed, parser, required, rows, target_of

if TYPE_CHECKING:
    from ds4ref.engine import Engine

    from .diagnose import Diagnosis

FILES = (".npz", ".npy", ".csv", ".tsv", ".json", ".jsonl")
DIAGNOSE = """Which numerics mode, or which mistake, explains another engine's logits.

.npz holds "logits" (tokens, vocabulary), as ds4 --dump-logits writes it, with "ids" and, for some positions
only, "rows". .json is [{"position": 0, "top": [[id, logprob], ...]}, ...]. The verdict is a rounding set
(exact, qat, ds4, llama.cpp, ...), "fault" with its name, or "unknown": none of these."""
KEYS = ("verdict", "fault", "confidence", "first_position", "ranking", "says")


# ------------------------------------------------------------------------------------------------- diff, golden


def diff(argv: Sequence[str]) -> int:
    """``ds4-vectors diff A B``"""
    made = parser("ds4-vectors diff", "Compare logits at all positions: files (.npz with ids and logits, .npy, .csv) "
                  "or targets; targets need --token-ids.", "A B [options]",
                  "mine.npz theirs.npz --fail",
                  "local:m.gguf?numerics=exact local:m.gguf?numerics=qat --token-ids ids.json",
                  "golden.npz theirs.npz --key hf --key-b logits")  # fmt: skip
    made.add_argument("sides", nargs="*", metavar="A B", help="a file of logits or a target")
    made.add_argument("--token-ids", metavar="FILE", help="JSON list of token ids")
    made.add_argument("--key", metavar="NAME", default="logits", help="array of A's .npz (logits)")
    made.add_argument("--key-b", metavar="NAME", help="array of B's .npz (as --key)")
    made.add_argument("--atol", metavar="F", type=number(0, 1e6), default=1e-3,
                      help="differences above are bad (0.001)")  # fmt: skip
    made.add_argument("--fail", action="store_true", help="exit 1 if any position is bad")
    _common(made)
    args = parsed(made, argv)
    if args is None:
        return 0
    if len(args.sides) != 2:
        raise UsageError(f"two sides are needed, A and B, not {len(args.sides)}")
    ids = None if args.token_ids is None else read_ids(args.token_ids)
    a, rows_a, ids_a = _side(args, args.sides[0], ids, args.key)
    b, rows_b, ids_b = _side(args, args.sides[1], ids_a if ids is None else ids, args.key_b or args.key)
    if ids_a is not None and ids_b is not None and list(ids_a) != list(ids_b):
        raise DataError("A and B were computed on different token ids")
    both, in_a, in_b = np.intersect1d(rows_a, rows_b, return_indices=True)
    if not len(both):
        raise DataError("A and B have no position in common")
    return _report(args, compare(a[in_a], b[in_b], both), {"a": args.sides[0], "b": args.sides[1]}, args.fail)


def golden(argv: Sequence[str]) -> int:
    """``ds4-vectors golden FILE``"""
    made = parser("ds4-vectors golden", "Compare an engine, or a file of logits, with a golden file.",
                  "FILE [LOGITS] [options]",
                  "golden.npz --target local:m.gguf", "golden.npz theirs.npz --atol 0.01")  # fmt: skip
    made.add_argument("files", nargs="*", metavar="FILE [LOGITS]", help="the golden file; logits instead of a target")
    made.add_argument("--atol", metavar="F", type=number(0, 1e6), default=1e-3,
                      help="largest difference allowed (0.001)")  # fmt: skip
    _common(made)
    add_target(made)
    args = parsed(made, argv)
    if args is None:
        return 0
    if len(args.files) not in (1, 2):
        raise UsageError("a golden file is needed")
    kept = load(args.files[0])
    if len(args.files) == 2:
        seen = _logits_file(args.files[1], kept.ids.tolist(), "logits")
        logits, name = seen[0], args.files[1]
    else:
        with target_of(args, args.target) as target:
            target.require(Ability.FULL_LOGITS, what="golden")
            logits, name = target.logits(kept.ids.tolist()), target.name
    return _report(args, check(kept, logits), {"golden": args.files[0], "against": name}, True)


def freeze(argv: Sequence[str]) -> int:
    """``ds4-vectors freeze OUT --token-ids IDS``"""
    made = parser("ds4-vectors freeze", "Keep an engine's logits as golden file. Existing files are never replaced.",
                  "OUT.npz --token-ids IDS.json [options]",
                  "golden.npz --token-ids ids.json --target local:m.gguf?numerics=exact",
                  "small.npz --token-ids ids.json --target local:m.gguf --top 20")  # fmt: skip
    made.add_argument("out", nargs="*", metavar="OUT.npz", help="file to write")
    made.add_argument("--token-ids", metavar="FILE", help="JSON list of token ids")
    made.add_argument("--top", metavar="K", type=integer(0), default=0, help="keep only the K best of each position")
    made.add_argument("--json", action="store_true", help="no text, only the line of JSON")
    add_target(made)
    args = parsed(made, argv)
    if args is None:
        return 0
    if len(args.out) != 1:
        raise UsageError("one file to write is needed")
    required(args, "token-ids")
    check_output(args.out[0])
    ids = read_ids(args.token_ids)
    with target_of(args, args.target) as target:
        target.require(Ability.FULL_LOGITS, what="freeze")
        identity = target.identity()
        freeze_logits(args.out[0], ids, target.logits(ids), {"target": identity}, args.top)
    finish({"file": args.out[0], "tokens": len(ids), "top": args.top, "target": identity}, args.json,
           f"{len(ids)} positions written to {args.out[0]}")  # fmt: skip
    return 0


def _common(made: Any) -> None:
    made.add_argument("--json", action="store_true", help="no table, only the line of JSON")
    if made.prog.endswith("diff"):
        add_target(made)


def _logits_file(path: str, ids: Sequence[int] | None, key: str) -> tuple[np.ndarray, np.ndarray, Sequence[int] | None]:
    """Raw logits of a file, their positions and token ids (None if it has none)."""
    from .observation import _matrix, _npz

    suffix = "." + path.rpartition(".")[2].lower()
    if suffix == ".npz":
        arrays = _npz(path)
        if key not in arrays:
            raise DataError(f"{path}: no array {key!r} (there are {', '.join(sorted(arrays))})")
        logits, own, at = arrays[key], arrays.get("ids"), arrays.get("rows")
    elif suffix in (".npy", ".csv", ".tsv"):
        logits, own, at = _matrix(path, suffix), None, None
    else:
        raise UsageError(f"{path}: full logits are read from .npz, .npy, .csv or .tsv")
    if logits.ndim != 2 or logits.dtype.kind not in "fiu":
        raise DataError(f"{path}: logits must be a table of numbers, not {logits.dtype} of shape {logits.shape}")
    if own is not None and ids is not None and own.tolist() != list(ids):
        raise DataError(f"{path} was computed on other token ids than the ones given")
    positions = np.arange(len(logits)) if at is None else np.asarray(at, np.int64)
    if positions.shape != (len(logits),):
        raise DataError(f"{path}: {len(positions)} positions for {len(logits)} rows of logits")
    return logits, positions, ids if own is None else own.tolist()


def _side(
    args: Namespace, spec: str, ids: Sequence[int] | None, key: str
) -> tuple[np.ndarray, np.ndarray, Sequence[int] | None]:
    kind = spec.partition(":")[0].partition("?")[0]
    if spec.lower().endswith(FILES) and kind not in ("local", "http", "https", "command"):
        return _logits_file(spec, ids, key)
    with target_of(args, spec) as target:
        target.require(Ability.FULL_LOGITS, what="diff")
        if ids is None:
            raise UsageError(f"target {spec} needs --token-ids, or a file with ids as side A")
        logits = target.logits(ids)
    return logits, np.arange(len(logits)), ids


def _report(args: Namespace, found: Differences, names: dict[str, str], strict: bool) -> int:
    result = {**names, **found.summary(args.atol)}
    show = [(k, f"{result[k]:.3e}" if isinstance(result[k], float) else str(result[k])) for k in
            ("positions", "max", "rms", "kl", "top1", "overlap", "worst_position", "first_bad")]  # fmt: skip
    ok = result["first_bad"] is None
    result["passed"] = ok
    finish(result, args.json, rows(("measure", "value"), show))
    return 0 if ok or not strict else 1


# ----------------------------------------------------------------------------------------------------- diagnose


def diagnose(argv: Sequence[str]) -> int:
    """``ds4-vectors diagnose``"""
    made = parser("ds4-vectors diagnose", DIAGNOSE, "[-m MODEL.gguf] --logits FILE [--token-ids IDS.json] [options]",
                  "-m model.gguf --token-ids ids.json --logits theirs.npz",
                  "-m model.gguf --token-ids ids.json --logits top20.json --json",
                  "--target http://127.0.0.1:8080/v1      (a server that has loaded the diagnostic model)")  # fmt: skip
    made.add_argument("-m", "--model", metavar="FILE", help="model the logits come from (the diagnostic model)")
    made.add_argument("--token-ids", metavar="FILE", help="JSON list of token ids (those in the .npz)")
    made.add_argument("--logits", metavar="FILE", help=".npz, .npy or .csv of full logits, or .json of top-k")
    made.add_argument("--key", metavar="NAME", default="logits", help="array of the .npz (logits)")
    made.add_argument("--top", metavar="K", type=integer(), help="use only the K best of every position")
    made.add_argument("--prompt", metavar="NAME", type=choice("mixed", "short", "text", "long"), default="mixed",
                      help="with --target: mixed, short, text or long, of the diagnostic set (mixed)")  # fmt: skip
    made.add_argument("--chat", action="store_true", help="with --target: as a chat, which tests the template too")
    made.add_argument("--thorough", action="store_true", help="compare with every fault in every mode in any case")
    made.add_argument("--json", action="store_true", help="no table, only the line of JSON")
    made.add_argument("--details", metavar="FILE", help="write the whole diagnosis as JSON")
    add_target(made, default=None)
    args = parsed(made, argv)
    if args is None:
        return 0
    if (args.logits is None) == (args.target is None):
        raise UsageError("one of --logits and --target is needed")
    if args.chat and args.target is None:
        raise UsageError("--chat goes with --target")
    if args.details:
        check_output(args.details)
    given = None if args.token_ids is None else read_ids(args.token_ids)
    seen = None if args.logits is None else read(args.logits, given, args.key)
    from ds4ref.engine import Engine
    from ds4ref.nano.diagnostic import diagnostic_path

    with Engine.open(args.model or diagnostic_path(), backend=args.backend, threads=args.threads) as engine:
        if seen is None:
            from .elicit import elicit

            with target_of(args, args.target) as target:
                seen = elicit(target, engine, given, args.prompt, args.chat)
        result = run_diagnosis(engine, seen if args.top is None else seen.top(args.top), args.thorough)
    whole = result.to_json()
    if args.details:
        from ds4ref.cli.common import atomic_output

        with atomic_output(args.details) as out:
            out.write((json.dumps(whole, indent=1) + "\n").encode())
    finish({key: whole[key] for key in KEYS}, args.json, _describe(result, seen))
    return 0


def run_diagnosis(engine: Engine, seen: Observation, thorough: bool = False) -> Diagnosis:
    """Check that the observation belongs to the model, then diagnose."""
    from .diagnose import diagnose as explain
    from .signatures import Signatures

    vocab = engine.shape.vocab
    if len(seen.ids) and int(seen.ids.max()) >= vocab:
        raise DataError(f"token id {int(seen.ids.max())} is outside the vocabulary of {vocab}: another model?")
    if seen.support is None and seen.logprobs.shape[1] != vocab:
        raise DataError(f"the logits are {seen.logprobs.shape[1]} wide, the model's vocabulary is {vocab}")
    if seen.support is not None and int(seen.support.max()) >= vocab:
        raise DataError(f"token id {int(seen.support.max())} in the log probabilities is outside the vocabulary")
    with Progress("computing candidates") as progress:
        library = Signatures(engine, seen.ids.tolist())
        return explain(library, seen, bos_of(engine), thorough=thorough, progress=lambda n: progress(n, 300))


def bos_of(engine: Engine) -> int | None:
    """Id of the beginning-of-sentence token; None if the file has no tokenizer."""
    from ds4ref.errors import TextError

    try:
        return engine.tokenizer.bos
    except TextError:
        return None


def _describe(result: Diagnosis, seen: Observation) -> str:
    what = result.fault or result.verdict
    kind = "full logits" if seen.full else f"the best {seen.logprobs.shape[1]} tokens"
    lines = [
        f"verdict      {result.verdict}" + (f": {result.fault}" if result.fault else ""),
        f"that is      {result.says}",
        f"confidence   {result.confidence:.4f}, from {kind} at {result.positions} positions",
    ]
    if result.first_position is not None:
        lines.append(f"deviates     from mode {result.mode} first at position {result.first_position}")
    if result.agrees_with:
        until = "" if result.agrees_until is None else f" up to position {result.agrees_until - 1}"
        lines.append(f"agrees with  {result.agrees_with}{until}")
    lines += [f"note         {note}" for note in result.notes]
    table = [
        (r["name"] + (" <" if r["name"].startswith(f"{what}") else ""), f"{r['probability']:.4f}",
         f"{r['distance']:.2e}", "-" if r["fits_until"] is None else str(r["fits_until"]))
        for r in result.ranking[:8]
    ]  # fmt: skip
    return "\n".join(lines) + "\n\n" + rows(("candidate", "probability", "distance", "misfits from"), table)


def model(argv: Sequence[str]) -> int:
    """``ds4-vectors model``"""
    made = parser("ds4-vectors model", "Print the file of the diagnostic model, building it first if need be.",
                  "[--prompts DIR]", "--prompts prompts")  # fmt: skip
    made.add_argument("--prompts", metavar="DIR", help="also write the prompt set there, as NAME.ids.json")
    made.add_argument("--json", action="store_true", help="no text, only the line of JSON")
    args = parsed(made, argv)
    if args is None:
        return 0
    from ds4ref.files import atomic_write
    from ds4ref.nano.diagnostic import PROMPTS, diagnostic_path

    path, written = diagnostic_path(), {}
    if args.prompts:
        import os

        os.makedirs(args.prompts, exist_ok=True)
        for name, make in PROMPTS.items():
            written[name] = os.path.join(args.prompts, f"{name}.ids.json")
            with atomic_write(written[name]) as out:
                out.write((json.dumps(make()) + "\n").encode())
    finish({"model": path, "prompts": written}, args.json, path)
    return 0
