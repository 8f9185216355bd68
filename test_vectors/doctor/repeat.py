"""Compare the engine with itself: repeated requests, prompt and continuation, alone and concurrent, chunk edges.

A correct engine gives the same distribution for the same tokens, however they were fed. The yardstick sets the allowed
difference: none, or the effect of float noise in the target's rounding set.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ds4ref.errors import Ds4Error
from ds4ref.nano.diagnostic import PROMPTS
from ds4ref.nano.prose import prose
from ds4ref.targets import Completion, Prompt, Step
from ds4ref.targets.local import LocalTarget
from ds4ref.text.chat import encode_chat_prompt

from ..observation import log_softmax
from .case import ExamContext
from .findings import Check, Outcome, ShownToken, Stage, counted, distinct, row
from .preflight import alternatives_row
from .yardstick import FLOAT, UNKNOWN, Yardstick, distance, fallback, measure

TOKENS = 24
THINKING = "Switch thinking off in the server's own options, or name its dialect (--dialect)"
FEWEST_PLACES = 4
"""Fewest positions that must be comparable before agreement is reported."""
EDGES = (512, 1024, 2048)
"""Usual chunk sizes of prefill, in tokens."""
FLIP = 8.0
"""A best token that leads by more than so many times the differences elsewhere does not change by rounding. The rms is
over some 20 tokens, of which two may differ by 3 to 6 times as much."""
UNEQUAL = (Outcome.WRONG, Outcome.UNSURE)
NO_CACHE_PROMISE = (
    "Nothing to mend if it keeps a cache of prompts: the first answer then comes from a prefill of the whole prompt, "
    "later ones from that of its last token, and llama.cpp, SGLang and vLLM choose kernels by the number of tokens. "
    "Without the cache, the answers must be identical"
)


def prompt_of(case: ExamContext, characters: int = 400, seed: int = 11) -> tuple[str, Prompt] | None:
    """Return (kind, prompt) in the most direct kind that the target takes: ids, then text, then chat; None if none."""
    text = prose(characters, seed=seed)[:characters].rsplit(" ", 1)[0]
    if "ids" in case.kinds:
        ids = case.tokenizer.encode(text) if case.tokenizer is not None else PROMPTS["mixed"]()[:100]
        return "ids", Prompt.tokens(ids)
    if "text" in case.kinds:
        return "text", Prompt.plain(text)
    return ("chat", Prompt.chat(text)) if "chat" in case.kinds else None


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


def step_ids(case: ExamContext, steps: Sequence[Step]) -> list[int] | None:
    """Return the ids of generated tokens; None if one is unknown."""
    ids = []
    for step in steps:
        number = step.token.id
        if number is None:
            number = case.ids_by_bytes.get(step.token.raw)
        if number is None or not 0 <= number < case.engine.shape.vocab:
            return None
        ids.append(number)
    return ids


def gap(a: Step, b: Step) -> float:
    """Return the rms difference in nats over identified alternatives that both steps list; NaN if there are none."""
    first, second = ({t.raw: t.logprob for t in s.top if t.logprob is not None and distinct(t.raw)} for s in (a, b))
    shared = [raw for raw in first if raw in second]
    if not shared:
        return np.nan
    return float(distance(np.array([[first[r] for r in shared]]), np.array([[second[r] for r in shared]]))[0])


def yard_for(case: ExamContext, prompt: Prompt, steps: Sequence[Step]) -> Yardstick:
    """Measure the noise of the model on the prompt, if its ids are known, and the steps up to the first that is not;
    else return the fallback yardstick."""
    before = ids_of(case, prompt)
    if case.same_model is not True or not before:
        return fallback()
    after = next(ids for n in range(len(steps), -1, -1) if (ids := step_ids(case, steps[:n])) is not None)
    case.progress("measuring what float noise makes")
    return measure(case.engine, before + after, case.rounding, case.top or None)


# --------------------------------------------------------------------------------------------------- determinism


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


def compare_answers(a: Completion, b: Completion) -> AnswerComparison:
    """Compare two answers step by step, up to the first different token."""
    rms, fork, margin = [], None, None
    for at, (x, y) in enumerate(zip(a.steps, b.steps, strict=False)):
        rms.append(gap(x, y))
        if x.token.raw != y.token.raw:
            fork = at
            best = {t.raw: t.logprob for t in x.top}
            first_value, second_value = best.get(x.token.raw), best.get(y.token.raw)
            margin = abs(first_value - second_value) if first_value is not None and second_value is not None else None
            break
    if fork is None and len(a.steps) != len(b.steps):
        fork = min(len(a.steps), len(b.steps))
    distances = np.array(rms, np.float64)
    values = [[(t.raw, t.logprob) for s in each.steps for t in (s.token, *s.top)] for each in (a, b)]
    same = a.text == b.text and fork is None and (values[0] == values[1])
    return AnswerComparison(distances, fork, margin, same)


def batch_effect(answer: AnswerComparison, others: Sequence[AnswerComparison]) -> float | None:
    """Return the largest difference in nats rms between two answers to one request, if kernels chosen by the number of
    tokens at once, those of a batch or those not in a cache of prompts, may have made it; ``others``: all answers.

    None if it is larger than what check allows an unknown engine, or if the best token changed where it led by
    ``FLIP`` times what other positions differ.
    """
    before = [each.rms[: each.fork] for each in others]
    noise = max((float(np.nanmax(rms)) for rms in before if np.isfinite(rms).any()), default=0.0)
    known = answer.rms[np.isfinite(answer.rms)]
    if not len(known) or known.max() > UNKNOWN or len(known) < len(answer.rms):
        return None
    if answer.fork is not None and (answer.margin is None or answer.margin > FLIP * max(noise, FLOAT)):
        return None
    return float(known.max())


def determinism(case: ExamContext, stage: Stage) -> None:
    """Send one request several times, and compute full logits twice."""
    chosen = prompt_of(case)
    if chosen is None:
        stage.add("run to run", Outcome.IMPOSSIBLE, "no request was answered")
        return
    kind, prompt = chosen
    runs: list[Completion] = []
    for i in range(3 if case.quick else 4):
        if case.out_of_time and len(runs) >= 2:
            break
        case.progress(f"run {i + 1} of the same request")
        runs.append(case.ask(prompt, TOKENS))
    comparisons = [compare_answers(runs[0], run) for run in runs[1:]]
    check = add_comparison(case, stage, "run to run", prompt, runs[0], comparisons, runs[1:],
                           {"requests": len(runs), "tokens": len(runs[0].steps) or None, "prompt": kind})  # fmt: skip
    cached = len(runs) > 2 and all(compare_answers(runs[1], run).same for run in runs[2:])
    nats = batch_effect(comparisons[0], comparisons) if cached and check.outcome in UNEQUAL else None
    if nats is not None:
        check.outcome, check.next = Outcome.DEPENDS, [NO_CACHE_PROMISE]
        check.says = f"the later answers are identical; the first differs from them by at most {nats:.2g} nats rms"
        if comparisons[0].fork is not None:
            check.says += f"; token {comparisons[0].fork} becomes another one, as close as that"
    if case.local is not None:
        ids = PROMPTS["short"]()
        same = np.array_equal(case.target.logits(ids), case.target.logits(ids), equal_nan=True)
        stage.add("full logits, twice", Outcome.OK if same else Outcome.UNSURE, "identical" if same else "they differ")


def add_comparison(
    case: ExamContext, stage: Stage, name: str, prompt: Prompt, first: Completion,
    comparisons: Sequence[AnswerComparison], others: Sequence[Completion], figures: dict[str, Any], hint: str = "",
) -> Check:  # fmt: skip
    """Add a check: the answers are identical, within noise, or not, with the place where they fork."""
    figures = {k: v for k, v in figures.items() if v is not None}
    if any(answer.reasoning for answer in (first, *others)):
        says = "it thinks although it was asked not to, and a server that thinks may sample at temperature 0, too"
        return stage.add(name, Outcome.UNSURE, says, figures=figures, next=[THINKING])
    if all(each.same for each in comparisons):
        how = "with all log probabilities" if first.steps else "by their text: there are no log probabilities"
        return stage.add(name, Outcome.OK, f"{len(comparisons) + 1} answers are identical {how}", figures=figures)
    if not first.steps:
        return stage.add(name, Outcome.UNSURE, "the answers differ; by how much, log probabilities would say",
                         figures=figures)  # fmt: skip
    yard = yard_for(case, prompt, first.steps)
    worst, other = max(
        zip(comparisons, others, strict=True),
        key=lambda pair: (pair[0].fork is not None, float(np.nanmax(pair[0].rms, initial=0.0))),
    )
    rms = np.concatenate([each.rms for each in comparisons])
    outcome, says = yard.judge(rms)
    where: list[tuple[str, list[ShownToken]]] = []
    forks = [each for each in comparisons if each.fork is not None]
    figures |= {
        "different": f"{sum(not each.same for each in comparisons)} of {len(comparisons)}",
        "forked": len(forks),
    }
    figures["largest difference (nats rms)"] = float(np.nanmax(rms)) if np.isfinite(rms).any() else None
    if worst.fork is not None:
        at, margin = worst.fork, worst.margin
        figures |= {"first fork": min(each.fork for each in forks if each.fork is not None), "margin there": margin}
        if margin is not None and margin > yard.apart:
            outcome = Outcome.WRONG
            says = f"forks at token {at}, between tokens that are {margin:.2g} nats apart; {says}"
        else:
            outcome = outcome if outcome is Outcome.WRONG else Outcome.UNSURE
            near = "a near-tie" if margin is not None else "by how much is not known"
            says = f"forks at token {at}, {near}{'' if margin is None else f' of {margin:.2g} nats'}; {says}"
        for label, run in (("one answer", first), ("another", other)):
            where.append((label, row([(s.token.raw, s.token.id) for s in run.steps], at)))
        if at < len(first.steps) and at < len(other.steps):
            where += [
                ("alternatives there, one", alternatives_row(first.steps[at])),
                ("another", alternatives_row(other.steps[at])),
            ]
    if outcome is Outcome.OK:
        says = f"not identical: {says}"
    more = ["Sums in another order (atomics, a batch of others, a cache of prompts) make small differences; look for "
            "one that is not small"] if outcome is not Outcome.OK else []  # fmt: skip
    return stage.add(name, outcome, says, figures=figures, where=where, sight=yard.sight(len(rms)),
                     next=[*([hint] if hint else []), *more])  # fmt: skip


# -------------------------------------------------------------------------------------------- prefill and decode


def ways(case: ExamContext, stage: Stage) -> None:
    """Compare the logits of the same positions evaluated as one prompt and token by token."""
    if case.local is not None:
        ids = PROMPTS["mixed"]()[: 48 if case.quick else 200]
        case.progress("prompt against token by token")
        whole = chunked_logits(case.local, ids, None)
        session = case.local.engine.session(len(ids) + 1)
        single = np.array([session.eval(token).copy() for token in ids])
        hint = "Look at what decode does otherwise than prefill: cache rows, positions, masks, kernels"
        compare_rows(case, stage, "prompt against token by token", ids, whole, single, hint)
        return
    chosen = [prompt_of(case, 400, seed=11 + i) for i in range(5)]
    prompts = [each[1] for each in chosen if each is not None]
    if not prompts or not case.logprobs:
        stage.add("prompt against continuation", Outcome.IMPOSSIBLE, "the target gives no log probabilities")
        return
    compare_continuations(case, stage, "prompt against continuation", prompts, TOKENS, 4 if case.quick else 12)
    if case.echo and case.tokenizer is not None and case.same_model is True:
        ids = case.tokenizer.encode(prose(1000, seed=31))[:100]
        compare_prefixes(case, stage, "echo against shorter prompts", ids, range(9, 100, 18 if case.quick else 9))


def chunked_logits(target: LocalTarget, ids: Sequence[int], chunk: int | None) -> np.ndarray:
    return target.engine.session(len(ids) + 1).extend(ids, chunk=chunk or len(ids))


def compare_rows(
    case: ExamContext, stage: Stage, name: str, ids: Sequence[int], a: np.ndarray, b: np.ndarray, hint: str,
    yard: Yardstick | None = None,
) -> Check:  # fmt: skip
    """Add a check that compares two computations of the same rows of logits (T, V)."""
    rms = distance(log_softmax(a), log_softmax(b))
    if yard is None:
        case.progress("measuring what float noise makes")
        yard = measure(case.engine, ids, case.rounding) if np.any(rms) else fallback()
    outcome, says = yard.judge(rms)
    other_best = int((a.argmax(axis=1) != b.argmax(axis=1)).sum())
    finite = np.isfinite(rms)
    figures: dict[str, Any] = {
        "positions": len(rms), "rms, nats": float(np.sqrt(np.mean(rms[finite] ** 2))) if finite.any() else None,
        "largest, nats": float(rms.max()), "other best token": other_best, "identical positions": int((rms == 0).sum()),
    }  # fmt: skip
    if np.isinf(rms).any():
        outcome, says = Outcome.WRONG, f"not finite in one of them at {counted(int(np.isinf(rms).sum()), 'position')}"
    where = []
    beyond = np.flatnonzero(rms > yard.apart)
    if outcome in (Outcome.WRONG, Outcome.UNSURE) and np.any(rms):
        at = int(beyond[0]) if len(beyond) else int(np.nanargmax(rms))
        figures["first position beyond noise" if len(beyond) else "farthest position"] = at
        where = [(f"after token {at}", row([case.token(int(i)) for i in ids], at))]
    sight = yard.sight(len(rms)) if np.any(rms) else ""
    return stage.add(name, outcome, says, figures=figures, where=where, sight=sight,
                     next=[hint] if outcome is Outcome.WRONG else [])  # fmt: skip


@dataclass
class RepeatedStep:
    """A generated (or echoed) step, and the same step requested after a prompt that ends there.

    at      index of the step
    rms     difference of both, nats
    one     the generated or echoed step
    other   the step after the prompt
    tokens  all tokens of the answer or echo
    """

    at: int
    rms: float
    one: Step
    other: Step
    tokens: list[tuple[bytes, int | None]]


def compare_continuations(
    case: ExamContext, stage: Stage, name: str, prompts: Sequence[Prompt], tokens: int, probes: int
) -> None:
    """Compare generated steps with the same positions evaluated as a prompt.

    The prompt's steps come from one echo of the whole, or from prompts that end after some of the tokens. Further
    prompts follow until enough positions can be compared: generated bytes that are not UTF-8, or that a tokenizer would
    split differently, cannot be sent back as text.
    """
    repeats: list[RepeatedStep] = []
    yards: list[Yardstick] = []
    skipped, why = 0, ""
    for i, prompt in enumerate(prompts):
        if i and (len(repeats) >= FEWEST_PLACES or case.out_of_time):
            break
        case.progress(f"{name}: generating")
        generated = case.ask(prompt, tokens)
        for at, step, certain in _ask_again(case, prompt, generated, probes):
            if isinstance(step, str) or not certain:
                skipped, why = skipped + 1, why or (step if isinstance(step, str) else "")
                continue
            answer_tokens = [(s.token.raw, s.token.id) for s in generated.steps]
            repeats.append(RepeatedStep(at, gap(generated.steps[at], step), generated.steps[at], step, answer_tokens))
        if repeats and not yards:
            yards.append(yard_for(case, prompt, generated.steps))
    _report_repeats(case, stage, name, repeats, yards, skipped, why, ("generating", "as a prompt"),
                    "Look at what decode does otherwise than prefill (cache rows, positions, masks)")  # fmt: skip


def _report_repeats(
    case: ExamContext, stage: Stage, name: str, repeats: Sequence[RepeatedStep], yards: Sequence[Yardstick],
    skipped: int, why: str, sides: tuple[str, str], hint: str,
) -> None:  # fmt: skip
    """Add the check of repeated steps; ``skipped``: number of places left out, ``why``: the reason of the first."""
    ids = ["--id-prompts, if the server takes token ids as prompt; --prefill STYLE, if it goes on with a given answer"]
    if not repeats:
        stage.add(name, Outcome.IMPOSSIBLE, why or "no tokens could be sent back as they were", next=ids)
        return
    yard = yards[0]
    rms = np.array([each.rms for each in repeats])
    outcome, says = yard.judge(rms)
    places = sorted(each.at for each in repeats)
    other_best = sum(bool(a.one.top and a.other.top) and a.one.top[0].raw != a.other.top[0].raw for a in repeats)
    figures: dict[str, Any] = {
        "positions": len(repeats), "tokens of the answer": f"{places[0]} to {places[-1]}",
        "other best token": other_best,
        "largest, nats rms": float(np.nanmax(rms)) if np.isfinite(rms).any() else None,
        "left out": f"{skipped} that cannot be sent back as they were" if skipped else None,
    }  # fmt: skip
    if outcome is Outcome.OK and len(repeats) < FEWEST_PLACES:
        outcome, says = Outcome.UNSURE, f"only {counted(len(repeats), 'place')} could be compared; {says}"
    where = []
    if outcome is Outcome.WRONG and np.isfinite(rms).any():
        worst = next((each for each in repeats if each.rms > yard.apart), max(repeats, key=lambda each: each.rms))
        where = [(f"at token {worst.at}", row(worst.tokens, worst.at)),
                 (sides[0], alternatives_row(worst.one)), (sides[1], alternatives_row(worst.other))]  # fmt: skip
    stage.add(name, outcome, says, figures={k: v for k, v in figures.items() if v is not None}, where=where,
              sight=yard.sight(len(rms)),
              next=[hint] if outcome is Outcome.WRONG else ids if outcome is Outcome.UNSURE else [])  # fmt: skip


def compare_prefixes(case: ExamContext, stage: Stage, name: str, ids: Sequence[int], lengths: Sequence[int]) -> None:
    """Compare the echo of a text, computed in one prefill, with prompts that are prefixes of it.

    ``ids``: the text's tokens in the model's vocabulary; ``lengths``: numbers of tokens of the prefixes. A prefix
    counts only if it is split into the same tokens as in the whole text.
    """
    ours = case.tokenizer
    assert ours is not None
    text = ours.decode(ids)
    echo = case.target.score_text(text.decode("utf-8", "ignore"), case.top)
    starts: dict[int, tuple[int, Step]] = {}
    size = 0
    for i, step in enumerate(echo):
        starts[size] = i, step
        size += len(step.token.raw)
    tokens = [(step.token.raw, step.token.id) for step in echo]
    repeats: list[RepeatedStep] = []
    skipped, why = 0, ""
    for length in lengths:
        prefix = ours.decode(ids[:length])
        try:
            same_split = ours.encode(prefix.decode()) == list(ids[:length]) and len(prefix) in starts
        except UnicodeDecodeError:
            same_split = False
        if not same_split or case.out_of_time:
            skipped += 1
            continue
        case.progress(f"{name}: {length} tokens")
        answer, why = case.try_ask(Prompt.plain(prefix.decode()), 1)
        if answer is None or not answer.steps:
            skipped += 1
            continue
        at, step = starts[len(prefix)]
        repeats.append(RepeatedStep(at, gap(step, answer.steps[0]), step, answer.steps[0], tokens))
    yards = []
    if repeats:
        case.progress("measuring what float noise makes")
        yards = [measure(case.engine, ids, case.rounding, case.top or None)]
    _report_repeats(
        case,
        stage,
        name,
        repeats,
        yards,
        skipped,
        why,
        ("echoed", "as the next token of a prompt"),
        "Look at which token the echo lists a distribution with, and at the edges of prefill's chunks",
    )


def _ask_again(
    case: ExamContext, prompt: Prompt, generated: Completion, probes: int
) -> list[tuple[int, Step | str, bool]]:
    """Return (index in the answer, step after a prompt up to there or why there is none, same tokens for certain)."""
    steps = generated.steps
    if prompt.text is not None and case.echo:
        try:
            return _echo_again(case, prompt.text, steps)
        except Ds4Error:
            pass  # the echo of generated bytes may be unreadable; go on with prompts
    out: list[tuple[int, Step | str, bool]] = []
    ids = step_ids(case, steps) if prompt.ids is not None else None
    places = list(range(1, len(steps)))
    longer = {at: _longer_prompt(case, prompt, steps[:at], ids) for at in places}
    if case.same_model is True and prompt.ids is None and ids_of(case, prompt) is not None:
        # requests are slow, tokenizing is not: request only what the model's tokenizer splits into the same tokens
        same_split = [
            at for at in places if not isinstance(p := longer[at], str) and _split_alike(case, prompt, p, steps[:at])
        ]
        out += [
            (at, "generated tokens that a tokenizer would split otherwise", False)
            for at in places
            if at not in same_split
        ]
        places = same_split
    chosen = {places[int(i)] for i in np.linspace(0, len(places) - 1, probes)} if places else set()
    for at in sorted(chosen):
        if case.out_of_time:
            break
        longer_prompt = longer[at]
        if isinstance(longer_prompt, str):
            out.append((at, longer_prompt, False))
            continue
        case.progress(f"as a prompt: token {at}")
        answer, why = case.try_ask(longer_prompt, 1)
        if answer is None or not answer.steps:
            out.append((at, why or "no step came back", False))
            continue
        certain = prompt.ids is not None
        if not certain and generated.usage.prompt is not None and answer.usage.prompt is not None:
            certain = answer.usage.prompt - generated.usage.prompt == at
        elif not certain:
            certain = _split_alike(case, prompt, longer_prompt, steps[:at])
        out.append((at, answer.steps[0], certain))
    return out


def _longer_prompt(case: ExamContext, prompt: Prompt, steps: Sequence[Step], ids: list[int] | None) -> Prompt | str:
    if prompt.ids is not None:
        return (
            "the ids of the answer are not known" if ids is None else Prompt.tokens([*prompt.ids, *ids[: len(steps)]])
        )
    try:
        text = b"".join(s.token.raw for s in steps).decode()
    except UnicodeDecodeError:
        return "the answer breaks off inside a character, which cannot be sent as text"
    if prompt.text is not None:
        return Prompt.plain(prompt.text + text)
    return replace(prompt, answer=text)


def _split_alike(case: ExamContext, prompt: Prompt, longer: Prompt, steps: Sequence[Step]) -> bool:
    """Whether the model's tokenizer splits the longer prompt into the shorter one and the generated tokens."""
    before, after, all_of_it = ids_of(case, prompt), step_ids(case, steps), ids_of(case, longer)
    return before is not None and after is not None and before + after == all_of_it


