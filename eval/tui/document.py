"""What a pane says about one sample: its question, its answer, what that is worth."""

from __future__ import annotations

from collections.abc import Iterator

from ds4ref.cli.common import duration

from .. import prompt as prompts
from ..log import Grade, Sample
from ..packs import LETTERS, Question
from ..plan import Key, Settings
from ..scores import rate_of
from .board import Board, State
from .text import Transcript, clean
from .textview import Kind, Piece

COLOURS: dict[State, Kind] = {
    State.PASS: "good", State.FAIL: "bad", State.AMBIG: "unclear", State.MISS: "unclear", State.ERR: "broken",
    State.STOP: "unclear",
}  # fmt: skip


def pieces(transcript: Transcript, start: int = 0) -> Iterator[Piece]:
    """An answer from its piece number ``start`` on."""
    for thinking, text in transcript.pieces[start:]:
        yield Piece("thought" if thinking else "plain", text)


def answered(sample: Sample, state: State) -> Iterator[Piece]:
    """An answer that is over, and its verdict."""
    yield from pieces(Transcript.of(sample.reasoning, sample.output))
    yield Piece("quiet", "\n")
    yield from verdict(sample, state)


def verdict(sample: Sample, state: State) -> Iterator[Piece]:
    """What became of a sample, in a word and a sentence."""
    yield Piece(COLOURS[state], f"{state.value}  {_outcome(sample)}")
    said = _cost(sample)
    if said:
        yield Piece("quiet", said)


def waiting(question: Question) -> Iterator[Piece]:
    """A question that was not asked yet."""
    yield Piece("plain", clean(question.question) + "\n")
    for letter, choice in zip(LETTERS, question.choices, strict=False):
        yield Piece("plain", f"\n{letter}. {clean(choice)}")
    yield Piece("quiet", "\nNot asked yet. Enter asks it now.")


def details(board: Board, key: Key, settings: Settings, target: str) -> Iterator[Piece]:
    """All there is about a sample."""
    question, state = board.questions[board.number[key.question]], board.state(key)
    live = board.live.get(key)
    sample = None if live else board.samples.get(key)
    order = sample.order if sample else prompts.shuffled(question, settings.seed, key.epoch) if settings.shuffle else ()
    yield Piece("label", "QUESTION")
    yield Piece("plain", _facts(board, question, key))
    if sample is None:
        yield Piece("quiet", state.value + ("" if live else "  not asked yet"))
    else:
        yield Piece(COLOURS[state], f"{state.value}  {_outcome(sample)}")
    if sample is not None and sample.ds4 is not None:
        yield Piece("quiet", f"ds4's own grader: {_grade(sample.ds4)}")
    yield from _section("prompt", (sample.prompt if sample else "") or prompts.user_text(question, order))
    if live:
        yield Piece("label", "\nANSWER SO FAR")
        yield from pieces(live.transcript)
    if sample is not None:
        yield from _answer(sample)
    yield from _section("expected", sample.expected if sample else prompts.key(question, order))
    if question.explanation:
        yield from _section("explanation", question.explanation)
    mistakes = [
        f"{letter}. {question.distractors[i]}"
        for letter, i in zip(LETTERS, order or range(len(question.distractors)), strict=False)
        if question.distractors and question.distractors[i]
    ]
    if mistakes:
        yield from _section("mistakes behind the other choices", "\n".join(mistakes))
    if sample is not None:
        yield from _section("run", "\n".join(_measured(sample, target)))
    if settings.system:
        yield from _section("system text", settings.system)


def _facts(board: Board, question: Question, key: Key) -> str:
    number = f"{board.number[question.id] + 1} of {len(board.questions)}"
    epoch = f", epoch {key.epoch} of {board.epochs}" if board.epochs > 1 else ""
    about = [question.source, question.domain, question.difficulty, question.kind, question.licence]
    return clean(f"{question.id} ({number}{epoch})\n{' · '.join(part for part in about if part)}")


def _answer(sample: Sample) -> Iterator[Piece]:
    thought = list(Transcript.of(sample.reasoning, sample.output))
    for wanted, title in ((True, "reasoning"), (False, "output")):
        text = "".join(text for thinking, text in thought if thinking is wanted)
        if text or not wanted:
            yield Piece("label", f"\n{title.upper()}")
            yield Piece("thought" if wanted else "plain", text or "(empty)")


def _section(title: str, text: str) -> Iterator[Piece]:
    yield Piece("label", f"\n{title.upper()}")
    yield Piece("plain", clean(text))


def _outcome(sample: Sample) -> str:
    if sample.status == "failed":
        return clean(sample.error) or "the target failed"
    if sample.status == "stopped" or sample.grade is None:
        return "stopped by the user"
    return f"expected {clean(sample.expected)}, {_grade(sample.grade)}"


def _grade(grade: Grade) -> str:
    given = f"given {clean(grade.given)}" if grade.given else "nothing given"
    return f"{given}: {grade.outcome}" + (f" ({clean(grade.why)})" if grade.why else "")


def _cost(sample: Sample) -> str:
    parts = [f"{sample.tokens} token{'s' * (sample.tokens != 1)}"] if sample.tokens is not None else []
    if sample.seconds:
        parts.append(duration(sample.seconds) if sample.seconds >= 9.95 else f"{sample.seconds:.1f} s")
        rate = rate_of([sample])
        parts.append("" if rate is None else f"{rate:.1f} tok/s")
    if sample.finish == "length":
        parts.append("cut off by the limit")
    if sample.status == "done":
        parts.append({"soft": "thinking closed at the soft limit", "hard": "thinking closed at the hard limit",
                      "open": "still thinking at the end"}.get(sample.close, ""))  # fmt: skip
    return ", ".join(part for part in parts if part)


def _measured(sample: Sample, target: str) -> Iterator[str]:
    facts: dict[str, object] = {
        "target": clean(sample.target or target), "model": clean(sample.model), "started": sample.started,
        "prompt tokens": sample.prompt_tokens, "of them cached": sample.cached_tokens, "tokens": sample.tokens,
        "of them thought": sample.reasoning_tokens,
        "to the first token": None if sample.ttft is None else f"{sample.ttft:.2f} s",
        "in all": f"{sample.seconds:.2f} s", "finish": sample.finish, "thinking closed": sample.close,
        "choices as asked": " ".join(LETTERS[i] for i in sample.order), "error": clean(sample.error),
    }  # fmt: skip
    wide = max(map(len, facts))
    for name, value in facts.items():
        if value not in (None, ""):
            yield f"{name:{wide}}  {value}"
