"""``ds4-bench``: throughput against context depth, as CSV; ``ds4-bench plot``, the picture of it; ``ds4-bench model``
and ``ds4-bench peaks``, what a machine could do at best.

This module reads the command line; ``bench`` runs what it says.

    ds4-bench -m model.gguf --prompt-file book.txt --ctx-start 2048 --ctx-max 65536 --csv m3.csv
    ds4-bench --arm threads=1 --arm threads=2 --csv threads.csv
    ds4-bench -p 512 -n 128 -d 0,8192 -t 1,2 -o md
    ds4-bench --target http://127.0.0.1:8000/v1 --concurrency 1-8*2 --csv served.csv
    ds4-bench plot m3.csv
"""

from __future__ import annotations

import json
import os
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ds4ref import __version__
from ds4ref.backends import BACKENDS, DEFAULT_BACKEND
from ds4ref.cli.common import check_output, read_text, run
from ds4ref.cli.options import Parser, choice, choices, integer, integers, number
from ds4ref.errors import UsageError
from ds4ref.numerics import DEFAULT_MODE, MODES
from ds4ref.targets.dialects import KINDS

if TYPE_CHECKING:
    from .probes import Probe

PROG = "ds4-bench"
DEFAULT_SYSTEM = "You are a helpful assistant."  # with the period, unlike ds4's

USAGE = """ds4-bench [options]                 sweep context depths, CSV on stdout
       ds4-bench [options] --csv FILE      the same into a file; a table on stdout
       ds4-bench plot CSV... [options]     draw speed curves
       ds4-bench model [options]           the bound of a model on a machine, and of published rows
       ds4-bench peaks [options]           measure this machine's bandwidth and arithmetic
       ds4-bench many JOB.toml [options]   a sweep for every combination, on many machines if wanted
       (each with --help)"""

EPILOG = """\
The walk: from --ctx-start to --ctx-max in steps of --step-incr, or times --step-mul if that is
not 1. At each depth two windows are timed: prefill of the newest interval, and --gen-tokens
greedy decode steps that never pick the end of the text. Snapshot and restore are not timed.

columns: ctx_tokens,prefill_tokens,prefill_tps,gen_tokens,gen_tps,kvcache_bytes as in ds4-bench
(kvcache_bytes is the size of a saved session), then gen_first_ms (first decode step),
gen_steady_tps (the others), gen_digest (equal digests: the same tokens were decoded), and
repetitions, spread, inter-token times, memory, shares of the bound: docs/bench.md

With -r N the walk is repeated; speeds in the CSV are medians. With two --arm both walk in turn
(A B, B A, ...): the only way to prove a small difference; ds4-report compare A B judges it.

Lists: 1,2,4 or ranges 1-4, 0-8192+2048, 1-64*2. Several values of -m, --backend, --numerics or
-t are lanes measured in turn. Tests: -p 512 -n 128 -d 0,8192 as in llama-bench, or by name,
--test "pp512, tg128 @ d8192"; each stands on a session of its own.

Targets: http(s)://HOST/v1 sweeps an OpenAI-compatible endpoint with prompts that no cache knows:
time to first token, inter-token and end-to-end times, fairness between streams. command:BINARY
runs a ds4-bench binary. Given twice, both walk in turn.

Beside --csv FILE.csv lies FILE.json: model and prompt digests, machine, versions, command, all
samples. Every run is kept in the run store (see ds4-report). Ctrl-C keeps the rows measured.

exit codes: 0 every frontier measured, 1 failure, 2 usage, 130 Ctrl-C"""

UNAVAILABLE = {
    "--metal": f"no Metal backend (there are: {', '.join(BACKENDS)})",
    "--cuda": f"no CUDA backend (there are: {', '.join(BACKENDS)})",
    "--quality": f"choose the arithmetic with --numerics {'|'.join(MODES)}",
}


