"""Load stage: the same requests alone, behind other prefixes, several at once, and beside streams that are cut off.

Every prompt lists codes that occur in no other one (``registers``), so that content of another request shows. Answers
are compared with those to the same prompt alone (``altered``). Reuse of cached prompts is examined before anything runs
at once, so that what load breaks is not called a mistake of the cache. A condition that looks wrong is repeated. It is
called wrong if another prompt's code shows, or if the odds against noise are at least ``ODDS``, by two or more answers.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ds4ref.targets import Ability, Completion

from ..finding import Finding, Outcome, counted
from .altered import Change, odds
from .case import ExamContext
from .examination import Stage
from .identify import drafts
from .loader import ODDS, Loader, Reply
from .preflight import NOT_BEST, alternatives_row, faults, new_best
from .registers import HEAD, MORE, PLACES, REPEAT, Register
from .repeat import THINKING
from .yardstick import FLOAT, UNKNOWN

MOST_ROUNDS = 4
UNSTEADY = 1e4
"""The odds that are required if answers change alone, too."""
RECALLED = 0.9
"""Share of codes that a model must repeat alone before a missing one counts."""
SIZES = (440, 60, 1300)
"""Characters of prose in prompts that are asked at once: the answers of one pass differ in length."""
COPIES = 2
"""Prompts that are asked twice at once, to measure what a batch does to answers whatever is in it."""
FLIPPED = 0.43
"""Least chance of the runner-up, at temperature 1, where noise may make it the best token (0.3 nats)."""
REQUESTS = 160
"""Requests of the quick form; if there is no time for them, conditions have fewer."""
ALTERED, DEPENDS = "answers altered under load", "batch dependence"
NEIGHBOURS, ROWS, REUSE = "leaking neighbours", "cache rows of another prompt", "wrong reuse of a prefix"
SAMPLING = "sampling state shared between streams"
UNSEEN = "tokens accepted that are not the best"
DRAFTS, DECODE = "drafts change what follows", "generated otherwise than computed as a prompt"
UNTOLD = "altered under load, or alone by the prompt's cached rows: cannot tell"
PIECES = "pieces of answers lost or exchanged"
NEXT = {
    NEIGHBOURS: "Look at what streams share: rows of a batched pass, output queues, slots, sampler state",
    ROWS: "Look at how a cached prefix is found and checked: hash of the tokens, block tables, slots freed too early",
    REUSE: "Look at the length and the positions of a reused prefix, and at rows that a rewind leaves behind",
    ALTERED: "Repeat with the batch-invariant mode, with one slot, without CUDA graphs: which one makes it vanish?",
    DEPENDS: "Nothing to mend: llama.cpp, SGLang, and vLLM unless it is batch-invariant, choose kernels by the size of "
             "a batch and of what is not cached. Compare such an engine with one request at a time",
    UNSEEN: "Look at what accepts drafted tokens; without drafts it must vanish",
    DRAFTS: "Look at what a rejected draft leaves behind: rows, positions; without drafts it must vanish",
    DECODE: "Look at what decode does otherwise than prefill, or drafts if there are any; see Prefill and decode",
    UNTOLD: "Repeat without the cache of prompts: does it vanish?",
    PIECES: "Look behind the model: at the detokenizer, the queues of answers, the stream",
    SAMPLING: "Give each stream its own random generator if seeds are to be kept",
}  # fmt: skip


@dataclass
class Condition:
    """Answers under one condition; ``again`` asks for another round of them; ``load``: whether others run meanwhile;
    ``abreast``: how many of these were seen to overlap."""

    name: str
    load: bool
    again: Callable[[], list[Change]]
    changes: list[Change] = field(default_factory=list)
    abreast: int = 0

    @property
    def altered(self) -> list[Change]:
        return [change for change in self.changes if change.altered or change.source is not None]

    @property
    def foreign(self) -> list[Change]:
        return [change for change in self.changes if change.source is not None]

    @property
    def lost(self) -> int:
        """Return the number of codes lost."""
        return sum(len(change.lost) for change in self.changes)

    @property
    def codes(self) -> int:
        """Return the number of codes that could be lost."""
        return sum(change.codes for change in self.changes)


def load(case: ExamContext, stage: Stage) -> None:
    """Examine reuse of prefixes, then requests at once, then streams that are cut off."""
    kind = next((k for k in ("chat", "text", "ids") if k in case.kinds), None)
    if case.target.kind != "http" or kind is None:
        why = "no request was answered" if kind is None else f"a {case.target.kind} target takes one request at a time"
        stage.add("load", Outcome.IMPOSSIBLE, why)
        return
    loader = Loader(case, kind)
    probes = [loader.made.fresh(i % len(PLACES)) for i in range(4 if case.quick else 8)]
    if not _alone(loader, stage, probes):
        return
    greedy = False
    for condition in _conditions(loader, probes):
        if condition.load and not greedy:
            greedy = True
            add_greedy(stage, loader.judge.alone)
        case.progress(condition.name)
        _examine(loader, stage, condition, probes)
    _errors(loader, stage)
    if not any(check.outcome is Outcome.WRONG for check in stage.checks):
        _seeds(loader, stage, probes)


def _alone(loader: Loader, stage: Stage, probes: Sequence[Register]) -> bool:
    """Ask each register three times alone: noise, recall, and the effect of an exact cache hit. False: cannot go on."""
    case, judge, base = loader.case, loader.judge, loader.base
    case.progress("alone")
    drafted = drafts.counter(case.target, case.limit)
    paced = loader.pace()
    first = [loader.alone(probe) for probe in probes]
    if any(reply.answer is None for reply in first):
        why = next(reply.error for reply in first if reply.answer is None)
        stage.add("alone", Outcome.IMPOSSIBLE, f"not every request was answered: {why}")
        return False
    answers = [reply.answer for reply in first if reply.answer is not None]
    repeated = [c in answer.text for answer, probe in zip(answers, probes, strict=True) for c in probe.codes]
    judge.recalls = float(np.mean(repeated)) >= RECALLED
    loader.learn_noise(first)
    counts = [answer.usage.drafted or 0 for answer in answers]
    rose = drafted is not None and (drafts.counter(case.target, case.limit) or 0) > drafted
    loader.drafted = rose or any(counts) or case.served.value("drafts") == "on"
    later = [[loader.alone(probe) for probe in probes] for _ in range(2)]
    again = judge.changes(later[1], [reply.answers for reply in later[0]])
    whole = loader.alone(paced.register)
    judge.pieces = not any(c.pieces for c in judge.changes([whole], [paced.answers]))
    pairs = [pair for some in later for pair in zip(first, some, strict=True)]
    for copy in map(loader.made.fresh, range(COPIES if case.logprobs else 0)):
        one, other = loader.together([copy, copy], 2)
        pairs += [(one, other), (loader.alone(copy), one)]
    judge.learn([(a.answer, b.answer) for a, b in pairs if a.answer and b.answer],
                UNKNOWN if loader.mode is None else judge.limit)  # fmt: skip
    hits = judge.changes([*later[0], *later[1]], [reply.answers for reply in (*first, *first)])
    for reply in (*first, *later[0], *later[1], paced, whole):
        judge.add(reply)
    changed = [change for change in again if change.altered and not change.pieces]
    base.altered, base.answers = len(changed), len(again)
    base.lost, base.codes = sum(len(change.lost) for change in again), sum(change.codes for change in again)
    greedy = not any(NOT_BEST in faults(step) for answer in answers for step in answer.steps)
    if loader.mode is not None and greedy and (loader.strays or any(change.gross for change in changed)):
        # no sampling does that: first answers, which no cached prompt can spoil, tell how often it happens without
        base.altered, base.answers = len(loader.strays), len(first)
    figures: dict[str, object] = {
               "requests": len(probes), "codes repeated": f"{sum(repeated)} of {len(repeated)}",
               "changed when repeated": f"{sum(not change.same for change in again)} of {len(again)}",
               "prompts": loader.made.kind, "most tokens of an answer": loader.tokens,
               "mode of ours that agrees": loader.mode,
               "noise passed at a position, at the median (nats rms)": (judge.limit, judge.typical)}  # fmt: skip
    notes = [] if judge.recalls else ["the model does not repeat codes: only log probabilities can show an alteration"]
    if loader.strays and greedy and _strays(loader, stage, first, figures):
        pass  # what follows is compared with our engine, too
    elif base.altered and changed or (not case.logprobs and not all(change.same for change in again)):
        says = (f"{sum(not c.same for c in again)} of {len(again)} answers change between identical "
                "requests: the server does not keep to temperature 0, or is in use; see Run to run")  # fmt: skip
        thinks, loader.odds = any(answer.reasoning for answer in answers), UNSTEADY
        stage.add("alone", Outcome.UNSURE, says, figures=figures, notes=notes, next=[THINKING] if thinks else [])
    else:
        says = f"{counted(len(again), 'repeated answer')} the same"
        if changed:
            says = f"{counted(len(first), 'first answer')} as our engine's, repeated ones are not"
        stage.add("alone", Outcome.OK, says, figures=figures, notes=notes)
    exact = Condition("exact cache hit", False, lambda: judge.changes(
        [loader.alone(probe) for probe in probes], [reply.answers for reply in first]), hits)  # fmt: skip
    _examine(loader, stage, exact, probes)
    return True


def _strays(loader: Loader, stage: Stage, first: list[Reply], figures: dict[str, object]) -> bool:
    """Report first answers that differ from our engine's, though others do not, but for their first tokens: they are
    generated otherwise than computed as a prompt, by drafts if there are any. False: too few to tell."""
    more = [loader.alone(loader.made.fresh(i % len(PLACES)), learn=True) for i in range(len(first))]
    loader.strays += [reply for reply in more if loader.strays_at(reply) is not None]
    loader.base.altered, loader.base.answers = len(loader.strays), 2 * len(first)
    places = [loader.strays_at(reply) for reply in loader.strays]
    figures |= {"first tokens that are not our engine's": places}
    if len(places) < 2 or not all(places):
        return False
    family = DRAFTS if loader.drafted else DECODE
    says = (f"{family}: {len(places)} of {counted(2 * len(first), 'first answer')}, alone, differ from our engine's, "
            "none at its first token")  # fmt: skip
    stage.add("alone", Outcome.WRONG, says, figures=figures | {"family": family}, next=[NEXT[family]])
    loader.odds = UNSTEADY
    return True


def add_greedy(stage: Stage, alone: Mapping[Register, Sequence[Completion]]) -> None:
    """Report tokens of answers given alone, at temperature 0, that are not the best by the answer's own list."""
    places = [(one, answer.steps[at]) for one, answers in alone.items() for answer in answers[:1]
              for at in new_best(f"{one.listed} {HEAD} {REPEAT} {MORE}", answer.steps)]  # fmt: skip
    if places:
        prompts = len({one for one, _ in places})
        says = f"{UNSEEN}: in answers to {prompts} of {counted(len(alone), 'prompt')}, alone, at temperature 0"
        outcome, where = Outcome.WRONG if prompts > 1 else Outcome.UNSURE, alternatives_row(places[0][1])
        stage.add("greedy answers", outcome, says, next=[NEXT[UNSEEN]], figures={"family": UNSEEN},
                  where=[("alternatives there", where)])  # fmt: skip


