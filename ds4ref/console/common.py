"""Behaviour shared by all commands: errors and exit codes, output files, terminals.

What users can rely on:

    prog: what failed: why          one line on stderr; exit code 2 for usage, 1 for failure, 130 for Ctrl-C
    DS4_DEBUG=1                     shows the traceback behind that line
    NO_COLOR, TERM=dumb             no escape sequences
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from ..cancellation import Cancellation
from ..errors import DataError, Ds4Error, UsageError
from ..files import atomic_write

EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141

GREY, CYAN, RESET = "\x1b[90m", "\x1b[36m", "\x1b[0m"


# ---------------------------------------------------------------------------------------------------- running


def run(prog: str, body: Callable[[Sequence[str]], int], argv: Sequence[str] | None = None) -> int:
    """Run the command ``prog``: call ``body`` with the command line's arguments (``argv``, or those of the process) and
    return the exit code.

    An exception is printed as one line on stderr and becomes the exit code: 2 for UsageError, 130 for Ctrl-C, else 1.
    """
    prepare_streams()
    try:
        with _signals_unwind():
            code = body(sys.argv[1:] if argv is None else argv)
            sys.stdout.flush()
        return code
    except UsageError as error:
        return _fail(prog, error, f"{error}; see {prog} --help")
    except Ds4Error as error:
        return _fail(prog, error, str(error))
    except KeyboardInterrupt as error:
        return _fail(prog, error, "interrupted", EXIT_INTERRUPTED)
    except BrokenPipeError:
        return EXIT_BROKEN_PIPE  # the reader has closed the pipe: print nothing, as in `yes | head`
    except MemoryError as error:
        return _fail(prog, error, "not enough memory" + (f": {error}" if str(error) else ""))
    except OSError as error:
        return _fail(prog, error, _os_reason(error))
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        return _fail(prog, error, f"internal error: {why} (a bug; set DS4_DEBUG=1 for a traceback)")
    finally:
        _flush_or_drop(sys.stdout)


def prepare_streams() -> None:
    """Set the standard streams to UTF-8 in any locale; replace closed ones by the null device."""
    for name in ("stdin", "stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w"))
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8", errors="surrogateescape" if name == "stdin" else "replace")


@contextmanager
def _signals_unwind() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the command through its ``finally`` blocks, so that no temporary file remains.

    A SIGHUP that is ignored, as under nohup, stays ignored.
    """

    def stop(signum: int, frame: object) -> None:
        raise SystemExit(128 + signum)

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    caught = {number: handler for number, handler in before.items() if handler is not signal.SIG_IGN}
    if threading.current_thread() is not threading.main_thread():
        caught = {}  # the program that embeds us handles signals
    for number in caught:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in caught.items():
            signal.signal(number, handler)


def _fail(prog: str, error: BaseException, message: str, code: int | None = None) -> int:
    if os.environ.get("DS4_DEBUG", "") not in ("", "0"):
        import traceback

        traceback.print_exception(error)
    say(prog, " ".join(message.split("\n")))
    return getattr(error, "exit_code", 1) if code is None else code


def _flush_or_drop(stream: IO[str]) -> None:
    """Flush a stream; if that fails, point its descriptor at the null device, so that the interpreter prints no error
    at exit."""
    try:
        stream.flush()
    except (OSError, ValueError):
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        except (OSError, ValueError):
            pass


def _os_reason(error: OSError) -> str:
    source = os.fsdecode(error.filename) if error.filename is not None else "input/output"
    return f"{source}: {error.strerror or error}"


# ----------------------------------------------------------------------------------------------------- talking


def visible(text: str) -> str:
    """Return ``text`` with non-printing characters escaped, except line ends."""
    return "".join(c if c.isprintable() or c == "\n" else "    " if c == "\t" else repr(c)[1:-1] for c in text)


def say(prog: str, message: str) -> None:
    """Write the line ``prog: message`` to stderr, control characters escaped; does nothing if stderr is closed."""
    try:
        sys.stderr.write(f"{prog}: {visible(message)}\n")
        sys.stderr.flush()
    except (OSError, ValueError):
        pass


def is_tty(stream: Any) -> bool:
    """Return whether ``stream`` is a terminal that supports cursor movement."""
    try:
        return stream.isatty() and os.environ.get("TERM", "") != "dumb"
    except (AttributeError, ValueError):
        return False


