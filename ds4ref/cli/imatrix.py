"""``ds4 imatrix``: how much every input of every matrix matters on a text, for ``ds4-quantize --imatrix``.

ds4 imatrix prompts.txt -m model.gguf -o importance.gguf     with counts, as llama.cpp's format has them
ds4 imatrix prompts.txt -m model.gguf -o importance.dat      the older format

Ctrl-C writes what was measured so far.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from ..backends import DEFAULT_BACKEND
from ..errors import UsageError
from ..numerics import DEFAULT_MODE, MODES
from .common import Interrupt, Progress, check_output, read_text, run, say
from .flags import add
from .options import Parser, integer

PROG = "ds4 imatrix"

EPILOG = """\
A prompt file is text; lines that start with ===== DS4_IMATRIX_PROMPT part it into prompts.
Experts that no token was sent to have no importance of their own: ds4-quantize gives them the
mean of the others, and says so.

exit codes: 0 done; 1 failure; 2 usage; 130 Ctrl-C (what was measured is written)"""


def build_parser() -> Parser:
    """Every flag."""
    made = Parser(
        PROG,
        usage="ds4 imatrix FILE -o OUT [-m MODEL] [options]",
        description="Collect the importance of weights from a text.",
        epilog=EPILOG,
        unavailable={},
    )
    made.add_argument("file", metavar="FILE", nargs="*", help="the prompts (- is stdin)")
    add(made, "--output", "--imatrix-out", help="where importance goes: .gguf keeps counts, anything else is .dat")
    add(made, "--model", help="model file (default: ./ds4flash.gguf if there, else the small embedded model)")
    add(made, "--ctx", default=2048, help="tokens read in one piece (2048)")
    made.add_argument("--max-prompts", metavar="N", type=integer(), help="read at most so many prompts")
    made.add_argument("--max-tokens", metavar="N", type=integer(), help="read at most so many tokens")
    add(made, "--backend", default=DEFAULT_BACKEND)
    add(made, "--gpu-memory")
    add(made, "--numerics", default=DEFAULT_MODE, help=f"what is rounded: {', '.join(MODES)} ({DEFAULT_MODE})")
    add(made, "--threads")
    add(made, "--help")
    return made


def body(argv: Sequence[str]) -> int:
    """Read the prompts, run them, write what was measured."""
    made = build_parser()
    args = made.parse(argv)
    if args.help:
        sys.stdout.write(made.format_help())
        return 0
    if len(args.file) != 1:
        raise UsageError("one file of prompts is needed")
    if args.output is None:
        raise UsageError("--output is needed")
    check_output(args.output)
    text = read_text(args.file[0], "prompts")
    from ..importance import collect, prompts, unmet
    from ..weights.quantize.imatrix import write_imatrix
    from .model import open_engine

    args.strict = args.warm_weights = False
    with open_engine(PROG, args) as engine:
        pieces = prompts(engine, text, args.ctx, args.max_prompts, args.max_tokens)
        total = sum(map(len, pieces))
        with Interrupt() as interrupt, Progress("tokens") as progress:
            found = collect(engine, pieces, lambda done: progress(done, total), lambda: interrupt.requested)
            stopped = interrupt.requested
    found.datasets = ["stdin" if args.file[0] == "-" else os.path.basename(args.file[0])]
    if stopped and not found.chunks:
        raise KeyboardInterrupt
    write_imatrix(args.output, found)
    say(PROG, f"wrote {args.output}: {len(found.entries)} tensors, {found.chunks} tokens")
    missing = list(unmet(found))
    if missing:
        name, count, experts = max(missing, key=lambda row: row[1])
        say(PROG, f"{len(missing)} tensors have experts that were never met, up to {count} of {experts} ({name})")
    return 130 if stopped else 0


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point."""
    return run(PROG, body, argv)
