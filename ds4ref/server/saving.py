"""Checkpoints of the timeline that is being evaluated: which positions get one, and when it is written.

A session can be saved only where it stands. So a prompt that is to be kept up to some position is evaluated up to
there, written, and then evaluated further; and where a position is passed inside a call, or between two reports of
progress, the next one possible takes its place.
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
    """``generate.prefill`` of a prompt, with its checkpoints: the cold one of a prompt that begins like no other, and
    continued ones on the way. ``timing`` is that of all of it, without the writing."""
    disk, total, tokenizer = timelines.disk, len(start.tokens), timelines.tokenizer
    cut = 0
    if disk is not None and start.source == "none":
        cut = disk.policy.cold(start.tokens, tokenizer.user, tokenizer.assistant)

    def told(done: int, _: int) -> None:
        progress(done, total)
        if done > start.cached:
            _continued(timelines, session)

    before = timelines.frontiers.cold_begins(cut) if cut else 0
    for length in [cut, total] if 0 < cut < total else [total]:
        part = Timing()
        try:
            generate.prefill(session, start.tokens[:length], part, progress=told, cancel=cancel)
        finally:
            timing.prefill_s += part.prefill_s
            timing.prefill_tokens += part.prefill_tokens
            if length == cut or not cut:
                timing.reused_tokens = part.reused_tokens
        if disk is not None and length == cut:
            if disk.save(session, (), "cold"):
                timelines.frontiers.saved(cut)
            else:
                timelines.frontiers.cold_failed(cut, before)


def decoded(timelines: Timelines, session: Session, in_block: bool) -> None:
    """A token was generated; ``in_block``: inside a block of calls, where no checkpoint is made."""
    if not in_block:
        _continued(timelines, session)


def _continued(timelines: Timelines, session: Session) -> None:
    if timelines.disk is not None and timelines.frontiers.due(session.pos):
        if timelines.disk.save(session, (), "continued"):
            timelines.frontiers.saved(session.pos)
