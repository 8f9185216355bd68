"""How long an examination will take: said before its stages run, and kept to.

``COSTS`` has what each stage takes, counted by ``python -m benchmarks.doctor_time --costs``. With the target's pace
(``pace``) they become seconds. If all stages together exceed the total limit, later ones are left out until the rest
fits: ``run.STEPS`` is in order of value.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ds4ref.console.common import duration
from ds4ref.errors import Ds4Error

from .case import ExamContext
from .pace import PASS, PASS_SECONDS, Cost, Pace, Sample
from .repeat import prompt_of

FORMS = ("quick", "usual", "long")
COSTS: dict[str, tuple[Cost, Cost, Cost]] = {
    "identify": (Cost(40, 1500, 435, 5),) * 3,
    "tokenizer": (Cost(6, 230, 6), Cost(10, 420, 10), Cost(10, 420, 10)),
    "template": (Cost(5, 100, 5), Cost(6, 150, 37, 15), Cost(6, 150, 37, 15)),
    "numbers": (Cost(2, 240, 33, 20, True), Cost(6, 700, 99, 60, True), Cost(8, 900, 132, 80, True)),
    "determinism": (Cost(3, 474, 72), Cost(4, 640, 96), Cost(4, 640, 96)),
    "ways": (Cost(9, 1000, 56, 3, True), Cost(26, 3500, 84, 4, True), Cost(26, 3500, 84, 4, True)),
    "load": (Cost(165, 47000, 6600), Cost(330, 92000, 13500), Cost(330, 92000, 13500)),
    "api": (Cost(123, 21000, 8700),) * 3,
    "lengths": (Cost(22, 16_200, 380, 16), Cost(120, 230_000, 2000, 30), Cost(140, 800_000, 2300, 60)),
}
USUAL = Cost(40, 8000, 800)
"""Assumed of a stage that is not in ``COSTS``."""
SHORT, LONG = 40, 3000
"""Characters of the prompts that are timed."""
DECODED = 33
"""Tokens to generate in the timed answer."""
SLOWEST = 5.0
"""Largest factor by which our own engine is taken to be slower than where ``COSTS`` was measured: where time is short a
diagnosis ends early, and is not left out because of it."""
SPARE = 0.05
"""Share of the total limit that is not planned with."""


def cost_of(case: ExamContext, stage: str) -> Cost:
    """Return what a stage will take in the examination's form."""
    form = FORMS.index("quick" if case.quick else "long" if case.long else "usual")
    cost = COSTS[stage][form] if stage in COSTS else USUAL
    return Cost() if cost.logprobs and not case.logprobs else cost