def build_parser() -> Parser:
    """Options of the sweep."""
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
    g.add_argument("--frontiers", metavar="LIST", type=integers(), help="these depths instead")
    g.add_argument("-n", "--tokens", "--gen-tokens", metavar="N", type=integers(), dest="gen_tokens",
                   help="decode steps at each depth (128); with -p or -d a list")  # fmt: skip
    g.add_argument("-p", "--n-prompt", metavar="LIST", type=integers(0), help="tests: prefill of so many tokens")
    g.add_argument("-d", "--n-depth", metavar="LIST", type=integers(0), help="tests: behind so many tokens (0)")
    g.add_argument("--test", metavar="LIST", action="append", default=[], help='tests by name: "pp512, tg128 @ d8192"')
    g.add_argument("--no-warmup", action="store_true", help="let the first row pay for cold code and weights")
    g.add_argument("-r", "--reps", metavar="N", type=integer(1, 10_000), help="repetitions of the whole walk (1; 5 "
                   "with --arm)")  # fmt: skip
    g.add_argument("--delay", metavar="S", type=number(0, 86400), default=0.0, help="seconds of rest before each "
                   "further repetition (0)")  # fmt: skip
    g.add_argument("--arm", metavar="NAME=VALUE,...", action="append", default=[], help="given twice: A and B, "
                   "measured in turn; model, backend, numerics, threads")  # fmt: skip

    g = parser.add_argument_group("targets other than the local engine")
    g.add_argument("--target", metavar="SPEC", action="append", default=[], help="http(s)://HOST/v1 or command:BINARY "
                   "ARGS; may be repeated (local)")  # fmt: skip
    g.add_argument("--concurrency", metavar="LIST", type=integers(1, 256), default=[1], help="streams at once (1)")
    g.add_argument("--model-name", metavar="NAME", help="model to ask the endpoint for (its only one)")
    g.add_argument("--api", type=choice("completions", "chat"), metavar="NAME", default="completions",
                   help="completions or chat (completions; chat with --chat-prompt-file)")  # fmt: skip
    g.add_argument("--dialect", metavar="KIND", type=choice(*KINDS), default="probe",
                   help=f"kind of server, which decides what it is sent: {', '.join(KINDS)} (probe)")  # fmt: skip
    g.add_argument("--ignore-eos", action="store_true", help="ask the endpoint to decode past the end of the text")
    g.add_argument("--key-env", metavar="NAME", default="DS4_API_KEY", help="environment variable with the API key "
                   "(DS4_API_KEY)")  # fmt: skip
    g.add_argument("--timeout", metavar="S", type=number(0.1, 1e6), default=600.0, help="seconds to wait for the "
                   "endpoint's next byte (600)")  # fmt: skip

    g = parser.add_argument_group("model and engine")
    g.add_argument("-m", "--model", metavar="FILE", help="GGUF file (default: ./ds4flash.gguf if there, else the "
                   "small embedded model; stderr says which)")  # fmt: skip
    g.add_argument("--backend", metavar="NAME", type=choices(*BACKENDS),
                   help=f"{' or '.join(BACKENDS)} ({DEFAULT_BACKEND})")  # fmt: skip
    g.add_argument("--cpu", action="store_const", const=["cpu"], dest="backend", help="the same as --backend cpu")
    g.add_argument("--numerics", metavar="MODE", type=choices(*MODES),
                   help=f"{', '.join(MODES)} ({DEFAULT_MODE})")  # fmt: skip
    g.add_argument("-t", "--threads", metavar="N", type=integers(), help="CPU threads (all cores)")
    g.add_argument("--warm-weights", action="store_true", help="read the whole file before starting")
    g.add_argument("--strict", action="store_true", help="insist on DeepSeek V4 Flash: every metadata key checked")

    g = parser.add_argument_group("results")
    g.add_argument("--csv", metavar="FILE", help="CSV file (stdout)")
    g.add_argument("--plot", metavar="FILE", action="append", default=[], help="draw the sweep too: .svg, .png or "
                   ".pdf; may be repeated; needs --csv")  # fmt: skip
    g.add_argument("-o", "--output", metavar="FORMAT", type=choice("csv", "md", "json", "jsonl", "sql"),
                   help="on stdout instead of CSV: csv, md, json, jsonl, sql")  # fmt: skip
    g.add_argument("--label", metavar="TEXT", help="name of the run in the store (that of the CSV)")
    g.add_argument("--store", metavar="FILE", help="run store (the user's own)")
    g.add_argument("--no-store", action="store_true", help="keep no record of this run")
    g.add_argument("--no-roofline", action="store_true", help="do not measure the machine's peaks if unknown")

    g = parser.add_argument_group("help")
    g.add_argument("-h", "--help", action="store_true", help="this text")
    g.add_argument("--version", action="store_true", help="version")
    return parser