def _conditions(loader: Loader, probes: Sequence[Register]) -> Iterator[Condition]:
    """Yield the conditions in order, those without load first."""
    made, case, judge, streams = loader.made, loader.case, loader.judge, loader.streams
    spent = sum(answer.seconds for answers in judge.alone.values() for answer in answers)
    usual = spent / max(sum(map(len, judge.alone.values())), 1)
    brief = 1.3 * REQUESTS * usual * (1 if case.quick else 3) > case.limit.seconds_left
    turns = itertools.count()

    def near() -> list[Change]:
        return [change for one in map(made.fresh, range(len(PLACES))) for change in loader.near_hits(one)]

    def goes_on() -> list[Change]:
        changes = []
        for _ in range(2 if brief else 4):
            pair = [one := made.fresh((turn := next(turns)) % len(PLACES)), one.continued()]
            changes += loader.chain([*pair, *pair] if turn % 2 else [*pair[::-1], *pair[::-1]])
        return changes

    def after_cut() -> list[Change]:
        changes = []
        for probe, (early, late) in zip(probes[: 2 if brief else 4], ((1, 9), (3, 2), (8, 1), (2, 5)), strict=False):
            loader.cut(victim := made.fresh(next(turns) % len(PLACES)), early)
            changes += judge.changes([loader.alone(probe)])
            loader.cut(probe, late)
            changes += judge.changes([loader.alone(probe)]) + loader.chain([victim, victim])
        return changes

    def at_once(count: int) -> list[Change]:
        replies = loader.together([*itertools.islice(itertools.cycle(probes), count * (2 if case.quick else 4))], count)
        sizes = itertools.islice(itertools.cycle(SIZES), count)
        cold = loader.together([made.fresh(i % len(PLACES), size) for i, size in enumerate(sizes)], count)
        loader.cold |= {reply.register for reply in cold}
        for reply in cold:
            loader.alone(reply.register, learn=True)
        return judge.changes([*replies, *cold])

    def beside_cut() -> list[Change]:
        victims = [made.fresh(i) for i in range(2)]
        replies = loader.together([*probes, *probes], min(3, loader.most - 1), victims)
        return judge.changes([*replies, *(loader.alone(probe) for probe in probes)])

    yield Condition("near hit", False, near)
    if made.kind != "chat" or case.target.can(Ability.TOOLS):
        yield Condition("conversation that goes on", False, goes_on)
    if streams:
        yield Condition("after a cut stream", False, after_cut)
    old = [one for one in judge.alone if one not in probes][: 8 if case.quick else None]
    for count in (8,) if brief else (2, 8) if case.quick else (2, 4, 8):
        if count <= loader.most:
            yield Condition(f"{count} at once", True, lambda count=count: at_once(count))  # type: ignore[misc]
    if streams and loader.most > 1:
        yield Condition("beside cut streams", True, beside_cut)
    if not brief:
        yield Condition("after many others", False, lambda: judge.changes([loader.alone(one) for one in old]))


