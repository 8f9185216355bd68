"""``ds4-report``: stores, compares and shows measured runs.

ds4-report import m2_ultra.csv m4_max.csv           ds4's own results, as they are
ds4-report compare before after --fail-on 3         exit code 1 if ``after`` is worse by 3 % or more
ds4-report build latest -o report.html
"""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from ds4ref.console.common import run, say
from ds4ref.console.flags import add
from ds4ref.console.options import Parser, choice, chosen, number
from ds4ref.errors import UsageError

if TYPE_CHECKING:
    from ds4ref.runs.store import Measured, Run, Store

PROG = "ds4-report"
EXIT_WORSE, EXIT_INCOMPARABLE = 1, 4
KINDS = ("bench", "vectors", "eval", "doctor", "peaks")
IDENTITY = ("model", "prompt", "numerics")

EPILOG = f"""\
RUN is the number of a run, its tag, its label, the beginning of its uid, "latest", "latest:bench", a results CSV
(ds4's own included), the JSON of ds4-vectors check --out, or a log of ds4-eval (.jsonl). The store is
$DS4_DATA_DIR/runs.sqlite, else in the user's data directory; --store names another.

exit codes: 0 done; 1 failure, or a gate of compare that failed; 2 usage; {EXIT_INCOMPARABLE} not comparable, or too
many warnings"""


def build_parser(command: str) -> Parser:
    """Return the parser of a command, or for "" that of ``ds4-report`` without a command, whose help lists them."""
    listed = "\n".join(f"  {name:<10}{entry.summary}" for name, entry in COMMANDS.items())
    entry = COMMANDS.get(command, Command(lambda args: 0, "Save, compare and show runs."))
    parser = Parser(
        f"{PROG} {command}".strip(),
        usage=f"{PROG} {command} {entry.names} [options]".replace("  ", " ")
        if command
        else f"{PROG} COMMAND [RUN...] [options]\n\ncommands:\n{listed}",
        description=entry.summary,
        epilog=EPILOG,
    )
    parser.add_argument("names", metavar="NAME", nargs="*", help="runs or files; see below")
    add(parser, "--store", help="the run store (the user's own)")
    if command == "list":
        parser.add_argument("--kind", metavar="KIND", type=choice(*KINDS), help="only " + ", ".join(KINDS))
    if command == "tag":
        parser.add_argument("--remove", action="store_true", help="remove the tags")
    for flag, options in entry.options.items():
        add(parser, flag, **options)
    if command == "compare":
        parser.add_argument("--margin", metavar="X", type=number(0, 100), help="smaller differences are none (1)")
        parser.add_argument("--fail-on", metavar="X", type=number(0, 100), help="gate: worse by X or more (3; eval 2)")
        parser.add_argument("--differ", metavar="FACT", action="append", default=[],
                            type=choice(*IDENTITY), help="may differ; may be repeated")  # fmt: skip
    add(parser, "--help")
    if not command:
        add(parser, "--version")
    return parser


def listing(args: Namespace) -> int:
    """Run ``ds4-report list``; return the exit code."""
    from .tables import print_runs

    with _open(args) as store:
        runs = store.runs(args.kind, args.tag, args.limit)
    if args.json:
        print(json.dumps([_plain(entry) for entry in runs]))
    elif runs:
        print_runs(runs)
    else:
        say(PROG, f"no such runs in {store.path}")
    return 0


def show(args: Namespace) -> int:
    """Run ``ds4-report show``; return the exit code."""
    from .tables import print_run

    (measured,) = _load(args)
    if args.json:
        print(json.dumps({**_plain(measured.run), "rows": measured.rows}))
    else:
        print_run(measured.run, measured.rows)
    return 0


def tag(args: Namespace) -> int:
    """Run ``ds4-report tag``; return the exit code."""
    name, *tags = args.names
    if not tags and args.label is None:
        raise UsageError("tag needs at least one tag, or --label")
    with _open(args) as store:
        entry = store.find(name)
        (store.untag if args.remove else store.tag)(entry.id, *tags)
        if args.label is not None:
            store.rename(entry.id, args.label)
        print(f"run {entry.id}: {' '.join(store.run(entry.id).tags)}")
    return 0


def remove(args: Namespace) -> int:
    """Run ``ds4-report rm``; return the exit code."""
    with _open(args) as store:
        numbers = {store.find(name).id for name in args.names}
        store.remove(*numbers)
    print("removed " + ", ".join(f"run {number}" for number in sorted(numbers)))
    return 0


def import_(args: Namespace) -> int:
    """Run ``ds4-report import``; return the exit code."""
    from ds4ref.runs.store import Store

    from .sources import import_file

    if args.label is not None and len(args.names) > 1:
        raise UsageError("--label names one file")
    with Store.open(args.store) as store:
        for name in args.names:
            number, new = import_file(name, store, args.label or "", tuple(args.tag))
            stored = store.run(number)
            print(f"run {number}: {stored.name}, {stored.rows} rows" + ("" if new else " (already stored)"))
    return 0


def export_(args: Namespace) -> int:
    """Run ``ds4-report export``; return the exit code."""
    from .export import export

    if args.output is None or not args.output.lower().endswith((".csv", ".json")):
        raise UsageError("export needs -o FILE.csv or FILE.json")
    print(f"{args.output}: {export(_load(args), args.output)} lines")
    return 0


