"""``ds4 nano``: prints the paths of the small models; writes models of random weights with a published model's
dimensions.

ds4 nano path --recipe q4
ds4 nano random
ds4 nano slice /tmp/slice.gguf --layers 4 --n-experts 8 --recipe q4 --shape pro
ds4 nano checkpoint folder --layers 4 --n-experts 8
"""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from ..console.common import Progress, check_output, say
from ..console.flags import add
from ..console.options import Parser, choice, integer, parsed, unknown_command
from ..errors import UsageError

PROG = "ds4 nano"
COMMANDS = ("path", "dspark", "random", "slice", "checkpoint")

USAGE = """ds4 nano path [--recipe R] [--mtp-block]  print the path of the embedded model, building it if necessary
       ds4 nano dspark                        print the path of its DSpark drafter
       ds4 nano random                        print the path of a small model with random weights
       ds4 nano slice [OUT] [options]         write a random model of published dimensions, fewer layers
       ds4 nano checkpoint FOLDER [options]   write a model in DeepSeek's release format: safetensors in FP8 and FP4"""

EPILOG = """\
The embedded model is {about}.
DS4_NANO_WEIGHTS=DIR uses the weights in another folder, such as a training checkpoint.

recipes for path:
{recipes}

Without OUT, a slice is written to the model cache. Without --layers, checkpoint writes the embedded model.

exit codes: 0 done; 1 failure; 2 usage"""


def build_parser() -> Parser:
    """Return the parser with every flag of the command."""
    from ..nano.trained import ABOUT, DEFAULT_RECIPE, RECIPES

    lines = "\n".join(f"  {name:<10}{says}" for name, says in RECIPES.items())
    parser = Parser(
        PROG,
        usage=USAGE,
        description="The embedded model, random models, and slices of Flash, Pro and V4.1 Flash.",
        epilog=EPILOG.format(about=ABOUT, recipes=lines),
    )
    parser.add_argument("names", metavar="COMMAND", nargs="*", help=f"{', '.join(COMMANDS)}; then OUT or FOLDER")
    add(
        parser,
        "--layers",
        metavar="N",
        type=integer(),
        help="layers in a slice (4, which covers every layer type; of flash41 always 5)",
    )
    parser.add_argument(
        "--n-experts",
        metavar="N",
        type=integer(),
        help="routed experts per layer (slice of Flash: 256; of Pro, and checkpoint: 8)",
    )
    shapes = "flash", "pro", "flash41"
    add(parser, "--shape", type=choice(*shapes), help=f"published model to slice: {', '.join(shapes)} (flash)")
    parser.add_argument(
        "--vocab",
        metavar="N",
        type=integer(),
        default=4096,
        help="vocabulary size (4096; published models have 129280)",
    )
    add(parser, "--recipe", help=f"path: {', '.join(RECIPES)} ({DEFAULT_RECIPE}); slice: q2, q4, mixed (q2)")
    add(parser, "--mtp-block", help="path: the file of its multi-token prediction (MTP) block")
    add(parser, "--help")
    return parser


def body(argv: Sequence[str]) -> int:
    """Run the subcommand named by the arguments; return the exit code."""
    args = parsed(build_parser(), argv)
    if args is None:
        return 0
    name, *rest = args.names or [""]
    if name not in COMMANDS:
        raise unknown_command(name, COMMANDS)
    if len(rest) > 1 or (rest and name in ("path", "dspark", "random")):
        raise UsageError(f"unexpected argument: {rest[-1]}")
    if args.mtp_block and name != "path":
        raise UsageError("--mtp-block works only with ds4 nano path")
    if name == "path":
        from ..nano.trained import DEFAULT_RECIPE, embedded_path, mtp_path

        print((mtp_path if args.mtp_block else embedded_path)(args.recipe or DEFAULT_RECIPE))
    elif name == "dspark":
        from ..nano import dspark_path

        print(dspark_path())
    elif name == "random":
        from ..nano import random_path

        print(random_path())
    elif name == "slice":
        print(_slice(args, rest[0] if rest else None))
    elif rest:
        print(_checkpoint(args, rest[0]))
    else:
        raise UsageError("checkpoint needs an output folder")
    return 0


def _checkpoint(args: Namespace, folder: str) -> str:
    """Write a model, by default the embedded one, as a folder of safetensors in the published form; return the
    folder."""
    from ..nano.cache import slice_path
    from ..nano.checkpoint import write_checkpoint
    from ..nano.trained import weights_folder
    from ..weights import open_source

    if Path(folder).exists() and (not Path(folder).is_dir() or any(Path(folder).iterdir())):
        raise UsageError(f"{folder} already exists and is not an empty folder")
    if args.layers is None:
        path = os.fspath(weights_folder())
    else:
        with Progress("writing the slice, bytes") as progress:
            path = slice_path(args.layers, args.n_experts or 8, args.vocab, "q4", progress, args.shape)
    with open_source(path) as source:
        write_checkpoint(source, folder)
    return folder


def _slice(args: Namespace, out: str | None) -> str:
    """Write a model with random weights and a published model's dimensions, but fewer layers and experts; return its
    path."""
    from ..nano.cache import slice_path
    from ..nano.recipe import slice_shape, write_model

    experts = args.n_experts or (256 if args.shape == "flash" else 8)
    shape, recipe = (args.layers or (5 if args.shape == "flash41" else 4), experts, args.vocab), args.recipe or "q2"
    with Progress("writing the slice, bytes") as progress:
        if out is None:
            return slice_path(*shape, recipe, progress, args.shape)
        check_output(out)
        write_model(out, slice_shape(*shape, args.shape), recipe, progress=progress)
    say(PROG, f"wrote {Path(out).stat().st_size / 1e9:.2f} GB")
    return out
