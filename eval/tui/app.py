"""The screen of ``ds4-eval``: textual's application around a run.

What happens is taken in ``FRAMES`` times a second, all that came at once; widgets draw only what changed. Nothing here
decides about the run: that is ``work``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from textual import events, on
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import Screen
from textual.theme import Theme
from textual.widgets import Footer, Input

from ds4ref.targets import Ability

from ..log import Writer
from ..packs import Question
from ..runner import Event, Runner
from . import document
from .board import Board
from .dialogs import FilterDialog, Heading, Paper, help_text
from .find import ALL, Filter, Search, filters
from .header import Header
from .pane import Pane
from .questions import QuestionList
from .scroll import Scroller
from .work import Work

FRAMES = 12
"""Looks at the run per second."""
NARROW, LOW = 60, 15
"""Below these columns or lines there is room for one pane."""

THEME = Theme(
    "ds4", primary="#7aa2f7", secondary="#bb9af7", accent="#7dcfff", warning="#e0af68", error="#f7768e",
    success="#9ece6a", foreground="#c8d0e8", background="#16171f", surface="#1b1d28", panel="#262a3a", dark=True,
)  # fmt: skip


class Main(Screen[None]):
    """List, answer, and everything around them."""

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
        Binding("left", "epoch(-1)", "Earlier epoch", show=False),
        Binding("right", "epoch(1)", "Later epoch", show=False),
        Binding("tab,shift+tab", "switch", "Other pane", show=False),
        Binding("escape", "calm", "Close", show=False),
    ]

    def __init__(self, board: Board, work: Work, title: str):
        super().__init__()
        self.board, self.work = board, work
        self.filter, self.search = Filter(), Search(board.questions)
        self._note, self._beat, self._on_answer = "", 0, False
        self.head = Header(board, title, id="head")
        self.heading = Heading(id="heading")
        self.list = QuestionList(board, id="questions")
        runner = work.runner
        self.pane = Pane(board, runner.settings, runner.target.can(Ability.STEER), id="pane")
        self.prompt = Input(placeholder="id, source or text", id="search", select_on_focus=True)

    def compose(self) -> ComposeResult:
        """From top to bottom."""
        yield self.head
        with Horizontal(id="body"):
            with Vertical(id="left") as self.left:
                yield self.heading
                with Horizontal():
                    yield self.list
                    yield self.list.bar
            yield self.pane
        yield self.prompt
        yield Footer(show_command_palette=False, compact=True)

    def on_mount(self) -> None:
        """Keys go to the list."""
        self.prompt.display = False
        self.list.focus()
        self.look()

    def on_resize(self, event: events.Resize) -> None:
        """How much of it there is room for."""
        width, height = event.size
        self.set_class(width < NARROW or height < LOW, "-one")
        self.set_class(height < LOW + 3, "-low")
        self.pane.about.most = 1 if height < LOW + 3 else 3 if height < 34 else 6
        self._arrange()
        self.call_after_refresh(self.look)

    # --- the run

    def look(self) -> None:
        """Take in what happened, and draw what it changed."""
        board, work = self.board, self.work
        alive = work.alive  # asked first: whoever is not alive has said everything
        board.interval = work.interval
        board.pace.at(going=bool(board.live) and not work.runner.paused)
        changes = board.apply(work.events())
        board.pace.at(going=bool(board.live) and not work.runner.paused)
        work.start()  # what was wanted while the last answer ended
        self._beat += 1
        if changes.questions:
            if self.filter.state != ALL:
                self.list.show(self.filter.rows(board, self.list.cursor))
            self.list.renew(changes.questions)
        if self.list.following:
            self._follow()
        self.head.told = self._told(alive)
        self.head.waiting = len(work.runner.schedule.waiting()) + len(board.live)
        self.head.renew()
        self._say()
        if self.list.shown:
            self.pane.renew(self.list.key(), self._beat if not work.runner.paused else 0)

    def _told(self, alive: bool) -> str:
        if self.work.stopping:
            return "stopping" if alive else "stopped"
        if self.work.runner.paused:
            return "paused"
        return "" if alive or self.work.alive else "done"

    def _follow(self) -> None:
        """The cursor is where an answer comes in, and stays with it until it is over; else where the last one came."""
        if self.list.key() in self.board.live:
            return
        for key in [*self.board.live, *([self.board.latest] if self.board.latest else [])]:
            i = self.board.number[key.question]
            self.list.epochs.pop(i, None)
            self.list.select(i)
            if self.list.cursor == i:
                return

    def _say(self) -> None:
        shown = len(self.list.shown)
        self.heading.set_class(not self.list.following, "-away")
        note = self._note or (f"{shown} of {len(self.board.questions)}" if self.filter != Filter() else f"{shown}")
        text = f" {note} · {self.filter.name}" if self.filter != Filter() and not self._note else f" {note} questions"
        self.heading.say(f" {self._note}" if self._note else text)

    # --- moving about

    @on(QuestionList.Moved)
    def _moved(self) -> None:
        self._note = ""
        self.look()

    @on(Scroller.Scrolled)
    def _scrolled(self) -> None:
        """Who reads what was said before is not torn away when the next question begins."""
        view = self.pane.view
        self.list.following = view.at_end and (self.list.following or self.list.key() in self.board.live)

    @on(QuestionList.Opened)
    def _opened(self) -> None:
        self.action_open()

    def action_live(self) -> None:
        """Along with what runs again."""
        self.list.following, self._note = True, ""
        self.list.epochs.clear()
        self.look()
        self.pane.view.action_edge(1)

    def action_epoch(self, step: int) -> None:
        """Another epoch of the question."""
        if self.board.epochs > 1 and self.list.shown:
            self.list.turn(step)
            self.look()

    def action_switch(self) -> None:
        """The other pane has the keys, and the room where there is room for one."""
        one = self.has_class("-one")
        self._on_answer = not self._on_answer if one else self.focused is not self.pane.view
        self._arrange()
        (self.pane.view if self._on_answer else self.list).focus()

    def _arrange(self) -> None:
        one = self.has_class("-one")
        self.pane.display = self._on_answer or not one
        self.left.display = not (self._on_answer and one)

    def action_open(self) -> None:
        """Everything about the selected sample."""
        if not self.list.shown:
            return
        key, board, runner = self.list.key(), self.board, self.work.runner

        def version() -> object:
            live = board.live.get(key)
            return live and len(live.transcript.pieces), board.samples.get(key)

        title = f"{board.number[key.question] + 1}/{len(board.questions)} {key.question}"
        write = lambda: document.details(board, key, runner.settings, runner.target.name)  # noqa: E731
        self.app.push_screen(Paper(title, write, version))

    def action_help(self) -> None:
        """Keys and states."""
        self.app.push_screen(Paper("ds4-eval", help_text))

    # --- the run, by hand

    def action_pause(self) -> None:
        """Or go on."""
        self.work.pause()
        self.look()

    def action_run_now(self) -> None:
        """The selected one."""
        if self.list.shown and not self.work.stopping:
            key = self.list.key()
            if not self.board.state(key).running:
                self.board.queued.add(key)
                self.work.now(key)
            self.list.following = True
            self.list.renew([self.list.cursor])
            self.look()

    def action_again(self) -> None:
        """The selected one, next."""
        if self.list.shown and not self.work.stopping:
            key = self.list.key()
            self.board.queued.add(key)
            self.work.again(key)
            self.list.renew([self.list.cursor])
            self.look()

    def action_leave(self) -> None:
        """Stop and report."""
        self.work.leave() if self.work.stopping else self.work.stop()
        self.look()

    # --- filter and search

    def action_filter(self) -> None:
        """Choose which questions are in view."""

        def chosen(found: Filter | None) -> None:
            if found is not None:
                self.filter, self._note = found, ""
                self.list.show(found.rows(self.board))
                self.look()

        self.app.push_screen(FilterDialog(filters(self.board), self.filter), chosen)

    def action_search(self) -> None:
        """Ask for what."""
        self.prompt.display = True
        self.prompt.focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Look for it, from the selected question on."""
        self.search.word = event.value
        self.action_calm()
        self._hit(0)

    def action_hit(self, step: int) -> None:
        """The next one."""
        self._hit(step)

    def _hit(self, step: int) -> None:
        if not self.search.word.strip():
            self._note = ""
        elif (found := self.search.next(self.list.shown, self.list.cursor, step)) is None:
            self._note = f"no {self.search.word.strip()!r} here"
        else:
            i, which, of = found
            self.list.following = False
            self.list.select(i)
            self._note = f"{which} of {of} with {self.search.word.strip()!r}"
        self.look()

    def action_calm(self) -> None:
        """Away with prompt and notes."""
        self.prompt.display = False
        self._note = ""
        if self.focused is self.prompt or self.focused is None:
            self._on_answer = False
            self._arrange()
            self.list.focus()
        self.look()


