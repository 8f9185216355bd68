"""All columns of a result: name, unit, type, how repetitions are combined, and how tables show them.

A new column needs one entry here. In local runs its value is the property of ``sweep.SweepRow`` with the same name;
other sources put the value into their samples under that name. CSV files, SQL, summaries, tables (in the terminal and
in reports) and docs/reference/bench.md are generated from the entries, so that they agree on names and numbers.

    python -m ds4ref.runs.columns        prints the table of docs/reference/bench.md
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from . import warnings

Row = dict[str, Any]
"""A measured row, or a summary of its repetitions: column -> value. A measured row also has ``rep`` (number of the
repetition), ``at`` (when it was measured) and lists of single times in seconds (names that end in ``_s``)."""
Combine = Callable[[str, Sequence[Row]], Any]
P95_FROM, P99_FROM = 20, 100
"""Minimum number of values for which the 95th and the 99th percentile are reported."""


def _numbers(name: str, group: Sequence[Row]) -> list[float]:
    return [entry[name] for entry in group if isinstance(entry.get(name), (int, float))]


def median(name: str, group: Sequence[Row]) -> Any:
    """Return the median of column ``name`` over the repetitions that have a value; for text, the last value."""
    values = _numbers(name, group)
    return statistics.median(values) if values else group[-1].get(name)


def last(name: str, group: Sequence[Row]) -> Any:
    """Return the last repetition's value of column ``name``; for columns that are the same in all repetitions."""
    return group[-1].get(name)


def largest(name: str, group: Sequence[Row]) -> Any:
    """Return the maximum of column ``name`` over the repetitions."""
    return max(_numbers(name, group), default=None)


def typical(name: str, group: Sequence[Row]) -> int | None:
    """Return the median of column ``name``, rounded to a whole number; None if no repetition has a value."""
    value = median(name, group)
    return None if value is None else round(value)


def alike(name: str, group: Sequence[Row]) -> Any:
    """Return the value of column ``name`` if all repetitions have the same, else the text "differs"."""
    return group[-1].get(name) if len({entry.get(name) for entry in group}) == 1 else "differs"


def count(name: str, group: Sequence[Row]) -> int:
    """Return the number of repetitions; ``name`` is not used."""
    return len(group)


def all_warnings(name: str, group: Sequence[Row]) -> str | None:
    """Return the codes of all warnings on the repetitions, None if there are none; ``name`` is not used."""
    return warnings.codes(group) or None


def band(source: str, end: int) -> Combine:
    """Return a function that combines repetitions to the lower (``end`` 1) or upper (2) quartile of column ``source``.

    With two to four repetitions it returns the minimum or maximum, with a single one None.
    """

    def combine(name: str, group: Sequence[Row]) -> float | None:
        from .spread import median_band

        values = _numbers(source, group)
        quartiles = median_band(values) if len(values) > 1 else (0.0, 0.0, 0.0)
        return quartiles[end] if quartiles[2] > 0 else None

    return combine


def percentile(source: str, q: float) -> Combine:
    """Return a function that combines repetitions to a percentile of the single times of all of them, in milliseconds.

    source   name of the field with the times, a list of seconds in each row
    q        the percentile as a share: 0.95 for the 95th

    Of too few times the function returns None; of rows without times, which were read from a CSV, the median of the
    percentiles that they state.
    """
    least = 1 if q <= 0.5 else P95_FROM if q <= 0.95 else P99_FROM

    def combine(name: str, group: Sequence[Row]) -> float | None:
        from .spread import quantile

        values = [1e3 * seconds for entry in group for seconds in entry.get(source, ())]
        if not values:
            return median(name, group)
        return quantile(values, q) if len(values) >= least else None

    return combine


