"""The progress line: what it says, how wide it is, and that it makes room."""

import io
from types import SimpleNamespace

import pytest

from ds4ref.console import common


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def terminal(monkeypatch):
    """Standard error as a terminal; its width and the time are up to the test."""
    found = Terminal()
    found.now, found.width = 100.0, 80
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(common, "sys", SimpleNamespace(stderr=found))  # pytest puts its own back for each phase
    monkeypatch.setattr(common, "columns", lambda stream: found.width)
    monkeypatch.setattr(common.time, "monotonic", lambda: found.now)
    return found


def shown(terminal):
    return terminal.getvalue().split("\r")[-1].removesuffix("\x1b[K")


def test_time_left_once_it_can_be_said(terminal):
    progress = common.Progress("measuring")
    progress(100, 1000)
    assert shown(terminal) == "measuring: 100/1000 (10.0%)"
    terminal.now += 10
    progress(150, 1000)
    assert shown(terminal) == "measuring: 150/1000 (15.0%), 5/s, 3 min left", "by what was done since it began"
    terminal.now += 1
    progress(1000, 1000)
    assert shown(terminal) == "measuring: 1000/1000 (100.0%), 81.8/s"


@pytest.mark.parametrize("width", [80, 40, 30, 12])
def test_a_line_never_wraps(terminal, width):
    terminal.width, progress = width, common.Progress("measuring")
    progress(0, 100_000)
    terminal.now += 60
    progress(30_000, 100_000)
    assert len(shown(terminal)) < width and "30.0"[: width - 12] in shown(terminal)


def test_it_makes_room_and_comes_back(terminal):
    with common.Progress("measuring") as progress:
        progress(1, 10)
        progress.clear()
        assert shown(terminal) == ""
        progress(2, 10)
        assert shown(terminal) == "measuring: 2/10 (20.0%)", "at once, not a tenth of a second later"
    assert shown(terminal) == ""
