"""Parses the command line of ``ds4-bench`` into a plan and output options.

Every mistake of the user raises UsageError or DataError here, before a model is loaded.
"""

from __future__ import annotations

import itertools
import math
import os
import re
from argparse import ArgumentTypeError, Namespace
from dataclasses import replace
from typing import Any

from ds4ref.backends import BACKENDS, DEFAULT_BACKEND
from ds4ref.console.common import check_output, read_text
from ds4ref.console.flags import add
from ds4ref.console.model import LOCAL_MODEL, choose_model, engine_options, threads
from ds4ref.console.options import Parser, choice, choices, integer, integers, number
from ds4ref.console.tool import queried
from ds4ref.errors import UsageError
from ds4ref.numerics import DEFAULT_MODE, MODES
from ds4ref.targets.dialects import KINDS

from .plan import (
    DEFAULT_BUDGET,
    DEFAULT_SYSTEM,
    MOST_REPS,
    BenchTarget,
    Load,
    Plan,
    Probe,
    RequestShape,
    sweep_depths,
)

PROG = "ds4-bench"
BOUNDS = ("ttft", "tpot", "e2e")

USAGE = """ds4-bench [options]                 sweep context depths; a table, or CSV into a pipe
       ds4-bench [options] --csv FILE      the same into a file; a table on stdout
       ds4-bench merge DIR [options]       join the shards of a run (--shard)
       ds4-bench plot CSV... [options]     draw speed curves
       ds4-bench model [options]           roofline bound of a model on a machine
       ds4-bench drafts A B [options]      is drafting worth it, by kind of text
       (each with --help)"""

EPILOG = """\
At each depth two windows are timed: prefill of the tokens since the depth before, and --gen-tokens
greedy decode steps. A run is five sweeps, or as many as fit into --budget; the CSV has medians, its
first six columns as ds4 writes them. Two targets are measured in turn (A B, B A, ...), and the run
ends with a verdict such as "decode: B is 1.23 x (1.20 to 1.26) as fast as A".

Lists: 1,2,4 or ranges 1-4, 0-8192+2048, 1-64*2. Several values of -m, --backend, --numerics or -t
are measured in turn. Tests: -p 512 -n 128 -d 0,8192 as in llama-bench.

Targets: local[:MODEL][?OPTION=VALUE&...] is this engine, with any of its options (draft=lookup,
expert-cache=32GB, ...). http(s)://HOST/v1 is an OpenAI-compatible endpoint: every prompt is new, and
answers have exactly the length asked for, if the server takes ignore_eos and min_tokens. --requests N
puts it under load, at --request-rate or by --concurrency streams.

Each row is saved to the run store (see ds4-report) when it is measured; --resume continues after
Ctrl-C (twice: stop at once). FILE.json beside --csv FILE.csv says where the figures came from.
Columns, and what is measured how: docs/reference/bench.md

exit codes: 0 every depth measured, 1 failure, 2 usage, 130 Ctrl-C"""

UNAVAILABLE = {
    "--metal": f"no Metal backend (available: {', '.join(BACKENDS)})",
    "--quality": f"choose the rounding mode with --numerics {'|'.join(MODES)}",
}


