"""The measurement: one fixed token sequence, walked to deeper and deeper frontiers (docs/bench.md).

At each frontier two windows are timed on a monotonic clock. Prefill: from the previous frontier to this one, output
head included. Decode: ``gen_tokens`` greedy steps that may not pick EOS, choice of the token included. Between them
the session is remembered in a snapshot and afterwards restored, both outside the windows, so every row measures its
own depth and nothing else. Text processing, printing and warm-up are outside, too: while progress is drawn between
chunks of a prefill, its window stands still, and a wish to stop is asked for there, since a session that could be
stopped inside a chunk would have to remember every chunk's beginning first.
"""

from __future__ import annotations

import hashlib
import math
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ds4ref.costs import prefill_chunk
from ds4ref.environment import resident_bytes
from ds4ref.errors import Cancelled, Ds4Error, SessionError

from .probes import Probe

WARMUP_DECODE = 4

# The lowest logit a token may be chosen for: below it lie masked and broken ones.
_FLOOR = -1e30


class SweepError(SessionError):
    """The engine failed under measurement; the message names the frontier."""


class Timeline(Protocol):
    """What a sweep needs of a session."""

    ctx: int

    @property
    def pos(self) -> int:
        """Tokens it holds."""
        ...

    def sync(
        self,
        tokens: Sequence[int],
        progress: Callable[[int, int], None] | None = None,
        cancel: Callable[[], bool] | None = None,
    ) -> None:
        """Prefill what ``tokens`` has beyond those it holds."""
        ...

    def append(self, token: int) -> None:
        """One decode step."""
        ...

    def argmax(self, exclude: int | None = None) -> int:
        """The best token but ``exclude``."""
        ...

    def logit(self, token: int) -> float:
        """The logit of a token."""
        ...

    def snapshot(self) -> Any:
        """Its state."""
        ...

    def restore(self, snapshot: Any) -> None:
        """Back to a state."""
        ...

    def payload_bytes(self) -> int:
        """Size of the session as a file."""
        ...


@dataclass(frozen=True)
class Row:
    """One frontier. Times in seconds; ``steps_s`` has one entry for every generated token, ``at`` is when it began on
    the clock of the process, ``rss_bytes`` the memory resident after it, ``test`` its name if it is none of a walk."""

    ctx_tokens: int
    prefill_tokens: int
    prefill_s: float
    steps_s: tuple[float, ...]
    kvcache_bytes: int
    ids: tuple[int, ...]
    rep: int = 0
    at: float = 0.0
    rss_bytes: int | None = None
    test: str = ""

    @property
    def gen_tokens(self) -> int:
        """Generated tokens."""
        return len(self.steps_s)

    @property
    def prefill_tps(self) -> float:
        """Tokens per second of this interval's prefill."""
        return _rate(self.prefill_tokens, self.prefill_s)

    @property
    def gen_tps(self) -> float:
        """Tokens per second of decode, the first step included."""
        return _rate(self.gen_tokens, sum(self.steps_s))

    @property
    def gen_first_ms(self) -> float:
        """The first decode step: it finds the caches cold."""
        return 1e3 * self.steps_s[0] if self.steps_s else 0.0

    @property
    def gen_steady_tps(self) -> float:
        """Tokens per second of decode without the first step."""
        return _rate(self.gen_tokens - 1, sum(self.steps_s[1:]))

    @property
    def gen_digest(self) -> str:
        """Twelve hexadecimal digits that tell whether two runs decoded the same tokens."""
        ids = array("I", self.ids)
        return hashlib.sha256(ids.tobytes()).hexdigest()[:12]


def _rate(count: int, seconds: float) -> float:
    return count / seconds if seconds > 0 else 0.0


def sweep(
    session: Timeline,
    tokens: Sequence[int],
    depths: Iterable[int],
    gen_tokens: int,
    eos: int,
    *,
    rep: int = 0,
    done: int = 0,
    progress: Callable[[int, int], None] | None = None,
    cancel: Callable[[], bool] = lambda: False,
) -> Iterator[Row]:
    """One row for every depth, as soon as it is measured; the first ``done`` depths are walked, not measured.

    ``progress`` gets (tokens done, tokens in all) between windows and prefill chunks. When ``cancel`` turns true,
    Cancelled is raised; rows that came out before are complete. Any failure of the engine is a SweepError.
    """
    tokens, depths = list(tokens), list(depths)
    last, previous = depths[-1] if depths else 0, 0
    if done:
        previous = depths[done - 1]
        timed_prefill(session, tokens[:previous], last, progress, cancel)
    for depth in depths[done:]:
        start, prefill_s = timed_prefill(session, tokens[:depth], last, progress, cancel)
        with _failing(f"snapshot at {depth} failed"):
            snapshot = session.snapshot()
            payload = session.payload_bytes()
        ids, steps = decode(session, depth, gen_tokens, eos, cancel)
        with _failing(f"restore at {depth} failed"):
            session.restore(snapshot)
        rss = resident_bytes()
        yield Row(depth, depth - previous, prefill_s, tuple(steps), payload, tuple(ids), rep, start, rss)
        previous = depth


