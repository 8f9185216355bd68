"""What the harness adds to a decode step: less than 1 % of one on the embedded model.

Two loops of whole decode steps differ by more than that from one minute to the next. What the harness adds does not
depend on the step, so it is measured on a step that takes no time, and compared with a real one.
"""

import statistics
import time

import numpy as np

from ds4ref.engine import Engine
from speed_bench.prompt import prose_tokens
from speed_bench.sweep import decode

STEPS = 400


class Instant:
    """A session whose steps take no time."""

    pos, ctx, logits = 0, 1 << 30, np.zeros(8, np.float32)

    def argmax(self, exclude=None):
        return 3

    def eval(self, token):
        return self.logits


def bare(session, eos, steps) -> float:
    """The loop anybody would write; CPU seconds a step, so that what else runs here does not count."""
    start = time.thread_time()
    for _ in range(steps):
        session.eval(session.argmax(exclude=eos))
    return (time.thread_time() - start) / steps


def harness(session, eos, steps) -> float:
    start = time.thread_time()
    decode(session, session.pos, steps, eos)
    return (time.thread_time() - start) / steps


def test_the_harness_adds_less_than_a_hundredth_of_a_step(nano_path):
    added = statistics.median(harness(Instant(), 1, STEPS) - bare(Instant(), 1, STEPS) for _ in range(25))
    with Engine.open(nano_path, threads=1) as engine:
        session, eos = engine.session(1024), engine.tokenizer.eos
        session.sync(prose_tokens(engine.tokenizer, 512))
        steps = [bare(session, eos, 16) for _ in range(5)]
    assert 0 < added < 0.01 * min(steps), f"{1e6 * added:.2f} us of {1e6 * min(steps):.0f} us"