def check(args: Namespace) -> list[int]:
    """The frontiers of a consistent command line; UsageError or DataError before anything is loaded.

    Lists become what the rest works with: ``args.probes`` (tests), ``args.arms``, and single values.
    """
    if args.prompt_file is not None and args.chat_prompt_file is not None:
        raise UsageError("choose one of --prompt-file and --chat-prompt-file")
    args.step_listed = args.frontiers is not None
    args.probes = _probes(args)
    depths = _depths(args)
    _check_files(args)
    from .remote import check_remote, is_remote

    args.remote = [is_remote(spec) for spec in args.target]
    if any(args.remote) and not all(args.remote):
        raise UsageError("--target local cannot be mixed with others; two runs can be compared, too")
    if any(args.remote):
        check_remote(args)
    elif args.concurrency != [1]:
        raise UsageError("--concurrency is for endpoints: the local engine has one stream")
    _check_arms(args)
    if args.reps is None:
        args.reps = 5 if args.in_turn or len(args.target) > 1 else 1
    return depths


def _probes(args: Namespace) -> list[Probe]:
    """Tests that were asked for, by name or as a grid."""
    from .probes import grid, parse_probes

    found = [probe for text in args.test for probe in parse_probes(text)]
    gridded = args.n_prompt is not None or args.n_depth is not None
    if gridded:
        found += grid(args.n_prompt or [], args.gen_tokens or [], args.n_depth or [0])
    elif found and args.gen_tokens:
        raise UsageError("-n goes with -p or -d; the names of --test say how many tokens")
    if (gridded or args.test) and not found:
        raise UsageError("no test is left: -p or -n must be above 0")
    if len({probe.name for probe in found}) < len(found):
        raise UsageError("the same test is named twice")
    return found


def _depths(args: Namespace) -> list[int]:
    from .frontier import frontiers

    if args.probes:
        if args.frontiers:
            raise UsageError("choose one of --frontiers and tests")
        args.ctx_max = max(probe.needed for probe in args.probes)
        args.gen_tokens = max(probe.decode for probe in args.probes)
        depths = []
    else:
        counts = args.gen_tokens or [128]
        if len(counts) > 1:
            raise UsageError("a list of -n needs tests: -p or -d")
        (args.gen_tokens,) = counts
        if args.frontiers:
            depths = sorted(set(args.frontiers))
            args.ctx_start, args.ctx_max = depths[0], depths[-1]
        elif args.ctx_start > args.ctx_max:
            raise UsageError(f"--ctx-start {args.ctx_start} is beyond --ctx-max {args.ctx_max}")
        else:
            depths = list(frontiers(args.ctx_start, args.ctx_max, args.step_incr, args.step_mul))
    needed = args.ctx_max + args.gen_tokens
    if args.ctx_alloc is None:
        args.ctx_alloc = needed + 1
    if args.ctx_alloc <= needed:
        raise UsageError(f"--ctx-alloc must be greater than --ctx-max + --gen-tokens ({needed}), not {args.ctx_alloc}")
    return depths


def _check_files(args: Namespace) -> None:
    from .plot import check_suffix

    if args.plot and args.csv is None:
        raise UsageError("--plot needs --csv FILE: the picture is drawn from it")
    if args.plot and args.probes:
        raise UsageError("--plot needs a walk: tests make no curve")
    for path in args.plot:
        check_suffix(path)
    for path in (args.csv, *args.plot):
        if path is not None:
            check_output(path)
    if args.store is not None and args.no_store:
        raise UsageError("choose one of --store and --no-store")


