"""``ds4``: generate, chat, and dump tokens, log probabilities or logits of a DeepSeek V4 model.

This module only reads the command line and picks the mode; each mode is a module of its own, imported when chosen,
so that ``ds4 --help`` starts at once.
    ds4 -p "Why is the sky blue?" --temp 0 -n 200
    ds4 -m model.gguf --dump-logits out.npz --token-ids ids.json --numerics exact
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterable, Sequence
from importlib import import_module

from ..backends import BACKENDS
from ..console.common import check_output, run
from ..console.flags import add
from ..console.model import add_engine
from ..console.options import MAX_TOP_K, SEED_MAX, Parser, integer, parsed
from ..errors import UsageError
from ..numerics import MODES, RANGES
from ..text.protocol import DEFAULT_SYSTEM

PROG = "ds4"

USAGE = """ds4 -p TEXT | --prompt-file FILE [options]     one answer on stdout
       ds4 [options]                                  chat (one line per turn if stdin is not a terminal)
       ds4 agent [options] [PROMPT]                   coding agent in a folder
       ds4 imatrix FILE -o OUT [options]              importance matrix, for ds4-quantize
       ds4 steer build | measure                      build and evaluate steering directions
       ds4 nano path | random | slice | checkpoint    small models, and slices of Flash's dimensions
       ds4 --inspect [FILE]                           describe a model file
       ds4 --dump-... | --perplexity-file FILE        token ids, logits, perplexity"""

EPILOG = """\
examples:
  ds4 -p "Why is the sky blue?" -n 200             one answer, thinking first
  ds4 --nothink --temp 0 --prompt-file q.txt       greedy, no thinking
  ds4 -m model.gguf                                chat; /help lists the commands
  ds4 --inspect model.gguf                         shape, tensors, bytes per token
  ds4 -p Hi --dump-logprobs out.json -n 8          greedy steps with the 20 best alternatives
  ds4 --token-ids ids.json --dump-logits out.npz   every logit of every position
  ds4 --perplexity-file text.txt -n 1000           score a text

stdout carries only the answer or result; notes and timing go to stderr.
Thinking is grey on a terminal. A prompt that starts with <\uff5cbegin\u2581of\u2581sentence\uff5c> is used as
an already rendered chat: special tokens are parsed, -sys and the think flags are ignored.
Ctrl-C stops the answer and reports the timing; a chat continues.

environment:
  DS4_THREADS=N      default for --threads
  DS4_LOCK_FILE=F    allow one ds4 at a time: while one has a model loaded, a second exits 2 and
                     names the process that holds F (unset: no lock)
  DS4_DEBUG=1        show the traceback behind an error
  NO_COLOR=1         no colours

