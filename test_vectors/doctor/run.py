"""Run an examination: the stages in order, each with its own time budget; later stages run even if one fails.

After pre-flight, which measures the target's pace, the time of the others is estimated, said, and kept to.
"""

from __future__ import annotations

import math
import sys
import time
import traceback
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any

from ds4ref.console.common import CYAN, columns, duration, is_tty, say, tint
from ds4ref.errors import Ds4Error, TargetError
from ds4ref.runs.provenance import stamp
from ds4ref.targets import Ability
from ds4ref.version import __version__

from ..finding import Outcome, counted, plain
from . import api, lengths, load, numbers, preflight, prompts, repeat
from .case import ExamContext
from .examination import Examination, Stage
from .identify.stage import identify
from .limits import Limit, OutOfTime
from .pace import Pace
from .plan import Plan, measure
from .saved import context_of, restore

BEAT = 15.0
"""Seconds without output after which a progress line is printed if stderr is not a terminal."""
MORE_TOTAL = "use --total S to allow the whole examination S seconds, or --only STAGE to run one stage"
MORE_TIME = "use --budget S to allow S seconds per stage, or --only STAGE to run one stage"


@dataclass(frozen=True)
class StageSpec:
    """Definition of a stage.

    asks   its question in the report
    cause  the one of ``finding.CAUSES`` that its findings are evidence about unless they name another
    quick  whether --quick runs it, too
    """

    name: str
    title: str
    asks: str
    run: Callable[[ExamContext, Stage], None]
    cause: str = ""
    quick: bool = True


STEPS = (
    StageSpec("preflight", "Pre-flight", "Does it respond, what does it support, are its log probabilities valid?",
              preflight.preflight),
    StageSpec("identify", "Identify", "Which template, defaults and weights does it have?", identify),
    StageSpec("tokenizer", "Tokenizer", "Does it tokenize text as the model was trained?", prompts.tokenizer,
              "engine"),
    StageSpec("template", "Template", "Does it apply the chat template the model was trained with?", prompts.template,
              "template"),
    StageSpec("numbers", "Numbers", "Are its logits right on prompts chosen to expose bugs?",
              numbers.numbers, "engine"),
    StageSpec("determinism", "Run to run", "Does the same request give the same answer?", repeat.determinism,
              "engine"),
    StageSpec("ways", "Prefill and decode", "Do prefill and token-by-token decode give the same logits?", repeat.ways,
              "engine"),
    StageSpec("lengths", "Lengths", "Does it repeat what is in prompts of all lengths, with the right numbers?",
              lengths.lengths, "engine"),
    StageSpec("load", "Load", "Does a request get its own answer beside others and after cached prompts?", load.load,
              "load"),
    StageSpec("api", "API", "Does it do what requests ask for: limits, stop strings, formats, tools, counts?", api.api),
)  # fmt: skip
NAMES = tuple(step.name for step in STEPS)


