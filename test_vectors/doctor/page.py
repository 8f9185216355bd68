"""Write the report of an examination: one page (``ds4ref.console.page``) as HTML and Markdown, and JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ds4ref.console.common import atomic_output, check_output
from ds4ref.console.page import Listing, Page, Section, Table, Tokens, Toned, without, write_page
from ds4ref.errors import DataError

from ..finding import OPEN, Finding, Outcome, plain
from .examination import Examination

FILES = ("doctor.html", "doctor.md", "doctor.json")
TONES = {Outcome.WRONG: "bad", Outcome.UNEXPLAINED: "bad", Outcome.FAILED: "bad", Outcome.OK: "good"}
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


def write(examination: Examination, folder: str, secret: str = "") -> list[str]:
    """Write the report's files, each atomically, with the API key ``secret`` removed; return their paths."""
    written = write_page(str(Path(folder, FILES[0])), page_of(examination), "ds4-vectors doctor", secret)
    path = str(Path(folder, FILES[2]))
    whole = json.dumps(examination.to_json(), ensure_ascii=False, indent=1) + "\n"
    with atomic_output(path) as out:
        out.write(without(whole, secret).encode("utf-8", "replace"))
    return [*written, path]


def page_of(e: Examination) -> Page:
    """Return the report of an examination as a page, which is then written as HTML and Markdown."""
    stages = [(stage.title, marked(stage.outcome), stage.says, f"{stage.seconds:.1f}") for stage in e.stages]
    wrong = [f"{stage.title}, {check.name}: {check.says}" for stage, check in e.checks() if check.outcome.spoils]
    unseen = [f"{stage.title}, {check.name} ({check.outcome.words}): {check.says}" for stage, check in e.checks(*OPEN)]
    sections = [
        Section("What is wrong", [Listing(wrong)]) if wrong else None,
        Section("What to do next", [Listing(e.steps[:8], ordered=True)]) if e.steps else None,
        Section("Stages", [Table(("stage", "result", "what was found", "s"), stages)]),
        Section("Not tested", ["This report says nothing about these.", Listing(unseen)]) if unseen else None,
        Section("Detection limits of the passed checks", [Table((), e.limits)]) if e.limits else None,
        *(Section(stage.title, [stage.asks, *(section for check in stage.checks if (section := details(check)))])
          for stage in e.stages if stage.outcome is not Outcome.SKIPPED),
        Section("Environment", [Table((), e.facts)]),
    ]  # fmt: skip
    interrupted = ["Interrupted: later stages were not run."] if e.signum else []
    return Page(f"Is {e.target} right?", [s for s in sections if s], [e.verdict, *interrupted],
                "good" if e.passed and e.complete else TONES.get(e.outcome, "unsure") if e.outcome.spoils else "unsure",
                FOOTER)  # fmt: skip


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


def marked(outcome: Outcome) -> Toned:
    """Return an outcome in words, with the colour to show it in."""
    return Toned(outcome.words, TONES.get(outcome, "unsure"))


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
