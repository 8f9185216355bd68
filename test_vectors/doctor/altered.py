"""Decide whether an answer was altered: by more than float noise, and with whose content.

    judge = Judge(limit=0.3)
    judge.add(reply)                            an answer given alone: later answers to its prompt are compared with it
    change = judge.change(reply, others)        how a later answer differs from those

An answer is altered if log probabilities moved by more than ``limit`` nats rms, or if the best token changed although
it led by ``repeat.FLIP`` times the noise at other positions (``repeat.batch_effect``). Its content is foreign if it has
a code of another prompt, or if its log probabilities, which are not its own, are those of another prompt's answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from ds4ref.targets import Completion, Step

from ..finding import ShownToken, row
from .preflight import alternatives_row
from .registers import Register
from .repeat import AnswerComparison, batch_effect, compare_answers, gap
from .yardstick import FLOAT, UNKNOWN

GROSS = 3.0
"""A move of this many times the limit is gross: no kernel makes it."""
WIDER, FEWEST = 3.0, 8
"""How many times the measured noise passes for noise; fewest positions of an answer whose median is judged."""
LOOSE, MOST_NOISE = 1.0, 1.5
"""Nats rms that noise may move a position where none was seen; and in any case at most."""
TYPICAL = 0.1
"""Nats rms at the median position of an answer that pass for noise in engines whose rounding is not known."""
LIKELY = -7.0
"""Least log probability of alternatives that are compared: where another expert or row wins by rounding alone, unlikely
ones move by nats in right engines."""
PRIORS = {"text": 0.5, "noise": 50.0, "gross": 2000.0}
"""Answers of right engines assumed unaltered before any were seen, by the evidence that an answer is altered."""
SHARED = 8
"""Fewest alternatives that two steps must share to be called the same."""


@dataclass(frozen=True)
class Reply:
    """An answer to a register, or the error in its place.

    beside  the registers that were answered meanwhile
    span    times at which its tokens arrived (``time.monotonic``), from the second on; () if it was not streamed
    """

    register: Register
    answer: Completion | None = None
    error: str = ""
    beside: frozenset[Register] = frozenset()
    span: tuple[float, ...] = ()

    @property
    def answers(self) -> list[Completion]:
        """Return a list of the answer, empty after an error."""
        return [] if self.answer is None else [self.answer]


@dataclass(frozen=True)
class Change:
    """How an answer differs from those given alone.

    nats      largest move of log probabilities at a position with the same tokens before it, rms; None if unknown
    same      whether it equals one of them
    altered   whether noise cannot explain the difference, by log probabilities
    gross     whether it is far beyond that
    lost      codes that the answers given alone have, and this one lacks
    codes     number of codes that could be lost: those of all answers given alone or, without any, of the prompt
    source    the register whose content is in the answer; None if no foreign content was seen
    evidence  what shows that
    coded     whether a code shows it
    pieces    whether the model's tokens are right, and what became of them on their way is not
    where     tokens to show
    """

    reply: Reply
    nats: float | None
    same: bool
    altered: bool = False
    gross: bool = False
    lost: tuple[str, ...] = ()
    source: Register | None = None
    evidence: str = ""
    coded: bool = False
    pieces: bool = False
    where: tuple[tuple[str, list[ShownToken]], ...] = ()
    codes: int = 0


@dataclass
class Judge:
    """Compares answers with those to the same prompt given alone.

    limit    nats rms that noise may move a position
    typical  nats rms that noise may move the median position of an answer; None: not known
    owners   the register of each code
    recalls  whether the model repeats codes, so that a missing one is a loss
    alone    answers given alone, by register
    pieces   whether equal answers have equal texts and tokens, streamed or not
    right    returns None for an answer that is right though it differs from those alone, where those are wrong
    cured    how many were
    """

    owners: dict[str, Register]
    limit: float = LOOSE
    typical: float | None = None
    recalls: bool = False
    alone: dict[Register, list[Completion]] = field(default_factory=dict)
    pieces: bool = True
    right: Callable[[Reply], int | None] | None = None
    cured: int = 0

    def add(self, reply: Reply) -> None:
        """Add an answer that was given alone."""
        if reply.answer is not None:
            self.alone.setdefault(reply.register, []).append(reply.answer)

    def changes(
        self, replies: Sequence[Reply], references: Sequence[Sequence[Completion]] | None = None
    ) -> list[Change]:
        """Return the change of each answer; ``references``: the answers to compare each with, else those alone."""
        answered = [(i, reply) for i, reply in enumerate(replies) if reply.answer is not None]
        if references is None:
            references = [self.alone.get(reply.register, ()) for reply in replies]
        compared = {i: [_compare(one, reply.answer) for one in references[i]
                        if one.steps and reply.answer.steps] for i, reply in answered if reply.answer}  # fmt: skip
        every = [each for some in compared.values() for each in some if not (_largest(each) > self.limit)]
        return [self._change(reply, references[i], compared[i], every) for i, reply in answered]

    def learn(self, pairs: Sequence[tuple[Completion, Completion]], known: float = UNKNOWN) -> None:
        """Set the limits to ``WIDER`` times the noise of pairs of answers that were only computed in another way: to
        one prompt, repeated, or beside copies of itself. ``known``: nats rms that are noise in any case.

        One answer in ten may be wrong. Where no noise shows, limits are kept: a proxy may have kept whole answers. So
        is a ``typical`` that is known.
        """
        moves = [rms for a, b in pairs if a.steps and b.steps and len(rms := _compare(a, b).rms)]
        largest = [float(np.nanmax(rms)) for rms in moves if np.isfinite(rms).all()]
        medians = [float(np.median(rms)) for rms in moves if np.isfinite(rms).all() and len(rms) >= FEWEST]
        if max(largest, default=0.0) > FLOAT:
            self.limit = min(max(known, WIDER * float(np.quantile(largest, 0.9))), MOST_NOISE)
        if self.typical is None and max(medians, default=0.0) > FLOAT:
            self.typical = max(WIDER * float(np.quantile(medians, 0.9)), TYPICAL)

    def _change(
        self, reply: Reply, references: Sequence[Completion], compared: list[AnswerComparison],
        every: Sequence[AnswerComparison],
    ) -> Change:  # fmt: skip
        answer = reply.answer
        assert answer is not None
        own = reply.register
        same = any(each.same for each in compared) or any(
            one.text == answer.text and not (one.steps and answer.steps) for one in references
        )
        known = own.codes if not references else [c for c in own.codes if all(c in one.text for one in references)]
        lost = tuple(code for code in known if code not in answer.text) if self.recalls and not same else ()
        made = partial(Change, reply, codes=len(known) if self.recalls else 0)
        same = same or not references
        foreign = next((c for c in self.owners if c in answer.text and c not in own.codes), None)
        if foreign is not None:
            source: Register | None = next((one for one in reply.beside if foreign in one.codes), self.owners[foreign])
            return made(None, False, bool(compared), bool(compared), lost, source,
                        f"it has the code {foreign} of another prompt", True)  # fmt: skip
        ways = [_underway(one, answer, min(self.limit, UNKNOWN)) for one in references if self.pieces]
        if evidence := next(filter(None, ways), ""):
            return made(None, False, True, True, lost, evidence=evidence, pieces=True)
        excused = [self._excused(each, every) for each in compared]
        if same or not compared or any(nats is not None for nats in excused):
            moves = [nats for nats in excused if nats is not None]
            return made(0.0 if same else min(moves, default=None), same, lost=lost)
        if self.right is not None and self.right(reply) is None:
            self.cured += 1
            return made(None, same, lost=lost)
        best = int(np.argmin([_largest(each) for each in compared]))
        closest, reference, answer = compared[best], _shown(references[best]), _shown(answer)
        at = _first(closest, self.limit)
        nats = _largest(closest)
        gross = nats > GROSS * self.limit or (
            closest.fork is not None and (closest.margin is None or closest.margin > 1)
        )
        source, evidence = self._source(reply, answer.steps[at] if at < len(answer.steps) else None, every)
        where = []
        if at < min(len(answer.steps), len(reference.steps)):
            where = [("alone", row([(s.token.raw, s.token.id) for s in reference.steps], at)),
                     ("this answer", row([(s.token.raw, s.token.id) for s in answer.steps], at)),
                     ("alternatives there, alone", alternatives_row(reference.steps[at])),
                     ("alternatives there, this answer", alternatives_row(answer.steps[at]))]  # fmt: skip
        return made(nats, False, True, bool(gross), lost, source, evidence, where=tuple(where))

    def _excused(self, each: AnswerComparison, every: Sequence[AnswerComparison]) -> float | None:
        """Return the largest move of an answer that noise may explain, None if it cannot."""
        if self.typical is not None and len(each.rms) >= FEWEST and np.median(each.rms) > self.typical:
            return None
        return batch_effect(each, [each, *every], self.limit)

    def _source(
        self, reply: Reply, step: Step | None, every: Sequence[AnswerComparison]
    ) -> tuple[Register | None, str]:
        """Return the register one of whose answers has the log probabilities of ``step``, preferably one that was
        answered meanwhile, and a sentence on it; None if none has, or if the register's own answers have them, too."""
        if step is None or not step.top:
            return None, ""
        near = max(FLOAT * 10, min(2 * max((_largest(each) for each in every), default=0.0), 0.05))
        own = [one for answer in self.alone.get(reply.register, ()) for one in answer.steps]
        if any(_alike(step, one, 10 * near) for one in own):
            return None, ""
        others = sorted((r for r in self.alone if r != reply.register), key=lambda r: r not in reply.beside)
        seen = 0
        for other in others:
            for answer in self.alone[other]:
                for at, one in enumerate(answer.steps):
                    seen += 1
                    if _alike(step, one, near):
                        return other, (f"the log probabilities of a changed token are, within {near:.2g} nats, those "
                                       f"of token {at} of the answer to another prompt")  # fmt: skip
        return None, ""

    def twin(self, reply: Reply, other: Sequence[Completion]) -> bool:
        """Return whether an answer is, to the last bit of its log probabilities, one of those to ``other``."""
        answer = None if reply.answer is None else _shown(reply.answer)
        return answer is not None and len(answer.steps) >= SHARED and any(
            len(one.steps) == len(answer.steps) and all(len(s.top) >= SHARED for s in one.steps)
            and compare_answers(one, answer).same for one in map(_shown, other)
        )  # fmt: skip


