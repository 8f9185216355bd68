"""``ds4-eval verify``: compute the right answers of a pack, and compare them with its keys."""

from __future__ import annotations

import time
from collections.abc import Sequence

from ds4ref.console.common import Progress, say
from ds4ref.console.flags import add
from ds4ref.console.options import parsed
from ds4ref.console.tool import finish, parser

from .. import library, packs
from ..plan import chosen
from . import Unverified, verify
from .security import NoCompiler

PROG = "ds4-eval verify"


def verify_pack(argv: Sequence[str]) -> int:
    """Run ``ds4-eval verify``; return 0 if all computed answers agree, 1 otherwise."""
    made = parser(
        PROG, "Compute the right answers of a pack; exit 0 if all agree.", "[PACK] [options]", "", "--only maths"
    )
    made.add_argument("pack", metavar="PACK", nargs="*", help=f"name or file ({packs.DEFAULT})")
    add(made, "--only", metavar="WORDS", help="questions with one of these words in id, source or domain")
    add(made, "--json")
    args = parsed(made, argv)
    if args is None:
        return 0
    pack = library.load(args.pack[0] if args.pack else packs.DEFAULT)
    asked = chosen(pack.questions, args.only)
    agreed, wrong, skipped = [], [], []
    with Progress("answers") as progress:
        for done, question in enumerate(asked):
            progress(done, len(asked))
            start = time.perf_counter()
            try:
                verify(question)
                agreed.append((question.id, time.perf_counter() - start))
            except LookupError as reason:
                skipped.append(str(reason))
            except NoCompiler as reason:
                skipped.append(f"{question.id}: {reason}")
            except Unverified as reason:
                wrong.append(str(reason))
                progress.clear()
                say(PROG, str(reason))
    text = f"{len(agreed)} answers agree, {len(wrong)} do not, {len(skipped)} have no verifier"
    found = {"agreed": [name for name, _ in agreed], "wrong": wrong, "skipped": skipped, "passed": not wrong}
    finish(found, args.json, text)
    return 1 if wrong else 0