def build_parser() -> Parser:
    """Return the parser of ``ds4-bench`` without a subcommand."""
    parser = Parser(
        PROG, usage=USAGE, description="Throughput against context depth.", epilog=EPILOG, unavailable=UNAVAILABLE
    )
    g = parser.add_argument_group("prompt (default: generated prose, long enough)")
    add(g, "--prompt-file", help="raw text, no chat markup (- is stdin)")
    g.add_argument("--chat-prompt-file", metavar="FILE", help="text sent as one user turn, without thinking")
    add(g, "--system", default=DEFAULT_SYSTEM, help=f'system text for --chat-prompt-file ("{DEFAULT_SYSTEM}")')

    g = parser.add_argument_group("sweep")
    g.add_argument("--ctx-start", metavar="N", type=integer(), default=2048, help="first depth, tokens (2048)")
    g.add_argument("--ctx-max", metavar="N", type=integer(), default=32768, help="last depth (32768)")
    g.add_argument("--ctx-alloc", metavar="N", type=integer(), help="context to allocate (ctx-max + gen-tokens + 1)")
    g.add_argument("--step-incr", metavar="N", type=integer(), default=2048, help="step between depths (2048)")
    g.add_argument("--step-mul", metavar="F", type=number(1, 1e6), default=1.0, help="factor between depths (1: use "
                   "--step-incr)")  # fmt: skip
    add(g, "--depths", "--frontiers", type=integers(), help="list of depths, instead of the range above")
    add(g, "--tokens", "--gen-tokens", type=integers(), dest="gen_tokens",
        help="decode steps at each depth (128); with -p or -d a list")  # fmt: skip
    g.add_argument("-p", "--n-prompt", metavar="LIST", type=integers(0), help="tests: tokens to prefill")
    g.add_argument("-d", "--n-depth", metavar="LIST", type=integers(0), help="tests: depths to run them at (0)")
    g.add_argument("--no-warmup", action="store_true", help="no warm-up: the first row includes loading")
    add(g, "--repeat", "--reps", dest="reps",
        help=f"repetitions of the whole sweep ({MOST_REPS}, or as many as --budget allows)")  # fmt: skip
    add(g, "--budget", type=number(1, 1e7), default=DEFAULT_BUDGET,
        help=f"seconds for all repetitions, without -r ({DEFAULT_BUDGET:g})")  # fmt: skip

    g = parser.add_argument_group("targets")
    add(g, "--target", action="append", default=[],
        help="local[:MODEL][?OPTION=VALUE&...] or http(s)://HOST/v1; several are measured in turn (local)")  # fmt: skip
    add(g, "--concurrency", metavar="LIST", type=integers(1, 256), help="concurrent streams (1)")
    g.add_argument("--requests", metavar="N", type=integer(1, 1024), help="load test: number of "
                   "requests per level")  # fmt: skip
    g.add_argument("--request-rate", metavar="LIST", type=rates, help="levels: requests/s on average, Poisson "
                   "arrivals; inf is all at once")  # fmt: skip
    g.add_argument("--mix", metavar="LIST", type=mix, help="requests as PROMPT:ANSWER[*WEIGHT],... in tokens (512:128)")
    g.add_argument("--goodput", metavar="LIST", type=bounds, help="limits of a good answer: ttft:MS,tpot:MS,e2e:MS")
    add(g, "--seed", type=integer(0), default=1, help="seed of arrivals and mix (1)")
    add(g, "--model-name", help="model name to request (the only one served)")
    add(g, "--api", type=choice("completions", "chat"), default="completions",
        help="completions or chat (completions; chat with --chat-prompt-file)")  # fmt: skip
    add(g, "--dialect", type=choice(*KINDS), help=(f"request format of the server: {', '.join(KINDS)} (probe)"))
    add(g, "--timeout", default=600.0, help="seconds to wait for the endpoint's next byte (600)")

    g = parser.add_argument_group("model and engine")
    add(g, "--model", help="GGUF file (./ds4flash.gguf if it exists, else the embedded model; stderr says which)")
    add(g, "--backend", type=choices(*BACKENDS), help=f"{' or '.join(BACKENDS)} ({DEFAULT_BACKEND})")
    add(g, "--cpu", const=["cpu"])
    add(g, "--cuda", const=["cuda"])
    add(g, "--numerics", type=choices(*MODES), help=f"{', '.join(MODES)} ({DEFAULT_MODE})")
    add(g, "--threads", type=integers())
    add(g, "--warm-weights")

    g = parser.add_argument_group("results")
    add(g, "--csv")
    add(g, "--plot", action="append", default=[], help="plot of the sweep: .svg, .png or "
        ".pdf; may be repeated; needs --csv")  # fmt: skip
    add(g, "--output", metavar="FORMAT", type=choice("csv", "md"), help="format on stdout: csv, md")
    add(g, "--json", help="one line of JSON on stdout: facts, rows, files, verdict")
    add(g, "--resume", help="continue a stopped run of the store (its number, or latest)")
    add(g, "--label", help="name of the run in the store (name of the CSV)")
    add(g, "--store")
    add(g, "--no-store")
    add(g, "--shard", help="measure only this share of the repetitions; auto: by Slurm, auto/N: Kubernetes")
    g.add_argument("--shard-folder", metavar="DIR", help="with --shard: the folder that all shards share")

    g = parser.add_argument_group("help")
    add(g, "--help")
    add(g, "--version")
    return parser


def mix(text: str) -> tuple[RequestShape, ...]:
    """Parse the value of --mix: ``512:128,4096:256*0.5`` (tokens of PROMPT:ANSWER, optionally *WEIGHT)."""
    shapes = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*([1-9][0-9]{0,8}):([1-9][0-9]{0,8})(?:\*([0-9]*\.?[0-9]+))?\s*", part)
        if match is None or not float(match[3] or 1):
            raise ArgumentTypeError("PROMPT:ANSWER[*WEIGHT],... is needed, in tokens")
        shapes.append(RequestShape(int(match[1]), int(match[2]), float(match[3] or 1)))
    return tuple(shapes)


def rates(text: str) -> tuple[float, ...]:
    """Parse the value of --request-rate, a comma-separated list of requests per second; ``inf``: all at once."""
    one = number(1e-6, 1e6)
    return tuple(math.inf if part.strip() == "inf" else one(part.strip()) for part in text.split(","))


