"""The command ``ds4-vectors trace``, with its subcommands record and blame."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from ds4ref.console.common import Progress, check_output, say
from ds4ref.console.flags import add
from ds4ref.console.model import add_engine, engine_options
from ds4ref.console.options import parsed
from ds4ref.console.tool import finish, parser, required
from ds4ref.errors import DataError, ModelFileError, UsageError

from ..reading import read_ids

USAGE = """usage: ds4-vectors trace record --token-ids IDS.json -o OUT.safetensors [options]
       ds4-vectors trace blame THEIRS [options]

  record  write every named intermediate of our forward pass
  blame   find the wrong op of another engine from its dump of intermediates

Both work on DeepSeek V4. ds4-vectors trace COMMAND --help lists the options; docs/reference/trace.md shows how to
dump intermediates from other engines.

examples:
  ds4-vectors trace record --token-ids ids.json -o ours.safetensors --numerics exact
  ds4-vectors trace blame theirs.npz --token-ids ids.json --names llama.cpp"""


def run(argv: Sequence[str]) -> int:
    """Run ``ds4-vectors trace COMMAND``; return the exit code."""
    if not argv or argv[0] in ("-h", "--help"):
        sys.stdout.write(USAGE + "\n")
        return 0 if argv else 2
    if argv[0] not in COMMANDS:
        raise UsageError(f"unknown command trace {argv[0][:40]!r}: choose from {', '.join(COMMANDS)}")
    return COMMANDS[argv[0]](argv[1:])


def record(argv: Sequence[str]) -> int:
    """Run ``ds4-vectors trace record``; return the exit code."""
    flags = parser("ds4-vectors trace record",
                   "Write named intermediates of our pass as safetensors, with a manifest.",
                   "--token-ids IDS.json -o OUT.safetensors [options]",
                   "--token-ids ids.json -o ours.safetensors --numerics exact",
                   "-m m.gguf --token-ids ids.json -o l3.safetensors --layers 3,head")  # fmt: skip
    _add_shared_options(flags)
    add(flags, "--output", help=".safetensors to write")
    args = parsed(flags, argv)
    if args is None:
        return 0
    required(args, "token-ids", "output")
    check_output(args.output)
    ids = read_ids(args.token_ids)
    from .record import record as recorded
    from .record import write

    with _engine(args, args.numerics or "exact") as engine, Progress("recording layers") as progress:
        tensors, manifest = recorded(engine, ids, _layers(args.layers),
                                cancel=lambda layer: progress(layer + 1, engine.shape.n_layers))  # fmt: skip
        write(args.output, tensors, manifest)
    size = sum(array.nbytes for array in tensors.values())
    result = {"file": args.output, "tensors": len(tensors), "bytes": size, "tokens": len(ids),
              "numerics": manifest["numerics"], "model": manifest["model"]}  # fmt: skip
    finish(result, args.json, f"{len(tensors)} tensors, {size / 1e6:.1f} MB, written to {args.output}")
    return 0


def blame(argv: Sequence[str]) -> int:
    """Run ``ds4-vectors trace blame``; return 1 if an op is wrong, else 0."""
    flags = parser("ds4-vectors trace blame",
                   "Find the wrong op of another engine: run each of our ops on its dumped inputs and compare with "
                   "its dumped output. .npz, .safetensors, or a folder with a manifest.",
                   "THEIRS [options]",
                   "theirs.npz -m m.gguf --token-ids ids.json", "dump_folder --names names.toml --layers 2",
                   "ours.safetensors --numerics ds4")  # fmt: skip
    flags.add_argument("theirs", nargs="*", metavar="THEIRS", help="file or folder of the other engine's intermediates")
    _add_shared_options(flags)
    flags.add_argument(
        "--names", metavar="NAME|FILE", help="naming scheme: ours, ds4, llama.cpp, hf or a TOML file (guessed)"
    )
    add(flags, "--their-model")
    flags.add_argument("--fast", action="store_true", help="skip the search for the mistake that explains it")
    args = parsed(flags, argv)
    if args is None:
        return 0
    if len(args.theirs) != 1:
        raise UsageError("name one dump: a file or a folder")
    from ds4ref.variants.forced import model_of

    from ..diagnosis.files import differences, metadata
    from .blame import Blaming
    from .blame import blame as find
    from .causes import blame_file, explain
    from .dumps import read
    from .names import guess, load
    from .report import page, to_json
    from .theirs import Theirs

    dump = read(args.theirs[0])
    given_ids = None if args.token_ids is None else read_ids(args.token_ids)
    if given_ids is None and dump.ids is None:
        raise UsageError(f"{args.theirs[0]} has no token ids: give them with --token-ids")
    if given_ids is not None and dump.ids is not None and given_ids != dump.ids:
        raise DataError(f"{args.theirs[0]} was computed on other token ids than those of --token-ids")
    ids = given_ids if given_ids is not None else dump.ids
    assert ids is not None
    with _engine(args, "exact") as engine:
        shape = model_of(engine).shape
        there = [] if args.their_model is None else metadata(engine.path, args.their_model)
        for line in there:
            say("ds4-vectors", line)
        if max(ids) >= shape.vocab:
            raise DataError(f"token id {max(ids)} is outside the vocabulary of {shape.vocab}: another model?")
        if args.names is None:
            table, matches = guess(dump.tensors, shape.n_layers)
        else:
            table = load(args.names)
            matches = table.find(dump.tensors, shape.n_layers)
            if not matches:
                raise DataError(f"{args.theirs[0]}: none of its {len(dump.tensors)} names is in the table {args.names}")
        theirs = Theirs(dump, matches, shape, len(ids))
        with Progress("passes: layer") as progress:
            case = Blaming(engine, theirs, ids, _layers(args.layers), lambda layer: progress(layer, shape.n_layers))
            result = find(case, args.numerics)
            right = None
            if result.wrong and args.their_model is not None:
                right = _judged_on(args.their_model, engine, theirs, ids, case.wanted)
            if right is not None:
                blame_file(result, there or differences(engine.path, args.their_model).lines, len(right.clean))
            if result.wrong:
                explain(case, result, search=not args.fast and right is None)
        _check_model(dump, engine, result.notes)
        result.notes.insert(0, f"names read as {table.name}'s: {len(matches)} of {len(dump.tensors)} tensors are "
                            f"known points; values stored as {theirs.stored}")  # fmt: skip
    whole = {"names": table.name, "stored": theirs.stored, "tokens": len(ids), **to_json(result, len(matches))}
    finish(whole, args.json, page(result, len(matches)))
    return 1 if result.wrong else 0


def _judged_on(path: str, engine: Any, theirs: Any, ids: Sequence[int], layers: Any) -> Any:
    """Blame the dump by the file ``path`` that the other engine reads; return the result if nothing is wrong, else
    None."""
    from ds4ref.engine import Engine

    from .blame import Blaming
    from .blame import blame as find
    from .theirs import Theirs

    try:
        with Engine.open(path, backend=engine.backend, threads=1) as other:
            again = Theirs(theirs.dump, theirs.matches, other.shape, len(ids))
            result = find(Blaming(other, again, ids, layers), None)
    except ModelFileError as error:
        say("ds4-vectors", f"{error}: cannot check whether the file is wrong")
        return None
    return None if result.wrong else result


COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {"record": record, "blame": blame}


def _add_shared_options(flags: Any) -> None:
    add(flags, "--model", help="GGUF that both engines ran (the diagnostic model)")
    add(flags, "--token-ids", help="JSON list of token ids (those in the dump)")
    add(flags, "--layers", help="0,2-5,head (all)")
    add(flags, "--json")
    add_engine(flags, "steering")


def _engine(args: Any, numerics: str) -> Any:
    from ds4ref.engine import Engine
    from ds4ref.nano.diagnostic import diagnostic_path

    return Engine.open(args.model or diagnostic_path(), **{**engine_options(args), "numerics": numerics})


def numbers(text: str, option: str) -> list[int]:
    """Parse a list such as "0,5-9" into sorted numbers; UsageError if it is malformed."""
    values: list[int] = []
    for part in text.split(","):
        low, dash, high = part.strip().partition("-")
        if not low.isdecimal() or (dash and not high.isdecimal()) or len(low) > 9 or len(high) > 9:
            raise UsageError(f"{option} {text[:40]!r}: numbers and ranges are needed, such as 0,5-9")
        last = int(high) if dash else int(low)
        if last < int(low) or last - int(low) > 1 << 22:
            raise UsageError(f"{option}: {part.strip()} is no range")
        values += range(int(low), last + 1)
    return sorted(set(values))


def _layers(text: str | None) -> list[int] | None:
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    listed = [part for part in parts if part != "head"]
    return (numbers(",".join(listed), "--layers") if listed else []) + ([-1] if "head" in parts else [])


def _check_model(dump: Any, engine: Any, notes: list[str]) -> None:
    """Append a note if the dump was made from another model file."""
    model = dump.about.get("model")
    digest = model.get("digest") if isinstance(model, dict) else None
    if isinstance(digest, str):
        from ds4ref.files import file_digest

        if digest != file_digest(engine.path):
            notes.append("the dump was made from another model file: a tensor may differ")
