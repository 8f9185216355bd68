"""The screen comes and goes: the terminal is what it was, and the caller has the run, whatever happened."""

import functools
import gc
import os
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from ds4ref.errors import TargetError
from ds4ref.eval.plan import Settings, keys
from ds4ref.eval.runner import Runner
from ds4ref.eval.signals import Signals
from ds4ref.eval.tui import app as app_module
from ds4ref.eval.tui import show
from tests.marking import sampled

from .scripted import Scripted, integer, log_of
from .staged import Play

pytestmark = pytest.mark.skipif(not hasattr(os, "openpty"), reason="no pseudo-terminals here")

REPLAYED = Path(__file__).parents[1] / "data" / "replay"
UP, AWAY, CURSOR = b"\x1b[?1049h", b"\x1b[?1049l", b"\x1b[?25h"


class Terminal:
    """The demo on a terminal of its own; ``out`` is all it was sent."""

    def __init__(self, *args: str, size=(80, 24), stderr=None, module="tests.eval.demo"):
        import fcntl
        import struct
        import termios

        self.master, self.slave = os.openpty()
        if size:
            fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
        self.before = termios.tcgetattr(self.slave)
        slow = ("--rate", "100", "--prefill", "0.1") if module.endswith("demo") else ()
        command = [sys.executable, "-m", module, *slow, *args]
        env = {**os.environ, "TERM": "xterm-256color"}
        for name in ("COLUMNS", "LINES"):  # a terminal says its size itself
            env.pop(name, None)
        self.process = subprocess.Popen(
            command, stdin=self.slave, stdout=self.slave, stderr=stderr or self.slave, env=env, start_new_session=True
        )
        self.out = b""

    def until(self, word: bytes, seconds: float = 300.0):
        """Until it was written."""
        end = time.monotonic() + seconds
        while word not in self.out:
            assert time.monotonic() < end, self.out[-2000:]
            self.read()
        return self

    def read(self):
        if select.select([self.master], [], [], 0.1)[0]:
            self.out += os.read(self.master, 65536)

    def press(self, keys: bytes):
        os.write(self.master, keys)
        return self

    def kill(self, number: int):
        os.kill(self.process.pid, number)
        return self

    def ended(self) -> int:
        """Its exit code; checks that nothing is left of the screen."""
        import termios

        end = time.monotonic() + 300
        while self.process.poll() is None:
            assert time.monotonic() < end, self.out[-2000:]
            self.read()
        while select.select([self.master], [], [], 0.2)[0]:
            self.out += os.read(self.master, 65536)
        assert termios.tcgetattr(self.slave) == self.before
        assert self.out.count(AWAY) == self.out.count(UP) == 1
        after = self.out[self.out.rindex(AWAY) :]
        assert CURSOR in after and b"?1000h" not in after and b"right," in after, "and the report comes after it"
        return self.process.returncode

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for number in (self.master, self.slave):
            try:
                os.close(number)
            except OSError:
                pass


@pytest.fixture
def terminal():
    made = []

    def start(*args, **options):
        made.append(Terminal(*args, **options))
        return made[-1].until(UP if "--crash" in args or "module" in options else b"THINK")

    yield start
    for one in made:
        one.close()


@pytest.mark.parametrize("keys", sampled([b"q", b"o\x03", b"/x\x03", b"pq"], 2), ids=ascii)
def test_keys_that_end_it(terminal, keys):
    one = terminal()
    for key in keys:
        one.press(bytes([key]))
        for _ in range(5):
            one.read()
    assert one.ended() == 0
    assert b"0 of 0 right, 1 samples; signal 0" in one.out


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_signals_that_end_it(terminal, name):
    number = getattr(signal, name)
    one = terminal().kill(number)
    assert one.ended() == (130 if name == "SIGINT" else 128 + number)
    assert f"0 of 0 right, 1 samples; signal {number:d}".encode() in one.out


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("what", "said"),
    [("runner", b"RuntimeError: failed on purpose"), ("widget", b"RuntimeError: failed on purpose"),
     ("target", b"TargetError: 5 samples in a row failed")],
)  # fmt: skip
def test_failures_end_it(terminal, what, said):
    one = terminal("--crash", what)
    one.ended()
    assert said in one.out and b"Traceback" not in one.out


@pytest.mark.thorough
@pytest.mark.parametrize("how", ["keys", "signals"])
def test_twice_does_not_wait_for_what_hears_of_nothing(terminal, how):
    one = terminal("--crash", "hang").until(b"I hang now")
    first = (lambda: one.press(b"q")) if how == "keys" else (lambda: one.kill(signal.SIGTERM))
    first()
    one.until(b"STOPPING")
    assert one.process.poll() is None
    first()
    one.ended()
    assert b"Traceback" not in one.out
    assert b"ended with KeyboardInterrupt" in one.out and b"0 of 0 right, 0 samples" in one.out


