"""Parse the command line of a run into what it needs: pack of questions, settings, target and log.

Errors in the command line are raised here as UsageError or DataError, before a model is loaded.
"""

from __future__ import annotations

import itertools
import signal
import time
from argparse import Namespace
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ds4ref.console.flags import add
from ds4ref.console.options import Parser, integer, integers, number
from ds4ref.console.tool import add_target, is_embedded
from ds4ref.errors import DataError, UsageError
from ds4ref.runs import shards

from . import library, long_pack, packs
from . import log as logs
from .plan import Settings, chosen, settings_of

PROG = "ds4-eval"
ENDINGS = signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT
"""Signals that end a run in the same way as Ctrl-C: the log stays intact, and the report is printed."""

GIVEN = "think", "tokens", "soft_limit", "hard_limit", "top_p", "min_p", "seed"
"""Settings that have a command line option of the same name."""

USAGE = """ds4-eval [options]                   ask the questions, grade the answers, report
       ds4-eval view LOG [QUESTION]         show a log, or one question in full
       ds4-eval merge FOLDER                join the logs of a run's shards (--shard)
       ds4-eval compare A B                 compare two logs question by question
       (each with --help)"""

EPILOG = """\
Without --target and -m, ds4-eval asks the embedded model the questions of pack nano, made for it.
Any other engine gets pack ds4ref: 93 questions (25 science and 25 scholar, both multiple choice;
25 maths, 18 security). Other packs: recall (60 facts that low-bit weights lose first, in five
languages) and long (facts 4 k to 64 k tokens back). Your own questions: --pack FILE, one
{"question": ..., "answer": ...} per line (docs/how-to/ask-your-own-questions.md).

Each sample is written to the log (-o FILE, or one in the data folder) as soon as it is finished.
Ctrl-C, q and any signal still print the report. --resume LOG continues: a log with other
settings, another pack or another engine is refused. On a terminal there is a live screen (? lists
its keys). Over HTTP the limits of thinking do not apply, only the server's token limit.

exit codes: 0 done, 1 below --fail-below, or samples failed or are missing, 2 usage, 130 Ctrl-C,
128 + N signal N

examples:
  ds4-eval                                             demonstration: embedded model, pack nano
  ds4-eval -m MODEL.gguf -o run.jsonl                  93 questions, greedy, thinking
  ds4-eval --target http://127.0.0.1:8000/v1 --concurrency 4 --epochs 4 --temp 1 --plain
  ds4-eval --target http://127.0.0.1:8000/v1 --pack questions.jsonl
  ds4-eval --resume run.jsonl                          continue
  ds4-eval --replay run.jsonl --speed 10               watch it again"""

UNAVAILABLE = {
    "--trace": "the log (-o FILE) has every prompt and answer: see ds4-eval view",
    "--metal": "no Metal backend",
    "--self-test-extractors": "the test suite tests the grader",
    "--quality": "every numerics mode is exact about what it rounds: --numerics",
    "--soft-limit-think-close-rank": "</think> is likely if it is among the 3 best tokens",
    "--pause-ms": "the screen shows a grade for 350 ms",
}


def build_parser() -> Parser:
    """Return the parser of a run's options."""
    made = Parser(PROG, usage=USAGE,
                  description="Ask an engine hard questions, grade the answers, report the score with its interval.",
                  epilog=EPILOG, unavailable=UNAVAILABLE)  # fmt: skip
    g = made.add_argument_group("questions")
    add(g, "--pack", help=f"{', '.join(library.names())}, or a file of questions")
    g.add_argument("--long-tokens", metavar="LIST", type=integers(long_pack.LEAST, long_pack.MOST),
                   help="pack long: distances of the facts in tokens (4096,8192,16384,32768,65536)")  # fmt: skip
    add(g, "--only", metavar="WORDS", help="sources (maths,security), or words in id, source or domain")
    add(g, "--limit", "--questions", help="only the first N")
    g.add_argument("--epochs", metavar="N", type=integer(1, 1000), help="times each question is asked (1)")
    add(g, "--list", help="list the questions and exit")

    g = made.add_argument_group("the engine")
    add(g, "--model", help="GGUF file: the same as --target local:FILE")
    add_target(made, None)

    g = made.add_argument_group("answers")
    add(g, "--think")
    add(g, "--think-low")
    add(g, "--think-max")
    add(g, "--nothink")
    add(g, "--tokens", help="token limit of an answer (16000)")
    add(g, "--temp", help="temperature; 0 is greedy (0)")
    add(g, "--top-p")
    add(g, "--min-p", help="drop tokens less likely than F times the best (0.05)")
    add(g, "--seed", help="seed of sampling (0); each sample has its own, whatever the order")
    for name, says in (
        ("soft", "tokens left at which thinking is closed if </think> is likely (1024)"),
        ("hard", "tokens left at which thinking is closed (512)"),
    ):
        g.add_argument(f"--{name}-limit-reply-budget", metavar="N", type=integer(), dest=f"{name}_limit", help=says)

    g = made.add_argument_group("the run")
    add(g, "--output", metavar="LOG", help="the log, a new .jsonl file")
    add(g, "--resume", metavar="LOG", help="continue a log (latest: the newest in the data folder)")
    g.add_argument(
        "--retry-incomplete", action="store_true", help="with --resume: also ask again what failed or was cut off"
    )
    g.add_argument("--replay", metavar="LOG", help="play a finished run again, on the screen or with --plain (latest)")
    g.add_argument("--speed", metavar="X", type=number(0.01, 10_000), help="with --replay: speed factor (1)")
    add(g, "--concurrency", type=integer(1, 1024), default=1, help="concurrent requests (1)")
    g.add_argument("--plain", action="store_true", help="one line per sample instead of the screen")
    add(g, "--json", help="one JSON document on stdout and nothing else")
    add(g, "--shard")
    add(g, "--store")
    add(g, "--no-store")
    add(g, "--label")
    add(g, "--fail-below", metavar="PERCENT", type=number(0, 100), help="exit 1 if the score is lower")
    add(made, "--help")
    add(made, "--version")
    return made


