"""Compare the engine with itself: repeated requests, prefill and decode.

A correct engine gives the same distribution for the same tokens, however they were fed. The yardstick sets the allowed
difference: none, or the effect of float noise in the target's rounding set. A small difference that a batch or a prompt
cache causes is not a mistake: few engines promise batch invariance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ds4ref.nano.diagnostic import PROMPTS
from ds4ref.nano.prose import prose
from ds4ref.targets import Completion, Prompt, Step
from ds4ref.text.prompts import encode_chat_prompt

from ..finding import Finding, Outcome, counted, distinct, row
from .case import ExamContext
from .examination import Stage
from .preflight import alternatives_row
from .yardstick import FLOAT, UNKNOWN, Yardstick, distance, fallback, measure

TOKENS = 24
FEWEST_PLACES = 4
"""Fewest positions that must be comparable before agreement is reported."""
FLIP = 8.0
"""If the best token leads by more than this many times the largest rms difference at other positions, rounding cannot
have changed it. An rms is over some 20 tokens; the difference of two of them may be 3 to 6 times as large."""
UNEQUAL = (Outcome.WRONG, Outcome.UNSURE)
THINKING = "Switch thinking off in the server's own options, or name its dialect (--dialect)"
ORDER = ("Sums in another order (atomics, a batch of others, a cache of prompts) make small differences; look for "
         "one that is not small")  # fmt: skip
NO_CACHE_PROMISE = (
    "Nothing to mend if it keeps a cache of prompts: the first answer then comes from a prefill of the whole prompt, "
    "later ones from that of its last token, and llama.cpp, SGLang and vLLM choose kernels by the number of tokens. "
    "Without the cache, the answers must be identical"
)
DECODE = "Look at what decode does otherwise than prefill: cache rows, positions, masks, kernels"
IDS = "--id-prompts, if the server takes token ids as prompt; --prefill STYLE, if it goes on with a given answer"


def prompt_of(case: ExamContext, characters: int = 400, seed: int = 11) -> Prompt | None:
    """Return a prompt of prose in the first of these forms that the target accepts: ids, text, chat; None if none.

    ``characters``: length of the text; ``seed`` selects the text.
    """
    text = prose(characters, seed=seed)[:characters].rsplit(" ", 1)[0]
    if "ids" in case.kinds:
        ids = case.tokenizer.encode(text) if case.tokenizer is not None else PROMPTS["mixed"]()[:100]
        return Prompt.tokens(ids)
    return Prompt.plain(text) if "text" in case.kinds else Prompt.chat(text) if "chat" in case.kinds else None


def ids_of(case: ExamContext, prompt: Prompt) -> list[int] | None:
    """Return a prompt's ids in the model's vocabulary; None if they are unknown."""
    if prompt.ids is not None:
        return list(prompt.ids)
    ours = case.tokenizer
    if ours is None or case.same_model is not True:
        return None
    if prompt.text is not None:
        return ours.encode(prompt.text)
    return encode_chat_prompt(ours, prompt.system, prompt.user or "", prompt.thinking) + ours.encode(prompt.answer)


def step_ids(case: ExamContext, steps: Sequence[Step]) -> list[int]:
    """Return the ids of generated tokens in the model's vocabulary, up to the first token whose id is unknown."""
    ids = []
    for step in steps:
        number = case.ids_by_bytes.get(step.token.raw) if step.token.id is None else step.token.id
        if number is None or not 0 <= number < case.engine.shape.vocab:
            break
        ids.append(number)
    return ids


def gap(a: Step, b: Step, least: float = -np.inf) -> float:
    """Return the rms difference of log probabilities (nats) over the alternatives that both steps list; NaN if none.

    Alternatives without bytes of their own (``finding.distinct``) are ignored, and those with a log probability below
    ``least`` in both steps.
    """
    first, second = ({t.raw: t.logprob for t in s.top if t.logprob is not None and distinct(t.raw)} for s in (a, b))
    shared = [raw for raw in first if raw in second and max(first[raw], second[raw]) >= least]
    if not shared:
        return np.nan
    return float(distance(np.array([[first[r] for r in shared]]), np.array([[second[r] for r in shared]]))[0])


