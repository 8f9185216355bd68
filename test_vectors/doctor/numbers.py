"""The numbers: prompts that show mistakes are sent, and the answers diagnosed against the model.

A verdict becomes an outcome like this: a rounding set is "nothing wrong seen", a named fault is "wrong", "unknown" is
"not explained", anything else (a verdict that was not possible) is "cannot tell". Whatever else the diagnosis says of
its own sight goes onto the page as it is.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ds4ref.errors import DataError, Ds4Error
from ds4ref.targets import Ability
from ds4ref.variants import ROUNDING

from ..cli_diagnose import run_diagnosis
from ..diagnosis.prompts import MISTAKES
from ..elicit import elicit
from .case import Case
from .findings import Check, Outcome, Stage, row

if TYPE_CHECKING:
    from ..diagnosis import Diagnosis
    from ..observation import Observation

PROMPTS = ("mixed", "short", "text", "long")
AGREES = 4
"""Positions that have to agree with a rounding set before its noise is taken for the target's."""
IN_THE_PROMPT = frozenset({m.name for m in MISTAKES} | {"bos_added", "first_token_dropped", "first_token_doubled"})
"""Faults that lie before the model: what it was fed."""


def numbers(case: Case, stage: Stage) -> None:
    """Every prompt of the set that the stage's time allows: "mixed" first, it shows most."""
    if not _possible(case, stage, "diagnosis"):
        return
    chosen = PROMPTS[:1] if case.quick else PROMPTS if case.long else PROMPTS[:3]
    took = 0.0
    for name in chosen:
        if name != "mixed" and case.left < took:
            stage.add(
                name, Outcome.SKIPPED, "out of time", next=[f"ds4-vectors diagnose {_again(case)} --prompt {name}"]
            )
            continue
        start = time.monotonic()
        _one(case, stage, name, chat=False)
        took = time.monotonic() - start
    answers = {c.figures.get("verdict"): c for c in stage.checks if c.outcome is Outcome.OK}
    if len(answers) == 1 and not any(c.outcome.spoils for c in stage.checks):
        case.mode = str(next(iter(answers)))
    elif len(answers) > 1:
        stage.add("agreement", Outcome.UNSURE, f"the prompts do not agree: {', '.join(map(str, answers))}",
                  notes=["rounding sets that lie close together can change places from prompt to prompt"])  # fmt: skip


def chat(case: Case, stage: Stage) -> None:
    """What the model says after a chat, which is where a wrong template shows. Part of the template stage."""
    if case.quick or not _possible(case, stage, "numbers after a chat"):
        return
    check = _one(case, stage, "short", chat=True)
    if check.outcome is Outcome.WRONG and not set(str(check.figures.get("fault")).split(", ")) & IN_THE_PROMPT:
        check.outcome = Outcome.UNSURE
        check.says = f"the numbers are wrong, but not because of the template: {check.says}"


def _possible(case: Case, stage: Stage, name: str) -> bool:
    if case.same_model is False:
        stage.add(name, Outcome.IMPOSSIBLE, "the target has another model than the one it is compared with",
                  next=["Load the diagnostic model into the engine (ds4-vectors model prints its file), or give the "
                        "target's model with -m MODEL.gguf"])  # fmt: skip
        return False
    if not case.logprobs and not case.target.can(Ability.FULL_LOGITS):
        stage.add(name, Outcome.IMPOSSIBLE, "the target gives no log probabilities", next=[
            "ds4-vectors diagnose --logits FILE takes what the engine dumps (.npz, .npy, .csv, .json)"])  # fmt: skip
        return False
    return True


def _one(case: Case, stage: Stage, prompt: str, chat: bool) -> Check:
    name = f"after a chat ({prompt})" if chat else prompt
    case.progress(f"diagnosis of {name}")
    try:
        seen = elicit(case.target, case.engine, None, prompt, chat)
    except DataError as error:
        return stage.add(name, Outcome.FAILED, f"the answer cannot be used: {error}")
    except Ds4Error as error:
        return stage.add(name, Outcome.IMPOSSIBLE if chat else Outcome.FAILED, str(error))
    try:
        found = run_diagnosis(case.engine, seen)
    except DataError as error:
        # what was sent back does not belong to the model, or holds no numbers
        return stage.add(name, Outcome.FAILED, f"cannot be diagnosed: {error}")
    return told(case, stage, name, found, seen, prompt, chat)


