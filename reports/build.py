"""``ds4-report build``: writes runs as one self-contained HTML file, and the same as Markdown.

Facts that a run lacks are omitted. The first bench run is the baseline with which every other one is compared.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from ds4ref.console.common import atomic_output, check_output, duration
from ds4ref.errors import DataError
from ds4ref.runs import drift, warnings
from ds4ref.runs.columns import BY_NAME, rounded, shown, summaries
from ds4ref.runs.provenance import age
from ds4ref.runs.spread import band_name, median_band
from ds4ref.runs.stats import p_said
from ds4ref.version import __version__

from . import figures
from .compare import Comparison, compare, signed, spanned
from .figures import Bar, Curve, Picture
from .graded import graded_part
from .sources import Measured, model_name
from .tables import printable
from .thresholds import Thresholds

SPEEDS = (("prefill", "prefill_tps"), ("decode", "gen_tps"))


@dataclass
class Report:
    """All data of a report, as the templates show it."""

    title: str
    headline: list[str] = field(default_factory=list)
    pictures: dict[str, Picture] = field(default_factory=dict)
    speeds: list[dict[str, Any]] = field(default_factory=list)
    comparisons: list[Comparison] = field(default_factory=list)
    vectors: list[dict[str, Any]] = field(default_factory=list)
    graded: list[dict[str, Any]] = field(default_factory=list)
    history: list[dict[str, Any]] = field(default_factory=list)
    roofline: list[dict[str, Any]] = field(default_factory=list)
    environments: list[dict[str, Any]] = field(default_factory=list)
    commands: list[tuple[str, str]] = field(default_factory=list)
    version: str = __version__


class WrittenReport(NamedTuple):
    """The files of a written report, the HTML page first, and the sentences at its top."""

    files: list[Path]
    headline: list[str]


def build_report(
    runs: Sequence[Measured],
    output: str,
    title: str | None = None,
    thresholds: Thresholds | None = None,
    earlier: Sequence[Measured] = (),
) -> WrittenReport:
    """Write a report on ``runs`` as OUTPUT.html and OUTPUT.md with its figure.

    thresholds   margins of comparisons, None for the defaults
    earlier      graded runs shown in the history of scores
    """
    path = Path(output)
    twin, figure = path.with_suffix(".md"), path.with_suffix(".svg")
    for file in (path, twin, figure):
        check_output(str(file))
    report = assemble(runs, title, thresholds or Thresholds(), earlier)
    curves = speed_curves([part for m in _numbered(runs) for part in series(m)])
    written = [path, twin]
    if curves["decode"] or curves["prefill"]:
        _write(figure, figures.standalone(curves["prefill"], curves["decode"]))
        written.append(figure)
    _write(path, render("report.html.j2", report).encode("utf-8", "replace"))
    svg = figure.name if figure in written else None
    _write(twin, render("report.md.j2", report, figure=svg).encode("utf-8", "replace"))
    return WrittenReport(written, report.headline)


def assemble(
    runs: Sequence[Measured], title: str | None, thresholds: Thresholds, earlier: Sequence[Measured] = ()
) -> Report:
    """Compute all figures and tables of a report on ``runs``; raises DataError if there is nothing to report."""
    runs = _numbered(runs)
    whole = [m for m in runs if m.run.kind == "bench"]
    bench = [part for m in whole for part in series(m)]
    report = Report(printable(title or _default_title(runs)))
    _add_speed(report, bench)
    _add_pairs(report, whole, thresholds)
    _add_roofline(report, bench)
    for measured in whole:
        peaks = measured.run.fact("peaks")
        if isinstance(peaks, dict):
            old = age(peaks.get("measured"), measured.run.created)
            when = "unknown" if old is None else f"{duration(max(old, 0.0))} before"
            report.roofline.append({"name": printable(measured.name), **peaks, "when": when})
    for measured in runs:
        if measured.run.kind == "vectors":
            report.vectors.append(_vector_table(measured))
    _add_pairs(report, [m for m in runs if m.run.kind == "vectors"], thresholds)
    graded = [m for m in runs if m.run.kind == "eval"]
    _add_pairs(report, graded, thresholds)
    part = graded_part(graded, whole, earlier)
    report.graded, report.history = part.tables, part.history
    report.pictures |= part.pictures
    report.environments = [_environment(m) for m in runs]
    report.commands = [(m.name, _command(m)) for m in runs if _command(m)]
    report.headline += _headline(report)
    if not report.headline:
        raise DataError("nothing to report: no run has rows of a known kind")
    return report


def _numbered(runs: Sequence[Measured]) -> list[Measured]:
    """Number runs of the same name, as a name identifies a line, a colour and a column."""
    counts: Counter[str] = Counter()
    numbered = []
    for measured in runs:
        counts[measured.name] += 1
        number = counts[measured.name]
        label = measured.name if number == 1 else f"{measured.name} ({number})"
        numbered.append(Measured(replace(measured.run, label=label), measured.rows))
    return numbered


def render(template: str, report: Report, **extra: Any) -> str:
    """Return this package's template of that name rendered for the report."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    env = Environment(
        loader=PackageLoader("ds4ref.reports"),
        autoescape=template.endswith(".html.j2"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    env.filters |= {
        "tps": rounded,
        "count": lambda n: f"{n:,}",
        "cell": _markdown_cell,
        "shown": printable,
        "signed": signed,
        "spanned": spanned,
        "p_said": p_said,
    }
    text = env.get_template(template).render(r=report, **extra)
    return re.sub(r"<table>.*?</table>", _labelled, text, flags=re.S) if template.endswith(".html.j2") else text


def _labelled(table: re.Match[str]) -> str:
    """Return an HTML table whose cells have the heading of their column as ``data-label``, for narrow screens."""
    headings = re.findall(r"<th(?: [^>]*)?>(.*?)</th>", table[0])

    def row(line: re.Match[str]) -> str:
        labels = iter(headings)
        return re.sub(r"<td\b", lambda _: f'<td data-label="{next(labels)}"', line[0])

    return re.sub(r"<tr\b[^>]*><td.*?</tr>", row, table[0], flags=re.S)


def series(measured: Measured) -> list[Measured]:
    """Split a run into one series per kind of single test, since tests at the same depth are not repetitions.

    A sweep remains one series, and so does a load, whose levels are rows of one table.
    """
    kinds: dict[str, list[dict[str, Any]]] = {}
    for row in measured.rows:
        kinds.setdefault(str(row.get("test") or "").partition(" @")[0], []).append(row)
    if len(kinds) < 2 or loaded(measured):
        return [measured]
    run = measured.run
    return [Measured(replace(run, label=f"{run.name}, {kind}"), rows) for kind, rows in kinds.items()]


def loaded(measured: Measured) -> bool:
    """Return whether a run has levels of a load, which are no curve over depths."""
    return any(row.get("requests") for row in measured.rows)


def speed_curves(bench: Sequence[Measured]) -> dict[str, list[Curve]]:
    """Return, by metric, a curve of each run: median and band at each depth."""
    curves: dict[str, list[Curve]] = {name: [] for name, _ in SPEEDS}
    entries_of = {id(measured): summaries(measured.rows) for measured in bench if measured.run.kind == "bench"}
    for measured in bench:
        if measured.run.kind != "bench" or loaded(measured):
            continue
        for name, column in SPEEDS:
            entries = [
                entry for entry in entries_of[id(measured)] if figures.finite(entry.get(column)) and entry[column] > 0
            ]
            points = []
            for entry in sorted(entries, key=lambda entry: entry["ctx_tokens"]):
                low, high = (float(entry.get(f"{column}{end}") or entry[column]) for end in ("_low", "_high"))
                points.append((int(entry["ctx_tokens"]), float(entry[column]), low, high))
            warned = {
                int(entry["ctx_tokens"]): codes for entry in entries if (codes := warnings.concerning(entry, column))
            }
            if points:
                curves[name].append(Curve(printable(measured.name), tuple(points), tuple(warned.items())))
    return curves


# --- parts


def _add_speed(report: Report, bench: Sequence[Measured]) -> None:
    curves = speed_curves(bench)
    if curves["prefill"] or curves["decode"]:
        report.pictures["speed"] = figures.speed_picture(curves["prefill"], curves["decode"])
    for measured in bench:
        entries = summaries(measured.rows)
        more = [column for column in shown(entries) if column.name not in LEADING]
        more.sort(key=lambda column: column.name != "test")
        reps = max((int(entry.get("reps") or 1) for entry in entries), default=1)
        table: list[dict[str, Any]] = [
            {"depth": int(entry["ctx_tokens"]), "test": printable(str(entry.get("test") or "")),
             **{name: _speed(entry, column) for name, column in SPEEDS},
             "more": [column.display(entry) for column in more]}
            for entry in entries
        ]  # fmt: skip
        report.speeds.append({"name": printable(measured.name), "rows": table, "reps": reps, "band": band_name(reps),
                              "banded": {m: any(row[m] and row[m][2] for row in table) for m, _ in SPEEDS},
                              "more": [column.heading for column in more],
                              "served": any(entry.get("ttft_ms") for entry in entries),
                              "notes": [printable(note) for note in drift.notes(measured.rows)],
                              "warnings": [printable(note) for note in warnings.notes(measured.rows)],
                              "model": printable(model_name(measured.run.facts) or "")})  # fmt: skip


LEADING = ("ctx_tokens", "prefill_tps", "gen_tps")
"""Columns that come first in tables of speeds: the depth, and speeds with their bands."""


def _speed(entry: dict[str, Any], column: str) -> tuple[float, str, str] | None:
    """Return a speed, as text too, and its band as text, "" if the repetitions do not differ; None if not measured."""
    if not figures.finite(entry.get(column)) or not entry[column]:
        return None
    text, low, high = (BY_NAME[name].display(entry) for name in (column, f"{column}_low", f"{column}_high"))
    return float(entry[column]), text, f"{low} to {high}" if low != high else ""


def _add_pairs(report: Report, runs: Sequence[Measured], thresholds: Thresholds) -> None:
    firsts: dict[Any, Measured] = {}
    for other in runs:
        # arms measured in turn are compared with each other, and the first of them with the baseline
        group = other.run.fact("arms", "group") or other
        base = firsts.get(group, runs[0]) if isinstance(group, str) else runs[0]
        if isinstance(group, str):
            firsts.setdefault(group, other)
        if other is runs[0]:
            continue
        comparison = compare(base, other, thresholds)
        report.comparisons.append(comparison)
        if comparison.depths:
            metrics = list(dict.fromkeys(metric for _, metric, _ in comparison.depths))
            curves = [(m, [(d, ratio) for d, metric, ratio in comparison.depths if metric == m]) for m in metrics]
            key = f"ratio{len(report.comparisons)}"
            name = f"{printable(comparison.b)} against {printable(comparison.a)}"
            report.pictures[key] = figures.ratio_picture(name, curves, thresholds.speed.margin)


def _add_roofline(report: Report, bench: Sequence[Measured]) -> None:
    """Add shares of the bound at the first and the last depth, median over repetitions."""
    bars = []
    for measured in bench:
        for metric in ("prefill", "decode"):
            shares: dict[int, list[float]] = {}
            binds: dict[int, str] = {}
            for row in measured.rows:
                share = row.get(f"{metric}_share")
                if figures.finite(share):
                    shares.setdefault(int(row["ctx_tokens"]), []).append(float(share))  # type: ignore[arg-type]
                    binds[int(row["ctx_tokens"])] = str(row.get(f"{metric}_binds") or "")
            for depth in dict.fromkeys([min(shares), max(shares)]) if shares else ():
                share = median_band(shares[depth])[0]
                name = (
                    f"{printable(measured.name)}, {metric} at {depth:,}" if len(bench) > 1 else f"{metric} at {depth:,}"
                )
                bars.append(Bar(name, share, f"bound by {binds[depth]}" if binds[depth] else ""))
    if bars:
        report.pictures["roofline"] = figures.roofline_picture(bars)


def _vector_table(measured: Measured) -> dict[str, Any]:
    numbers = ("tokens", "nll", "top1", "max_abs")
    rows = []
    for row in measured.rows:
        words = {name: printable(str(row.get(name) or "")) for name in ("id", "verdict")}
        rows.append({**words, **{name: row.get(name) for name in numbers}, "passed": bool(row.get("passed"))})
    passed = sum(bool(row["passed"]) for row in rows)
    has_nll = any(row["nll"] is not None for row in rows)
    return {"name": printable(measured.name), "rows": rows, "passed": passed, "total": len(rows), "has_nll": has_nll}


def _environment(measured: Measured) -> dict[str, Any]:
    run = measured.run
    machine = run.fact("machine") or {}
    memory = machine.get("memory_bytes")
    governor, huge = machine.get("governor"), machine.get("huge_pages")
    cores = (
        f"{machine.get('cores')} of {machine.get('cores_total')}"
        if machine.get("cores_total")
        else machine.get("cores")
    )
    versions = run.fact("versions") or {}
    facts = {
        "created": run.created.replace("T", " ").rstrip("Z") + " (UTC)",
        "model": model_name(run.facts),
        "model SHA-256": run.fact("model", "sha256"),
        "prompt SHA-256": run.fact("prompt_sha256"),
        "engine": run.fact("engine"),
        "backend, numerics": ", ".join(str(v) for v in (run.fact("backend"), run.fact("numerics")) if v) or None,
        "threads": run.fact("threads"),
        "processor": machine.get("cpu"),
        "cores": cores,
        "memory": f"{memory / 2**30:.1f} GiB" if memory else None,
        "clock governor": governor,
        "huge pages": huge,
        "system": machine.get("system"),
        "load before": machine.get("load"),
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()) or None,
        "commit": run.fact("commit"),
        "seed": run.fact("seed"),
        "pack": _pack(run.fact("pack")),
        "settings": ", ".join(f"{k} {v}" for k, v in (run.fact("settings") or {}).items() if k != "system") or None,
        "source": run.fact("source", "file"),
        "run": f"{run.id}, {run.uid[:12]}" if run.id else None,
    }
    pairs = [(name, printable(str(value))) for name, value in facts.items() if value is not None]
    return {"name": printable(measured.name), "facts": pairs}


