"""Which draft is tried, and how deep: whatever promises most tokens a second.

A pass of k + 1 rows commits 1 + a1 + a1 a2 + ... tokens, where a_i is the running acceptance of a draft's i-th token,
and takes the time of its rows, measured, and of making the draft, measured. The depth of most tokens a second is taken:
0, plain decode, where drafting does not pay.

A balance in units of a plain token's time bounds what being wrong may cost. Every pass with drafts is entered with what
it gained or lost against plain decode; a depth is only tried if the balance covers the loss of all its tokens. It
begins with ``CREDIT`` and grows by ``RATE`` a plain pass, so where nothing is ever accepted n tokens take at most as
long as n (1 + RATE) + CREDIT of them. Where no depth promises anything, what it holds is spent on trying the least dear
one.

    speculation = Speculation([Lookup()])
    draft = speculation.propose(tokens, streams, room)
    ...                                       the pass of 1 + len(draft) rows
    speculation.passed(1 + len(draft), seconds)
    speculation.settled(accepted)             if there was a draft
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
"""The balance at first; up to which it grows by plain passes; at most, which is what a sudden end of all acceptance may
cost."""
RATE = 0.008
"""What a plain pass adds to the balance."""
SPACING = 16
"""Passes between two tries of another depth while drafts pay."""
LONGEST = 64
"""Passes without a plain one after which one is tried."""
MARGIN = 1.01
"""Speed-up that a depth must promise."""
CHEAP = 0.003
"""Share of a plain pass up to which a draft is asked at every token, whether it pays or not."""
ANSWERS = 1 / 8
"""Weight of the newest call in the share of calls that a draft answers."""

Kind = tuple[str, int]
"""Name of a draft, and its grade."""


class Counts(Counter[tuple[str, str, int]]):
    """What speculation did, for reports, by (what, name of the draft, depth).

    "passes", with "" and 0 for plain ones; "drafted" and "accepted" tokens of settled passes.
    """

    def of(self, what: str) -> int:
        """Return the sum over all drafts and depths."""
        return sum(count for (kind, _, _), count in self.items() if kind == what)

    @property
    def tokens_a_pass(self) -> float:
        """Return the committed tokens by pass, the pending one and those accepted; 1.0 before the first."""
        return 1 + self.of("accepted") / max(1, self.of("passes"))

    def __str__(self) -> str:
        """Return one line for users."""
        right = f"{self.of('accepted')} of {self.of('drafted')} tokens right"
        return f"guessed: {right}, {self.tokens_a_pass:.2f} tokens a pass"


@dataclass
class _Plan:
    """The outlook of one kind of draft, by depth from 0."""

    tokens: list[float]
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
    cost: float
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
        self.counts = Counts() if counts is None else counts
        self.times = PassTimes() if times is None else times
        self.balance = CREDIT
        self._acceptance: dict[Kind, Acceptance] = {}
        self._seconds: dict[str, deque[float]] = {draft.name: deque(maxlen=11) for draft in drafts}
        self._answers = {draft.name: 1.0 for draft in drafts}
        self._grades: dict[str, int] = {}
        self._tried: _Tried | None = None
        self._passes = self._varied = self._plain = 0

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
        if not self.times.level or self.times.surprise or self.times.most[2] - 1 > self.balance:
            return []
        return self._chosen(tokens, streams, limit)

    def passed(self, rows: int, seconds: float) -> None:
        """Enter a pass of ``rows`` rows that took ``seconds``; one row is plain decode."""
        self.times.add(rows, seconds)
        self._passes += 1
        if self._tried is not None and rows == self._tried.depth + 1:
            self._tried.passed = True
        elif rows == 1:
            self._plain = self._passes
            self.counts["passes", "", 0] += 1
            self.balance = max(self.balance, min(SAVED, self.balance + RATE))

    def settled(self, accepted: int) -> None:
        """Enter that of the last proposal ``accepted`` tokens were committed before the first other token.

        Without a proposal, or before its pass, nothing is entered.
        """
        tried, self._tried = self._tried, None
        if tried is None or not tried.passed:
            return
        accepted = min(accepted, tried.depth)
        for what, count in (("passes", 1), ("drafted", tried.depth), ("accepted", accepted)):
            self.counts[what, tried.kind[0], tried.depth] += count
        self._acceptance.setdefault(tried.kind, Acceptance()).add(accepted, tried.depth)
        # as estimated: a single pass may have met the machine's other work
        gained = 1 + accepted - tried.cost - self.times.most[tried.depth + 1]
        self.balance = min(CAP, self.balance + gained)

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
                best, self._tried = proposed, _Tried((draft.name, self._grades[draft.name]), len(proposed), 0.0)
        return best

    def _chosen(self, tokens: Sequence[int], streams: Any, limit: int) -> list[int]:
        best: list[int] = []
        value, depth, plan, kind, spent = MARGIN, 0, None, None, 0.0
        for draft in self.drafts:
            asked = self._worth_asking(draft, limit, value if depth else 0.0)
            proposed = self._ask(draft, tokens, streams, asked) if asked else []
            spent += asked * self._each(draft.name)
            if not proposed:
                continue
            this = draft.name, self._grades[draft.name]
            outlook = self._plan(this)
            at = outlook.best[len(proposed)]
            if plan is None or outlook.values[at] > value:
                best, depth, plan, kind, value = proposed, at, outlook, this, max(MARGIN, outlook.values[at])
        if plan is not None and kind is not None:
            depth = self._covered(plan, self._varied_depth(plan, depth, len(best)))
            if depth:
                self._tried = _Tried(kind, depth, spent)
                return best[:depth]
        self.balance -= spent
        return []

    def _worth_asking(self, draft: Draft, limit: int, value: float) -> int:
        """Return for how many tokens to ask a draft, 0 for not at all.

        One that costs next to nothing is always asked for all; others for the depth that pays, if it pays often enough,
        and promises more than ``value``. Without one that pays (``value`` 0) they are tried as the balance allows.
        """
        if not self._seconds[draft.name]:
            return 1
        each = self._each(draft.name)
        if each * limit <= CHEAP:
            return limit
        plan = self._plan((draft.name, self._grades[draft.name]))
        often = self._answers[draft.name]
        depth = self._covered(plan, plan.best[limit])
        gain = often * (plan.tokens[depth] - plan.costs[depth]) - (1 - often) * depth * each
        if depth and plan.values[depth] > value and gain > 0:
            return depth
        return int(not value and plan.losses[1] <= self.balance)

    def _varied_depth(self, plan: _Plan, depth: int, longest: int) -> int:
        """Return the best depth, or now and then another one: what is never tried is never known to have changed."""
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
        """Return ``depth``, or the best one below it whose loss, if nothing is accepted, the balance covers."""
        while depth and plan.losses[depth] > self.balance:
            depth = plan.best[depth - 1]
        return depth

    def _each(self, name: str) -> float:
        """Return what a token of a draft costs, in plain passes; 0.0 where that is not known."""
        known, level = self._seconds[name], self.times.level
        return median_low(known) / level if known and level else 0.0

    def _ask(self, draft: Draft, tokens: Sequence[int], streams: Any, limit: int) -> list[int]:
        start, name = self._clock(), draft.name
        proposed = draft.propose(tokens, streams, limit)[:limit]
        self._seconds[name].append((self._clock() - start) / limit)
        self._answers[name] += ANSWERS * (bool(proposed) - self._answers[name])
        self._grades[name] = getattr(draft, "grade", 0)
        return proposed

    def _plan(self, kind: Kind) -> _Plan:
        each, depths = self._each(kind[0]), range(MOST_DRAFTED + 1)
        tokens = self._acceptance.setdefault(kind, Acceptance()).tokens()
        costs = [self.times.ratios[depth + 1] + depth * each for depth in depths]
        losses = [self.times.most[depth + 1] + depth * each - 1 for depth in depths]
        values = [count / cost for count, cost in zip(tokens, costs, strict=True)]
        best = [0]
        for depth in depths[1:]:
            best.append(depth if values[depth] > max(values[best[-1]], MARGIN) else best[-1])
        return _Plan(tokens, costs, losses, values, best)
