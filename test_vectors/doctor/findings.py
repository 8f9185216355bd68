"""Findings of an examination, in a form that cannot claim more than was measured.

A ``Check`` is one question with its answer, a ``Stage`` a group of checks, an ``Examination`` all stages. There is no
outcome "right": at best, a check found nothing wrong in what it looked at.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

SCHEMA = "ds4-doctor-v1"


OTHER = "not compared: the server serves another model"


class Outcome(enum.Enum):
    """Outcome of a check, worst first; the value is its name in JSON."""

    WRONG = "wrong"
    UNEXPLAINED = "unexplained"
    FAILED = "failed"
    UNSURE = "unsure"
    DEPENDS = "depends"
    OK = "ok"
    IMPOSSIBLE = "impossible"
    SKIPPED = "skipped"

    @property
    def words(self) -> str:
        """Return the outcome in words for the report."""
        return WORDS[self]

    @property
    def spoils(self) -> bool:
        """Return whether this outcome makes the examination fail."""
        return self in (Outcome.WRONG, Outcome.UNEXPLAINED, Outcome.FAILED)


WORDS = {
    Outcome.WRONG: "wrong",
    Outcome.UNEXPLAINED: "unexplained",
    Outcome.FAILED: "error",
    Outcome.UNSURE: "inconclusive",
    Outcome.DEPENDS: "depends on its batch or cache",
    Outcome.OK: "nothing wrong found",
    Outcome.IMPOSSIBLE: "not supported",
    Outcome.SKIPPED: "not run",
}
_ORDER = list(Outcome)


@dataclass(frozen=True)
class ShownToken:
    """A token as displayed in the report; ``marked``: the token that the check is about."""

    text: str
    id: int | None = None
    marked: bool = False


@dataclass
class Check:
    """One question with its answer.

    name     name of the check in the report
    outcome  how the check ended
    says     the answer in a sentence
    figures  measured values by name
    where    labelled rows of tokens that show the place
    notes    remarks for the reader
    next     commands or steps for the reader
    sight    which differences the check could detect and which it could not
    """

    name: str
    outcome: Outcome
    says: str
    figures: dict[str, Any] = field(default_factory=dict)
    where: list[tuple[str, list[ShownToken]]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    next: list[str] = field(default_factory=list)
    sight: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object for doctor.json."""
        rows = [{"row": label, "tokens": [{"text": p.text, "id": p.id, "marked": p.marked} for p in pieces]}
                for label, pieces in self.where]  # fmt: skip
        return {"name": self.name, "outcome": self.outcome.value, "says": self.says, "figures": plain(self.figures),
                "where": rows, "notes": self.notes, "next": self.next, "sight": self.sight}  # fmt: skip