class StageProgress:
    """Progress on stderr: one updated line on a terminal; else a line per stage, and one every ``BEAT`` seconds."""

    def __init__(self, case: ExamContext) -> None:
        self.live, self.stage, self.written = is_tty(sys.stderr), "", time.monotonic()
        self.case, self.name = case, ""
        self.plan: Plan | None = None
        self.begun, self.before = 0.0, 0

    def begin(self, name: str, stage: str) -> None:
        """Show that the stage ``name`` begins; ``stage``: its number and title."""
        self.name, self.stage = name, stage
        self.begun, self.before = time.monotonic(), self.case.meter.requests
        self("")

    def __call__(self, line: str) -> None:
        shown = f"{self.stage}{': ' if line else ''}{line}{self._amount()}"
        if self.live:
            self._write("\r" + tint(shown[: columns(sys.stderr) - 1], CYAN, sys.stderr) + "\x1b[K")
        elif time.monotonic() > self.written + BEAT:
            self._write(shown + "\n")

    def end(self, stage: Stage) -> None:
        """Show that a stage has ended."""
        start = "\r\x1b[K" if self.live else ""
        requests = int(stage.usage.get("requests", 0))
        count = f", {counted(requests, 'request')}" if requests else ""
        self._write(f"{start}{self.stage}: {stage.outcome.words} ({stage.seconds:.0f} s{count})\n")

    def say(self, line: str) -> None:
        """Print a line."""
        self._write(("\r\x1b[K" if self.live else "") + line + "\n")

    def _amount(self) -> str:
        """Return how many requests of how many, and the time left of the examination."""
        if self.plan is None or self.name not in self.plan.costs:
            return ""
        count, about = self.case.meter.requests - self.before, self.plan.costs[self.name].requests
        rest = max(0.0, self.plan.seconds([self.name]) - (time.monotonic() - self.begun))
        rest += self.plan.seconds(self.plan.after(self.name))
        requests = f", {count} of about {max(count, about)} requests" if count or about else ""
        return f"{requests}, {duration(rest)} left"

    def _write(self, text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()
        self.written = time.monotonic()


def examine(
    case: ExamContext,
    only: Collection[str] = (),
    command: str = "",
    *,
    total: float | None = None,
    earlier: Examination | None = None,
    save: Callable[[Examination], object] = lambda examination: None,
) -> Examination:
    """Run all stages, or those named in ``only``, and return their findings.

    Pre-flight always runs, as the others need its results. After Ctrl-C or SIGTERM the examination so far is returned,
    with ``signum`` set.

    command  command line to state in the report
    total    seconds for the whole examination; stages for which there is no time are left out; None: no limit
    earlier  an unfinished examination to continue: its stages that ran to their end are kept
    save     called after every stage with the examination so far
    """
    start = time.monotonic()
    progress = StageProgress(case)
    case.progress = progress
    examination = Examination(case.spec or case.target.name, command=command, form=form_of(case, only))
    done = (
        {stage.name: stage for stage in earlier.stages if stage.done and stage.name != "preflight"} if earlier else {}
    )
    for number, step in enumerate(STEPS, 1):
        stage, first = Stage(step.name, step.title, step.asks, cause=step.cause), step.name == "preflight"
        examination.stages.append(stage)
        why, plan = _left_out(case, step, only), progress.plan
        if why:
            stage.add(step.name, Outcome.SKIPPED, why)
            stage.done = True
        elif step.name in done:
            examination.stages[-1] = done[step.name]
        elif examination.signum:
            stage.add(step.name, Outcome.SKIPPED, "interrupted before it began")
        elif not first and not case.kinds and not case.target.can(Ability.FULL_LOGITS):
            stage.add(step.name, Outcome.IMPOSSIBLE, "target unreachable")
            stage.done = True
        elif plan is not None and plan.leaves_out(step.name):
            stage.add(step.name, Outcome.SKIPPED, "no time for it", next=[MORE_TOTAL])
        else:
            progress.begin(step.name, f"{number}/{len(STEPS)} {step.title}")
            budget = min(case.budget, total or case.budget) if plan is None else plan.limit(step.name, case.budget)
            examination.signum = _run_stage(case, step, stage, budget)
            progress.end(stage)
        if first and not examination.signum:
            if earlier is not None:
                done = _continued(case, earlier, done, stage)
            names = [s.name for s in STEPS[1:] if not _left_out(case, s, only) and s.name not in done]
            if names and case.kinds and (case.target.kind == "http" or total is not None):
                examination.signum = _planned(case, progress, names, total, start)
                examination.estimate = progress.plan.to_json() if progress.plan is not None else {}
        examination.context, examination.identity = context_of(case), _identity(case)
        later = [done[s.name] for s in STEPS[number:] if s.name in done]
        save(replace(examination, stages=examination.stages + later))
    examination.facts = provenance(case, examination)
    examination.finished = not examination.signum
    return examination


def _continued(case: ExamContext, earlier: Examination, done: dict[str, Stage], preflight: Stage) -> dict[str, Stage]:
    """Restore what the stages of ``earlier`` left for later ones; return those that are kept of its ``done`` stages.

    Raise TargetError, which leaves the report as it is, if the target does not answer now.
    """
    if not case.kinds and not case.target.can(Ability.FULL_LOGITS):
        raise TargetError(f"{preflight.says}; the unfinished report is kept")
    if not _same_target(case, earlier):
        say("ds4-vectors doctor", "the target has changed since: examining it from the start")
        return {}
    restore(case, earlier.context)
    return done


def _planned(case: ExamContext, progress: StageProgress, names: list[str], total: float | None, start: float) -> int:
    """Measure the target's pace, make the plan and print it; return the number of the signal that interrupted this.

    names  of the stages to run
    start  when the examination began
    """
    with Limit(min(case.budget, (total or math.inf) / 4)) as limit:
        case.limit = limit
        try:
            pace = measure(case)
        except (OutOfTime, KeyboardInterrupt):
            pace = Pace(max((s.seconds for s in case.meter.samples), default=0.0), 0.0, 0.0)
    progress.plan = Plan.make(case, pace, names, total, time.monotonic() - start)
    for line in progress.plan.lines():
        progress.say(line)
    return limit.signum


def form_of(case: ExamContext, only: Collection[str]) -> dict[str, Any]:
    """Return what must be equal for an examination to be continued."""
    engine = case.engine
    return {"target": case.spec or case.target.name, "model": f"{engine.shape.name} {engine.source.size}",
            "quick": case.quick, "long": case.long, "only": sorted(only), "version": __version__}  # fmt: skip


def _left_out(case: ExamContext, step: StageSpec, only: Collection[str]) -> str:
    """Return why the command line leaves a stage out, "" if it does not."""
    if only and step.name not in only and step.name != "preflight":
        return "not selected (--only)"
    return "not with --quick" if case.quick and not step.quick and step.name not in only else ""


def _same_target(case: ExamContext, earlier: Examination) -> bool:
    """Return whether the target names itself as it did before."""
    old, new = earlier.identity, plain(_identity(case))
    return all(old.get(key) == new.get(key) for key in ("kind", "name", "model", "digest"))


def _run_stage(case: ExamContext, step: StageSpec, stage: Stage, budget: float) -> int:
    """Run one stage within ``budget`` seconds, turning any error into a failed check.

    Return the number of the signal that interrupted it; 0 if it ended by itself or its time was up.
    """
    start, before = time.monotonic(), case.meter.requests
    with Limit(budget) as limit:
        case.limit = limit
        try:
            step.run(case, stage)
            stage.done = not limit.requested
        except OutOfTime:
            says = "interrupted" if limit.signum else "out of time"
            stage.add("rest of the stage", Outcome.SKIPPED, says, next=[] if limit.signum else [MORE_TIME])
        except KeyboardInterrupt:
            stage.add("rest of the stage", Outcome.SKIPPED, "interrupted")
        except (Ds4Error, OSError, MemoryError) as error:
            stage.add("rest of the stage", Outcome.FAILED, " ".join(str(error).split()) or type(error).__name__)
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            stage.add("rest of the stage", Outcome.FAILED, f"internal error: {type(error).__name__}: {error}",
                      notes=[f"a bug in ds4-vectors, in {last.name}; please report it with this page"])  # fmt: skip
        finally:
            stage.seconds, stage.usage = time.monotonic() - start, case.meter.usage(before)
    return limit.signum


def _identity(case: ExamContext) -> dict[str, object]:
    try:
        return case.target.identity()
    except Ds4Error as error:
        return {"kind": case.target.kind, "name": case.target.name, "error": str(error)}


def provenance(case: ExamContext, examination: Examination) -> list[tuple[str, str]]:
    """Return what is needed to judge or repeat the examination as (name, value): date, versions, machine, command.

    The machine is described without its host name.
    """
    record, engine, identity = stamp([examination.command]), case.engine, examination.identity
    machine, commit = record["machine"], record["commit"]
    hardware = (machine.get("cpu"), f"{machine.get('cores')} cores", machine.get("system"))
    facts = {
        "date": record["created"][:16].replace("T", " ") + " UTC",
        "target": examination.target,
        "kind": identity.get("kind"),
        "reports model": identity.get("model") or identity.get("name"),
        "engine": identity.get("engine") or identity.get("command"),
        "numerics, backend": ", ".join(str(v) for v in (identity.get("numerics"), identity.get("backend")) if v),
        "digest": identity.get("digest"),
        "compared with": f"{engine.shape.name or 'a model'}, {engine.source.size:,} bytes",
        "ds4ref": __version__ + (f", commit {commit[:12]}{commit[40:]}" if commit else ""),
        "machine of ds4ref": ", ".join(str(value) for value in hardware if value),
        "versions": ", ".join(f"{name} {version}" for name, version in record["versions"].items()),
        "command": examination.command,
    }  # fmt: skip
    return [(name, str(value)) for name, value in facts.items() if value]
