"""A turn on a scripted clock, and every figure that metrics, log and headers make of it."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest

from ds4ref.server import exchange, logs
from ds4ref.server.exchange import Exchange, client
from ds4ref.server.job import Job, Part
from ds4ref.server.logs import Lines
from ds4ref.server.metrics import COUNTERS, GAUGES, Metrics
from ds4ref.server.turn import Prefill, Queued, Turn
from ds4ref.targets.answer import CallDelta, Delta, Finish, Step, Token, Usage
from ds4ref.text.rendered import Rendered
from ds4ref.text.schemas import Schema

STEP = Step(Token(b"x"))


@pytest.fixture
def clock(monkeypatch):
    """``clock.now``: seconds, for the exchange and its log."""
    made = SimpleNamespace(now=0.0)
    for module in (exchange, logs):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: made.now))
    return made


@pytest.fixture
def watched(clock, caplog):
    """Makes turns that are watched as a server's are."""
    caplog.set_level(logging.INFO, "ds4-server")
    logging.getLogger("ds4-server").propagate = True
    return Watched(clock, caplog)


class Watched:
    def __init__(self, clock, caplog):
        self.clock, self.caplog = clock, caplog
        state = dict.fromkeys([*GAUGES, *COUNTERS], 0)
        self.metrics, self.lines = Metrics(lambda: state), Lines()

    def turn(self, at, ids=5, **turn):
        """A turn that arrives at ``at`` and is submitted a second later."""
        self.clock.now = at
        x = Exchange("chat", {"x-request-id": f"t{at:g}"}, "10.0.0.9", (self.metrics, self.lines))
        job = Job([Part(Turn("chat", **turn), Rendered(), [7] * ids)], lambda event: None, submitted=at + 1)
        x.take_on(job.turn, job)
        return x, job

    def note(self, at, x, *events):
        self.clock.now = at
        for event in events:
            x.note(event)

    def said(self):
        """The lines that were logged since the last call."""
        found = [record.getMessage() for record in self.caplog.records]
        self.caplog.clear()
        return found

    def figures(self):
        """(name, labels) -> value of all that turns are counted by, but for zeros, buckets and times of creation."""
        kept = [m for m in self.metrics.registry.collect() if m.name.startswith("ds4_") and m.name not in GAUGES]
        return {
            (s.name, *sorted(s.labels.values())): s.value
            for family in kept
            for s in family.samples
            if s.value and not s.name.endswith(("_bucket", "_created"))
        }