@dataclass(frozen=True)
class Column:
    """A column of result CSVs; one with a ``heading`` is also shown in tables.

    name, meaning, unit, type   as documented for users
    form, display_form          format specifications of a CSV cell and of a table cell
    combine                     function that combines the values of repetitions into one
    heading                     heading in tables, "" to leave the column out of them
    rank                        in a narrow terminal, columns of the highest rank are omitted first
    factor                      a table shows the value times this number, to convert units
    unlike, slack               name of another column: tables show this column only if their values differ by more
                                than this share
    """

    name: str
    meaning: str
    unit: str = ""
    type: type = float
    form: str = ""
    combine: Combine = median
    heading: str = ""
    display_form: str = ""
    rank: int = 0
    factor: float = 1.0
    unlike: str = ""
    slack: float = 0.0

    def cell(self, entry: Mapping[str, Any]) -> str:
        """Return the CSV cell for a summary, "" if the value was not measured."""
        value = entry.get(self.name)
        if value is None or (isinstance(value, str) and self.type is not str):
            return ""
        return format(int(value) if self.type is int else value, self.form)

    def display(self, entry: Mapping[str, Any]) -> str:
        """Return the table cell for a summary, "" if the value is 0 or was not measured.

        It is rounded from the CSV cell, so that a table never contradicts the CSV.
        """
        value = entry.get(self.name)
        if isinstance(value, dict):
            return " ".join(value)
        if not value or isinstance(value, str):
            return value or ""
        value = float(self.cell(entry))
        return format(value * self.factor, self.display_form) if self.display_form else rounded(value * self.factor)

    def differs(self, entry: Mapping[str, Any]) -> bool:
        """Return whether a summary has this value and that of ``unlike``, and they differ by more than ``slack``."""
        value, other = entry.get(self.name), entry.get(self.unlike)
        return value is not None and other is not None and abs(value - other) > self.slack * other


def rounded(value: float) -> str:
    """Format a rate or a time with about three digits."""
    return f"{value:,.0f}" if value >= 999.95 else f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"


def _speed(name: str, meaning: str, heading: str = "", rank: int = 0, form: str = ".2f") -> Column:
    return Column(name, meaning, "tokens/s", form=form, heading=heading, rank=rank)


def _ms(name: str, meaning: str, combine: Combine = median, heading: str = "", rank: int = 0) -> Column:
    return Column(name, meaning, "ms", form=".3f", combine=combine, heading=heading, rank=rank)


