"""The main screen: layout, keys, and the selected question."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import Screen
from textual.widgets import DataTable, Footer

from ds4ref.targets import Ability

from . import document
from .board import Board
from .dialogs import FilterDialog, SearchDialog, TextDialog, help_text
from .find import Filter, Search, filters
from .header import Header, Line
from .pane import AnswerPane
from .table import QuestionTable
from .text import one_line
from .work import Work


class MainScreen(Screen[None]):
    """Screen with table and answer; ``following`` selects the running question until the user moves elsewhere."""

    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (60, "-medium"), (100, "-wide")]
    VERTICAL_BREAKPOINTS = [(0, "-flat"), (15, "-low"), (18, "-high"), (34, "-tall")]
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("p", "pause", "Pause"),
        Binding("q", "leave", "Quit"),
        Binding("enter", "run_now", "Ask now", key_display="⏎"),
        Binding("r", "again", "Again"),
        Binding("o", "open", "Open"),
        Binding("f", "filter", "Filter"),
        Binding("slash", "search", "Search", key_display="/"),
        Binding("question_mark", "help", "Help", key_display="?"),
        Binding("l", "live", "Live", show=False),
        Binding("n", "hit(1)", "Next hit", show=False),
        Binding("N", "hit(-1)", "Previous hit", show=False),
        Binding("plus", "speed(2)", "Faster", key_display="+"),
        Binding("minus", "speed(0.5)", "Slower", key_display="-"),
        Binding("left", "epoch(-1)", "Earlier epoch", show=False),
        Binding("right", "epoch(1)", "Later epoch", show=False),
        Binding("tab,shift+tab", "switch", "Other pane", show=False),
        Binding("escape", "close", "Close", show=False),
    ]

    def __init__(self, board: Board, work: Work, title: str):
        super().__init__()
        self.board, self.work = board, work
        self.filter, self.search = Filter(), Search(board.questions)
        self.following, self.note = True, ""
        self.header = Header(board, title)
        self.heading = Line("heading")
        self.table = QuestionTable(board, id="questions")
        self.pane = AnswerPane(board, work.runner.settings, work.runner.target.can(Ability.GUIDE))

    def compose(self) -> ComposeResult:
        """Lay out the widgets."""
        yield self.header
        with Horizontal():
            yield Vertical(self.heading, self.table, id="list")
            yield self.pane
        footer = Footer(show_command_palette=False)
        footer.compact = True  # no argument in Textual 6.0
        yield footer

    def on_mount(self) -> None:
        """Focus the table and draw."""
        self.table.focus()
        self.look()

    # --- drawing

    def look(self) -> None:
        """Apply the run's events to the board and redraw what they changed."""
        board, work = self.board, self.work
        alive = work.alive  # before the events: nothing comes after them from a thread that has ended
        board.interval = work.interval
        board.pace.tick()
        changed = board.apply(work.events())
        board.pace.going = bool(board.live) and not work.runner.paused
        work.start()  # for samples that the user requested
        if self.table.moved_by_user():
            self.following, self.note = False, ""
        view = self.pane.view
        if view.scrolled and view.is_anchored:  # reading back ends following; a return to a running answer resumes it
            self.following = not view.reads_back and (self.following or self.table.key in board.live)
        if changed and not self.filter.by_source:
            self.table.show(self.filter.rows(board, self.table.selected))
        self.table.update_rows(changed)
        if self.following:
            self._follow()
        self.header.renew(self._status(alive), len(work.runner.schedule.waiting()) + len(board.live))
        self._show_heading()
        if (key := self.table.key) is not None:
            self.pane.renew(key)

    def _status(self, alive: bool) -> str:
        if self.work.stopping:
            return "stopping" if alive else "stopped"
        if self.work.runner.paused:
            return "paused"
        if not alive and not self.work.alive:
            return "done"
        runner = self.work.runner
        return f"replay {runner.speed:g}×" if runner.replays else ""

    def _follow(self) -> None:
        """Select a running sample, else the latest; stay while the selected one runs."""
        if self.table.key in self.board.live:
            return
        latest = [self.board.latest] if self.board.latest else []
        for key in [*self.board.live, *latest]:
            i = self.board.number[key.question]
            if i in self.table.shown:
                self.table.epochs.pop(i, None)
                self.table.place(i)
                return

    def _show_heading(self) -> None:
        shown, total = len(self.table.shown), len(self.board.questions)
        plain = (
            f"{shown} of {total} · {one_line(self.filter.name)}" if self.filter != Filter() else f"{total} questions"
        )
        self.heading.show(f" {self.note or plain}")

    # --- moving about

    def on_data_table_row_highlighted(self) -> None:
        """Show the row that the user moved to."""
        self.look()

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Open the details of a row that was clicked again."""
        self.action_open()

    def action_live(self) -> None:
        """Follow the running question again."""
        self.following, self.note = True, ""
        self.table.epochs.clear()
        self.pane.view.anchor()
        self.look()

    def action_epoch(self, step: int) -> None:
        """Show another epoch of the question."""
        self.following = False
        self.table.turn_epoch(step)
        self.look()

    def action_switch(self) -> None:
        """Move the focus between table and answer; a small screen shows only the focused one."""
        self._focus_answer(self.focused is not self.pane.view)

    def _focus_answer(self, answer: bool) -> None:
        self.set_class(answer, "-answer")
        target = self.pane.view if answer else self.table
        if all(getattr(node, "display", True) for node in target.ancestors_with_self):
            target.focus()  # at once: the next key may be here already
        else:
            self.call_after_refresh(target.focus)  # a small screen has to show it first

    def action_open(self) -> None:
        """Show everything about the selected sample in a dialog."""
        if (key := self.table.key) is not None:
            title = f"{self.board.number[key.question] + 1}/{len(self.board.questions)} {key.question}"
            settings = self.work.runner.settings
            self.app.push_screen(TextDialog(title, lambda: document.details(self.board, key, settings)))

    def action_help(self) -> None:
        """Show keys and states in a dialog."""
        self.app.push_screen(TextDialog("ds4-eval", help_text))

    # --- guiding the run

    def action_pause(self) -> None:
        """Pause the run, or continue it."""
        runner = self.work.runner
        (runner.go if runner.paused else runner.pause)()
        self.look()

    def action_run_now(self) -> None:
        """Ask the selected question now, in place of the running one."""
        key, i = self.table.key, self.table.selected
        if key is not None and i is not None and not self.work.stopping:
            if key not in self.board.live:
                self.board.queued.add(key)
                self.work.runner.run_now(key)
            self.following = True
            self.table.update_rows([i])
            self.look()

    def action_again(self) -> None:
        """Ask the selected question again after the running one."""
        key, i = self.table.key, self.table.selected
        if key is not None and i is not None and not self.work.stopping:
            self.board.queued.add(key)
            self.work.runner.again(key)
            self.table.update_rows([i])
            self.look()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Offer other speeds for a replay only."""
        return action != "speed" or self.work.runner.replays

    def action_speed(self, factor: float) -> None:
        """Play faster or slower."""
        self.work.runner.speed *= factor
        self.look()

    def action_leave(self) -> None:
        """Stop the run and report; at the second call, do not wait for running samples."""
        self.work.leave() if self.work.stopping else self.work.stop()
        self.look()

    # --- filter and search

    def action_filter(self) -> None:
        """Open the dialog that chooses which questions are shown."""

        def chosen(choice: Filter | None) -> None:
            if choice is not None:
                self.filter, self.note = choice, ""
                self.table.show(choice.rows(self.board))
                self.look()

        self.app.push_screen(FilterDialog(self.board, filters(self.board), self.filter), chosen)

    def action_search(self) -> None:
        """Open the search dialog and search from the selected question on; with nothing entered, remove the last
        note."""

        def search(word: str | None) -> None:
            if word is None:
                self.action_close()
            else:
                self.search.word = word
                self.action_hit(0)

        self.app.push_screen(SearchDialog(self.search.word), search)

    def action_hit(self, step: int) -> None:
        """Select the next (1) or previous (-1) hit, or the first one from the selected question on (0)."""
        if not self.search.word.strip():
            return
        match = self.search.next(self.table.shown, self.table.selected or 0, step)
        if match is None:
            self.note = f"no {self.search.word.strip()!r} here"
        else:
            i, rank, hits = match
            self.following = False
            self.table.place(i)
            self.note = f"{rank} of {hits} with {self.search.word.strip()!r}"
        self.look()

    def action_close(self) -> None:
        """Remove the note of a search."""
        self.note = ""
        self.look()