def test_a_turn_from_its_arrival_to_its_end(watched, clock):
    """Waits 3 s, prefills 6 s, decodes 21 s; first output after 14 s, all of it 33 s. A figure under another's name
    sends whoever tunes the server to the wrong place."""
    x, job = watched.turn(100, thinking="high", tools=(Schema("{}", "ls"),))
    assert (x.queued, x.prefilling, x.decoding, x.lasted, x.ttft) == (-1, 0, 0, 0, None)
    watched.note(102, x, Queued(2))
    assert (x.queued, x.prompt, x.cached, x.source) == (1, 5, 0, "")
    watched.note(103, x, Queued(2), Queued(1), Queued(0))
    assert watched.said() == ["chat t100 waits, 2 ahead", "chat t100 waits, 1 ahead"]
    job.began = 104.0
    watched.note(104, x, Prefill(10, 50, 10, "memory-text"))
    assert watched.said() == ["chat ctx=10..50:40 TOOLS THINKING prompt start"]
    watched.note(104.5, x, Prefill(20, 50, 10, "memory-text"))
    assert watched.said() == []  # at most once per second
    watched.note(106, x, Prefill(34, 50, 10, "memory-text"))
    assert watched.said() == [
        "chat ctx=10..50:40 TOOLS THINKING prefill chunk 34/50 (68.0%) chunk=12.00 t/s avg=12.00 t/s 2.000s"
    ]
    watched.note(108, x, Prefill(40, 50, 10, "memory-text"))
    assert watched.said() == [
        "chat ctx=10..50:40 TOOLS THINKING prefill chunk 40/50 (80.0%) chunk=3.00 t/s avg=7.50 t/s 4.000s"
    ]
    assert (x.queued, x.prefilling, x.decoding, x.prompt, x.cached) == (3, 4, 0, 50, 10)
    watched.note(110, x, Prefill(50, 50, 10, "memory-text"))
    assert watched.said() == []  # the next line says that it is done
    job.decoding = 110.0
    watched.note(113, x, Delta(steps=(STEP,)))  # a tag, or text held back: nobody sees it
    assert x.first is None and watched.said() == ["chat ctx=10..50:40 TOOLS THINKING prompt done 6.000s"]
    watched.note(114, x, Delta("Hi", steps=(STEP,)))
    watched.note(115, x, Delta(steps=(STEP,) * 47))
    assert watched.said() == []
    watched.note(118, x, Delta(steps=(STEP,)))
    assert watched.said() == ["chat ctx=50..100:50 gen=50 TOOLS THINKING decoding chunk=10.00 t/s avg=10.00 t/s 5.000s"]
    watched.note(128, x, Delta(steps=(STEP,) * 50, calls=(CallDelta(0, "ls"), CallDelta(0, "", "{}"))))
    assert watched.said() == [
        "chat ctx=50..150:100 gen=100 TOOLS THINKING decoding chunk=5.00 t/s avg=6.67 t/s 15.000s"
    ]
    assert x.timing == "queue;dur=3000.0, prefill;dur=6000.0, decode;dur=18000.0"
    job.ended = 131.0
    watched.note(130, x, Delta(finish=Finish.TOOL_CALLS, usage=Usage(50, 100, 10, 30), markup="<calls>"))
    assert watched.said() == ["tool calls ctx=10..50:40 n=1 raw_dsml=7 names=[ls]"]
    clock.now = 133.0
    x.end(200)
    clock.now = 999.0
    x.end(500, "later calls do nothing")
    assert watched.said() == [
        "chat ctx=10..50:40 gen=100 TOOLS THINKING finish=tool_calls 33.000s (queue 3.000 prefill 6.000 decode 21.000)"
    ]
    assert watched.figures() == {
        ("ds4_answers_total", "chat", "tool_calls"): 1, ("ds4_prompt_tokens_total", "chat"): 50,
        ("ds4_cached_tokens_total", "memory-text"): 10, ("ds4_completion_tokens_total", "chat"): 100,
        ("ds4_reasoning_tokens_total", "chat"): 30,
        ("ds4_queue_seconds_sum", "chat"): 3, ("ds4_queue_seconds_count", "chat"): 1,
        ("ds4_prefill_seconds_sum", "chat"): 6, ("ds4_prefill_seconds_count", "chat"): 1,
        ("ds4_decode_seconds_sum", "chat"): 21, ("ds4_decode_seconds_count", "chat"): 1,
        ("ds4_first_token_seconds_sum", "chat"): 14, ("ds4_first_token_seconds_count", "chat"): 1,
        ("ds4_request_seconds_sum", "chat"): 33, ("ds4_request_seconds_count", "chat"): 1,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("headers", "name"),
    [
        ({"session-id": "s", "user-agent": "curl"}, "session-id:s"),
        ({"x-session-affinity": "a", "x-claude-code-session-id": "c"}, "x-claude-code-session-id:c"),
        ({"thread-id": "t" * 200}, "thread-id:" + "t" * 128),
        ({"user-agent": "curl/8"}, "10.0.0.9 curl/8"),
        ({"session-id": ""}, "10.0.0.9 "),
    ],
)
def test_whose_request_it_is(headers, name):
    """Two conversations under one name wait for each other; one under two names jumps the queue."""
    assert client(headers, "10.0.0.9") == name