@dataclass(frozen=True)
class Job:
    """A run that the command line describes.

    pack       the whole pack
    asked      the questions to ask
    settings   settings that all samples share
    epochs     number of times that each question is asked
    spec       the target to ask, as given to --target
    path       path of the log
    goes_on    whether the log is resumed
    selection  options that chose ``asked`` from the pack
    """

    pack: packs.Pack
    asked: tuple[packs.Question, ...]
    settings: Settings
    epochs: int
    spec: str
    path: Path
    goes_on: bool
    selection: dict[str, Any]


def read_job(args: Namespace) -> Job:
    """Return the run that ``args`` describe; if a log is resumed, options that are not given are taken from it."""
    if args.model is not None and args.target is not None:
        raise UsageError("choose one of --model and --target")
    target = args.target or (f"local:{args.model}" if args.model else None)
    given = {name: value for name in GIVEN if (value := getattr(args, name)) is not None}
    given |= {} if args.temp is None else {"temperature": args.temp}
    if args.resume is not None:
        return _resumed(args, target, given)
    if args.retry_incomplete:
        raise UsageError("--retry-incomplete is for --resume LOG")
    spec = target or "local"
    name = args.pack or (packs.NANO if is_embedded(spec) else packs.DEFAULT)
    pack = library.load(name, args.long_tokens)
    asked = tuple(chosen(pack.questions, args.only, args.limit))
    path = Path(args.output) if args.output else _new_path(pack.name)
    if args.shard is not None:
        if args.output is None:
            raise UsageError("--shard needs -o FOLDER, which all shards share")
        path = shards.folder_of(path, args.shard) / "run.jsonl"
    selection = {"only": args.only, "limit": args.limit, "spec": spec}
    settings = settings_of(pack.header.settings, given)
    goes_on = args.shard is not None and logs.begun(path)
    return Job(pack, asked, settings, args.epochs or 1, spec, path, goes_on, selection)


def _resumed(args: Namespace, target: str | None, given: dict[str, Any]) -> Job:
    """Return the run that resumes a log; what the command line leaves out is taken from the log's header."""
    if args.shard is not None:
        raise UsageError("a shard is resumed by the same command: --resume does not apply")
    if args.output is not None:
        raise UsageError("--resume continues its log: --output does not apply")
    if args.long_tokens is not None or args.pack == long_pack.NAME:
        raise UsageError("--resume asks the questions of its log: --pack long and --long-tokens do not apply")
    path = logs.latest() if args.resume == "latest" else Path(args.resume)
    header = logs.read(path).header
    if args.pack is not None:
        pack = library.load(args.pack)
    else:
        name, version, canary = (header.pack.get(field) for field in ("pack", "version", "canary"))
        pack = packs.Pack(packs.Header(str(name), int(version or 0), str(canary or "")), tuple(header.questions))
    before = header.facts.get("selection") or {}
    selection: dict[str, Any] = {
        "only": args.only or before.get("only"), "limit": args.limit or before.get("limit"),
        "spec": target or before.get("spec") or "local",
    }  # fmt: skip
    asked = tuple(chosen(pack.questions, selection["only"], selection["limit"]))
    settings = replace(header.plan, **given)
    return Job(pack, asked, settings, args.epochs or header.epochs, selection["spec"], path, True, selection)


def _new_path(pack: str) -> Path:
    name = "".join(c if c.isalnum() or c in "-_." else "_" for c in pack)
    try:
        logs.folder().mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(
            f"cannot create {logs.folder()}: {error.strerror or error}; choose another place with -o"
        ) from None
    paths = (logs.folder() / f"{time.strftime('%Y%m%d-%H%M%S')}-{name}-{i}.jsonl" for i in itertools.count(1))
    return next(path for path in paths if not path.exists())