def _check_arms(args: Namespace) -> None:
    """``args.arms`` (options of each lane), ``args.arm`` (their names), ``args.in_turn`` (two arms were named)."""
    import itertools

    from .bench import check_arms

    args.arms, args.in_turn = check_arms(args.arm), bool(args.arm)
    models = args.model if args.model is None or os.path.exists(args.model) else args.model.split(",")
    given = {"model": models, "backend": args.backend, "numerics": args.numerics, "threads": args.threads}
    lists = {name: values for name, values in given.items() if isinstance(values, list) and len(values) > 1}
    if lists and args.arms:
        raise UsageError(f"choose one of --arm and a list of --{next(iter(lists))}")
    if lists:
        args.arms = [dict(zip(lists, values, strict=True)) for values in itertools.product(*lists.values())]
        args.arm = [",".join(f"{name}={value}" for name, value in options.items()) for options in args.arms]
    defaults = {"backend": DEFAULT_BACKEND, "numerics": DEFAULT_MODE}
    for name, values in given.items():
        setattr(args, name, values[0] if isinstance(values, list) else values or defaults.get(name))
    several = len(args.arms) or len(args.target) * len(args.concurrency)
    if args.output is None and args.csv is None and (args.probes or (several > 1 and not args.in_turn)):
        args.output = "md"
    if args.in_turn and args.csv is None and args.output is None and args.no_store:
        raise UsageError("--arm needs a place for two results: --csv, -o or the store")


def bench(args: Namespace) -> int:
    """Run the sweep that ``args`` describes."""
    depths = check(args)
    source = args.prompt_file if args.prompt_file is not None else args.chat_prompt_file
    text = None if source is None else read_text(source, "prompt")
    if any(args.remote):
        from .remote import RemoteRun, remote_text

        walked, about = remote_text(text, args.ctx_max)
        RemoteRun(args, walked, depths, about).execute()
        return 0
    from ds4ref.cli.model import choose_model

    from .bench import Run
    from .prompt import PROSE_SEED, digest

    first = args.arms[0].get("model") if args.arms else None
    args.model = str(choose_model(PROG, first or args.model).path)
    tokens, eos = encode(args, text)
    prompt = {"sha256": digest(tokens)} | ({"seed": PROSE_SEED} if text is None else {})
    Run(args, tokens, eos, depths, prompt).execute()
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


def plot_parser() -> Parser:
    """Options of ``ds4-bench plot``."""
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


def peaks_parser() -> Parser:
    """Options of ``ds4-bench peaks``."""
    parser = Parser(
        f"{PROG} peaks",
        usage="ds4-bench peaks [-t N] [options]",
        description="Read bandwidth, int8 and float32 peaks of this machine, measured now, kept in the run store.",
        unavailable={},
    )
    parser.add_argument("-t", "--threads", metavar="N", type=integer(), help="threads (all usable cores)")
    parser.add_argument("--store", metavar="FILE", help="run store (the user's own)")
    parser.add_argument("-h", "--help", action="store_true", help="this text")
    return parser


def peaks(argv: Sequence[str]) -> int:
    """``ds4-bench peaks``."""
    parser = peaks_parser()
    args = parser.parse(argv)
    if args.help:
        sys.stdout.write(parser.format_help())
        return 0
    from ds4ref.environment import machine
    from ds4ref.runs.store import Store

    from .peaks import machine_peaks

    cores = machine()["cores"]
    with Store.open(args.store) as store:
        found = machine_peaks(store, args.threads or cores, again=True)
    print(f"read {found['read_gbs']:.1f} GB/s, int8 {found['int8_gops']:.0f} GOP/s, float32 "
          f"{found['f32_gflops']:.0f} GFLOP/s with {found['threads']} thread(s)")  # fmt: skip
    print(json.dumps(found))
    return 0


def model(argv: Sequence[str]) -> int:
    """``ds4-bench model``."""
    from .model import model_command

    return model_command(argv)


def many(argv: Sequence[str]) -> int:
    """``ds4-bench many``."""
    from ds4ref.cli.many import Tool
    from ds4ref.cli.many import many as run_many

    return run_many(Tool(PROG, "speed_bench.cli", ("csv", "plot")), argv)


COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {"plot": draw, "peaks": peaks, "model": model, "many": many}


def body(argv: Sequence[str]) -> int:
    """Dispatch; the exit code."""
    if argv and argv[0] in COMMANDS:
        return COMMANDS[argv[0]](argv[1:])
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