@dataclass
class Stage:
    """The checks of one stage, added as it runs, so that an interrupted stage keeps the checks it has completed."""

    name: str
    title: str
    asks: str
    checks: list[Check] = field(default_factory=list)
    seconds: float = 0.0
    done: bool = False

    def add(self, name: str, outcome: Outcome, says: str, **more: Any) -> Check:
        """Append a new check and return it; ``more``: further fields of Check."""
        check = Check(name, outcome, says, **more)
        self.checks.append(check)
        return check

    @property
    def outcome(self) -> Outcome:
        """Return the worst outcome of the stage's checks; SKIPPED if it has none."""
        return min((c.outcome for c in self.checks), key=_ORDER.index, default=Outcome.SKIPPED)

    @property
    def says(self) -> str:
        """Return the sentence of the first check with the stage's outcome, and how many others share that outcome."""
        same = [c for c in self.checks if c.outcome is self.outcome]
        if not same:
            return "not run"
        first = f"{same[0].name}: {same[0].says}"
        if len(same) > 1:
            return f"{first}; and {counted(len(same) - 1, 'check')} with the same result"
        return first

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object for doctor.json."""
        return {"name": self.name, "title": self.title, "outcome": self.outcome.value, "done": self.done,
                "seconds": round(self.seconds, 2), "checks": [c.to_json() for c in self.checks]}  # fmt: skip


@dataclass
class Examination:
    """All stages of an examination, and its provenance.

    target       the target as named in the report
    facts        provenance as (name, value), in order of display
    identity     what the target says about itself
    command      the command line that ran the examination
    stages       in the order in which they ran
    signum       signal that ended the examination (Ctrl-C, SIGTERM); 0 if none did
    """

    target: str
    facts: list[tuple[str, str]] = field(default_factory=list)
    identity: dict[str, Any] = field(default_factory=dict)
    command: str = ""
    stages: list[Stage] = field(default_factory=list)
    signum: int = 0

    @property
    def interrupted(self) -> bool:
        """Return whether the user ended the examination."""
        return self.signum != 0

    def checks(self, *outcomes: Outcome) -> Iterator[tuple[Stage, Check]]:
        """Yield every check, or those with one of ``outcomes``, with its stage."""
        for stage in self.stages:
            for check in stage.checks:
                if not outcomes or check.outcome in outcomes:
                    yield stage, check

    @property
    def outcome(self) -> Outcome:
        """Return the worst outcome of all stages."""
        return min((s.outcome for s in self.stages), key=_ORDER.index, default=Outcome.SKIPPED)

    @property
    def complete(self) -> bool:
        """Return whether every stage ran to its end and every check could be answered."""
        open_ends = (Outcome.UNSURE, Outcome.IMPOSSIBLE, Outcome.SKIPPED, Outcome.FAILED)
        return not self.interrupted and all(s.done for s in self.stages) and not any(self.checks(*open_ends))

    @property
    def diagnosed(self) -> bool | None:
        """Return whether the numbers were compared with the model; None if that stage was not requested."""
        asked = [s for s in self.stages if s.name == "numbers" and s.checks]
        if not asked or all(c.outcome is Outcome.SKIPPED for c in asked[0].checks):
            return None
        answered = (Outcome.OK, Outcome.UNSURE, Outcome.UNEXPLAINED, Outcome.WRONG)
        return any(c.outcome in answered for c in asked[0].checks)

    @property
    def passed(self) -> bool:
        """Return whether at least one check found nothing wrong and none found a mistake or failed.

        The examination must not have been interrupted either, and the numbers, if requested, must have been compared.
        """
        if any(self.checks(Outcome.WRONG, Outcome.UNEXPLAINED, Outcome.FAILED)) or self.diagnosed is False:
            return False
        return any(self.checks(Outcome.OK)) and not self.interrupted

    @property
    def verdict(self) -> str:
        """Return the sentence at the top of the page."""
        wrong = [c for _, c in self.checks(Outcome.WRONG)]
        odd = [c for _, c in self.checks(Outcome.UNEXPLAINED)]
        broken = [c for _, c in self.checks(Outcome.FAILED)]
        clean = [c for _, c in self.checks(Outcome.OK)]
        if wrong:
            return f"Something is wrong, in {_checks(wrong)}."
        if odd:
            return f"No known bug was found, but {_checks(odd)} found differences that nothing known explains."
        if broken:
            return f"No verdict: {_checks(broken)} ended in an error."
        if self.interrupted:
            return f"No verdict: interrupted. Nothing wrong was found until then ({_checks(clean)})."
        if self.diagnosed is False and any(check.says == OTHER for _, check in self.checks(Outcome.IMPOSSIBLE)):
            return f"No verdict: {OTHER}."
        if self.diagnosed is False:
            return "No verdict: this target does not expose the log probabilities needed to compare it with the model."
        if not clean:
            return "No verdict: nothing could be tested."
        rest = "" if self.complete else " Untested parts are listed below."
        if any(self.checks(Outcome.DEPENDS)):
            rest = f" Its output depends on its batch or cache.{rest}"
        return f"Nothing wrong was found in what could be tested ({_checks(clean)}).{rest}"

    @property
    def unseen(self) -> list[tuple[str, Check]]:
        """Return the checks without an answer: (stage title, check)."""
        open_ends = (Outcome.FAILED, Outcome.UNSURE, Outcome.IMPOSSIBLE, Outcome.SKIPPED)
        return [(stage.title, check) for stage, check in self.checks(*open_ends)]

    @property
    def sight_limits(self) -> list[tuple[str, str]]:
        """Return the detection limits of the checks that found nothing wrong: (names of the checks, their limit)."""
        names_by_sight: dict[str, list[str]] = {}
        for stage, check in self.checks(Outcome.OK):
            if check.sight:
                names_by_sight.setdefault(check.sight, []).append(f"{stage.title}, {check.name}")
        return [("; ".join(names), sight) for sight, names in names_by_sight.items()]

    @property
    def steps(self) -> list[str]:
        """Return the next steps for the reader, those of the worst findings first, without duplicates."""
        ordered = sorted(self.checks(), key=lambda pair: _ORDER.index(pair[1].outcome))
        return list(dict.fromkeys(step for _, check in ordered for step in check.next))

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object for doctor.json."""
        return {
            "schema": SCHEMA, "target": self.target, "verdict": self.verdict, "outcome": self.outcome.value,
            "passed": self.passed, "complete": self.complete, "interrupted": self.interrupted,
            "command": self.command, "identity": plain(self.identity), "facts": dict(self.facts),
            "stages": [s.to_json() for s in self.stages], "next": self.steps,
            "not_seen": [f"{title}: {check.name}: {check.says}" for title, check in self.unseen],
        }  # fmt: skip

    def summary(self) -> dict[str, Any]:
        """Return the summary for the command's line of JSON."""
        return {"target": self.target, "verdict": self.verdict, "outcome": self.outcome.value, "passed": self.passed,
                "complete": self.complete, "stages": {s.name: s.outcome.value for s in self.stages}}  # fmt: skip


def _checks(checks: Sequence[Check]) -> str:
    return counted(len(checks), "check")


def counted(count: int, noun: str) -> str:
    """Return a number with its noun: "1 check", "2 checks"."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def plain(value: Any) -> Any:
    """Convert a value to strict JSON types: no NaN or infinity, arrays or bytes."""
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(each) for each in value]
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def distinct(raw: bytes) -> bool:
    """Whether bytes identify a token: an API of text gives '' or U+FFFD for all bytes that are no text."""
    return bool(raw) and b"\xef\xbf\xbd" not in raw


def visible(raw: bytes) -> str:
    """Return a token's bytes as visible text: spaces and line feeds as symbols, unprintable characters escaped."""
    text = raw.decode("utf-8", "backslashreplace")
    out = []
    for c in text:
        if c == " ":
            out.append("\u2423")
        elif c == "\n":
            out.append("\u21b5")
        else:
            out.append(c if c.isprintable() else c.encode("unicode_escape").decode())
    return "".join(out)


def row(tokens: Sequence[tuple[bytes, int | None]], at: int, around: int = 6) -> list[ShownToken]:
    """Return the tokens within ``around`` of position ``at``, the token at ``at`` marked."""
    first = max(0, at - around)
    excerpt = tokens[first : at + around + 1]
    pieces = [ShownToken(visible(raw), number, first + i == at) for i, (raw, number) in enumerate(excerpt)]
    if first:
        pieces.insert(0, ShownToken("\u2026"))
    if at + around + 1 < len(tokens):
        pieces.append(ShownToken("\u2026"))
    return pieces
