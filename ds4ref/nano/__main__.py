"""Where the embedded model is, and real-shape slices of Flash on demand.

python -m ds4ref.nano path
python -m ds4ref.nano slice /tmp/slice.gguf --layers 4 --experts 8 --recipe q4
python -m ds4ref.nano checkpoint folder --layers 4 --experts 8
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from ..cli.common import Progress, check_output, run, say
from ..errors import UsageError

PROG = "python -m ds4ref.nano"


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; prints the path of the model file on stdout."""
    return run(PROG, _body, argv)


def _body(argv: Sequence[str]) -> int:
    args = _parser().parse_args(argv)
    if args.command == "path":
        from . import embedded_path

        print(embedded_path())
    elif args.command == "checkpoint":
        print(_checkpoint(args))
    else:
        print(_slice(args))
    return 0


def _checkpoint(args: argparse.Namespace) -> str:
    from ..weights import open_source
    from . import embedded_path
    from .cache import slice_path
    from .checkpoint import write_checkpoint

    if Path(args.out).exists() and (not Path(args.out).is_dir() or any(Path(args.out).iterdir())):
        raise UsageError(f"{args.out} is there already, and not an empty folder")
    if args.layers is None:
        path = embedded_path()
    else:
        with Progress("writing the slice, bytes") as progress:
            path = slice_path(args.layers, args.experts, args.vocab, "q4", progress)
    with open_source(path) as source:
        write_checkpoint(source, args.out)
    return args.out


def _slice(args: argparse.Namespace) -> str:
    from .cache import slice_path
    from .recipe import slice_shape, write_model

    with Progress("writing the slice, bytes") as progress:
        if args.out is None:
            return slice_path(args.layers, args.experts, args.vocab, args.recipe, progress)
        shape = slice_shape(args.layers, args.experts, args.vocab)
        check_output(args.out)
        write_model(args.out, shape, args.recipe, progress=progress)
    say(PROG, f"wrote {Path(args.out).stat().st_size / 1e9:.2f} GB")
    return args.out


class _Parser(argparse.ArgumentParser):
    def error(self, message: str):
        raise UsageError(message)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog=PROG, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=_Parser)
    commands.add_parser("path", help="print the file of the embedded model, building it first if need be")
    cut = commands.add_parser("slice", help="write Flash's real dimensions at reduced depth, with random weights")
    cut.add_argument("out", nargs="?", metavar="OUT", help="file to write (default: in the model cache, kept)")
    cut.add_argument("--layers", type=int, default=4, metavar="N", help="depth (default 4, which covers every kind)")
    cut.add_argument("--experts", type=int, default=256, metavar="N", help="routed experts a layer (default 256)")
    cut.add_argument("--vocab", type=int, default=4096, metavar="N", help="vocabulary (default 4096; Flash: 129280)")
    cut.add_argument("--recipe", default="q2", metavar="NAME", help="q2, q4 or mixed (default q2)")
    folder = commands.add_parser(
        "checkpoint", help="write a model as DeepSeek publishes it: safetensors in FP8 and FP4"
    )
    folder.add_argument("out", metavar="FOLDER", help="folder to make")
    folder.add_argument("--layers", type=int, metavar="N", help="depth of a slice (default: the embedded model)")
    folder.add_argument("--experts", type=int, default=8, metavar="N", help="routed experts a layer (default 8)")
    folder.add_argument("--vocab", type=int, default=4096, metavar="N", help="vocabulary (default 4096)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
