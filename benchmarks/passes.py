"""Passes of several rows on a slice of Flash: what more rows cost, conversations in one pass, drafts."""

from __future__ import annotations

import time
from collections.abc import Sequence

from ds4ref.engine import Engine
from ds4ref.session.session import Session

from .context import Context
from .depth import session_at
from .timing import Arm, interleave, ratios

ROWS = (2, 3, 4, 8)
DEPTH, SESSIONS = 1024, 4


def tokens_of(engine: Engine, start: int, count: int) -> list[int]:
    """Return ``count`` different token ids, others for each ``start``, so that passes choose other experts."""
    return [(start + 37 * n) % engine.shape.vocab for n in range(count)]


def pass_arm(engine: Engine, session: Session, rows: int) -> Arm:
    """Return an arm that measures the seconds of a pass of ``rows`` tokens from the session's position on."""
    decoder, cache = session._decoder, session._cache
    assert decoder is not None
    state = {"next": 5}

    def arm() -> float:
        tokens = tokens_of(engine, state["next"], rows)
        state["next"] += 101
        started = time.perf_counter()
        decoder.run(tokens)
        seconds = time.perf_counter() - started
        cache.rewind(session.pos)
        return seconds

    return arm


def measure(context: Context) -> None:
    """Measure the rows "pass N" and "together" of the CPU table."""
    engine = context.engine
    session = session_at(engine, DEPTH)
    arms = {str(rows): pass_arm(engine, session, rows) for rows in (1, *ROWS)}
    samples = interleave(arms, context.rounds)
    for rows in ROWS:
        context.add(f"pass {rows}", ratios(samples[str(rows)], samples["1"]), "other tokens, so other experts, in each")
    arms = conversations(engine, [session_at(engine, DEPTH + 17 * n) for n in range(SESSIONS)], 2)
    samples = interleave(arms, context.rounds)
    context.add("together", ratios(samples["in turn"], samples["together"]), "tokens/s in all")


def conversations(engine: Engine, sessions: Sequence[Session], steps: int) -> dict[str, Arm]:
    """Return arms that decode ``steps`` tokens of each session, in turn or in one pass."""
    together, state = engine.together(), {"next": 3}

    def arm(shared: bool) -> Arm:
        def run() -> float:
            started = time.perf_counter()
            for _ in range(steps):
                tokens = tokens_of(engine, state["next"], len(sessions))
                state["next"] += 101
                asked = list(zip(sessions, tokens, strict=True))
                if shared:
                    together.look_ahead(asked)
                for session, token in asked:
                    session.append(token)
            return time.perf_counter() - started

        return run

    return {"in turn": arm(False), "together": arm(True)}
