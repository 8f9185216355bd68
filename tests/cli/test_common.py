"""How commands fail, write and talk, without any model."""

import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ds4ref.console import common
from ds4ref.errors import Cancelled, DataError, ModelFileError, UsageError

ROOT = Path(__file__).resolve().parents[2]
DS4 = f"{sys.executable} -m ds4ref.cli.ds4"


def raising(error: BaseException):
    def body(argv):
        raise error

    return body


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (UsageError("what: why"), 2, "prog: what: why; see prog --help\n"),
        (ModelFileError("f.gguf", "bad magic", 0), 1, "prog: f.gguf: bad magic at byte 0\n"),
        (Cancelled("stopped"), 130, "prog: stopped\n"),
        (KeyboardInterrupt(), 130, "prog: interrupted\n"),
        (MemoryError(), 1, "prog: not enough memory\n"),
        (OSError(28, "No space left on device"), 1, "prog: input/output: No space left on device\n"),
        (FileNotFoundError(2, "No such file or directory", "x"), 1, "prog: x: No such file or directory\n"),
        (BrokenPipeError(32, "Broken pipe"), 141, ""),
        (TypeError("a\nb"), 1, "prog: internal error: TypeError: a b (a bug; set DS4_DEBUG=1 for a traceback)\n"),
    ],
)
def test_every_failure_is_one_line_and_a_code(error, code, line, capsys, monkeypatch):
    monkeypatch.delenv("DS4_DEBUG", raising=False)
    assert common.run("prog", raising(error), []) == code
    assert capsys.readouterr().err == line


def test_debug_shows_the_traceback(capsys, monkeypatch):
    monkeypatch.setenv("DS4_DEBUG", "1")
    assert common.run("prog", raising(UsageError("x")), []) == 2
    assert "Traceback" in capsys.readouterr().err


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_colours_are_for_terminals_that_want_them(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert common.has_colour(Terminal())
    assert not common.has_colour(io.StringIO())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not common.has_colour(Terminal())
    assert common.is_tty(Terminal())
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert not common.has_colour(Terminal())
    assert not common.is_tty(Terminal())


def test_progress_draws_on_a_terminal_only_and_wipes_itself(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(sys, "stderr", Terminal())
    with common.Progress("reading") as progress:
        progress(1, 4)
        progress(2, 4)  # too soon after the first
        progress(4, 4)
    assert sys.stderr.getvalue() == "\rreading: 1/4 (25.0%)\x1b[K\rreading: 4/4 (100.0%)\x1b[K\r\x1b[K"
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with common.Progress("reading") as progress:
        progress(1, 4)
    assert sys.stderr.getvalue() == ""


def test_progress_tells_rate_and_time_left_and_never_wraps(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(common, "columns", lambda stream: 60)
    monkeypatch.setattr(sys, "stderr", Terminal())
    clock = iter([100.0, 100.5, 104.0, 130.0])
    monkeypatch.setattr(common.time, "monotonic", lambda: next(clock))
    progress = common.Progress("units")
    progress(10, 20)  # ten were done before: nobody's speed
    progress(11, 20)  # after half a second no rate means anything
    progress(12, 20)
    monkeypatch.setattr(common, "columns", lambda stream: 30)
    progress(15, 20)
    progress.clear()
    lines = sys.stderr.getvalue().replace("\x1b[K", "").split("\r")
    assert lines == ["", "units: 10/20 (50.0%)", "units: 11/20 (55.0%)",
                     "units: 12/20 (60.0%), 30/min, 16 s left", "units: 75.0%, 10/min, 30 s le", ""]  # fmt: skip


@pytest.mark.parametrize(
    ("done", "left", "seconds", "text"),
    [
        (0, 9, 60.0, ""), (5, 5, 0.9, ""), (5, 0, 5.0, ", 1/s"), (4096, 4096, 2.0, ", 2048/s, 2 s left"),
        (3, 7, 90.0, ", 2/min, 4 min left"), (2, 46, 7200.0, ", 1/h, 1 d 22 h left"),
        (1, 1, 7500.0, ", 0.48/h, 2 h 5 min left"),
        (59, 1, 59 * 59.6, ", 1.01/min, 1 min left"),
    ],
)  # fmt: skip
def test_pace(done, left, seconds, text):
    assert common.pace(done, left, seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"), (59.4, "59 s"), (59.5, "1 min"), (3569, "59 min"), (3570, "1 h 0 min"), (86369, "23 h 59 min"),
        (86370, "1 d 0 h"), (10 * 86400 + 7200, "10 d 2 h"),
    ],
)  # fmt: skip
def test_a_duration_changes_its_unit_where_it_rounds_to_the_next(seconds, text):
    assert common.duration(seconds) == text


def test_interrupt_first_asks_then_insists():
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), common.Interrupt() as interrupt:
        assert not interrupt()
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupt()
        os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


# --- files


def test_output_appears_whole(tmp_path):
    path = tmp_path / "out"
    path.write_bytes(b"old")
    with common.atomic_output(str(path)) as out:
        out.write(b"new")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["out"]


def test_output_vanishes_with_a_failure(tmp_path):
    path = tmp_path / "out"
    path.write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt), common.atomic_output(str(path)) as out:
        out.write(b"half")
        raise KeyboardInterrupt
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["out"]


