"""Measures an endpoint with concurrent requests: at several depths, or under load as in vLLM's serving benchmark.

    depths     at each depth, a number of requests is sent at the same time
    rates      a load: requests are sent at random (Poisson) times, whether or not earlier ones were answered (an open
               loop), like those of independent users
    streams    a load: each of a number of streams sends its next request when its answer is complete (a closed loop),
               like a number of agents

A level is a load at one rate, or with one number of streams. A seed determines its requests and their times, in units
of the mean time between two; they are the same for every level and every engine. A request that fails under load is
counted, and the others continue. Times begin when a request is sent, as in ``endpoint``; time per output token (TPOT)
is the time from first to last text divided by the number of tokens after the first. ``fairness`` is Jain's index of the
streams' rates: 1 if all are equal, 1/n if one of n streams got everything.
"""

from __future__ import annotations

import math
import queue
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from ds4ref.errors import Cancelled, TargetError
from ds4ref.runs.columns import Row
from ds4ref.targets import Cancellation

from .endpoint import Endpoint, StreamedAnswer
from .plan import Load, RequestShape
from .sweep import Progress, with_warnings
from .waiting import Lag

Ask = Callable[[RequestShape, Cancellation], StreamedAnswer]


@dataclass(frozen=True)
class Schedule:
    """The requests of one repetition.

    shapes    prompt and answer length of each request
    moments   when to send each request, in units of the mean time between two
    """

    shapes: tuple[RequestShape, ...]
    moments: tuple[float, ...]

    @classmethod
    def of(cls, load: Load, rep: int = 0) -> Schedule:
        """Draw the random schedule of repetition ``rep``, which the load's seed determines; it begins at time 0."""
        chance = random.Random(f"{load.seed}/{rep}")
        shapes = tuple(chance.choices(load.mix, [shape.weight for shape in load.mix], k=load.requests))
        moments, at = [], 0.0
        for _ in range(load.requests):
            moments.append(at)
            at += -math.log1p(-chance.random())
        return cls(shapes, tuple(moments))


def depths(
    endpoint: Endpoint,
    depths: Sequence[int],
    tokens: int,
    streams: int,
    progress: Progress | None = None,
    cancel: Cancellation | None = None,
) -> Iterator[Row]:
    """Send ``streams`` concurrent requests for ``tokens`` tokens at every depth; yield one row per depth.

    ``progress`` is called with (depths done, number of depths). Raises TargetError if a request fails, Cancelled when
    ``cancel`` is triggered.
    """

    def ask(shape: RequestShape, stop: Cancellation) -> StreamedAnswer:
        return endpoint.request(shape.prompt, shape.answer, stop, learn=True)

    for done, depth in enumerate(depths):
        if progress is not None:
            progress(done, len(depths))
        plan = Schedule((RequestShape(depth, tokens),) * streams, (0.0,) * streams)
        with Lag() as lag:
            answers, failures = _send(plan, math.inf, streams, ask, cancel or Cancellation(), tolerant=False)
        if failures:
            raise TargetError(f"{failures[0]} (with {streams} streams at once)") if streams > 1 else failures[0]
        rates = [a.tokens / a.completion.seconds if a.completion.seconds > 0 else 0.0 for a in answers]
        row = measured(answers, depth) | {"streams": streams, "fairness": jain(rates)}
        row["gen_first_ms"] = 1e3 * median([a.completion.gaps[0] for a in answers if a.completion.gaps] or [0.0])
        yield with_warnings(row | lag.facts(), *(answer.warnings for answer in answers))