@dataclass
class Plan:
    """The stages to run, with their estimated seconds, and those to be left out.

    total      limit of the whole examination in seconds; None: none
    spent      seconds that the examination took before this plan was made
    left_out   names of the stages for which there is no time, in order
    """

    pace: Pace
    costs: dict[str, Cost]
    total: float | None = None
    spent: float = 0.0
    left_out: list[str] = field(default_factory=list)
    begun: float = field(default_factory=time.monotonic)

    @classmethod
    def make(cls, case: ExamContext, pace: Pace, stages: Sequence[str], total: float | None, spent: float) -> Plan:
        """Plan ``stages``, in their order."""
        plan = cls(pace, {name: cost_of(case, name) for name in stages}, total, spent)
        if total is not None:
            room = total * (1 - SPARE) - spent
            for name in stages:
                if plan.seconds([name]) > room:
                    plan.left_out.append(name)
                else:
                    room -= plan.seconds([name])
        return plan

    def seconds(self, stages: Iterable[str]) -> float:
        """Return the estimated seconds of stages."""
        return sum(self.pace.seconds(self.costs[name]) for name in stages if name in self.costs)

    @property
    def runs(self) -> list[str]:
        """Return the names of the stages to run."""
        return [name for name in self.costs if name not in self.left_out]

    def after(self, stage: str) -> list[str]:
        """Return the stages to run after ``stage``."""
        return self.runs[self.runs.index(stage) + 1 :] if stage in self.runs else []

    def limit(self, stage: str, budget: float) -> float:
        """Return the seconds that a stage may take: ``budget``, or less to leave later stages their estimates."""
        own = min(self.seconds([stage]), self.remaining)
        return max(1.0, min(budget, max(own, self.remaining - self.seconds(self.after(stage)))))

    @property
    def remaining(self) -> float:
        """Return the seconds that remain of the total limit; infinity without one."""
        total = math.inf if self.total is None else self.total * (1 - SPARE)
        return total - self.spent - (time.monotonic() - self.begun)

    def leaves_out(self, stage: str) -> bool:
        """Return whether there is no time for a stage; one that was left out is taken in if earlier ones took less."""
        if stage in self.left_out:
            self.left_out.remove(stage)
            if self.seconds([stage, *self.after(stage)]) > self.remaining:
                self.left_out.append(stage)
        return stage in self.left_out

    def lines(self) -> list[str]:
        """Return the estimate in words, one line each."""
        costs = [self.costs[name] for name in self.runs]
        seconds, requests, tokens = (
            self.seconds(self.runs), sum(c.requests for c in costs), sum(c.tokens for c in costs),
        )  # fmt: skip
        end = time.strftime("%H:%M", time.localtime(time.time() + seconds))
        limit = f", limit {duration(self.total)}" if self.total is not None else ""
        lines = [f"{len(costs)} stages, about {requests} requests and {tokens:,} tokens at {self.pace}",
                 f"estimated time {duration(seconds)}, until {end}{limit}"]  # fmt: skip
        if self.left_out:
            names = ", ".join(f"{name} ({duration(self.seconds([name]))})" for name in self.left_out)
            lines.append(f"no time for {names}: --total S allows S seconds, --only runs chosen stages")
        return lines

    def to_json(self) -> dict[str, object]:
        """Return the JSON object for doctor.json."""
        return {"seconds": round(self.seconds(self.runs), 1), "total": self.total, "left_out": self.left_out,
                "request_s": self.pace.request, "token_s": self.pace.token, "prompt_token_s": self.pace.prompt,
                "stages": {name: round(self.seconds([name]), 1) for name in self.costs}}  # fmt: skip


def measure(case: ExamContext) -> Pace:
    """Measure the target's pace: with three requests if it is a server, else from those already sent.

    A server that counts no tokens is timed by the numbers asked for. Failed requests are left out.
    """
    meter, own = case.meter, _own(case)
    timed = [s for s in meter.samples if s.tokens]
    token = statistics.median(s.seconds / s.tokens for s in timed) if timed else 0.0
    if case.target.kind != "http" or not case.kinds:
        return Pace(0.0, 0.0, token, own)
    case.progress("measuring its pace")
    base, answer, long = (_probe(case, *probe) for probe in ((SHORT, 1, 31), (SHORT, DECODED, 32), (LONG, 1, 33)))
    request, interval = 0.0, float(getattr(getattr(case.target, "transport", None), "interval", 0.0))
    prompt = 0.0
    if base is not None:
        request = base.seconds
        if answer is not None and answer.tokens > base.tokens:
            token = max(0.0, (answer.seconds - base.seconds) / (answer.tokens - base.tokens))
        request = max(0.0, request - base.tokens * token)
        if long is not None:
            prompt = max(0.0, long.seconds - base.seconds) / max((long.prompt - base.prompt), LONG // 6)
    return Pace(max(request, interval), prompt, token, own)


def _probe(case: ExamContext, characters: int, tokens: int, seed: int) -> Sample | None:
    """Time one request; None if it failed."""
    prompt, first = prompt_of(case, characters, seed), case.meter.requests
    if prompt is None:
        return None
    answer, _ = case.try_ask(prompt, tokens, 0)
    return case.meter.samples[-1] if answer is not None and case.meter.requests > first else None


def _own(case: ExamContext) -> float:
    try:
        times = []
        for _ in range(4):  # the first one may compile or read the file
            start = time.perf_counter()
            case.engine.session(PASS + 1).extend(list(range(3, 3 + PASS)))
            times.append(time.perf_counter() - start)
        return min(SLOWEST, min(times) / PASS_SECONDS)
    except Ds4Error:
        return 1.0