def bounds(text: str) -> dict[str, float]:
    """Parse the value of --goodput, such as ``ttft:500,tpot:50``, into a dict of milliseconds by name."""
    limits: dict[str, float] = {}
    for part in text.split(","):
        name, colon, value = part.strip().partition(":")
        if name not in BOUNDS or not colon or name in limits:
            raise ArgumentTypeError(f"NAME:MILLISECONDS,... is needed, of {', '.join(BOUNDS)}")
        limits[name] = number(1e-3, 1e9)(value)
    return limits


def read_plan(args: Namespace) -> Plan:
    """Return the plan that the options ask for; reads the prompt file, but does not yet look for model files.

    Also sets ``args.output``, the format on stdout, to "md" for single tests if no other output was asked for.
    """
    kinds = {BenchTarget(spec).kind for spec in args.target} or {"local"}
    _refuse(
        (args.prompt_file and args.chat_prompt_file, "choose one of --prompt-file and --chat-prompt-file"),
        ("local" in kinds and len(kinds) > 1,
         "--target local cannot be mixed with others: compare two runs with ds4-report"),
        ("command" in kinds and (args.depths or args.requests is not None),
         "a binary takes --ctx-start, --ctx-max and steps: no --depths, tests or load"),
    )  # fmt: skip
    walk = _walk(args, "local" not in kinds)
    targets = _local_targets(args) if "local" in kinds else _remote_targets(args)
    _check_outputs(args, bool(walk.get("probes")))
    file = args.prompt_file if args.prompt_file is not None else args.chat_prompt_file
    return Plan(
        targets=targets, reps=args.reps, budget=args.budget, warmup=not args.no_warmup, warm_weights=args.warm_weights,
        prompt=None if file is None else read_text(file, "prompt"), chat=args.chat_prompt_file is not None,
        system=args.system, api=args.api, **walk,
    )  # fmt: skip


def _refuse(*rules: tuple[Any, str]) -> None:
    """Raise UsageError with the message of the first of the ``rules`` (condition, message) whose condition is true."""
    for broken, message in rules:
        if broken:
            raise UsageError(message)


def _walk(args: Namespace, remote: bool) -> dict[str, Any]:
    """Return the fields of ``Plan`` that say what to measure: depths, probes or load.

    ``remote`` is true if the targets are endpoints or binaries.
    """
    load, probes = _load(args, remote), _probes(args)
    _refuse(
        (remote and probes, "tests are for the local engine: -p and -d"),
        (probes and args.depths, "choose one of --depths and tests"),
        (not probes and len(args.gen_tokens or ()) > 1, "a list for -n needs tests: -p or -d"),
        (not probes and not args.depths and args.ctx_start > args.ctx_max,
         f"--ctx-start {args.ctx_start} is beyond --ctx-max {args.ctx_max}"),
    )  # fmt: skip
    if load is not None:
        return {"load": load}
    if probes:
        tokens = max(probe.decode for probe in probes)
        needed = max(probe.needed for probe in probes) + tokens
        fields: dict[str, Any] = {"probes": tuple(probes)}
    else:
        steps = args.ctx_start, args.ctx_max, args.step_incr, args.step_mul
        depths = tuple(sorted(set(args.depths or sweep_depths(*steps))))
        tokens = (args.gen_tokens or [128])[0]
        needed = depths[-1] + tokens
        fields = {"depths": depths, "steps": None if args.depths else steps}
    rule = f"--ctx-alloc must be greater than --ctx-max + --gen-tokens ({needed}), not {args.ctx_alloc}"
    _refuse((args.ctx_alloc is not None and args.ctx_alloc <= needed, rule))
    return {**fields, "gen_tokens": tokens, "ctx": args.ctx_alloc}


def _probes(args: Namespace) -> list[Probe]:
    """Return the single tests that the options ask for, in llama-bench's order; [] if none."""
    if args.n_prompt is None and args.n_depth is None:
        return []
    probes = []
    for depth in args.n_depth or [0]:
        probes += [Probe(count, 0, depth) for count in args.n_prompt or () if count]
        probes += [Probe(0, count, depth) for count in args.gen_tokens or () if count]
    _refuse(
        (not probes, "no test is left: -p or -n must be above 0"),
        (len({probe.name for probe in probes}) < len(probes), "the same test is named twice"),
    )
    return probes


