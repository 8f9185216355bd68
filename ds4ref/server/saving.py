"""Prefill and decode with snapshots and checkpoints taken along the way.

A session can be saved only at its current position. So a prompt without a cached prefix is evaluated up to the position
where the next conversation may differ, saved, and then evaluated further. This split is the same with and without a
disk, so that both give bit-identical logits. If a checkpoint is due inside a tool call or between two progress reports,
it is taken at the next possible position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
) -> Iterator[None]:
    """Prefill a prompt and save checkpoints: "cold" ones of its beginning if nothing was cached, and "continued" ones.

    Yields after every chunk but the last: others may compute there. ``timing`` measures the whole prefill, excluding
    the writing of checkpoints.
    """
    total, cold = len(start.tokens), cold_length(timelines, start)
    frontiers = timelines.frontiers(session)
    before = frontiers.cold_begins(cold) if cold else 0
    timing.reused_tokens = start.cached

    def report(done: int, _: int) -> None:
        progress(done, total)
        if done > start.cached:
            _continued(timelines, session)

    for length in [cold, total] if 0 < cold < total else [total]:
        yield from generate.prefill_steps(session, start.tokens[:length], timing, progress=report, cancel=cancel)
        if length == cold:
            _cold(timelines, session, before)
            if length < total:
                timelines.keep(session)
                yield


def cold_length(timelines: Timelines, start: Start) -> int:
    """Return the number of tokens after which the beginning of a new prompt is saved, 0 for never."""
    tokenizer = timelines.tokenizer
    if start.source != "none":
        return 0
    return timelines.policy.cold(start.tokens, tokenizer.user, tokenizer.assistant)


def _cold(timelines: Timelines, session: Session, before: int) -> None:
    if timelines.disk is not None and timelines.disk.save(session, (), "cold"):
        timelines.frontiers(session).saved(session.pos)
    else:
        timelines.frontiers(session).cold_failed(session.pos, before)


def decoded(timelines: Timelines, session: Session, in_block: bool) -> None:
    """Save a checkpoint after a generated token if one is due; never ``in_block``, that is inside a tool-call block."""
    if not in_block:
        _continued(timelines, session)


def _continued(timelines: Timelines, session: Session) -> None:
    if timelines.disk is not None and timelines.frontiers(session).due(session.pos):
        if timelines.disk.save(session, (), "continued"):
            timelines.frontiers(session).saved(session.pos)