def levels(
    endpoint: Endpoint,
    load: Load,
    rep: int = 0,
    done: int = 0,
    progress: Progress | None = None,
    cancel: Cancellation | None = None,
) -> Iterator[Row]:
    """Measure the levels of a load (rates, then numbers of streams); yield one row for each.

    rep        number of the repetition, which determines the schedule together with the load's seed
    done       number of levels to skip, because they were measured before
    progress   called with (requests done, number of requests), both over all levels

    Raises Cancelled when ``cancel`` is triggered, TargetError if every request of a level fails.
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
            answers, failures = _send(plan, rate, streams, ask, cancel or Cancellation(), report)
        if not answers:
            raise failures[0]
        row = level(answers, load) | lag.facts()
        row |= {"test": level_name(rate, streams), "requests": load.requests, "failed": len(failures)}
        row |= {"offered_rps": rate} if rate is not None and math.isfinite(rate) else {}
        row |= {"streams": streams} if rate is None else {}
        yield with_warnings(row, *(answer.warnings for answer in answers))


def level_name(rate: float | None, streams: int) -> str:
    """Return the name of a level, for the column ``test``: "2 req/s", or "4 streams" if ``rate`` is None."""
    if rate is None:
        return f"{streams} stream{'s' if streams > 1 else ''}"
    return f"{rate:g} req/s" if math.isfinite(rate) else "all at once"


def _send(
    plan: Schedule,
    rate: float | None,
    streams: int,
    ask: Ask,
    cancel: Cancellation,
    report: Callable[[int], None] = lambda finished: None,
    tolerant: bool = True,
) -> tuple[list[StreamedAnswer], list[TargetError]]:
    """Send the requests of a plan; return the answers, in order of sending, and the errors of failed requests.

    rate       requests per second (open loop); None: ``streams`` threads send one after the other (closed loop)
    ask        sends one request and returns its answer
    report     called with the number of requests that have ended
    tolerant   go on after a request has failed

    Triggering ``cancel`` stops all requests, as does a failure unless ``tolerant``, without waiting for those that are
    still connecting.
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
        """Start a thread for each request when it is due (open loop)."""
        assert rate is not None
        for shape, moment in waiting:
            if stop.wait(begin + moment / rate - time.perf_counter()):
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
            if isinstance(result, StreamedAnswer):
                answers.append(result)
            elif isinstance(result, TargetError):
                failures.append(result)
            else:
                stop.press()
                raise result
            if failures and not tolerant:
                stop.press()
                break
            report(len(answers) + len(failures))
    return sorted(answers, key=lambda answer: answer.begin), failures


def measured(answers: Sequence[StreamedAnswer], depth: int) -> Row:
    """Return one row for several concurrent answers, with medians over them and the rate of all together."""
    cached = [answer.cached for answer in answers]
    span = seconds(answers)
    return {
        "at": answers[0].begin, "ctx_tokens": depth, "prefill_tokens": depth,
        "prefill_tps": median(a.prefill_tps for a in answers), "gen_tokens": round(median(a.tokens for a in answers)),
        "gen_tps": median(a.decode_tps for a in answers), "kvcache_bytes": None,
        "asked_tokens": round(median(a.requested for a in answers)),
        "steps_s": [round(gap, 9) for answer in answers for gap in answer.completion.gaps],
        "ttft_ms": 1e3 * median(a.ttft for a in answers), "e2e_ms": 1e3 * median(a.completion.seconds for a in answers),
        "prompt_tokens": median(a.prompt for a in answers),
        "cached_tokens": None if None in cached else median(count or 0 for count in cached),
        "total_tps": sum(a.tokens for a in answers) / span if span > 0 else 0.0,
    }  # fmt: skip


def seconds(answers: Sequence[StreamedAnswer]) -> float:
    """Return the seconds from sending the first request to the end of the last answer.

    ``answers`` are in order of sending.
    """
    return max(answer.begin + answer.completion.seconds for answer in answers) - answers[0].begin


def level(answers: Sequence[StreamedAnswer], load: Load) -> Row:
    """Return the row of one level of a load; fields ``*_s`` list the times of all requests, for percentiles."""
    prompt = round(sum(s.prompt * s.weight for s in load.mix) / sum(s.weight for s in load.mix))
    good, span = sum(within(answer, load) for answer in answers), seconds(answers)
    return measured(answers, prompt) | {
        "seconds": span,
        "ttfts_s": [round(answer.ttft, 9) for answer in answers],
        "tpots_s": [round(value, 9) for value in map(tpot, answers) if value is not None],
        "e2es_s": [round(answer.completion.seconds, 9) for answer in answers],
        "request_rps": len(answers) / span if span > 0 else 0.0,
        "goodput_rps": (good / span if span > 0 else 0.0) if load.bounds else None,
    }


def jain(rates: Sequence[float]) -> float:
    """Return Jain's fairness index of ``rates``: (sum x)^2 / (n sum x^2)."""
    squares = sum(rate * rate for rate in rates)
    return sum(rates) ** 2 / (len(rates) * squares) if squares else 1.0


def tpot(answer: StreamedAnswer) -> float | None:
    """Return the seconds per output token after the first, None if there was only one."""
    return 1 / answer.decode_tps if answer.decode_tps > 0 else None


def within(answer: StreamedAnswer, load: Load) -> bool:
    """Return whether the answer meets all latency bounds of the load."""
    spent = {"ttft": answer.ttft, "tpot": tpot(answer) or 0.0, "e2e": answer.completion.seconds}
    return all(1e3 * spent[name] <= limit for name, limit in load.bounds.items())