def yard_for(case: ExamContext, prompt: Prompt, steps: Sequence[Step]) -> Yardstick:
    """Measure the model's float noise on a prompt and the tokens generated after it, up to the first of unknown id.

    Return the fallback yardstick if the prompt's ids are unknown.
    """
    before = ids_of(case, prompt)
    if case.same_model is not True or not before:
        return fallback()
    case.progress("measuring what float noise makes")
    return measure(case.engine, before + step_ids(case, steps), case.rounding, case.top or None)


# --------------------------------------------------------------------------------------------------- whole answers


@dataclass
class AnswerComparison:
    """Comparison of two greedy answers to one request.

    rms     difference at each step up to and including the fork, nats
    fork    index of the first step with different tokens, None if there is none
    margin  nats between the two tokens at the fork, in the first answer; None if unknown
    same    whether the texts and all log probabilities are equal
    """

    rms: np.ndarray
    fork: int | None
    margin: float | None
    same: bool


def compare_answers(a: Completion, b: Completion, least: float = -np.inf) -> AnswerComparison:
    """Compare two answers step by step, up to the first different token; ``least`` as for ``gap``."""
    pairs = list(zip(a.steps, b.steps, strict=False))
    fork = next((at for at, (x, y) in enumerate(pairs) if x.token.raw != y.token.raw), None)
    margin = None
    if fork is not None:
        listed = {t.raw: t.logprob for t in pairs[fork][0].top}
        own, other = (listed.get(step.token.raw) for step in pairs[fork])
        margin = None if own is None or other is None else abs(own - other)
    elif len(a.steps) != len(b.steps):
        fork = len(pairs)
    rms = np.array([gap(x, y, least) for x, y in pairs[: None if fork is None else fork + 1]], np.float64)
    return AnswerComparison(rms, fork, margin, a.text == b.text and _values(a) == _values(b))


def _values(answer: Completion) -> list[tuple[object, ...]]:
    return [(step.token, step.top) for step in answer.steps]


def batch_effect(answer: AnswerComparison, others: Sequence[AnswerComparison], limit: float = UNKNOWN) -> float | None:
    """Return an answer's largest difference (nats rms) if batching or a prompt cache may have caused it, else None.

    Both change how many tokens are evaluated at once, and an engine may choose its kernels by that number. ``answer``
    compares two answers to one request, ``others`` all answers to it. None if the difference exceeds ``limit``, or if
    the best token changed although it led by ``FLIP`` times the difference at other positions.
    """
    before = np.concatenate([each.rms[: each.fork] for each in others])
    noise = float(np.nanmax(before)) if np.isfinite(before).any() else 0.0
    if not len(answer.rms) or not np.isfinite(answer.rms).all() or answer.rms.max() > limit:
        return None
    if answer.fork is not None and (answer.margin is None or answer.margin > FLIP * max(noise, FLOAT)):
        return None
    return float(answer.rms.max())


def excuse(check: Finding, answer: AnswerComparison, others: Sequence[AnswerComparison], says: str, why: str) -> None:
    """Change a finding's outcome to "depends on its batch or cache" if that may explain the difference it reports.

    ``answer``, ``others``: as for ``batch_effect``; ``says``, ``why``: the finding's new sentence and next step.
    """
    nats = batch_effect(answer, others) if check.outcome in UNEQUAL else None
    if nats:
        fork = "" if answer.fork is None else f"; token {answer.fork} becomes another one, as close as that"
        check.outcome, check.next, check.says = Outcome.DEPENDS, [why], f"{says} by at most {nats:.2g} nats rms{fork}"


