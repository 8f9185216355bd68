"""What the harness adds to a decode step: nothing one could see."""

import statistics
import time

import pytest

from ds4ref.engine import Engine
from speed_bench.prompt import prose_tokens
from speed_bench.sweep import decode

STEPS = 96


def bare(session, eos) -> float:
    """The loop anybody would write; CPU seconds, so that what else runs here does not count."""
    start = time.thread_time()
    for _ in range(STEPS):
        session.eval(session.argmax(exclude=eos))
    return time.thread_time() - start


def harness(session, eos) -> float:
    start = time.thread_time()
    decode(session, session.pos, STEPS, eos)
    return time.thread_time() - start


@pytest.mark.slow
def test_decode_through_the_harness_costs_no_more_than_the_bare_loop(nano_path):
    """Within 1 % on the embedded model: both loops in turn from the same snapshot, one thread, median of ratios."""
    with Engine.open(nano_path, threads=1) as engine:
        session, eos = engine.session(1024), engine.tokenizer.eos
        session.sync(prose_tokens(engine.tokenizer, 512))
        at = session.snapshot()
        ratios = []
        for turn in range(21):
            times = {}
            for loop in (bare, harness) if turn % 2 else (harness, bare):
                session.restore(at)
                times[loop] = loop(session, eos)
            ratios.append(times[harness] / times[bare])
    assert abs(statistics.median(ratios[1:]) - 1) < 0.01