COLUMNS = (
    # the columns of ds4's own ds4-bench, in the same format
    Column("ctx_tokens", "the depth: tokens in the context after prefill", "tokens", int, "d", last, "context",
           ",.0f", 1),
    Column("prefill_tokens", "tokens prefilled: those since the depth before", "tokens", int, "d", last),
    _speed("prefill_tps", "speed of that prefill", "prefill t/s", 2),
    Column("gen_tokens", "decode steps; endpoints: tokens of the answer, shown where not as many as asked for",
           "tokens", int, "d", typical, "tokens", ",.0f", 2, unlike="asked_tokens"),
    _speed("gen_tps", "decode, the first step included", "decode t/s", 2),
    Column("kvcache_bytes", "size of the saved session at this depth (computed from the depth, not measured)",
           "bytes", int, "d", last, "session MiB", ",.2f", 9, 2.0**-20),
    # our additions
    _ms("gen_first_ms", "the first decode step, and what a new session prepares for it",
        heading="first step ms", rank=6),
    _speed("gen_steady_tps", "decode without the first step"),
    Column("gen_digest", "equal if two runs decoded the same tokens (other tokens use other experts: other work)",
           type=str, combine=alike),
    Column("reps", "repetitions; speeds are medians over them", type=int, form="d", combine=count),
    Column("prefill_tps_low", "lower quartile of the repetitions (below five repetitions: minimum)", "tokens/s",
           form=".2f", combine=band("prefill_tps", 1)),
    Column("prefill_tps_high", "upper quartile (maximum)", "tokens/s", form=".2f", combine=band("prefill_tps", 2)),
    Column("gen_tps_low", "the same for decode", "tokens/s", form=".2f", combine=band("gen_tps", 1)),
    Column("gen_tps_high", "upper quartile (maximum)", "tokens/s", form=".2f", combine=band("gen_tps", 2)),
    _ms("itl_p50_ms", "inter-token latency: median of all steps of all repetitions", percentile("steps_s", 0.5),
        "ITL p50 ms", 7),
    _ms("itl_p95_ms", f"95th percentile of the same, from {P95_FROM} steps on", percentile("steps_s", 0.95),
        "ITL p95 ms", 7),
    Column("rss_bytes", "memory of the process after the row, mapped model pages included", "bytes", int, "d", largest,
           "process MiB", ",.0f", 9, 2.0**-20),
    Column("cache_bytes_per_token", "KV cache divided by the depth", "bytes", form=".1f"),
    Column("decode_bytes", "bytes that decoding one token must read: weights and KV cache", "bytes", int, "d"),
    Column("decode_gbs", "memory bandwidth that the decode speed implies", "GB/s", form=".3f", heading="GB/s",
           display_form=".2f", rank=10),
    Column("decode_share", "decode speed as a share of the roofline bound", form=".4f",
           heading="decode share", display_form=".0%", rank=8),
    Column("decode_binds", "limiting resource: bytes or arithmetic", type=str, combine=last),
    Column("prefill_share", "prefill speed as a share of the roofline bound", form=".4f",
           heading="prefill share", display_form=".0%", rank=8),
    Column("prefill_binds", "limiting resource", type=str, combine=last),
    Column("test", "name of a single test or load level; empty in a sweep", type=str, combine=last, heading="test"),
    _ms("ttft_ms", "endpoints: time to first token", heading="TTFT ms", rank=3),
    _ms("e2e_ms", "endpoints: to the end of the stream", heading="end to end ms", rank=5),
    Column("prompt_tokens", "endpoints: prompt tokens as the server counts them, shown where 5 % off the depth",
           "tokens", int, "d", heading="prompt tokens", display_form=",.0f", rank=2, unlike="ctx_tokens", slack=0.05),
    Column("cached_tokens", "endpoints: prompt tokens that the server took from a cache", "tokens", int, "d"),
    Column("streams", "endpoints: concurrent streams", type=int, form="d", combine=last, heading="streams",
           display_form=",.0f", rank=1),
    _speed("total_tps", "endpoints: all streams together", "all t/s", 3),
    Column("fairness", "endpoints: Jain's index of the streams' rates", form=".4f", heading="fairness",
           display_form=".3f", rank=8),
    _ms("itl_p99_ms", f"99th percentile of inter-token latency, from {P99_FROM} steps on", percentile("steps_s", 0.99)),
    _ms("ttft_p95_ms", "under load: time to first token", percentile("ttfts_s", 0.95), "TTFT p95", 4),
    _ms("ttft_p99_ms", "under load", percentile("ttfts_s", 0.99)),
    _ms("tpot_p50_ms", "under load: time per output token after the first, one value per request",
        percentile("tpots_s", 0.5), "TPOT ms", 4),
    _ms("tpot_p95_ms", "under load", percentile("tpots_s", 0.95), "TPOT p95", 5),
    _ms("tpot_p99_ms", "under load", percentile("tpots_s", 0.99)),
    _ms("e2e_p95_ms", "under load: to the end of the stream", percentile("e2es_s", 0.95)),
    _ms("e2e_p99_ms", "under load", percentile("e2es_s", 0.99)),
    Column("offered_rps", "under load: average rate of sending; empty with --concurrency",
           "requests/s", form=".4f", combine=last, heading="sent/s", display_form=".2f", rank=5),
    Column("request_rps", "under load: requests answered", "requests/s", form=".4f", heading="answered/s",
           display_form=".2f", rank=3),
    Column("goodput_rps", "under load: requests answered within --goodput", "requests/s", form=".4f",
           heading="goodput/s", display_form=".2f", rank=2),
    Column("requests", "under load: number of requests", type=int, form="d", combine=last, heading="requests",
           display_form=",.0f", rank=6),
    Column("failed", "under load: number of failed requests", type=int, form="d", heading="failed",
           display_form=".0f", rank=2),
    Column("warnings", f"reasons not to rely on the row: {', '.join(warnings.MEANINGS)} (below)", type=str,
           combine=all_warnings, heading="warnings", rank=1),
    _ms("lag_ms", "endpoints: how late this client wakes from sleep (CPU contention)"),
    Column("wait_share", "local: share of the timed windows that a thread waited for a CPU (Linux)", form=".4f"),
    Column("load", "load average of the machine over the last minute, after the row", form=".2f"),
    Column("drafted", "speculative decoding: tokens drafted", "tokens", int, "d"),
    Column("accepted", "drafted tokens that were accepted", "tokens", int, "d"),
    Column("tokens_per_pass", "tokens decoded per forward pass", form=".3f", heading="tokens/pass",
           display_form=".2f", rank=4),
    Column("drafts", "accepted/drafted by source and draft length", type=str, combine=last),
    Column("asked_tokens", "endpoints: tokens of the answer that were asked for", "tokens", int, "d", typical,
           "asked", ",.0f", 2, unlike="gen_tokens"),
)  # fmt: skip
NAMES = tuple(column.name for column in COLUMNS)
BY_NAME = dict(zip(NAMES, COLUMNS, strict=True))
HEADER = ",".join(NAMES)
_MOMENT = ("rep", "at")
"""Fields of a measured row that concern one repetition and are left out of a summary."""


