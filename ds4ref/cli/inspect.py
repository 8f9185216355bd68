"""``ds4 --inspect``: describes a model file from its header alone."""

from __future__ import annotations

from argparse import Namespace
from importlib import import_module

from ..archs import arch_of
from ..archs.report import account_lines, refused
from ..console.model import choose_model
from ..errors import ModelFileError
from ..weights import open_source
from ..weights.accounting import named
from ..weights.source import DEEPSEEK, architecture

PROG = "ds4"


def inspect(args: Namespace) -> int:
    """Print a report on the model file named by --inspect or -m, without reading tensor data; return the exit code.

    Of a file with keys or tensors that are refused, print what becomes of all of them, and raise ModelFileError.
    """
    path = choose_model(PROG, args.inspect or args.model).path
    with open_source(path, check=False) as opened:
        arch_of(opened)  # refuses an architecture that is not known here
        dense = architecture(opened) != DEEPSEEK
        report = import_module(f"ds4ref.archs.{'dense' if dense else 'deepseek4'}.report")
        accounts = report.accounts(opened)
        problems = refused(accounts)
        if problems:
            if not args.json:
                print("\n".join(account_lines(accounts)), flush=True)
            raise ModelFileError(path, named(problems))
        if dense:
            print((report.inspect_json if args.json else report.inspect_text)(opened))
            return 0
        if args.strict:
            from ..archs.deepseek4.shape import check_published

            check_published(opened)
    print((report.inspect_json if args.json else report.inspect_text)(path))
    return 0