def test_output_through_a_link_and_to_a_device(tmp_path):
    (tmp_path / "there").mkdir()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "there" / "out")
    with common.atomic_output(str(link)) as out:
        out.write(b"x")
    assert link.is_symlink()
    assert (tmp_path / "there" / "out").read_bytes() == b"x"
    with common.atomic_output("/dev/null") as out:
        out.write(b"x")


needs_full = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full on this system")


@needs_full
def test_full_disk_is_one_line():
    with pytest.raises(DataError, match="cannot write /dev/full: No space left on device"):
        with common.atomic_output("/dev/full") as out:
            out.write(b"x" * 100_000)


def test_output_is_checked_early(tmp_path):
    common.check_output(str(tmp_path / "fine"))
    common.check_output("/dev/null")
    with pytest.raises(DataError, match="Is a directory"):
        common.check_output(str(tmp_path))
    with pytest.raises(DataError, match="no folder"):
        common.check_output(str(tmp_path / "none" / "out"))


def test_text_files_keep_every_byte(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(b" a\r\n\xffb\n")
    text = common.read_text(str(path), "text")
    assert text.encode("utf-8", "surrogateescape") == b" a\r\n\xffb\n"
    with pytest.raises(UsageError, match="cannot read prompt file .*none: No such file"):
        common.read_text(str(tmp_path / "none"), "prompt file")
    with pytest.raises(UsageError, match="Is a directory"):
        common.read_text(str(tmp_path), "prompt file")


# --- real processes


def run(*command: str) -> subprocess.CompletedProcess:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)


def python(code: str) -> subprocess.CompletedProcess:
    return run(sys.executable, "-c", code)


def bash(command: str) -> subprocess.CompletedProcess:
    return run("bash", "-c", command)


def test_help_starts_fast_and_imports_nothing_heavy():
    code = (
        "import sys, time\n"
        "from ds4ref.cli.ds4 import main\n"
        "main(['--help'])\n"
        "print(time.process_time(), file=sys.stderr)\n"
        "heavy = {'numba', 'llvmlite', 'numpy', 'pandas', 'tokenizers', 'prompt_toolkit', 'rich'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    best = 9.0
    for _ in range(3):
        done = python(code)
        assert done.returncode == 0, done.stderr
        best = min(best, float(done.stderr))
    assert best < 0.3


def test_a_closed_pipe_is_quiet():
    """Like `ds4 --help | true`: no traceback, no message from the interpreter's exit."""
    done = bash(f"{{ sleep 0.3; exec {DS4} --help; }} | true; echo ${{PIPESTATUS[0]}}")
    assert (done.stdout, done.stderr) == ("141\n", "")


@pytest.mark.parametrize(
    "where", [">&-", *(pytest.param(full, marks=needs_full) for full in ("2>&- >/dev/full", ">/dev/full"))]
)
def test_closed_and_full_streams(where):
    done = bash(f"{DS4} --help {where}")
    if where == ">&-":
        assert (done.returncode, done.stderr) == (0, "")
    else:
        assert done.returncode == 1
        assert done.stderr in ("", "ds4: input/output: No space left on device\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_no_temporary_file(number, tmp_path):
    code = (
        "import signal, time, sys\n"
        "signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"  # a suite under nohup ignores it
        "from ds4ref.console import common\n"
        "def body(argv):\n"
        "    with common.atomic_output(argv[0]) as out:\n"
        "        out.write(b'half'); out.flush(); print('ready', flush=True); time.sleep(3600)\n"
        f"sys.exit(common.run('prog', body, [{str(tmp_path / 'out')!r}]))"
    )
    process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    assert os.listdir(tmp_path) != []
    process.send_signal(number)
    assert process.wait(300) == 128 + number
    process.stdout.close()
    assert os.listdir(tmp_path) == []


def test_who_ignores_hangups_goes_on():
    """As under nohup; and handlers are put back."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert common.run("prog", lambda argv: os.kill(os.getpid(), signal.SIGHUP) or 7, []) == 7
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)]
    common.run("prog", lambda argv: 0, [])
    assert handlers == [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)]


@pytest.mark.parametrize("width, line", [
    (12, "processing "), (40, "processing 123456 input tokens: 100.0%"),
    (80, "processing 123456 input tokens: 5/5 (100.0%)"),
])  # fmt: skip
def test_progress_never_wraps(width, line, monkeypatch):
    """A line longer than the terminal could not be rewritten: each update would leave the one before behind."""
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr("os.get_terminal_size", lambda fd: os.terminal_size((width, 24)))
    monkeypatch.setattr(Terminal, "fileno", lambda self: 2)
    with common.Progress("processing 123456 input tokens") as progress:
        progress(5, 5)
        drawn = sys.stderr.getvalue()
    assert drawn == f"\r{line}\x1b[K"
