"""Prefill and decode with snapshots and checkpoints taken along the way.

A session can be saved only at its current position. So a prompt without a cached prefix is evaluated up to the position
where the next conversation may differ, saved, and then evaluated further. This split is the same with and without a
disk, so that both give bit-identical logits. If a checkpoint is due inside a tool call or between two progress reports,
it is taken at the next possible position.
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
    """Prefill a prompt and save checkpoints: "cold" ones of its beginning if nothing was cached, and "continued" ones.

    ``timing`` measures the whole prefill, excluding the writing of checkpoints.
    """
    total, tokenizer, cold = len(start.tokens), timelines.tokenizer, 0
    if start.source == "none":
        cold = timelines.policy.cold(start.tokens, tokenizer.user, tokenizer.assistant)
    before = timelines.frontiers.cold_begins(cold) if cold else 0

    def report(done: int, _: int) -> None:
        progress(done, total)
        if done > start.cached:
            _continued(timelines, session)

    for length in [cold, total] if 0 < cold < total else [total]:
        part = Timing()
        try:
            generate.prefill(session, start.tokens[:length], part, progress=report, cancel=cancel)
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
    """Save a checkpoint after a generated token if one is due; never ``in_block``, that is inside a tool-call block."""
    if not in_block:
        _continued(timelines, session)


def _continued(timelines: Timelines, session: Session) -> None:
    if timelines.disk is not None and timelines.frontiers.due(session.pos):
        if timelines.disk.save(session, (), "continued"):
            timelines.frontiers.saved(session.pos)
