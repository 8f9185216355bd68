"""``ds4-bench drafts``: does speculative decoding pay, and on which texts?

Two targets, without drafts and with, answer the same prompts of several scenes in turn; rates count tokens that reached
the client, never drafted ones. Greedy answers of both must be equal: where they are not, either batches round
differently or drafts are accepted wrongly (``ds4-vectors check --teacher-forced`` tells which).
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from ds4ref.console.common import Progress, say
from ds4ref.console.flags import add
from ds4ref.console.options import integer, integers, parsed
from ds4ref.console.tool import add_target, finish, parser, rows, target_of
from ds4ref.errors import TargetError, UsageError
from ds4ref.runs.stats import centre_interval, judge, per_cent, unknown
from ds4ref.runs.words import speed
from ds4ref.targets import Ability, Completion, Finish, Prompt, Request, Target

from .endpoint import StreamedAnswer
from .scenes import SCENES, Scene

PROG = "ds4-bench drafts"
MARGIN = 2.0
"""Differences of speed up to so many per cent count as the same."""
FEW = 8
"""Tokens below which an answer is too short for a rate."""


@dataclass
class Cell:
    """Results of one scene, depth and number of streams.

    rates   tokens per second of each round, of both targets: decode if one stream answers, else of all streams together
    equal   answers compared and equal, answers compared
    events  tokens per streamed event of both targets, which are tokens per pass if a server streams passes
    """

    scene: str
    depth: int
    streams: int
    rates: list[tuple[float, float]] = field(default_factory=list)
    equal: list[int] = field(default_factory=lambda: [0, 0])
    events: tuple[list[float], list[float]] = field(default_factory=lambda: ([], []))

    def to_json(self) -> dict[str, Any]:
        """Return the cell for the JSON output, with the ratio B / A and its interval."""
        change = self.change()
        known = change.known
        return {
            "scene": self.scene, "depth": self.depth, "streams": self.streams,
            "tokens_per_s": [[a, b] for a, b in self.rates], "ratio": 1 + change.estimate / 100,
            "low": 1 + change.low / 100 if known else None, "high": 1 + change.high / 100 if known else None,
            "verdict": judge(change, MARGIN), "equal_answers": self.equal,
            "tokens_per_event": [_mean(part) for part in self.events],
        }  # fmt: skip

    def change(self) -> Any:
        """Return the change of speed from A to B in per cent, with its interval over the rounds."""
        logs = [math.log(b / a) for a, b in self.rates if a > 0 and b > 0]
        return per_cent(centre_interval(logs) if logs else unknown(math.nan, 0, "no round was measured"))

    def sentence(self) -> str:
        """Return the result in words: "edit at 2048: with drafts is 1.31 x ..."."""
        place = self.scene + (f" at {self.depth}" if self.depth else "")
        place += f", {self.streams} streams" if self.streams > 1 else ""
        change = self.change()
        return speed(place, change, judge(change, MARGIN), MARGIN)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def measure(targets: Sequence[Target], scene: Scene, cell: Cell, tokens: int, chat: bool, seed: int) -> None:
    """Measure one round of a cell: both targets answer the same prompts, B first in every second round."""
    prompts = [f"({secrets.token_hex(4)}) {scene.prompt(cell.depth, tokens, seed + i)}" for i in range(cell.streams)]
    order = (0, 1) if len(cell.rates) % 2 == 0 else (1, 0)
    rates, answers = [0.0, 0.0], [[], []]  # type: ignore[var-annotated]
    for which in order:
        begin = time.perf_counter()
        with ThreadPoolExecutor(cell.streams) as pool:
            done = list(pool.map(lambda text, which=which: _ask(targets[which], text, scene, tokens, chat), prompts))
        seconds = time.perf_counter() - begin
        each = [StreamedAnswer(0.0, one, one.usage.prompt or 0, tokens) for one in done]
        if min(one.tokens for one in each) < FEW:
            raise TargetError(f"{targets[which].name} answered {scene.name} with fewer than {FEW} tokens")
        single = each[0].decode_tps
        rates[which] = single if cell.streams == 1 and single else sum(one.tokens for one in each) / seconds
        cell.events[which].extend(one.tokens / max(1, len(one.completion.arrivals)) for one in each)
        answers[which] = [one.completion.reasoning + one.completion.text for one in each]
    cell.rates.append((rates[0], rates[1]))
    if not scene.temperature:
        cell.equal[0] += sum(a == b for a, b in zip(*answers, strict=True))
        cell.equal[1] += len(prompts)


def _ask(target: Target, text: str, scene: Scene, tokens: int, chat: bool) -> Completion:
    prompt = Prompt.chat(text) if chat else Prompt.plain(text)
    done = target.complete(Request(prompt, tokens, temperature=scene.temperature, exact=True))
    if done.finish == Finish.ERROR or not done.arrivals:
        raise TargetError(f"{target.name}: {done.error or 'streamed no text'}")
    return done


def run(argv: Sequence[str]) -> int:
    """Run ``ds4-bench drafts``; return the exit code."""
    flags = parser(PROG, "Compare decode without drafts (first target) and with (second), by kind of text.",
                   "A B [options]",
                   "'local?draft=off' 'local?draft=auto'",
                   "http://one:8000/v1 http://two:8000/v1 --at 0,8192 --at-once 1,4")  # fmt: skip
    flags.add_argument("specs", nargs="*", metavar="TARGET", help="two: without drafts, with drafts; or --target twice")
    flags.add_argument("--scenes", metavar="A,B", default=",".join(SCENES), help="prose, edit, json, random (all)")
    flags.add_argument(
        "--at", metavar="LIST", type=integers(0), default=[0], help="prompt lengths in tokens (0: short)"
    )
    flags.add_argument(
        "--at-once", metavar="LIST", dest="streams", type=integers(1, 64), default=[1], help="answers at once (1)"
    )
    flags.add_argument("--rounds", metavar="N", type=integer(1, 100), default=5, help="rounds, A and B in turn (5)")
    flags.add_argument("--answer", metavar="N", type=integer(FEW), default=128, help="tokens per answer (128)")
    flags.add_argument("--as-text", action="store_true", help="send text, not chats")
    add(flags, "--json")
    add_target(flags, default=None, action="append")
    args = parsed(flags, argv)
    if args is None:
        return 0
    specs = [*args.specs, *(args.target or ())]
    if len(specs) != 2:
        raise UsageError(f"give two targets, without drafts and with drafts, not {len(specs)}")
    names = [name.strip() for name in args.scenes.split(",")]
    if unknown_ones := [name for name in names if name not in SCENES]:
        raise UsageError(f"unknown scene {unknown_ones[0]!r}: choose from {', '.join(SCENES)}")
    cells = [Cell(name, depth, streams) for name in names for depth in args.at for streams in args.streams]
    with ExitStack() as stack, Progress("measured") as progress:
        targets = [stack.enter_context(target_of(args, spec)) for spec in specs]
        chat = not args.as_text
        for target in targets:
            target.require(Ability.CHAT if chat else Ability.TEXT, Ability.STREAM, needed_for=PROG)
        stopped = _rounds(targets, cells, args, chat, progress)
        facts = [target.identity() for target in targets]
    measured = [cell for cell in cells if cell.rates]
    table = [(cell.scene, str(cell.depth), str(cell.streams), *(f"{_middle(cell, at):.1f}" for at in (0, 1)),
              f"{cell.equal[0]} of {cell.equal[1]}" if cell.equal[1] else "-") for cell in measured]  # fmt: skip
    differ = sum(cell.equal[1] - cell.equal[0] for cell in measured)
    lines = [*(cell.sentence() for cell in measured), "",
             rows(("scene", "depth", "streams", "A, t/s", "B, t/s", "equal answers"), table)]  # fmt: skip
    if differ:
        lines += ["", f"{differ} greedy answers differ: drafts must not change them. Batches that round differently do "
                      "so too; ds4-vectors check --teacher-forced --committed-by URL tells which"]  # fmt: skip
    finish({"targets": facts, "cells": [cell.to_json() for cell in measured], "stopped": stopped}, args.json,
           "\n".join(lines))  # fmt: skip
    return 130 if stopped else 0


def _rounds(
    targets: Sequence[Target], cells: Sequence[Cell], args: Any, chat: bool, progress: Callable[[int, int], None]
) -> bool:
    """Measure all cells round by round; return whether Ctrl-C ended it. An unmeasured warm-up comes first."""
    total = args.rounds * len(cells)
    try:
        measure(targets, SCENES["prose"], Cell("prose", 0, max(args.streams)), args.answer, chat, 0)
        for number in range(args.rounds):
            for at, cell in enumerate(cells):
                measure(targets, SCENES[cell.scene], cell, args.answer, chat, 100 * number + 1)
                progress(number * len(cells) + at + 1, total)
    except KeyboardInterrupt:
        say(PROG, "stopped: rounds so far are reported")
        return True
    return False


def _middle(cell: Cell, which: int) -> float:
    values = sorted(rates[which] for rates in cell.rates)
    return values[len(values) // 2]
