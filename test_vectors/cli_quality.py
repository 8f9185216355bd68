"""Commands that measure quality: ppl, nll, recall."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence

from ds4ref.console.common import EXIT_INTERRUPTED, Progress, atomic_output, check_output, read_text, say
from ds4ref.console.flags import add
from ds4ref.console.options import integer, number, parsed
from ds4ref.console.tool import add_target, finish, parser, report_notes, required, rows, target_of
from ds4ref.errors import DataError, UsageError
from ds4ref.targets import Prompt

from .cli_vectors import VectorCase, items
from .record import PROG, add_store, describe, keep, opened, text_digest

DEPTHS = (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)

ECHO_NOTE = (
    "\nunreliable: the log probabilities this server echoes differ from those it returns for the same "
    "prefixes (docs/reference/vectors.md)"
)


def ppl(argv: Sequence[str]) -> int:
    """Run ``ds4-vectors ppl``; return the exit code."""
    flags = parser("ds4-vectors ppl", "Perplexity of a text at several depths.", "[--text FILE] [options]",
                   "--target local:model.gguf --depths all",
                   "--text book.txt --depths 512,8192 --target http://127.0.0.1:8080/v1")  # fmt: skip
    add(flags, "--text", help="text to score (generated prose)")
    add(
        flags,
        "--depths",
        default="512,1024,2048,4096",
        help=("comma-separated depths in tokens, or all: 512 to 64k (512,1024,2048,4096)"),
    )
    flags.add_argument("--window", metavar="N", type=integer(8), default=256, help="tokens scored at each depth (256)")
    add(flags, "--json")
    add_store(flags)
    add_target(flags)
    args = parsed(flags, argv)
    if args is None:
        return 0
    depths = read_depths(args.depths)
    from .ppl import by_depth, score

    with opened(args) as store, target_of(args, args.target) as target, Progress("scored") as progress:
        room = min(depths[-1], args.ctx or depths[-1])
        text = _text(args.text, room)
        scored = score(target, text, room, progress)
        progress.clear()
        identity = target.identity()
        report_notes("ds4-vectors", target)
        scores = by_depth(scored.nll, depths, args.window)
        reached = len(scored.nll) + 1
        missing = [depth for depth in depths if depth > reached]
        why = (
            "stopped" if scored.stopped else f"--ctx is {room}" if reached == room else f"the text has {reached} tokens"
        )
        if missing:
            say(PROG, f"{why}: depths not reached: {', '.join(map(str, missing))}")
        if not scores and not scored.stopped:
            raise UsageError(f"{why}, fewer than the smallest depth {depths[0]}")
        store_rows = [{"id": f"depth {d.depth}", "verdict": f"ppl {d.ppl:.4f}", "passed": True, "tokens": d.tokens,
                       "nll": d.nll * d.tokens} for d in scores]  # fmt: skip
        if scores:
            keep(store, ["ppl", *argv], describe(target, store), store_rows, prompt_sha256=text_digest([text]),
                 label=args.label or "ppl", status="stopped" if scored.stopped else "complete")  # fmt: skip
    table = [(str(d.depth), str(d.tokens), f"{d.nll:.4f}", f"{d.stderr:.4f}", f"{d.ppl:.4f}") for d in scores]
    note = ECHO_NOTE if scored.echo_agrees is False else ""
    finish({"target": identity, "depths": [d.to_json() for d in scores], "tokens": reached, "not_reached": missing,
            "stopped": scored.stopped, "echo_agrees": scored.echo_agrees},
           args.json, rows(("depth", "tokens", "nll", "+-", "ppl"), table) + note)  # fmt: skip
    return EXIT_INTERRUPTED if scored.stopped else 0


def read_depths(text: str) -> list[int]:
    """Parse "all" or comma-separated token counts into ascending distinct numbers; UsageError if malformed."""
    if text == "all":
        return [*DEPTHS]
    try:
        depths = sorted({int(part) for part in text.split(",")})
    except ValueError:
        raise UsageError(f"--depths is a comma-separated list of token counts, not {text[:40]!r}") from None
    if depths[0] < 40 or depths[-1] > 1 << 20:
        raise UsageError("depths must be 40 to 1048576 tokens")
    return depths


def _text(path: str | None, depth: int) -> str:
    if path is not None:
        return read_text(path, "text")
    from ds4ref.nano.prose import prose

    return prose(depth * 6)


def nll(argv: Sequence[str]) -> int:
    """Run ``ds4-vectors nll VECTORS``; return the exit code."""
    flags = parser("ds4-vectors nll", "Compare the NLL of recorded continuations under two engines, paired.",
                   "VECTORS --target A --other B [options]",
                   "vectors/official --target local:a.gguf --other local:b.gguf --fail-above 0.01")  # fmt: skip
    flags.add_argument("path", nargs="*", metavar="VECTORS", help="a directory of vectors, official.vec, JSON captures")
    flags.add_argument("--other", metavar="SPEC", help="second engine, B")
    add(
        flags,
        "--fail-above",
        metavar="NATS",
        type=number(-100, 100),
        help="exit 1 if B is worse than A by more than this, with 95 %% certainty",
    )
    add(flags, "--json")
    add_store(flags)
    add_target(flags)
    args = parsed(flags, argv)
    if args is None:
        return 0
    if len(args.path) != 1:
        raise UsageError("name the vectors with the continuations to score")
    required(args, "other")
    from ds4ref.runs.stats import LEAST

    from .ppl import paired

    cases = items(args.path[0])
    if args.fail_above is not None and len(cases) < LEAST:
        raise UsageError(f"--fail-above needs at least {LEAST} cases: {args.path[0]} has {len(cases)}")
    for item in cases:
        if not all(step.token.raw for step in item.case.repetitions[0].steps):
            raise DataError(f"case {item.case.id} has a token whose bytes are missing from its source")
    sides: list[list[tuple[float, int]]] = []
    for name, spec in (("A", args.target), ("B", args.other)):
        side: list[tuple[float, int]] = []
        sides.append(side)
        if not _scored(args, argv, name, spec, cases, side):
            break
    a, b = sides[0], sides[1] if len(sides) > 1 else []
    scored = min(len(a), len(b))
    stopped = scored < len(cases)
    if stopped:
        say(PROG, f"stopped: {len(a)} cases of A, {len(b)} of B, of {len(cases)}")
    if not scored:
        return EXIT_INTERRUPTED
    result = paired(a[:scored], b[:scored])
    worse = args.fail_above is not None and result.interval.low > args.fail_above
    i = result.interval
    lines = [("cases", str(result.cases)), ("tokens", str(result.tokens)), ("avg nll A", f"{result.a:.6f}"),
             ("avg nll B", f"{result.b:.6f}"), ("B - A", f"{result.delta:+.6f}"),
             ("95 % interval", f"{i.low:+.6f} {i.high:+.6f}" if i.known else f"none: {i.method}"),
             ("B better, worse, tied", " ".join(map(str, result.wins))),
             ("sign test p", f"{result.sign_p:.3g}")]  # fmt: skip
    finish({"a": args.target, "b": args.other, **result.to_json(), "stopped": stopped, "passed": not worse}, args.json,
           rows(("measure", "value"), lines))  # fmt: skip
    return EXIT_INTERRUPTED if stopped else 1 if worse else 0


def _scored(
    args: Namespace,
    argv: Sequence[str],
    name: str,
    spec: str,
    cases: Sequence[VectorCase],
    side: list[tuple[float, int]],
) -> bool:
    """Append (nats, tokens) of every case to ``side`` and record them in the store, also those before a failure.

    Return False if Ctrl-C interrupted the scoring.
    """
    from .ppl import continuation_nll

    texts = text_digest(text for item in cases for text in (item.case.id, item.system, item.prompt))
    with opened(args) as store, target_of(args, spec) as target, Progress(f"scoring {spec}") as progress:
        if store is not None:
            describe(target, store)  # hash a large file now, not after Ctrl-C
        status = "failed"
        try:
            for item in cases:
                progress(len(side), len(cases))
                prompt = Prompt.chat(item.prompt, item.system)
                side.append(continuation_nll(target, prompt, [s.token.raw for s in item.case.repetitions[0].steps]))
            status = "complete"
        except KeyboardInterrupt:
            status = "stopped"
        finally:
            progress.clear()
            report_notes("ds4-vectors", target)
            store_rows = [{"id": item.case.id, "verdict": "scored", "passed": True, "tokens": tokens, "nll": nats}
                          for item, (nats, tokens) in zip(cases, side, strict=False)]  # fmt: skip
            if store_rows:
                keep(store, ["nll", *argv], describe(target, store), store_rows, prompt_sha256=texts,
                     label=f"{args.label or 'nll'}, {name}", status=status)  # fmt: skip
    return status == "complete"


def recall(argv: Sequence[str]) -> int:
    """Run ``ds4-vectors recall``; return the exit code."""
    flags = parser("ds4-vectors recall", "Ask for facts hidden in a long story; score by depth.", "[options]",
                   "--target http://127.0.0.1:8000/v1 --fail-below 0.9",
                   "--scenes 1000 --facts 64 --seed 3 --target local:model.gguf -c 200000",
                   "--write-story story.txt", "--answer answer.txt")  # fmt: skip
    flags.add_argument(
        "--scenes", metavar="N", type=integer(1, 20000), default=190, help="scenes in the story, 600 bytes each (190)"
    )
    flags.add_argument("--facts", metavar="N", type=integer(1, 200), default=16, help="facts to hide (16)")
    add(flags, "--seed", type=integer(0), default=0, help="random seed of the story (0)")
    add(
        flags,
        "--fail-below",
        "--min-score",
        type=number(0, 1),
        help="exit 1 if the share of right answers is below this",
    )
    add(flags, "--tokens", "--max-tokens", default=350, help="maximum tokens of the answer (350)")
    flags.add_argument("--answer", metavar="FILE", help="grade this answer instead of asking an engine")
    flags.add_argument("--write-story", metavar="FILE", help="write the story and exit")
    add(flags, "--json")
    add_target(flags)
    args = parsed(flags, argv)
    if args is None:
        return 0
    from .recall import ask, grade, make

    story = make(args.seed, args.scenes, args.facts)
    if args.write_story:
        check_output(args.write_story)
        with atomic_output(args.write_story) as out:
            out.write(story.text.encode())
        finish({"story": args.write_story, "bytes": len(story.text.encode())}, args.json, "")
        return 0
    if args.answer:
        result = grade(story, read_text(args.answer, "answer"))
    else:
        with target_of(args, args.target) as target:
            result = ask(target, story, args.tokens, args.ctx)
            report_notes("ds4-vectors", target)
    passed = None if args.fail_below is None else result.score >= args.fail_below
    table = [(f"{i}/{len(result.by_depth)}", f"{right}/{n}") for i, (n, right) in enumerate(result.by_depth)]
    table.append(("all", f"{result.right}/{result.facts}"))
    verdict = {
        None: "no pass mark: --fail-below not given",
        True: "passed",
        False: f"not passed: below {args.fail_below}",
    }[passed]
    finish({"seed": args.seed, "scenes": args.scenes, **result.to_json(), "passed": passed}, args.json,
           rows(("depth", "right"), table) + f"\n{verdict}")  # fmt: skip
    return 1 if passed is False else 0
