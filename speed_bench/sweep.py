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
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ds4ref.costs import PREFILL_CHUNK
from ds4ref.drafts.speculation import Counts
from ds4ref.environment import resident_bytes
from ds4ref.errors import Cancelled, Ds4Error, SessionError
from ds4ref.runs import warnings
from ds4ref.runs.columns import Row

from .plan import Probe
from .waiting import Waits, load

if TYPE_CHECKING:
    from ds4ref.costs import Costs, Peaks

WARMUP_DECODE = 4

# tokens with lower logits are masked or broken, and never chosen
_FLOOR = -1e30

Progress = Callable[[int, int], None]


class SweepError(SessionError):
    """Raised if the engine fails during a measurement; the message names the depth."""


def sweep(
    session: Any,
    tokens: Sequence[int],
    depths: Sequence[int],
    gen_tokens: int,
    eos: int,
    *,
    done: int = 0,
    progress: Progress | None = None,
    cancel: Callable[[], bool] = lambda: False,
) -> Iterator[Row]:
    """Measure every depth; yield a row as soon as it is measured. The first ``done`` depths are only prefilled.

    tokens       the token sequence, at least as long as the last depth
    eos          token that decode may not pick
    progress     called with (tokens done, all) between windows and prefill chunks
    cancel       returns whether to stop

    Raises Cancelled when ``cancel`` returns True; earlier rows are complete. Raises SweepError for any failure of the
    engine.
    """
    tokens, last, previous = list(tokens), depths[-1], 0
    if done:
        previous = depths[done - 1]
        timed_prefill(session, tokens[:previous], last, progress, cancel)
    for depth in depths[done:]:
        waits = Waits()
        with waits:
            at, prefill_s = timed_prefill(session, tokens[:depth], last, progress, cancel)
        with _sweep_errors(f"snapshot at {depth} failed"):
            snapshot = session.snapshot()
            payload = session.payload_bytes()
        ready_s, guessed = prepare(session, depth, gen_tokens), _guesses(session)
        with waits:
            ids, steps = decode(session, depth, gen_tokens, eos, cancel)
        with _sweep_errors(f"restore at {depth} failed"):
            session.restore(snapshot)
        yield measured(depth, depth - previous, prefill_s, steps, ids, payload, at, waits, ready_s, guessed())
        previous = depth


def run_probes(
    session: Callable[[], Any],
    tokens: Sequence[int],
    probes: Sequence[Probe],
    eos: int,
    *,
    done: int = 0,
    progress: Progress | None = None,
    cancel: Callable[[], bool] = lambda: False,
) -> Iterator[Row]:
    """Measure every test but the first ``done`` on its own session; yield a row as soon as it is measured.

    Raises as ``sweep``; ``progress`` is called with (tests done, all).
    """
    for number, probe in enumerate(probes[done:], done):
        if progress is not None:
            progress(number, len(probes))
        fresh, before, depth = session(), probe.needed - probe.prefill, probe.needed
        if before:
            timed_prefill(fresh, list(tokens[:before]), before, None, cancel)
        waits, prefill_s, ready_s = Waits(), 0.0, 0.0
        ids: list[int] = []
        steps: list[float] = []
        if probe.prefill:
            with waits:
                at, prefill_s = timed_prefill(fresh, list(tokens[:depth]), depth, None, cancel)
        payload, guessed = fresh.payload_bytes(), _guesses(fresh)
        if probe.decode:
            at, ready_s = time.perf_counter(), prepare(fresh, depth, probe.decode)
            with waits:
                ids, steps = decode(fresh, depth, probe.decode, eos, cancel)
        counts = guessed() if probe.decode else None
        row = measured(depth, probe.prefill, prefill_s, steps, ids, payload, at, waits, ready_s, counts)
        yield row | {"test": probe.name}


def measured(
    depth: int,
    prefill_tokens: int,
    prefill_s: float,
    steps: Sequence[float],
    ids: Sequence[int],
    payload: int,
    at: float = 0.0,
    waits: Waits | None = None,
    ready_s: float = 0.0,
    guessed: Counts | None = None,
) -> Row:
    """Return the row of a depth or single test; times in seconds.

    steps     time of every decode step
    ids       decoded tokens
    payload   bytes of the session as saved
    at        start on the process clock
    waits     how long threads waited for a processor
    ready_s   time to prepare a new session for decode, part of the first step alone
    guessed   what speculative decoding did meanwhile, None without it
    """
    row: Row = {
        "at": at, "ctx_tokens": depth, "prefill_tokens": prefill_tokens, "gen_tokens": len(steps),
        "prefill_tps": _rate(prefill_tokens, prefill_s), "gen_tps": _rate(len(steps), sum(steps)),
        "kvcache_bytes": payload, "gen_first_ms": 1e3 * (ready_s + steps[0]) if steps else 0.0,
        "gen_steady_tps": _rate(len(steps) - 1, sum(steps[1:])),
        "gen_digest": hashlib.sha256(array("I", ids).tobytes()).hexdigest()[:12],
        "rss_bytes": resident_bytes(), "wait_share": waits and waits.share(prefill_s + sum(steps)), "load": load(),
        "steps_s": [round(seconds, 9) for seconds in steps],
    }  # fmt: skip
    if guessed is not None:
        drafts = sorted((name, n) for (what, name, n), count in guessed.items() if what == "drafted" and count)
        texts = (f"{name} {n}: {guessed['accepted', name, n]}/{guessed['drafted', name, n]}" for name, n in drafts)
        row |= {"drafted": guessed.of("drafted"), "accepted": guessed.of("accepted"),
                "tokens_per_pass": guessed.tokens_a_pass,
                "drafts": "; ".join(texts)}  # fmt: skip
    return {name: value for name, value in row.items() if value is not None}