def timed_prefill(
    session: Timeline,
    tokens: Sequence[int],
    last: int,
    progress: Callable[[int, int], None] | None = None,
    cancel: Callable[[], bool] = lambda: False,
) -> tuple[float, float]:
    """Bring ``session`` to ``tokens``: when that began, and the seconds it took, without those between its chunks in
    which ``progress`` was told (of ``last`` tokens) and ``cancel`` asked. Errors as ``sweep``."""
    clock, between = time.perf_counter, 0.0

    def pause(done: int, total: int) -> None:
        nonlocal between
        stopped = clock()
        if cancel():
            raise Cancelled(f"stopped while prefilling to {total}")
        if progress is not None:
            progress(done, last)
        between += clock() - stopped

    with _failing(f"prefill to {len(tokens)} failed"):
        start = clock()
        session.sync(tokens, progress=pause)
        return start, clock() - start - between


def run_probes(
    session: Callable[[], Timeline],
    tokens: Sequence[int],
    probes: Sequence[Probe],
    eos: int,
    *,
    rep: int = 0,
    done: int = 0,
    progress: Callable[[int, int], None] | None = None,
    cancel: Callable[[], bool] = lambda: False,
) -> Iterator[Row]:
    """One row for every test but the first ``done``, as soon as it is measured. Errors as ``sweep``; ``progress`` gets
    (tests, tests)."""
    for number, probe in enumerate(probes[done:], done):
        if progress is not None:
            progress(number, len(probes))
        fresh = session()
        before = probe.depth if probe.prefill else max(1, probe.depth)
        if before:
            prefill_row(fresh, tokens, 0, before, cancel=cancel)
        if probe.prefill:
            yield prefill_row(fresh, tokens, before, before + probe.prefill, rep=rep, test=probe.name, cancel=cancel)
        else:
            yield timed_decode(fresh, before, probe.decode, eos, rep=rep, test=probe.name, cancel=cancel)


def prefill_row(
    session: Timeline,
    tokens: Sequence[int],
    first: int,
    last: int,
    *,
    rep: int = 0,
    test: str = "",
    cancel: Callable[[], bool] = lambda: False,
) -> Row:
    """Prefill of ``first`` to ``last`` alone, on a session that holds ``first`` tokens. Errors as ``sweep``."""
    start, seconds = timed_prefill(session, list(tokens[:last]), last, None, cancel)
    return Row(last, last - first, seconds, (), session.payload_bytes(), (), rep, start, resident_bytes(), test)


def timed_decode(
    session: Timeline,
    depth: int,
    count: int,
    eos: int,
    *,
    rep: int = 0,
    test: str = "",
    cancel: Callable[[], bool] = lambda: False,
) -> Row:
    """Decode of ``count`` tokens alone. Errors as ``sweep``."""
    payload, start = session.payload_bytes(), time.perf_counter()
    ids, steps = decode(session, depth, count, eos, cancel)
    return Row(depth, 0, 0.0, tuple(steps), payload, tuple(ids), rep, start, resident_bytes(), test)


def decode(
    session: Timeline, depth: int, count: int, eos: int, cancel: Callable[[], bool] = lambda: False
) -> tuple[list[int], list[float]]:
    """``count`` greedy steps that never pick EOS: the tokens, and the seconds each step took.

    Not ``generate.decode``: a step of a small model leaves the cores' caches cold, so that every line of Python around
    it costs, and only what is needed to measure it is here.
    """
    if session.pos + count >= session.ctx:
        raise SweepError(f"generation would exceed allocated context at frontier {depth}")
    clock, argmax, logit, append, low, high = (
        time.perf_counter, session.argmax, session.logit, session.append, _FLOOR, math.inf,
    )  # fmt: skip
    ids: list[int] = []
    seconds: list[float] = []
    with _failing(f"decode at frontier {depth} failed"):
        for _ in range(count):
            if cancel():
                raise Cancelled(f"stopped while decoding at {depth}")
            start = clock()
            token = argmax(exclude=eos)
            if not low < logit(token) < high:
                raise SweepError(f"failed to choose non-EOS token at frontier {depth}")
            append(token)
            seconds.append(clock() - start)
            ids.append(token)
    return ids, seconds


@dataclass(frozen=True)
class Warmth:
    """What a warm-up took: seconds a token of prefill, and of the quickest decode step."""

    prefill_s: float
    step_s: float

    def walk(self, tokens: int, steps: int) -> float:
        """Seconds that so many tokens and steps take at least: both grow slower with depth."""
        return tokens * self.prefill_s + steps * self.step_s


def warm_up(session: Timeline, tokens: Sequence[int], eos: int) -> Warmth:
    """Touch code, weights and buffers once, on a session that is thrown away: the first row is to measure, not to load.
    A whole chunk, since one of another size runs other code on buffers of other sizes."""
    with _failing("warm-up failed"):
        count = max(1, min(len(tokens), prefill_chunk(), session.ctx - WARMUP_DECODE - 1))
        _, spent = timed_prefill(session, list(tokens[:count]), count)
        snapshot = session.snapshot()
        _, steps = decode(session, session.pos, WARMUP_DECODE, eos)
        session.restore(snapshot)
    return Warmth(spent / count, min(steps))


class _failing:
    """Name what was going on in whatever goes wrong inside; a wish to stop passes through."""

    def __init__(self, what: str):
        self.what = what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: object) -> None:
        if isinstance(error, (Ds4Error, MemoryError)) and not isinstance(error, (Cancelled, SweepError)):
            raise SweepError(f"{self.what}: {str(error) or 'not enough memory'}") from error