exit codes: 0 done (also at the length limit), 1 failure, 2 usage or lock,
            130 Ctrl-C before the answer was complete"""

UNAVAILABLE = {
    **dict.fromkeys(
        ("--imatrix-dataset", "--imatrix-out", "--imatrix-max-prompts", "--imatrix-max-tokens"),
        "use the separate command: ds4 imatrix FILE -o OUT",
    ),
    **dict.fromkeys(
        ("--metal", "--metal-graph-test", "--metal-graph-full-test", "--metal-graph-prompt-test"),
        f"no Metal backend (available: {', '.join(BACKENDS)})",
    ),
    "--metal-graph-generate": "removed from ds4 as well",
    "--quality": f"choose the rounding mode with --numerics {'|'.join(MODES)}",
    "--head-test": "use --dump-logits",
    "--first-token-test": "use --dump-logprobs FILE -n 1",
    "--server": "use the separate command ds4-server",
}


def build_parser() -> Parser:
    """Return the parser with every flag of the command."""
    parser = Parser(
        PROG,
        usage=USAGE,
        description="Run a DeepSeek V4 model: a reference engine on the CPU.",
        epilog=EPILOG,
        unavailable=UNAVAILABLE,
    )
    g = parser.add_argument_group("model and engine")
    add(
        g,
        "--model",
        help="GGUF file (default: ./ds4flash.gguf if it exists, else the small embedded model; stderr says which)",
    )
    add(g, "--ctx", default=32768, help="context size in tokens (32768)")
    add_engine(parser, "steering", "cluster", "drafts", group=g)
    add(g, "--split")
    g.add_argument("--devices", action="store_true", help="list the devices that --backend cuda would use, then exit")

    g = parser.add_argument_group("prompt")
    add(g, "--prompt", "-p", help="user message")
    add(g, "--prompt-file", help="read the user message from a file, unchanged (- is stdin)")
    add(g, "--token-ids", help="prompt as a JSON list of token ids, without chat template")
    add(g, "--system", default=DEFAULT_SYSTEM, help=f'system prompt, "" for none ("{DEFAULT_SYSTEM}")')
    add(g, "--think", default="high")
    add(g, "--think-low")
    add(g, "--think-max", help="think without limit; needs --ctx >= 393216, else same as --think")
    add(g, "--nothink")

    g = parser.add_argument_group("sampling")
    add(g, "--tokens", type=integer(), default=50000, help="maximum tokens to generate, limited by the context (50000)")
    add(g, "--temp", default=1.0, help="temperature; 0 is greedy (1)")
    g.add_argument(
        "--top-k", metavar="N", type=integer(*RANGES["top_k"]), default=0, help="top-k sampling; 0 is off (0)"
    )
    add(g, "--top-p", default=1.0)
    add(g, "--min-p", default=0.05, help="drop tokens less likely than F times the best (0.05)")
    add(g, "--seed", type=integer(1, SEED_MAX), help="random seed (from the clock)")

    g = parser.add_argument_group("output other than text (files are written atomically)")
    g.add_argument("--inspect", metavar="FILE", nargs="?", const="", help="describe a model file, then exit")
    g.add_argument("--dump-tokens", action="store_true", help="print the prompt's token ids and pieces; special tokens "
                   "are parsed, no chat template is applied")  # fmt: skip
    g.add_argument("--dump-logprobs", metavar="FILE", help="write a greedy continuation with top logprobs, as JSON")
    g.add_argument("--logprobs-top-k", metavar="N", type=integer(), default=20, help="alternatives per token, at most "
                   f"{MAX_TOP_K} (20)")  # fmt: skip
    g.add_argument("--dump-logits", metavar="FILE", help="write .npz: ids (T,) int32 and logits (T, vocab) float32")
    g.add_argument("--perplexity-file", metavar="FILE", help="print the perplexity of a text after its first 32 "
                   "tokens; -n limits the tokens scored")  # fmt: skip
    g.add_argument(
        "--one-by-one", action="store_true", help="with the two above: decode token by token instead of prefill"
    )
    g.add_argument("--prefill-chunk", metavar="N", type=integer(), help="tokens per prefill step")
    add(g, "--json", help="one-shot, --inspect: one line of JSON on stdout instead of text")

    g = parser.add_argument_group("help")
    add(g, "--help")
    add(g, "--version")
    return parser


PROMPTS = "--prompt", "--prompt-file", "--token-ids"
RUNS = {
    "--dump-tokens": ("dump", "dump_tokens"),
    "--inspect": ("inspect", "inspect"),
    "--perplexity-file": ("dump", "perplexity"),
    "--dump-logits": ("dump", "dump_logits"),
    "--dump-logprobs": ("dump", "dump_logprobs"),
    "one-shot": ("oneshot", "oneshot"),
    "chat": ("chat", "chat"),
}
"""Module and function of each mode, imported when chosen. The first ones are selected by flags of that name."""


def _given(args: Namespace, flags: Iterable[str]) -> list[str]:
    """Return those of ``flags`` that are on the command line."""
    values = {flag: getattr(args, flag.lstrip("-").replace("-", "_"), None) for flag in flags}
    return [flag for flag, value in values.items() if value not in (None, False)]


def pick_mode(args: Namespace) -> str:
    """Return the name of the mode that the flags select; raise UsageError if they contradict each other. The mode's
    module is not imported yet."""
    sources, modes = _given(args, PROMPTS), _given(args, RUNS)
    if len(modes) > 1:
        raise UsageError(f"choose one of {' and '.join(modes)}")
    if len(sources) > 1:
        raise UsageError(f"choose one prompt source: {' or '.join(sources)}")
    mode = modes[0] if modes else ("one-shot" if sources else "chat")
    if mode in ("--inspect", "--perplexity-file") and sources:
        raise UsageError(f"{mode} and {sources[0]} cannot be combined")
    if mode in ("--dump-tokens", "--dump-logprobs", "--dump-logits") and not sources:
        raise UsageError(f"{mode} needs a prompt: -p, --prompt-file or --token-ids")
    if mode == "--dump-tokens" and args.token_ids is not None:
        raise UsageError("--dump-tokens needs text: -p or --prompt-file")
    if args.one_by_one and mode not in ("--dump-logits", "--perplexity-file"):
        raise UsageError("--one-by-one needs --dump-logits or --perplexity-file")
    if args.one_by_one and args.prefill_chunk:
        raise UsageError("--one-by-one and --prefill-chunk cannot be combined")
    if args.json and (mode not in ("one-shot", "--inspect") or args.devices):
        raise UsageError("--json needs a one-shot prompt or --inspect")
    return mode


def body(argv: Sequence[str]) -> int:
    """Run the selected mode and return the exit code."""
    args = parsed(build_parser(), argv)
    if args is None:
        return 0
    mode = pick_mode(args)
    if args.devices:
        from .devices import devices

        return devices()
    for path in (args.dump_logprobs, args.dump_logits):
        if path is not None:
            check_output(path)
    module, function = RUNS[mode]
    code: int = getattr(import_module(f".{module}", __package__), function)(args)
    return code


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command as a console script; return the exit code."""
    argv = list(sys.argv[1:] if argv is None else argv)
    if argv[:1] in (["agent"], ["imatrix"], ["nano"], ["steer"]):
        command = import_module(f".{argv[0]}", __package__)
        return run(command.PROG, command.body, argv[1:])
    return run(PROG, body, argv)


if __name__ == "__main__":
    sys.exit(main())
