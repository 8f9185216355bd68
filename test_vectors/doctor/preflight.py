"""Pre-flight stage: does the target answer, which model has it loaded, and are its log probabilities valid."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ds4ref.archs.deepseek4.shape import ModelShape, nearest, unlike_published
from ds4ref.errors import DataError, Ds4Error
from ds4ref.nano.diagnostic import PROMPTS
from ds4ref.targets import Ability, Completion, Prompt, Step

from ..elicit import PROBE, is_early, probed_echo, unknown_tokens
from ..finding import Outcome, ShownToken, distinct, visible
from ..observation import DEGENERATE, from_top
from ..observation import preflight as defects
from .case import KINDS, TOP, ExamContext
from .examination import ECHO, Stage

STEPS = 8
SLACK = 1e-3
"""An alternative may be likelier than the chosen token by this many nats, as APIs round to a few decimals."""
SAME_MODEL, OTHER_MODEL = 0.9, 0.5
"""Share of the target's tokens that are in the model's vocabulary: at least SAME_MODEL means the same model, less than
OTHER_MODEL another one."""
FAULTS = {
    "nan": "not a number, or infinite", "sum": "probabilities that add up to more than 1",
    "twice": "an alternative twice",
}  # fmt: skip
"""Sentences for the report on defects of a step's alternatives, by the name of the finding."""
NO_LOGPROBS = ("Start the server so that it returns log probabilities, dump logits from the engine "
               "(ds4-vectors diagnose --logits FILE), or, of ds4, examine 'command:./ds4 -m MODEL.gguf'")  # fmt: skip
SHARED = (": tokens that share a text, such as '' for bytes that are no text, are one entry, and which of them its "
          "value belongs to cannot be told")  # fmt: skip
NOT_BEST = "the token taken is not the best, at temperature 0"
PENALTY = ("Switch its penalty of repetitions off (llama-cpp-python: repeat_penalty is 1.1 unless a request says 1): "
           "answers are not greedy")  # fmt: skip
ASKED = {"chat": "Name three rivers.", "text": "The old mill by the"}
"""The small requests by kind."""
BY_TEXT = "Dump logits instead (docs/reference/doctor.md, llama.cpp): ds4-vectors diagnose --logits FILE"


def preflight(case: ExamContext, stage: Stage) -> None:
    """Run all checks; they set ``case.kinds``, ``logprobs``, ``echo`` and ``same_model`` for later stages."""
    _file(case, stage)
    answers = _reach(case, stage)
    if answers:
        _names(case, stage, answers)
        _logprobs(case, stage, answers)
        _vocabulary(case, stage, answers)
        _echo(case, stage)


def _file(case: ExamContext, stage: Stage) -> None:
    """Compare the constants (metadata) of the model file with those of the published model."""
    shape = case.engine.shape
    if not isinstance(shape, ModelShape):
        return
    model = nearest(shape)
    odd = [f"{key} {got}, where {model.name} has {want}" for key, (got, want) in unlike_published(shape).items()]
    if odd and (shape.dim, shape.n_layers, shape.n_experts) == (model.dim, model.n_layers, model.n_experts):
        stage.add("model file", Outcome.WRONG, f"it has the size of {model.name}, but {'; '.join(odd)}",
                  cause="checkpoint",
                  next=["Convert the model again: these values are in the file, not in the engine"])  # fmt: skip
    else:
        says = "; ".join(odd) + ": right if it was made so" if odd else f"its constants are those of {model.name}"
        stage.add("model file", Outcome.OK, says, cause="checkpoint")


def _reach(case: ExamContext, stage: Stage) -> dict[str, Completion]:
    """Send a small request for each kind of prompt, first with log probabilities; return the answers by kind."""
    target = case.target
    prompts = {"chat": Prompt.chat(ASKED["chat"]), "text": Prompt.plain(ASKED["text"]),
               "ids": Prompt.tokens(PROMPTS["short"]())}  # fmt: skip
    answers: dict[str, Completion] = {}
    refused: dict[str, str] = {}
    requested = min(TOP, target.max_top_logprobs) if target.can(Ability.TOP_LOGPROBS) else 0
    for kind, ability in KINDS.items():
        if not target.can(ability):
            continue
        case.progress(f"asking with {ability.value}")
        answer, why = case.try_ask(prompts[kind], STEPS, requested)
        if answer is None and requested:
            answer, _ = case.try_ask(prompts[kind], STEPS, 0)
            if answer is not None:
                stage.add(f"log probabilities, {kind}", Outcome.IMPOSSIBLE, f"the target answers but gives none: {why}",
                          next=[NO_LOGPROBS])  # fmt: skip
        if answer is None:
            refused[kind] = why
        elif kind == "text" and target.continues_text() is False:
            why = "the server makes a chat of a text prompt: nothing is compared by such prompts"
            stage.add("text prompts", Outcome.IMPOSSIBLE, why)
        else:
            answers[kind] = answer
    case.kinds |= answers.keys()
    case.logprobs |= any(answer.steps and answer.steps[0].top for answer in answers.values())
    if answers:
        says = f"answers {', '.join(KINDS[kind].value for kind in answers)}"
        stage.add("reached", Outcome.OK, says, figures={"abilities": sorted(a.value for a in target.abilities)})
        for kind, why in refused.items():
            stage.add(f"{kind} prompts", Outcome.IMPOSSIBLE, why)
        return answers
    steps = ["Run the target's command by hand and read its message"]
    if target.kind == "http":
        steps = [f"Does the server run, and is the address right? curl {target.name}/models shows what it serves",
                 "--model-name NAME if it serves several models; its key is in DS4_API_KEY (--key-env)"]  # fmt: skip
    why = next(iter(refused.values()), "it takes no prompts at all")
    if target.can(Ability.FULL_LOGITS):
        stage.add("prompts", Outcome.IMPOSSIBLE, f"only logits can be asked for: {why}")
        return {}
    stage.add("reached", Outcome.FAILED, f"no request was answered: {why}", next=steps)
    return {}


