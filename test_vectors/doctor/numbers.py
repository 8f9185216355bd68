"""Send prompts that reveal mistakes, and diagnose the target's log probabilities by comparing them with the model's.

The verdict of a diagnosis becomes an outcome of the check: a rounding set (no mistake seen) is "nothing wrong found", a
known mistake is "wrong", "unknown" is "unexplained", anything else (no verdict was possible) is "inconclusive". The
report shows the detection limits of the diagnosis unchanged.
"""

from __future__ import annotations

import shlex
import time
from typing import TYPE_CHECKING

from ds4ref.errors import DataError, Ds4Error
from ds4ref.targets import Ability
from ds4ref.variants import EVERY, ROUNDING, SETS

from ..diagnose import run_diagnosis
from ..diagnosis.prompts import MISTAKES
from ..diagnosis.verdict import where
from ..elicit import elicit
from ..finding import Finding, Outcome, row
from ..observation import OtherModel
from ..trace.plan import planned
from .case import ExamContext
from .examination import OTHER, Stage

if TYPE_CHECKING:
    from ..diagnosis import Diagnosis
    from ..observation import Observation

PROMPTS = ("mixed", "short", "text", "long")
AGREES = 4
"""Number of positions that must agree with a rounding set before that set's noise is assumed for the target."""
IN_THE_PROMPT = frozenset({m.name for m in MISTAKES} | {"bos_added", "first_token_dropped", "first_token_doubled"})
"""Names of mistakes in the prompt rather than in the model."""
OF_TEMPLATE = IN_THE_PROMPT - {m.name for m in MISTAKES if m.says.startswith("tokenizer:")}
OUTCOMES = {"broken": Outcome.WRONG, "file": Outcome.WRONG, "fault": Outcome.WRONG, "unknown": Outcome.UNEXPLAINED}
"""Outcome by verdict of a diagnosis; it is OK for a rounding set, UNSURE for any other verdict."""


def numbers(case: ExamContext, stage: Stage) -> None:
    """Diagnose the target on as many prompts as the stage's time allows, the one that reveals most ("mixed") first."""
    if not _possible(case, stage, "diagnosis"):
        return
    chosen = PROMPTS[:1] if case.quick else PROMPTS if case.long else PROMPTS[:3]
    took = 0.0
    for name in chosen:
        if name != "mixed" and case.limit.seconds_left < took:
            stage.add(name, Outcome.SKIPPED, "out of time", next=[_command(case, name)])
            continue
        start = time.monotonic()
        _diagnose_prompt(case, stage, name, chat=False)
        took = time.monotonic() - start
    answers = {c.figures["verdict"]: c for c in stage.checks if c.outcome is Outcome.OK}
    if len(answers) == 1 and not any(c.outcome.spoils for c in stage.checks):
        case.mode = str(next(iter(answers)))
    elif len(answers) > 1:
        stage.add("agreement", Outcome.UNSURE, f"the prompts do not agree: {', '.join(map(str, answers))}",
                  notes=["similar rounding modes can swap between prompts"])  # fmt: skip


def cause_of(diagnosis: Diagnosis) -> str:
    """Return the one of ``finding.CAUSES`` that a diagnosis points at; the engine unless its verdict says otherwise."""
    fault = EVERY.get(diagnosis.fault or "")
    if diagnosis.verdict == "file":
        return "checkpoint"
    if diagnosis.fault in OF_TEMPLATE or str(diagnosis.fault).startswith("tokenizer."):
        return "template"
    return "quantization" if fault is not None and fault.fmt else "engine"


def chat(case: ExamContext, stage: Stage) -> None:
    """Diagnose the answer to a chat, which reveals a wrong chat template (part of the template stage)."""
    if case.quick or not _possible(case, stage, "numbers after a chat"):
        return
    check = _diagnose_prompt(case, stage, "short", chat=True)
    fault = str(check.figures.get("fault"))
    if check.outcome is Outcome.WRONG and fault not in IN_THE_PROMPT and not fault.startswith("tokenizer."):
        check.outcome = Outcome.UNSURE
        check.cause = "engine"
        check.says = f"the logits are wrong, but not because of the template: {check.says}"


