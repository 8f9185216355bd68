"""``ds4-eval import``: make a pack of questions from other sources.

    ds4-eval import ds4_eval.c                                  ds4's questions, from a copy of its source
    ds4-eval import gpqa_diamond.csv supergpqa.jsonl -o mine.jsonl

Writes the pack; lists on stderr which records were left out and why; prints a table, or with --json one line of JSON,
on stdout.
"""

from __future__ import annotations

import argparse
import errno
import os
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ds4ref.console.common import check_output, say
from ds4ref.console.flags import add
from ds4ref.console.options import choice, parsed, printable
from ds4ref.console.tool import finish, parser, rows
from ds4ref.errors import DataError, UsageError

from . import library, packs
from .imports.collect import Told, collect
from .imports.shapes import NAMES

PROG = "ds4-eval import"
AUTO = "auto"
SUFFIX = ".pack.jsonl"
"""Suffix of packs without an explicit name; .gitignore lists it."""
SHOWN = 10
"""Largest number of reasons printed for a file; --json has all."""
NOTE = "imported questions keep their own licence: do not add them to the repository of ds4ref"


def import_pack(argv: Sequence[str]) -> int:
    """Run ``ds4-eval import FILE...``; return the exit code."""
    made = parser(PROG, "Make a pack of existing questions: ds4's C source, GPQA, SuperGPQA and AIME as CSV or\n"
                  "JSON Lines, samples of lm-evaluation-harness. Unclear records are skipped and counted.",
                  "FILE... [-o PACK.jsonl] [options]",
                  "ds4_eval.c",
                  "gpqa_diamond.csv SuperGPQA-all.jsonl -o science.jsonl",
                  "samples_gsm8k_2026-01-31T09-30-00.000000.jsonl --licence MIT")  # fmt: skip
    made.add_argument("files", nargs="*", metavar="FILE", help="files to read; all go into one pack")
    add(
        made,
        "--output",
        metavar="PACK.jsonl",
        help=f"the pack (name of the first file with {SUFFIX}, in the current folder)",
    )
    made.add_argument("--source", metavar="SHAPE", type=choice(*NAMES, AUTO), default=AUTO,
                      help=f"format of all files: {', '.join(NAMES)} ({AUTO}: detect it for each)")  # fmt: skip
    made.add_argument("--name", metavar="NAME", type=_name, help="name of the pack (that of its file)")
    made.add_argument("--licence", metavar="TEXT", help="licence of the questions (as the file or its format states)")
    add(made, "--force", help="overwrite the pack if it exists")
    add(made, "--json")
    args = parsed(made, argv)
    if args is None:
        return 0
    if not args.files:
        raise UsageError("name a file to import")
    files = [Path(file) for file in args.files]
    out = Path(args.output or files[0].stem + SUFFIX)
    _check(out, files, args.force)
    name = args.name or _name_of(out)
    pack, told = collect(files, None if args.source == AUTO else args.source, name, (args.licence or "").strip())
    packs.write(pack, out)
    for one in told:
        _tell(one)
    finish(_result(pack, told, out), args.json, _table(pack, out))
    return 0


def _name(text: str) -> str:
    if not re.fullmatch(r"[\w.+-]{1,100}", text):
        raise argparse.ArgumentTypeError("use up to 100 letters, digits and . _ + -")
    if text in library.names():
        raise argparse.ArgumentTypeError("this is the name of a built-in pack")
    return text


def _name_of(out: Path) -> str:
    """Name a pack after its file, but never as one that comes with the program."""
    name = re.sub(r"[^\w.+-]+", "-", out.name.removesuffix(".jsonl").removesuffix(".pack"))[:100] or "imported"
    return name if name not in library.names() else f"imported-{name}"


def _check(out: Path, files: Sequence[Path], force: bool) -> None:
    """Check files and output before any work; files are read several times, so pipes are refused."""
    for file in files:
        if not file.is_file():
            raise DataError(f"{file}: {'not a plain file' if file.exists() else os.strerror(errno.ENOENT)}")
        if os.path.realpath(out) == os.path.realpath(file):
            raise UsageError(f"{out} is one of the files to import: choose another name with -o")
    if Path(os.path.realpath(out)).is_relative_to(Path(__file__).resolve().parent):
        raise UsageError(f"{out} is inside the program's folder: choose another place with -o")
    if out.exists() and not force and (out.is_file() or out.is_dir()):
        raise DataError(f"{out} exists: choose another name with -o, or overwrite it with --force")
    check_output(str(out))


def _tell(told: Told) -> None:
    for why, reason in list(told.skipped.items())[:SHOWN]:
        more = f" and {reason.count - len(reason.where)} more" if reason.count > len(reason.where) else ""
        say(PROG, f"{told.path}: {reason.count} skipped: {printable(why)} ({'; '.join(reason.where)}{more})")
    if len(told.skipped) > SHOWN:
        rest = sum(reason.count for reason in list(told.skipped.values())[SHOWN:])
        say(PROG, f"{told.path}: {rest} skipped for {len(told.skipped) - SHOWN} other reasons")
    if told.renamed:
        names = ", ".join(told.renamed[:3]) + (", ..." if len(told.renamed) > 3 else "")
        say(PROG, f"{told.path}: {len(told.renamed)} had an id that was taken, and were renamed: {names}")


def _counts(pack: packs.Pack) -> dict[str, dict[str, int]]:
    """Count questions by source and kind."""
    found: dict[str, Counter[str]] = {}
    for question in pack.questions:
        found.setdefault(question.source, Counter())[question.kind] += 1
    return {source: dict(kinds) for source, kinds in found.items()}


def _result(pack: packs.Pack, told: Sequence[Told], out: Path) -> dict[str, Any]:
    return {
        "pack": pack.name,
        "file": str(out),
        "questions": len(pack.questions),
        "skipped": sum(reason.count for one in told for reason in one.skipped.values()),
        "sources": _counts(pack),
        "licence": pack.header.licence,
        "digest": pack.digest,
        "files": [one.record() for one in told],
        "note": NOTE,
    }


def _table(pack: packs.Pack, out: Path) -> str:
    counts = _counts(pack)
    licences = {source: next(q.licence for q in pack.questions if q.source == source) for source in counts}
    body = [
        [printable(source, 40), str(number), kind, printable(licences[source], 40)]
        for source, kinds in counts.items()
        for kind, number in kinds.items()
    ]
    table = rows(["source", "questions", "kind", "licence"], body)
    return f"{table}\n\n{out}: {len(pack.questions)} questions, pack {pack.name}\n{NOTE}"