def _underway(one: Completion, other: Completion, limit: float) -> str:
    """Return what happened to the pieces of an answer on their way, if all its tokens are those of ``one``; else ""."""
    one, other = _shown(one), _shown(other)
    if not one.steps or not other.steps or one.text == other.text or one.finish != other.finish:
        return ""
    rest = iter(one.steps)
    if not all(any(_alike(step, each, limit) for each in rest) for step in other.steps) or next(rest, None):
        return ""
    if missing := len(one.steps) - len(other.steps):
        begun = all(map(partial(_alike, near=limit), one.steps[missing:], other.steps))
        if begun and (other.usage.completion or math.inf) < (one.usage.completion or 0):
            return ""  # by its own count the model began later: it was not at the end of its prompt
        return f"{missing} of its tokens are missing; all others, with log probabilities, are those of the answer alone"
    return "its tokens and log probabilities are those of the answer alone, its text is not"


def _compare(one: Completion, other: Completion) -> AnswerComparison:
    """Compare two answers; of equal texts only the steps that both have, as streams may leave some out."""
    one, other = _shown(one), _shown(other)
    if one.text == other.text:
        count = min(len(one.steps), len(other.steps))
        one, other = replace(one, steps=one.steps[:count]), replace(other, steps=other.steps[:count])
    return compare_answers(one, other, LIKELY)


