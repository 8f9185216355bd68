"""``ds4 steer``: builds steering directions from two sets of prompts, and measures their effect.

ds4 steer build --good-file terse.txt --bad-file long.txt -o terse.f32
ds4 steer measure terse.f32 questions.txt --scales -1,0.5,1,2

The methods are in ``ds4ref.steering``; this module reads the command line, calls them and prints.
"""

from __future__ import annotations

import math
from argparse import ArgumentTypeError, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..console.common import Progress, check_output, read_text, say
from ..console.flags import add
from ..console.model import add_engine, open_engine
from ..console.options import Parser, chosen, number
from ..errors import DataError, UsageError
from ..text.protocol import DEFAULT_SYSTEM

if TYPE_CHECKING:
    from ..engine import Engine
    from ..steering.measure import Result, Trial

PROG = "ds4 steer"
COMMANDS = {
    "build": "Build steering directions from pairs of prompts; every second pair is held out for testing.",
    "measure": "Measure the effect and the cost of directions on prompts they were not built from.",
}
USAGE = {
    "": "ds4 steer build | measure [options]",
    "build": "ds4 steer build --good-file FILE --bad-file FILE -o DIRECTION.f32 [-m MODEL] [options]",
    "measure": "ds4 steer measure DIRECTION.f32 PROMPTS [-m MODEL] [options]",
}
EPILOG = """\
One prompt per line; blank lines and lines starting with # are skipped. Positive scales remove what
distinguishes the good prompts from the bad ones, negative scales amplify it.

  ds4 steer build --good-file a.txt --bad-file b.txt -o a.f32   writes a.f32 and a.json
  ds4 steer measure a.f32 a.txt                                 tests the lines not used for building
  ds4 --dir-steering-file a.f32 --dir-steering-ffn 0.5 -p Hi    steered

exit codes: 0 done, even without an effect; 1 failure; 2 usage"""
SCALES = (-2.0, -1.0, -0.5, 0.5, 1.0, 2.0)
COMPONENT = "ffn_out"
LEAST_TEXT, TEXT = 96, 1024
"""Minimum number of tokens of the text on which the loss is measured, and maximum number of them that are used."""


def build_parser(command: str) -> Parser:
    """Return the parser of the subcommand ``command``, or for "" the parser that shows the overview."""
    description = COMMANDS.get(command, "Build steering directions from prompts, measure them on others.")
    parser = Parser(
        f"{PROG} {command}".strip(), usage=USAGE[command], description=description, epilog=EPILOG, unavailable={}
    )
    if not command:
        parser.add_argument("names", metavar="COMMAND", nargs="*", help="build or measure")
        add(parser, "--help")
        return parser
    if command == "build":
        _build_flags(parser)
    else:
        _measure_flags(parser)
    add(parser, "--model", help="model file (default: ./ds4flash.gguf if it exists, else the small embedded model)")
    add(parser, "--ctx", default=4096, help="context size in tokens, prompt plus answer (4096)")
    add(parser, "--system", default=DEFAULT_SYSTEM, help=f'system prompt, "" for none ("{DEFAULT_SYSTEM}")')
    add(parser, "--think", default="none", help="use prompts with thinking on (off)")
    add_engine(parser)
    add(parser, "--json")
    add(parser, "--help")
    return parser


def _build_flags(parser: Parser) -> None:
    parser.add_argument("--good-file", metavar="FILE", help="prompts with the behaviour to remove or amplify")
    parser.add_argument("--bad-file", metavar="FILE", help="control prompts, paired line by line with --good-file")
    add(parser, "--output", help="directions to write, with a .json description next to it")
    add(parser, "--component", help="activations to read: ffn_out or attn_out (ffn_out)")
    parser.add_argument("--pair-normalize", action="store_true", help="normalize each pair, so that all count equally")
    parser.add_argument(
        "--no-orthogonalize", action="store_true", help="do not project out the mean of the control prompts"
    )


def _measure_flags(parser: Parser) -> None:
    parser.add_argument("names", metavar="FILE", nargs="*", help="file of directions, file of prompts")
    parser.add_argument("--scales", metavar="LIST", type=_scales, default=list(SCALES),
                        help="scales, separated by commas (-2,-1,-0.5,0.5,1,2)")  # fmt: skip
    parser.add_argument("--like", metavar="TEXT", help="start of a wanted answer: measure its probability against that "
                        "of --unlike (the length of the greedy answer)")  # fmt: skip
    parser.add_argument("--unlike", metavar="TEXT", help="start of an unwanted answer")
    add(parser, "--tokens", default=160, help="maximum tokens per greedy answer (160)")
    add(parser, "--text", help="text for measuring the cost in perplexity (generated stories)")


def _scales(text: str) -> list[float]:
    from ..archs.steering import MOST

    scales = [number(-MOST, MOST)(part.strip()) for part in text.split(",")]
    if not any(scales):
        raise ArgumentTypeError("give at least one nonzero scale")
    return scales


def body(argv: Sequence[str]) -> int:
    """Run the subcommand named by the arguments; return the exit code."""
    choice = chosen(build_parser, COMMANDS, argv)
    if choice is None:
        return 0
    name, args = choice
    return build(args) if name == "build" else measure(args)


# ------------------------------------------------------------------------------------------------------- build


