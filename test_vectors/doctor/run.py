"""The examination: stages in order, each with its own time, none of them able to stop the others."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable, Collection
from dataclasses import dataclass

from ds4ref import __version__
from ds4ref.cli.common import CYAN, is_tty, tint
from ds4ref.errors import Ds4Error
from ds4ref.runs.provenance import stamp

from . import depth, numbers, preflight, prompts, repeat
from .case import Case
from .findings import Examination, Outcome, Stage


@dataclass(frozen=True)
class Step:
    """A stage of the examination; ``quick`` whether --quick keeps it."""

    name: str
    title: str
    asks: str
    run: Callable[[Case, Stage], None]
    quick: bool = True


STEPS = (
    Step("preflight", "Pre-flight", "Does it answer, what can it do, are its log probabilities any?",
         preflight.preflight),
    Step("tokenizer", "Tokenizer", "Does it split text as the model was taught?", prompts.tokenizer),
    Step("template", "Template", "Does it frame a chat as the model was taught?", prompts.template),
    Step("numbers", "Numbers", "Does it compute the model, by the logits of prompts that show mistakes?",
         numbers.numbers),
    Step("determinism", "Run to run", "Does the same request give the same answer?", repeat.determinism),
    Step("ways", "Prefill and decode", "Does it say the same after a prompt as token by token?", repeat.ways),
    Step("batch", "One and many", "Does it say the same alone and among others?", repeat.batch),
    Step("depth", "Long context", "Is what lies far back still there, and do chunks join?", depth.depth, quick=False),
)  # fmt: skip
NAMES = tuple(step.name for step in STEPS)


class Teller:
    """Progress on stderr: a line that rewrites itself on a terminal, one line a stage elsewhere."""

    def __init__(self) -> None:
        self.live, self.stage = is_tty(sys.stderr), ""

    def begin(self, number: int, total: int, step: Step) -> None:
        """A stage begins."""
        self.stage = f"{number}/{total} {step.title}"
        if self.live:
            self("")

    def __call__(self, line: str) -> None:
        if self.live:
            text = f"{self.stage}{': ' if line else ''}{line}"[:110]
            sys.stderr.write("\r" + tint(text, CYAN, sys.stderr) + "\x1b[K")
            sys.stderr.flush()

    def end(self, stage: Stage) -> None:
        """A stage is over."""
        start = "\r\x1b[K" if self.live else ""
        sys.stderr.write(f"{start}{self.stage}: {stage.outcome.words} ({stage.seconds:.0f} s)\n")
        sys.stderr.flush()


def examine(case: Case, only: Collection[str] = (), skip: Collection[str] = (), command: str = "",
            teller: Teller | None = None) -> Examination:  # fmt: skip
    """All stages chosen. Pre-flight always runs: the others need what it learns. After Ctrl-C the examination so far is
    returned, with ``interrupted`` set."""
    teller = teller or Teller()
    case.progress = teller
    found = Examination(case.spec or case.target.name, command=command)
    for number, step in enumerate(STEPS, 1):
        stage = Stage(step.name, step.title, step.asks)
        found.stages.append(stage)
        why = _left_out(step, only, skip, case.quick)
        if found.interrupted or why:
            stage.add(step.name, Outcome.SKIPPED, why or "interrupted before it began")
            stage.done = bool(why)
            continue
        if step.name != "preflight" and not case.kinds and not case.can_logits:
            stage.add(step.name, Outcome.IMPOSSIBLE, "the target was not reached")
            stage.done = True
            continue
        teller.begin(number, len(STEPS), step)
        found.interrupted = _run(case, step, stage)
        teller.end(stage)
    found.identity = _identity(case)
    found.facts = provenance(case, found)
    return found


def _left_out(step: Step, only: Collection[str], skip: Collection[str], quick: bool) -> str:
    if step.name == "preflight":
        return ""
    if only and step.name not in only:
        return "not chosen (--only)"
    if step.name in skip:
        return "left out (--skip)"
    return "not with --quick" if quick and not step.quick and step.name not in only else ""


def _run(case: Case, step: Step, stage: Stage) -> bool:
    """One stage; whatever breaks in it becomes a check of it. True if the user stopped it."""
    start = time.monotonic()
    case.start()
    try:
        step.run(case, stage)
        stage.done = True
    except KeyboardInterrupt:
        stage.add("rest of the stage", Outcome.SKIPPED, "interrupted")
        return True
    except (Ds4Error, OSError, MemoryError) as error:
        stage.add("rest of the stage", Outcome.FAILED, " ".join(str(error).split()) or type(error).__name__)
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        stage.add("rest of the stage", Outcome.FAILED, f"internal error: {type(error).__name__}: {error}",
                  notes=[f"a bug of ds4-vectors, in {last.name}; please report it with this page"])  # fmt: skip
    finally:
        stage.seconds = time.monotonic() - start
    return False


def _identity(case: Case) -> dict[str, object]:
    try:
        return case.target.identity()
    except Ds4Error as error:
        return {"kind": case.target.kind, "name": case.target.name, "error": str(error)}


def provenance(case: Case, found: Examination) -> list[tuple[str, str]]:
    """What a reader needs to judge or repeat it. The machine is described by its class, not by its name."""
    made, engine = stamp([found.command]), case.engine
    machine, commit = made["machine"], made["commit"]
    memory = machine.get("memory_bytes")
    identity = found.identity
    facts = {
        "date": made["created"][:16].replace("T", " ") + " UTC",
        "target": found.target,
        "kind": identity.get("kind"),
        "calls itself": identity.get("model") or identity.get("name"),
        "engine": identity.get("engine") or identity.get("command"),
        "numerics, backend": ", ".join(str(v) for v in (identity.get("numerics"), identity.get("backend")) if v),
        "digest": identity.get("digest"),
        "compared with": f"{engine.shape.name or 'a model'}, {engine.source.size:,} bytes",
        "ds4ref": f"{__version__}" + (f", commit {commit[:12]}{commit[40:]}" if commit else ""),
        "machine of ds4ref": ", ".join(str(v) for v in (machine.get("cpu"), f"{machine.get('cores')} cores",
                                       f"{memory / 2**30:.0f} GiB" if memory else None, machine.get("system")) if v),
        "versions": ", ".join(f"{name} {version}" for name, version in made["versions"].items()),
        "command": found.command,
    }  # fmt: skip
    return [(name, str(value)) for name, value in facts.items() if value]
