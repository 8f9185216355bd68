"""The measurement: one fixed token sequence, prefilled to deeper and deeper depths (docs/reference/bench.md).

At each depth two windows are timed on a monotonic clock. Prefill: from the previous depth to this one, output
head included. Decode: ``gen_tokens`` greedy steps that may not pick EOS, choice of the token included. A snapshot is
taken between the windows and restored after the second, untimed, so that every row measures only its own depth.
Text processing, printing and warm-up are untimed, too: the clock is paused while progress is drawn between chunks of a
prefill. Cancellation is checked there as well, because a session that can be cancelled inside a chunk would have to
save its state before every chunk.
"""

from __future__ import annotations

import hashlib
import math
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ds4ref.costs import PREFILL_CHUNK
from ds4ref.drafts.speculation import Counts, Speculation
from ds4ref.environment import resident_bytes
from ds4ref.errors import Cancelled, Ds4Error, SessionError

from .probes import Probe
from .waiting import Waits, load

WARMUP_DECODE = 4

# tokens with lower logits are masked or broken, and never chosen
_FLOOR = -1e30


class SweepError(SessionError):
    """Raised if the engine fails during a measurement; the message names the depth."""


class Timeline(Protocol):
    """The methods of a session that a sweep uses."""

    ctx: int

    @property
    def pos(self) -> int:
        """Number of tokens that the session holds."""
        ...

    def sync(
        self,
        tokens: Sequence[int],
        progress: Callable[[int, int], None] | None = None,
        cancel: Callable[[], bool] | None = None,
    ) -> None:
        """Prefill ``tokens`` beyond the session's current ones, which are a prefix of them."""
        ...

    def prepare(self, positions: Iterable[int]) -> int:
        """Do what a session does once for tokens at ``positions``; return 0 if that was done before."""
        ...

    def append(self, token: int) -> None:
        """Run one decode step with ``token``."""
        ...

    def argmax(self, exclude: int | None = None) -> int:
        """Return the token with the largest logit, other than ``exclude``."""
        ...

    def logit(self, token: int) -> float:
        """Return the logit of ``token``."""
        ...

    def snapshot(self) -> Any:
        """Return a snapshot of the session's state."""
        ...

    def restore(self, snapshot: Any) -> None:
        """Restore the session's state from a snapshot."""
        ...

    def payload_bytes(self) -> int:
        """Return the size in bytes of the session saved to a file."""
        ...


