"""What is kept of the timeline that is being evaluated, on the way: in memory, and on disk if there is one.

A session can be kept only where it stands. So a prompt that begins like no other is evaluated up to where the next
conversation may differ, kept, and then evaluated further, with a disk and without: so both give the same numbers, down
to the bit. Where a position is passed inside a call, or between two reports of progress, the next one possible takes
its place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from .. import generate
from ..generate import Timing

if TYPE_CHECKING:
    from ..session.session import Session
    from .timelines import Start, Timelines

Progress = Callable[[int, int], None]


def prefill(
    timelines: Timelines,
    session: Session,
    start: Start,
    timing: Timing,
    progress: Progress,
    cancel: Callable[[], bool],
) -> None:
    """``generate.prefill`` of a prompt, with what is kept of it: its beginning ("cold") if it went on from nothing, and
    continued checkpoints on the way. ``timing`` is that of all of it, without the writing."""
    total, tokenizer, cold = len(start.tokens), timelines.tokenizer, 0
    if start.source == "none":
        cold = timelines.policy.cold(start.tokens, tokenizer.user, tokenizer.assistant)
    before = timelines.frontiers.cold_begins(cold) if cold else 0

    def told(done: int, _: int) -> None:
        progress(done, total)
        if done > start.cached:
            _continued(timelines, session)

    for length in [cold, total] if 0 < cold < total else [total]:
        part = Timing()
        try:
            generate.prefill(session, start.tokens[:length], part, progress=told, cancel=cancel)
        finally:
            timing.prefill_s += part.prefill_s
            timing.prefill_tokens += part.prefill_tokens
            timing.reused_tokens = start.cached
        if length == cold:
            _cold(timelines, session, before)
            if length < total:
                timelines.keep(session, ())


def _cold(timelines: Timelines, session: Session, before: int) -> None:
    if timelines.disk is not None and timelines.disk.save(session, (), "cold"):
        timelines.frontiers.saved(session.pos)
    else:
        timelines.frontiers.cold_failed(session.pos, before)


def decoded(timelines: Timelines, session: Session, in_block: bool) -> None:
    """A token was generated; ``in_block``: inside a block of calls, where no checkpoint is made."""
    if not in_block:
        _continued(timelines, session)


def _continued(timelines: Timelines, session: Session) -> None:
    if timelines.disk is not None and timelines.frontiers.due(session.pos):
        if timelines.disk.save(session, (), "continued"):
            timelines.frontiers.saved(session.pos)
