"""Warnings on measured rows: reasons not to rely on a figure.

They are found while measuring, from the times that the client saw: ``of_counts`` and ``of_first`` examine one answer,
``of_times`` a whole row. The row's field ``warnings`` holds them, as a dict from a code (a key of ``MEANINGS``) to a
sentence with figures; a CSV has only the codes. Tables, plots and reports show them. A comparison of a speed leaves out
rows with a warning that concerns it, and is refused if there are many (``refusal``).
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Warnings = dict[str, str]
Row = Mapping[str, Any]

MEANINGS = {
    "count": "the server's token count contradicts what was asked for or streamed",
    "short": "answers ended before half of the tokens asked for: too few to time",
    "prompt": "the server's prompt token count contradicts the text sent",
    "prefill": "the first event came too soon for a prefill",
    "split": "several events per token: inter-token latencies are those of events",
    "burst": "events came too close together to be told apart",
    "busy": "CPU overloaded: timings unreliable",
}

SPEEDS = ("prefill_tps", "gen_tps")
CONCERNS: dict[str, tuple[str, ...]] = {
    "count": ("gen_tps",), "short": ("gen_tps",), "burst": ("gen_tps",), "split": (), "prompt": ("prefill_tps",),
    "prefill": ("prefill_tps",),
}  # fmt: skip
"""The columns in ``SPEEDS`` that each warning concerns; a code that is missing here concerns all of them."""
SHORT = 0.5
"""Share of the requested tokens below which an answer is too short to measure."""
SLACK = 0.02
"""Share by which a server's token count may differ from the number of streamed events."""
FAST, IMPOSSIBLE = 2e4, 2e6
"""Prefill in tokens/s from which it is checked that it shows in the time to first token; and one that is impossible."""
SHOWS, UNLIKE = 0.25, 1.5
"""Share by which a longer prompt must delay the first token; ratio of lengths from which two prompts are compared."""
STALL = 10
"""Ratio of the first gap between events to the median gap, above which the first event was not the first token."""
RESOLUTION = 1e-4
"""Mean gap between events, in seconds, below which the client measures its own work on an event."""
LATE_GAP, LATE_FIRST = 0.25, 0.1
"""Lateness of the client (``lag_ms``), as a share of the mean gap and of the time to first token, that is too large."""
WAITING = 0.1
"""Share of the measured time spent waiting for a CPU, from which a local row gets a warning."""
MOST = 0.25
"""Share of rows with warnings on a speed, above which this speed is not compared."""


def of_counts(count: int | None, events: int, asked: int, limit: bool, reasoning: int | None = None) -> Warnings:
    """Return warnings if a server's token count is implausible.

    count       number of generated tokens as the server counts them, None if it does not
    events      number of events that were streamed; a token should cause at most one
    asked       number of tokens asked for, 0 if unknown
    limit       whether the finish reason says that the answer stopped at that number
    reasoning   number of tokens that the server counts as reasoning, None if it does not
    """
    more = max(1, SLACK * events)
    if count is None:
        if not limit:
            return {"count": f"does not count its tokens: {events} events are counted instead"}
        return {"count": f"streams {events} events for {asked} tokens"} if asked and events - asked > more else {}
    if count < min(1, events):
        return {"count": f"counts {count} tokens in {events} event(s)"}
    if asked and count > asked:
        return {"count": f"counts {count} tokens where {asked} were asked for"}
    if limit and asked and count < asked:
        return {"count": f"counts {count} tokens where {asked} were asked for, and stopped at the limit"}
    if reasoning is not None and not 0 <= reasoning <= count:
        return {"count": f"counts {reasoning} tokens of reasoning among {count}"}
    if events - count > more:
        return {"split" if limit and count == asked else "count": f"counts {count} tokens in {events} events"}
    return {}


def of_first(arrivals: Sequence[float], prompt: int, short: Sequence[tuple[int, float]] = ()) -> str:
    """Return why the first event of an answer came too early to be a token after the prefill, "" if it is plausible.

    arrivals   seconds from the request to each event
    prompt     number of prompt tokens
    short      (number of tokens, seconds to the first token) of other, short prompts
    """
    first, gaps = arrivals[0], [b - a for a, b in zip(arrivals, arrivals[1:], strict=False)]
    usual = statistics.median(gaps[1:]) if len(gaps) > 1 else 0.0
    if usual > 0 and gaps[0] > max(first, STALL * usual):
        return f"the second event came {1e3 * gaps[0]:.3g} ms after the first, others every {1e3 * usual:.3g} ms"
    others = [other for other in short if not 1 / UNLIKE < other[0] / prompt < UNLIKE]
    if prompt < FAST * first or not others or any(_shows(sorted([(prompt, first), other])) for other in others):
        return ""
    tokens, soon = min(others, key=lambda other: other[1])
    return f"the first event came {1e3 * first:.2g} ms after {prompt:,} tokens, {1e3 * soon:.2g} ms after {tokens:,}"


