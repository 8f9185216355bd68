"""Repetitions, and two arms in turn.

A repetition is a whole walk on a fresh session, or all of the tests that were asked for. With two arms both walk
together: at every depth one after the other, A B, then B A, and so on, with the order swapped from repetition to
repetition, so that whatever the machine does slowly happens to both alike (ABBA).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from .probes import Probe, run_probes
from .sweep import Row, sweep

if TYPE_CHECKING:
    from ds4ref.engine import Engine


@dataclass
class Arm:
    """One thing that is measured. ``threads`` is set before each of its turns if several arms share a backend."""

    name: str
    engine: Engine
    threads: int | None = None

    def take_turn(self) -> None:
        """Arms may share an engine and differ in threads."""
        if self.threads is not None:
            self.engine.threads = self.threads


def rounds(
    arms: Sequence[Arm],
    tokens: Sequence[int],
    depths: Sequence[int],
    gen_tokens: int,
    eos: int,
    *,
    ctx: int,
    reps: int = 1,
    delay: float = 0.0,
    probes: Sequence[Probe] = (),
    progress: Callable[[int, int], None] | None = None,
    cancel: Callable[[], bool] = lambda: False,
) -> Iterator[tuple[int, Row]]:
    """(arm, row) as soon as it is measured: of ``probes`` if there are any, else of a walk through ``depths``.

    ``delay`` seconds of rest before every repetition but the first.

    ``progress`` gets tokens (probes) of all walks together. Errors as ``sweep``.
    """
    last = len(probes) or (depths[-1] if depths else 0)
    total, finished = reps * len(arms) * last, 0
    for rep in range(reps):
        if rep and delay:
            rest(delay, cancel)
        walks = []
        for arm in arms:
            shown = None if progress is None else _Share(progress, finished, total)
            finished += last
            if probes:
                make = partial(arm.engine.session, ctx)
                walks.append(run_probes(make, tokens, probes, eos, rep=rep, progress=shown, cancel=cancel))
                continue
            session = arm.engine.session(ctx)
            walks.append(sweep(session, tokens, depths, gen_tokens, eos, rep=rep, progress=shown, cancel=cancel))
        for i in range(len(probes or depths)):
            for index in turn_order(len(arms), rep + i):
                if len(arms) > 1:
                    arms[index].take_turn()
                yield index, next(walks[index])


def turn_order(arms: int, turn: int) -> list[int]:
    """Forwards in even turns, backwards in odd ones."""
    order = list(range(arms))
    return order if turn % 2 == 0 else order[::-1]


class _Share:
    """Progress of one walk as part of all."""

    def __init__(self, progress: Callable[[int, int], None], before: int, total: int):
        self.progress, self.before, self.total = progress, before, total

    def __call__(self, done: int, of: int) -> None:
        self.progress(self.before + done, self.total)


def rest(seconds: float, cancel: Callable[[], bool]) -> None:
    """Sleep, unless the user wants to stop."""
    end = time.monotonic() + seconds
    while not cancel() and (left := end - time.monotonic()) > 0:
        time.sleep(min(left, 0.1))
