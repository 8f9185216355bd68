"""``ds4-kv``: lists, shows, verifies and prunes a folder of checkpoints.

ds4-kv list DIR                    the checkpoints, most valuable first
ds4-kv show DIR 6144               one checkpoint, by the beginning of its name
ds4-kv verify DIR                  check every byte that has a digest; exit 1 if a file is damaged
ds4-kv prune DIR --space-mb 1024   delete down to a size; left-over and damaged files always go

Safe while servers use the folder. Files written by ds4 itself are shown, checked as far as possible, and pruned alike.
"""

from __future__ import annotations

import json
import os
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..console.common import columns, duration, run, say
from ..console.flags import add
from ..console.options import Parser, chosen, integer, number
from ..console.tables import Column, fitted
from ..console.tool import UNBOUNDED
from ..errors import DataError, PayloadError, UsageError

if TYPE_CHECKING:
    from ..session.directory import Directory, StoredCheckpoint

PROG = "ds4-kv"

COMMANDS = {
    "list": "list checkpoints, most valuable first",
    "show": "show one checkpoint: header, keys, engine, tool calls, text",
    "verify": "read and check all files; exit 1 if any is damaged",
    "prune": "delete leftover and damaged files, and those over the size limit",
}

USAGE = f"{PROG} COMMAND DIR [NAME...] [options]\n\ncommands:\n" + "\n".join(
    f"  {name:<10}{purpose}" for name, purpose in COMMANDS.items()
)

EPILOG = """\
NAME is a file name or a prefix of one.

exit codes: 0 done; 1 failure or damaged file; 2 usage"""


def build_parser(command: str) -> Parser:
    """Return the parser of one command, or of the overview for ""."""
    usage = f"{PROG} {command} DIR{ {'show': ' NAME', 'verify': ' [NAME...]'}.get(command, '') } [options]"
    parser = Parser(
        f"{PROG} {command}".strip(),
        usage=usage if command else USAGE,
        description=COMMANDS.get(command, "Inspect and clean a folder of saved sessions (KV checkpoints)."),
        epilog=EPILOG,
        unavailable={},
    )
    parser.add_argument("names", metavar="DIR", nargs="*", help="folder of checkpoints; see below")
    if command:
        add(parser, "--json")
    if command == "show":
        parser.add_argument("--raw", action="store_true", help="print only its text, unmodified")
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
    """Run ``ds4-kv list``; return the exit code."""
    directory = _open(args, 1)
    now = time.time()
    entries = sorted(directory.entries(), key=lambda entry: -entry.score(now))
    if args.json:
        print(json.dumps([_facts(directory, entry) for entry in entries]))
        return 0
    head = ("name", "tokens", "MiB", "reason", "hits", "used", "from", "begins")
    specs = [
        Column(name, least=8 if name == "begins" else None, right=name in ("tokens", "MiB", "hits")) for name in head
    ]
    if entries:
        room = columns(sys.stdout) if sys.stdout.isatty() else UNBOUNDED
        print(fitted(specs, [_row(directory, entry, now) for entry in entries], room))
    total, others = sum(about.st_size for about in directory.files().values()), len(directory.files()) - len(entries)
    say(PROG, f"{len(entries)} checkpoint(s)" + (f", {others} other file(s)" if others else "")
        + f", {total / 2**20:.1f} MiB in all")  # fmt: skip
    return 0


def _row(directory: Directory, entry: StoredCheckpoint, now: float) -> tuple[str, ...]:
    size = f"{entry.size / 2**20:.1f}"
    if entry.checkpoint is None:
        return entry.name[:12], "", size, "", "", "", "damaged" if entry.damaged else "unknown", entry.why
    h = entry.checkpoint.header
    ago = duration(max(0.0, now - entry.used)) + " ago"
    writer = "ds4" if entry.checkpoint.integrity is None else "ds4ref"
    return entry.name[:12], str(h.tokens), size, h.reason_name, str(h.hits), ago, writer, _title(directory, entry)


def _title(directory: Directory, entry: StoredCheckpoint) -> str:
    """Return the first user message in the text, or the text's start, in one line."""
    from ..session.kvc import HEAD_BYTES
    from ..text.protocol import SPECIALS, USER

    assert entry.checkpoint is not None
    try:
        with open(directory.path / entry.name, "rb") as file:
            file.seek(HEAD_BYTES)
            text = file.read(min(entry.checkpoint.header.text, 1 << 20)).decode("utf-8", "replace")
    except OSError:
        return ""
    message = text.partition(USER)[2] or text
    for special in SPECIALS:
        message = message.partition(special)[0] or message.removeprefix(special)
    line = " ".join("".join(c if c.isprintable() else " " for c in message[:400]).split())
    return line[:80]