def told(
    case: Case, stage: Stage, name: str, found: Diagnosis, seen: Observation, prompt: str = "", chat: bool = False
) -> Check:
    """A diagnosis as a check. Only what every diagnosis has is relied on; the rest is shown if it is there."""
    whole = found.to_json()
    fault = ", ".join(found.fault) if isinstance(found.fault, list | tuple) else found.fault
    again = f"ds4-vectors diagnose {_again(case)} --prompt {prompt}{' --chat' if chat else ''} --thorough"
    figures: dict[str, Any] = {
        "verdict": found.verdict, "fault": fault, "confidence": round(float(found.confidence), 4),
        "positions": len(seen.rows), "numbers": "full logits" if seen.full else f"top {seen.logprobs.shape[1]}",
    }  # fmt: skip
    figures |= {key: whole[key] for key in ("first_position", "agrees_with", "agrees_until", "distance")
                if isinstance(whole.get(key), int | float | str)}  # fmt: skip
    figures = {key: value for key, value in figures.items() if value is not None}
    notes, steps = _lines(found.notes), _lines(whole.get("next"))
    sight = "; ".join(_lines((whole.get("sight") or {}).get("says")))
    where = []
    first = whole.get("first_position")
    base, until = whole.get("agrees_with"), whole.get("agrees_until")
    if base in ROUNDING and isinstance(until, int) and int((seen.rows < until).sum()) >= AGREES:
        case.hint = str(base)
    if found.verdict in ROUNDING:
        outcome, says = Outcome.OK, f"{found.verdict}: {found.says}"
        declared = str(case.target.identity().get("numerics") or "")
        if declared in ROUNDING and declared != found.verdict:
            notes = [*notes, f"the target says that its mode is {declared}"]
        sight = sight or "a mistake that moves the numbers less than this set's noise cannot be seen"
    elif found.verdict in ("broken", "file"):
        outcome, says = Outcome.WRONG, found.says
    elif found.verdict == "fault":
        outcome, says = Outcome.WRONG, f"{fault}: {found.says}"
        steps = [*steps, again]
    elif found.verdict == "unknown":
        outcome = Outcome.UNEXPLAINED
        says = f"{found.says}: no rounding set and no mistake known here gives these numbers"
        steps = [
            *steps,
            again,
            "ds4-vectors diagnose --details FILE lists what lies nearest, and from where on it parts",
        ]
    else:
        outcome, says = Outcome.UNSURE, f"{found.verdict}: {found.says}"
        steps = steps or [again]
    if outcome is not Outcome.OK and isinstance(first, int) and 0 <= first < len(seen.ids):
        where = [(f"deviates first after token {first}", row([case.token(int(i)) for i in seen.ids], first))]
    return stage.add(name, outcome, says, figures=figures, notes=notes, next=steps, sight=sight, where=where)


def _again(case: Case) -> str:
    """Options with which ``diagnose`` asks the same target."""
    import shlex

    return f"-m {shlex.quote(case.engine.path)} --target {shlex.quote(case.spec or case.target.name)}"


def _lines(value: Any) -> list[str]:
    """Whatever a diagnosis says somewhere, as lines: a string, a list, a dict of named values, or nothing."""
    if value is None or value == "" or value is False:
        return []
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [f"{key}: {', '.join(_lines(each)) or 'none'}" for key, each in value.items()]
    if isinstance(value, Iterable):
        return [line for each in value for line in ([", ".join(_lines(each))] if isinstance(each, list | tuple | dict)
                                                    else _lines(each))]  # fmt: skip
    return [f"{value:.4g}" if isinstance(value, float) else str(value)]
