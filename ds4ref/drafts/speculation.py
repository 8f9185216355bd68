"""The choice of a source of drafts and of the depth, the number of drafted tokens: whatever promises most tokens per
second.

A pass of depth k evaluates k + 1 tokens (rows), the pending one and k drafted ones. It adds 1 + a1 + a1 a2 + ... tokens
to the text, where ai is the estimated acceptance of the draft's i-th token, and takes the measured time of so many rows
and of drafting. The depth with most tokens per second is taken; where drafting does not pay that is 0, plain decode.

A balance, in units of the time of a plain pass (one without drafts), bounds what wrong drafts may cost. What each pass
with drafts gained or lost against plain decode is added to it, and a depth is only tried if the balance covers the loss
of all its tokens. It starts at ``CREDIT`` and grows by ``RATE`` per plain pass; so if nothing is ever accepted, n
tokens take no longer than n (1 + RATE) + CREDIT tokens of plain decode. If no depth promises a gain, the balance is
spent on trying the one that is expected to lose least.

    speculation = Speculation([Lookup()])
    draft = speculation.propose(tokens, streams, room)
    ...                                       run the pass of 1 + len(draft) rows
    speculation.passed(1 + len(draft), seconds)
    speculation.settled(accepted)             if the draft was not empty
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import Any

from ..engine_options import MOST_DRAFTED
from . import Draft
from .estimates import Acceptance, PassTimes

CREDIT, SAVED, CAP = 1.0, 2.0, 16.0
"""The balance at the start, the balance up to which plain passes add to it, and its maximum, which is what is lost if
drafts suddenly stop being accepted; all in plain passes."""
RATE = 0.008
"""What a plain pass adds to the balance."""
SPACING = 16
"""Number of passes, while drafts pay, after which another depth than the best is tried once."""
LONGEST = 64
"""Number of passes with drafts in a row after which a plain pass is run, to measure its time again."""
MARGIN = 1.01
"""Minimum speed-up over plain decode that a depth must promise."""
CHEAP = 0.003
"""A source whose drafts cost at most this share of a plain pass is asked at every token, whether they pay or not."""
ANSWERS = 1 / 8
"""Weight of the newest call in the running share of calls for which a source returned a draft."""

Kind = tuple[str, int]
"""Name of a source of drafts, and the grade of confidence of its draft."""


class Counts(Counter[tuple[str, str, int]]):
    """Counts of what speculation did, for reports; the key is (what, name of the source of drafts, depth).

    what: "passes" (plain ones under "" and 0), "drafted" or "accepted" tokens.
    """

    def of(self, what: str) -> int:
        """Return the count of ``what``, summed over all sources and depths."""
        return sum(count for (kind, _, _), count in self.items() if kind == what)

    @property
    def tokens_a_pass(self) -> float:
        """Return the average number of tokens that a pass added to the text; 1.0 before the first pass."""
        return 1 + self.of("accepted") / max(1, self.of("passes"))

    def __str__(self) -> str:
        """Return one line for users."""
        right = f"{self.of('accepted')} of {self.of('drafted')} tokens right"
        return f"guessed: {right}, {self.tokens_a_pass:.2f} tokens a pass"


@dataclass
class _Plan:
    """What one kind of draft is expected to bring; lists indexed by depth from 0, times in plain passes."""

    tokens: list[float]
    """Expected number of tokens that the pass adds to the text."""
    costs: list[float]
    """Expected time of the pass and of making the draft."""
    losses: list[float]
    """Most time that is lost if no drafted token is accepted."""
    values: list[float]
    """Expected speed-up over plain decode: tokens / costs."""
    best: list[int]
    """The best depth up to the index; 0 if none of them pays."""


@dataclass
class _Tried:
    """The newest draft, kept until it is known how many of its ``depth`` tokens were accepted."""

    kind: Kind
    depth: int
    cost: float
    """Time to make the draft, in plain passes."""
    chances: Sequence[float] = ()
    """What the source expects of each token."""
    passed: bool = False
    """Whether the pass that evaluates it has run."""


class Speculation:
    """Chooses, before each pass of one sequence, which drafted tokens are evaluated with the pending one.

    drafts  sources of drafts in order of preference; the first one is taken if several promise the same
    depth   0: chosen before each pass; 1 to 7: always this number of drafted tokens, for measurements
    most    maximum number of drafted tokens in a pass
    clock   returns seconds, to measure how long sources take
    counts  counts for reports; ``times``: measured times of passes; shared by all sequences of an engine (None: new)
    """

    def __init__(
        self,
        drafts: Sequence[Draft],
        depth: int = 0,
        most: int = MOST_DRAFTED,
        clock: Callable[[], float] = time.perf_counter,
        counts: Counts | None = None,
        times: PassTimes | None = None,
    ):
        self.drafts, self.depth, self.most, self._clock = tuple(drafts), depth, min(most, MOST_DRAFTED), clock
        self.window = max((getattr(draft, "window", 1) for draft in drafts), default=1)
        """Largest number of newest tokens whose residual streams a source can use."""
        self.counts = Counts() if counts is None else counts
        self.times = PassTimes() if times is None else times
        self.balance = CREDIT
        self._acceptance: dict[Kind, Acceptance] = {}
        self._seconds: dict[str, deque[float]] = {draft.name: deque(maxlen=11) for draft in drafts}
        self._answers = {draft.name: 1.0 for draft in drafts}
        self._grades: dict[str, int] = {}
        self._tried: _Tried | None = None
        self._passes = self._varied = self._plain = 0

    # --- called by the session

    def attach(self, cache: Any) -> None:
        """Give the sources that read the session's cache its new one."""
        for draft in self.drafts:
            if hasattr(draft, "attach"):
                draft.attach(cache)

    def propose(self, tokens: Sequence[int], streams: Any, room: int) -> list[int]:
        """Return the drafted tokens to evaluate after the pending one, at most ``room`` and ``most``; [] for plain
        decode.

        tokens, streams: as for ``Draft.propose``; the pending token is the last of ``tokens``.
        room: number of tokens that still fit in the context after the pending one.
        """
        self._tried = None
        limit = min(room, self.depth or self.most, self.most)
        if limit < 1 or not tokens:
            return []
        if self.depth:
            return self._fixed(tokens, streams, limit)
        if not self.times.level or self.times.surprise or self.times.most[2] - 1 > self.balance:
            return []
        return self._chosen(tokens, streams, limit)

    def passed(self, rows: int, seconds: float) -> None:
        """Take into account that a pass of ``rows`` tokens took ``seconds``; one row is plain decode."""
        self.times.add(rows, seconds)
        self._passes += 1
        if self._tried is not None and rows == self._tried.depth + 1:
            self._tried.passed = True
        elif rows == 1:
            self._plain = self._passes
            self.counts["passes", "", 0] += 1
            self.balance = max(self.balance, min(SAVED, self.balance + RATE))

    def settled(self, accepted: int) -> None:
        """Take into account that the first ``accepted`` tokens of the newest draft were accepted and the next was not.

        Do nothing if there was no draft, or its pass has not run.
        """
        tried, self._tried = self._tried, None
        if tried is None or not tried.passed:
            return
        accepted = min(accepted, tried.depth)
        for what, count in (("passes", 1), ("drafted", tried.depth), ("accepted", accepted)):
            self.counts[what, tried.kind[0], tried.depth] += count
        self._acceptance.setdefault(tried.kind, Acceptance()).add(accepted, tried.depth, tried.chances)
        # the estimated time, not the measured one: other work of the machine may have slowed this single pass
        gained = 1 + accepted - tried.cost - self.times.most[tried.depth + 1]
        self.balance = min(CAP, self.balance + gained)

    def truncate(self, pos: int) -> None:
        """Tell all sources that positions ``pos`` and later were removed, and forget the newest draft."""
        self._tried = None
        for draft in self.drafts:
            draft.truncate(pos)

    # --- choice

    def _fixed(self, tokens: Sequence[int], streams: Any, limit: int) -> list[int]:
        best: list[int] = []
        for draft in self.drafts:
            proposed = self._ask(draft, tokens, streams, limit)
            if len(proposed) > len(best):
                best, self._tried = proposed, _Tried((draft.name, self._grades[draft.name]), len(proposed), 0.0)
        return best

    def _chosen(self, tokens: Sequence[int], streams: Any, limit: int) -> list[int]:
        best: list[int] = []
        value, depth, plan, kind, spent = MARGIN, 0, None, None, 0.0
        chances: Sequence[float] = ()
        for draft in self.drafts:
            asked = self._worth_asking(draft, limit, value if depth else 0.0)
            proposed = self._ask(draft, tokens, streams, asked) if asked else []
            spent += self._making(draft, asked)
            if not proposed:
                continue
            expects = getattr(draft, "chances", ())[: len(proposed)]
            outlook = self._plan(draft, expects)
            at = outlook.best[len(proposed)]
            if plan is None or outlook.values[at] > value:
                best, depth, plan, value = proposed, at, outlook, max(MARGIN, outlook.values[at])
                kind, chances = (draft.name, self._grades[draft.name]), expects
        if plan is not None and kind is not None:
            depth = self._covered(plan, self._varied_depth(plan, depth, len(best)))
            if depth:
                self._tried = _Tried(kind, depth, spent, chances)
                return best[:depth]
        self.balance -= spent
        return []

    def _worth_asking(self, draft: Draft, limit: int, value: float) -> int:
        """Return how many tokens to ask the source ``draft`` for, at most ``limit``; 0 not to ask it.

        A source that costs next to nothing is asked for ``limit``; another one for its best depth, if that promises
        more than ``value``, the speed-up already found, and the source answers often enough. If no other source pays
        (``value`` 0), it is asked for one token as the balance allows. A ``whole`` source is asked for ``limit``, if at
        all.
        """
        if not self._seconds[draft.name]:
            return 1
        if self._making(draft, limit) <= CHEAP:
            return limit
        plan = self._plan(draft)
        often = self._answers[draft.name]
        depth = self._covered(plan, plan.best[limit])
        gain = often * (plan.tokens[depth] - plan.costs[depth]) - (1 - often) * self._making(draft, depth)
        if not (depth and plan.values[depth] > value and gain > 0):
            depth = int(not value and plan.losses[1] <= self.balance)
        return limit if depth and _whole(draft) else depth

    def _varied_depth(self, plan: _Plan, depth: int, longest: int) -> int:
        """Return ``depth``, the best one, or now and then another up to ``longest``, to notice if that has become
        better."""
        if not depth:
            return max(range(1, longest + 1), key=lambda other: plan.tokens[other] - plan.costs[other])
        if self._passes - self._plain >= LONGEST:
            return 0
        if self._passes - self._varied < SPACING:
            return depth
        self._varied = self._passes
        others = [other for other in (depth + 1, depth - 1, longest) if 0 < other <= longest]
        return others[self._passes // SPACING % len(others)] if others else depth

    def _covered(self, plan: _Plan, depth: int) -> int:
        """Return ``depth``, or the best lower one, such that the balance covers the loss if nothing is accepted."""
        while depth and plan.losses[depth] > self.balance:
            depth = plan.best[depth - 1]
        return depth

    def _making(self, draft: Draft, depth: int) -> float:
        """Return the time that the source ``draft`` takes to make ``depth`` tokens, in plain passes; 0.0 if not yet
        known."""
        known, level = self._seconds[draft.name], self.times.level
        return (min(depth, 1) if _whole(draft) else depth) * median_low(known) / level if known and level else 0.0

    def _ask(self, draft: Draft, tokens: Sequence[int], streams: Any, limit: int) -> list[int]:
        start, name = self._clock(), draft.name
        proposed = draft.propose(tokens, streams, limit)[:limit]
        self._seconds[name].append((self._clock() - start) / (1 if _whole(draft) else limit))
        self._answers[name] += ANSWERS * (bool(proposed) - self._answers[name])
        self._grades[name] = getattr(draft, "grade", 0)
        return proposed

    def _plan(self, draft: Draft, chances: Sequence[float] = ()) -> _Plan:
        depths, kind = range(MOST_DRAFTED + 1), (draft.name, self._grades.get(draft.name, 0))
        tokens = self._acceptance.setdefault(kind, Acceptance()).tokens(chances)
        made = [self._making(draft, depth) for depth in depths]
        costs = [self.times.ratios[depth + 1] + made[depth] for depth in depths]
        losses = [self.times.most[depth + 1] + made[depth] - 1 for depth in depths]
        values = [count / cost for count, cost in zip(tokens, costs, strict=True)]
        best = [0]
        for depth in depths[1:]:
            best.append(depth if values[depth] > max(values[best[-1]], MARGIN) else best[-1])
        return _Plan(tokens, costs, losses, values, best)


def _whole(draft: Draft) -> bool:
    return getattr(draft, "whole", False)