def compare_(args: Namespace) -> int:
    """Run ``ds4-report compare``; return the exit code.

    It is 1 if run B is worse by --fail-on or more, 4 if the runs are not comparable or have too many warnings, else 0.
    """
    from ds4ref.console.comparison import text
    from ds4ref.console.tables import stdout_width
    from ds4ref.runs.compare import compare
    from ds4ref.runs.statements import INCOMPARABLE, LIMITS
    from ds4ref.runs.stats import REFUSED

    a, b = _load(args)
    given = {"margin": args.margin, "fail": args.fail_on}
    limits = replace(LIMITS.get(a.run.kind, LIMITS["bench"]), **{k: v for k, v in given.items() if v is not None})
    comparison = compare(a, b, limits, args.differ)
    print(json.dumps(comparison.as_json()) if args.json else text(comparison, stdout_width()))
    if comparison.verdict in (INCOMPARABLE, REFUSED):
        return EXIT_INCOMPARABLE
    return 0 if comparison.passes else EXIT_WORSE


def build(args: Namespace) -> int:
    """Run ``ds4-report build``; return the exit code."""
    from .build import build_report

    output = args.output or "report.html"
    if not output.lower().endswith(".html"):
        raise UsageError(f"cannot build {output}: the name must end in .html")
    args.names = args.names or ["latest:bench"]
    built = build_report(_load(args), output, args.title)
    print("\n".join(built.headline))
    page, *others = built.files
    print(f"open {page}" + (f" (the same in {', '.join(others)})" if others else ""))
    return 0


def check(args: Namespace) -> int:
    """Run ``ds4-report check``, which reads and checks the whole store; return the exit code."""
    with _open(args) as store:
        store.check()
        runs = store.runs()
        print(f"{store.path}: sound, {len(runs)} run(s), {sum(entry.rows for entry in runs)} row(s)")
    return 0


def _open(args: Namespace) -> Store:
    from ds4ref.runs.store import Store

    return Store.open(args.store, create=False)


def _load(args: Namespace) -> list[Measured]:
    """Load the runs named on the command line; open the store only if one of them is not a file."""
    from .sources import is_file, load

    if all(is_file(name) for name in args.names):
        return [load(name, None) for name in args.names]
    with _open(args) as store:
        return [load(name, store) for name in args.names]


def _plain(entry: Run) -> dict[str, object]:
    return {**vars(entry), "tags": list(entry.tags)}


class Command(NamedTuple):
    """A command of ``ds4-report``.

    run           runs the command and returns the exit code
    summary       one line for help texts
    names         the names of runs or files that it takes, as its usage shows them
    least, most   minimum and maximum number of names; ``most`` None for any number
    options       its options: flag -> arguments for ``console.flags.add``
    """

    run: Callable[[Namespace], int]
    summary: str
    names: str = ""
    least: int = 0
    most: int | None = 0
    options: dict[str, dict[str, Any]] = {}


JSON: dict[str, dict[str, Any]] = {"--json": {}}
TAGS = {"help": "only runs with this tag"}, {"action": "append", "default": [], "help": "may be repeated"}
REPORT = {"help": "file to write (report.html); FILE.md has the same as Markdown"}
COMMANDS = {
    "list": Command(listing, "runs, newest first", options={
        "--tag": TAGS[0], "--limit": {"default": 50, "help": "maximum number of runs (50)"}, **JSON}),
    "show": Command(show, "one run: facts and rows", "RUN", 1, 1, JSON),
    "tag": Command(tag, "add or remove tags", "RUN TAG...", 1, None, {"--label": {"help": "new label"}}),
    "rm": Command(remove, "delete runs", "RUN...", 1, None),
    "import": Command(import_, "add results CSVs, checked vectors and logs of ds4-eval to the store", "FILE...", 1,
                      None, {"--label": {"help": "(the file's name)"}, "--tag": TAGS[1]}),
    "export": Command(export_, "runs as one table: .csv or .json", "RUN... -o FILE", 1, None,
                      {"--output": {"help": "file to write"}}),
    "compare": Command(compare_, "is run B better than run A?", "A B", 2, 2, JSON),
    "build": Command(build, "one HTML report, and the same as Markdown", "[RUN...] [-o FILE.html]", 0, None,
                     {"--output": REPORT, "--title": {"help": "(from the runs)"}}),
    "check": Command(check, "check the integrity of the store"),
}  # fmt: skip


def body(argv: Sequence[str]) -> int:
    """Check the number of names given, run the command that ``argv`` names, and return the exit code."""
    called = chosen(build_parser, COMMANDS, argv)
    if called is None:
        return 0
    command, args = COMMANDS[called[0]], called[1]
    if len(args.names) < command.least:
        raise UsageError(f"{command.least} name(s) needed, {len(args.names)} given")
    if command.most is not None and len(args.names) > command.most:
        raise UsageError(f"unexpected argument: {args.names[command.most]}")
    return command.run(args)


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``ds4-report`` with the arguments ``argv`` (None: those of the process); return the exit code."""
    return run(PROG, body, argv)


if __name__ == "__main__":
    sys.exit(main())
