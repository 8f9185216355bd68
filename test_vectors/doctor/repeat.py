"""Does the engine agree with itself: the same request again, prompt and continuation, one and many, chunk edges.

A right engine gives the same distribution to the same tokens, however they came in. What a difference may be comes from
the yardstick: nothing at all, or what float noise makes in the target's rounding.
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

from ..observation import log_softmax
from .case import Case
from .findings import Check, Outcome, Piece, Stage, many, row
from .preflight import shown
from .yardstick import Yardstick, distance, fallback, measure

TOKENS = 24
ENOUGH = 4
"""Places below which agreement is no finding."""
EDGES = (512, 1024, 2048)
WAYS = (7, 16, 100)
"""Chunks of a prompt that a local engine is fed: below and above where its kernels change, and no power of two."""


def prompt_of(case: Case, characters: int = 400, seed: int = 11) -> tuple[str, Prompt] | None:
    """Kind and prompt that this target answers best: ids need no tokenizer, text no template."""
    text = prose(characters, seed=seed)[:characters].rsplit(" ", 1)[0]
    if "ids" in case.kinds:
        ids = case.tokenizer.encode(text) if case.tokenizer is not None else PROMPTS["mixed"]()[:100]
        return "ids", Prompt.tokens(ids)
    if "text" in case.kinds:
        return "text", Prompt.plain(text)
    return ("chat", Prompt.chat(text)) if "chat" in case.kinds else None


def ids_of(case: Case, prompt: Prompt) -> list[int] | None:
    """A prompt's ids in the model's vocabulary; None if they are not known."""
    if prompt.ids is not None:
        return list(prompt.ids)
    ours = case.tokenizer
    if ours is None or case.same_model is not True:
        return None
    if prompt.text is not None:
        return ours.encode(prompt.text)
    return encode_chat_prompt(ours, prompt.system, prompt.user or "", prompt.thinking) + ours.encode(prompt.answer)


def step_ids(case: Case, steps: Sequence[Step]) -> list[int] | None:
    """Ids of generated tokens; None if one is not known."""
    found = []
    for step in steps:
        number = step.token.id
        if number is None:
            number = case.known.get(step.token.raw)
        if number is None or not 0 <= number < case.engine.shape.vocab:
            return None
        found.append(number)
    return found


def gap(a: Step, b: Step) -> float:
    """rms difference over the alternatives that both list; NaN if there are none with numbers."""
    left, right = ({t.raw: t.logprob for t in s.top if t.logprob is not None} for s in (a, b))
    both = [raw for raw in left if raw in right]
    if not both:
        return np.nan
    return float(distance(np.array([[left[r] for r in both]]), np.array([[right[r] for r in both]]))[0])


def yard_for(case: Case, prompt: Prompt, steps: Sequence[Step]) -> Yardstick:
    """Measured on the tokens themselves where they are known."""
    before, after = ids_of(case, prompt), step_ids(case, steps)
    if case.same_model is not True or before is None or after is None or not before:
        return fallback()
    case.progress("measuring what float noise makes")
    return measure(case.engine, before + after, case.rounding, case.top or None)


# --------------------------------------------------------------------------------------------------- determinism


@dataclass
class Compared:
    """Two greedy answers to one request: ``rms`` of each step up to and with the fork, ``margin`` in nats
    between the two tokens there, in the first answer (None: not known)."""

    rms: np.ndarray
    fork: int | None
    margin: float | None
    same: bool


def compared(a: Completion, b: Completion) -> Compared:
    """Step by step, as long as both were fed the same."""
    rms, fork, margin = [], None, None
    for at, (x, y) in enumerate(zip(a.steps, b.steps, strict=False)):
        rms.append(gap(x, y))
        if x.token.raw != y.token.raw:
            fork = at
            best = {t.raw: t.logprob for t in x.top}
            mine, other = best.get(x.token.raw), best.get(y.token.raw)
            margin = abs(mine - other) if mine is not None and other is not None else None
            break
    if fork is None and len(a.steps) != len(b.steps):
        fork = min(len(a.steps), len(b.steps))
    found = np.array(rms, np.float64)
    values = [[(t.raw, t.logprob) for s in each.steps for t in (s.token, *s.top)] for each in (a, b)]
    same = a.text == b.text and fork is None and (values[0] == values[1])
    return Compared(found, fork, margin, same)


def determinism(case: Case, stage: Stage) -> None:
    """One request several times over, and full logits twice."""
    chosen = prompt_of(case)
    if chosen is None:
        stage.add("run to run", Outcome.IMPOSSIBLE, "no request was answered")
        return
    kind, prompt = chosen
    runs: list[Completion] = []
    for i in range(2 if case.quick else 4):
        if case.late and len(runs) >= 2:
            break
        case.progress(f"run {i + 1} of the same request")
        runs.append(case.ask(prompt, TOKENS))
    _verdict(case, stage, "run to run", prompt, runs[0], [compared(runs[0], run) for run in runs[1:]], runs[1:],
             {"requests": len(runs), "tokens": len(runs[0].steps) or None, "prompt": kind})  # fmt: skip
    if case.local is not None:
        ids = PROMPTS["short"]()
        same = np.array_equal(case.target.logits(ids), case.target.logits(ids), equal_nan=True)
        stage.add("full logits, twice", Outcome.OK if same else Outcome.UNSURE, "identical" if same else "they differ")


def _verdict(
    case: Case, stage: Stage, name: str, prompt: Prompt, first: Completion,
    found: Sequence[Compared], others: Sequence[Completion], figures: dict[str, Any], hint: str = "",
) -> Check:  # fmt: skip
    """Identical, or within noise, or not; shown where the answers fork."""
    figures = {k: v for k, v in figures.items() if v is not None}
    if all(each.same for each in found):
        how = "with all log probabilities" if first.steps else "by their text: there are no log probabilities"
        return stage.add(name, Outcome.OK, f"{len(found) + 1} answers are identical {how}", figures=figures)
    if not first.steps:
        return stage.add(name, Outcome.UNSURE, "the answers differ; by how much, log probabilities would say",
                         figures=figures)  # fmt: skip
    yard = yard_for(case, prompt, first.steps)
    worst = max(found, key=lambda each: (each.fork is not None, float(np.nanmax(each.rms, initial=0.0))))
    other = others[list(found).index(worst)]
    rms = np.concatenate([each.rms for each in found])
    outcome, says = yard.judge(rms)
    where: list[tuple[str, list[Piece]]] = []
    forks = [each for each in found if each.fork is not None]
    figures |= {"different": f"{sum(not each.same for each in found)} of {len(found)}", "forked": len(forks)}
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
            where += [("alternatives there, one", shown(first.steps[at])), ("another", shown(other.steps[at]))]
    if outcome is Outcome.OK:
        says = f"not identical: {says}"
    more = ["Sums in another order (atomics, a batch of others, a cache of prompts) make small differences; look for "
            "one that is not small"] if outcome is not Outcome.OK else []  # fmt: skip
    return stage.add(name, outcome, says, figures=figures, where=where, sight=yard.sight(len(rms)),
                     next=[*([hint] if hint else []), *more])  # fmt: skip


# -------------------------------------------------------------------------------------------- prefill and decode


def ways(case: Case, stage: Stage) -> None:
    """The same positions as a prompt and token by token."""
    if case.local is not None:
        ids = PROMPTS["mixed"]()[: 48 if case.quick else 200]
        case.progress("prompt against token by token")
        whole = _extended(case.local, ids, None)
        session = case.local.engine.session(len(ids) + 1)
        single = np.array([session.eval(token).copy() for token in ids])
        _rows(case, stage, "prompt against token by token", ids, whole, single,
              "Look at what decode does otherwise than prefill: cache rows, positions, masks, kernels")  # fmt: skip
        return
    chosen = [prompt_of(case, 400, seed=11 + i) for i in range(5)]
    prompts = [each[1] for each in chosen if each is not None]
    if not prompts or not case.logprobs:
        stage.add("prompt against continuation", Outcome.IMPOSSIBLE, "the target gives no log probabilities")
        return
    continued(case, stage, "prompt against continuation", prompts, TOKENS, 4 if case.quick else 12)
    if case.echo and case.tokenizer is not None and case.same_model is True:
        ids = case.tokenizer.encode(prose(1000, seed=31))[:100]
        prefixes(case, stage, "echo against shorter prompts", ids, range(9, 100, 18 if case.quick else 9))


def _extended(target: LocalTarget, ids: Sequence[int], chunk: int | None) -> np.ndarray:
    return target.engine.session(len(ids) + 1).extend(ids, chunk=chunk or len(ids))


def _rows(case: Case, stage: Stage, name: str, ids: Sequence[int], a: np.ndarray, b: np.ndarray, hint: str,
          yard: Yardstick | None = None) -> Check:  # fmt: skip
    """Two computations of the same rows of logits."""
    rms = distance(log_softmax(a), log_softmax(b))
    if yard is None:
        case.progress("measuring what float noise makes")
        yard = measure(case.engine, ids, case.rounding) if np.any(rms) else fallback()
    outcome, says = yard.judge(rms)
    other = int((a.argmax(axis=1) != b.argmax(axis=1)).sum())
    known = np.isfinite(rms)
    figures: dict[str, Any] = {
        "positions": len(rms), "rms, nats": float(np.sqrt(np.mean(rms[known] ** 2))) if known.any() else None,
        "largest, nats": float(rms.max()), "other best token": other, "identical positions": int((rms == 0).sum()),
    }  # fmt: skip
    if np.isinf(rms).any():
        outcome, says = Outcome.WRONG, f"not finite in one of them at {many(int(np.isinf(rms).sum()), 'position')}"
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
class Again:
    """A step said while generating (or echoed) and again as the end of a prompt; ``tokens`` leads up to it."""

    at: int
    rms: float
    one: Step
    other: Step
    tokens: list[tuple[bytes, int | None]]


def continued(case: Case, stage: Stage, name: str, prompts: Sequence[Prompt], tokens: int, probes: int) -> None:
    """What was said while generating against what is said when the same tokens come as a prompt: by one echo of it all,
    or by prompts that end after some of the tokens. Several prompts, until enough places can be compared: generated
    bytes that are no text, or that a tokenizer would split otherwise, cannot be sent back as text."""
    found: list[Again] = []
    yards: list[Yardstick] = []
    left, why = 0, ""
    for i, prompt in enumerate(prompts):
        if i and (len(found) >= ENOUGH or case.late):
            break
        case.progress(f"{name}: generating")
        done = case.ask(prompt, tokens)
        for at, step, certain in _asked_again(case, prompt, done, probes):
            if isinstance(step, str) or not certain:
                left, why = left + 1, why or (step if isinstance(step, str) else "")
                continue
            said = [(s.token.raw, s.token.id) for s in done.steps]
            found.append(Again(at, gap(done.steps[at], step), done.steps[at], step, said))
        if found and not yards:
            yards.append(yard_for(case, prompt, done.steps))
    _again(case, stage, name, found, yards, left, why, ("generating", "as a prompt"),
           "Look at what decode does otherwise than prefill (cache rows, positions, masks)")  # fmt: skip


def _again(case: Case, stage: Stage, name: str, found: Sequence[Again], yards: Sequence[Yardstick], left: int, why: str,
           sides: tuple[str, str], hint: str) -> None:  # fmt: skip
    """The check of such steps."""
    ids = ["--id-prompts, if the server takes token ids as prompt; --prefill STYLE, if it goes on with a given answer"]
    if not found:
        stage.add(name, Outcome.IMPOSSIBLE, why or "no tokens could be sent back as they were", next=ids)
        return
    yard = yards[0]
    rms = np.array([each.rms for each in found])
    outcome, says = yard.judge(rms)
    places = sorted(each.at for each in found)
    other = sum(bool(a.one.top and a.other.top) and a.one.top[0].raw != a.other.top[0].raw for a in found)
    figures: dict[str, Any] = {
        "positions": len(found), "tokens of the answer": f"{places[0]} to {places[-1]}", "other best token": other,
        "largest, nats rms": float(np.nanmax(rms)) if np.isfinite(rms).any() else None,
        "left out": f"{left} that cannot be sent back as they were" if left else None,
    }  # fmt: skip
    if outcome is Outcome.OK and len(found) < ENOUGH:
        outcome, says = Outcome.UNSURE, f"only {many(len(found), 'place')} could be compared; {says}"
    where = []
    if outcome is Outcome.WRONG and np.isfinite(rms).any():
        worst = next((each for each in found if each.rms > yard.apart), max(found, key=lambda each: each.rms))
        where = [(f"at token {worst.at}", row(worst.tokens, worst.at)),
                 (sides[0], shown(worst.one)), (sides[1], shown(worst.other))]  # fmt: skip
    stage.add(name, outcome, says, figures={k: v for k, v in figures.items() if v is not None}, where=where,
              sight=yard.sight(len(rms)),
              next=[hint] if outcome is Outcome.WRONG else ids if outcome is Outcome.UNSURE else [])  # fmt: skip


def prefixes(case: Case, stage: Stage, name: str, ids: Sequence[int], lengths: Sequence[int]) -> None:
    """The echo of a text, computed in one piece, against prompts that are its beginnings. ``ids`` is the text in the
    model's tokens; a beginning counts if it is split as the whole is."""
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
    found: list[Again] = []
    left, why = 0, ""
    for length in lengths:
        begin = ours.decode(ids[:length])
        try:
            alike = ours.encode(begin.decode()) == list(ids[:length]) and len(begin) in starts
        except UnicodeDecodeError:
            alike = False
        if not alike or case.late:
            left += 1
            continue
        case.progress(f"{name}: {length} tokens")
        done, why = case.tries(Prompt.plain(begin.decode()), 1)
        if done is None or not done.steps:
            left += 1
            continue
        at, step = starts[len(begin)]
        found.append(Again(at, gap(step, done.steps[0]), step, done.steps[0], tokens))
    yards = []
    if found:
        case.progress("measuring what float noise makes")
        yards = [measure(case.engine, ids, case.rounding, case.top or None)]
    _again(case, stage, name, found, yards, left, why, ("echoed", "as the next token of a prompt"),
           "Look at which token the echo lists a distribution with, and at the edges of prefill's chunks")  # fmt: skip


