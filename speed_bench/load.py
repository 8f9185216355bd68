"""An endpoint under load, as in vLLM's serving benchmark: requests at a rate, or a fixed number of busy streams.

    rates      requests are sent at Poisson times, whether or not earlier ones were answered (an open loop), like
               independent users
    streams    each sends its next request when its answer is complete (a closed loop), like a number of agents

A seed determines the requests and their times, in units of the mean gap between two: the same for every level and
every engine. A request that fails is counted and affects no other. Times begin when a request is sent, as in
``endpoint``; time per output token (TPOT) is the time from first to last text over the tokens after the first.
"""

from __future__ import annotations

import math
import queue
import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ds4ref.errors import Cancelled, TargetError
from ds4ref.runs.columns import Sample
from ds4ref.targets import Cancellation

from .endpoint import Endpoint, StreamedAnswer
from .plan import Load, RequestShape
from .samples import with_warnings
from .waiting import Lag

NAP = 0.05
"""Maximum sleep in seconds between two checks for cancellation."""


@dataclass(frozen=True)
class Schedule:
    """The requests of one repetition.

    shapes    prompt and answer length of each request
    moments   time of sending each request, in units of the mean gap between two
    """

    shapes: tuple[RequestShape, ...]
    moments: tuple[float, ...]

    @classmethod
    def of(cls, load: Load, rep: int = 0) -> Schedule:
        """Draw the schedule of repetition ``rep`` from the load's seed; the first request is sent at time 0."""
        chance = random.Random(f"{load.seed}/{rep}")
        shapes = tuple(chance.choices(load.mix, [shape.weight for shape in load.mix], k=load.requests))
        moments, at = [], 0.0
        for _ in range(load.requests):
            moments.append(at)
            at += -math.log1p(-chance.random())
        return cls(shapes, tuple(moments))


def walk(
    endpoint: Endpoint,
    load: Load,
    *,
    rep: int = 0,
    done: int = 0,
    start: float = 0.0,
    progress: Callable[[int, int], None] | None = None,
    cancel: Cancellation | None = None,
) -> Iterator[Sample]:
    """Measure every level of the load (rates, then numbers of streams) but the first ``done``; yield a sample for each.

    Raises Cancelled when ``cancel`` is pressed, TargetError if every request of a level fails.
    """
    plan = Schedule.of(load, rep)

    def ask(shape: RequestShape, stop: Cancellation) -> StreamedAnswer:
        return endpoint.request(shape.prompt, shape.answer, stop)

    levels: list[tuple[float | None, int]] = [(rate, load.requests) for rate in load.rates]
    levels += [(None, streams) for streams in load.streams]
    for number, (rate, streams) in enumerate(levels[done:], done):

        def report(finished: int, before: int = number) -> None:
            if progress is not None:
                progress(before * load.requests + finished, len(levels) * load.requests)

        with Lag() as lag:
            answers, failures = _send(plan, rate, streams, ask, report, cancel or Cancellation())
        if not answers:
            raise failures[0]
        row = sample(answers, load, start)
        row |= {"rep": rep, "test": level_name(rate, streams), "requests": load.requests, "failed": len(failures)}
        row |= {"offered_rps": rate} if rate is not None and math.isfinite(rate) else {}
        row |= {"streams": streams} if rate is None else {}
        yield with_warnings(row | lag.facts(), *(answer.warnings for answer in answers))


def level_name(rate: float | None, streams: int) -> str:
    """Return the name of a level as a test: by its rate (requests per second), or by its streams if that is None."""
    if rate is None:
        return f"{streams} stream{'s' if streams > 1 else ''}"
    return f"{rate:g} req/s" if math.isfinite(rate) else "all at once"


