"""The Textual application of ``ds4-eval``: redraws the run ``FRAMES`` times a second until it ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from textual import events
from textual.app import App
from textual.binding import Binding, BindingType
from textual.screen import Screen

from ..log import Writer
from ..packs import Question
from ..runner import Event, Runner
from .board import Board, Pace
from .screen import MainScreen
from .theme import THEME
from .work import Work

FRAMES = 12
"""Redraws per second."""


class EvalApp(App[None]):
    """The application; ends when the run failed, or has ended and the user leaves (without ``stay``: at once).

    Signal handlers set ``stop_requested`` and ``leave_requested``, which take no lock; the next redraw acts on them.
    """

    CSS_PATH = "eval.tcss"
    TITLE = "ds4-eval"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+c,ctrl+q", "leave", "Quit", show=False, priority=True),
    ]

    def __init__(
        self,
        make_runner: Callable[[Callable[[Event], None]], Runner],
        questions: Sequence[Question],
        epochs: int,
        log: Writer,
        *,
        title: str,
        pause_s: float = 0.35,
        stay: bool = True,
    ):
        super().__init__()
        self.animation_level = "none"
        self.work = Work(make_runner, pause_s)
        self.board = Board(questions, epochs, log.samples, Pace(self.work.runner.clock))
        self.main = MainScreen(self.board, self.work, title)
        self.stay = stay
        self.stop_requested = self.leave_requested = False
        self.terminal_gone = False
        self.crash: Exception | None = None
        self.printed: list[str] = []

    def get_default_screen(self) -> Screen[None]:
        """Return the main screen."""
        return self.main

    def on_mount(self) -> None:
        """Start the run and the redraws."""
        self.register_theme(THEME)
        self.theme = THEME.name
        self.begin_capture_print(self)
        self.work.stop() if self.stop_requested else self.work.start()
        self.set_interval(1 / FRAMES, self.tick)

    def tick(self) -> None:
        """Redraw the run; act on requests of signal handlers; exit if the run is over."""
        work = self.work
        if self.leave_requested:
            work.leave()
        elif self.stop_requested and not work.stopping:
            work.stop()
        self.main.look()
        over = not work.alive and (work.failure is not None or work.stopping or not self.stay)
        hung_up = getattr(self._driver, "hung_up", None)
        self.terminal_gone = hung_up is not None and hung_up()
        if over or work.runner.left or self.terminal_gone:
            self.exit()

    def request_stop(self) -> None:
        """Stop the run at the next redraw; for signal handlers."""
        self.stop_requested = True

    def request_leave(self) -> None:
        """Stop the run at the next redraw without waiting for the running sample; for signal handlers."""
        self.stop_requested = self.leave_requested = True

    def action_leave(self) -> None:
        """Stop the run, whatever dialog is open."""
        self.main.action_leave()

    def on_print(self, event: events.Print) -> None:
        """Keep text that is printed while the screen is up, to print it afterwards."""
        self.printed.append(event.text)

    def _handle_exception(self, error: Exception) -> None:
        """Keep the error of a widget in ``crash``; the caller decides what to show."""
        self.crash = self.crash or error
        super()._handle_exception(error)
        self._exit_renderables.clear()

    def _fatal_error(self) -> None:
        """Close at once: Textual would first render a traceback with all local values, 13 s on a slow processor."""
        self._close_messages_no_wait()