def _asked_again(case: Case, prompt: Prompt, done: Completion, probes: int) -> list[tuple[int, Step | str, bool]]:
    """(place in the answer, the step that a prompt up to there gives or why not, whether it was surely split alike)."""
    steps = done.steps
    if prompt.text is not None and case.echo:
        try:
            return _echoed(case, prompt.text, steps)
        except Ds4Error:
            pass  # the echo of generated bytes may not be readable: prompts are
    out: list[tuple[int, Step | str, bool]] = []
    ids = step_ids(case, steps) if prompt.ids is not None else None
    places = list(range(1, len(steps)))
    longer = {at: _longer(case, prompt, steps[:at], ids) for at in places}
    if case.same_model is True and prompt.ids is None and ids_of(case, prompt) is not None:
        # asking costs, splitting does not: only what the model's tokenizer splits alike is worth a request
        alike = [
            at for at in places if not isinstance(p := longer[at], str) and _split_alike(case, prompt, p, steps[:at])
        ]
        out += [
            (at, "generated tokens that a tokenizer would split otherwise", False) for at in places if at not in alike
        ]
        places = alike
    chosen = {places[int(i)] for i in np.linspace(0, len(places) - 1, probes)} if places else set()
    for at in sorted(chosen):
        if case.late:
            break
        ask = longer[at]
        if isinstance(ask, str):
            out.append((at, ask, False))
            continue
        case.progress(f"as a prompt: token {at}")
        again, why = case.tries(ask, 1)
        if again is None or not again.steps:
            out.append((at, why or "no step came back", False))
            continue
        certain = prompt.ids is not None
        if not certain and done.usage.prompt is not None and again.usage.prompt is not None:
            certain = again.usage.prompt - done.usage.prompt == at
        elif not certain:
            certain = _split_alike(case, prompt, ask, steps[:at])
        out.append((at, again.steps[0], certain))
    return out


