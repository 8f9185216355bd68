"""``ds4-bench``: throughput against context depth, as CSV; and ``ds4-bench plot``, the picture of it.

Left out on purpose so far: repetitions, statistics, endpoints. This module reads the command line and connects the
parts; what is measured, and how, is in ``sweep``.

    ds4-bench -m model.gguf --prompt-file book.txt --ctx-start 2048 --ctx-max 65536 --csv m3.csv
    ds4-bench plot m3.csv
"""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any

from ds4ref import __version__
from ds4ref.backends import BACKENDS, DEFAULT_BACKEND
from ds4ref.cli.common import Interrupt, Progress, check_output, read_text, run, say
from ds4ref.cli.options import Parser, choice, integer, number
from ds4ref.errors import Cancelled, DataError, UsageError
from ds4ref.numerics import DEFAULT_MODE, MODES

if TYPE_CHECKING:
    from ds4ref.engine import Engine

    from .sweep import Row

PROG = "ds4-bench"
DEFAULT_SYSTEM = "You are a helpful assistant."  # with the period, unlike ds4's (tools.md 1.2)

USAGE = """ds4-bench [options]                 sweep context depths, CSV on stdout
       ds4-bench [options] --csv FILE      the same into a file; a table on stdout
       ds4-bench plot CSV... [options]     draw speed curves; see ds4-bench plot --help"""

EPILOG = """\
The walk: from --ctx-start to --ctx-max in steps of --step-incr, or times --step-mul if that is
not 1. At each depth two windows are timed: prefill of the newest interval, and --gen-tokens
greedy decode steps that never pick the end of the text. Snapshot and restore are not timed.

columns: ctx_tokens,prefill_tokens,prefill_tps,gen_tokens,gen_tps,kvcache_bytes as in ds4-bench
(kvcache_bytes is the size of a saved session), then gen_first_ms (first decode step),
gen_steady_tps (the others), gen_digest (equal digests: the same tokens were decoded)

Beside --csv FILE.csv lies FILE.json: model and prompt digests, machine, versions, command.
Ctrl-C keeps the rows measured so far.

exit codes: 0 every frontier measured, 1 failure, 2 usage, 130 Ctrl-C"""

UNAVAILABLE = {
    "--metal": f"no Metal backend (there are: {', '.join(BACKENDS)})",
    "--cuda": f"no CUDA backend (there are: {', '.join(BACKENDS)})",
    "--quality": f"choose the arithmetic with --numerics {'|'.join(MODES)}",
}


def build_parser() -> Parser:
    parser = Parser(
        PROG, usage=USAGE, description="Throughput against context depth.", epilog=EPILOG, unavailable=UNAVAILABLE
    )
    g = parser.add_argument_group("prompt (default: generated prose, long enough)")
    g.add_argument("--prompt-file", metavar="FILE", help="raw text, no chat markup (- is stdin)")
    g.add_argument("--chat-prompt-file", metavar="FILE", help="text of one user turn, rendered without thinking")
    g.add_argument("-sys", "--system", metavar="TEXT", default=DEFAULT_SYSTEM,
                   help=f'system text for --chat-prompt-file ("{DEFAULT_SYSTEM}")')  # fmt: skip

    g = parser.add_argument_group("walk")
    g.add_argument("--ctx-start", metavar="N", type=integer(), default=2048, help="first depth, tokens (2048)")
    g.add_argument("--ctx-max", metavar="N", type=integer(), default=32768, help="last depth (32768)")
    g.add_argument("--ctx-alloc", metavar="N", type=integer(), help="context to allocate (ctx-max + gen-tokens + 1)")
    g.add_argument("--step-incr", metavar="N", type=integer(), default=2048, help="step between depths (2048)")
    g.add_argument("--step-mul", metavar="F", type=number(1, 1e6), default=1.0, help="factor between depths (1: use "
                   "--step-incr)")  # fmt: skip
    g.add_argument("-n", "--tokens", "--gen-tokens", metavar="N", type=integer(), default=128, dest="gen_tokens",
                   help="decode steps at each depth (128)")  # fmt: skip
    g.add_argument("--no-warmup", action="store_true", help="let the first row pay for cold code and weights")

    g = parser.add_argument_group("model and engine")
    g.add_argument("-m", "--model", metavar="FILE", help="GGUF file (default: ./ds4flash.gguf if there, else the "
                   "small embedded model; stderr says which)")  # fmt: skip
    g.add_argument("--backend", metavar="NAME", type=choice(*BACKENDS), default=DEFAULT_BACKEND,
                   help=f"{' or '.join(BACKENDS)} ({DEFAULT_BACKEND})")  # fmt: skip
    g.add_argument("--cpu", action="store_const", const="cpu", dest="backend", help="the same as --backend cpu")
    g.add_argument("--numerics", metavar="MODE", type=choice(*MODES), default=DEFAULT_MODE,
                   help=f"{', '.join(MODES)} ({DEFAULT_MODE})")  # fmt: skip
    g.add_argument("-t", "--threads", metavar="N", type=integer(), help="CPU threads (all cores)")
    g.add_argument("--warm-weights", action="store_true", help="read the whole file before starting")
    g.add_argument("--strict", action="store_true", help="insist on DeepSeek V4 Flash: every metadata key checked")

    g = parser.add_argument_group("results")
    g.add_argument("--csv", metavar="FILE", help="CSV file (stdout)")
    g.add_argument("--plot", metavar="FILE", action="append", default=[], help="draw the sweep too: .svg, .png or "
                   ".pdf; may be repeated; needs --csv")  # fmt: skip

    g = parser.add_argument_group("help")
    g.add_argument("-h", "--help", action="store_true", help="this text")
    g.add_argument("--version", action="store_true", help="version")
    return parser


