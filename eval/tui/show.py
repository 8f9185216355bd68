"""The screen from outside: it comes up, it goes away, and the terminal is then what it was, whatever happened.

Textual alone leaves behind signal handlers that would bring the screen back on the next Ctrl-Z, and it hangs or fails
in a thread when the terminal goes away; both are mended here.
"""

from __future__ import annotations

import asyncio
import gc
import os
import select
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Any

from ..log import Writer
from ..packs import Question
from ..runner import Event, Runner
from ..signals import Signals
from .app import EvalApp

MOUSE_PASTE_FOCUS = "".join(f"\x1b[?{mode}l" for mode in (1000, 1003, 1015, 1006, 1016, 2004, 1004))
LEAVE = MOUSE_PASTE_FOCUS + "\x1b[<u\x1b[?1049l\x1b[?7h\x1b[?25h"
"""And keyboard modes off; back to the other screen; wrapping and cursor on."""
SWITCH_S = 0.0005
"""A token that comes while a frame is drawn waits so long at most."""


def show(
    make: Callable[[Callable[[Event], None]], Runner],
    questions: Sequence[Question],
    epochs: int,
    log: Writer,
    *,
    title: str,
    signals: Signals,
    pause_s: float = 0.35,
    stay: bool = True,
) -> None:
    """Run what ``make`` makes of a listener, on the screen, until the user has seen the end (without ``stay``: until
    the end), wants to stop or presses ``signals``.

    Afterwards the terminal is as it was and the run is over, for which it is stopped if need be. Then what it failed
    with is raised, or what the screen failed with; KeyboardInterrupt if the user would not wait.
    """
    app = EvalApp(make, questions, epochs, log, title=title, pause_s=pause_s, stay=stay)
    try:
        with signals.does(app.ask_to_stop), signals.second(app.ask_to_leave):
            with _terminal(app):
                asyncio.run(app.run_async())
            _end(app)
    except KeyboardInterrupt:
        app.work.leave()
        raise
    except BaseException:
        _end(app)
        raise
    for text in app.printed:
        sys.stderr.write(text)
    error = app.work.failure or app.crash
    if error is not None:
        raise error
    if app.work.runner.left:
        raise KeyboardInterrupt


def _end(app: EvalApp) -> None:
    """The run has ended when this returns, or nothing that it still does counts. Where only the terminal has gone, and
    nobody said that the run should, it goes on to its end."""
    work = app.work
    while work.alive and not work.runner.left:
        if app.urged:
            work.leave()
            break
        if not work.stopping and (app.asked or not app.gone):
            work.stop()
        work.join(0.2)  # in pieces: signals are heard in between


class _Patient:
    """A stream whose other end may go away: nobody sees it then, and nobody is told."""

    def __init__(self, stream: IO[str]):
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except (OSError, ValueError):
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except (OSError, ValueError):
            pass


@contextmanager
def _terminal(app: EvalApp) -> Iterator[None]:
    """Signal handlers and the terminal's modes are afterwards what they were before."""
    names = ("SIGTSTP", "SIGCONT", "SIGWINCH", "SIGTTIN", "SIGTTOU")
    before = {getattr(signal, name): signal.getsignal(getattr(signal, name)) for name in names if hasattr(signal, name)}
    modes, interval, streams = _modes(), sys.getswitchinterval(), (sys.stdout, sys.stderr)
    sys.setswitchinterval(SWITCH_S)
    gc.collect()
    gc.freeze()  # collections during the run look at what it made, not at all of NumPy
    app.driver_class = _on_stdout(app.driver_class)
    try:
        yield
    finally:
        driver = app._driver
        # what an exception out of a signal handler may have left: a thread that reads keys, streams that are caught
        sys.stdout, sys.stderr = streams
        if (hurry := getattr(driver, "exit_event", None)) is not None:
            hurry.set()
        if driver is not None and getattr(driver, "is_up", False):
            _Patient(sys.__stdout__).write(LEAVE)  # type: ignore[arg-type]
            _Patient(sys.__stdout__).flush()  # type: ignore[arg-type]
        for number, handler in before.items():
            signal.signal(number, handler)
        _set_modes(modes)
        sys.setswitchinterval(interval)
        gc.unfreeze()


def _on_stdout(driver: Any) -> Any:
    """Textual's driver, on stdout (it takes stderr, which may be a file), and knowing whether the screen is up."""

    class Driver(driver):
        is_up = asleep = False

        def __init__(self, *args: Any, **options: Any):
            if not all(_size()):  # textual would waver between two guesses
                options["size"] = (80, 24)
            super().__init__(*args, **options)
            self._file = _Patient(sys.__stdout__)  # type: ignore[arg-type]

        def start_application_mode(self) -> None:
            self.is_up = True
            super().start_application_mode()

        def stop_application_mode(self) -> None:
            super().stop_application_mode()
            self.is_up = False

        def is_gone(self) -> bool:
            return _hung_up(self.fileno)

        def _sigtstp_application(self, *args: Any) -> None:
            self.asleep = True
            super()._sigtstp_application(*args)

        def _sigcont_application(self, *args: Any) -> None:
            if self.asleep:  # a terminal that goes away sends this, too
                self.asleep = False
                super()._sigcont_application(*args)

    return Driver


def _hung_up(number: int) -> bool:
    """Whether nobody is at the other end of a terminal any more."""
    if not hasattr(select, "poll"):
        return False
    poll = select.poll()
    poll.register(number, select.POLLHUP)
    return any(event & select.POLLHUP for _, event in poll.poll(0))


def _size() -> tuple[int, int]:
    """Columns and lines; zeros where the terminal does not say."""
    try:
        return tuple(os.get_terminal_size(sys.__stdout__.fileno()))  # type: ignore[union-attr, return-value]
    except (OSError, ValueError, AttributeError):
        return 0, 0


def _modes() -> Any:
    try:
        import termios
    except ImportError:  # Windows
        return None
    try:
        return termios.tcgetattr(sys.__stdin__.fileno())  # type: ignore[union-attr]
    except (termios.error, OSError, ValueError, AttributeError):
        return None


def _set_modes(modes: Any) -> None:
    if modes is None:
        return
    import termios

    try:
        termios.tcsetattr(sys.__stdin__.fileno(), termios.TCSADRAIN, modes)  # type: ignore[union-attr]
    except (termios.error, OSError, ValueError):
        pass
