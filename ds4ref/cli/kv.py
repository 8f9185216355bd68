"""``ds4-kv``: lists, shows, verifies and prunes a folder of checkpoints (saved KV caches of conversations).

ds4-kv list DIR                    the checkpoints, most valuable first
ds4-kv list DIR 6144               one checkpoint in full, by the beginning of its name
ds4-kv list DIR --verify           check every byte that has a digest; exit 1 if a file is damaged
ds4-kv prune DIR --space-mb 1024   delete down to a size; abandoned and damaged files are always deleted

Safe while servers use the folder. Files written by ds4 itself are shown and pruned in the same way, and checked as far
as possible.
"""

from __future__ import annotations

import json
import os
import re
import time
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..console.common import duration, run, say
from ..console.flags import add
from ..console.options import Parser, chosen, integer, number
from ..console.page import line
from ..console.tables import Column, fitted, stdout_width
from ..errors import DataError, PayloadError, UsageError

if TYPE_CHECKING:
    from ..session.directory import Directory, StoredCheckpoint

PROG = "ds4-kv"
COMMANDS = {
    "list": "list checkpoints, most valuable first; those named in full, with their text, as JSON",
    "prune": "delete leftover and damaged files, and those over the size limit",
}
USAGE = {
    "": f"{PROG} COMMAND DIR [options]\n\ncommands:\n"
    + "\n".join(f"  {name:<10}{purpose}" for name, purpose in COMMANDS.items()),
    "list": f"{PROG} list DIR [NAME...] [options]",
    "prune": f"{PROG} prune DIR [options]",
}
EPILOG = """\
NAME is a file name or a prefix of one.

exit codes: 0 done; 1 failure or damaged file; 2 usage"""


def build_parser(command: str) -> Parser:
    """Return the parser of the subcommand ``command``, or for "" the parser that shows the overview."""
    parser = Parser(
        f"{PROG} {command}".strip(),
        usage=USAGE[command],
        description=COMMANDS.get(command, "Inspect and clean a folder of saved sessions (KV checkpoints)."),
        epilog=EPILOG,
    )
    parser.add_argument("names", metavar="DIR", nargs="*", help="folder of checkpoints; see below")
    if command:
        add(parser, "--json")
    if command == "list":
        parser.add_argument("--verify", action="store_true", help="read and check all bytes; exit 1 if any are damaged")
    if command == "prune":
        parser.add_argument(
            "--space-mb", metavar="N", type=integer(0), help="delete the least valuable until at most N MiB remain"
        )
        parser.add_argument(
            "--unused-days", metavar="X", type=number(0, 1e6), help="delete checkpoints unused for X days"
        )
        add(parser, "--dry-run", help="print what would be deleted, then exit")
    add(parser, "--help")
    if not command:
        add(parser, "--version")
    return parser


# --- list


def listing(args: Namespace) -> int:
    """Run ``ds4-kv list``; return 1 if ``--verify`` found damage, else 0."""
    directory, now = _open(args), time.time()
    full = len(args.names) > 1
    entries = _named(directory, args.names[1:]) if full else directory.entries()
    entries = sorted(entries, key=lambda entry: -entry.score(now))
    facts = [_facts(directory, entry, full) for entry in entries]
    if args.verify:
        for one in facts:
            one["state"], one["why"] = _verdict(directory.path / one["file"])
    if args.json:
        print(json.dumps(facts))
    elif full:
        for one in facts:
            print(json.dumps(one, indent=2))
    elif facts:
        names = ("name", "tokens", "MiB", "reason", "hits", "used", "state", "begins")
        specs = [
            Column(name, least=8 if name == "begins" else None, right=name in ("tokens", "MiB", "hits"))
            for name in names
        ]
        rows = [_row(directory, entry, one, now) for entry, one in zip(entries, facts, strict=True)]
        print(fitted(specs, rows, stdout_width()))
    total, others = sum(about.st_size for about in directory.files().values()), len(directory.files()) - len(facts)
    damaged = sum(one["state"] == "damaged" for one in facts)
    say(PROG, f"{len(facts)} checkpoint(s)" + (f", {others} other file(s)" if others else "")
        + (f", {damaged} damaged" if damaged else "") + f", {total / 2**20:.1f} MiB in all")  # fmt: skip
    return 1 if args.verify and damaged else 0


def _row(directory: Directory, entry: StoredCheckpoint, facts: dict[str, Any], now: float) -> tuple[str, ...]:
    tokens, reason, hits = (str(facts.get(name, "")) for name in ("tokens", "reason", "hits"))
    ago = duration(max(0.0, now - entry.used)) + " ago"
    size, begins = f"{entry.size / 2**20:.1f}", facts.get("why") or _title(directory, entry)
    return entry.name[:12], tokens, size, reason, hits, ago, facts["state"], begins