@pytest.mark.thorough
def test_a_terminal_that_goes_away_takes_the_run_along(terminal):
    one = terminal()
    os.close(one.slave)
    os.close(one.master)
    one.kill(signal.SIGHUP)  # as the kernel or a shell does
    one.kill(signal.SIGCONT)
    assert one.process.wait(60) > 0, "it ends by itself, with an error, and is not killed"


@pytest.mark.thorough
def test_a_terminal_of_unknown_size(terminal):
    assert terminal(size=None).press(b"q").ended() == 0


@pytest.mark.thorough
def test_the_screen_is_where_the_user_looks(terminal, tmp_path):
    with open(tmp_path / "errors", "wb") as errors:
        one = terminal(stderr=errors)
        assert one.press(b"q").ended() == 0
    assert (tmp_path / "errors").read_bytes() == b""


@pytest.mark.thorough
def test_a_resize_in_the_middle(terminal):
    import fcntl
    import struct
    import termios

    one = terminal()
    fcntl.ioctl(one.slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 200, 0, 0))
    one.kill(signal.SIGWINCH)
    assert one.until(b"\x1b[50;").press(b"q").ended() == 0


# --- in this process, without a terminal


@pytest.fixture
def headless(monkeypatch):
    run = app_module.EvalApp.run_async
    monkeypatch.setattr(app_module.EvalApp, "run_async", functools.partialmethod(run, headless=True, size=(80, 24)))


def shown(folder, signals, listen=lambda event: None, **options):
    questions = [integer(i) for i in range(1, 4)]
    play = Play(questions)
    log = log_of(folder / "log.jsonl", questions)

    def make(hear):
        def both(event):
            listen(event)
            hear(event)

        return Runner(Scripted(play), log, keys(questions, 1), settings=Settings(tokens=2000), questions=questions,
                      listen=both)  # fmt: skip

    try:
        show(make, questions, 1, log, title="a play", signals=signals, pause_s=0.0, stay=False, **options)
    finally:
        log.close()
    return log


def test_it_leaves_the_process_as_it_was(tmp_path, headless):
    numbers = [signal.SIGTSTP, signal.SIGCONT, signal.SIGWINCH, signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
    before = [signal.getsignal(number) for number in numbers], sys.getswitchinterval(), gc.get_freeze_count()
    threads = set(threading.enumerate())
    gc.unfreeze()  # the suite's own: the screen freezes what there is, and thaws all
    before = *before[:2], 0
    assert len(shown(tmp_path, Signals()).samples) == 3
    assert ([signal.getsignal(number) for number in numbers], sys.getswitchinterval(), gc.get_freeze_count()) == before
    assert set(threading.enumerate()) == threads


@pytest.mark.thorough
def test_what_is_printed_meanwhile_comes_out_afterwards(tmp_path, headless, capsys):
    def talks(event):
        print("something went by")

    shown(tmp_path, Signals(), talks)
    assert "something went by" in capsys.readouterr().err


@pytest.mark.thorough
def test_errors_of_the_run_are_raised(tmp_path, headless):
    def broken(event):
        raise TargetError("the listener broke")

    with pytest.raises(TargetError, match="the listener broke"):
        shown(tmp_path, Signals(), broken)


@pytest.mark.thorough
def test_errors_of_the_screen_are_raised_and_the_run_has_ended(tmp_path, headless, monkeypatch):
    drawn = threading.Event()

    def broken(header):
        drawn.set()
        raise ZeroDivisionError("in a widget")

    monkeypatch.setattr("ds4ref.eval.tui.header.Header._score", broken)
    with pytest.raises(ZeroDivisionError):
        shown(tmp_path, Signals(), lambda event: drawn.wait(60))  # the run does not end before the first frame
    assert drawn.is_set() and not [t for t in threading.enumerate() if t.name == "eval"]


@pytest.mark.thorough
def test_signals_that_came_before_the_screen_are_heard(tmp_path, headless):
    with Signals() as signals:
        signals.press()
        log = shown(tmp_path, signals)
    assert not log.samples, "nothing begins that nobody wants"


# --- the command itself


@pytest.mark.thorough
def test_q_with_questions_left_is_no_success(terminal, nano_path, tmp_path):
    """As any gate would take 0 for a run that has all its answers."""
    log = str(tmp_path / "run.jsonl")
    run = terminal("-m", str(nano_path), "--pack", "nano", "--only", "facts,lists", "-n", "2", "--no-store", "-o", log,
                   "--pause-ms", "2000", module="ds4ref.eval.cli")  # fmt: skip
    run.until(b"1/40").press(b"q")
    assert run.ended() == 1 and b"samples are missing" in run.out


@pytest.mark.thorough
def test_a_replay_on_a_terminal(terminal):
    run = terminal(
        "--replay", str(REPLAYED / "broken.jsonl"), "--speed", "0.5", size=(110, 30), module="ds4ref.eval.cli"
    )
    run.until(b"REPLAY 0.5").press(b"+").until(b"REPLAY 1").press(b"q")
    assert run.ended() == 0 and b"3 right, 4 wrong, 1 ambiguous, 4 no answer" in run.out
