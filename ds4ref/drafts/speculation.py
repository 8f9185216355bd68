"""Which draft is tried, and how deep: whatever promises most tokens a second.

A pass of k + 1 rows commits 1 + a1 + a1 a2 + ... tokens, where a_i is the running acceptance of a draft's i-th token,
and takes the time of its rows, measured, and of making the draft, measured. The depth of most tokens a second is taken:
0, plain decode, where drafting does not pay.

Two accounts in units of a plain token's time bound what being wrong may cost. Every pass with drafts is entered into
the balance with what it gained or lost against plain decode; a depth is only tried if the balance covers the loss of
all its tokens. It begins with ``CREDIT`` and grows by ``RATE`` a plain pass, so where nothing is ever accepted n tokens
take at most as long as n (1 + RATE) + CREDIT of them. The allowance pays for tries of what seems worse, by which
changes are noticed, out of ``PROBES`` of the time.

    speculation = Speculation([Lookup()])
    draft = speculation.propose(tokens, streams, room)
    ...                                       the pass of 1 + len(draft) rows
    speculation.passed(1 + len(draft), seconds)
    speculation.settled(accepted)             if there was a draft
"""

from __future__ import annotations

import copy
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median_low
from typing import Any

from ..engine_options import MOST_DRAFTED
from . import Draft
from .estimates import Acceptance, PassTimes, Rate

CREDIT, SAVED, CAP = 1.0, 3.0, 16.0
"""The balance at first; up to which it grows by plain passes; at most, which is what a sudden end of all acceptance may
cost."""
RATE = 0.008
"""What a plain pass adds to the balance."""
PROBES, MOST_ALLOWED = 0.006, 1.5
"""What a plain pass's time adds to the allowance; its greatest amount."""
SPACING = 16
"""Passes between two tries of another depth while drafts pay."""
LONGEST = 64
"""Passes without a plain one after which one is tried."""
MARGIN = 1.01
"""Speed-up that a depth must promise."""
CHEAP = 0.003
"""Share of a plain pass up to which a draft is asked at every token, whether it pays or not."""
RENEWED = 32
"""Passes after which the best depths are computed anew though nothing was drafted."""

Kind = tuple[str, int]
"""Name of a draft, and its grade."""


@dataclass
class Count:
    """Passes with a draft of one kind and depth, and the tokens drafted, and accepted, in them."""

    passes: int = 0
    drafted: int = 0
    accepted: int = 0

    @property
    def tokens(self) -> int:
        """Return the tokens that these passes committed: the pending one and what was accepted."""
        return self.passes + self.accepted


@dataclass
class Counts:
    """What speculation did, for reports.

    plain    passes of one row
    drafts   by (name of the draft, depth), of settled passes
    """

    plain: int = 0
    drafts: dict[tuple[str, int], Count] = field(default_factory=dict)

    def copy(self) -> Counts:
        """Return these counts, to subtract later."""
        return copy.deepcopy(self)

    def __sub__(self, before: Counts) -> Counts:
        """Return what was counted since ``before``, a copy of these."""
        some = {}
        for key, now in self.drafts.items():
            then = before.drafts.get(key, Count())
            if now != then:
                some[key] = Count(*(getattr(now, part) - getattr(then, part) for part in vars(now)))
        return Counts(self.plain - before.plain, some)

    def total(self, name: str | None = None) -> Count:
        """Return the sum over all depths, and all drafts or the one of this ``name``."""
        chosen = [count for (of, _), count in self.drafts.items() if name in (None, of)]
        return Count(*(sum(getattr(count, part) for count in chosen) for part in ("passes", "drafted", "accepted")))

    def __str__(self) -> str:
        """Return one line for users."""
        total = self.total()
        return f"guessed: {total.accepted} of {total.drafted} tokens right, {self.tokens_a_pass:.2f} tokens a pass"

    @property
    def tokens_a_pass(self) -> float:
        """Return the committed tokens by pass, 1.0 before the first."""
        total = self.total()
        passes = self.plain + total.passes
        return (self.plain + total.tokens) / passes if passes else 1.0


@dataclass
class _Plan:
    """The outlook of one kind of draft, by depth from 0."""

    tokens: Sequence[float]
    costs: list[float]
    losses: list[float]
    """What it costs at most if nothing is accepted."""
    values: list[float]
    best: list[int]
    """The best depth of a draft of so many tokens."""


@dataclass
class _Tried:
    """The last proposal, until it is settled."""

    kind: Kind
    depth: int
    draft_cost: float
    value: float
    """Tokens a plain token's time that the best depth promised."""
    probe: bool
    passed: bool = False


