"""``ds4-report build``: writes a report on runs as one self-contained HTML file, and the same as Markdown.

The first run of each kind is the baseline with which the others are compared. Metadata that a run does not have are
left out.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from ds4ref.console.comparison import FINDINGS, SCORES
from ds4ref.console.curves import Curve
from ds4ref.console.page import Code, Listing, Page, Picture, Section, Table, Text, Toned, line, write_page
from ds4ref.errors import DataError
from ds4ref.runs import drift, warnings
from ds4ref.runs.columns import BY_NAME, shown, summaries
from ds4ref.runs.compare import compare
from ds4ref.runs.spread import band_name
from ds4ref.runs.statements import Comparison
from ds4ref.runs.store import Measured
from ds4ref.runs.words import SPEEDS

from .figures import finite, speed_picture
from .graded import graded_section, graded_sentences
from .sources import model_name

LEADING = ("ctx_tokens", "prefill_tps", "gen_tps")
"""Columns that come first in tables of speeds: the depth and the two speeds, which get columns for their bands."""
TONES = {"better": "good", "worse": "bad", "incomparable": "bad", "refused": "bad", "unclear": "unsure"}
FOOTER = "Speeds depend on machine, load and prompt; small differences show only between runs measured in turn."


class WrittenReport(NamedTuple):
    """A report that was written: its files, the HTML page first, and the sentences at its top (``headline``)."""

    files: list[str]
    headline: list[str]


def build_report(runs: Sequence[Measured], output: str, title: str | None = None) -> WrittenReport:
    """Write the report on ``runs`` to the HTML file ``output``.

    The same as Markdown, and the plot of speeds as SVG, are written to files next to it. ``title`` is by default made
    from the names of the runs. Raise DataError if there is nothing to report, or a file cannot be written.
    """
    page = assemble(runs, title, figure=Path(output).with_suffix(".svg").name)
    return WrittenReport(write_page(output, page, "ds4-report"), list(page.headline))


def assemble(runs: Sequence[Measured], title: str | None = None, figure: str = "") -> Page:
    """Return the page on ``runs``; ``figure`` is the name of the file with the plot of speeds, for Markdown."""
    runs = _numbered(runs)
    kinds = {kind: [m for m in runs if m.run.kind == kind] for kind in ("bench", "vectors", "eval")}
    bench = [part for m in kinds["bench"] for part in series(m)]
    comparisons = [comparison for several in kinds.values() for comparison in _against_baselines(several)]
    headline = [
        *(sentence for m in bench for sentence in _speed_sentences(m)),
        *(_comparison_sentence(comparison) for comparison in comparisons),
        *(f"{m.name}: {_passed(m)} of {len(m.rows)} vectors pass." for m in kinds["vectors"]),
        *(sentence for m in kinds["eval"] for sentence in graded_sentences(m)),
    ]
    if not headline:
        raise DataError("nothing to report: no run has rows of a known kind")
    names = list(dict.fromkeys(m.name for m in runs))
    listed = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    commands = [(m.name, m.run.fact("command")) for m in runs if isinstance(m.run.fact("command"), list)]
    sections: dict[str, Sequence[Any]] = {
        "Speed": [*_speed_pictures(bench, figure), *(_speed_table(m, len(bench) == 1) for m in bench)],
        "Comparison": [_comparison_part(comparison) for comparison in comparisons],
        "Vectors": [_vectors_part(m) for m in kinds["vectors"]],
        "Graded runs": graded_section(kinds["eval"]),
        "Environment": [Section(m.name, [Table((), _environment(m))], len(runs) <= 2) for m in runs],
        "How to reproduce": [
            block for name, command in commands for block in (f"{name}:", Code(shlex.join(map(str, command))))
        ],
    }
    parts = [Section(heading, blocks) for heading, blocks in sections.items() if blocks]
    return Page(title or f"Measured: {listed}", parts, headline, footer=FOOTER)


def _numbered(runs: Sequence[Measured]) -> list[Measured]:
    """Make the names of runs printable and unique ("name (2)"), since they identify lines in plots and tables."""
    counts: Counter[str] = Counter()
    numbered = []
    for measured in runs:
        name = line(measured.name)
        counts[name] += 1
        label = name if counts[name] == 1 else f"{name} ({counts[name]})"
        numbered.append(Measured(replace(measured.run, label=label), measured.rows))
    return numbered


# --- speeds


def series(measured: Measured) -> list[Measured]:
    """Split a run of single tests into one run per kind of test, such as "pp512" at several depths.

    Otherwise different tests at the same depth would be taken for repetitions. A sweep is not split, nor is a load,
    whose levels are rows of one table.
    """
    kinds: dict[str, list[dict[str, Any]]] = {}
    for row in measured.rows:
        kinds.setdefault(str(row.get("test") or "").partition(" @")[0], []).append(row)
    if len(kinds) < 2 or _loaded(measured):
        return [measured]
    run = measured.run
    return [Measured(replace(run, label=f"{run.name}, {line(kind)}"), rows) for kind, rows in kinds.items()]


def _loaded(measured: Measured) -> bool:
    """Return whether a run has levels of a load, which cannot be drawn as a curve over depths."""
    return any(row.get("requests") for row in measured.rows)


def speed_curves(bench: Sequence[Measured]) -> dict[str, list[Curve]]:
    """Return by metric (prefill, decode) one curve per run, with median and band at each depth."""
    curves: dict[str, list[Curve]] = {name: [] for name, _, _ in SPEEDS}
    for measured in bench:
        entries = summaries(measured.rows)
        for name, column, _ in SPEEDS if not _loaded(measured) else ():
            if known := [entry for entry in entries if finite(entry.get(column)) and entry[column] > 0]:
                curves[name].append(Curve.of(measured.name, known, column))
    return curves


def _speed_pictures(bench: Sequence[Measured], file: str) -> list[Picture]:
    curves = speed_curves(bench)
    if not curves["prefill"] and not curves["decode"]:
        return []
    return [speed_picture(curves["prefill"], curves["decode"], file)]


def _speed_table(measured: Measured, alone: bool) -> Section:
    entries = summaries(measured.rows)
    reps = max((int(entry.get("reps") or 1) for entry in entries), default=1)
    more = sorted((c for c in shown(entries) if c.name not in LEADING), key=lambda column: column.name != "test")
    cells = {name: [_speed(entry, column) for entry in entries] for name, column, _ in SPEEDS}
    columns = {"context": [f"{int(entry['ctx_tokens']):,}" for entry in entries]}
    for name, speeds in cells.items():
        columns[f"{name} t/s"] = [speed for speed, _ in speeds]
        if any(band for _, band in speeds):
            columns[f"{name}, {band_name(reps)}"] = [band for _, band in speeds]
    rows = [[*leading, *(column.display(entry) for column in more)]
            for leading, entry in zip(zip(*columns.values(), strict=True), entries, strict=True)]  # fmt: skip
    blocks: list[Any] = [Table([*columns, *(column.heading for column in more)], rows)]
    if any(entry.get("ttft_ms") for entry in entries):
        blocks.append("Measured by the client: queue and network included. TTFT is the time to first token; fairness "
                      "is Jain's index of the streams' rates (1: all equal).")  # fmt: skip
    if notes := [*drift.notes(measured.rows), *warnings.notes(measured.rows)]:
        blocks.append(Listing(notes))
    title = [measured.name, model_name(measured.run.facts) or "", f"{reps} repetition{'' if reps == 1 else 's'}"]
    return Section(" · ".join(filter(None, title)), blocks, alone)


def _speed(entry: dict[str, Any], column: str) -> tuple[str, str]:
    """Return a speed and its band as texts.

    Both are "" if the speed was not measured; the band is "" if the repetitions do not differ.
    """
    if not finite(entry.get(column)) or not entry[column]:
        return "", ""
    text, low, high = (BY_NAME[name].display(entry) for name in (column, f"{column}_low", f"{column}_high"))
    return text, f"{low} to {high}" if low != high else ""


def _speed_sentences(measured: Measured) -> list[str]:
    phrases = []
    entries = summaries(measured.rows)
    for name, column, _ in SPEEDS:
        known = [entry for entry in entries if _speed(entry, column)[0]]
        if known:
            first, last = known[0], known[-1]
            where = [entry.get("test") or f"{int(entry['ctx_tokens']):,}" for entry in (first, last)]
            phrases.append(f"{name} {_speed(first, column)[0]} tokens/s at {where[0]}")
            if last is not first:
                change = 100 * (last[column] / first[column] - 1)
                phrases[-1] += f", {_speed(last, column)[0]} at {where[1]} ({change:+.0f} %)"
    sentences = [f"{measured.name}: {'; '.join(phrases)}."] if phrases else []
    return sentences + [f"{measured.name}: {note}." for note in warnings.notes(measured.rows)]


# --- comparisons and vectors


def _against_baselines(runs: Sequence[Measured]) -> list[Comparison]:
    """Compare each run with the first one.

    Runs that were measured in turn are instead compared with the first of their group, and only that with the first
    run.
    """
    comparisons: list[Comparison] = []
    firsts: dict[str, Measured] = {}
    for other in runs:
        group, base = other.run.fact("arms", "group"), runs[0]
        if isinstance(group, str):
            base = firsts.setdefault(group, other)
            base = runs[0] if base is other else base
        if other is not runs[0]:
            comparisons.append(compare(base, other))
    return comparisons


def _comparison_sentence(c: Comparison) -> str:
    says = "; ".join(c.says(c.a, c.b))
    # sentences on speeds already have the names of both runs
    return f"{says}." if c.kind == "bench" and c.findings else f"{c.b} against {c.a}: {says}."


def _comparison_part(c: Comparison) -> Section:
    blocks: list[Any] = [Listing(c.says(c.a, c.b))]
    if c.depths:
        blocks.append(Table(*c.ratios()))
    if c.findings:
        tone = {f.verdict: TONES.get(f.verdict, "") for f in c.findings}
        cells = [[Toned(text, tone[text]) if text in tone else text for text in f.cells()] for f in c.findings]
        blocks.append(Table([column.heading for column in FINDINGS], cells))
    if c.pairs is not None and c.pairs.whole is not None:
        rows = [contrast.cells() for contrast in c.pairs.contrasts()]
        blocks += [Table([column.heading for column in SCORES], rows), c.pairs.tally()]
    if c.pairs is not None and c.pairs.changes:
        changes: list[list[Text]] = [
            [Toned(q.label, "bad" if q.b < q.a else "good"), q.source, f"{q.a:.2g}", f"{q.b:.2g}"]
            for q in c.pairs.changes
        ]
        title = f"{len(c.pairs.lost)} answered worse by B, {len(c.pairs.gained)} better"
        blocks.append(Section(title, [Table(("question", "source", "A", "B"), changes)], False))
    if c.differs:
        blocks.append(Table(("differs", "A", "B"), c.differs))
    notes = [*(c.pairs.costs() if c.pairs else ()), *(c.notes if c.findings else ())]
    return Section(f"B = {c.b} against A = {c.a}: {c.verdict}", blocks + ([Listing(notes)] if notes else []))


def _passed(measured: Measured) -> int:
    return sum(bool(row.get("passed")) for row in measured.rows)


def _vectors_part(measured: Measured) -> Section:
    def figure(row: dict[str, Any], name: str, form: str, factor: float = 1.0) -> str:
        return format(factor * row[name], form) if finite(row.get(name)) else ""

    rows: list[list[Text]] = [
        [str(row.get("id") or ""), Toned(str(row.get("verdict") or ""), "good" if row.get("passed") else "bad"),
         figure(row, "tokens", ".0f"), figure(row, "top1", ".1%"), figure(row, "max_abs", ".3g"),
         figure(row, "nll", ".4f", 1 / row["tokens"]) if row.get("tokens") else ""]
        for row in measured.rows
    ]  # fmt: skip
    headings = ("vector", "verdict", "tokens", "same best token", "largest difference", "NLL/token")
    return Section(f"{measured.name}: {_passed(measured)} of {len(rows)} pass", [Table(headings, rows)])


# --- environment


def _environment(measured: Measured) -> list[tuple[str, str]]:
    run, fact = measured.run, measured.run.fact
    machine, pack, peaks = (
        value if isinstance(value := fact(name), dict) else {} for name in ("machine", "pack", "peaks")
    )
    memory, total = machine.get("memory_bytes"), machine.get("cores_total")
    facts = {
        "created": run.created.replace("T", " ").rstrip("Z") + " (UTC)",
        "model": model_name(run.facts),
        "checkpoint": fact("model", "checkpoint"),
        "model SHA-256": fact("model", "sha256"),
        "prompt SHA-256": fact("prompt_sha256"),
        "engine": fact("engine"),
        "backend, numerics": ", ".join(str(v) for v in (fact("backend"), fact("numerics")) if v),
        "threads": fact("threads"),
        "processor": machine.get("cpu"),
        "cores": f"{machine.get('cores')} of {total}" if total else machine.get("cores"),
        "memory": f"{memory / 2**30:.1f} GiB" if memory else None,
        "clock governor": machine.get("governor"),
        "huge pages": machine.get("huge_pages"),
        "system": machine.get("system"),
        "load before": machine.get("load"),
        "peaks": f"read {peaks['read_gbs']:.1f} GB/s, int8 {peaks['int8_gops']:.0f} GOP/s, float32 "
                 f"{peaks['f32_gflops']:.0f} GFLOP/s with {peaks['threads']} thread(s), measured "
                 f"{peaks.get('measured') or 'at a time unknown'}" if peaks else None,
        "versions": ", ".join(f"{name} {version}" for name, version in (fact("versions") or {}).items()),
        "commit": fact("commit"),
        "seed": fact("seed"),
        "pack": f"{pack.get('pack')} {pack.get('version')}, {pack.get('questions')} questions, "
                f"{str(pack.get('digest'))[:12]}" if pack else None,
        "settings": ", ".join(f"{k} {v}" for k, v in (fact("settings") or {}).items() if k != "system"),
        "source": fact("source", "file"),
        "run": f"{run.id}, {run.uid[:12]}" if run.id else None,
    }  # fmt: skip
    return [(name, str(value)) for name, value in facts.items() if value not in (None, "")]