def _facts(directory: Directory, entry: StoredCheckpoint) -> dict[str, Any]:
    """Return everything in header and integrity section, for --json and ``show``."""
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
    return facts


# --- show


def show(args: Namespace) -> int:
    """Run ``ds4-kv show``; return the exit code."""
    from ..session import kvc

    directory = _open(args, 2)
    (entry,) = _named(directory, args.names[1:])
    if entry.checkpoint is None:
        raise DataError(f"cannot show {entry.name}: {entry.why}")
    with kvc.open_file(directory.path / entry.name) as file:
        text, calls = entry.checkpoint.text(file), entry.checkpoint.tools(file)
    if args.raw:
        sys.stdout.flush()
        sys.stdout.buffer.write(text)
        return 0
    facts = _facts(directory, entry) | {"calls": [call.decode("utf-8", "replace") for call, _ in calls]}
    if args.json:
        print(json.dumps(facts))
        return 0
    for name, value in facts.items():
        for line, (label, visible) in enumerate(_lines(name, value)):
            print(f"{label if not line or label != name else '':<16}{visible}")
    visible = "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text.decode("utf-8", "replace"))
    print(f"\n{visible}" if len(visible) <= 2000 else f"\n{visible[:1000]}\n[...]\n{visible[-1000:]}")
    return 0


def _lines(name: str, value: Any) -> list[tuple[str, str]]:
    label = name.replace("_", " ")
    if name in ("created", "used"):
        return [(label, time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(value)) if value < 1 << 40 else str(value))]
    if isinstance(value, dict):
        return [(f"{label if not i else ''}", f"{key}: {fact}") for i, (key, fact) in enumerate(value.items()) if fact]
    if isinstance(value, list):
        return [(label if not i else "", " ".join(map(str, one)) if isinstance(one, list) else str(one))
                for i, one in enumerate(value)]  # fmt: skip
    return [(label, f"{value:.6g}" if isinstance(value, float) else str(value))]


# --- verify


def verify(args: Namespace) -> int:
    """Run ``ds4-kv verify``; return 1 if a checkpoint is damaged, else 0."""
    directory = _open(args, None)
    entries = _named(directory, args.names[1:]) if args.names[1:] else directory.entries()
    verdicts = []
    for entry in sorted(entries, key=lambda entry: entry.name):
        verdict, why = _verdict(directory.path / entry.name)
        verdicts.append({"file": entry.name, "verdict": verdict, "why": why})
        if not args.json:
            print(f"{entry.name}  {verdict}" + (f": {why}" if why else ""))
    if args.json:
        print(json.dumps(verdicts))
    bad = sum(one["verdict"] == "damaged" for one in verdicts)
    say(PROG, f"{len(verdicts)} checkpoint(s), {bad} damaged")
    return 1 if bad else 0


def _verdict(path: Path) -> tuple[str, str]:
    """Read a file through and return its verdict and the reason.

    Verdicts: "sound", "plausible" (ds4's own, without digests), "other" (of another version), "damaged", "unread".
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
    directory = _open(args, 1)
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


# --- all of them


def _open(args: Namespace, count: int | None) -> Directory:
    """Open the named folder, which must exist; ``count``: how many names are required."""
    from ..session.directory import Directory

    if not args.names:
        raise UsageError("name a folder")
    if count is not None and len(args.names) != count:
        raise UsageError(
            f"unexpected argument: {args.names[count]}" if len(args.names) > count else "name a checkpoint"
        )
    path = Path(args.names[0])
    try:
        os.listdir(path)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None
    return Directory(path)


def _named(directory: Directory, names: Sequence[str]) -> list[StoredCheckpoint]:
    """Return the checkpoints with these names, each of which may be abbreviated."""
    entries, matches = directory.entries(), []
    for name in names:
        fitting = [entry for entry in entries if entry.name.lower().startswith(Path(name).name.lower())]
        if len(fitting) != 1:
            raise UsageError(f"{len(fitting) or 'no'} checkpoints in {directory.path} match {name}")
        matches += fitting
    return matches


BODIES: dict[str, Callable[[Namespace], int]] = {"list": listing, "show": show, "verify": verify, "prune": prune}


def body(argv: Sequence[str]) -> int:
    """Run the command named by the arguments; return the exit code."""
    command = chosen(build_parser, COMMANDS, argv)
    return 0 if command is None else BODIES[command[0]](command[1])


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command as a console script; return the exit code."""
    return run(PROG, body, argv)


if __name__ == "__main__":
    sys.exit(main())
