"""``ds4 --inspect``: describes a model file from its header alone."""

from __future__ import annotations

import json
from argparse import Namespace

from ..archs import arch_of
from ..archs.report import account_lines, accounts, describe, inspect_text, refused
from ..console.model import choose_model
from ..errors import ModelFileError
from ..weights import open_source
from ..weights.accounting import named

PROG = "ds4"


def inspect(args: Namespace) -> int:
    """Print a report on the model file named by --inspect or -m, without reading tensor data; return the exit code.

    If keys or tensors of the file are refused, print how each of them is treated, and raise ModelFileError.
    """
    path = choose_model(PROG, args.inspect or args.model).path
    with open_source(path, check=False) as opened:
        arch = arch_of(opened)  # raises an error for an unknown architecture
        known = accounts(opened)
        problems = refused(known)
        if problems:
            if not args.json:
                print("\n".join(account_lines(known)), flush=True)
            raise ModelFileError(path, named(problems))
        if args.strict:
            arch.read_shape(opened, strict=True)
    print(json.dumps(describe(path), ensure_ascii=False) if args.json else inspect_text(path))
    return 0