def _rate(count: int, seconds: float) -> float:
    return count / seconds if seconds > 0 else 0.0


def bounds(row: Row, costs: Costs, peaks: Peaks | None) -> Row:
    """Return what a row's work needs by the cost model; with peaks, its speeds as shares of the roofline bound."""
    depth, work = row["ctx_tokens"], costs.decode(row["ctx_tokens"] + row["gen_tokens"] // 2)
    entry: Row = {"cache_bytes_per_token": costs.shape.kv_bytes(depth) / depth}
    if row["gen_tokens"]:
        entry |= {"decode_bytes": round(work.bytes), "decode_gbs": work.bytes * row["gen_tps"] / 1e9}
    if peaks is not None and row["gen_tokens"]:
        decode = work.bound(peaks)
        entry |= {"decode_share": decode.seconds * row["gen_tps"], "decode_binds": decode.binds}
    if peaks is not None and row["prefill_tokens"]:
        prefill = costs.prefill(depth - row["prefill_tokens"], depth).bound(peaks)
        share = prefill.seconds * row["prefill_tps"] / row["prefill_tokens"]
        entry |= {"prefill_share": share, "prefill_binds": prefill.binds}
    return entry


def with_warnings(row: Row, *known: warnings.Warnings) -> Row:
    """Return a row with the ``known`` warnings and those that its times show (``runs.warnings.of_times``)."""
    merged = warnings.merged([*known, warnings.of_times(row)])
    if "count" in merged:  # how long the answer was is unknown
        merged.pop("short", None)
    return {**row, "warnings": merged} if merged else row


def timed_prefill(
    session: Any,
    tokens: Sequence[int],
    last: int,
    progress: Progress | None = None,
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


def _guesses(session: Any) -> Callable[[], Counts | None]:
    """Return a function that counts what a session's speculative decoding did since now, None without it."""
    speculation = getattr(session, "speculation", None)
    before = None if speculation is None else speculation.counts.copy()
    return lambda: None if speculation is None else Counts(speculation.counts - before)


def prepare(session: Any, depth: int, count: int) -> float:
    """Prepare ``session`` for ``count`` decode steps after ``depth`` tokens; return the seconds, 0 if it was prepared.

    A session does this once for each kind of token, in the first steps that it meets: a window that held them would
    show a slower engine at the first depth than at the next.
    """
    with _sweep_errors(f"decode at depth {depth} failed"):
        start = time.perf_counter()
        return time.perf_counter() - start if session.prepare(range(depth, depth + count)) else 0.0


def decode(
    session: Any, depth: int, count: int, eos: int, cancel: Callable[[], bool] = lambda: False
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


def warm_up(session: Any, tokens: Sequence[int], eos: int, positions: Iterable[int] = ()) -> None:
    """Run a prefill chunk and a few decode steps on ``session``, to be discarded.

    The first row then measures no loading of code and weights. The chunk is a whole one, since a chunk of another size
    would use other code and buffers. ``positions``: of all tokens to be decoded, for what an engine's sessions share.
    """
    with _sweep_errors("warm-up failed"):
        chunk = getattr(session, "chunk", PREFILL_CHUNK)
        count = max(1, min(len(tokens), chunk, session.ctx - WARMUP_DECODE - 1))
        timed_prefill(session, list(tokens[:count]), count)
        snapshot = session.snapshot()
        session.prepare(positions)
        decode(session, session.pos, WARMUP_DECODE, eos)
        session.restore(snapshot)


@contextmanager
def _sweep_errors(action: str) -> Iterator[None]:
    """Turn errors into a SweepError naming ``action``; Cancelled passes through."""
    try:
        yield
    except (Cancelled, SweepError):
        raise
    except (Ds4Error, MemoryError) as error:
        raise SweepError(f"{action}: {str(error) or 'not enough memory'}") from error
