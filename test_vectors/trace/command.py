"""The command ``ds4-vectors trace``, with its subcommands record and blame."""

from __future__ import annotations

import re
import sys
from argparse import Namespace
from collections.abc import Sequence
from typing import Any

from ds4ref.console.common import Progress, check_output
from ds4ref.console.flags import add
from ds4ref.console.model import add_engine, engine_options
from ds4ref.console.options import Parser, parsed
from ds4ref.console.tool import finish, parser, required
from ds4ref.errors import DataError, UsageError

from ..reading import read_ids

USAGE = """usage: ds4-vectors trace record --token-ids IDS.json -o OUT.safetensors [options]
       ds4-vectors trace blame THEIRS [options]

  record  write every named intermediate of our forward pass
  blame   find the wrong op of another engine from its dump of intermediates

Both work on DeepSeek V4 and V4.1. ds4-vectors trace COMMAND --help lists the options; docs/reference/trace.md shows
how to dump intermediates from other engines.

examples:
  ds4-vectors trace record --token-ids ids.json -o ours.safetensors --numerics exact
  ds4-vectors trace blame theirs.npz --token-ids ids.json --names llama.cpp"""


def run(argv: Sequence[str]) -> int:
    """Run ``ds4-vectors trace COMMAND``; return the exit code."""
    if not argv or argv[0] in ("-h", "--help"):
        sys.stdout.write(USAGE + "\n")
        return 0 if argv else 2
    commands = {"record": (_record_flags, _record), "blame": (_blame_flags, _blame)}
    if argv[0] not in commands:
        raise UsageError(f"unknown command trace {argv[0][:40]!r}: choose from {', '.join(commands)}")
    flags, command = commands[argv[0]]
    args = parsed(_shared(flags()), argv[1:])
    return 0 if args is None else command(args)


def _shared(flags: Parser) -> Parser:
    """Add the options of both commands."""
    add(flags, "--model", help="GGUF that both engines ran (the diagnostic model)")
    add(flags, "--token-ids", help="JSON list of token ids (those in the dump)")
    add(flags, "--layers", help="0,2-5,head (all)")
    add(flags, "--json")
    add_engine(flags)
    return flags


def _record_flags() -> Parser:
    flags = parser("ds4-vectors trace record",
                   "Write named intermediates of our pass as safetensors, with a manifest.",
                   "--token-ids IDS.json -o OUT.safetensors [options]",
                   "--token-ids ids.json -o ours.safetensors --numerics exact",
                   "-m m.gguf --token-ids ids.json -o l3.safetensors --layers 3,head")  # fmt: skip
    add(flags, "--output", help=".safetensors to write")
    return flags


def _record(args: Namespace) -> int:
    """Run ``ds4-vectors trace record``; return the exit code."""
    required(args, "token-ids", "output")
    check_output(args.output)
    ids = read_ids(args.token_ids)
    from .record import record, write

    with _engine(args, args.numerics or "exact") as engine, Progress("recording layers") as progress:
        tensors, manifest = record(engine, ids, _layers(args.layers),
                                   cancel=lambda layer: progress(layer + 1, engine.shape.n_layers))  # fmt: skip
        write(args.output, tensors, manifest)
    size = sum(array.nbytes for array in tensors.values())
    result = {"file": args.output, "tensors": len(tensors), "bytes": size, "tokens": len(ids),
              "numerics": manifest["numerics"], "model": manifest["model"]}  # fmt: skip
    finish(result, args.json, f"{len(tensors)} tensors, {size / 1e6:.1f} MB, written to {args.output}")
    return 0


def _blame_flags() -> Parser:
    flags = parser("ds4-vectors trace blame",
                   "Find the wrong op of another engine: run each of our ops on its dumped inputs and compare with "
                   "its dumped output. .npz, .safetensors, or a folder with a manifest.",
                   "THEIRS [options]",
                   "theirs.npz -m m.gguf --token-ids ids.json", "dump_folder --names names.toml --layers 2",
                   "ours.safetensors --numerics ds4")  # fmt: skip
    flags.add_argument("theirs", nargs="*", metavar="THEIRS", help="file or folder of the other engine's intermediates")
    flags.add_argument(
        "--names", metavar="NAME|FILE", help="naming scheme: ours, ds4, llama.cpp, hf or a TOML file (guessed)"
    )
    return flags


def _blame(args: Namespace) -> int:
    """Run ``ds4-vectors trace blame``; return 1 if an op is wrong, else 0."""
    if len(args.theirs) != 1:
        raise UsageError("name one dump: a file or a folder")
    from ds4ref.files import file_digest
    from ds4ref.variants.forced import model_of

    from .blame import Blaming, blame
    from .causes import explain
    from .dumps import read
    from .names import guess, load
    from .report import page, to_json
    from .theirs import Theirs

    dump = read(args.theirs[0])
    ids = dump.ids if args.token_ids is None else read_ids(args.token_ids)
    if ids is None:
        raise UsageError(f"{args.theirs[0]} has no token ids: give them with --token-ids")
    if dump.ids not in (None, ids):
        raise DataError(f"{args.theirs[0]} was computed on other token ids than those of --token-ids")
    with _engine(args, "exact") as engine:
        shape = model_of(engine).shape
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
            result = blame(case, args.numerics)
            if result.wrong:
                explain(case, result)
        model = dump.about.get("model")
        if isinstance(model, dict) and model.get("digest") not in (None, file_digest(engine.path)):
            result.notes.append("the dump was made from another model file: a tensor may differ")
    result.notes.insert(0, f"names read as {table.name}'s: {len(matches)} of {len(dump.tensors)} tensors are known "
                           f"points; values stored as {theirs.stored}")  # fmt: skip
    whole = {"names": table.name, "stored": theirs.stored, "tokens": len(ids), **to_json(result, len(matches))}
    finish(whole, args.json, page(result, len(matches)))
    return 1 if result.wrong else 0


def _engine(args: Namespace, numerics: str) -> Any:
    from ds4ref.engine import Engine
    from ds4ref.nano.diagnostic import diagnostic_path

    return Engine.open(args.model or diagnostic_path(), **{**engine_options(args), "numerics": numerics})


def _layers(text: str | None) -> list[int] | None:
    """Parse a list such as "0,5-9,head" into layers, -1 for the head; UsageError if it is malformed."""
    if text is None:
        return None
    layers: set[int] = set()
    for part in map(str.strip, text.split(",")):
        match = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", part)
        if match is None and part != "head":
            raise UsageError(f"--layers {text[:40]!r}: numbers and ranges are needed, such as 0,5-9")
        low, high = (-1, -1) if match is None else (int(match[1]), int(match[2] or match[1]))
        if high < low:
            raise UsageError(f"--layers: {part} is no range")
        layers |= set(range(low, high + 1))
    return sorted(layers)
