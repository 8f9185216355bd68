"""The right half: which question is selected, how its answer gets on, and the answer itself."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.geometry import Region
from textual.strip import Strip

from ..log import Sample
from ..plan import Key, Settings
from . import document
from .board import Board, Live, State
from .draw import Drawn, Part, clock, count, line, speed
from .text import cut, one_line, wrap
from .textview import TextView

SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
GAUGE = 10
"""Cells of the gauge that shows how much of its tokens an answer has used."""


class About(Drawn):
    """Above an answer: the question in brief, and in a line what goes on."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "about--head", "about--quiet", "about--preview", "about--rule", "about--rest",
        *(f"state--{state.lower()}" for state in State),
    }  # fmt: skip

    def __init__(self, board: Board, settings: Settings, steered: bool, id: str | None = None):
        super().__init__(id=id)
        self.board = board
        self.limits = {
            State.THINK: settings.tokens - (settings.hard_limit if steered else 0),
            State.ANS: settings.tokens,
        }
        self.key: Key | None = None
        self.most = 3  # lines of the question
        self.turn = 0  # of the spinner
        self._preview: list[str] = []
        self._about: tuple[object, ...] = ()
        self._wrapped: tuple[object, ...] = ()

    def renew(self, key: Key, beat: int) -> None:
        """Draw again if anything in it is another. ``beat`` turns the spinner."""
        live, sample = self.board.live.get(key), self.board.samples.get(key)
        self.key = key
        self._wrap(live is not None or sample is not None)
        if (key, live, sample) != self._about:
            self._about = key, live, sample
            self.refresh()
        elif live is not None and beat != self.turn:
            self.refresh(Region(0, 1, self.size.width, 1))
        self.turn = beat

    def _wrap(self, asked: bool) -> None:
        assert self.key is not None
        wanted = (self.key.question, self.size.width, self.most if asked else 0)
        if wanted == self._wrapped or not self.size.width:
            return
        self._wrapped = wanted
        question = self.board.questions[self.board.number[self.key.question]]
        room, most = self.size.width, wanted[2]
        rows = wrap(one_line(question.question[: (most + 1) * room * 2]), room)
        self._preview = rows[:most]
        if most and len(rows) > most:
            self._preview[-1] = cut(rows[most - 1] + " " * room, room)
        height = 3 + len(self._preview)
        if self.styles.height is None or self.styles.height.value != height:
            self.styles.height = height
        self.refresh()

    def render_line(self, y: int) -> Strip:
        """Line ``y``."""
        cells, base = self.size.width, self.base
        if self.key is None:
            return self.blank()
        if y == 0:
            return line(cells, base, *self._head(self.key))
        if y == 1:
            return line(cells, base, *self._status(self.key))
        if y == self.size.height - 1:
            return line(cells, base, [Part("─" * cells, self.named("about--rule"))])
        rows = self._preview
        return line(cells, base, [Part(rows[y - 2] if y - 2 < len(rows) else "", self.named("about--preview"))])

    def _head(self, key: Key) -> tuple[list[Part], list[Part]]:
        i = self.board.number[key.question]
        q, quiet = self.board.questions[i], self.named("about--quiet")
        left = [Part(f"{i + 1}/{len(self.board.questions)} {one_line(q.source)}", self.named("about--head"))]
        if self.board.epochs > 1:
            left.append(Part(f" epoch {key.epoch}/{self.board.epochs}", self.named("about--head")))
        left += [Part(f" · {one_line(text)}", quiet, rank) for rank, text in ((3, q.domain), (4, q.difficulty)) if text]
        return left, [Part(f" {one_line(q.id)} ", quiet, 5)]

    def _status(self, key: Key) -> tuple[list[Part], list[Part]]:
        state, quiet = self.board.state(key), self.named("about--quiet")
        word = Part(state.value, self.named(f"state--{state.lower()}"))
        live, sample = self.board.live.get(key), self.board.samples.get(key)
        if live is not None:
            return self._under_way(word, live)
        if sample is None:
            return [word, Part("  not asked yet", quiet)], []
        return [word, *self._over(sample)], [Part(f" {clock(sample.seconds)} ", quiet, 1)]

    def _under_way(self, word: Part, live: Live) -> tuple[list[Part], list[Part]]:
        quiet, pace = self.named("about--quiet"), self.board.pace
        spin = SPINNER[self.turn % len(SPINNER)] if self.app.animation_level != "none" else "»"
        left = [Part(f"{spin} ", word.style), word]
        limit = self.limits.get(live.state)
        if limit:
            full = round(GAUGE * min(1.0, live.tokens / limit))
            left += [
                Part("  " + "━" * full, word.style, 4),
                Part("─" * (GAUGE - full), self.named("about--rest"), 4),
                Part(f"  {count(live.tokens)}/{count(limit)}", self.named("about--head")),
                Part(" tokens", quiet, 5),
            ]
        right = [Part(f" {clock(pace.seconds - live.begun)} ", quiet, 2)]
        if limit and len(self.board.live) == 1:
            right.insert(0, Part(f" {speed(pace.speed)} tok/s", quiet, 3))
        return left, right

    def _over(self, sample: Sample) -> list[Part]:
        quiet = self.named("about--quiet")
        if sample.grade is None:
            why = one_line(sample.error) if sample.status == "failed" else "stopped; Enter asks it again"
            return [Part(f"  {why}", quiet)]
        given = one_line(sample.grade.given) or "nothing"
        parts = [Part(f"  given {given}, expected {one_line(sample.expected)}", self.named("about--head"))]
        if sample.tokens is not None:
            parts.append(Part(f"  {count(sample.tokens)} tokens", quiet, 4))
        return parts


class Pane(Vertical):
    """About and answer of one sample, kept up to date by ``renew``."""

    def __init__(self, board: Board, settings: Settings, steered: bool, id: str | None = None):
        super().__init__(id=id)
        self.board = board
        self.about = About(board, settings, steered, id="about")
        self.view = TextView(id="answer")
        self._of: tuple[object, ...] = ()
        self._shown = 0

    def compose(self) -> ComposeResult:
        """The two of them."""
        yield self.about
        with Horizontal():
            yield self.view
            yield self.view.bar

    def renew(self, key: Key, beat: int) -> None:
        """Show sample ``key`` as it is now."""
        self.about.renew(key, beat)
        live, sample = self.board.live.get(key), self.board.samples.get(key)
        of = (key, live, live and live.transcript.turns, None if live else sample)
        if of == self._of:
            if live is not None and len(live.transcript.pieces) > self._shown:
                self.view.write(document.pieces(live.transcript, self._shown))
                self._shown = len(live.transcript.pieces)
            return
        same = bool(self._of) and self._of[0] == key
        self._of = of
        if live is not None:
            self._shown = len(live.transcript.pieces)
            self.view.show(document.pieces(live.transcript), at_end=True)
        elif sample is None:
            self.view.show(document.waiting(self.board.questions[self.board.number[key.question]]))
        else:
            pieces = document.answered(sample, self.board.state(key))
            if same:  # what the user was reading is still there when its verdict comes
                self.view.renew(pieces)
            else:
                self.view.show(pieces, at_end=True)