def _longer(case: Case, prompt: Prompt, steps: Sequence[Step], ids: list[int] | None) -> Prompt | str:
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


def _split_alike(case: Case, prompt: Prompt, longer: Prompt, steps: Sequence[Step]) -> bool:
    """Whether the model's tokenizer splits the longer prompt into the shorter one and the tokens generated."""
    before, after, all_of_it = ids_of(case, prompt), step_ids(case, steps), ids_of(case, longer)
    return before is not None and after is not None and before + after == all_of_it


def _echoed(case: Case, text: str, steps: Sequence[Step]) -> list[tuple[int, Step | str, bool]]:
    """One echo of prompt and answer; places are those where both have a border before and after the token."""
    size = len(text.encode())
    said = b"".join(s.token.raw for s in steps)
    try:
        answer = said.decode()
    except UnicodeDecodeError as error:
        answer = said[: error.start].decode()
    echo = case.target.score_text(text + answer, case.top)
    at, starts = 0, {}
    for step in echo:
        starts[at] = step
        at += len(step.token.raw)
    out: list[tuple[int, Step | str, bool]] = []
    place = size
    for i, step in enumerate(steps):
        again = starts.get(place)
        if again is not None and i:
            # splits before this token must be those of the answer, or it was computed on other tokens
            borders = {size + len(b"".join(s.token.raw for s in steps[:k])) for k in range(i + 1)}
            inside = {key for key in starts if size <= key <= place}
            out.append((i, again, inside == borders and again.token.raw == step.token.raw))
        place += len(step.token.raw)
    return out


