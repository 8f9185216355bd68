"""The command ``ds4-vectors identify``: tell from a server's behaviour what it serves."""

from __future__ import annotations

import sys
from argparse import ArgumentTypeError
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from ds4ref.console.common import CYAN, is_tty, say, tint
from ds4ref.console.flags import add
from ds4ref.console.model import engine_options
from ds4ref.console.options import number, parsed
from ds4ref.console.tool import add_target, finish, parser, rows, target_of
from ds4ref.errors import DataError, UsageError
from ds4ref.targets.local import LocalTarget

from ..served import NEEDED, PROPERTIES

PROG = "ds4-vectors identify"
SAYS = """Tell from a server's behaviour which chat template, reasoning defaults, BOS, escaping, tokenizer, context
limit and checkpoint it serves, and whether it drafts tokens: from prompt token counts of chosen conversations, log
probabilities, answers, pieces of streams, counters and the numbers in refusals. Its own statements are shown apart and
never used. Every property has a probability; "cannot tell" where it is below 0.95. -m names the model that the server
may have loaded; more can be told then.

Exit code 0: done. 1: a measurement contradicts --expect, or no request was answered. 2: usage."""


def expectation(text: str) -> tuple[str, str]:
    """Parse NAME=VALUE, a property and its value; ArgumentTypeError for an unknown property."""
    name, equals, value = text.partition("=")
    if name not in PROPERTIES or not equals or not value:
        raise ArgumentTypeError(f"expected NAME=VALUE, not {text!r}: the names are {', '.join(PROPERTIES)}")
    return name, value


def run(argv: Sequence[str]) -> int:
    """Run ``ds4-vectors identify TARGET``; return the exit code."""
    flags = parser(PROG, SAYS, "TARGET [-m MODEL.gguf] [options]",
                   "http://127.0.0.1:8080/v1", "https://api.deepseek.com/v1 --model-name deepseek-chat",
                   "http://127.0.0.1:8080/v1 -m model.gguf --expect profile=0731")  # fmt: skip
    flags.add_argument("spec", nargs="*", metavar="TARGET",
                       help="local[:MODEL.gguf], http(s)://HOST/v1 or command:BINARY ARGS")  # fmt: skip
    add(flags, "--model", help="model the server may have loaded: its tokenizer and log probabilities are compared")
    flags.add_argument("--expect", metavar="NAME=VALUE", type=expectation, action="append", default=[],
                       help="exit 1 if the property has another value, such as profile=0731; repeatable")  # fmt: skip
    add(flags, "--quick", help="leave out the context limit")
    add(flags, "--budget", type=number(1, 1000000.0), default=600.0, help="time limit in seconds (600)")
    add(flags, "--json")
    add_target(flags, default=None)
    flags.set_defaults(attempts=3)
    args = parsed(flags, argv)
    if args is None:
        return 0
    specs = [*args.spec, *([args.target] if args.target else [])]
    if len(specs) != 1:
        raise UsageError(f"expected one target, not {len(specs)}: http://HOST:PORT/v1")
    from ds4ref.engine import Engine
    from ds4ref.nano import embedded_path

    from ..limits import Limit, OutOfTime
    from .stage import Identification, candidates

    with ExitStack() as stack:
        target = stack.enter_context(target_of(args, specs[0]))
        own = target.engine.path if isinstance(target, LocalTarget) else embedded_path()
        options = engine_options(args)
        options.pop("numerics", None)  # of the target
        engine = stack.enter_context(Engine.open(args.model or own, **options))
        limit, live = stack.enter_context(Limit(args.budget)), is_tty(sys.stderr)
        shown = "\r{}\x1b[K" if live else "{}\n"

        def progress(line: str) -> None:
            sys.stderr.write(shown.format(tint(f"identify: {line}", CYAN, sys.stderr)))
            sys.stderr.flush()

        work = Identification(target, limit, engine, candidates(engine), progress, args.quick)
        try:
            work.run()
        except OutOfTime:
            say(PROG, "interrupted" if limit.signum else "out of time: the rest was not measured")
        if live:
            sys.stderr.write("\r\x1b[K")
    served = work.served
    if not work.asker.answered:
        raise DataError("no request was answered: nothing could be identified")
    wrong = [f"{name} is {served.value(name)}, not {value}" for name, value in args.expect
             if served.value(name) not in (None, value)]  # fmt: skip
    result = {
        "target": target.name, "requests": work.asker.requests,
        "properties": {name: each.to_json() for name, each in served.properties.items()},
        "claims": work.claims, "contradictions": work.contradictions, "unexpected": wrong,
    }  # fmt: skip
    finish(result, args.json, _table(result))
    return 128 + limit.signum if limit.signum else 1 if wrong else 0


def _table(result: dict[str, Any]) -> str:
    """Return the result as text: a table of the properties, the evidence, claims and contradictions."""
    body, evidence = [], dict[str, list[str]]()
    for name, each in result["properties"].items():
        odds = ", ".join(f"{value} {p:.2f}" for value, p in list(each["odds"].items())[:3])
        body.append([name, each["value"] or "cannot tell", f"{each['probability']:.3f}", odds])
        evidence.setdefault(each["evidence"], []).append(name)
    claims = ", ".join(f"{name} {value}" for name, value in result["claims"].items())
    return "\n".join([
        rows(["property", "result", "probability", "hypotheses"], body), "",
        *(f"{', '.join(names)}: {text}" for text, names in evidence.items()),
        f"cannot tell: no hypothesis has the needed probability of {NEEDED}", f"{result['requests']} requests",
        *([f"claims (not used): {claims}"] if claims else []),
        *(f"contradiction: {line}" for line in result["contradictions"]),
        *(f"unexpected: {line}" for line in result["unexpected"]),
    ])  # fmt: skip
