"""``ds4-vectors convert``: write vectors of any kind as ds4's official.vec."""

from __future__ import annotations

import os
from collections.abc import Sequence

from ds4ref.console.common import atomic_output
from ds4ref.console.flags import add
from ds4ref.console.options import parsed
from ds4ref.console.tool import finish, parser
from ds4ref.errors import UsageError

from . import official
from .cases import read_cases


def run(argv: Sequence[str]) -> int:
    """Run ``ds4-vectors convert FROM TO.vec``; return the exit code."""
    flags = parser("ds4-vectors convert", "Write vectors as ds4's official.vec, with their prompts beside it.",
                   "FROM TO.vec [options]", "vectors/mine official.vec")  # fmt: skip
    flags.add_argument("paths", nargs="*", metavar="FROM TO.vec", help="vectors in any format; output")
    flags.add_argument("--prompt-dir", metavar="DIR", help="folder for the prompts, as named in TO.vec (next to it)")
    add(flags, "--json")
    args = parsed(flags, argv)
    if args is None:
        return 0
    if len(args.paths) != 2 or not args.paths[1].endswith(".vec"):
        raise UsageError("give FROM and TO.vec")
    source, goal = args.paths
    if os.path.lexists(goal):
        raise UsageError(f"{goal} already exists; existing vectors are never overwritten")
    items = read_cases(source)
    folder = args.prompt_dir or os.path.join(os.path.dirname(goal), "prompts")
    cases = [official.from_case(i.case, i.ctx, os.path.join(folder, f"{i.case.id}.txt")) for i in items]
    data = official.write_vec(cases)
    os.makedirs(folder, exist_ok=True)
    for item, case in zip(items, cases, strict=True):
        with atomic_output(case.prompt_path) as out:
            out.write(item.prompt.encode("utf-8", "surrogateescape"))
    with atomic_output(goal) as out:
        out.write(data)
    finish({"from": source, "to": goal, "cases": len(items)}, args.json, f"{len(items)} cases written to {goal}")
    return 0
