"""Styled texts about one sample: its question, its answer, its grade."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from .. import prompt as prompts
from ..log import Sample
from ..packs import LETTERS, Question
from ..plan import Key, Settings
from ..view import heading, sections
from .board import Board, State
from .text import Kind, Piece, split_thinking

KINDS: dict[State, Kind] = {
    State.PASS: "good", State.FAIL: "bad", State.AMBIG: "unclear", State.MISS: "unclear", State.ERR: "broken",
    State.STOP: "unclear",
}  # fmt: skip


def answer(parts: Iterable[tuple[bool, str]]) -> Iterator[Piece]:
    """Yield the styled text of an answer, finished or so far."""
    for is_thought, text in parts:
        yield Piece("thought" if is_thought else "plain", text)


def graded(sample: Sample, state: State) -> Iterator[Piece]:
    """Yield the styled text of a finished answer and its grade."""
    yield from answer(split_thinking(sample.reasoning, sample.output))
    grade, *figures = heading(sample).split("\n")
    yield Piece(KINDS[state], f"\n{state.value}  {grade}")
    yield Piece("quiet", "\n".join(figures))


def unasked(question: Question) -> Iterator[Piece]:
    """Yield the styled text of a question that was not asked yet."""
    choices = [f"{letter}. {choice}" for letter, choice in zip(LETTERS, question.choices, strict=False)]
    yield Piece("plain", "\n\n".join([question.question, "\n".join(choices)] if choices else [question.question]))
    yield Piece("quiet", "\nNot asked yet. Enter asks it now.")


def details(board: Board, key: Key, settings: Settings) -> Iterator[Piece]:
    """Yield all there is about a sample, as ``ds4-eval view LOG QUESTION`` prints it."""
    question, live = board.questions[board.number[key.question]], board.live.get(key)
    sample = None if live else board.samples.get(key)
    order = prompts.shuffled(question, settings.seed, key.epoch) if settings.shuffle else ()
    asked = prompts.user_text(question, order)
    if live is not None:
        yield Piece("label", "ANSWER SO FAR")
        yield from answer(live.parts())
        yield Piece("plain", "")
    elif sample is None:
        yield Piece("quiet", "not asked yet")
    for title, text in sections(question, [sample] if sample else [], settings.system, asked):
        if title:
            yield Piece("label", "\n" + title.upper())
        yield Piece("thought" if title == "reasoning" else "plain", text)