def _title(directory: Directory, entry: StoredCheckpoint) -> str:
    """Return the first user message in a checkpoint's text, else the beginning of the text, in one line."""
    from ..session.kvc import HEAD_BYTES
    from ..text.protocol import SPECIALS, USER

    if entry.checkpoint is None:
        return ""
    try:
        with open(directory.path / entry.name, "rb") as file:
            file.seek(HEAD_BYTES)
            text = file.read(min(entry.checkpoint.header.text, 1 << 20)).decode("utf-8", "replace")
    except OSError:
        return ""
    parts = re.split("|".join(map(re.escape, SPECIALS)), text.partition(USER)[2] or text)
    return line(next(filter(None, parts), "")[:400])[:80]


def _facts(directory: Directory, entry: StoredCheckpoint, full: bool) -> dict[str, Any]:
    """Return all values in a checkpoint's header and integrity section; with ``full`` also the ids of tool calls, and
    the text.

    ``state`` is "ds4ref" or "ds4" by the program that wrote the file, else "damaged" or "unknown".
    """
    from ..session import kvc

    facts: dict[str, Any] = {"file": entry.name, "bytes": entry.size}
    if entry.checkpoint is None:
        return facts | {"state": "damaged" if entry.damaged else "unknown", "why": entry.why}
    h, section = entry.checkpoint.header, entry.checkpoint.integrity
    facts |= {
        "state": "ds4" if section is None else "ds4ref", "tokens": h.tokens, "context": h.ctx,
        "reason": h.reason_name, "key": h.kind, "text_bytes": h.text, "payload_bytes": h.payload,
        "quant_bits": h.quant, "hits": h.hits, "created": h.created, "used": h.used,
        "score": entry.score(time.time()),
    }  # fmt: skip
    if section is not None:
        facts |= {"computed_with": dict(section.identity), "about": dict(section.about),
                  "further_keys": [list(key) for key in section.keys],
                  "sha256": {"text": section.text, "payload": section.payload, "tools": section.tools}}  # fmt: skip
    if full:
        with kvc.open_file(directory.path / entry.name) as file:
            facts["calls"] = [call.decode("utf-8", "replace") for call, _ in entry.checkpoint.tools(file)]
            facts["text"] = entry.checkpoint.text(file).decode("utf-8", "replace")
    return facts


def _verdict(path: Path) -> tuple[str, str]:
    """Check a whole file and return (verdict, reason).

    Verdicts: "sound", "plausible" (written by ds4, so without digests to check), "other" (of another version),
    "damaged", "unread" (cannot be read).
    """
    from ..session import kvc

    try:
        with kvc.open_file(path) as file:
            checkpoint = kvc.read_through(file, path.name)
    except kvc.Unknown as error:
        return "other", str(error)
    except PayloadError as error:
        return "damaged", str(error)
    except OSError as error:
        return "unread", error.strerror or str(error)
    if checkpoint.integrity is None:
        return "plausible", "written by ds4, which stores no checksums"
    return "sound", ""


# --- prune


def prune(args: Namespace) -> int:
    """Run ``ds4-kv prune``; return the exit code."""
    directory = _open(args)
    if len(args.names) > 1:
        raise UsageError(f"unexpected argument: {args.names[1]}")
    if args.space_mb is not None:
        directory.budget = args.space_mb << 20
    gone: dict[str, int] = {}
    files = directory.files()
    total = sum(about.st_size for about in files.values())
    try:
        for name, why in directory.expendable(args.unused_days, args.space_mb is not None):
            gone[name] = files[name].st_size if name in files else 0
            if not args.dry_run:
                directory.remove(name)
            if not args.json:
                print(f"{name}  {gone[name] / 2**20:.1f} MiB  {why}")
    except OSError as error:
        raise DataError(f"cannot prune {directory.path}: {error.strerror or error}") from None
    if args.json:
        print(json.dumps({"gone": gone, "bytes": sum(gone.values()), "left": total - sum(gone.values())}))
    would = "would be deleted" if args.dry_run else "deleted"
    say(PROG, f"{len(gone)} file(s), {sum(gone.values()) / 2**20:.1f} MiB {would}, "
        f"{(total - sum(gone.values())) / 2**20:.1f} MiB left")  # fmt: skip
    return 0


# --- both


def _open(args: Namespace) -> Directory:
    """Return the folder named on the command line, which must exist."""
    from ..session.directory import Directory

    if not args.names:
        raise UsageError("name a folder")
    path = Path(args.names[0])
    try:
        os.listdir(path)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None
    return Directory(path)


def _named(directory: Directory, names: Sequence[str]) -> list[StoredCheckpoint]:
    """Return the checkpoints with these names; a name may be abbreviated to its beginning."""
    entries, matches = directory.entries(), []
    for name in names:
        fitting = [entry for entry in entries if entry.name.lower().startswith(Path(name).name.lower())]
        if len(fitting) != 1:
            raise UsageError(f"{len(fitting) or 'no'} checkpoints in {directory.path} match {name}")
        matches += fitting
    return matches


def body(argv: Sequence[str]) -> int:
    """Run the command named by the arguments; return the exit code."""
    command = chosen(build_parser, COMMANDS, argv)
    if command is None:
        return 0
    return (listing if command[0] == "list" else prune)(command[1])


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command as a console script; return the exit code."""
    return run(PROG, body, argv)