def _load(args: Namespace, remote: bool) -> Load | None:
    only = {"--request-rate": args.request_rate, "--mix": args.mix, "--goodput": args.goodput}
    alone = next((flag for flag, value in only.items() if value is not None), "")
    if args.requests is None:
        _refuse((alone, f"{alone} needs --requests N: how many are sent"))
        return None
    _refuse(
        (not remote, "--requests is for endpoints: --target http(s)://HOST/v1"),
        (args.gen_tokens or args.depths, "--requests takes --mix PROMPT:ANSWER,..., no depths and no -n"),
        (args.request_rate and args.concurrency, "choose one of --request-rate and --concurrency"),
    )
    streams = () if args.request_rate else tuple(args.concurrency or (1,))
    return Load(args.requests, args.request_rate or (), streams, args.mix or Load.mix, args.goodput or {}, args.seed)


def _remote_targets(args: Namespace) -> tuple[BenchTarget, ...]:
    levels = [1] if args.requests is not None else args.concurrency or [1]
    only = "model", "backend", "numerics", "threads", "warm_weights"
    local = next((name.replace("_", "-") for name in only if getattr(args, name)), "")
    _refuse(
        (local, f"--{local} is for the local engine, not for an endpoint"),
        (len(set(levels)) < len(levels), "--concurrency names a number of streams twice"),
    )
    options = {"model": args.model_name, "dialect": args.dialect, "timeout": args.timeout}
    targets = []
    for index, spec in enumerate(args.target):
        prefix = f"target {chr(ord('A') + index)}" if len(args.target) > 1 else ""
        if BenchTarget(spec).kind == "command":
            targets.append(BenchTarget(spec, prefix))
            continue
        for streams in levels:
            level = f"{streams} stream{'s' if streams > 1 else ''}" if len(levels) > 1 else ""
            targets.append(BenchTarget(spec, ", ".join(filter(None, (prefix, level))), streams, options))
    return tuple(targets)


def _local_targets(args: Namespace) -> tuple[BenchTarget, ...]:
    """Return one target per --target and combination of values of list options, such as ``--threads 1,2``.

    Their names consist of the options that differ. Models are given by name; ``choose_models`` finds their files.
    """
    models = None if args.model is None else [args.model] if os.path.exists(args.model) else args.model.split(",")
    given = {"model": models, "backend": args.backend, "numerics": args.numerics, "threads": args.threads}
    given = {name: values for name, values in given.items() if values}
    _refuse((args.concurrency not in (None, [1]), "--concurrency is for endpoints: the local engine has one stream"))
    specs, targets = args.target or ["local"], []
    for spec, values in itertools.product(specs, itertools.product(*given.values())):
        options = dict(zip(given, values, strict=True))
        differs = [f"{name}={value}" for name, value in options.items() if len(given[name]) > 1]
        if len(specs) > 1:
            differs.insert(0, spec.removeprefix("local").lstrip(":?") or "local")
        targets.append(_local_target(spec, ",".join(differs), options))
    return tuple(targets)


def _local_target(spec: str, name: str, options: dict[str, Any]) -> BenchTarget:
    path, _, query = spec.partition("?")
    model = path.partition(":")[2] or options.pop("model", "")
    embedded = not model and not os.path.lexists(LOCAL_MODEL)
    flags = Namespace(**{**options, "threads": threads(PROG, options.get("threads"))})
    chosen = {"backend": DEFAULT_BACKEND, "numerics": DEFAULT_MODE, "threads": None}
    chosen |= engine_options(flags) | engine_options(queried(query), embedded)
    return BenchTarget(f"local:{model}" if model else "local", name, options=chosen)


def choose_models(plan: Plan) -> Plan:
    """Return the plan with the model names of local targets replaced by paths of existing files.

    Local targets without a model get the default one, which is announced on stderr.
    """
    paths: dict[str, Any] = {}

    def chosen(target: BenchTarget) -> BenchTarget:
        name = target.spec.partition(":")[2]
        if name not in paths:
            paths[name] = choose_model(PROG, name or None).path
        return replace(target, spec=f"local:{paths[name]}")

    return replace(plan, targets=tuple(chosen(t) if t.kind == "local" else t for t in plan.targets))


def _check_outputs(args: Namespace, tests: bool) -> None:
    from .plot import check_suffix

    _refuse(
        (args.plot and args.csv is None, "--plot needs --csv FILE, which it is drawn from"),
        (args.plot and tests, "--plot needs a sweep over depths, not tests"),
        (args.store is not None and args.no_store, "choose one of --store and --no-store"),
        (args.json and args.output is not None, "choose one of -o and --json"),
        ((args.shard is None) != (args.shard_folder is None), "--shard and --shard-folder go together"),
        (args.shard and (args.csv or args.plot), "ds4-bench merge writes --csv and draws it, not a shard"),
    )
    for path in args.plot:
        check_suffix(path)
    for path in (args.csv, *args.plot):
        if path is not None:
            check_output(path)
    if tests and args.csv is None and args.output is None and not args.json:
        args.output = "md"