def build(args: Namespace) -> int:
    """Compute the directions, and write them and their description; return the exit code."""
    from ..console.tool import required

    required(args, "good-file", "bad-file", "output")
    check_output(args.output)
    if Path(args.output).suffix == ".json":
        raise UsageError("--output must not end in .json, which the description uses; use .f32")
    from ..archs.steering import write_directions
    from ..console.tool import finish
    from ..runs.provenance import own_command
    from ..steering import sidecar
    from ..steering.build import Options, last_tokens
    from ..steering.build import build as built_from
    from ..steering.prompts import prompts_in, rendered

    sidecar.check_free(args.output, args.good_file, args.bad_file)
    names = {"good_file": args.good_file, "bad_file": args.bad_file}
    texts = {field: (name, read_text(name, "prompts")) for field, name in names.items()}
    good, bad = (prompts_in(text, name) for name, text in texts.values())
    pairs = min(len(good), len(bad))
    if len(good) != len(bad):
        say(PROG, f"{len(good)} good and {len(bad)} bad prompts: using the first {pairs} of each")
    good, bad = good[:pairs], bad[:pairs]
    if len({*zip(good, bad, strict=True)}) < pairs:
        raise DataError("duplicate pairs of prompts: held-out pairs must differ from those built from")
    both = {*good[::2], *bad[::2]} & {*good[1::2], *bad[1::2]}
    if both:
        say(PROG, f"{len(both)} prompts are in both halves: held-out results are too optimistic")
    component = args.component or COMPONENT
    options = Options(args.pair_normalize, not args.no_orthogonalize)
    with open_engine(PROG, args) as engine:
        ids = rendered(engine, [*good, *bad], args.system, args.think, args.ctx)
        with Progress("prompts") as progress:
            values = last_tokens(engine, ids, component, lambda done: progress(done, len(ids)))
        built = built_from(values[:pairs], values[pairs:], options)
        used = [*good[::2], *bad[::2]]
        about = sidecar.describe(
            engine, built, options, component, args.think, args.system, texts, used, own_command()
        )  # fmt: skip
    write_directions(args.output, built.rows)
    sidecar.write(args.output, about)
    say(PROG, f"wrote {args.output} and {sidecar.beside(args.output)}")
    finish(about, args.json, _layers_table(built) + f"\n\n{built.verdict}")
    return 0


def _layers_table(built: Any) -> str:
    from ..console.tool import rows

    body = [
        (str(n), f"{layer.weight:.2f}", _share(layer.folds), _share(layer.held_out))
        for n, layer in enumerate(built.layers)
    ]
    return rows(("layer", "weight", f"in order, {built.pairs} pairs in folds", f"{built.held_out} held out"), body)


def _share(share: Any) -> str:
    return f"{share.estimate:.0%} ({share.low:.0%}..{share.high:.0%})"


# ----------------------------------------------------------------------------------------------------- measure


def measure(args: Namespace) -> int:
    """Print effect and cost of steering at every scale; return the exit code."""
    if len(args.names) != 2:
        raise UsageError("name a file of directions and a file of prompts")
    if bool(args.like) != bool(args.unlike):
        raise UsageError("--like and --unlike go together, and neither is empty")
    from ..archs.steering import read_directions
    from ..console.tool import finish
    from ..steering import sidecar
    from ..steering.measure import measure as measured

    with open_engine(PROG, args) as engine:
        path = args.names[0]
        rows = read_directions(path, engine.shape)
        if not rows.any():
            raise DataError(f"{path}: all directions are zero")
        about = sidecar.read(path, rows)
        trial = _trial(engine, args, about)
        with Progress("scales") as progress:
            result = measured(engine, rows, trial, args.scales, progress)
    metric = "logprob" if args.like else "words"
    whole = {"metric": metric, "component": trial.component, "directions": path, **result.to_json()}
    finish(whole, args.json, _text(result))
    return 0


def _trial(engine: Engine, args: Namespace, about: dict[str, Any]) -> Trial:
    """Return what to measure: prompts that were not used for building, a text for the loss, and the measure of the
    effect."""
    from ..nano.skills import held_out_text
    from ..steering import metrics
    from ..steering.measure import Trial
    from ..steering.prompts import prompts_in, rendered, unseen

    lines = prompts_in(read_text(args.names[1], "prompts"), args.names[1])
    prompts = unseen(lines, about.get("used", ()))
    if len(prompts) < len(lines):
        say(PROG, f"{len(lines) - len(prompts)} of {len(lines)} prompts were used for building: {len(prompts)} left")
    if not about.get("used"):
        say(PROG, "no .json next to the directions: prompts may be among those used to build them")
    encode = engine.tokenizer.encode
    room, function = args.tokens, metrics.words(args.tokens)
    if args.like:
        one, other = encode(args.like), encode(args.unlike)
        room, function = max(len(one), len(other)), metrics.logprob(one, other)
    ids = rendered(engine, prompts, args.system, args.think, args.ctx, room + 1)
    text = encode(held_out_text(2 * TEXT) if args.text is None else read_text(args.text, "text"))[:TEXT]
    if len(text) < LEAST_TEXT:
        raise DataError(f"{args.text}: {len(text)} tokens, at least {LEAST_TEXT} needed")
    return Trial(ids, text, function, about.get("component", COMPONENT))


def _text(result: Result) -> str:
    """Return the table of scales, and the verdict, as text."""
    from ..console.tool import rows

    body = [["0", "0", "0", "1.000"]]
    for p in result.points:
        times = math.exp(min(700.0, p.cost.estimate))
        body.append([f"{p.scale:g}", _between(p.effect), _between(p.cost), f"{times:.3f}"])
    body.sort(key=lambda row: float(row[0]))
    return rows(["scale", "effect, nats", "cost, nats/token", "perplexity x"], body) + f"\n\n{result.verdict}"


def _between(interval: Any) -> str:
    if not interval.known:
        return f"{interval.estimate:+.3g} ({interval.method})"
    return f"{interval.estimate:+.3g} ({interval.low:+.3g}..{interval.high:+.3g})"