@dataclass(frozen=True)
class SweepRow:
    """One measured depth or single test; times in seconds.

    ctx_tokens      depth: tokens in the session after the prefill
    prefill_tokens  tokens of the timed prefill
    prefill_s       time of the prefill
    steps_s         time of every decode step
    ready_s         time to prepare a new session for decode, not part of the steps
    kvcache_bytes   size of the session as saved
    ids             decoded tokens
    rep             number of the repetition
    at              start on the process clock
    rss_bytes       resident memory afterwards
    test            name of a single test, "" for a sweep
    wait_share      share of the timed windows that a thread waited for a processor, at most
    load            the machine's load average afterwards
    guessed         what speculative decoding did meanwhile, None without it
    """

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
    wait_share: float | None = None
    load: float | None = None
    ready_s: float = 0.0
    guessed: Counts | None = None

    @property
    def drafted(self) -> int | None:
        """Number of tokens that were guessed, None without speculative decoding."""
        return None if self.guessed is None else self.guessed.total().drafted

    @property
    def accepted(self) -> int | None:
        """Number of guessed tokens that were right."""
        return None if self.guessed is None else self.guessed.total().accepted

    @property
    def tokens_per_pass(self) -> float | None:
        """Tokens decoded by a pass of the model."""
        return None if self.guessed is None else self.guessed.tokens_a_pass

    @property
    def drafts(self) -> str | None:
        """Right and guessed tokens by source and number of guesses in the pass: "lookup 3: 7/12"."""
        if self.guessed is None:
            return None
        items = sorted(self.guessed.drafts.items())
        return "; ".join(f"{name} {depth}: {count.accepted}/{count.drafted}" for (name, depth), count in items)

    @property
    def gen_tokens(self) -> int:
        """Number of generated tokens."""
        return len(self.steps_s)

    @property
    def prefill_tps(self) -> float:
        """Tokens per second of this row's prefill."""
        return _rate(self.prefill_tokens, self.prefill_s)

    @property
    def gen_tps(self) -> float:
        """Tokens per second of decode, including the first step."""
        return _rate(self.gen_tokens, sum(self.steps_s))

    @property
    def gen_first_ms(self) -> float:
        """Milliseconds of the first decode step, which runs with cold caches, and of preparing the session for it."""
        return 1e3 * (self.ready_s + self.steps_s[0]) if self.steps_s else 0.0

    @property
    def gen_steady_tps(self) -> float:
        """Tokens per second of decode, excluding the first step."""
        return _rate(self.gen_tokens - 1, sum(self.steps_s[1:]))

    @property
    def gen_digest(self) -> str:
        """Digest of the decoded tokens as twelve hexadecimal digits, to compare runs."""
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
) -> Iterator[SweepRow]:
    """Measure every depth; yield a row as soon as it is measured. The first ``done`` depths are only prefilled.

    tokens       the token sequence, at least as long as the last depth
    eos          token that decode may not pick
    rep          number of the repetition, stored in each row
    progress     called with (tokens done, all) between windows and prefill chunks
    cancel       returns whether to stop

    Raises Cancelled when ``cancel`` returns True; earlier rows are complete. Raises SweepError for any failure of the
    engine.
    """
    tokens, depths = list(tokens), list(depths)
    last, previous = depths[-1] if depths else 0, 0
    if done:
        previous = depths[done - 1]
        timed_prefill(session, tokens[:previous], last, progress, cancel)
    for depth in depths[done:]:
        waits = Waits()
        with waits:
            start, prefill_s = timed_prefill(session, tokens[:depth], last, progress, cancel)
        with _sweep_errors(f"snapshot at {depth} failed"):
            snapshot = session.snapshot()
            payload = session.payload_bytes()
        ready_s, guesses = prepare(session, depth, gen_tokens), Guesses(session)
        with waits:
            ids, steps = decode(session, depth, gen_tokens, eos, cancel)
        with _sweep_errors(f"restore at {depth} failed"):
            session.restore(snapshot)
        yield SweepRow(
            depth, depth - previous, prefill_s, tuple(steps), payload, tuple(ids), rep, start, resident_bytes(), "",
            waits.share(prefill_s + sum(steps)), load(), ready_s, guesses.counted(),
        )  # fmt: skip
        previous = depth


def timed_prefill(
    session: Timeline,
    tokens: Sequence[int],
    last: int,
    progress: Callable[[int, int], None] | None = None,
    cancel: Callable[[], bool] = lambda: False,
) -> tuple[float, float]:
    """Prefill ``session`` to the first ``last`` tokens; return (start on the process clock, seconds).

    The seconds exclude calls of ``progress(tokens done, last)`` and ``cancel()`` between chunks. Raises as ``sweep``.
    """
    clock, between = time.perf_counter, 0.0

    def pause(done: int, total: int) -> None:
        nonlocal between
        stopped = clock()
        if cancel():
            raise Cancelled(f"stopped while prefilling to {total}")
        if progress is not None:
            progress(done, last)
        between += clock() - stopped

    with _sweep_errors(f"prefill to {len(tokens)} failed"):
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
) -> Iterator[SweepRow]:
    """Measure every test but the first ``done`` on its own session; yield a row as soon as it is measured.

    Raises as ``sweep``; ``progress`` is called with (tests done, all).
    """
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
) -> SweepRow:
    """Measure the prefill of tokens ``first`` to ``last`` on a session that holds those before; raises as ``sweep``."""
    with Waits() as waits:
        start, seconds = timed_prefill(session, list(tokens[:last]), last, None, cancel)
    return SweepRow(
        last, last - first, seconds, (), session.payload_bytes(), (), rep, start, resident_bytes(), test,
        waits.share(seconds), load(),
    )  # fmt: skip


def timed_decode(
    session: Timeline,
    depth: int,
    count: int,
    eos: int,
    *,
    rep: int = 0,
    test: str = "",
    cancel: Callable[[], bool] = lambda: False,
) -> SweepRow:
    """Measure the decode of ``count`` tokens after ``depth`` tokens; raises as ``sweep``."""
    payload, start = session.payload_bytes(), time.perf_counter()
    ready_s, guesses = prepare(session, depth, count), Guesses(session)
    with Waits() as waits:
        ids, steps = decode(session, depth, count, eos, cancel)
    return SweepRow(
        depth, 0, 0.0, tuple(steps), payload, tuple(ids), rep, start, resident_bytes(), test, waits.share(sum(steps)),
        load(), ready_s, guesses.counted(),
    )  # fmt: skip