def _examine(loader: Loader, stage: Stage, condition: Condition, probes: Sequence[Register]) -> None:
    """Run a condition, again while it looks wrong but is not certain, and add its finding."""
    loader.abreast = 0
    for rounds in range(MOST_ROUNDS):
        if not rounds and condition.changes:
            continue  # the first round was asked already
        if rounds and (not _suspicious(loader, condition) or loader.case.limit.seconds_left < 0.15 * loader.room):
            break
        if rounds and not loader.case.logprobs and loader.judge.recalls:
            _more_baseline(loader, probes)
        condition.changes += condition.again()
    condition.abreast = loader.abreast
    add_finding(loader, stage, condition)


def _more_baseline(loader: Loader, probes: Sequence[Register]) -> None:
    """Measure how often codes change alone, without log probabilities: at temperature 0, and at 1, where a token that
    noise may flip is drawn wrongly in at least ``FLIPPED`` of all cases."""
    for temperature, share in ((0.0, 1.0), (1.0, FLIPPED)):
        changes = loader.judge.changes([loader.ask(probe, temperature=temperature) for probe in probes])
        loader.base.lost += round(sum(len(change.lost) for change in changes) / share)
        loader.base.codes += sum(change.codes for change in changes)
    loader.base.lost = min(loader.base.lost, loader.base.codes)