def _echo_again(case: ExamContext, text: str, steps: Sequence[Step]) -> list[tuple[int, Step | str, bool]]:
    """Return the places as ``_ask_again`` does, from one echo of prompt and answer."""
    size = len(text.encode())
    answer_bytes = b"".join(s.token.raw for s in steps)
    try:
        answer = answer_bytes.decode()
    except UnicodeDecodeError as error:
        answer = answer_bytes[: error.start].decode()
    echo = case.target.score_text(text + answer, case.top)
    at, starts = 0, {}
    for step in echo:
        starts[at] = step
        at += len(step.token.raw)
    out: list[tuple[int, Step | str, bool]] = []
    place = size
    for i, step in enumerate(steps):
        echoed_step = starts.get(place)
        if echoed_step is not None and i:
            # token boundaries before this one must be those of the answer, or it was computed on other tokens
            borders = {size + len(b"".join(s.token.raw for s in steps[:k])) for k in range(i + 1)}
            inside = {key for key in starts if size <= key <= place}
            out.append((i, echoed_step, inside == borders and echoed_step.token.raw == step.token.raw))
        place += len(step.token.raw)
    return out


# --------------------------------------------------------------------------------------------------- chunk edges


def edges(case: ExamContext, stage: Stage) -> None:
    """Compare prompts whose lengths lie just below and above usual chunk sizes (part of the long-context stage)."""
    chosen = EDGES[:1] if case.quick else EDGES if case.long else EDGES[:2]
    for edge in chosen:
        name = f"around {edge} tokens"
        if case.out_of_time:
            stage.add(name, Outcome.SKIPPED, "out of time")
        elif case.local is not None:
            _local_edge(case, stage, name, edge)
        else:
            _target_edge(case, stage, name, edge)


