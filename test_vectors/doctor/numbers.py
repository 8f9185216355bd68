"""Send prompts that reveal mistakes, and diagnose the target's log probabilities against the model.

A verdict maps to an outcome as follows: a rounding set is "nothing wrong found", a named fault is "wrong", "unknown" is
"unexplained", anything else (no verdict was possible) is "inconclusive". The diagnosis's own limits go onto the page
unchanged.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ds4ref.errors import DataError, Ds4Error
from ds4ref.targets import Ability
from ds4ref.variants import ROUNDING, SETS

from ..cli_diagnose import run_diagnosis
from ..diagnosis.prompts import MISTAKES
from ..elicit import elicit
from ..observation import OtherModel
from ..trace.plan import planned
from .case import ExamContext
from .findings import OTHER, Check, Outcome, Stage, row

if TYPE_CHECKING:
    from ..diagnosis import Diagnosis
    from ..observation import Observation

PROMPTS = ("mixed", "short", "text", "long")
AGREES = 4
"""Positions that must agree with a rounding set before its noise is assumed for the target."""
IN_THE_PROMPT = frozenset({m.name for m in MISTAKES} | {"bos_added", "first_token_dropped", "first_token_doubled"})
"""Names of mistakes in the prompt rather than in the model."""


def numbers(case: ExamContext, stage: Stage) -> None:
    """Diagnose as many prompts as the stage's time allows, the most telling one ("mixed") first."""
    if not _possible(case, stage, "diagnosis"):
        return
    chosen = PROMPTS[:1] if case.quick else PROMPTS if case.long else PROMPTS[:3]
    took = 0.0
    for name in chosen:
        if name != "mixed" and case.seconds_left < took:
            stage.add(
                name,
                Outcome.SKIPPED,
                "out of time",
                next=[f"ds4-vectors diagnose {_target_options(case)} --prompt {name}"],
            )
            continue
        start = time.monotonic()
        _diagnose_prompt(case, stage, name, chat=False)
        took = time.monotonic() - start
    answers = {c.figures.get("verdict"): c for c in stage.checks if c.outcome is Outcome.OK}
    if len(answers) == 1 and not any(c.outcome.spoils for c in stage.checks):
        case.mode = str(next(iter(answers)))
    elif len(answers) > 1:
        stage.add("agreement", Outcome.UNSURE, f"the prompts do not agree: {', '.join(map(str, answers))}",
                  notes=["similar rounding modes can swap between prompts"])  # fmt: skip


def chat(case: ExamContext, stage: Stage) -> None:
    """Diagnose the answer to a chat, where a wrong template shows (part of the template stage)."""
    if case.quick or not _possible(case, stage, "numbers after a chat"):
        return
    check = _diagnose_prompt(case, stage, "short", chat=True)
    if check.outcome is Outcome.WRONG and not set(str(check.figures.get("fault")).split(", ")) & IN_THE_PROMPT:
        check.outcome = Outcome.UNSURE
        check.says = f"the logits are wrong, but not because of the template: {check.says}"


def _possible(case: ExamContext, stage: Stage, name: str) -> bool:
    if case.same_model is False:
        stage.add(name, Outcome.IMPOSSIBLE, OTHER,
                  next=["Load the diagnostic model into the engine (ds4-vectors model prints its file), or give the "
                        "target's model with -m MODEL.gguf"])  # fmt: skip
        return False
    if not case.logprobs and not case.target.can(Ability.FULL_LOGITS):
        stage.add(name, Outcome.IMPOSSIBLE, "the target returns no log probabilities", next=[
            "ds4-vectors diagnose --logits FILE reads the engine's dumps (.npz, .npy, .csv, .json)"])  # fmt: skip
        return False
    return True


def _diagnose_prompt(case: ExamContext, stage: Stage, prompt: str, chat: bool) -> Check:
    name = f"after a chat ({prompt})" if chat else prompt
    case.progress(f"diagnosis of {name}")
    cancel = case.limit.cancel
    try:
        observation = elicit(case.target, case.engine, None, prompt, chat, case.echo_early, cancel)
    except OtherModel:
        return stage.add(name, Outcome.IMPOSSIBLE, OTHER)
    except DataError as error:
        case.limit.check()
        return stage.add(name, Outcome.FAILED, f"unusable answer: {error}")
    except Ds4Error as error:
        return stage.add(name, Outcome.IMPOSSIBLE if chat else Outcome.FAILED, str(error))
    try:
        diagnosis = run_diagnosis(case.engine, observation, False, case.their_model, cancel)
    except DataError as error:
        # the answer does not belong to the model, or holds no numbers
        return stage.add(name, Outcome.FAILED, f"cannot be diagnosed: {error}")
    return add_diagnosis(case, stage, name, diagnosis, observation, prompt, chat)