def determinism(case: ExamContext, stage: Stage) -> None:
    """Send one request several times and compare the answers."""
    prompt = prompt_of(case)
    if prompt is None:
        stage.add("run to run", Outcome.IMPOSSIBLE, "no request was answered")
        return
    runs: list[Completion] = []
    for i in range(3 if case.quick else 4):
        if case.out_of_time and len(runs) >= 2:
            break
        case.progress(f"run {i + 1} of the same request")
        runs.append(case.ask(prompt, TOKENS))
    check, comparisons = add_comparison(case, stage, "run to run", prompt, runs, {"tokens": len(runs[0].steps)})
    if len(runs) > 2 and all(compare_answers(runs[1], run).same for run in runs[2:]):
        says = "the later answers are identical; the first differs from them"
        excuse(check, comparisons[0], comparisons, says, NO_CACHE_PROMISE)


def add_comparison(
    case: ExamContext,
    stage: Stage,
    name: str,
    prompt: Prompt,
    answers: Sequence[Completion],
    figures: dict[str, object],
) -> tuple[Finding, list[AnswerComparison]]:
    """Add a finding: ``answers`` to one prompt are identical, within noise, or differ, with the place where they fork.

    Return the finding, and the comparison of each later answer with the first. ``figures``: values to report with it.
    """
    first, later = answers[0], answers[1:]
    comparisons = [compare_answers(first, other) for other in later]
    if any(answer.reasoning for answer in answers):
        says = "it thinks although it was asked not to, and a server that thinks may sample at temperature 0, too"
        return stage.add(name, Outcome.UNSURE, says, figures=figures, next=[THINKING]), comparisons
    if all(each.same for each in comparisons):
        how = "with all log probabilities" if first.steps else "by their text: there are no log probabilities"
        return stage.add(name, Outcome.OK, f"{len(answers)} answers are identical {how}", figures=figures), comparisons
    if not first.steps:
        says = "the answers differ; by how much, log probabilities would say"
        return stage.add(name, Outcome.UNSURE, says, figures=figures), comparisons
    yard = yard_for(case, prompt, first.steps)
    rms = np.concatenate([each.rms for each in comparisons])
    outcome, says = yard.judge(rms)
    figures = {**figures, "different": f"{sum(not each.same for each in comparisons)} of {len(later)}",
               "largest difference (nats rms)": float(np.nanmax(rms)) if np.isfinite(rms).any() else None}  # fmt: skip
    where = []
    at = max(
        range(len(later)), key=lambda i: (comparisons[i].fork is not None, np.nanmax(comparisons[i].rms, initial=0))
    )
    fork, margin = comparisons[at].fork, comparisons[at].margin
    if fork is not None:
        figures |= {"fork": fork, "margin there": margin}
        if margin is not None and margin > yard.apart:
            outcome, near = Outcome.WRONG, f"between tokens that are {margin:.2g} nats apart"
        else:
            outcome = outcome if outcome is Outcome.WRONG else Outcome.UNSURE
            near = "by how much is not known" if margin is None else f"a near-tie of {margin:.2g} nats"
        says = f"forks at token {fork}, {near}; {says}"
        for label, run in (("one answer", first), ("another", later[at])):
            where.append((label, row([(s.token.raw, s.token.id) for s in run.steps], fork)))
            if fork < len(run.steps):
                where.append((f"alternatives there, {label}", alternatives_row(run.steps[fork])))
    if outcome is Outcome.OK:
        says = f"not identical: {says}"
    check = stage.add(name, outcome, says, figures=figures, where=where, limit=yard.limit(len(rms)),
                      next=[] if outcome is Outcome.OK else [ORDER])  # fmt: skip
    return check, comparisons


# -------------------------------------------------------------------------------------------- prefill and decode


def ways(case: ExamContext, stage: Stage) -> None:
    """Compare the logits of the same positions evaluated as one prompt and token by token."""
    prompts = [prompt for i in range(5) if (prompt := prompt_of(case, 400, seed=11 + i)) is not None]
    if not prompts or not case.logprobs:
        stage.add("prompt against continuation", Outcome.IMPOSSIBLE, "the target gives no log probabilities")
        return
    compare_continuations(case, stage, "prompt against continuation", prompts, TOKENS, 4 if case.quick else 12)