# ------------------------------------------------------------------------------------------------------- batches


def batch(case: Case, stage: Stage) -> None:
    """Alone and among others: concurrent requests, or, in this process, a prompt in chunks of several sizes."""
    if case.local is not None:
        ids = PROMPTS["mixed"]()[: 48 if case.quick else 200]
        whole = _extended(case.local, ids, None)
        parts = {size: _extended(case.local, ids, size) for size in WAYS}
        differ = any(not np.array_equal(part, whole, equal_nan=True) for part in parts.values())
        yard = measure(case.engine, ids, case.rounding) if differ else fallback()
        for size, part in parts.items():
            _rows(case, stage, f"chunks of {size}", ids, part, whole,
                  "Look at the first and last rows of a chunk: window, compressors, cache slots", yard)  # fmt: skip
        return
    if case.target.kind != "http":
        stage.add("many at once", Outcome.IMPOSSIBLE, f"a {case.target.kind} target takes one request at a time")
        return
    chosen = [prompt_of(case, 120 + 90 * i, seed=20 + i) for i in range(2 if case.quick else 4)]
    prompts = [each[1] for each in chosen if each is not None]
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
    seconds = sum(done.seconds for done in alone), max(done.seconds for done in together)
    figures = {
        "requests": len(prompts),
        "one after another, s": round(seconds[0], 2),
        "at once, s": round(seconds[1], 2),
    }
    worst = None
    for i, prompt in enumerate(prompts):
        found = compared(alone[i], together[i])
        check = _verdict(case, stage, f"request {i + 1}", prompt, alone[i], [found], [together[i]], figures,
                         "Look at what rows of a batch share: masks, positions, cache slots")  # fmt: skip
        worst = check if worst is None or check.outcome is Outcome.WRONG else worst
    if worst is not None and worst.outcome is Outcome.OK:
        worst.sight = f"{worst.sight} a server that takes one request after another cannot fail this".strip()


