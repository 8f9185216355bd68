"""Run the screen, and restore the terminal afterwards, whatever happens.

Textual alone leaves signal handlers behind that would bring the screen back on the next Ctrl-Z, and hangs when the
terminal goes away.
"""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from ds4ref.console.common import Interrupt

from ..log import Writer
from ..packs import Question
from ..runner import Event, Runner
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
    interrupt: Interrupt,
    pause_s: float = 0.35,
    stay: bool = True,
) -> None:
    """Run ``make_runner(listener)`` on the screen until the user leaves, a signal comes, or (without ``stay``) it ends.

    The run has ended when this returns. Raises the run's or the screen's error, and KeyboardInterrupt if the user would
    not wait for the end. ``pause_s``: seconds to show each grade.
    """
    app = EvalApp(make_runner, questions, epochs, log, title=title, pause_s=pause_s, stay=stay)
    try:
        interrupt.second = app.request_leave  # an exception would break the event loop
        with interrupt.does(app.request_stop):
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
    """Stop the run and wait for its end."""
    work = app.work
    while work.alive and not work.runner.left:
        work.leave() if app.leave_requested else work.stop()
        work.join(0.2)  # in pieces, so that signal handlers run in between


class _Tolerant:
    """A stream that ignores errors of writing, which would block Textual when the terminal goes away."""

    def __init__(self, stream: Any):
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
    modes, interval, streams = _get_modes(), sys.getswitchinterval(), (sys.stdout, sys.stderr, sys.__stderr__)
    sys.__stderr__ = _Tolerant(sys.__stderr__)  # type: ignore[misc, assignment]
    sys.setswitchinterval(SWITCH_S)
    gc.collect()
    gc.freeze()  # collections during the run skip what was there before, such as NumPy
    try:
        yield
    finally:
        # an exception from a signal handler may have left the thread that reads keys, and the screen
        if (exit_event := getattr(app._driver, "exit_event", None)) is not None and not exit_event.is_set():
            exit_event.set()
            print(RESTORE, end="", file=sys.__stderr__, flush=True)
        sys.stdout, sys.stderr, sys.__stderr__ = streams  # type: ignore[misc]
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if modes is not None:
            import termios

            with suppress(termios.error, OSError, ValueError):
                termios.tcsetattr(sys.__stdin__.fileno(), termios.TCSADRAIN, modes)  # type: ignore[union-attr]
        sys.setswitchinterval(interval)
        gc.unfreeze()


def _get_modes() -> list[Any] | None:
    """Modes of the terminal on stdin; None where there is none, or no termios (Windows)."""
    with suppress(ImportError, OSError, ValueError, AttributeError):
        import termios

        with suppress(termios.error):
            return termios.tcgetattr(sys.__stdin__.fileno())  # type: ignore[union-attr]
    return None
