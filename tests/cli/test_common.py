"""How commands fail, write and talk, without any model."""

import io
import os
import signal
import subprocess
import sys

import pytest

from ds4ref.console import common
from ds4ref.errors import Cancelled, DataError, ModelFileError, UsageError
from tests.terminal import ROOT

DS4 = f"{sys.executable} -m ds4ref.cli.ds4"


def raising(error: BaseException):
    def body(argv):
        raise error

    return body


def test_durations_at_the_edges_of_their_units():
    spans = (0, 59.4, 59.5, 89, 91, 3569, 3571, 24 * 3600 - 31, 24 * 3600)
    texts = ["0 s", "59 s", "1 min", "1 min", "2 min", "59 min", "1 h 0 min", "23 h 59 min", "1 d 0 h"]
    assert [common.duration(span) for span in spans] == texts


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
        progress.clear()
        progress(3, 4)  # never too soon after other output
        progress(4, 4)
    assert sys.stderr.getvalue() == (
        "\rreading: 1/4 (25.0%)\x1b[K\r\x1b[K\rreading: 3/4 (75.0%)\x1b[K\rreading: 4/4 (100.0%)\x1b[K\r\x1b[K"
    )
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with common.Progress("reading") as progress:
        progress(1, 4)
    assert sys.stderr.getvalue() == ""


def test_progress_tells_the_time_left_and_never_wraps(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(common, "columns", lambda stream: 60)
    monkeypatch.setattr(sys, "stderr", Terminal())
    clock = iter([100.0, 100.5, 104.0, 130.0])
    monkeypatch.setattr(common.time, "monotonic", lambda: next(clock))
    progress = common.Progress("units")
    progress(10, 20)  # ten were done before: nobody's speed
    progress(11, 20)  # half a second says nothing
    progress(12, 20)
    monkeypatch.setattr(common, "columns", lambda stream: 25)
    progress(15, 20)
    progress.clear()
    lines = sys.stderr.getvalue().replace("\x1b[K", "").split("\r")
    assert lines == ["", "units: 10/20 (50.0%)", "units: 11/20 (55.0%)", "units: 12/20 (60.0%), 16 s left",
                     "units: 15/20 (75.0%), 30", ""]  # fmt: skip


def test_interrupt_first_asks_then_insists():
    before = signal.getsignal(signal.SIGINT)
    asked = []
    with pytest.raises(KeyboardInterrupt), common.Interrupt(signal.SIGTERM) as interrupt:
        assert not interrupt() and interrupt.exit_code == 0
        interrupt.second = lambda: asked.append(interrupt.exit_code)
        os.kill(os.getpid(), signal.SIGTERM)
        assert interrupt() and not asked
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        assert asked == [143, 143]
        interrupt.second = None
        os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before and asked == [143, 143]


# --- files


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


def test_output_is_checked_early(tmp_path):
    common.check_output(str(tmp_path / "fine"))
    common.check_output("/dev/null")
    with pytest.raises(DataError, match="Is a directory"):
        common.check_output(str(tmp_path))
    with pytest.raises(DataError, match="no folder"):
        common.check_output(str(tmp_path / "none" / "out"))


# --- real processes


def bash(command: str) -> subprocess.CompletedProcess:
    return subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, timeout=60)


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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
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
