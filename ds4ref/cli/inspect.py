"""``ds4 --inspect``: what is in a model file, from its header alone."""

from __future__ import annotations

from argparse import Namespace

from ..archs.deepseek4.report import inspect_text
from ..archs.deepseek4.shape import check_flash
from ..weights import open_source
from .model import choose_model

PROG = "ds4"


def inspect(args: Namespace) -> int:
    """Print the report of the file named after --inspect or -m; no tensor byte is read."""
    path = choose_model(PROG, args.inspect or args.model).path
    if args.strict:
        with open_source(path) as opened:
            check_flash(opened)
    print(inspect_text(path))
    return 0
