"""A target that answers by script, with tokens of its own, and can be made to fail."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ds4ref.errors import TargetError
from ds4ref.targets import Ability, Delta, Finish, Request, Step, Target, Token, Usage


@dataclass
class Answer:
    """What comes back: reasoning and text word by word, then ``finish``; or ``error`` after ``words`` of them."""

    text: str
    reasoning: str = ""
    finish: Finish = Finish.STOP
    error: str = ""
    after: int = 0
    wait: float = 0.0


class Scripted(Target):
    """Answers ``say(request)``. Every request is remembered in ``asked``."""

    kind, name = "scripted", "script"
    abilities = frozenset({Ability.CHAT, Ability.STREAM, Ability.SAMPLING, Ability.SEED})

    def __init__(self, say: Callable[[Request], Answer]):
        self.say = say
        self.asked: list[Request] = []

    def stream(self, request: Request) -> Iterator[Delta]:
        self.asked.append(request)
        answer = self.say(request)
        made = thought = 0
        cancel = request.cancel or (lambda: False)
        for reasoning, text in ((True, answer.reasoning), (False, answer.text)):
            for word in text.split(" ") if text else ():
                if answer.error and made >= answer.after:
                    raise TargetError(answer.error)
                if answer.wait:
                    time.sleep(answer.wait)
                if cancel():
                    yield Delta(finish=Finish.CANCELLED, usage=Usage(7, made, 0, thought))
                    return
                made += 1
                thought += reasoning
                word = word if text.startswith(word) and made in (1, thought + 1) else f" {word}"
                piece = Delta(steps=(Step(Token(word.encode())),), time=made / 1000)
                yield Delta("" if reasoning else word, piece.steps, piece.time, reasoning=word if reasoning else "")
        if answer.error:
            raise TargetError(answer.error)
        yield Delta(time=made / 1000, finish=answer.finish, usage=Usage(7, made, 0, thought), model="script-1")
