"""Format a comparison of two stored runs (``ds4ref.runs.statements``) as text that fits the terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence

from ..runs.pairs import Change, Pairing
from ..runs.statements import Comparison
from .page import line
from .tables import Column, fitted

FINDINGS = (
    Column("metric", least=10), Column("A", 4, right=True), Column("B", 4, right=True),
    Column("difference", right=True), Column("interval", 2), Column("verdict"), Column("n", 6, right=True),
    Column("method", 7, least=6), Column("detectable", 5, right=True),
)  # fmt: skip
SCORES = (
    Column("score, %", least=6), Column("n", 2, right=True), Column("A", right=True), Column("95 %", 4),
    Column("B", right=True), Column("95 %", 4), Column("B - A", right=True), Column("95 %", 1),
    Column("p", 3, right=True), Column("would find", 5, right=True),
)  # fmt: skip
DIFFERS = (Column("differs", least=8), Column("A", least=8), Column("B", least=8))
ANSWERS = (
    Column("question", least=8), Column("expected", 2, least=8), Column("A", least=6), Column("B", least=6),
    Column("title", 1, least=12),
)  # fmt: skip
CHANGES = ("right -> wrong", "wrong -> right"), ("less often right in B", "more often right in B")


def text(c: Comparison, width: int, answers: Callable[[Change], Sequence[str]] | None = None) -> str:
    """Format the comparison ``c`` in lines of at most ``width`` characters; only the names of runs may be longer.

    ``answers``: function that returns the cells of the columns ``ANSWERS`` for a question whose grade changed; without
    it, changes are listed by id.
    """

    def filled(*sentences: str) -> str:
        lines = (
            textwrap.fill(line(s), max(20, width), subsequent_indent="  ", break_long_words=False) for s in sentences
        )
        return "\n".join(lines)

    parts = [f"A = {line(c.a)}\nB = {line(c.b)}", filled(*c.says())]
    if c.pairs is not None and c.pairs.whole is not None:
        parts.append(
            fitted(SCORES, [[line(cell) for cell in contrast.cells()] for contrast in c.pairs.contrasts()], width)
        )
        parts.append(filled(c.pairs.tally()))
        parts += _changes(c.pairs, width, answers)
    elif c.findings:
        parts.append(fitted(FINDINGS, [finding.cells() for finding in c.findings], width))
    if c.depths:
        headings, rows = c.ratios()
        columns = [Column(heading, max(0, rank - 1), right=True) for rank, heading in enumerate(headings)]
        parts.append(fitted(columns, rows, width))
    if c.pairs is not None and (costs := c.pairs.costs()):
        parts.append(filled(*costs))
    if c.differs:
        parts.append(fitted(DIFFERS, [[line(cell) for cell in row] for row in c.differs], width))
    notes = [f"note: {note}" for note in c.notes if c.findings] + [f"gate: {fail}" for fail in c.fails if c.findings]
    return "\n\n".join(parts + ([filled(*notes)] if notes else []))


def _changes(pairs: Pairing, width: int, answers: Callable[[Change], Sequence[str]] | None) -> list[str]:
    """Return a table or a list of the questions that got worse in B, then one of those that got better."""
    parts = []
    for heading, changes in zip(CHANGES[pairs.repeated], (pairs.lost, pairs.gained), strict=True):
        if changes and answers is not None:
            rows = [[change.label, *answers(change)] for change in changes]
            parts.append(f"{heading} ({len(changes)})\n{fitted(ANSWERS, rows, width)}")
        elif changes:
            listed = f"{heading} ({len(changes)}): {', '.join(line(change.label) for change in changes)}"
            parts.append(textwrap.fill(listed, max(20, width), subsequent_indent="  ", break_long_words=False))
    return parts
