"""``ds4-vectors``: capture, check, compare and diagnose log probability vectors.

    ds4-vectors diagnose -m MODEL.gguf --token-ids IDS.json --logits FILE.npz
    ds4-vectors diff A.npz B.npz
    ds4-vectors capture vectors/new --target "command:./ds4 -m MODEL.gguf" --prompts prompts.jsonl
    ds4-vectors check vectors/new --target local:MODEL.gguf

Each command prints a table for people, or with --json one line of JSON and nothing else; progress goes to stderr.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

from ds4ref.console.common import run
from ds4ref.console.options import unknown_command
from ds4ref.version import __version__

PROG = "ds4-vectors"

COMMANDS = {
    "capture": "record greedy continuations with their top log probabilities from any engine",
    "check": "compare an engine with recorded vectors, step by step, teacher-forced",
    "merge": "join the shards of a capture, a check or a doctor",
    "convert": "write vectors as ds4's official.vec",
    "diff": "compare full logits: two files, or two engines on token ids",
    "diagnose": "identify the rounding mode or the bug behind another engine's logits",
    "trace": "record intermediate tensors, and find the first wrong op in another engine's",
    "model": "print the file of the diagnostic model, or write its prompts",
    "ppl": "perplexity at several depths, with standard errors",
    "damage": "quantization error by op, and whether quantization explains it",
    "drafter": "is my engine's DSpark drafter right? compare its acceptance",
    "doctor": "is my engine right? run all checks, write a report",
    "identify": "which template, defaults and checkpoint does a server have? from its behaviour",
}
MODULES = {"trace": "trace.command", "doctor": "doctor.command", "identify": "doctor.identify.command"}
"""Modules of the commands that are not in the module of their name; every command's module has a function ``run``."""


def usage() -> str:
    """Return the help text."""
    width = max(map(len, COMMANDS))
    lines = "\n".join(f"  {name:<{width}}  {says}" for name, says in COMMANDS.items())
    return (
        f"usage: {PROG} COMMAND [options]\n\n{lines}\n\n{PROG} COMMAND --help shows its options.\n"
        "Targets: local[:MODEL.gguf], http(s)://HOST:PORT/v1, command:./ds4 -m MODEL.gguf\n"
        "exit codes: 0 passed, 1 failed, 2 usage error, 130 Ctrl-C"
    )


def body(argv: Sequence[str]) -> int:
    """Run the command that ``argv`` names; return the exit code."""
    if not argv or argv[0] in ("-h", "--help"):
        sys.stdout.write(usage() + "\n")
        return 0 if argv else 2
    if argv[0] == "--version":
        print(f"{PROG} {__version__} (ds4ref)")
        return 0
    if argv[0] not in COMMANDS:
        raise unknown_command(argv[0], COMMANDS)
    module = import_module(f"ds4ref.test_vectors.{MODULES.get(argv[0], argv[0])}")
    return int(module.run(argv[1:]))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the console script; return the exit code."""
    return run(PROG, body, argv)


if __name__ == "__main__":
    sys.exit(main())
