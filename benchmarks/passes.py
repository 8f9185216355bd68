"""Passes of several rows on a slice of Flash: what more rows cost, conversations in one pass, drafts.

Weights are random, so the model is made to follow texts (``speed_bench.scenes``): drafts are right or wrong against
these. What a pass costs does not depend on that.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from ds4ref.drafts.given import Given
from ds4ref.drafts.lookup import Lookup
from ds4ref.drafts.speculation import Speculation
from ds4ref.engine import Engine
from ds4ref.session.session import Session
from ds4ref.speed_bench.scenes import Scene, scene

from .context import Context
from .depth import session_at
from .timing import Arm, interleave, ratios

ROWS = (2, 3, 4, 8)
DEPTH, SESSIONS = 1024, 4
ACCEPTANCE = 0.7


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


def drafts(context: Context) -> None:
    """Measure the rows "drafts *" of the CPU table: tokens/s with drafts over tokens/s without."""
    engine, rounds = context.engine, 3 if context.quick else 7
    tokens = 24 if context.quick else 96
    edit, chance, prose = (written(name, tokens) for name in ("edit", "random", "prose"))
    for depth in (2, 3):
        given = Given([*prose.prompt, *prose.answer], ACCEPTANCE, engine.shape.vocab)
        compare(context, f"drafts given {depth}", prose, Speculation([given], depth=depth), rounds)
    compare(context, "drafts edit", edit, Speculation([Lookup()]), rounds)
    compare(context, "drafts none", chance, Speculation([Lookup(), Given(chance.prompt * 2, 0.0, 512)]), rounds)


def written(name: str, tokens: int) -> Scene:
    """Return a scene of ``tokens`` tokens in the embedded model's vocabulary, which is part of the slice's."""
    from ds4ref.nano import embedded_path

    with Engine.open(embedded_path()) as engine:
        return scene(name, engine.tokenizer, tokens)


def compare(context: Context, row: str, text: Scene, speculation: Speculation, rounds: int) -> None:
    """Add a row: the time to follow ``text`` without drafts over the time with those of ``speculation``."""
    context.budget.need(20)
    arms = {name: following(context.engine, text, chosen) for name, chosen in (("off", None), ("on", speculation))}
    samples = interleave(arms, rounds)
    count, per_pass = speculation.counts.total(), speculation.counts.tokens_a_pass
    note = f"{len(text.answer)} tokens, {count.accepted} of {count.drafted} drafts right, {per_pass:.2f} tokens a pass"
    context.add(row, ratios(samples["off"], samples["on"]), note)


def following(engine: Engine, text: Scene, speculation: Speculation | None) -> Arm:
    """Return an arm that measures the seconds to follow the text's answer after its prompt, whose rows are random."""
    session = session_at(engine, len(text.prompt), len(text.prompt) + len(text.answer) + 8)
    session._tokens, session.speculation = list(text.prompt), speculation
    start = session.snapshot()

    def arm() -> float:
        session.restore(start)
        started = time.perf_counter()
        for token in text.answer:
            session.append(token)
        return time.perf_counter() - started

    return arm


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
