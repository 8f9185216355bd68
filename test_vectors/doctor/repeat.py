"""Compare the engine with itself: repeated requests, prompt and continuation, alone and concurrent, chunk edges.

A correct engine gives the same distribution for the same tokens, however they were fed. The yardstick sets the allowed
difference: none, or the effect of float noise in the target's rounding set. What differs little from a batch or a cache
is no mistake: few engines promise batch invariance.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ds4ref.errors import Ds4Error
from ds4ref.nano.diagnostic import PROMPTS
from ds4ref.nano.prose import prose
from ds4ref.targets import Completion, Prompt, Step
from ds4ref.targets.local import LocalTarget
from ds4ref.text.chat import encode_chat_prompt

from ..finding import Finding, Outcome, ShownToken, counted, distinct, row
from ..observation import log_softmax
from .case import ExamContext
from .examination import Stage
from .preflight import alternatives_row
from .yardstick import FLOAT, UNKNOWN, Yardstick, distance, fallback, measure

TOKENS = 24
FEWEST_PLACES = 4
"""Fewest positions that must be comparable before agreement is reported."""
EDGES = (512, 1024, 2048)
"""Usual chunk sizes of prefill, in tokens."""
CHUNK_SIZES = (7, 16, 100)
"""Chunk sizes for a local engine: below and above the size where it switches kernels, and no power of two."""
FLIP = 8.0
"""A best token that leads by more than so many times the differences elsewhere does not change by rounding. The rms is
over some 20 tokens, of which two may differ by 3 to 6 times as much."""
UNEQUAL = (Outcome.WRONG, Outcome.UNSURE)
THINKING = "Switch thinking off in the server's own options, or name its dialect (--dialect)"
ORDER = ("Sums in another order (atomics, a batch of others, a cache of prompts) make small differences; look for "
         "one that is not small")  # fmt: skip
NO_CACHE_PROMISE = (
    "Nothing to mend if it keeps a cache of prompts: the first answer then comes from a prefill of the whole prompt, "
    "later ones from that of its last token, and llama.cpp, SGLang and vLLM choose kernels by the number of tokens. "
    "Without the cache, the answers must be identical"
)
NO_BATCH_PROMISE = (
    "Nothing to mend: llama.cpp, SGLang and vLLM (without its batch-invariant mode) choose kernels by the size of a "
    "batch and promise no equal answers. Compare such an engine with one request at a time"
)
DECODE = "Look at what decode does otherwise than prefill: cache rows, positions, masks, kernels"
IDS = "--id-prompts, if the server takes token ids as prompt; --prefill STYLE, if it goes on with a given answer"


def prompt_of(case: ExamContext, characters: int = 400, seed: int = 11) -> Prompt | None:
    """Return a prompt in the most direct kind that the target takes: ids, then text, then chat; None if none."""
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
    """Return the ids of generated tokens, up to the first that is not known."""
    ids = []
    for step in steps:
        number = case.ids_by_bytes.get(step.token.raw) if step.token.id is None else step.token.id
        if number is None or not 0 <= number < case.engine.shape.vocab:
            break
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


def compare_answers(a: Completion, b: Completion) -> AnswerComparison:
    """Compare two answers step by step, up to the first different token."""
    pairs = list(zip(a.steps, b.steps, strict=False))
    ends = min(len(a.steps), len(b.steps)) if len(a.steps) != len(b.steps) else None
    fork = next((at for at, (x, y) in enumerate(pairs) if x.token.raw != y.token.raw), ends)
    margin = None
    if fork is not None and fork < len(pairs):
        best = {t.raw: t.logprob for t in pairs[fork][0].top}
        values = [best.get(step.token.raw) for step in pairs[fork]]
        margin = None if None in values else abs(values[0] - values[1])  # type: ignore[operator]
    rms = np.array([gap(x, y) for x, y in pairs[: None if fork is None else fork + 1]], np.float64)
    values_ = [[(t.raw, t.logprob) for s in each.steps for t in (s.token, *s.top)] for each in (a, b)]
    return AnswerComparison(rms, fork, margin, a.text == b.text and fork is None and values_[0] == values_[1])


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


def depends(check: Finding, comparison: AnswerComparison, nats: float, says: str, why: str) -> None:
    """Turn a check that found a difference into "depends on its batch or cache"."""
    fork = f"; token {comparison.fork} becomes another one, as close as that" if comparison.fork is not None else ""
    check.outcome, check.next, check.says = Outcome.DEPENDS, [why], f"{says} by at most {nats:.2g} nats rms{fork}"


def determinism(case: ExamContext, stage: Stage) -> None:
    """Send one request several times, and compute full logits twice."""
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
    comparisons = [compare_answers(runs[0], run) for run in runs[1:]]
    check = add_comparison(case, stage, "run to run", prompt, runs[0], comparisons, runs[1:],
                           {"requests": len(runs), "tokens": len(runs[0].steps)})  # fmt: skip
    cached = len(runs) > 2 and all(compare_answers(runs[1], run).same for run in runs[2:])
    nats = batch_effect(comparisons[0], comparisons) if cached and check.outcome in UNEQUAL else None
    if nats is not None:
        says = "the later answers are identical; the first differs from them"
        depends(check, comparisons[0], nats, says, NO_CACHE_PROMISE)
    if case.local is not None:
        ids = PROMPTS["short"]()
        same = np.array_equal(case.target.logits(ids), case.target.logits(ids), equal_nan=True)
        stage.add("full logits, twice", Outcome.OK if same else Outcome.UNSURE, "identical" if same else "they differ")


def add_comparison(
    case: ExamContext, stage: Stage, name: str, prompt: Prompt, first: Completion,
    comparisons: Sequence[AnswerComparison], others: Sequence[Completion], figures: dict[str, Any],
) -> Finding:  # fmt: skip
    """Add a check: the answers are identical, within noise, or not, with the place where they fork."""
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
    figures = {**figures, "different": f"{sum(not each.same for each in comparisons)} of {len(comparisons)}",
               "largest difference (nats rms)": float(np.nanmax(rms)) if np.isfinite(rms).any() else None}  # fmt: skip
    if worst.fork is not None:
        at, margin = worst.fork, worst.margin
        figures |= {"fork": at, "margin there": margin}
        if margin is not None and margin > yard.apart:
            outcome = Outcome.WRONG
            says = f"forks at token {at}, between tokens that are {margin:.2g} nats apart; {says}"
        else:
            outcome = outcome if outcome is Outcome.WRONG else Outcome.UNSURE
            near = "by how much is not known" if margin is None else f"a near-tie of {margin:.2g} nats"
            says = f"forks at token {at}, {near}; {says}"
        for label, run in (("one answer", first), ("another", other)):
            where.append((label, row([(s.token.raw, s.token.id) for s in run.steps], at)))
            if at < len(run.steps):
                where.append((f"alternatives there, {label}", alternatives_row(run.steps[at])))
    if outcome is Outcome.OK:
        says = f"not identical: {says}"
    return stage.add(name, outcome, says, figures=figures, where=where, limit=yard.limit(len(rms)),
                     next=[] if outcome is Outcome.OK else [ORDER])  # fmt: skip


def batch(case: ExamContext, stage: Stage) -> None:
    """Compare requests sent alone and concurrently, or, for a local target, a prompt in chunks of several sizes."""
    if case.local is not None:
        ids = PROMPTS["mixed"]()[: 48 if case.quick else 200]
        whole = chunked_logits(case.local, ids, None)
        chunked = {size: chunked_logits(case.local, ids, size) for size in CHUNK_SIZES}
        differ = any(not np.array_equal(part, whole, equal_nan=True) for part in chunked.values())
        yard = measure(case.engine, ids, case.rounding) if differ else fallback()
        hint = "Look at the first and last rows of a chunk: window, compressors, cache slots"
        for size, part in chunked.items():
            compare_rows(case, stage, f"chunks of {size}", ids, part, whole, hint, yard)
        return
    if case.target.kind != "http":
        stage.add("many at once", Outcome.IMPOSSIBLE, f"a {case.target.kind} target takes one request at a time")
        return
    chosen = [prompt_of(case, 120 + 90 * i, seed=20 + i) for i in range(2 if case.quick else 4)]
    prompts = [prompt for prompt in chosen if prompt is not None]
    if not prompts:
        stage.add("many at once", Outcome.IMPOSSIBLE, "no request was answered")
        return
    case.progress("one after another")
    alone = [case.ask(prompt, TOKENS) for prompt in prompts]
    case.progress(f"{len(prompts)} at once")
    pool = ThreadPoolExecutor(len(prompts))
    try:
        together = list(pool.map(lambda prompt: case.ask(prompt, TOKENS), prompts))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    figures = {"one after another, s": round(sum(done.seconds for done in alone), 2),
               "at once, s": round(max(done.seconds for done in together), 2)}  # fmt: skip
    comparisons = [compare_answers(*pair) for pair in zip(alone, together, strict=True)]
    for i, (prompt, comparison) in enumerate(zip(prompts, comparisons, strict=True)):
        check = add_comparison(case, stage, f"request {i + 1}", prompt, alone[i], [comparison], [together[i]], figures)
        if check.outcome in UNEQUAL and (nats := batch_effect(comparison, comparisons)):
            depends(check, comparison, nats, f"alone and among {len(prompts)} it differs", NO_BATCH_PROMISE)
    if stage.outcome is Outcome.OK:
        stage.checks[0].limit += " a server that takes one request after another cannot fail this"


# -------------------------------------------------------------------------------------------- prefill and decode


def ways(case: ExamContext, stage: Stage) -> None:
    """Compare the logits of the same positions evaluated as one prompt and token by token."""
    if case.local is not None:
        ids = PROMPTS["mixed"]()[: 48 if case.quick else 200]
        case.progress("prompt against token by token")
        whole = chunked_logits(case.local, ids, None)
        session = case.local.engine.session(len(ids) + 1)
        single = np.array([session.eval(token).copy() for token in ids])
        compare_rows(case, stage, "prompt against token by token", ids, whole, single, DECODE)
        return
    chosen = [prompt_of(case, 400, seed=11 + i) for i in range(5)]
    prompts = [prompt for prompt in chosen if prompt is not None]
    if not prompts or not case.logprobs:
        stage.add("prompt against continuation", Outcome.IMPOSSIBLE, "the target gives no log probabilities")
        return
    compare_continuations(case, stage, "prompt against continuation", prompts, TOKENS, 4 if case.quick else 12)


def chunked_logits(target: LocalTarget, ids: Sequence[int], chunk: int | None) -> np.ndarray:
    return target.engine.session(len(ids) + 1).extend(ids, chunk=chunk or len(ids))


def compare_rows(
    case: ExamContext, stage: Stage, name: str, ids: Sequence[int], a: np.ndarray, b: np.ndarray, hint: str,
    yard: Yardstick | None = None,
) -> Finding:  # fmt: skip
    """Add a check that compares two computations of the same rows of logits (T, V)."""
    rms = distance(log_softmax(a), log_softmax(b))
    if yard is None:
        case.progress("measuring what float noise makes")
        yard = measure(case.engine, ids, case.rounding) if np.any(rms) else fallback()
    outcome, says = yard.judge(rms)
    figures: dict[str, Any] = {
        "positions": len(rms), "largest, nats": float(rms.max()), "identical positions": int((rms == 0).sum()),
        "other best token": int((a.argmax(axis=1) != b.argmax(axis=1)).sum()),
    }  # fmt: skip
    if np.isinf(rms).any():
        outcome, says = Outcome.WRONG, f"not finite in one of them at {counted(int(np.isinf(rms).sum()), 'position')}"
    where = []
    if outcome in UNEQUAL and np.any(rms):
        beyond = np.flatnonzero(rms > yard.apart)
        at = int(beyond[0]) if len(beyond) else int(np.nanargmax(rms))
        figures["first position beyond noise" if len(beyond) else "farthest position"] = at
        where = [(f"after token {at}", row([case.token(int(i)) for i in ids], at))]
    limit = yard.limit(len(rms)) if np.any(rms) else ""
    return stage.add(name, outcome, says, figures=figures, where=where, limit=limit,
                     next=[hint] if outcome is Outcome.WRONG else [])  # fmt: skip


@dataclass
class RepeatedStep:
    """A generated step, and the same step requested after a prompt that ends there.

    at      index of the step
    one     the generated step
    other   the step after the prompt
    tokens  all tokens of the answer
    """

    at: int
    one: Step
    other: Step
    tokens: list[tuple[bytes, int | None]]

    @property
    def rms(self) -> float:
        """Return the difference of both, nats."""
        return gap(self.one, self.other)


def compare_continuations(
    case: ExamContext, stage: Stage, name: str, prompts: Sequence[Prompt], tokens: int, probes: int
) -> None:
    """Compare generated steps with the same positions evaluated as a prompt.

    The prompt's steps come from one echo of the whole, or from prompts that end after some of the tokens. Further
    prompts follow until enough positions can be compared: generated bytes that are not UTF-8, or that a tokenizer would
    split differently, cannot be sent back as text.
    """
    repeats: list[RepeatedStep] = []
    yard = fallback()
    for i, prompt in enumerate(prompts):
        if i and (len(repeats) >= FEWEST_PLACES or case.out_of_time):
            break
        case.progress(f"{name}: generating")
        generated = case.ask(prompt, tokens)
        shown = [(s.token.raw, s.token.id) for s in generated.steps]
        again = [RepeatedStep(at, generated.steps[at], step, shown)
                 for at, step in _ask_again(case, prompt, generated.steps, probes)]  # fmt: skip
        if again and not repeats:
            yard = yard_for(case, prompt, generated.steps)
        repeats += again
    if not repeats:
        stage.add(name, Outcome.IMPOSSIBLE, "no tokens could be sent back as they were", next=[IDS])
        return
    rms = np.array([each.rms for each in repeats])
    outcome, says = yard.judge(rms)
    figures = {
        "positions": len(repeats),
        "largest, nats rms": float(np.nanmax(rms)) if np.isfinite(rms).any() else None,
    }
    if outcome is Outcome.OK and len(repeats) < FEWEST_PLACES:
        outcome, says = Outcome.UNSURE, f"only {counted(len(repeats), 'place')} could be compared; {says}"
    where = []
    if outcome is Outcome.WRONG and np.isfinite(rms).any():
        worst = next((each for each in repeats if each.rms > yard.apart), max(repeats, key=lambda each: each.rms))
        where = [(f"at token {worst.at}", row(worst.tokens, worst.at)), ("generating", alternatives_row(worst.one)),
                 ("as a prompt", alternatives_row(worst.other))]  # fmt: skip
    stage.add(name, outcome, says, figures=figures, where=where, limit=yard.limit(len(rms)),
              next={Outcome.WRONG: [DECODE], Outcome.UNSURE: [IDS]}.get(outcome, []))  # fmt: skip


def _ask_again(case: ExamContext, prompt: Prompt, steps: Sequence[Step], probes: int) -> list[tuple[int, Step]]:
    """Return (index in the answer, step after a prompt up to there) of places at which the tokens are the same."""
    if prompt.text is not None and case.echo:
        try:
            return _echo_again(case, prompt.text, steps)
        except Ds4Error:
            pass  # the echo of generated bytes may be unreadable; go on with prompts
    # requests are slow, tokenizing is not: request only what is split into the same tokens
    longer = {at: _longer(case, prompt, steps[:at]) for at in range(1, len(steps))}
    places = [at for at, other in longer.items() if other is not None]
    chosen = {places[int(i)] for i in np.linspace(0, len(places) - 1, probes)} if places else set()
    out = []
    for at in sorted(chosen):
        if case.out_of_time:
            break
        case.progress(f"as a prompt: token {at}")
        other = longer[at]
        answer = None if other is None else case.try_ask(other, 1)[0]
        if answer is not None and answer.steps:
            out.append((at, answer.steps[0]))
    return out


def _longer(case: ExamContext, prompt: Prompt, steps: Sequence[Step]) -> Prompt | None:
    """Return the prompt with generated tokens behind it; None if it could be split into other tokens."""
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


def _echo_again(case: ExamContext, text: str, steps: Sequence[Step]) -> list[tuple[int, Step]]:
    """Return the places as ``_ask_again`` does, from one echo of prompt and answer."""
    raws = [s.token.raw for s in steps]
    size, answer = len(text.encode()), b"".join(raws).decode("utf-8", "ignore")
    at, starts = 0, {}
    for step in case.target.score_text(text + answer, case.top):
        starts[at] = step
        at += len(step.token.raw)
    out, place, borders = [], size, {size}
    for i, raw in enumerate(raws):
        # token boundaries before this one must be those of the answer, or it was computed on other tokens
        echoed = starts.get(place)
        if (
            i
            and echoed is not None
            and echoed.token.raw == raw
            and {k for k in starts if size <= k <= place} == borders
        ):
            out.append((i, echoed))
        place += len(raw)
        borders.add(place)
    return out


# --------------------------------------------------------------------------------------------------- chunk edges


def edges(case: ExamContext, stage: Stage) -> None:
    """Compare prompts whose lengths lie just below and above usual chunk sizes (part of the long-context stage)."""
    for edge in EDGES[:1] if case.quick else EDGES if case.long else EDGES[:2]:
        name = f"around {edge} tokens"
        if case.out_of_time:
            stage.add(name, Outcome.SKIPPED, "out of time")
        elif case.local is not None:
            _local_edge(case, case.local, stage, name, edge)
        else:
            _target_edge(case, stage, name, edge)


def _local_edge(case: ExamContext, local: LocalTarget, stage: Stage, name: str, edge: int) -> None:
    if edge + 2 > local.ctx:
        stage.add(name, Outcome.IMPOSSIBLE, f"the context is {local.ctx}")
        return
    case.progress(name)
    ids = np.random.default_rng(edge).integers(0, min(512, case.engine.shape.vocab), edge + 1).tolist()
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
    ids = ours.encode(prose(8 * edge, seed=edge))[: edge - 4]
    prompt = Prompt.tokens(ids) if "ids" in case.kinds else Prompt.plain(ours.decode(ids).decode("utf-8", "ignore"))
    try:
        compare_continuations(case, stage, name, [prompt], 8, 7)
    except Ds4Error as error:
        stage.add(name, Outcome.IMPOSSIBLE, str(error), notes=["a context that is too short is no mistake"])