def _shown(answer: Completion) -> Completion:
    """Return an answer without the steps whose token has no text, which llama.cpp leaves out of streams alone."""
    return replace(answer, steps=tuple(step for step in answer.steps if step.token.raw))


def _largest(answer: AnswerComparison) -> float:
    """Return the largest move of log probabilities; infinite if one is unknown."""
    return float(np.nan_to_num(answer.rms, nan=np.inf).max(initial=0.0))


def _first(answer: AnswerComparison, limit: float) -> int:
    """Return the index of the first step that moved by more than ``limit``, else of the fork."""
    beyond = np.flatnonzero(~(answer.rms <= limit))
    return int(beyond[0]) if len(beyond) else answer.fork or 0


def _alike(a: Step, b: Step, near: float) -> bool:
    shared = {t.raw for t in a.top} & {t.raw for t in b.top}
    return len(shared) >= min(SHARED, len(a.top)) and a.token.raw == b.token.raw and gap(a, b) <= near


def odds(altered: int, answers: int, before: int, alone: int, evidence: str) -> float:
    """Return the odds that a condition alters answers more often than noise does, at most 1e9.

    ``altered`` of ``answers`` in the condition, ``before`` of ``alone`` without it; evidence: a key of ``PRIORS``. Beta
    distributions: of any rate (Jeffreys) in the condition, of the rate without it with the prior's unaltered answers.
    """
    rate = _beta(altered + 0.5, answers - altered + 0.5) - _beta(0.5, 0.5)
    a, b = before + 0.5, PRIORS[evidence] + alone - before
    ratio = rate - _beta(a + altered, b + answers - altered) + _beta(a, b)
    rarer = before > 0 and altered * alone <= before * answers
    return math.exp(min(ratio, 0.0 if rarer else math.log(1e9)))


def _beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
