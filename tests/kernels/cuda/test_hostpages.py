"""Reading a mapped file's pages with several threads, and what becomes of a file that vanishes."""

from __future__ import annotations

import mmap
import os
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from ds4ref.kernels.cuda.driver import hostpages
from ds4ref.kernels.cuda.driver.hostpages import available, pages_of, read_in

PAGE = mmap.PAGESIZE


def mapped(path: Path, pages: int) -> np.ndarray:
    path.write_bytes(bytes(pages * PAGE))
    with path.open("rb") as file:
        return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)


def test_pages_around_arrays_are_named_once(tmp_path: Path) -> None:
    data = mapped(tmp_path / "file", 10)
    start = data.ctypes.data
    assert pages_of([data[:1]]) == [(start, PAGE)]
    assert pages_of([data[PAGE - 1 : PAGE + 1]]) == [(start, 2 * PAGE)]
    assert pages_of([data[: 3 * PAGE], data[PAGE : PAGE + 1]]) == [(start, 3 * PAGE)]
    touching = [data[5 * PAGE : 6 * PAGE], data[10:20], data[PAGE + 1 : 2 * PAGE], data[30:40]]
    assert pages_of(touching) == [(start, 2 * PAGE), (start + 5 * PAGE, PAGE)]
    assert pages_of([data[:PAGE], data[2 * PAGE : 2 * PAGE + 1]]) == [(start, PAGE), (start + 2 * PAGE, PAGE)]


@pytest.mark.skipif(sys.platform != "linux", reason="asks the kernel of Linux")
@pytest.mark.parametrize("pages", [3, 7])
def test_a_file_that_was_cut_short_is_one_line(tmp_path: Path, pages: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one piece and in several; an access would kill the process."""
    monkeypatch.setattr(hostpages, "PIECE", 4 * PAGE)
    data = mapped(tmp_path / "file", pages)
    read_in([data])
    os.truncate(tmp_path / "file", PAGE)
    with pytest.raises(OSError, match="^the model's file cannot be read any more: [^\n]*$"):
        read_in([data])
    read_in([data[:PAGE]])


@pytest.mark.skipif(sys.platform == "win32", reason="sends a signal to a thread")
def test_an_interrupt_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = []

    def slowly(piece: tuple[int, int]) -> None:
        read.append(piece)
        if len(read) == 20:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        time.sleep(0.002)

    monkeypatch.setattr(hostpages, "_read_piece", slowly)
    monkeypatch.setattr(hostpages, "PIECE", PAGE)
    with pytest.raises(KeyboardInterrupt):
        read_in([mapped(tmp_path / "file", 4000)])
    seen = -1
    while seen != len(read):  # pieces under way end, and no others are read
        seen = len(read)
        time.sleep(0.1)
    assert len(read) < 2000


def test_memory_that_programs_can_have(tmp_path: Path) -> None:
    told = tmp_path / "meminfo"
    told.write_text("MemTotal:       4000 kB\nMemFree:         100 kB\nMemAvailable:   3000 kB\n")
    assert available(told) == 3000 << 10
    told.write_text("MemTotal:       4000 kB\n")
    assert available(told) is None
    assert available(tmp_path / "nothing") is None
