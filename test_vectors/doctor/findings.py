"""What an examination found, in a form that cannot claim more than was seen.

A ``Check`` is one question with its answer; a ``Stage`` is what its checks add up to; an ``Examination`` is all stages.
There is no outcome "right": the best that a check can say is that it found nothing wrong in what it saw.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

SCHEMA = "ds4-doctor-v1"


class Outcome(enum.Enum):
    """The answer of a check, worst first; the value is its name in JSON."""

    WRONG = "wrong"
    UNEXPLAINED = "unexplained"
    FAILED = "failed"
    UNSURE = "unsure"
    OK = "ok"
    IMPOSSIBLE = "impossible"
    SKIPPED = "skipped"

    @property
    def words(self) -> str:
        """How a person reads it."""
        return WORDS[self]

    @property
    def spoils(self) -> bool:
        """Whether the examination is not passed because of it."""
        return self in (Outcome.WRONG, Outcome.UNEXPLAINED, Outcome.FAILED)


WORDS = {
    Outcome.WRONG: "wrong",
    Outcome.UNEXPLAINED: "not explained",
    Outcome.FAILED: "check failed",
    Outcome.UNSURE: "cannot tell",
    Outcome.OK: "nothing wrong seen",
    Outcome.IMPOSSIBLE: "not possible here",
    Outcome.SKIPPED: "not done",
}
_ORDER = list(Outcome)


@dataclass(frozen=True)
class Piece:
    """A token as it is shown; ``marked`` is the one that matters."""

    text: str
    id: int | None = None
    marked: bool = False


@dataclass
class Check:
    """One question. ``where`` are labelled rows of tokens, ``next`` commands or steps for the reader, ``sight`` what
    this check would have seen and what it would not."""

    name: str
    outcome: Outcome
    says: str
    figures: dict[str, Any] = field(default_factory=dict)
    where: list[tuple[str, list[Piece]]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    next: list[str] = field(default_factory=list)
    sight: str = ""

    def to_json(self) -> dict[str, Any]:
        """For doctor.json."""
        rows = [{"row": label, "tokens": [{"text": p.text, "id": p.id, "marked": p.marked} for p in pieces]}
                for label, pieces in self.where]  # fmt: skip
        return {"name": self.name, "outcome": self.outcome.value, "says": self.says, "figures": plain(self.figures),
                "where": rows, "notes": self.notes, "next": self.next, "sight": self.sight}  # fmt: skip


@dataclass
class Stage:
    """The checks of one stage. They are added while it runs, so that a stage that breaks off keeps what it has."""

    name: str
    title: str
    asks: str
    checks: list[Check] = field(default_factory=list)
    seconds: float = 0.0
    done: bool = False

    def add(self, name: str, outcome: Outcome, says: str, **more: Any) -> Check:
        """A new check at the end."""
        made = Check(name, outcome, says, **more)
        self.checks.append(made)
        return made

    @property
    def outcome(self) -> Outcome:
        """The worst of its checks; a stage without any was not done."""
        return min((c.outcome for c in self.checks), key=_ORDER.index, default=Outcome.SKIPPED)

    @property
    def says(self) -> str:
        """The sentence of the check that decided, and how many others there are like it."""
        same = [c for c in self.checks if c.outcome is self.outcome]
        if not same:
            return "not done"
        first = f"{same[0].name}: {same[0].says}"
        if len(same) > 1:
            return f"{first}; and {many(len(same) - 1, 'check')} like this"
        return first

    def to_json(self) -> dict[str, Any]:
        """For doctor.json."""
        return {"name": self.name, "title": self.title, "outcome": self.outcome.value, "done": self.done,
                "seconds": round(self.seconds, 2), "checks": [c.to_json() for c in self.checks]}  # fmt: skip


@dataclass
class Examination:
    """All stages, and what a reader needs to judge them. ``facts`` is the provenance: (name, value) in order."""

    target: str
    facts: list[tuple[str, str]] = field(default_factory=list)
    identity: dict[str, Any] = field(default_factory=dict)
    command: str = ""
    stages: list[Stage] = field(default_factory=list)
    interrupted: bool = False

    def checks(self, *outcomes: Outcome) -> Iterator[tuple[Stage, Check]]:
        """Every check, or those with one of ``outcomes``."""
        for stage in self.stages:
            for check in stage.checks:
                if not outcomes or check.outcome in outcomes:
                    yield stage, check

    @property
    def outcome(self) -> Outcome:
        """The worst of all stages."""
        return min((s.outcome for s in self.stages), key=_ORDER.index, default=Outcome.SKIPPED)

    @property
    def complete(self) -> bool:
        """Whether every stage ran to its end and every check could be answered."""
        open_ends = (Outcome.UNSURE, Outcome.IMPOSSIBLE, Outcome.SKIPPED, Outcome.FAILED)
        return not self.interrupted and all(s.done for s in self.stages) and not any(self.checks(*open_ends))

    @property
    def diagnosed(self) -> bool | None:
        """Whether the numbers were held against the model; None where that was not asked for."""
        asked = [s for s in self.stages if s.name == "numbers" and s.checks]
        if not asked or all(c.outcome is Outcome.SKIPPED for c in asked[0].checks):
            return None
        answered = (Outcome.OK, Outcome.UNSURE, Outcome.UNEXPLAINED, Outcome.WRONG)
        return any(c.outcome in answered for c in asked[0].checks)

    @property
    def passed(self) -> bool:
        """Nothing wrong was found, and something was seen: not one stage broke, and if the numbers were to be looked
        at they were."""
        if any(self.checks(Outcome.WRONG, Outcome.UNEXPLAINED, Outcome.FAILED)) or self.diagnosed is False:
            return False
        return any(self.checks(Outcome.OK)) and not self.interrupted

    @property
    def verdict(self) -> str:
        """The sentence at the top of the page."""
        wrong = [c for _, c in self.checks(Outcome.WRONG)]
        odd = [c for _, c in self.checks(Outcome.UNEXPLAINED)]
        broken = [c for _, c in self.checks(Outcome.FAILED)]
        seen = [c for _, c in self.checks(Outcome.OK)]
        if wrong:
            return f"Something is wrong, in {_checks(wrong)}."
        if odd:
            return f"Nothing that has a name is wrong, but {_checks(odd)} found numbers that are not explained."
        if broken:
            return f"No answer: {_checks(broken)} failed before it could say anything."
        if self.interrupted:
            return f"No answer: interrupted. Nothing wrong was found until then ({_checks(seen)})."
        if self.diagnosed is False:
            return "No answer: this target does not show the numbers that could be held against the model."
        if not seen:
            return "No answer: nothing could be looked at."
        rest = "" if self.complete else " What was not seen is listed below."
        return f"Nothing wrong was found in what could be seen ({_checks(seen)}).{rest}"

    @property
    def unseen(self) -> list[tuple[str, Check]]:
        """What this examination cannot vouch for: (stage title, check)."""
        open_ends = (Outcome.FAILED, Outcome.UNSURE, Outcome.IMPOSSIBLE, Outcome.SKIPPED)
        return [(stage.title, check) for stage, check in self.checks(*open_ends)]

    @property
    def dim(self) -> list[tuple[str, str]]:
        """How far the checks that found nothing could see: (which ones, what they would have seen)."""
        found: dict[str, list[str]] = {}
        for stage, check in self.checks(Outcome.OK):
            if check.sight:
                found.setdefault(check.sight, []).append(f"{stage.title}, {check.name}")
        return [("; ".join(names), sight) for sight, names in found.items()]

    @property
    def steps(self) -> list[str]:
        """What to do next, the worst findings first, each step once."""
        ordered = sorted(self.checks(), key=lambda pair: _ORDER.index(pair[1].outcome))
        return list(dict.fromkeys(step for _, check in ordered for step in check.next))

    def to_json(self) -> dict[str, Any]:
        """For doctor.json."""
        return {
            "schema": SCHEMA, "target": self.target, "verdict": self.verdict, "outcome": self.outcome.value,
            "passed": self.passed, "complete": self.complete, "interrupted": self.interrupted,
            "command": self.command, "identity": plain(self.identity), "facts": dict(self.facts),
            "stages": [s.to_json() for s in self.stages], "next": self.steps,
            "not_seen": [f"{title}: {check.name}: {check.says}" for title, check in self.unseen],
        }  # fmt: skip

    def summary(self) -> dict[str, Any]:
        """The line of JSON."""
        return {"target": self.target, "verdict": self.verdict, "outcome": self.outcome.value, "passed": self.passed,
                "complete": self.complete, "stages": {s.name: s.outcome.value for s in self.stages}}  # fmt: skip


def _checks(found: Sequence[Check]) -> str:
    return many(len(found), "check")


def many(count: int, what: str) -> str:
    """A number with its noun."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def plain(value: Any) -> Any:
    """A value as strict JSON can hold it: no NaN or infinity, no arrays, no bytes."""
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


def visible(raw: bytes) -> str:
    """Bytes of a token as one can see them: spaces and line feeds as signs, other bytes by number."""
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


def row(tokens: Sequence[tuple[bytes, int | None]], at: int, around: int = 6) -> list[Piece]:
    """The tokens around position ``at``, which is marked."""
    first = max(0, at - around)
    shown = tokens[first : at + around + 1]
    pieces = [Piece(visible(raw), number, first + i == at) for i, (raw, number) in enumerate(shown)]
    if first:
        pieces.insert(0, Piece("\u2026"))
    if at + around + 1 < len(tokens):
        pieces.append(Piece("\u2026"))
    return pieces
