"""Run the live screen, and restore the terminal afterwards, whatever happens.

Textual alone leaves signal handlers behind that would bring the screen back on the next Ctrl-Z, and hangs when the
terminal is closed.
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

SWITCH_S = 0.0005
"""Thread switch interval of the interpreter in seconds: for how long drawing may keep the engine's thread waiting."""


def show(
    make_runner: Callable[[Callable[[Event], None]], Runner],
    questions: Sequence[Question],
    epochs: int,
    log: Writer,
    *,
    title: str,
    interrupt: Interrupt,
    pause_s: float = 0.35,
) -> None:
    """Run ``make_runner(listener)`` on the screen until the user leaves or a signal comes.

    The run has ended when this returns. Raise the run's or the screen's error, and KeyboardInterrupt if the user did
    not want to wait for the end. ``title``: heading of the screen; ``pause_s``: seconds to show each grade.
    """
    app = EvalApp(make_runner, questions, epochs, log, title=title, pause_s=pause_s)
    interrupt.second = app.request_leave  # an exception would break the event loop
    try:
        with interrupt.does(app.request_stop), _terminal():
            asyncio.run(app.run_async())
    finally:
        _finish(app)
        interrupt.second = None
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
        work.join(0.2)  # wait in short steps, so that signal handlers can run


class _Tolerant:
    """A stream that ignores write errors, which would block Textual if the terminal is closed."""

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
def _terminal() -> Iterator[None]:
    """Context manager: restore signal handlers and standard streams at the end."""
    numbers = signal.SIGTSTP, signal.SIGCONT, signal.SIGWINCH, signal.SIGTTIN, signal.SIGTTOU
    handlers = {number: signal.getsignal(number) for number in numbers}
    interval, streams = sys.getswitchinterval(), (sys.stdout, sys.stderr, sys.__stderr__)
    sys.__stderr__ = _Tolerant(sys.__stderr__)  # type: ignore[misc, assignment]
    sys.setswitchinterval(SWITCH_S)
    gc.collect()
    gc.freeze()  # garbage collections during the run skip objects that exist now, such as NumPy's
    try:
        yield
    finally:
        sys.stdout, sys.stderr, sys.__stderr__ = streams  # type: ignore[misc]
        for number, handler in handlers.items():
            signal.signal(number, handler)
        sys.setswitchinterval(interval)
        gc.unfreeze()