def _pack(pack: Any) -> str | None:
    if not isinstance(pack, dict):
        return None
    return (
        f"{pack.get('pack')} {pack.get('version')}, {pack.get('questions')} questions, {str(pack.get('digest'))[:12]}"
    )


def _command(measured: Measured) -> str:
    import shlex

    command = measured.run.fact("command")
    return printable(shlex.join(map(str, command))) if isinstance(command, list) else ""


def _headline(report: Report) -> list[str]:
    """Return the sentences at the top of the report."""
    lines = []
    for table in report.speeds:
        phrases = []
        for name, _ in SPEEDS:
            known = [row for row in table["rows"] if row[name]]
            if known:
                first, last = known[0], known[-1]
                where = [row["test"] or f"{row['depth']:,}" for row in (first, last)]
                text = f"{name} {first[name][1]} tokens/s at {where[0]}"
                if last is not first:
                    change = 100 * (last[name][0] / first[name][0] - 1)
                    text += f", {last[name][1]} at {where[1]} ({change:+.0f} %)"
                phrases.append(text)
        if phrases:
            lines.append(f"{table['name']}: {'; '.join(phrases)}.")
        lines += [f"{table['name']}: {note}." for note in table["warnings"]]
    for comparison in report.comparisons:
        reason = f" ({comparison.notes[0]})" if comparison.verdict == "incomparable" else ""
        names = printable(comparison.a), printable(comparison.b)
        verdicts = "; ".join(f.sentence(*names) for f in comparison.findings) or comparison.verdict + printable(reason)
        named = comparison.kind == "bench" and bool(comparison.findings)  # then each sentence has both names
        lines.append(f"{verdicts}." if named else f"{names[1]} against {names[0]}: {verdicts}.")
    for vectors in report.vectors:
        lines.append(f"{vectors['name']}: {vectors['passed']} of {vectors['total']} vectors pass.")
    for graded in report.graded:
        lines.append(
            f"{graded['name']}: {graded['score']:.1%} of {graded['n']} questions "
            f"({graded['low']:.1%} to {graded['high']:.1%})."
        )
        lines += [f"{graded['name']}: {note}." for note in graded["notes"]]
    return lines


def _default_title(runs: Sequence[Measured]) -> str:
    names = list(dict.fromkeys(m.name for m in runs))
    listed = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return f"Measured: {listed}"


def _markdown_cell(value: Any) -> str:
    text = str(value).replace("&", "&amp;").replace("<", "&lt;").replace("\\", "\\\\")
    return text.replace("|", "\\|").replace("\n", " ")


def _write(path: Path, data: bytes) -> None:
    with atomic_output(str(path)) as out:
        out.write(data)