def _certainty(loader: Loader, condition: Condition) -> tuple[float, int]:
    """Return (odds against noise, altered answers) of a condition: by log probabilities, else by the codes lost."""
    base, changes = loader.base, condition.changes
    if loader.case.logprobs:
        altered = len(condition.altered)
        evidence = "gross" if sum(change.gross for change in changes) > 1 else "noise"
        evidence = "text" if base.altered else evidence  # a server that alters answers alone is not known to be right
        before = base.altered if not any(change.pieces for change in changes) else 0
        return odds(altered, len(changes), before, base.answers, evidence), altered
    altered = sum(bool(change.lost) for change in changes)
    return odds(condition.lost, condition.codes, base.lost, base.codes, "text"), altered


def _suspicious(loader: Loader, condition: Condition) -> bool:
    certainty, altered = _certainty(loader, condition)
    coded = sum(change.coded for change in condition.foreign)
    return bool(altered or coded) and coded < 2 and not (altered > 1 and certainty >= loader.odds)


def add_finding(loader: Loader, stage: Stage, condition: Condition) -> Finding:
    """Add the finding on a condition: wrong, with a name; depends on its batch or cache; inconclusive; or ok."""
    changes, count, judge = condition.changes, len(condition.changes), loader.judge
    if not count:
        return stage.add(condition.name, Outcome.UNSURE, "no answer could be compared")
    certainty, altered = _certainty(loader, condition)
    codes = condition.codes
    moves = [change.nats for change in changes if change.nats is not None]
    coded = any(change.coded for change in condition.foreign)
    shown = next((c for c in (*condition.foreign, *condition.altered) if c.where or c.evidence), None)
    more: dict[str, object] = {"where": list(shown.where) if shown else []}
    figures: dict[str, object] = {
        "answers": count, "changed": sum(not change.same for change in changes), "altered": altered,
        "codes altered": f"{condition.lost} of {codes}" if codes else "not measured",
        "foreign content": len(condition.foreign), "largest move (nats rms)": max(moves, default=None),
        "odds against noise": round(certainty, 1),
    }  # fmt: skip
    limit = f"a rate below {min(474 / count, 100):.2g} % of answers would not have been noticed"
    limit += f", nor one below {min(474 / codes, 100):.2g} % of codes" if codes else ""
    apart = condition.load and loader.timed and condition.abreast < 2
    if condition.load:
        limit += f"; at most {condition.abreast} answers were seen to overlap" if loader.timed else \
                 "; whether answers overlapped cannot be seen"  # fmt: skip
    if loader.case.logprobs:
        limit += f"; moves of log probabilities below {judge.typical or judge.limit:g} nats rms pass for noise"
    if coded or (altered > 1 and certainty >= loader.odds):
        family = _family(condition)
        late = [change for change in condition.altered if change.reply.register in loader.cold]
        if family == ALTERED and len(late) == len(condition.altered):
            family = {None: UNTOLD, True: REUSE, False: ALTERED}[loader.spoilt_alone(late)]
        evidence = f": {shown.evidence}" if shown and shown.evidence else ""
        spoilt = [check.name for check in stage.checks if check.outcome is Outcome.WRONG]
        more["notes"] = [f"{', '.join(spoilt)} came first: this may be its effect"] if spoilt else []
        says = f"{family}: {max(altered, len(condition.foreign))} of {counted(count, 'answer')} altered{evidence}"
        outcome = Outcome.UNEXPLAINED if family == UNTOLD else Outcome.WRONG
        figures |= {"family": family} if family != UNTOLD else {}
        more["next"] = [NEXT[family]]
    elif altered:
        outcome, says = Outcome.UNSURE, f"{altered} of {counted(count, 'answer')} altered, odds {certainty:.2g} : 1 " \
                        "against noise: too few to tell"  # fmt: skip
    elif apart:
        outcome, says = Outcome.UNSURE, "requests never overlapped: the server answers one after the other, and what " \
                        "a batch breaks was not tested"  # fmt: skip
    elif not all(change.same for change in changes) and not moves:
        outcome, says = Outcome.UNSURE, "the answers differ; by how much, log probabilities would say"
    elif max(moves, default=0.0) > FLOAT:
        outcome, says = Outcome.DEPENDS, f"differs from alone by at most {max(moves):.2g} nats rms"
        figures["family"], more["next"] = DEPENDS, [NEXT[DEPENDS]]
    else:
        how = "identical" if all(change.same for change in changes) else "equal within float noise"
        outcome, says = Outcome.OK, f"{counted(count, 'answer')} {how}"
    return stage.add(condition.name, outcome, says, figures=figures, limit=limit, **more)