def check(args: Namespace) -> list[int]:
    """The frontiers of a consistent command line; UsageError or DataError before anything is loaded."""
    from .frontier import frontiers

    if args.prompt_file is not None and args.chat_prompt_file is not None:
        raise UsageError("choose one of --prompt-file and --chat-prompt-file")
    if args.ctx_start > args.ctx_max:
        raise UsageError(f"--ctx-start {args.ctx_start} is beyond --ctx-max {args.ctx_max}")
    needed = args.ctx_max + args.gen_tokens
    if args.ctx_alloc is None:
        args.ctx_alloc = needed + 1
    if args.ctx_alloc <= needed:
        raise UsageError(f"--ctx-alloc must be greater than --ctx-max + --gen-tokens ({needed}), not {args.ctx_alloc}")
    if args.plot and args.csv is None:
        raise UsageError("--plot needs --csv FILE: the picture is drawn from it")
    from .plot import check_suffix

    for path in args.plot:
        check_suffix(path)
    for path in (args.csv, *args.plot):
        if path is not None:
            check_output(path)
    return list(frontiers(args.ctx_start, args.ctx_max, args.step_incr, args.step_mul))


def bench(args: Namespace) -> int:
    """Run the sweep that ``args`` describes."""
    depths = check(args)
    from ds4ref.cli.model import choose_model, open_engine

    from .facts import collect
    from .prompt import digest

    source = args.prompt_file if args.prompt_file is not None else args.chat_prompt_file
    text = None if source is None else read_text(source, "prompt")
    args.model = str(choose_model(PROG, args.model).path)
    tokens, eos = encode(args, text)
    with open_engine(PROG, args) as engine:
        say(PROG, buffers(engine, args.ctx_alloc))
        rows: list[Row] = []
        try:
            with _csv_stream(args.csv) as stream:
                measure(engine, tokens, eos, depths, args, stream, rows)
        except Cancelled:
            say(PROG, f"stopped; {len(rows)} of {len(depths)} rows were measured and kept")
            raise
        facts = collect(engine, [PROG, *args.argv], digest(tokens))
    if args.csv is not None:
        conclude(args, rows, facts)
    return 0


def encode(args: Namespace, text: str | None) -> tuple[list[int], int]:
    """The tokens to walk, exactly --ctx-max of them, and the EOS id. Needs the vocabulary, not the weights."""
    from ds4ref.text.tokenizer import Tokenizer
    from ds4ref.weights.gguf import GGUFFile

    from .prompt import chat_tokens, check_length, prose_tokens

    with GGUFFile.open(args.model) as gguf:
        tokenizer = Tokenizer.from_gguf(gguf)
    if text is None:
        tokens = prose_tokens(tokenizer, args.ctx_max)
    elif args.prompt_file is not None:
        tokens = tokenizer.encode(text)
    else:
        tokens = chat_tokens(tokenizer, text, args.system)
    check_length(tokens, args.ctx_max)
    return tokens[: args.ctx_max], tokenizer.eos


