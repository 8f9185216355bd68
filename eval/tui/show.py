"""Run the screen, and restore the terminal afterwards, whatever happens.

Textual alone leaves signal handlers behind that would bring the screen back on the next Ctrl-Z, draws on stderr, which
may be a file, and hangs or fails in a thread when the terminal goes away.
"""

from __future__ import annotations

import asyncio
import gc
import os
import select
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import IO, Any

from ..log import Writer
from ..packs import Question
from ..runner import Event, Runner
from ..signals import Signals
from .app import EvalApp

RESTORE = "".join(f"\x1b[?{mode}l" for mode in (1000, 1003, 1015, 1006, 1016, 2004, 1004)) + (
    "\x1b[<u\x1b[?1049l\x1b[?7h\x1b[?25h"
)
"""Escape sequences that restore a terminal: mouse, paste, focus and keyboard modes off; main screen, wrapping and
cursor on."""
SWITCH_S = 0.0005
"""Thread switch interval in seconds: how long drawing may hold the interpreter while the engine waits for it."""


def show(
    make_runner: Callable[[Callable[[Event], None]], Runner],
    questions: Sequence[Question],
    epochs: int,
    log: Writer,
    *,
    title: str,
    signals: Signals,
    pause_s: float = 0.35,
    stay: bool = True,
) -> None:
    """Run ``make_runner(listener)`` on the screen until the user leaves, a signal comes, or (without ``stay``) it ends.

    The run has ended when this returns. Raises the run's or the screen's error, and KeyboardInterrupt if the user would
    not wait for the end. ``pause_s``: seconds to show each grade.
    """
    app = EvalApp(make_runner, questions, epochs, log, title=title, pause_s=pause_s, stay=stay)
    try:
        with signals.does(app.request_stop), signals.second(app.request_leave):
            with _terminal(app):
                asyncio.run(app.run_async())
            _finish(app)
    except KeyboardInterrupt:
        app.work.leave()
        raise
    except BaseException:
        _finish(app)
        raise
    sys.stderr.write("".join(app.printed))
    error = app.work.failure or app.crash
    if error is not None:
        raise error
    if app.work.runner.left:
        raise KeyboardInterrupt


def _finish(app: EvalApp) -> None:
    """Stop the run and wait for its end. If only the terminal has gone, the run goes on to its end."""
    work = app.work
    while work.alive and not work.runner.left:
        if app.leave_requested:
            work.leave()
            break
        if not work.stopping and (app.stop_requested or not app.terminal_gone):
            work.stop()
        work.join(0.2)  # in pieces, so that signal handlers run in between


class _Tolerant:
    """A stream that ignores errors of writing, for a terminal that may go away."""

    def __init__(self, stream: IO[str]):
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with suppress(OSError, ValueError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            self._stream.flush()


@contextmanager
def _terminal(app: EvalApp) -> Iterator[None]:
    """Restore signal handlers, streams and the terminal's modes at the end."""
    names = ("SIGTSTP", "SIGCONT", "SIGWINCH", "SIGTTIN", "SIGTTOU")
    handlers = {number: signal.getsignal(number) for name in names if (number := getattr(signal, name, None))}
    modes, interval, streams = _get_modes(), sys.getswitchinterval(), (sys.stdout, sys.stderr)
    sys.setswitchinterval(SWITCH_S)
    gc.collect()
    gc.freeze()  # collections during the run skip what was there before, such as NumPy
    app.driver_class = _driver_on_stdout(app.driver_class)
    try:
        yield
    finally:
        driver = app._driver
        sys.stdout, sys.stderr = streams
        # an exception from a signal handler may have left the thread that reads keys, and the screen
        if (exit_event := getattr(driver, "exit_event", None)) is not None:
            exit_event.set()
        if getattr(driver, "is_up", False):
            stdout = _Tolerant(sys.__stdout__)  # type: ignore[arg-type]
            stdout.write(RESTORE)
            stdout.flush()
        for number, handler in handlers.items():
            signal.signal(number, handler)
        _set_modes(modes)
        sys.setswitchinterval(interval)
        gc.unfreeze()


def _driver_on_stdout(base: Any) -> Any:
    """Return Textual's driver ``base``, writing to stdout and knowing whether the screen is up."""

    class Driver(base):
        is_up = suspended = False

        def __init__(self, *args: Any, **options: Any):
            if not all(_size()):  # Textual would waver between two guesses
                options["size"] = (80, 24)
            super().__init__(*args, **options)
            self._file = _Tolerant(sys.__stdout__)  # type: ignore[arg-type]

        def start_application_mode(self) -> None:
            self.is_up = True
            super().start_application_mode()

        def stop_application_mode(self) -> None:
            super().stop_application_mode()
            self.is_up = False

        def hung_up(self) -> bool:
            if not hasattr(select, "poll"):
                return False
            poll = select.poll()
            poll.register(self.fileno, select.POLLHUP)
            return any(event & select.POLLHUP for _, event in poll.poll(0))

        def _sigtstp_application(self, *args: Any) -> None:
            self.suspended = True
            super()._sigtstp_application(*args)

        def _sigcont_application(self, *args: Any) -> None:
            if self.suspended:  # a terminal that goes away sends SIGCONT, too
                self.suspended = False
                super()._sigcont_application(*args)

    return Driver


def _size() -> tuple[int, int]:
    """Columns and lines of the terminal; zeros where unknown."""
    try:
        return tuple(os.get_terminal_size(sys.__stdout__.fileno()))  # type: ignore[union-attr, return-value]
    except (OSError, ValueError, AttributeError):
        return 0, 0


def _get_modes() -> list[Any] | None:
    """Modes of the terminal on stdin; None where there is none, or no termios (Windows)."""
    with suppress(ImportError, OSError, ValueError, AttributeError):
        import termios

        with suppress(termios.error):
            return termios.tcgetattr(sys.__stdin__.fileno())  # type: ignore[union-attr]
    return None


def _set_modes(modes: list[Any] | None) -> None:
    if modes is not None:
        import termios

        with suppress(termios.error, OSError, ValueError):
            termios.tcsetattr(sys.__stdin__.fileno(), termios.TCSADRAIN, modes)  # type: ignore[union-attr]
