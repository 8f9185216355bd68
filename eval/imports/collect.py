"""Make one pack of several files and count the records that were left out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from ds4ref.console.options import printable
from ds4ref.errors import DataError
from ds4ref.files import file_digest

from .. import packs
from ..packs import Header, Pack, Question, stamped
from . import shapes
from .records import LONGEST_ID, NOT_STATED, Found, Skip, identity

VERSION = 1
PLACES = 3
"""Number of records listed for each reason; further ones are only counted."""
LICENCES = 10
"""Largest number of licences named in a header."""


@dataclass
class Reason:
    """Records left out for one reason.

    count  their number
    where  descriptions of the first ``PLACES`` of them
    """

    count: int = 0
    where: list[str] = field(default_factory=list)


@dataclass
class Told:
    """Result of importing a file.

    path     the file
    shape    name of its shape
    taken    number of questions imported
    skipped  records left out, by reason
    renamed  ids that were changed because another question has them
    """

    path: Path
    shape: str
    taken: int = 0
    skipped: dict[str, Reason] = field(default_factory=dict)
    renamed: list[str] = field(default_factory=list)

    def skip(self, found: Found, why: Skip) -> None:
        """Count a record that is not imported, and keep the place of the first ``PLACES`` for each reason."""
        reason = self.skipped.setdefault(why.reason, Reason())
        reason.count += 1
        if len(reason.where) < PLACES:
            label = f" {printable(found.label, 40)}" if found.label else ""
            detail = f": {printable(why.detail, 60)}" if why.detail else ""
            reason.where.append(f"line {found.line}{label}{detail}")

    def record(self) -> dict[str, Any]:
        """Return the result as plain data."""
        skipped = [{"reason": why, "count": r.count, "where": r.where} for why, r in self.skipped.items()]
        return {"file": str(self.path), "shape": self.shape, "questions": self.taken, "skipped": skipped,
                "renamed": self.renamed}  # fmt: skip


def collect(paths: Sequence[Path], shape: str | None, name: str, licence: str = "") -> tuple[Pack, list[Told]]:
    """Read all files into the pack ``name``; return it and the result of each file.

    ``shape``: name of the shape of all files; None to detect it. Of two questions with the same id the second is left
    out if it is equal, else the beginning of its digest is appended to its id. DataError for a damaged file, or if
    there is no question at all.
    """
    taken: dict[str, Question] = {}
    told: list[Told] = []
    canaries: set[str] = set()
    abouts = []
    for path in paths:
        told.append(Told(path, shape or shapes.detect(path)))
        for found in shapes.read(path, told[-1].shape):
            try:
                question = _named(found.item, licence)
                _add(question, taken, told[-1])
            except Skip as why:
                told[-1].skip(found, why)
            else:
                canaries |= {found.canary} - {""}
        abouts.append(f"{printable(path.name)} ({shapes.title(told[-1].shape)}, {file_digest(path)})")
    if not taken:
        raise DataError(_nothing(told))
    header = Header(
        pack=name,
        version=VERSION,
        canary=canaries.pop() if len(canaries) == 1 else "",
        licence=_licences(taken.values()),
        about=f"imported from {', '.join(abouts)}; the user's own, not part of ds4ref",
    )
    return Pack(header, tuple(taken.values())), told


def _named(item: Question | Skip, licence: str) -> Question:
    """Complete id, domain and licence and check the question; Skip if it does not fit a pack."""
    if isinstance(item, Skip):
        raise item
    question = msgspec.structs.replace(
        item,
        id=item.id or identity(stamped(item)),
        domain=item.domain or item.source,
        licence=licence or item.licence or NOT_STATED,
    )
    try:
        length = len(msgspec.json.encode(question))
    except UnicodeEncodeError:
        raise Skip("half a surrogate pair: not valid Unicode") from None
    if length >= packs.LONGEST_LINE:
        raise Skip("longer than a line of a pack may be")
    if wrong := packs.problem(question):
        raise Skip(wrong)
    return question


def _licences(questions: Iterable[Question]) -> str:
    """Join the licences, at most ``LICENCES`` of them."""
    found = list(dict.fromkeys(question.licence for question in questions))
    return "; ".join(found[:LICENCES]) + (f"; and {len(found) - LICENCES} more" if len(found) > LICENCES else "")


def _add(question: Question, taken: dict[str, Question], told: Told) -> None:
    held = taken.get(question.id)
    if held is not None:
        if held.digest == question.digest:
            raise Skip("duplicate question")
        other = f"{question.id[: LONGEST_ID - 9]}.{question.digest[:8]}"
        if other in taken:
            raise Skip("duplicate question")
        told.renamed.append(other)
        question = msgspec.structs.replace(question, id=other)
    taken[question.id] = question
    told.taken += 1


def _nothing(told: Sequence[Told]) -> str:
    reasons = [f"{why} ({reason.count}, {reason.where[0]})" for one in told for why, reason in one.skipped.items()]
    return f"{', '.join(str(one.path) for one in told)}: no question: {'; '.join(reasons[:3]) or 'no record'}"