def measure(
    engine: Engine,
    tokens: list[int],
    eos: int,
    depths: list[int],
    args: Namespace,
    stream: IO[str],
    rows: list[Row],
) -> None:
    """Warm up, then sweep; every row goes to ``stream`` and ``rows`` as soon as it is measured."""
    from .results import CsvWriter
    from .sweep import sweep, warm_up

    writer = CsvWriter(stream)
    with Interrupt() as interrupt, Progress("measuring") as progress:
        if not args.no_warmup:
            warm_up(engine.session(args.ctx_alloc), tokens, eos)
        session = engine.session(args.ctx_alloc)
        for row in sweep(session, tokens, depths, args.gen_tokens, eos, progress=progress, cancel=interrupt):
            writer.write(row)
            rows.append(row)


def conclude(args: Namespace, rows: list[Row], facts: dict[str, Any]) -> None:
    """The files beside the CSV, the table, and one line of JSON that says where everything is."""
    from pathlib import Path

    from ds4ref.cli.common import atomic_output

    from .results import HEADER
    from .table import print_table

    csv = Path(args.csv)
    files = {"csv": str(csv)}
    if not csv.exists() or csv.is_file():
        files["facts"] = str(csv.with_suffix(".json"))
        with atomic_output(files["facts"]) as out:
            out.write(json.dumps({"columns": HEADER.split(","), **facts}, indent=2).encode() + b"\n")
    print_table(rows, facts)
    if args.plot and len(rows) < 2:
        say(PROG, "one row makes no curve: nothing plotted")
    elif args.plot:
        from .plot import plot

        files["plot"] = ", ".join(str(path) for path in plot([args.csv], args.plot))
    for kind, names in files.items():
        print(f"{kind:6} {names}")
    print(json.dumps({"rows": len(rows), "files": files, **facts}))


def buffers(engine: Engine, ctx: int) -> str:
    """ds4's line about the memory of a context."""
    shape = engine.shape
    return (
        f"context buffers {shape.kv_bytes(ctx) / 2**20:.2f} MiB (ctx={ctx}, backend={engine.backend}, "
        f"raw_kv_rows={min(shape.window, ctx)}, compressed_kv_rows={ctx // 4 + 2})"
    )


@contextmanager
def _csv_stream(path: str | None) -> Iterator[IO[str]]:
    if path is None:
        yield sys.stdout
        return
    try:
        file = open(path, "w", newline="", encoding="utf-8")
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror}") from None
    with file:
        yield file


def plot_parser() -> Parser:
    parser = Parser(
        f"{PROG} plot",
        usage="ds4-bench plot CSV... [-o FILE]... [--title TEXT]",
        description="Speed curves of one or several CSVs: prefill on the left axis, decode on the right.",
        unavailable={},
    )
    parser.add_argument("csv", metavar="CSV", nargs="*", help="results of ds4-bench, ds4's own included")
    parser.add_argument("-o", "--output", metavar="FILE", action="append", default=[],
                        help=".svg, .png or .pdf; may be repeated (<first CSV>_ts.svg)")  # fmt: skip
    parser.add_argument("--title", metavar="TEXT", help="(from the name of the first CSV)")
    parser.add_argument("--width", metavar="N", type=integer(200, 10_000), default=960, help="pixels (960)")
    parser.add_argument("--height", metavar="N", type=integer(150, 10_000), default=540, help="pixels (540)")
    parser.add_argument("-h", "--help", action="store_true", help="this text")
    return parser


def draw(argv: Sequence[str]) -> int:
    """``ds4-bench plot``."""
    parser = plot_parser()
    args = parser.parse(argv)
    if args.help:
        sys.stdout.write(parser.format_help())
        return 0
    if not args.csv:
        raise UsageError("plot needs at least one CSV")
    from .plot import check_suffix, plot

    for path in args.output:
        check_suffix(path)
        check_output(path)
    for path in plot(args.csv, args.output, args.title, (args.width, args.height)):
        print(path)
    return 0


def body(argv: Sequence[str]) -> int:
    if argv and argv[0] == "plot":
        return draw(argv[1:])
    parser = build_parser()
    args = parser.parse(argv)
    args.argv = list(argv)
    if args.help:
        sys.stdout.write(parser.format_help())
        return 0
    if args.version:
        print(f"{PROG} {__version__} (ds4ref)")
        return 0
    return bench(args)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the console script."""
    return run(PROG, body, argv)


if __name__ == "__main__":
    sys.exit(main())