def summary(group: Sequence[Row]) -> Row:
    """Combine the repetitions of one depth or test into one row.

    Of values that are in no column of this module, the summary has the median.
    """
    entry: Row = {}
    for column in COLUMNS:
        value = column.combine(column.name, group)
        if value is not None or column.name in group[-1]:
            entry[column.name] = value
    for name, value in group[-1].items():
        if name not in entry and name not in _MOMENT and not isinstance(value, (list, tuple)):
            entry[name] = median(name, group)
    return entry


def place(entry: Mapping[str, Any]) -> tuple[int, str]:
    """Return what was measured in a row: (depth in tokens, name of the test or ""); repetitions have it in common."""
    return int(entry["ctx_tokens"]), str(entry.get("test") or "")


def grouped(rows: Sequence[Row]) -> dict[tuple[int, str], list[Row]]:
    """Group the rows that are repetitions of each other, by (depth, test), in order of first appearance."""
    groups: dict[tuple[int, str], list[Row]] = {}
    for row in rows:
        groups.setdefault(place(row), []).append(row)
    return groups


def summaries(samples: Sequence[Row]) -> list[Row]:
    """Combine the repetitions among measured rows; return one summary per depth, by depth, or per test, in their order.

    Rows that are already summaries, as those of a CSV are, stay unchanged.
    """
    groups = grouped(samples)
    ordered = sorted(groups, key=lambda key: 0 if key[1] else key[0])
    alone = {key: group[0] for key, group in groups.items() if len(group) == 1 and group[0].get("reps")}
    return [alone[key] if key in alone else summary(groups[key]) for key in ordered]


def shown(entries: Sequence[Mapping[str, Any]]) -> list[Column]:
    """Return the columns that a table of these summaries needs: those with a heading and something to show."""
    return [
        column
        for column in COLUMNS
        if column.heading
        and any(column.display(entry) for entry in entries)
        and (not column.unlike or any(column.differs(entry) for entry in entries))
    ]


def format_row(entry: Mapping[str, Any]) -> str:
    """Return the CSV line of a summary, without newline."""
    return ",".join(column.cell(entry) for column in COLUMNS)


def csv_text(samples: Sequence[Row]) -> str:
    """Combine the repetitions among measured rows and return the summaries as the text of a CSV with header."""
    return "\n".join([HEADER, *map(format_row, summaries(samples))]) + "\n"


def documentation() -> str:
    """Return the Markdown table of all columns that docs/reference/bench.md contains."""
    lines = ["| column | unit | meaning |", "|---|---|---|"]
    lines += [f"| `{column.name}` | {column.unit} | {column.meaning} |" for column in COLUMNS]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(documentation(), end="")