class EvalApp(App[None]):
    """Ends by ``exit`` when the run has ended and the user wants no more of it, or when it failed."""

    CSS_PATH = "eval.tcss"
    TITLE = "ds4-eval"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+c,ctrl+q", "leave", "Quit", show=False, priority=True),
    ]

    def __init__(
        self,
        make: Callable[[Callable[[Event], None]], Runner],
        questions: Sequence[Question],
        epochs: int,
        log: Writer,
        *,
        title: str,
        pause_s: float = 0.35,
        stay: bool = True,
    ):
        super().__init__()
        self.work = Work(make, pause_s)
        self.board = Board(questions, epochs, log.samples)
        self.main = Main(self.board, self.work, title)
        self.stay, self.asked, self.urged, self.gone = stay, False, False, False
        self.crash: Exception | None = None
        self.printed: list[str] = []

    def get_default_screen(self) -> Screen[None]:
        """The only one that stays."""
        return self.main

    def on_mount(self) -> None:
        """Begin."""
        self.register_theme(THEME)
        self.theme = THEME.name
        self.begin_capture_print(self)
        self.work.stop() if self.asked else self.work.start()
        self.set_interval(1 / FRAMES, self.tick)

    def tick(self) -> None:
        """Look at the run, and whether it is over."""
        if self.asked and not self.work.stopping:
            self.work.stop()
        self.main.look()
        work = self.work
        if self.urged:
            work.leave()
        over = not work.alive and (work.failure is not None or work.stopping or not self.stay)
        is_gone = getattr(self._driver, "is_gone", None)
        self.gone = is_gone is not None and is_gone()
        if over or work.runner.left or self.gone:
            self.exit()

    def ask_to_stop(self) -> None:
        """For signal handlers: takes no lock, and happens at the next look."""
        self.asked = True

    def ask_to_leave(self) -> None:
        """As ``ask_to_stop``, without waiting for what does not end."""
        self.asked = self.urged = True

    def action_leave(self) -> None:
        """From wherever."""
        self.main.action_leave()

    def on_print(self, event: events.Print) -> None:
        """Somebody printed behind the screen: kept for afterwards."""
        self.printed.append(event.text)

    def _handle_exception(self, error: Exception) -> None:
        """A widget failed: ``crash`` is why, and the traceback is for the caller to show or not."""
        self.crash = self.crash or error
        super()._handle_exception(error)
        self._exit_renderables.clear()

    def _fatal_error(self) -> None:
        """Leave at once: Textual would first draw a traceback with all local values, 13 s on a slow processor, while
        the terminal is still the screen's."""
        self._close_messages_no_wait()