def _names(case: ExamContext, stage: Stage, answers: dict[str, Completion]) -> None:
    """Report which model the target claims to serve; a name proves nothing, so only contradictory names are wrong."""
    names = sorted({answer.model for answer in answers.values() if answer.model})
    outcome, says = Outcome.OK, f"calls itself {names[0] if names else 'nothing'}; a name proves nothing"
    if len(names) > 1:
        outcome, says = Outcome.WRONG, f"answers under {len(names)} names: {', '.join(names)}"
    stage.add("model", outcome, says, figures=case.target.identity())


def _logprobs(case: ExamContext, stage: Stage, answers: dict[str, Completion]) -> None:
    """Check the alternatives: numbers, sorted, as many as requested, sum at most 1, the best one chosen."""
    requested = min(TOP, case.target.max_top_logprobs)
    steps = [(f"{kind} step {at}", step) for kind, answer in answers.items() for at, step in enumerate(answer.steps)]
    shown = [(place, step) for place, step in steps if step.top]
    if not shown:
        if not any(c.name.startswith("log probabilities") for c in stage.checks):
            stage.add("log probabilities", Outcome.IMPOSSIBLE, "the answers have none", next=[NO_LOGPROBS])
        return
    fewest = min(len(step.top) for _, step in shown)
    figures: dict[str, object] = {"steps": len(steps), "asked for": requested, "fewest given": fewest}
    places: dict[str, list[tuple[str, Step]]] = {}
    for place, step in shown:
        for fault in faults(step, requested - len(step.top)):
            places.setdefault(fault, []).append((place, step))
    figures |= {fault: f"at {len(at)} of {len(steps)} steps, first {at[0][0]}" for fault, at in places.items()}
    if [*places] == [NOT_BEST] and not any(
        new_best(ASKED.get(kind, ""), answer.steps) for kind, answer in answers.items()
    ):
        says = "where the best token occurs before, another one is taken: the server penalizes repetitions"
        stage.add("log probabilities", Outcome.UNSURE, says, figures=figures, next=[PENALTY])
    elif places:
        where = [(f"{at[0][0]}: {fault}", alternatives_row(at[0][1])) for fault, at in places.items()]
        says = f"{'; '.join(places)}: these are no log probabilities to rely on"
        stage.add("log probabilities", Outcome.WRONG, says, figures=figures, where=where[:4],
                  next=["Look at how the server makes them: all that follows is read from them"])  # fmt: skip
    else:
        stage.add("log probabilities", Outcome.OK, "finite, sorted, not above 1 together, and the best token is taken",
                  figures=figures)  # fmt: skip
    few = [step for _, step in shown if len(step.top) < requested]
    if few:
        says = f"{len(few)} of {len(steps)} steps list fewer than {requested} alternatives (at least {fewest})"
        advice = "Raise the server's limit of top_logprobs: with fewer alternatives small mistakes cannot be seen"
        if any(not distinct(t.raw) for each in few for t in each.top):
            says, advice = says + SHARED, BY_TEXT
        stage.add("alternatives", Outcome.UNSURE, says, next=[advice])
    if len(shown) < len(steps):
        says = f"{len(steps) - len(shown)} of {len(steps)} steps have no alternatives at all"
        stage.add("silent steps", Outcome.UNSURE, says)