def columns(stream: Any) -> int:
    """Return the width in characters of the terminal that ``stream`` writes to; 80 if unknown."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError, AttributeError):
        return 80


def has_colour(stream: Any) -> bool:
    """Return whether ``stream`` is a terminal and neither NO_COLOR nor TERM=dumb forbids colours."""
    return is_tty(stream) and not os.environ.get("NO_COLOR")


def tint(text: str, colour: str, stream: Any) -> str:
    """Return ``text`` with escape sequences for ``colour`` if ``stream`` supports colours, else unchanged."""
    return f"{colour}{text}{RESET}" if has_colour(stream) else text


class Progress:
    """Context manager of a one-line progress display on stderr: ``label: done/total (p.p%), time left``.

    Call it with (done, total) any number of times: it redraws at most ten times a second, and never wraps. Work done
    before the first call is left out when the time left is estimated. Leaving the ``with`` block erases the line.
    Silent unless stderr is a terminal.

    rate: unit of the speed to show, as "tok/s"; "" for none.
    """

    def __init__(self, label: str, rate: str = ""):
        self.label, self.rate, self.live = label, rate, is_tty(sys.stderr)
        self._drawn = 0.0
        self._visible = False
        self._first: tuple[float, int] | None = None

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if self._first is None or done < self._first[1]:
            self._first = now, done
        if not self.live or (done < total and now - self._drawn < 0.1):
            return
        self._drawn, self._visible = now, True
        begun, before = self._first
        left = ""
        if before < done < total and now - begun >= 1:
            speed = (done - before) / (now - begun)
            left = f", {speed:.0f} {self.rate}" if self.rate else ""
            left += f", {duration((total - done) / speed)} left"
        line = f"{self.label}: {done}/{total} ({100 * done / max(total, 1):.1f}%){left}"
        line = line[: columns(sys.stderr) - 1]  # only a line that does not wrap can be redrawn
        sys.stderr.write("\r" + tint(line, CYAN, sys.stderr) + "\x1b[K")
        sys.stderr.flush()

    def clear(self) -> None:
        """Erase the line, so that other output can be printed; the next call draws it again."""
        if self._visible:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._visible, self._drawn = False, 0.0

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *exc: object) -> None:
        self.clear()


def duration(seconds: float) -> str:
    """Format a duration: ``42 s``, ``3 min``, ``2 h 5 min``, ``3 d 4 h``."""
    if seconds < 59.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 24 else f"{hours // 24} d {hours % 24} h"


class Interrupt(Cancellation):
    """Context manager that turns Ctrl-C, and the signals ``also``, into a request for cancellation, not an exception.

    signum   the first signal that arrived, 0 before
    second   called at every further signal (None: raise KeyboardInterrupt)
    """

    def __init__(self, *also: int) -> None:
        super().__init__()
        self._signals, self.signum = (signal.SIGINT, *also), 0
        self.second: Callable[[], None] | None = None

    @property
    def exit_code(self) -> int:
        """The exit code of a command that was ended by the signal; 0 if none arrived."""
        return 128 + self.signum if self.signum else 0

    def _handle(self, signum: int, frame: object) -> None:
        if not self.requested:
            self.signum = signum
            return self.press()
        if self.second is None:
            raise KeyboardInterrupt
        self.second()

    def __enter__(self) -> Interrupt:
        self._before = [signal.signal(each, self._handle) for each in self._signals]
        return self

    def __exit__(self, *exc: object) -> None:
        for each, before in zip(self._signals, self._before, strict=True):
            signal.signal(each, before)


# ------------------------------------------------------------------------------------------------------- files


def read_text(path: str, label: str) -> str:
    """Return the text in ``path`` ("-" is stdin) unchanged; UsageError if it cannot be read.

    ``label`` names the file in the error. Bytes that are not UTF-8 become lone surrogates, as in command line
    arguments; the tokenizer accepts them.
    """
    try:
        data = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {label} {path}: {error.strerror}") from None
    return data.decode("utf-8", "surrogateescape")


def check_output(path: str) -> None:
    """Raise DataError if ``path`` cannot be written; called before a long computation whose result goes there."""
    target = Path(path)
    folder, special = target.resolve().parent, _is_special(target)
    if target.is_dir():
        reason = os.strerror(errno.EISDIR)
    elif not folder.is_dir():
        reason = f"no folder {folder}"
    elif not os.access(target if special else folder, os.W_OK):
        reason = "no permission" + ("" if special else f" to write in {folder}")
    else:
        return
    raise DataError(f"cannot write {path}: {reason}")


@contextmanager
def atomic_output(path: str) -> Iterator[IO[bytes]]:
    """Open a binary file that appears under ``path`` only when complete; raise DataError if it cannot be written.

    If ``path`` is a symbolic link, its target is replaced. Devices and pipes are written directly.
    """
    target = Path(path)
    try:
        with open(target, "wb") if _is_special(target) else atomic_write(target.resolve()) as out:
            yield out
    except BrokenPipeError:
        raise
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror or error}") from error


def _is_special(path: Path) -> bool:
    return path.exists() and not path.is_file() and not path.is_dir()
