"""Marks on measured rows: reasons why a figure is not to be relied on.

A row is judged where it is measured, by what the client's own clock saw: ``of_counts`` and ``of_first`` judge one
answer, ``of_times`` a whole row. The marks are the row's field ``marks``, a dict from a code of ``MEANINGS`` to a
sentence with figures; a CSV has the codes alone. Tables, plots and reports show them. A comparison of a speed leaves
rows out that are marked for it, and is refused if there are many (``refusal``).
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Marks = dict[str, str]
Row = Mapping[str, Any]

MEANINGS = {
    "count": "the server's count of tokens contradicts what it streamed",
    "prompt": "the server's count of prompt tokens contradicts the text that was sent",
    "prefill": "the first piece came too soon for a prefill",
    "burst": "pieces came too close together to be told apart",
    "busy": "waiting for a processor rivals the times measured",
}

CONCERNS = {"count": ("gen_tps",), "burst": ("gen_tps",), "prompt": ("prefill_tps",), "prefill": ("prefill_tps",)}
"""Columns of the speeds that a mark concerns; all of them if its code is not here."""
SLACK = 0.02
"""Share by which a count of tokens may differ from what was seen."""
FAST, IMPOSSIBLE = 2e4, 2e6
"""Tokens/s of prefill from which it must show in the time to first token, and which no machine reaches."""
SHOWS, UNLIKE = 0.25, 1.5
"""Share by which a longer prompt must delay the first token for its prefill to show; ratio of lengths compared."""
STALL = 10
"""Ratio of the first gap to the median one from which the first piece was not the first token."""
RESOLUTION = 1e-4
"""Mean gap in seconds below which the client's own work on a piece is what is measured."""
LATE_GAP, LATE_FIRST = 0.25, 0.1
"""Lag of the client as a share of the mean gap, and of the time to first token, from which it rivals them."""
WAITING = 0.1
"""Share of the timed windows spent waiting for a processor from which a local row is marked."""
MOST = 0.25
"""Share of marked rows above which a speed is not compared."""


def of_counts(count: int, pieces: int, asked: int, reasoning: int = 0) -> str:
    """Return why a server's ``count`` of generated tokens cannot be true, "" if it can.

    pieces      number of pieces that were streamed; a token brings at most one
    asked       number of tokens asked for, 0 if unknown
    reasoning   number of tokens that the server counts as reasoning
    """
    if count < min(1, pieces):
        return f"counts {count} tokens in {pieces} piece(s)"
    if asked and count > asked:
        return f"counts {count} tokens where {asked} were asked for"
    if pieces - count > max(1, SLACK * pieces):
        return f"counts {count} tokens in {pieces} pieces"
    if reasoning < 0 or reasoning > count:
        return f"counts {reasoning} tokens of reasoning among {count}"
    return ""


def of_first(arrivals: Sequence[float], prompt: int, short: Sequence[tuple[int, float]] = ()) -> str:
    """Return why the first piece of an answer cannot have followed the prefill of its prompt, "" if it can.

    arrivals   seconds from the request to each piece
    prompt     number of prompt tokens
    short      numbers of tokens of short prompts, and seconds to the first token after each
    """
    first, gaps = arrivals[0], [b - a for a, b in zip(arrivals, arrivals[1:], strict=False)]
    usual = statistics.median(gaps[1:]) if len(gaps) > 1 else 0.0
    if usual > 0 and gaps[0] > max(first, STALL * usual):
        return f"the second piece came {1e3 * gaps[0]:.3g} ms after the first, others every {1e3 * usual:.3g} ms"
    others = [other for other in short if not 1 / UNLIKE < other[0] / prompt < UNLIKE]
    if prompt < FAST * first or not others or any(_shows(sorted([(prompt, first), other])) for other in others):
        return ""
    tokens, soon = min(others, key=lambda other: other[1])
    return f"the first piece came {1e3 * first:.2g} ms after {prompt:,} tokens, {1e3 * soon:.2g} ms after {tokens:,}"


def _shows(pair: Sequence[tuple[float, float]]) -> bool:
    """Return whether the longer of two prompts (tokens, seconds to the first token) shows its longer prefill."""
    (few, soon), (many, late) = pair
    return late - soon >= max(SHOWS * soon, (many - few) / IMPOSSIBLE)


def of_times(row: Row) -> Marks:
    """Return the marks that follow from the times of a measured row."""
    marks: Marks = {}
    gaps, first = row.get("steps_s") or (), row.get("ttft_ms")
    load = "" if row.get("load") is None else f" (load {row['load']:g})"
    if first is None:
        if (row.get("wait_share") or 0.0) >= WAITING:
            marks["busy"] = f"a thread waited {row['wait_share']:.0%} of the time for a processor{load}"
        return marks
    mean, lag = 1e3 * statistics.fmean(gaps) if gaps else 0.0, row.get("lag_ms") or 0.0
    if gaps and mean < 1e3 * RESOLUTION:
        marks["burst"] = f"pieces came every {mean:.3f} ms, quicker than this client reads them"
    elif not gaps and row["gen_tokens"] > 1:
        marks["burst"] = f"{row['gen_tokens']} tokens came in one piece"
    if lag and (lag >= LATE_FIRST * first or (gaps and lag >= LATE_GAP * mean)):
        marks["busy"] = f"this client woke {lag:.2g} ms late, pieces came every {mean:.2g} ms{load}"
    return marks


# --- marked rows


def of(row: Row) -> Marks:
    """Return the marks of a row, whether measured or read from a CSV, which has codes alone."""
    marks = row.get("marks")
    if isinstance(marks, dict):
        return marks
    return {code: MEANINGS.get(code, code) for code in marks.split()} if isinstance(marks, str) else {}


def merged(several: Iterable[Marks]) -> Marks:
    """Return all marks, in the order of ``MEANINGS``; of equal codes the first sentence."""
    found: Marks = {}
    for marks in several:
        found = {**marks, **found}
    order = list(MEANINGS)
    return dict(sorted(found.items(), key=lambda item: order.index(item[0]) if item[0] in order else len(order)))


def codes(rows: Iterable[Row]) -> str:
    """Return the codes of all marks on ``rows``, separated by blanks."""
    return " ".join(merged(map(of, rows)))


def concerning(row: Row, column: str) -> str:
    """Return the codes of a row's marks that concern the speed in ``column``, separated by blanks."""
    return " ".join(code for code in of(row) if column in CONCERNS.get(code, (column,)))


def unmarked(rows: Iterable[Row], column: str) -> list[Any]:
    """Return the rows without marks that concern the speed in ``column``."""
    return [row for row in rows if not concerning(row, column)]


def notes(rows: Sequence[Row]) -> list[str]:
    """Return one line per code: how many rows have it, and the first reason."""
    lines = []
    for code, reason in merged(map(of, rows)).items():
        count = sum(code in of(row) for row in rows)
        lines.append(f"{count} of {len(rows)} row(s) marked {code}: {reason}")
    return lines


def refusal(rows: Sequence[Row], column: str) -> str:
    """Return why the speeds in ``column`` cannot be compared, "" if few enough rows are marked."""
    count = len(rows) - len(unmarked(rows, column))
    return f"{count} of {len(rows)} row(s) marked {codes(rows)}" if count > MOST * len(rows) else ""