def _shows(pair: Sequence[tuple[float, float]]) -> bool:
    """Return whether the longer of two prompts delayed the first token enough for a prefill.

    ``pair`` has (number of tokens, seconds to the first token) of both, the shorter first.
    """
    (few, soon), (many, late) = pair
    return late - soon >= max(SHOWS * soon, (many - few) / IMPOSSIBLE)


def of_times(row: Row) -> Warnings:
    """Return the warnings that follow from the answer lengths and the times of a measured row."""
    warnings: Warnings = {}
    asked = row.get("asked_tokens") or 0
    if (row.get("gen_tokens") or 0) < SHORT * asked:
        warnings["short"] = f"answers ended after {row.get('gen_tokens') or 0} of {asked} tokens"
    gaps, first = row.get("steps_s") or (), row.get("ttft_ms")
    load = "" if row.get("load") is None else f" (load {row['load']:g})"
    if first is None:
        if (row.get("wait_share") or 0.0) >= WAITING:
            warnings["busy"] = f"a thread waited for a CPU for {row['wait_share']:.0%} of the time{load}"
        return warnings
    mean, lag = 1e3 * statistics.fmean(gaps) if gaps else 0.0, row.get("lag_ms") or 0.0
    if gaps and mean < 1e3 * RESOLUTION:
        warnings["burst"] = f"events came every {mean:.3f} ms, faster than this client reads them"
    elif not gaps and row["gen_tokens"] > 1:
        warnings["burst"] = f"{row['gen_tokens']} tokens came in one event"
    if lag and (lag >= LATE_FIRST * first or (gaps and lag >= LATE_GAP * mean)):
        warnings["busy"] = f"this client woke {lag:.2g} ms late, events came every {mean:.2g} ms{load}"
    return warnings


# --- rows with warnings


def of(row: Row) -> Warnings:
    """Return the warnings of a row as a dict; of a row from a CSV, which has only codes, with their general meaning."""
    warnings = row.get("warnings")
    if isinstance(warnings, dict):
        return warnings
    return {code: MEANINGS.get(code, code) for code in warnings.split()} if isinstance(warnings, str) else {}


def merged(several: Iterable[Warnings]) -> Warnings:
    """Combine several sets of warnings, in the order of ``MEANINGS``; of equal codes, keep the first sentence."""
    together: Warnings = {}
    for warnings in several:
        together = {**warnings, **together}
    order = list(MEANINGS)
    return dict(sorted(together.items(), key=lambda item: order.index(item[0]) if item[0] in order else len(order)))


def codes(rows: Iterable[Row]) -> str:
    """Return the codes of all warnings on ``rows``, separated by blanks."""
    return " ".join(merged(map(of, rows)))


def concerning(row: Row, column: str) -> str:
    """Return the codes of a row's warnings that concern ``column``, separated by blanks.

    If the column is not a speed, these are all its warnings.
    """
    return " ".join(code for code in of(row) if column not in SPEEDS or column in CONCERNS.get(code, SPEEDS))


def without(rows: Iterable[Row], column: str) -> list[Any]:
    """Return the rows without warnings that concern the speed in ``column``."""
    return [row for row in rows if not concerning(row, column)]


def notes(rows: Sequence[Row]) -> list[str]:
    """Return lines for the user: for each warning code, the number of rows that have it and the first sentence.

    A last line counts rows whose answers ended early, if there are any.
    """
    lines = []
    for code, reason in merged(map(of, rows)).items():
        count = sum(code in of(row) for row in rows)
        lines.append(f"warning ({code}) on {count} of {len(rows)} rows: {reason}")
    early = [
        row
        for row in rows
        if 0 < (row.get("gen_tokens") or 0) < (row.get("asked_tokens") or 0) and not {"short", "count"} & of(row).keys()
    ]
    if early:
        lines.append(
            f"answers ended early on {len(early)} of {len(rows)} rows: after {early[0]['gen_tokens']} of "
            f"{early[0]['asked_tokens']} tokens on the first of them"
        )
    return lines


def refusal(rows: Sequence[Row], column: str) -> str:
    """Return why the speeds in ``column`` cannot be compared, "" if few enough rows have warnings."""
    count = len(rows) - len(without(rows, column))
    return f"{count} of {len(rows)} rows have warnings: {codes(rows)}" if count > MOST * len(rows) else ""