def _family(condition: Condition) -> str:
    """Return the name of what is wrong in a condition."""
    if any(change.source in change.reply.beside for change in condition.foreign):
        return NEIGHBOURS
    if 0 < len(condition.altered) <= 2 * sum(change.pieces for change in condition.changes):
        return PIECES
    return ROWS if condition.foreign else ALTERED if condition.load else REUSE


def _errors(loader: Loader, stage: Stage) -> None:
    """Report requests that failed; those that were refused because the server is busy are no fault."""
    if loader.busy:
        says = f"{counted(loader.busy, 'request')} refused as too many: went on with at most {loader.most} at once"
        stage.add("rate limit", Outcome.UNSURE, says)
    failed, before, counts = loader.errors[True], loader.errors[False], loader.counts
    if not failed and not before:
        return
    broken = [why for why in failed if "no answer in time" not in why]
    certainty = odds(len(broken), counts[True], len(before), counts[False], "noise")
    says = (f"{len(failed)} of {counts[True]} requests failed beside others, {len(before)} of {counts[False]} alone: "
            f"{(broken or failed or before)[0]}")  # fmt: skip
    outcome = Outcome.UNEXPLAINED if len(broken) > 1 and certainty >= ODDS else Outcome.UNSURE
    stage.add("errors", outcome, says, figures={"odds against chance": round(certainty, 1)})


