"""The screen without a terminal, driven by textual's pilot, around a run whose target waits for the test."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

from rich.cells import cell_len
from textual.pilot import Pilot

from ds4ref.eval.log import Sample
from ds4ref.eval.packs import Question
from ds4ref.eval.plan import Key, Settings, keys
from ds4ref.eval.runner import Runner
from ds4ref.eval.tui.app import EvalApp
from ds4ref.targets import Ability, Delta, Request

from .scripted import Scripted, Step, choice, integer, log_of

SETTINGS = Settings(tokens=2000)


class Play:
    """A script in three acts for every question: prefill, thinking, answer. Each waits for its gate, open at first.

    ``answers`` by question id, else the right one; an Exception is raised instead."""

    def __init__(self, questions: Sequence[Question]):
        self.questions = questions
        self.gates = {act: threading.Event() for act in ("prefill", "thinking", "answer")}
        for gate in self.gates.values():
            gate.set()
        self.thoughts = "hm hm\n"
        self.answers: dict[str, str | Exception] = {}

    def shut(self, act: str) -> threading.Event:
        """Close a gate; that gate."""
        self.gates[act].clear()
        return self.gates[act]

    def __call__(self, request: Request) -> Iterator[Step]:
        user = request.prompt.user or ""
        question = next(q for q in self.questions if user.startswith(q.question + "\n"))
        yield self.gates["prefill"]
        yield Delta(reasoning=self.thoughts)
        yield self.gates["thinking"]
        yield Delta("So it is.\n")
        yield self.gates["answer"]
        said = self.answers.get(question.id, f"Answer: {question.answer}")
        yield said if isinstance(said, Exception) else Delta(said)


class Stage:
    """An app with its log and its play."""

    def __init__(
        self,
        folder: Path,
        questions: Sequence[Question] | None = None,
        *,
        epochs: int = 1,
        at_once: int = 1,
        settings: Settings = SETTINGS,
        earlier: Sequence[Sample] = (),
        play: Callable[[Request], Iterator[Step]] | None = None,
        abilities: Sequence[Ability] = (),
        **options: Any,
    ):
        self.questions = questions or [integer(7), choice(1), integer(9), choice(2, "A")]
        self.play = Play(self.questions)
        self.target = Scripted(play or self.play, *abilities)
        self.log = log_of(folder / "log.jsonl", self.questions, settings, epochs)
        for sample in earlier:
            self.log.add(sample)
        todo = [key for key in keys(self.questions, epochs) if key not in self.log.samples]

        def make(listen: Any) -> Runner:
            return Runner(self.target, self.log, todo, settings=settings, questions=self.questions, listen=listen,
                          at_once=at_once)  # fmt: skip

        options = {"title": "a play", "pause_s": 0.0, **options}
        self.app = EvalApp(make, self.questions, epochs, self.log, **options)
        self.board, self.work = self.app.board, self.app.work

    # --- looking

    def rows(self) -> list[str]:
        """Cells of the table, row by row."""
        table = self.app.table
        return [" ".join(cell.plain for cell in table.get_row_at(i)) for i in range(table.row_count)]

    def lines(self) -> list[str]:
        """The whole screen as it is drawn."""
        return [strip.text for strip in self.app.screen._compositor.render_strips()]

    def text(self) -> str:
        """Those, together."""
        return "\n".join(self.lines())

    def state(self, i: int, epoch: int = 1) -> str:
        """Of a sample, as the screen knows it."""
        return self.board.state(Key(epoch, self.questions[i].id)).value

    def states(self) -> list[str]:
        """Of the first epoch of all."""
        return [self.state(i) for i in range(len(self.questions))]

    def stored(self) -> dict[str, str]:
        """What the log holds: status by question."""
        return {key.question: sample.status for key, sample in self.log.samples.items()}


async def settled(*_: float) -> None:
    """Messages that are under way have arrived. Textual's own way is to wait until the process does nothing, which
    takes a second per key where other threads work or the machine is busy."""
    for _ in range(40):
        await asyncio.sleep(0)


async def until(pilot: Pilot[Any], true: Callable[[], Any]) -> None:
    """Until it is true: the run is another thread. Fails after a long time."""
    for _ in range(6000):
        if true():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it never became true")


async def sees(stage: Stage, pilot: Pilot[Any], *words: str) -> None:
    """Until the screen shows all the words, one after the other."""
    for word in words:
        await until(pilot, lambda word=word: word in stage.text())


def staged(
    size: tuple[int, int] = (100, 30), **options: Any
) -> Callable[[Callable[[Stage, Pilot[Any]], Awaitable[None]]], Callable[[Path], None]]:
    """A test that gets a stage whose screen is up. ``before``: what to do with the stage until then."""
    before = options.pop("before", lambda stage: None)

    def decorate(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
        def run(tmp_path: Path) -> None:
            stage = Stage(tmp_path, **options)
            before(stage)

            async def play() -> None:
                try:
                    with patch("textual.app.wait_for_idle", settled), patch("textual.pilot.wait_for_idle", settled):
                        async with stage.app.run_test(size=size) as pilot:
                            await pilot.pause()
                            await test(stage, pilot)
                finally:
                    stage.work.leave()
                    stage.log.close()

            asyncio.run(play())

        run.__name__, run.__doc__ = test.__name__, test.__doc__
        return run

    return decorate


async def resized(stage: Stage, pilot: Pilot[Any], *size: int) -> None:
    """The terminal has another size, and the screen heard of it."""
    await pilot.resize_terminal(*size)
    await until(pilot, lambda: stage.app.screen._compositor.size == size and stage.app.size == size)
    await pilot.pause()


def check_widths(stage: Stage) -> None:
    """Every line of the screen is exactly as wide as the screen, and holds nothing that moves a cursor."""
    columns, rows = stage.app.size
    lines = stage.lines()
    assert len(lines) == rows
    for text in lines:
        assert cell_len(text) == columns, text
        assert not [c for c in text if ord(c) < 32 or 127 <= ord(c) < 160], text