class Guesses:
    """Counts what a session's speculative decoding does from now on."""

    def __init__(self, session: Timeline):
        self._speculation: Speculation | None = getattr(session, "speculation", None)
        self._before = Counts() if self._speculation is None else self._speculation.counts.copy()

    def counted(self) -> Counts | None:
        """Return the counts so far, None for a session without speculative decoding."""
        return None if self._speculation is None else self._speculation.counts - self._before


def prepare(session: Timeline, depth: int, count: int) -> float:
    """Prepare ``session`` for ``count`` decode steps after ``depth`` tokens; return the seconds, 0 if it was prepared.

    A session does this once for each kind of token, in the first steps that it meets: a window that held them would
    show a slower engine at the first depth than at the next.
    """
    with _sweep_errors(f"decode at depth {depth} failed"):
        start = time.perf_counter()
        return time.perf_counter() - start if session.prepare(range(depth, depth + count)) else 0.0


def decode(
    session: Timeline, depth: int, count: int, eos: int, cancel: Callable[[], bool] = lambda: False
) -> tuple[list[int], list[float]]:
    """Decode ``count`` greedy tokens, never EOS; return (tokens, seconds of each step).

    This is not ``generate.decode``: with a small model every line of Python around a step costs measurable time, so
    the loop does only what the measurement needs.
    """
    if session.pos + count >= session.ctx:
        raise SweepError(f"generation would exceed allocated context at depth {depth}")
    clock, argmax, logit, append, low, high = (
        time.perf_counter, session.argmax, session.logit, session.append, _FLOOR, math.inf,
    )  # fmt: skip
    ids: list[int] = []
    seconds: list[float] = []
    with _sweep_errors(f"decode at depth {depth} failed"):
        for _ in range(count):
            if cancel():
                raise Cancelled(f"stopped while decoding at {depth}")
            start = clock()
            token = argmax(exclude=eos)
            if not low < logit(token) < high:
                raise SweepError(f"failed to choose non-EOS token at depth {depth}")
            append(token)
            seconds.append(clock() - start)
            ids.append(token)
    return ids, seconds


@dataclass(frozen=True)
class WarmUpSpeed:
    """Speed of a warm-up: seconds per token of prefill, and seconds of the fastest decode step."""

    prefill_s: float
    step_s: float

    def walk(self, tokens: int, steps: int) -> float:
        """Return a lower bound in seconds for a sweep of ``tokens`` prefill tokens and ``steps`` decode steps.

        Both get slower with depth.
        """
        return tokens * self.prefill_s + steps * self.step_s


def warm_up(session: Timeline, tokens: Sequence[int], eos: int, positions: Iterable[int] = ()) -> WarmUpSpeed:
    """Run a prefill chunk and a few decode steps on ``session``, to be discarded; return their speed.

    The first row then measures no loading of code and weights. The chunk is a whole one, since a chunk of another size
    would use other code and buffers. ``positions``: of all tokens to be decoded, for what an engine's sessions share.
    """
    with _sweep_errors("warm-up failed"):
        chunk = getattr(session, "chunk", PREFILL_CHUNK)
        count = max(1, min(len(tokens), chunk, session.ctx - WARMUP_DECODE - 1))
        _, spent = timed_prefill(session, list(tokens[:count]), count)
        snapshot = session.snapshot()
        session.prepare(positions)
        _, steps = decode(session, session.pos, WARMUP_DECODE, eos)
        session.restore(snapshot)
    return WarmUpSpeed(spent / count, min(steps))


class _sweep_errors:
    """Context manager that turns errors into a SweepError naming ``action``; Cancelled passes through."""

    def __init__(self, action: str):
        self.action = action

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: object) -> None:
        if isinstance(error, (Ds4Error, MemoryError)) and not isinstance(error, (Cancelled, SweepError)):
            raise SweepError(f"{self.action}: {str(error) or 'not enough memory'}") from error