def _seeds(loader: Loader, stage: Stage, probes: Sequence[Register]) -> None:
    """Check whether a seed gives the same answer alone and beside others."""
    loader.case.progress("seeds")
    probes, everyone = probes[: min(4, loader.most)], frozenset(probes)
    asks = [(lambda beside, i=i, one=one: loader.ask(one, beside - {one}, 1.0, 7 + i)) for i, one in enumerate(probes)]
    alone = [[ask(frozenset()).answer for ask in asks] for _ in range(2)]
    texts = [[answer and answer.text for answer in answers] for answers in alone]
    if len(probes) < 2 or texts[0] != texts[1] or None in texts[0]:
        stage.add("seeds", Outcome.IMPOSSIBLE, "a seed does not give the same answer twice alone")
        return
    replies = [loader.run([lambda ask=ask: ask(everyone) for ask in asks], len(probes)) for _ in range(2)]  # type: ignore[misc]
    pairs = [(text, reply.answer.text) for some in replies for text, reply in zip(texts[0], some, strict=True)
             if reply.answer is not None]  # fmt: skip
    differ, count = sum(text != other for text, other in pairs), counted(len(pairs), "seeded answer")
    figures: dict[str, object] = {"answers": len(pairs), "changed": differ}
    if differ < 2:
        stage.add("seeds", Outcome.OK, f"{len(pairs) - differ} of {count} the same beside others", figures=figures)
        return
    noisy = not loader.case.logprobs or any(check.outcome is Outcome.DEPENDS for check in stage.checks)
    why = (
        "noise of the batch may have drawn other tokens" if noisy else "though greedy ones keep their log probabilities"
    )
    figures["family"] = family = DEPENDS if noisy else SAMPLING
    says = f"{family}: {differ} of {count} change beside others, none alone: {why}"
    stage.add("seeds", Outcome.DEPENDS, says, figures=figures, next=[NEXT[family]])
