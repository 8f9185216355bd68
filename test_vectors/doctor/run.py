"""Run an examination: the stages in order, each with its own time budget; later stages run even if one fails."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable, Collection
from dataclasses import dataclass

from ds4ref.console.common import CYAN, is_tty, tint
from ds4ref.errors import Ds4Error
from ds4ref.runs.provenance import stamp
from ds4ref.targets import Ability
from ds4ref.version import __version__

from ..finding import Outcome
from . import depth, numbers, preflight, prompts, repeat
from .case import ExamContext
from .examination import Examination, Stage
from .limits import Limit, OutOfTime

BEAT = 15.0
"""Seconds without output after which a progress line is printed if stderr is not a terminal."""
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
    StageSpec("batch", "One and many", "Does a request get the same answer alone and in a batch?", repeat.batch,
              "load"),
    StageSpec("depth", "Long context", "Does it recall distant text and join prefill chunks correctly?",
              depth.depth, "engine", quick=False),
)  # fmt: skip
NAMES = tuple(step.name for step in STEPS)


class StageProgress:
    """Progress on stderr: one updated line on a terminal; else a line per stage, and one every ``BEAT`` seconds."""

    def __init__(self) -> None:
        self.live, self.stage, self.written = is_tty(sys.stderr), "", time.monotonic()

    def begin(self, stage: str) -> None:
        """Show that a stage begins."""
        self.stage = stage
        self("")

    def __call__(self, line: str) -> None:
        shown = f"{self.stage}{': ' if line else ''}{line}"
        if self.live:
            self._write("\r" + tint(shown[:110], CYAN, sys.stderr) + "\x1b[K")
        elif time.monotonic() > self.written + BEAT:
            self._write(shown + "\n")

    def end(self, stage: Stage) -> None:
        """Show that a stage has ended."""
        start = "\r\x1b[K" if self.live else ""
        self._write(f"{start}{self.stage}: {stage.outcome.words} ({stage.seconds:.0f} s)\n")

    def _write(self, text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()
        self.written = time.monotonic()


def examine(case: ExamContext, only: Collection[str] = (), command: str = "") -> Examination:
    """Run all stages, or those named in ``only``, and return their findings.

    Pre-flight always runs, as the others need its results. ``command``: command line to state in the report. After
    Ctrl-C or SIGTERM the examination so far is returned, with ``signum`` set.
    """
    case.progress = progress = StageProgress()
    examination = Examination(case.spec or case.target.name, command=command)
    for number, step in enumerate(STEPS, 1):
        stage, first = Stage(step.name, step.title, step.asks, cause=step.cause), step.name == "preflight"
        examination.stages.append(stage)
        why = ""
        if only and step.name not in only and not first:
            why = "not selected (--only)"
        elif case.quick and not step.quick and step.name not in only:
            why = "not with --quick"
        if examination.signum or why:
            stage.add(step.name, Outcome.SKIPPED, why or "interrupted before it began")
            stage.done = bool(why)
        elif not first and not case.kinds and not case.target.can(Ability.FULL_LOGITS):
            stage.add(step.name, Outcome.IMPOSSIBLE, "target unreachable")
            stage.done = True
        else:
            progress.begin(f"{number}/{len(STEPS)} {step.title}")
            examination.signum = _run_stage(case, step, stage)
            progress.end(stage)
    examination.identity = _identity(case)
    examination.facts = provenance(case, examination)
    return examination


def _run_stage(case: ExamContext, step: StageSpec, stage: Stage) -> int:
    """Run one stage within its time budget, turning any error into a failed check.

    Return the number of the signal that interrupted it; 0 if it ended by itself or its time was up.
    """
    start = time.monotonic()
    with Limit(case.budget) as limit:
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
            stage.seconds = time.monotonic() - start
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
