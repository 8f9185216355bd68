"""What all sources of answers have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Answer:
    """An answer in another program's log.

    where      its place in the file, for messages
    id, epoch  the program's own name of the question, and which time it was asked
    asked      texts one of which must be the question's own, or its whole prompt
    prompt     what was sent
    output     the answer; with its thinking, if the program does not keep it apart
    reasoning  thinking that is kept apart
    finish     why it ended: "stop", "length", ..., "" if the program does not say
    close      how thinking ended, as in ``log.Sample``
    error      why there is no answer, "" if there is one
    refused    why the record cannot be judged, "" if it can
    theirs     the program's own scores from 0 to 1, by their names
    """

    where: str
    id: str
    epoch: int = 1
    asked: tuple[str, ...] = ()
    prompt: str = ""
    output: str = ""
    reasoning: str = ""
    finish: str = ""
    close: str = ""
    error: str = ""
    refused: str = ""
    theirs: Mapping[str, float] = field(default_factory=dict)
    model: str = ""
    started: str = ""
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    tokens: int | None = None
    reasoning_tokens: int | None = None
    seconds: float = 0.0


@dataclass(frozen=True)
class Source:
    """A file of answers.

    program  the program that made it, with its version if the file has it
    field    the field that is taken as the answer
    answers  what is in it, in its order
    notes    what the file does not tell, or lacks
    """

    program: str
    field: str
    answers: Sequence[Answer]
    notes: tuple[str, ...] = ()