def compare_continuations(
    case: ExamContext, stage: Stage, name: str, prompts: Sequence[Prompt], tokens: int, probes: int
) -> None:
    """Generate ``tokens`` tokens, then compare their distributions with those of the same positions inside a prompt.

    For that, up to ``probes`` prompts are sent that each end after some of the generated tokens. Generated bytes that
    are not UTF-8, or that a tokenizer would split differently, cannot be sent back as text; the next of ``prompts`` is
    used until enough positions were compared.
    """
    places: list[tuple[Sequence[Step], int, Step]] = []  # (an answer, index of a step in it, that step after a prompt)
    yard = fallback()
    for i, prompt in enumerate(prompts):
        if i and (len(places) >= FEWEST_PLACES or case.out_of_time):
            break
        case.progress(f"{name}: generating")
        steps = case.ask(prompt, tokens).steps
        again = _ask_again(case, prompt, steps, probes)
        if again and not places:
            yard = yard_for(case, prompt, steps)
        places += [(steps, at, step) for at, step in again]
    if not places:
        stage.add(name, Outcome.IMPOSSIBLE, "no tokens could be sent back as they were", next=[IDS])
        return
    rms = np.array([gap(steps[at], step) for steps, at, step in places])
    outcome, says = yard.judge(rms)
    largest = float(np.nanmax(rms)) if np.isfinite(rms).any() else None
    if outcome is Outcome.OK and len(places) < FEWEST_PLACES:
        outcome, says = Outcome.UNSURE, f"only {counted(len(places), 'place')} could be compared; {says}"
    where = []
    if outcome is Outcome.WRONG and largest is not None:
        beyond = np.flatnonzero(rms > yard.apart)
        answer, at, other = places[int(beyond[0] if len(beyond) else np.nanargmax(rms))]
        where = [(f"at token {at}", row([(s.token.raw, s.token.id) for s in answer], at)),
                 ("generating", alternatives_row(answer[at])), ("as a prompt", alternatives_row(other))]  # fmt: skip
    steps_next = {Outcome.WRONG: [DECODE], Outcome.UNSURE: [IDS]}.get(outcome, [])
    stage.add(name, outcome, says, figures={"positions": len(places), "largest, nats rms": largest}, where=where,
              limit=yard.limit(len(rms)), next=steps_next)  # fmt: skip


def _ask_again(case: ExamContext, prompt: Prompt, steps: Sequence[Step], probes: int) -> list[tuple[int, Step]]:
    """Send up to ``probes`` prompts that end inside an answer, and return (index in the answer, the step after it).

    ``steps``: the answer to ``prompt``. Only prompts that are split into the same tokens again are sent.
    """
    # requests are slow, tokenizing is not: send only prompts that are split into the same tokens
    longer = [(at, other) for at in range(1, len(steps)) if (other := _longer(case, prompt, steps[:at])) is not None]
    chosen = sorted({int(i) for i in np.linspace(0, len(longer) - 1, probes)}) if longer else []
    out = []
    for at, other in (longer[i] for i in chosen):
        if case.out_of_time:
            break
        case.progress(f"as a prompt: token {at}")
        answer = case.try_ask(other, 1)[0]
        if answer is not None and answer.steps:
            out.append((at, answer.steps[0]))
    return out


def _longer(case: ExamContext, prompt: Prompt, steps: Sequence[Step]) -> Prompt | None:
    """Return the prompt extended by generated tokens; None if it would or might be split into other tokens."""
    after = step_ids(case, steps)
    if len(after) < len(steps):
        return None
    if prompt.ids is not None:
        return Prompt.tokens([*prompt.ids, *after])
    try:
        text = b"".join(s.token.raw for s in steps).decode()
    except UnicodeDecodeError:
        return None  # the answer breaks off inside a character, which cannot be sent as text
    longer = replace(prompt, answer=text) if prompt.text is None else Prompt.plain(prompt.text + text)
    before = ids_of(case, prompt)
    return longer if before is not None and ids_of(case, longer) == before + after else None