def _possible(case: ExamContext, stage: Stage, name: str) -> bool:
    """Return whether the target's numbers can be diagnosed; if not, add a finding ``name`` that says why."""
    if case.same_model is False:
        stage.add(name, Outcome.IMPOSSIBLE, OTHER,
                  next=["Load the diagnostic model into the engine (ds4-vectors model prints its file), or give the "
                        "target's model with -m MODEL.gguf"])  # fmt: skip
    elif not case.logprobs and not case.target.can(Ability.FULL_LOGITS):
        stage.add(name, Outcome.IMPOSSIBLE, "the target returns no log probabilities", next=[
            "ds4-vectors diagnose --logits FILE reads the engine's dumps (.npz, .npy, .csv, .json)"])  # fmt: skip
    else:
        return True
    return False


def _command(case: ExamContext, prompt: str, chat: bool = False) -> str:
    """Return the ``ds4-vectors diagnose`` command that repeats this diagnosis."""
    target = shlex.quote(case.spec or case.target.name)
    return f"ds4-vectors diagnose -m {shlex.quote(case.engine.path)} --target {target} --prompt {prompt}" + (
        " --chat" if chat else ""
    )


def _diagnose_prompt(case: ExamContext, stage: Stage, prompt: str, chat: bool) -> Finding:
    """Diagnose the target on a prompt of the diagnostic set, or with ``chat`` on a chat; add and return the finding."""
    name = f"after a chat ({prompt})" if chat else prompt
    case.progress(f"diagnosis of {name}")
    cancel = case.limit
    try:
        observation = elicit(case.target, case.engine, None, prompt, chat, case.echo_early, cancel)
        diagnosis = run_diagnosis(case.engine, observation, cancel=cancel)
    except OtherModel:
        return stage.add(name, Outcome.IMPOSSIBLE, OTHER)
    except DataError as error:
        case.limit.check()
        return stage.add(name, Outcome.FAILED, f"unusable answer: {error}")
    except Ds4Error as error:
        return stage.add(name, Outcome.IMPOSSIBLE if chat else Outcome.FAILED, str(error))
    return add_diagnosis(case, stage, name, diagnosis, observation, _command(case, prompt, chat))


def add_diagnosis(
    case: ExamContext, stage: Stage, name: str, diagnosis: Diagnosis, observation: Observation, command: str
) -> Finding:
    """Add a diagnosis to the stage as a finding; ``command``: the command line that repeats it."""
    declared, first, until = case.declared, diagnosis.first_position, diagnosis.agrees_until
    figures = {
        "verdict": diagnosis.verdict, "fault": diagnosis.fault, "confidence": round(float(diagnosis.confidence), 4),
        "positions": len(observation.rows), "first_position": first, "agrees_with": diagnosis.agrees_with,
        "agrees_until": until,
        "numbers": "full logits" if observation.full else f"top {observation.logprobs.shape[1]}",
        "places": "; ".join(f"{p['op']} of {where(p['layer'])} ({p['probability']:.2f})" for p in diagnosis.places[:3])
        or None,
    }  # fmt: skip
    if diagnosis.agrees_with in ROUNDING and until is not None and (observation.rows < until).sum() >= AGREES:
        case.hint = diagnosis.agrees_with
    notes, steps = list(diagnosis.notes), list(diagnosis.next)
    limit = "; ".join((diagnosis.limit or {}).get("says", ()))
    outcome = Outcome.OK if diagnosis.verdict in SETS else OUTCOMES.get(diagnosis.verdict, Outcome.UNSURE)
    if outcome is Outcome.OK:
        limit = limit or "bugs that change the logits by less than this mode's noise are not detectable"
        notes += [f"the target reports mode {declared}"] if declared not in (None, diagnosis.verdict) else []
    elif (plan := planned(case.engine.shape, len(observation.ids), diagnosis)) is not None:
        steps.append(plan.text())
    if outcome is not Outcome.OK and (diagnosis.verdict == "fault" or not steps):
        steps.append(command)
    shown = []
    if outcome is not Outcome.OK and first is not None:
        shown = [(f"first deviation after token {first}", row([case.token(int(i)) for i in observation.ids], first))]
    says = f"{diagnosis.fault or diagnosis.verdict}: {diagnosis.says}"
    cause = cause_of(diagnosis) if outcome.spoils else stage.cause
    return stage.add(name, outcome, says, figures={key: value for key, value in figures.items() if value is not None},
                     notes=notes, next=steps, limit=limit, where=shown, cause=cause)  # fmt: skip