class Speculation:
    """The choice of drafts of one sequence.

    drafts  in order of preference; of equal promise the first is taken
    depth   0: chosen as above; 1 to 7: always so deep, for measurements
    most    most drafted tokens of a pass
    clock   seconds, for the cost of drafts
    counts  what is counted into, and ``times`` of passes: those of all sequences of an engine (None: its own)
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
        """Number of the newest tokens whose streams some draft can use."""
        self.counts = counts or Counts()
        self.times = times or PassTimes()
        self.balance, self.allowance = CREDIT, 0.0
        self._acceptance: dict[Kind, Acceptance] = {}
        self._plans: dict[Kind, _Plan] = {}
        self._seconds: dict[str, deque[float]] = {draft.name: deque(maxlen=11) for draft in drafts}
        self._answers = {draft.name: Rate() for draft in drafts}
        self._grades: dict[str, int] = {}
        self._tried: _Tried | None = None
        self._passes = self._probed = self._turn = self._plain = 0

    # --- the session's side

    def propose(self, tokens: Sequence[int], streams: Any, room: int) -> list[int]:
        """Return the tokens to verify behind the pending one, at most ``room`` and ``most``; [] for plain decode.

        tokens, streams: as for ``Draft.propose``. room: tokens that still fit the context after the pending one.
        """
        self._tried = None
        limit = min(room, self.depth or self.most, self.most)
        if limit < 1 or not tokens:
            return []
        if self.depth:
            return self._fixed(tokens, streams, limit)
        if not self.times.level or self.times.most[2] - 1 > self.balance:
            return []
        return self._chosen(tokens, streams, limit)

    def passed(self, rows: int, seconds: float) -> None:
        """Enter a pass of ``rows`` rows that took ``seconds``; one row is plain decode."""
        self.times.add(rows, seconds)
        self._passes += 1
        if rows == 1:
            self._plain = self._passes
        if self._passes % RENEWED == 0:
            self._plans.clear()
        self.allowance = min(MOST_ALLOWED, self.allowance + PROBES * (1.0 if rows == 1 else self.times.ratios[rows]))
        if self._tried is not None and rows == self._tried.depth + 1:
            self._tried.passed = True
        elif rows == 1:
            self.counts.plain += 1
            self.balance = max(self.balance, min(SAVED, self.balance + RATE))

    def settled(self, accepted: int) -> None:
        """Enter that of the last proposal ``accepted`` tokens were committed before the first other token.

        Without a proposal, or before its pass, nothing is entered.
        """
        tried, self._tried = self._tried, None
        if tried is None or not tried.passed:
            return
        accepted = min(accepted, tried.depth)
        count = self.counts.drafts.setdefault((tried.kind[0], tried.depth), Count())
        count.passes += 1
        count.drafted += tried.depth
        count.accepted += accepted
        self._acceptance.setdefault(tried.kind, Acceptance()).add(accepted, tried.depth)
        self._plans.pop(tried.kind, None)
        if self.depth:
            return
        # as estimated: a single pass may have met a recording, or the machine's other work
        gained = 1 + accepted - tried.draft_cost
        self.balance = min(CAP, self.balance + gained - self.times.most[tried.depth + 1])
        if tried.probe:
            missed = self.times.ratios[tried.depth + 1] + tried.draft_cost - (1 + accepted) / tried.value
            self.allowance = min(MOST_ALLOWED, max(-MOST_ALLOWED, self.allowance - missed))

    def truncate(self, pos: int) -> None:
        """Tell all drafts that positions from ``pos`` on are gone; a proposal that is not settled is forgotten."""
        self._tried = None
        for draft in self.drafts:
            draft.truncate(pos)

    # --- choice

    def _fixed(self, tokens: Sequence[int], streams: Any, limit: int) -> list[int]:
        best: list[int] = []
        for draft in self.drafts:
            proposed = self._ask(draft, tokens, streams, limit)
            if len(proposed) > len(best):
                best = proposed
                self._tried = _Tried((draft.name, getattr(draft, "grade", 0)), len(best), 0.0, 1.0, False)
        return best

    def _chosen(self, tokens: Sequence[int], streams: Any, limit: int) -> list[int]:
        best: list[int] = []
        value, depth, plan, kind, spent, tried = MARGIN, 0, None, None, 0.0, 0.0
        for draft in self.drafts:
            asked, paid = self._worth_asking(draft, limit, value if depth else 0.0)
            if not asked:
                continue
            proposed = self._ask(draft, tokens, streams, asked)
            spent += asked * self._each(draft.name)
            tried += asked * self._each(draft.name) * paid
            if not proposed:
                continue
            this = draft.name, getattr(draft, "grade", 0)
            outlook = self._plan(this)
            at = outlook.best[len(proposed)]
            if plan is None or outlook.values[at] > value or (paid and not depth):
                best, depth, plan, kind, value = proposed, at, outlook, this, max(MARGIN, outlook.values[at])
        probe = False
        if plan is not None and kind is not None:
            depth, probe = self._probe(plan, depth, len(best))
            depth = self._covered(plan, depth)
            if depth:
                self._tried = _Tried(kind, depth, spent, plan.values[plan.best[len(best)]], probe)
                return best[:depth]
        self.balance -= spent
        self.allowance -= tried
        return []

    def _worth_asking(self, draft: Draft, limit: int, value: float) -> tuple[int, bool]:
        """Return for how many tokens to ask a draft, 0 for not at all, and whether the allowance paid for it.

        One that costs next to nothing is always asked for all; others for the depth that pays, if it pays often enough,
        and promises more than ``value``. Without one that pays (``value`` 0) they are tried now and then.
        """
        if not self._seconds[draft.name]:
            return 1, True
        each = self._each(draft.name)
        if each * limit <= CHEAP:
            return limit, False
        plan = self._plan((draft.name, self._grades[draft.name]))
        often = self._answers[draft.name].estimate(1.0)

        def gain(depth: int) -> float:
            return often * (plan.tokens[depth] - plan.costs[depth]) - (1 - often) * depth * each

        depth = self._covered(plan, plan.best[limit])
        if depth and plan.values[depth] > value and gain(depth) > 0:
            return depth, False
        if not value and -gain(1) <= self.allowance and self._covered(plan, 1):
            return 1, True
        return 0, False

    def _probe(self, plan: _Plan, depth: int, longest: int) -> tuple[int, bool]:
        """Return the depth to try instead of the best one and True, or the best one and False."""
        if not depth:
            least = max(range(1, longest + 1), key=lambda other: plan.tokens[other] - plan.costs[other])
            return (least, True) if self._may_probe(plan, least) else (0, False)
        if self._passes - self._probed < SPACING:
            return depth, False
        others = [other for other in (depth + 1, depth - 1, longest) if 0 < other <= longest and other != depth]
        if self._passes - self._plain >= LONGEST:
            others.append(0)
        if not others:
            return depth, False
        other = others[self._turn % len(others)]
        if not self._may_probe(plan, other, plan.values[depth]):
            return depth, False
        self._turn, self._probed = self._turn + 1, self._passes
        if not other:  # a plain pass is no proposal, so it is paid for at once
            self.allowance -= 1 - 1 / plan.values[depth]
        return other, True

    def _covered(self, plan: _Plan, depth: int) -> int:
        """Return ``depth``, or the best one below it whose loss, if nothing is accepted, the balance covers."""
        while depth and plan.losses[depth] > self.balance:
            depth = plan.best[depth - 1]
        return depth

    def _each(self, name: str) -> float:
        """Return what a token of a draft costs, in plain passes; 0.0 where that is not known."""
        known, level = self._seconds[name], self.times.level
        return median_low(known) / level if known and level else 0.0

    def _may_probe(self, plan: _Plan, depth: int, value: float = 1.0) -> bool:
        """Return whether the allowance pays for what ``depth`` is expected to cost against tokens at ``value``."""
        return plan.costs[depth] - plan.tokens[depth] / value <= self.allowance

    def _ask(self, draft: Draft, tokens: Sequence[int], streams: Any, limit: int) -> list[int]:
        start = self._clock()
        proposed = draft.propose(tokens, streams, limit)[:limit]
        self._seconds[draft.name].append((self._clock() - start) / limit)
        self._answers[draft.name].fade()
        self._answers[draft.name].add(bool(proposed))
        self._grades[draft.name] = getattr(draft, "grade", 0)
        return proposed

    def _plan(self, kind: Kind) -> _Plan:
        plan = self._plans.get(kind)
        if plan is None:
            plan = self._plans[kind] = self._planned(kind)
        return plan

    def _planned(self, kind: Kind) -> _Plan:
        each = self._each(kind[0])
        tokens = self._acceptance.setdefault(kind, Acceptance()).tokens()
        costs = [self.times.ratios[depth + 1] + depth * each for depth in range(MOST_DRAFTED + 1)]
        losses = [self.times.most[depth + 1] + depth * each - 1 for depth in range(MOST_DRAFTED + 1)]
        values = [1.0] + [count / cost for count, cost in zip(tokens[1:], costs[1:], strict=True)]
        best, at = [], 0
        for depth, value in enumerate(values):
            if value > max(values[at], MARGIN):
                at = depth
            best.append(at)
        return _Plan(tokens, costs, losses, values, best)