def faults(step: Step, missing: int = 0) -> list[str]:
    """Return a sentence for each defect of a step's alternatives; -9999, by which APIs mean "no value", is not one.

    ``missing``: how many fewer alternatives the step has than were requested. An API that keys them by text merges
    tokens of equal text into one entry, at the place of the first with the value of the last: that many may be out of
    order.
    """
    raws = {raw: i for i, raw in enumerate(dict.fromkeys(t.raw for t in step.top if distinct(t.raw)))}
    entries = [(raws.get(t.raw, len(raws) + i), t.logprob) for i, t in enumerate(step.top)]
    try:
        out = [FAULTS[f.name] for f in defects(from_top([0], [(0, entries)])) if f.name in FAULTS]
    except DataError:
        out = [] if all(p is not None and p <= DEGENERATE for _, p in entries) else [FAULTS["nan"]]
    finite = [v for _, v in entries if v is not None and math.isfinite(v)]
    if any(v > SLACK for v in finite):
        out = ["a log probability above 0"]
    sorted_up_to: list[int] = []  # length of the longest sorted list that ends at each value
    for i, value in enumerate(finite):
        sorted_up_to.append(1 + max((sorted_up_to[j] for j in range(i) if finite[j] >= value - 1e-6), default=0))
    if len(finite) - max(sorted_up_to, default=0) > max(missing, 0):
        out.append("alternatives not sorted")
    own = step.token.logprob
    if own is not None and finite and math.isfinite(own) and own < max(finite) - SLACK:
        out.append(NOT_BEST)
    return out


def new_best(prompt: str, steps: Sequence[Step]) -> list[int]:
    """Return the indices of steps whose best token was not taken although it does not occur before, in the prompt or
    the answer; a penalty of repetitions explains the others."""
    before, out = prompt.encode(), []
    for at, step in enumerate(steps):
        best = max(step.top, key=lambda t: -math.inf if t.logprob is None else t.logprob, default=None)
        if best is not None and NOT_BEST in faults(step) and best.raw.strip() not in before:
            out.append(at)
        before += step.token.raw
    return out


def alternatives_row(step: Step) -> list[ShownToken]:
    """Return a step's best alternatives with their log probabilities for display; the chosen token is marked."""
    values = ["none" if t.logprob is None else f"{t.logprob:.4g}" for t in step.top]
    return [ShownToken(f"{visible(t.raw)} {value}", t.id, t.raw == step.token.raw)
            for t, value in zip(step.top[:8], values[:8], strict=True)]  # fmt: skip


def _vocabulary(case: ExamContext, stage: Stage, answers: dict[str, Completion]) -> None:
    """Check that the target's tokens are in our model's vocabulary; if not, it cannot be diagnosed with this model."""
    odd, count = unknown_tokens(case.ids_by_bytes, (step for answer in answers.values() for step in answer.steps))
    if case.tokenizer is None or not count:
        why = "the model's file has no tokenizer" if case.tokenizer is None else "no tokens with bytes came back"
        stage.add("vocabulary", Outcome.IMPOSSIBLE, f"{why}: whether it is the same model cannot be told")
        return
    share, name = 1 - len(odd) / count, case.engine.shape.name or case.engine.path
    figures = {"tokens seen": count, "in the vocabulary": f"{100 * share:.0f} %"}
    where = [("not in the vocabulary", [ShownToken(visible(raw)) for raw in odd[:12]])] if odd else []
    case.same_model = True if share >= SAME_MODEL else False if share < OTHER_MODEL else None
    if case.same_model:
        stage.add("vocabulary", Outcome.OK, f"the tokens are those of {name}", figures=figures, where=where)
        return
    says = (f"{100 - 100 * share:.0f} % of the tokens are not in the vocabulary of {name}: another model, or tokens "
            "that the server garbles")  # fmt: skip
    stage.add("vocabulary", Outcome.UNSURE, says, figures=figures, where=where,
              next=["Give the model that the target has loaded with -m MODEL.gguf, or load the diagnostic model into "
                    "it: ds4-vectors model prints its file"])  # fmt: skip


def _echo(case: ExamContext, stage: Stage) -> None:
    """Check whether the target returns a prompt's own log probabilities, which shows all positions at once."""
    if not (case.target.can(Ability.SCORE) and "text" in case.kinds and case.logprobs):
        says = "no log probabilities of a prompt: only what is generated can be looked at"
        stage.add(ECHO, Outcome.IMPOSSIBLE, says)
        return
    try:
        steps, after = probed_echo(case.target, case.top, case.limit)
        case.limit.check()
        case.echo = b"".join(s.token.raw for s in steps) == PROBE.encode()
        case.echo_early, why = is_early(steps, after), "the echo is not the text that was sent"
    except Ds4Error as error:
        why = str(error)
    if case.echo_early and after is not None:
        case.echo = False
        says = ("the echo is off by one token (each is listed with the distribution after it): log probabilities of "
                "prompts are not usable as they are; here they are read as meant")  # fmt: skip
        where = [("last of the echo", alternatives_row(steps[-1])), ("next token", alternatives_row(after))]
        stage.add(ECHO, Outcome.UNSURE, says, where=where)  # of the API, not of the engine
    elif case.echo:
        stage.add(ECHO, Outcome.OK, "returns the log probabilities of a prompt")
    else:
        stage.add(ECHO, Outcome.IMPOSSIBLE, f"{why}: only what is generated can be looked at")
