"""The Textual application of ``ds4-eval``: layout, keys, and a redraw ``FRAMES`` times a second until the run ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar

from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.widgets import Footer, Input, Static

from ds4ref.targets import Ability

from ..log import Writer
from ..packs import Question
from ..plan import Key
from ..runner import Event, Runner
from ..view import detail
from .board import Board, Pace
from .text import one_line
from .widgets import HELP, THEME, AnswerPane, QuestionTable, TextDialog, header
from .work import Work

if TYPE_CHECKING:
    from ds4ref.runs.stats import Interval

FRAMES = 12
"""Redraws per second."""


class EvalApp(App[None]):
    """The application. It ends when the run has failed, or when the run has ended and the user leaves.

    Signal handlers set ``stop_requested`` and ``leave_requested``, since this needs no lock; the next redraw acts on
    them. ``following`` selects the running question until the user moves elsewhere.
    """

    CSS_PATH = "eval.tcss"
    TITLE = "ds4-eval"
    ENABLE_COMMAND_PALETTE = False
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (60, "-wide")]
    VERTICAL_BREAKPOINTS = [(0, "-flat"), (15, "-low"), (18, "-high")]
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+c,ctrl+q", "leave", "Quit", show=False, priority=True),
        Binding("p", "pause", "Pause"),
        Binding("q", "leave", "Quit"),
        Binding("enter", "run_now", "Ask now", key_display="⏎"),
        Binding("o", "open", "Open"),
        Binding("slash,f", "filter", "Filter", key_display="/"),
        Binding("question_mark", "help", "Help", key_display="?"),
        Binding("l", "live", "Live", show=False),
        Binding("plus", "speed(2)", "Faster", key_display="+"),
        Binding("minus", "speed(0.5)", "Slower", key_display="-"),
        Binding("tab,shift+tab", "switch", "Other pane", show=False, priority=True),
        Binding("escape", "filter(False)", "Show all", show=False),
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
    ):
        super().__init__()
        self.animation_level = "none"
        self.work = Work(make_runner, pause_s)
        self.board = Board(questions, epochs, log.samples, Pace(self.work.runner.clock))
        self.record, self.about = log, one_line(title)
        self.stop_requested = self.leave_requested = False
        self.crash: Exception | None = None
        self.printed: list[str] = []
        self.score: Interval | None = None
        self.following = True
        self.top, self.listing = Static(id="header"), Static(id="heading")
        self.table = QuestionTable(self.board)
        self.words = Input(placeholder="id, source, text or state", id="filter")
        self.pane = AnswerPane(self.board, self.work.runner.settings, self.work.runner.target.can(Ability.GUIDE))

    def compose(self) -> ComposeResult:
        """Lay out the widgets."""
        yield self.top
        with Horizontal():
            yield Vertical(self.listing, self.table, self.words, id="list")
            yield self.pane
        footer = Footer(show_command_palette=False)
        footer.compact = True  # Textual 6.0 has no argument for it
        yield footer

    def on_mount(self) -> None:
        """Start the run and the redraws."""
        self.register_theme(THEME)
        self.theme = THEME.name
        self.begin_capture_print(self)
        self.words.display = False
        self.table.focus()
        self.work.stop() if self.stop_requested else self.work.start()
        self.set_interval(1 / FRAMES, self.tick)
        self.look()

    # --- drawing

    def tick(self) -> None:
        """Redraw the run; act on requests of signal handlers; exit if the run is over."""
        work = self.work
        if self.leave_requested:
            work.leave()
        elif self.stop_requested and not work.stopping:
            work.stop()
        self.look()
        over = not work.alive and (work.failure is not None or work.stopping)
        if over or work.runner.left:
            self.exit()

    def look(self) -> None:
        """Apply the run's new events to the board, and redraw what they changed."""
        board, work, table, view = self.board, self.work, self.table, self.pane.view
        if not view.is_mounted:
            return
        alive = work.alive  # read before the events: a thread that has ended adds none after these
        board.pace.tick()
        changed = board.apply(work.events())
        board.pace.going = bool(board.live) and not work.runner.paused
        work.start()  # in case the user requested samples after the run had ended
        if table.moved_by_user():
            self.following = False
        if view.scrolled and view.is_anchored:  # reading back ends following; a return to a running answer resumes it
            self.following = not view.reads_back and (self.following or table.key in board.live)
        table.update_rows(changed)
        if self.following and table.key not in board.live:
            if latest := next(iter(board.live), board.latest):
                table.place(board.number[latest.question])
        runner, status = work.runner, ""
        if work.stopping:
            status = "stopping" if alive else "stopped"
        elif runner.paused:
            status = "paused"
        elif not alive and not work.alive:
            status = "done"
        elif runner.replays:
            status = f"replay {runner.speed:g}×"
        if work.interval and (changed or self.score is None):
            self.score = board.score(work.interval)
        waiting = len(runner.waiting()) + len(board.live)
        self.top.update(header(board, self.about, status, waiting, self.score))
        total = len(board.questions)
        self.listing.update(f" {len(table.shown)} of {total}" if len(table.shown) < total else f" {total} questions")
        if (key := table.key) is not None:
            self.pane.renew(key)

    # --- moving about

    def on_data_table_row_highlighted(self) -> None:
        """Show the row that the user moved to."""
        self.look()

    def on_data_table_row_selected(self) -> None:
        """Open the details of a row that was clicked again."""
        self.action_open()

    def action_live(self) -> None:
        """Follow the running question again."""
        self.following = True
        self.pane.view.anchor()
        self.look()

    def action_switch(self) -> None:
        """Move the focus between table and answer; a small screen shows only the focused one."""
        if len(self.screen_stack) > 1:
            return
        answer = self.focused is not self.pane.view
        self.screen.set_class(answer, "-answer")
        self.call_after_refresh((self.pane.view if answer else self.table).focus)  # a small screen has to show it first

    def action_filter(self, ask: bool = True) -> None:
        """Ask the user which questions to show; if ``ask`` is false, show all."""
        self.words.display = ask
        if ask:
            self.words.focus()
        else:
            self.words.value = ""
            self.table.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Show the questions that contain the typed words in id, source, text or state."""
        words = event.value.casefold().split()

        def has(i: int) -> bool:
            q = self.board.questions[i]
            text = " ".join((q.id, q.source, q.question, *q.choices, *self.board.states(i))).casefold()
            return all(word in text for word in words)

        self.table.show(i for i in range(len(self.board.questions)) if has(i))
        self.look()

    def on_input_submitted(self) -> None:
        """Go back to the table, and keep the filter."""
        self.table.focus()

    def action_open(self) -> None:
        """Show everything about the selected question in a dialog."""
        if (key := self.table.key) is not None:
            self.push_screen(TextDialog(key.question, lambda: self._details(key)))

    def _details(self, key: Key) -> str:
        question = self.board.questions[self.board.number[key.question]]
        live, samples = self.board.live.get(key), [s for s in self.record.samples.values() if s.id == key.question]
        begin = "" if live is None else f"--- answer so far\n{live.reasoning}{live.output}\n\n"
        if live is None and not samples:
            begin = "not asked yet\n\n"
        return begin + detail(self.record.header, question, sorted(samples, key=lambda s: s.epoch))

    def action_help(self) -> None:
        """Show keys and states in a dialog."""
        self.push_screen(TextDialog("ds4-eval", lambda: HELP))

    # --- guiding the run

    def action_pause(self) -> None:
        """Pause the run, or continue it."""
        runner = self.work.runner
        (runner.go if runner.paused else runner.pause)()
        self.look()

    def action_run_now(self) -> None:
        """Ask the selected question now, in place of the running one; again if it is done."""
        key = self.table.key
        if key is not None and key not in self.board.live and not self.work.stopping:
            self.work.runner.run_now(key)
        self.following = True
        self.look()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Enable the keys that change the speed only in a replay."""
        return action != "speed" or self.work.runner.replays

    def action_speed(self, factor: float) -> None:
        """Multiply the speed of a replay by ``factor``."""
        self.work.runner.speed *= factor
        self.look()

    # --- the end

    def action_leave(self) -> None:
        """Stop the run and then show the report, whatever dialog is open; at the second call, do not wait for running
        samples."""
        self.work.leave() if self.work.stopping else self.work.stop()
        self.look()

    def request_stop(self) -> None:
        """Stop the run at the next redraw; for signal handlers."""
        self.stop_requested = True

    def request_leave(self) -> None:
        """Stop the run at the next redraw without waiting for the running sample; for signal handlers."""
        self.stop_requested = self.leave_requested = True

    def on_print(self, event: events.Print) -> None:
        """Keep text that is printed while the screen is up, to print it afterwards."""
        self.printed.append(event.text)

    def _handle_exception(self, error: Exception) -> None:
        """Keep the error of a widget in ``crash``; the caller decides what to show."""
        self.crash = self.crash or error
        super()._handle_exception(error)
        self._exit_renderables.clear()

    def _fatal_error(self) -> None:
        """Close at once. Textual would first render a traceback with all local values, which takes 13 s on a slow
        processor."""
        self._close_messages_no_wait()
