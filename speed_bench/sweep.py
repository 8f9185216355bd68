"""Measures the local engine: one fixed token sequence is prefilled to deeper and deeper depths.

At each depth two intervals are timed on a monotonic clock. Prefill: from the previous depth to this one, including the
output head (logits). Decode: ``gen_tokens`` greedy steps, including the choice of the token, which may not be EOS. The
session is saved in between and restored after decode, without being timed, so that every row measures only its own
depth. Text processing, printing and warm-up are not timed either: the clock is paused between the chunks of a prefill,
while progress is shown. Cancellation is checked there as well, because a session that can be cancelled inside a chunk
would have to save its state before every chunk (docs/reference/bench.md).
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

# a token with a lower logit is masked or invalid, and must not be chosen
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
    """Measure prefill and decode at every depth; yield each row as soon as it is measured.

    session      an empty session of the engine
    tokens       the token sequence, at least as long as the last depth
    gen_tokens   number of decode steps at each depth
    eos          token that decode may not pick
    done         number of depths that are measured already and only prefilled
    progress     called with (tokens done, total) between the chunks of a prefill
    cancel       returns whether to stop

    Raises Cancelled when ``cancel`` returns True; earlier rows are complete. Raises SweepError if the engine fails.
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
    """Measure single tests, each in a new session; yield each row as soon as it is measured.

    session      returns a new, empty session
    done         number of tests that are measured already and left out
    progress     called with (tests done, total)

    Other parameters and exceptions are those of ``sweep``.
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
    """Return the row of a depth or single test.

    prefill_tokens   number of tokens that were prefilled, in ``prefill_s`` seconds
    steps            seconds of every decode step
    ids              decoded tokens
    payload          size of the saved session in bytes
    at               start in seconds (``time.perf_counter``)
    waits            how long threads waited for a CPU
    ready_s          seconds to prepare a new session for decode; counted in the time of the first step, not in the rate
    guessed          counts of drafted and accepted tokens, None without speculative decoding
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
    """Return further columns of a row: the bytes that its work must read, according to the cost model.

    With the machine's ``peaks``, also its speeds as shares of the roofline bound.
    """
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
    """Return a row with the ``known`` warnings and those that follow from its times (``runs.warnings.of_times``)."""
    merged = warnings.merged([*known, warnings.of_times(row)])
    if "count" in merged:  # the true length of the answer is unknown
        merged.pop("short", None)
    return {**row, "warnings": merged} if merged else row


def timed_prefill(
    session: Any,
    tokens: Sequence[int],
    last: int,
    progress: Progress | None = None,
    cancel: Callable[[], bool] = lambda: False,
) -> tuple[float, float]:
    """Prefill ``session`` with those of ``tokens`` that it does not hold yet; return (start, duration) in seconds.

    ``progress(tokens done, last)`` and ``cancel()`` are called between chunks; their time is not counted. ``last`` is
    the number of tokens of the whole sweep. Exceptions are those of ``sweep``.
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
    """Return a function that returns the counts of drafted and accepted tokens from now on.

    It returns None for a session without speculative decoding.
    """
    speculation = getattr(session, "speculation", None)
    before = None if speculation is None else speculation.counts.copy()
    return lambda: None if speculation is None else Counts(speculation.counts - before)


def prepare(session: Any, depth: int, count: int) -> float:
    """Prepare ``session`` for ``count`` decode steps after ``depth`` tokens.

    Return the seconds that this took, 0 if nothing was left to prepare. A session otherwise does this work in its first
    decode steps, which would make the engine look slower at the first depth than at the next.
    """
    with _sweep_errors(f"decode at depth {depth} failed"):
        start = time.perf_counter()
        return time.perf_counter() - start if session.prepare(range(depth, depth + count)) else 0.0


def decode(
    session: Any, depth: int, count: int, eos: int, cancel: Callable[[], bool] = lambda: False
) -> tuple[list[int], list[float]]:
    """Decode ``count`` tokens greedily, never EOS; return (tokens, seconds of each step).

    ``generate.decode`` is not used here: with a small model every line of Python around a step costs measurable time,
    so this loop does only what the measurement needs.
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
    """Run a prefill chunk and a few decode steps in ``session``, which is to be discarded.

    The first row then does not include the time to load code and weights. The chunk has full size, because a smaller
    one would use other code and buffers. ``positions`` are those of all tokens to be decoded later: what all sessions
    of the engine share is prepared for them.
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
    """Turn errors in the block into a SweepError whose message begins with ``action``; let Cancelled pass."""
    try:
        yield
    except (Cancelled, SweepError):
        raise
    except (Ds4Error, MemoryError) as error:
        raise SweepError(f"{action}: {str(error) or 'not enough memory'}") from error
