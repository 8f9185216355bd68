"""``ds4 --inspect``: describes a model file from its header alone."""

from __future__ import annotations

from argparse import Namespace

from ..console.model import choose_model
from ..weights import open_source
from ..weights.source import architecture

PROG = "ds4"
DENSE = ("gemma3", "llama", "qwen2", "qwen3", "qwen3moe")
"""Architectures whose files are described as plain dense decoders."""


def inspect(args: Namespace) -> int:
    """Print a report on the model file named by --inspect or -m, without reading tensor data; return the exit code."""
    path = choose_model(PROG, args.inspect or args.model).path
    with open_source(path) as opened:
        if architecture(opened) in DENSE:
            from ..archs.dense.report import inspect_text as text_of_dense

            print(text_of_dense(opened))
            return 0
    from ..archs.deepseek4.report import inspect_text
    from ..archs.deepseek4.shape import check_flash

    if args.strict:
        with open_source(path) as opened:
            check_flash(opened)
    print(inspect_text(path))
    return 0