def _send(
    plan: Schedule,
    rate: float | None,
    streams: int,
    ask: Callable[[RequestShape, Cancellation], StreamedAnswer],
    report: Callable[[int], None],
    cancel: Cancellation,
) -> tuple[list[StreamedAnswer], list[TargetError]]:
    """Send the requests of one level; return the answers and the errors of the others.

    Pressing ``cancel`` stops all of them, without waiting for those that still connect.
    """
    stop, waiting = Cancellation(), iter(list(zip(plan.shapes, plan.moments, strict=True)))
    ended: queue.SimpleQueue[StreamedAnswer | BaseException] = queue.SimpleQueue()
    lock, begin = threading.Lock(), time.perf_counter()

    def one(shape: RequestShape) -> None:
        try:
            ended.put(ask(shape, stop))
        except BaseException as error:
            ended.put(error)

    def stream() -> None:
        while not stop():
            with lock:
                shape, _ = next(waiting, (None, 0.0))
            if shape is None:
                return
            one(shape)

    def send() -> None:
        """Start a thread per request, each at its time (open loop)."""
        assert rate is not None
        for shape, moment in waiting:
            due = begin + moment / rate
            while not stop() and (seconds_left := due - time.perf_counter()) > 0:
                time.sleep(min(seconds_left, NAP))
            if stop():
                return
            threading.Thread(target=one, args=(shape,), name="request", daemon=True).start()

    answers: list[StreamedAnswer] = []
    failures: list[TargetError] = []
    with cancel.does(stop.press):
        for _ in range(1 if rate is not None else streams):
            threading.Thread(target=stream if rate is None else send, name="sender", daemon=True).start()
        while len(answers) + len(failures) < len(plan.shapes):
            try:
                result = ended.get(timeout=0.2)
            except queue.Empty:
                if cancel():
                    raise Cancelled("stopped while requests were running") from None
                continue
            if isinstance(result, TargetError):
                failures.append(result)
            elif isinstance(result, BaseException):
                stop.press()
                raise result
            else:
                answers.append(result)
            report(len(answers) + len(failures))
    return sorted(answers, key=lambda answer: answer.begin), failures


def sample(answers: Sequence[StreamedAnswer], load: Load, start: float = 0.0) -> Sample:
    """Return the sample of one level; columns ``*_s`` hold the seconds of each request, for percentiles."""
    begin = min(answer.begin for answer in answers)
    span = max(answer.begin + answer.completion.seconds for answer in answers) - begin
    prompt = round(sum(s.prompt * s.weight for s in load.mix) / sum(s.weight for s in load.mix))
    cached = [answer.cached for answer in answers]
    good = sum(within(answer, load) for answer in answers)
    ttfts, ends = [a.ttft for a in answers], [a.completion.seconds for a in answers]
    return {
        "at": round(begin - start, 6),
        "seconds": span,
        "ctx_tokens": prompt,
        "prefill_tokens": prompt,
        "prefill_tps": statistics.median(a.prefill_tps for a in answers),
        "gen_tokens": round(statistics.median(a.tokens for a in answers)),
        "gen_tps": statistics.median(a.decode_tps for a in answers),
        "asked_tokens": round(statistics.median(a.requested for a in answers)),
        "kvcache_bytes": None,
        "ttft_ms": 1e3 * statistics.median(ttfts),
        "e2e_ms": 1e3 * statistics.median(ends),
        "steps_s": [round(gap, 9) for answer in answers for gap in answer.completion.gaps],
        "ttfts_s": [round(value, 9) for value in ttfts],
        "tpots_s": [round(value, 9) for value in map(tpot, answers) if value is not None],
        "e2es_s": [round(value, 9) for value in ends],
        "prompt_tokens": statistics.median(a.prompt for a in answers),
        "cached_tokens": None if None in cached else statistics.median(count or 0 for count in cached),
        "total_tps": sum(a.tokens for a in answers) / span if span > 0 else 0.0,
        "request_rps": len(answers) / span if span > 0 else 0.0,
        "goodput_rps": (good / span if span > 0 else 0.0) if load.bounds else None,
    }


def tpot(answer: StreamedAnswer) -> float | None:
    """Return the seconds per output token after the first, None if there was only one."""
    return 1 / answer.decode_tps if answer.decode_tps > 0 else None


def within(answer: StreamedAnswer, load: Load) -> bool:
    """Return whether the answer meets all latency bounds of the load."""
    seconds = {"ttft": answer.ttft, "tpot": tpot(answer) or 0.0, "e2e": answer.completion.seconds}
    return all(1e3 * seconds[name] <= limit for name, limit in load.bounds.items())
