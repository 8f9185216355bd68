"""Findings of an examination, in a form that cannot claim more than was measured.

A ``Stage`` is a group of findings, an ``Examination`` is all stages. No outcome says that an engine is right: the best
one says that a check found nothing wrong in what it looked at.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ..finding import OPEN, Finding, Outcome, counted, plain
from .causes import Answer, answers

SCHEMA = "ds4-doctor-v1"
OTHER = "not compared: the server serves another model"
ECHO = "echo"
"""Name of the check of an API's echo of prompts."""


@dataclass
class Stage:
    """The findings of one stage; they are added while it runs, so that an interrupted stage keeps those it has.

    cause  the one of ``finding.CAUSES`` that its findings are evidence about unless they name another
    usage  requests, tokens and seconds of the target (``pace.Meter.usage``)
    """

    name: str
    title: str
    asks: str
    checks: list[Finding] = field(default_factory=list)
    seconds: float = 0.0
    done: bool = False
    cause: str = ""
    usage: dict[str, float] = field(default_factory=dict)

    def add(self, name: str, outcome: Outcome, says: str, **more: Any) -> Finding:
        """Append a new finding and return it; ``more``: further fields of Finding."""
        self.checks.append(Finding(name, says, outcome, **{"cause": self.cause, **more}))
        return self.checks[-1]

    @property
    def outcome(self) -> Outcome:
        """Return the worst outcome of the stage's checks; SKIPPED if it has none."""
        return min((c.outcome for c in self.checks), key=lambda o: o.rank, default=Outcome.SKIPPED)

    @property
    def says(self) -> str:
        """Return the sentence of the stage's first check with the worst outcome, and how many others share that one."""
        same = [c for c in self.checks if c.outcome is self.outcome]
        if not same:
            return "not run"
        more = f"; and {counted(len(same) - 1, 'check')} with the same result" if len(same) > 1 else ""
        return f"{same[0].name}: {same[0].says}{more}"

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object for doctor.json."""
        return {"name": self.name, "title": self.title, "outcome": self.outcome.value, "done": self.done,
                "seconds": round(self.seconds, 2), "usage": self.usage, "asks": self.asks, "cause": self.cause,
                "checks": [c.to_json() for c in self.checks]}  # fmt: skip

    @classmethod
    def from_json(cls, saved: dict[str, Any]) -> Stage:
        """Return the stage of a report's JSON object."""
        rest = {name: saved[name] for name in ("name", "title", "asks", "seconds", "done", "cause", "usage")}
        return cls(**rest, checks=[Finding.from_json(each) for each in saved["checks"]])


