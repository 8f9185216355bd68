"""Write the report of an examination: one page (``ds4ref.console.page``) as HTML and Markdown, and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ds4ref.console.common import check_output
from ds4ref.console.page import Listing, Page, Section, Table, Tokens, Toned, write_page
from ds4ref.errors import DataError

from ..finding import OPEN, Finding, plain
from .changes import FEWEST
from .examination import Examination
from .matrix import ANSWERS, TONES, marked, matrix, steps_of
from .saved import save

FILES = ("doctor.html", "doctor.md", "doctor.json")
INTERRUPTED = "Interrupted: later stages were not run; the same command continues."
FOOTER = ("It can find bugs, but cannot prove that there are none: bugs smaller than the engine's rounding noise, or "
          "not exercised by these prompts, go undetected.")  # fmt: skip


def prepare(folder: str) -> None:
    """Create the report's folder before the examination starts; DataError if files cannot be written there."""
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"cannot write {folder}: {error.strerror}") from None
    for name in FILES:
        check_output(str(Path(folder, name)))


def write(examinations: Sequence[Examination], folder: str, secret: str = "") -> list[str]:
    """Write the report's files, each atomically, with the API key ``secret`` removed; return their paths."""
    page = page_of(examinations[0]) if len(examinations) == 1 else page_of_several(examinations)
    written = write_page(str(Path(folder, FILES[0])), page, "ds4-vectors doctor", secret)
    more = {"checks": [row.to_json() for row in matrix(examinations)]} if len(examinations) > 1 else {}
    return [*written, save(folder, examinations, secret, **more)]


def page_of(e: Examination) -> Page:
    """Return the report of an examination as a page, which is then written as HTML and Markdown."""
    interrupted = [INTERRUPTED] if e.signum else []
    return Page(f"Is {e.target} right?", sections_of(e), [e.verdict, *interrupted], tone_of(e), FOOTER)


def page_of_several(examinations: Sequence[Examination]) -> Page:
    """Return the report of several targets: verdicts, a table of all checks, then the sections of each target."""
    names = [f"{at}. {e.target}" for at, e in enumerate(examinations, 1)]
    headline = [f"{name}: {e.verdict}{' ' + INTERRUPTED if e.signum else ''}"
                for name, e in zip(names, examinations, strict=True)]  # fmt: skip
    differ = Toned("\u2260", "unsure", "results differ")
    rows = [(Toned(row.name, "soft" if row.cause else ""), *row.cells, differ if row.differ else "")
            for row in matrix(examinations)]  # fmt: skip
    heads = [str(at) for at in range(1, len(names) + 1)]
    worst = min(examinations, key=lambda e: (tone_of(e) != "bad", tone_of(e) != "unsure"))
    sections = [
        Section("Side by side", [
            "Each cell links to its evidence. \u2260 marks rows in which they differ.",
            Table(("check", *heads, ""), rows),
        ]),
        *([Section("What to do next", [Listing(steps)])] if (steps := steps_of(examinations)) else []),
        *(Section(name, sections_of(e, f"{at}-"), False, f"{at}-top")
          for at, (name, e) in enumerate(zip(names, examinations, strict=True), 1)),
    ]  # fmt: skip
    return Page(f"Which of {len(names)} targets are right?", sections, headline, tone_of(worst), FOOTER)


def tone_of(e: Examination) -> str:
    """Return the colour of an examination's verdict."""
    return "good" if e.passed and e.complete else TONES.get(e.outcome, "unsure") if e.outcome.spoils else "unsure"


def sections_of(e: Examination, mark: str = "") -> list[Section]:
    """Return an examination's sections: why, what to do, the stages and their evidence.

    ``mark``: put before the names of anchors, which must be unique in a page.
    """
    to = {name: f"{mark}{name}" for name in e.evidence}
    causes = [(a.cause, Toned(a.answer, ANSWERS[a.answer], "", to.get(a.stage, "")), a.says) for a in e.answers]
    stages = [(Toned(stage.title, "", stage.asks, to.get(stage.name, "")),
               marked(stage.outcome), stage.says, f"{stage.seconds:.1f}") for stage in e.stages]  # fmt: skip
    wrong = [f"{stage.title}, {check.name}: {check.says}" for stage, check in e.checks() if check.outcome.spoils]
    unseen = [f"{stage.title}, {check.name} ({check.outcome.words}): {check.says}" for stage, check in e.checks(*OPEN)]
    sections = [
        Section("Is it the engine, the checkpoint, the template, the quantization or the load?",
                [Table(("", "answer", "why"), causes)]),
        Section("What changed", changed(e)) if e.changes else None,
        Section("What is wrong", [Listing(wrong)]) if wrong else None,
        Section("What to do next", [Listing(e.steps[:8], ordered=True)]) if e.steps else None,
        Section("Stages", [Table(("stage", "result", "finding", "s"), stages)]),
        Section("Not tested", ["This report says nothing about these.", Listing(unseen)]) if unseen else None,
        Section("Detection limits of the passed checks", [Table((), e.limits)]) if e.limits else None,
        *(Section(stage.title, [stage.asks, *(section for check in stage.checks if (section := details(check)))],
                  None, f"{mark}{stage.name}") for stage in e.stages if stage.name in e.evidence),
        Section("Environment", [Table((), e.facts)]),
    ]  # fmt: skip
    return [section for section in sections if section]


def changed(e: Examination) -> list[Any]:
    """Return the blocks on what changed since the last examination in the run store."""
    since = f"run {e.changes['run']} ({e.changes['date'].replace('T', ' ').rstrip('Z')} UTC)"
    rows = [
        (f"{c['stage']}, {c['check']}", c["field"], figure(c["was"]), figure(c["now"])) for c in e.changes["checks"]
    ]
    few = "" if e.changes["runs"] >= FEWEST else f" Measured values are compared from {FEWEST} earlier runs on."
    if not rows:
        return [f"Nothing since {since}.{few}"]
    return [f"Since {since}:{few}", Table(("check", "what", "then", "now"), rows)]


def details(check: Finding) -> Section:
    """Return the page's section on one finding, with its evidence."""
    blocks: list[Any] = [check.says]
    for label, row in check.where:
        shown = [Toned(t.text, "bad" if t.marked else "", "" if t.id is None else f"id {t.id}") for t in row]
        blocks.append(Tokens(label, shown))
    blocks += [*check.notes, *([f"Detection limit: {check.limit}"] if check.limit else [])]
    if check.figures:
        rows = [(str(name), figure(value)) for name, value in check.figures.items()]
        blocks.append(Section("figures", [Table((), rows)], check.outcome.spoils))
    return Section(Toned(f"{check.name}: {check.outcome.words}", TONES.get(check.outcome, "unsure")), blocks)


def figure(value: Any) -> str:
    """Format a measured value: yes or no, four significant digits, or a comma-separated list."""
    value = plain(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        return ", ".join(map(figure, value)) or "none"
    if isinstance(value, dict):
        return ", ".join(f"{key} {figure(each)}" for key, each in value.items()) or "none"
    return "none" if value is None else str(value)