# --------------------------------------------------------------------------------------------------- chunk edges


def edges(case: Case, stage: Stage) -> None:
    """The same text at prompt lengths around usual chunk sizes. Part of the stage of long contexts."""
    chosen = EDGES[:1] if case.quick else EDGES if case.long else EDGES[:2]
    for edge in chosen:
        name = f"around {edge} tokens"
        if case.late:
            stage.add(name, Outcome.SKIPPED, "out of time")
        elif case.local is not None:
            _local_edge(case, stage, name, edge)
        else:
            _asked_edge(case, stage, name, edge)


def _local_edge(case: Case, stage: Stage, name: str, edge: int) -> None:
    local = case.local
    assert local is not None
    if edge + 2 > local.ctx:
        stage.add(name, Outcome.IMPOSSIBLE, f"the context is {local.ctx}")
        return
    case.progress(name)
    rng = np.random.default_rng(edge)
    ids = rng.integers(0, min(512, case.engine.shape.vocab), edge + 1).tolist()
    whole = _extended(local, ids, None)[edge - 2 :]
    ends = []
    for length in (edge - 1, edge, edge + 1):
        session = local.engine.session(edge + 2)
        session.sync(ids[:length])
        ends.append(session.logits.copy())
    last = np.array(ends)
    yard = measure(case.engine, ids, case.rounding) if not np.array_equal(whole, last) else fallback()
    _rows(case, stage, name, ids[edge - 2 :], last, whole,
          "Look at the last row of a chunk and the first of the next", yard)  # fmt: skip


def _asked_edge(case: Case, stage: Stage, name: str, edge: int) -> None:
    ours = case.tokenizer
    if not case.logprobs or ours is None or case.same_model is not True or not case.kinds & {"ids", "text"}:
        stage.add(name, Outcome.IMPOSSIBLE, "needs plain prompts of known length, and log probabilities")
        return
    ids = ours.encode(prose(8 * edge, seed=edge))[: edge + 4]
    try:
        if "ids" in case.kinds:
            continued(case, stage, name, [Prompt.tokens(ids[: edge - 4])], 8, 7)
        elif case.echo:
            prefixes(case, stage, name, ids, range(edge - 3, edge + 4))
        else:
            continued(case, stage, name, [Prompt.plain(ours.decode(ids[: edge - 4]).decode("utf-8", "ignore"))], 8, 7)
    except Ds4Error as error:
        stage.add(name, Outcome.IMPOSSIBLE, str(error), notes=["a context that is too short is no mistake"])