def add_diagnosis(
    case: ExamContext,
    stage: Stage,
    name: str,
    diagnosis: Diagnosis,
    observation: Observation,
    prompt: str = "",
    chat: bool = False,
) -> Check:
    """Add a diagnosis to the stage as a check; fields that not every diagnosis has are left out if empty."""
    whole = diagnosis.to_json()
    fault = ", ".join(diagnosis.fault) if isinstance(diagnosis.fault, list | tuple) else diagnosis.fault
    command = f"ds4-vectors diagnose {_target_options(case)} --prompt {prompt}{' --chat' if chat else ''} --thorough"
    figures: dict[str, Any] = {
        "verdict": diagnosis.verdict, "fault": fault, "confidence": round(float(diagnosis.confidence), 4),
        "positions": len(observation.rows),
        "numbers": "full logits" if observation.full else f"top {observation.logprobs.shape[1]}",
    }  # fmt: skip
    figures |= {key: whole[key] for key in ("first_position", "agrees_with", "agrees_until", "distance")
                if isinstance(whole.get(key), int | float | str)}  # fmt: skip
    figures = {key: value for key, value in figures.items() if value is not None}
    notes, steps = _as_lines(diagnosis.notes), _as_lines(whole.get("next"))
    sight = "; ".join(_as_lines((whole.get("sight") or {}).get("says")))
    where = []
    first = whole.get("first_position")
    base, until = whole.get("agrees_with"), whole.get("agrees_until")
    if base in ROUNDING and isinstance(until, int) and int((observation.rows < until).sum()) >= AGREES:
        case.hint = str(base)
    if diagnosis.verdict in SETS:
        outcome, says = Outcome.OK, f"{diagnosis.verdict}: {diagnosis.says}"
        declared = str(case.target.identity().get("numerics") or "")
        if declared in ROUNDING and declared != diagnosis.verdict:
            notes = [*notes, f"the target reports mode {declared}"]
        sight = sight or "bugs that change the logits by less than this mode's noise are not detectable"
    elif diagnosis.verdict in ("broken", "file"):
        outcome, says = Outcome.WRONG, diagnosis.says
    elif diagnosis.verdict == "fault":
        outcome, says = Outcome.WRONG, f"{fault}: {diagnosis.says}"
        steps = [*steps, command]
    elif diagnosis.verdict == "unknown":
        outcome = Outcome.UNEXPLAINED
        says = f"{diagnosis.says}: no known rounding mode or bug explains these logits"
        exactly = diagnosis.mode in ROUNDING and not ROUNDING[diagnosis.mode].coarse
        plan = planned(case.engine.shape, observation.ids.tolist(), diagnosis.first_position, exactly)
        steps = [*steps, command if plan is None else f"{plan.text()}; next command: {command}"]
    else:
        outcome, says = Outcome.UNSURE, f"{diagnosis.verdict}: {diagnosis.says}"
        steps = steps or [command]
    if outcome is not Outcome.OK and isinstance(first, int) and 0 <= first < len(observation.ids):
        where = [(f"first deviation after token {first}", row([case.token(int(i)) for i in observation.ids], first))]
    return stage.add(name, outcome, says, figures=figures, notes=notes, next=steps, sight=sight, where=where)


def _target_options(case: ExamContext) -> str:
    """Return the options with which ``diagnose`` asks the same target."""
    import shlex

    return f"-m {shlex.quote(case.engine.path)} --target {shlex.quote(case.spec or case.target.name)}"


def _as_lines(value: Any) -> list[str]:
    """Return a field of a diagnosis as lines: a string, a list, a dict of named values, or nothing."""
    if value is None or value == "" or value is False:
        return []
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [f"{key}: {', '.join(_as_lines(each)) or 'none'}" for key, each in value.items()]
    if isinstance(value, Iterable):
        lines = []
        for each in value:
            joined = isinstance(each, list | tuple | dict)
            lines += [", ".join(_as_lines(each))] if joined else _as_lines(each)
        return lines
    return [f"{value:.4g}" if isinstance(value, float) else str(value)]