def _local_edge(case: ExamContext, stage: Stage, name: str, edge: int) -> None:
    local = case.local
    assert local is not None
    if edge + 2 > local.ctx:
        stage.add(name, Outcome.IMPOSSIBLE, f"the context is {local.ctx}")
        return
    case.progress(name)
    rng = np.random.default_rng(edge)
    ids = rng.integers(0, min(512, case.engine.shape.vocab), edge + 1).tolist()
    whole = chunked_logits(local, ids, None)[edge - 2 :]
    ends = []
    for length in (edge - 1, edge, edge + 1):
        session = local.engine.session(edge + 2)
        session.sync(ids[:length])
        ends.append(session.logits.copy())
    last = np.array(ends)
    yard = measure(case.engine, ids, case.rounding) if not np.array_equal(whole, last) else fallback()
    compare_rows(case, stage, name, ids[edge - 2 :], last, whole,
                  "Look at the last row of a chunk and the first of the next", yard)  # fmt: skip


def _target_edge(case: ExamContext, stage: Stage, name: str, edge: int) -> None:
    ours = case.tokenizer
    if not case.logprobs or ours is None or case.same_model is not True or not case.kinds & {"ids", "text"}:
        stage.add(name, Outcome.IMPOSSIBLE, "needs plain prompts of known length, and log probabilities")
        return
    ids = ours.encode(prose(8 * edge, seed=edge))[: edge + 4]
    try:
        if "ids" in case.kinds:
            compare_continuations(case, stage, name, [Prompt.tokens(ids[: edge - 4])], 8, 7)
        elif case.echo:
            compare_prefixes(case, stage, name, ids, range(edge - 3, edge + 4))
        else:
            compare_continuations(
                case, stage, name, [Prompt.plain(ours.decode(ids[: edge - 4]).decode("utf-8", "ignore"))], 8, 7
            )
    except Ds4Error as error:
        stage.add(name, Outcome.IMPOSSIBLE, str(error), notes=["a context that is too short is no mistake"])
