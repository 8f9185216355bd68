"""``ds4 imatrix``: measures on a text how important each weight is (an importance matrix), for ``ds4-quantize
--imatrix``.

ds4 imatrix prompts.txt -m model.gguf -o importance.gguf     llama.cpp's current format, with counts
ds4 imatrix prompts.txt -m model.gguf -o importance.dat      llama.cpp's older format
ds4 imatrix prompts.txt -m model.gguf --hot-list model.gguf.experts.json

Ctrl-C writes the result measured so far.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from ..console.common import Interrupt, Progress, check_output, read_text, say
from ..console.flags import add
from ..console.model import add_engine
from ..console.options import Parser, integer, parsed
from ..errors import UsageError

PROG = "ds4 imatrix"

EPILOG = """\
A prompt file is text; lines starting with ===== DS4_IMATRIX_PROMPT separate prompts. For experts
that no token was routed to, ds4-quantize uses the mean of the others and prints a note.

exit codes: 0 done; 1 failure; 2 usage; 130 Ctrl-C (the results so far are written)"""


def build_parser() -> Parser:
    """Return the parser with every flag of the command."""
    parser = Parser(
        PROG,
        usage="ds4 imatrix FILE [-o OUT] [--hot-list OUT] [-m MODEL] [options]",
        description="Compute an importance matrix from text.",
        epilog=EPILOG,
    )
    parser.add_argument("file", metavar="FILE", nargs="*", help="text file of prompts (- is stdin)")
    add(
        parser,
        "--output",
        "--imatrix-out",
        help="importance matrix to write: .gguf (with counts), any other name .dat format",
    )
    parser.add_argument(
        "--hot-list", metavar="FILE", help="write the experts by use; loaded automatically if named MODEL.experts.json"
    )
    add(parser, "--model", help="model file (default: ./ds4flash.gguf if it exists, else the small embedded model)")
    add(parser, "--ctx", default=2048, help="tokens per chunk (2048)")
    parser.add_argument("--max-prompts", metavar="N", type=integer(), help="read at most N prompts")
    parser.add_argument("--max-tokens", metavar="N", type=integer(), help="read at most N tokens")
    add_engine(parser)
    add(parser, "--help")
    return parser


def body(argv: Sequence[str]) -> int:
    """Evaluate the prompts, measure the importance of each matrix's input channels and write it to a file; return the
    exit code."""
    args = parsed(build_parser(), argv)
    if args is None:
        return 0
    if len(args.file) != 1:
        raise UsageError("name one file of prompts")
    outputs = [path for path in (args.output, args.hot_list) if path is not None]
    if not outputs:
        raise UsageError("give --output or --hot-list")
    for path in outputs:
        check_output(path)
    text = read_text(args.file[0], "prompts")
    from ..console.model import open_engine
    from ..importance import collect, prompts, unmet
    from ..residency.hotlist import write_hot_list
    from ..weights.quantize.imatrix import write_imatrix

    with open_engine(PROG, args) as engine:
        pieces = prompts(engine, text, args.ctx, args.max_prompts, args.max_tokens)
        total = sum(map(len, pieces))
        with Interrupt() as interrupt, Progress("tokens", "tok/s") as progress:
            importance = collect(engine, pieces, lambda done: progress(done, total), lambda: interrupt.requested)
            stopped = interrupt.requested
        if args.hot_list is not None and importance.chunks:
            used = write_hot_list(args.hot_list, engine.expert_counts())
            say(PROG, f"wrote {args.hot_list}: {used} experts, the most used first")
    importance.datasets = ["stdin" if args.file[0] == "-" else os.path.basename(args.file[0])]
    if stopped and not importance.chunks:
        raise KeyboardInterrupt
    if args.output is None:
        return 130 if stopped else 0
    write_imatrix(args.output, importance)
    say(PROG, f"wrote {args.output}: {len(importance.entries)} tensors, {importance.chunks} tokens")
    missing = list(unmet(importance))
    if missing:
        name, count, experts = max(missing, key=lambda row: row[1])
        say(PROG, f"{len(missing)} tensors have experts that were never used, up to {count} of {experts} ({name})")
    return 130 if stopped else 0