@dataclass
class Examination:
    """All stages of an examination, and what is needed to repeat it.

    target       the target as named in the report
    facts        date, versions, machine and so on as (name, value), in the order of the report
    identity     what the target reports about itself: model, engine, numerics
    command      the command line that ran the examination
    stages       in the order in which they ran
    signum       signal that ended the examination (Ctrl-C, SIGTERM); 0 if none did
    form         what must be equal for it to be continued: target, model, stages, quick or long
    context      what stages leave for later ones (``saved.context_of``)
    finished     it has come to its end; an unfinished one is continued by the same command
    estimate     the estimate of its time (``plan.Plan.to_json``)
    changes      what changed since earlier examinations in the run store (``changes.since``)
    """

    target: str
    facts: list[tuple[str, str]] = field(default_factory=list)
    identity: dict[str, Any] = field(default_factory=dict)
    command: str = ""
    stages: list[Stage] = field(default_factory=list)
    signum: int = 0
    form: dict[str, Any] = field(default_factory=dict)
    context: dict[str, Any] = field(default_factory=dict)
    finished: bool = False
    estimate: dict[str, Any] = field(default_factory=dict)
    changes: dict[str, Any] = field(default_factory=dict)

    def checks(self, *outcomes: Outcome) -> Iterator[tuple[Stage, Finding]]:
        """Yield every finding, or those with one of ``outcomes``, with its stage."""
        for stage in self.stages:
            for check in stage.checks:
                if not outcomes or check.outcome in outcomes:
                    yield stage, check

    @property
    def outcome(self) -> Outcome:
        """Return the worst outcome of all stages."""
        return min((s.outcome for s in self.stages), key=lambda o: o.rank, default=Outcome.SKIPPED)

    @property
    def complete(self) -> bool:
        """Return whether every stage ran to its end and every check has an answer."""
        return not self.signum and all(s.done for s in self.stages) and not any(self.checks(*OPEN))

    @property
    def diagnosed(self) -> bool | None:
        """Return whether the target's logits were compared with the model's; None if that stage was not requested."""
        outcomes = {c.outcome for s in self.stages if s.name == "numbers" for c in s.checks}
        if outcomes <= {Outcome.SKIPPED}:
            return None
        return bool(outcomes & {Outcome.OK, Outcome.UNSURE, Outcome.UNEXPLAINED, Outcome.WRONG})

    @property
    def passed(self) -> bool:
        """Return whether at least one check found nothing wrong and none found a mistake or failed.

        The examination must not have been interrupted either, and the numbers, if requested, must have been compared.
        """
        spoilt = any(check.outcome.spoils for _, check in self.checks()) or self.diagnosed is False or self.signum
        return not spoilt and any(self.checks(Outcome.OK))

    @property
    def verdict(self) -> str:
        """Return the sentence at the top of the page."""
        counts = {o: counted(sum(1 for _ in self.checks(o)), "check") for o in Outcome if any(self.checks(o))}
        clean = counts.get(Outcome.OK, "0 checks")
        if Outcome.WRONG in counts:
            alone = all(stage.name == "api" and not check.cause for stage, check in self.checks(Outcome.WRONG))
            return f"Something is wrong{' with the API' if alone else ''}, in {counts[Outcome.WRONG]}."
        if Outcome.UNEXPLAINED in counts:
            return (f"No known bug was found, but {counts[Outcome.UNEXPLAINED]} found differences that nothing known "
                    "explains.")  # fmt: skip
        if Outcome.FAILED in counts:
            return f"No verdict: {counts[Outcome.FAILED]} ended in an error."
        if self.signum:
            return f"No verdict: interrupted. Nothing wrong was found until then ({clean})."
        if self.diagnosed is False and any(check.says == OTHER for _, check in self.checks(Outcome.IMPOSSIBLE)):
            return f"No verdict: {OTHER}."
        if self.diagnosed is False:
            return "No verdict: this target does not expose the log probabilities needed to compare it with the model."
        if Outcome.OK not in counts:
            return "No verdict: nothing could be tested."
        depends = " Its output depends on its batch or cache." if Outcome.DEPENDS in counts else ""
        rest = "" if self.complete else " Untested parts are listed below."
        api = "".join(f" The API: {check.says}." for _, check in self.checks(Outcome.UNSURE) if check.name == ECHO)
        return f"Nothing wrong was found in what could be tested ({clean}).{depends}{api}{rest}"

    @property
    def answers(self) -> list[Answer]:
        """Return one answer per cause: engine, checkpoint, template, quantization, load."""
        return answers([(stage.name, check) for stage, check in self.checks()])

    @property
    def evidence(self) -> set[str]:
        """Return the names of the stages that have something to show: those that ran."""
        return {stage.name for stage in self.stages if stage.outcome is not Outcome.SKIPPED}

    @property
    def limits(self) -> list[tuple[str, str]]:
        """Return the detection limits of the checks that found nothing wrong, as (names of the checks, limit)."""
        names: dict[str, list[str]] = {}
        for stage, check in self.checks(Outcome.OK):
            if check.limit:
                names.setdefault(check.limit, []).append(f"{stage.title}, {check.name}")
        return [("; ".join(each), limit) for limit, each in names.items()]

    @property
    def steps(self) -> list[str]:
        """Return the next steps for the reader, those of the worst findings first, without duplicates."""
        ordered = sorted((check for _, check in self.checks()), key=lambda check: check.outcome.rank)
        return list(dict.fromkeys(step for check in ordered for step in check.next))

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object for doctor.json."""
        return {
            "schema": SCHEMA, **self.summary(), "interrupted": bool(self.signum), "finished": self.finished,
            "command": self.command, "identity": plain(self.identity), "facts": dict(self.facts),
            "form": self.form, "context": self.context, "estimate": self.estimate, "changes": self.changes,
            "stages": [s.to_json() for s in self.stages], "next": self.steps,
            "not_seen": [f"{stage.title}: {check.name}: {check.says}" for stage, check in self.checks(*OPEN)],
        }  # fmt: skip

    @classmethod
    def from_json(cls, saved: dict[str, Any]) -> Examination:
        """Return the examination of a doctor.json; KeyError, TypeError or ValueError if it is none."""
        rest = {name: saved[name] for name in ("target", "identity", "command", "form", "context", "finished",
                                               "estimate", "changes")}  # fmt: skip
        stages = [Stage.from_json(each) for each in saved["stages"]]
        return cls(**rest, facts=list(saved["facts"].items()), stages=stages)

    def summary(self) -> dict[str, Any]:
        """Return the summary for the command's line of JSON."""
        return {"target": self.target, "verdict": self.verdict, "outcome": self.outcome.value, "passed": self.passed,
                "complete": self.complete, "causes": {a.cause: a.to_json() for a in self.answers},
                "stages": {s.name: s.outcome.value for s in self.stages}}  # fmt: skip


def failed(target: str, command: str, why: str) -> Examination:
    """Return the examination of a target that could not be opened."""
    stage = Stage("preflight", "Pre-flight", "Does it respond?")
    stage.add("reached", Outcome.FAILED, why)
    return Examination(target, command=command, stages=[stage], finished=True)
