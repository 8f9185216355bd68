"""``ds4-vectors model``: print the file of the diagnostic model, and write its prompts."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence

from ds4ref.console.flags import add
from ds4ref.console.options import parsed
from ds4ref.console.tool import finish, parser


def run(argv: Sequence[str]) -> int:
    """Run ``ds4-vectors model``; return the exit code."""
    flags = parser("ds4-vectors model", "Print the file of the diagnostic model, building it if necessary.",
                   "[--v41] [--write-prompts DIR]", "--write-prompts prompts")  # fmt: skip
    flags.add_argument("--v41", action="store_true", help="the one of DeepSeek V4.1, with profile v4.1")
    flags.add_argument("--write-prompts", metavar="DIR", help="also write the prompt set there, as NAME.ids.json")
    add(flags, "--json")
    args = parsed(flags, argv)
    if args is None:
        return 0
    from ds4ref.files import atomic_write
    from ds4ref.nano.diagnostic import PROMPTS, diagnostic_path
    from ds4ref.nano.diagnostic41 import diagnostic41_path

    path, written = diagnostic41_path() if args.v41 else diagnostic_path(), {}
    if args.write_prompts:
        os.makedirs(args.write_prompts, exist_ok=True)
        for name, make in PROMPTS.items():
            written[name] = os.path.join(args.write_prompts, f"{name}.ids.json")
            with atomic_write(written[name]) as out:
                out.write((json.dumps(make()) + "\n").encode())
    finish({"model": path, "prompts": written}, args.json, path)
    return 0
