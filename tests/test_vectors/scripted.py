"""A target that gives scripted answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ds4ref.errors import TargetError
from ds4ref.targets import Ability, Delta, Prompt, Request, Step, Target, Token, Usage


def step(chosen: bytes, *others: tuple[bytes, float], logprob: float = -0.1) -> Step:
    """Make a step that chose ``chosen``, with alternatives sorted by log probability."""
    top = sorted([(chosen, logprob), *others], key=lambda t: -t[1])
    return Step(Token(chosen, logprob), tuple(Token(raw, value) for raw, value in top))


class Scripted(Target):
    """A target whose answers are ``answers``, one after another; ``forced``: the steps that ``score`` returns."""

    kind = "scripted"
    name = "script"
    max_top_logprobs = 20

    def __init__(
        self, *answers: Sequence[Step] | Exception, forced: Sequence[Step] | None = None, numerics: str = "exact"
    ):
        self.answers, self.forced, self.asked = list(answers), forced, []
        self.abilities = frozenset({Ability.CHAT, Ability.TOP_LOGPROBS})
        if forced is not None:
            self.abilities |= {Ability.SCORE}

    def identity(self):
        return {"kind": self.kind, "name": self.name, "numerics": "exact"}

    def stream(self, request: Request) -> Iterator[Delta]:
        self.asked.append(request)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, BaseException):
            raise answer
        yield Delta("x", tuple(answer[: request.max_tokens]), 0.1, "length", Usage(3, len(answer)), "scripted-1")

    def score(self, prompt: Prompt, continuation, top_logprobs: int = 0):
        if self.forced is None:
            raise TargetError("cannot continue a given answer")
        return list(self.forced)
