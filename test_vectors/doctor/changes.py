"""What changed since earlier examinations of the same target, which the run store keeps.

An outcome, or a figure that is a name (one word: a verdict, a checkpoint), has changed if it differs from that of the
last examination. Any other figure has changed if its new value lies outside the range expected from ``FEWEST`` or more
earlier ones (99.9 % prediction interval; texts: if none of them was equal); with fewer, its noise is unknown: no claim.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ds4ref.console.page import without
from ds4ref.runs.provenance import stamp

from ..finding import Outcome, plain
from .examination import Examination

if TYPE_CHECKING:
    from ds4ref.runs.store import Store

KIND = "doctor"
FEWEST, MOST = 3, 12
"""Numbers of earlier examinations: at least for a claim about a figure, and at most that are read."""
LEVEL = 0.999
NOT_RUN, SPOILED = Outcome.SKIPPED.value, {outcome.value for outcome in Outcome if outcome.spoils}
SAME = ("target", "model", "quick", "long")
"""Keys of ``Examination.form`` that must be equal for two examinations to be compared."""
Rows = Mapping[tuple[str, str], Mapping[str, Any]]


def keep(store: Store, examination: Examination, argv: Sequence[str], label: str, secret: str = "") -> int:
    """Add an examination to the store, one row per check, without the API key ``secret``; return the run's number."""
    facts = {**stamp([*argv]), "form": examination.form, "identity": plain(examination.identity),
             "verdict": examination.verdict, "model": {"file": examination.form.get("model")}}  # fmt: skip
    rows = [{"stage": stage.name, "check": check.name, "outcome": check.outcome.value, "cause": check.cause,
             "says": check.says, "figures": plain(check.figures)}
            for stage, check in examination.checks()]  # fmt: skip
    facts, rows = json.loads(without(json.dumps([facts, rows], ensure_ascii=False, default=str), secret))
    status = "stopped" if examination.signum else "complete"
    return store.add(KIND, facts, rows, label=label or examination.target, status=status)


def since(store: Store, examination: Examination) -> dict[str, Any]:
    """Return what changed since the newest complete examination of the same form; {} if there is none.

    {"run": its number, "date": ..., "runs": number of earlier ones compared, "checks": [{"stage", "check", "field",
    "was", "now"}, ...]}; field: "outcome" or the name of a figure.
    """
    form = {key: examination.form.get(key) for key in SAME}
    runs = [run for run in store.runs(KIND) if run.status == "complete"
            and {key: run.fact("form", key) for key in SAME} == form][:MOST]  # fmt: skip
    if not runs:
        return {}
    earlier: list[Rows] = [{(r["stage"], r["check"]): r for r in store.rows(run.id)} for run in runs]
    now: Rows = {(stage.name, check.name): {"outcome": check.outcome.value, "figures": plain(check.figures)}
                 for stage, check in examination.checks()}  # fmt: skip
    checks = [
        {"stage": key[0], "check": key[1], "field": name, "was": was, "now": value}
        for key in now.keys() | earlier[0].keys()
        for name, was, value in _differences(key, now, earlier)
    ]
    order = {(stage.name, check.name): at for at, (stage, check) in enumerate(examination.checks())}
    checks.sort(key=lambda c: (order.get((c["stage"], c["check"]), len(order)), c["field"] != "outcome", c["field"]))
    return {"run": runs[0].id, "date": runs[0].created, "runs": len(runs), "checks": checks}


def _differences(key: tuple[str, str], now: Rows, earlier: Sequence[Rows]) -> Iterator[tuple[str, Any, Any]]:
    """Yield (outcome or figure, value in the last examination, value now) of one check where it has changed."""
    new, last = now.get(key, {}), earlier[0].get(key, {})
    was, value = last.get("outcome", ""), new.get("outcome", "")
    ran = all(any(name == key[0] and row["outcome"] != NOT_RUN for (name, _), row in rows.items())
              for rows in (now, earlier[0]))  # fmt: skip
    # some checks report only what is wrong; one that did not run has not changed
    if was != value and ran and NOT_RUN not in (was, value) and (was and value or {was, value} & SPOILED):
        yield "outcome", was or "not reported", value or "not reported"
    for name, value in new.get("figures", {}).items():
        values = [figures[name] for each in earlier if name in (figures := each.get(key, {}).get("figures", {}))]
        name_only = isinstance(value, str) and " " not in value
        if value != values[0] if name_only and values else len(values) >= FEWEST and beyond_noise(value, values):
            yield name, values[0], value


def beyond_noise(value: Any, earlier: Sequence[Any]) -> bool:
    """Return whether a figure's value is not to be expected after ``earlier`` values of it."""
    numbers = [v for v in (value, *earlier) if isinstance(v, int | float) and not isinstance(v, bool)]
    if len(numbers) <= len(earlier):
        return value not in earlier
    from scipy.stats import t

    # logarithms, as the noise of times and distances is a factor; where one is not positive, the values themselves
    if min(numbers) > 0:
        numbers = [math.log(v) for v in numbers]
    past = numbers[1:]
    spread = statistics.stdev(past) * math.sqrt(1 + 1 / len(past))
    allowed = float(t.ppf((1 + LEVEL) / 2, len(past) - 1)) * spread
    return abs(numbers[0] - statistics.fmean(past)) > max(allowed, 1e-9 * max(map(abs, numbers)))
