"""The campaign in small: what it looks for is not there, and what is planted is seen."""

from __future__ import annotations

import json
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from benchmarks.campaign.kinds import plain_line
from benchmarks.campaign.parsers import PARSERS
from benchmarks.campaign.server import under_load
from benchmarks.campaign.states import counted
from ds4ref.eval import log as logs
from ds4ref.text import library, template


@pytest.fixture(autouse=True)
def own_processes(monkeypatch):
    """Undo what the campaign sets for its own process."""
    for module in (library, template):
        monkeypatch.setattr(module, "LimitedProcess", module.LimitedProcess)


NUMBERS = [b"-1", b"0", str(2**64 - 1).encode(), b"9" * 40, b"1e308", b"0.5", b"null", b"true"]


def mutated(rng: random.Random, clean: bytes) -> bytes:
    """Bytes of which a few are others, a field or a number is extreme, a piece is gone or doubled, or the end."""
    data = bytearray(clean)
    for _ in range(rng.choice((1, 1, 1, 2))):
        if len(data) < 10:
            break
        place, digits = rng.randrange(1, len(data) - 8), [i for i, code in enumerate(data) if chr(code).isdigit()]
        match rng.randrange(8):
            case 0 | 1:
                data[place] = rng.randrange(256)
            case 2:
                data[place : place + 1] = rng.choice([b"[", b"]", b"{", b"}", b'"', b",", b":", b"\\", b"\0", b"\xc3"])
            case 3:
                data[place : place + 8] = struct.pack("<Q", rng.choice((0, 1, 1 << 32, 1 << 40, 1 << 63, 2**64 - 1)))
            case 4:
                data[place : place + 4] = struct.pack("<f", rng.choice([float("nan"), float("inf"), -1.0, 1e38]))
            case 5 if digits:
                data[rng.choice(digits) : rng.choice(digits) + 1] = rng.choice(NUMBERS)
            case 6:
                data[place:place] = data[place : place + rng.choice((1, 4, 40))]
            case _:
                del data[place : rng.choice((place + 1, place + 4, place + 40, len(data)))]
    return bytes(data)


@pytest.mark.parametrize("name", PARSERS)
def test_damaged_inputs_are_refused_in_a_line(name, tmp_path):
    """Twenty plain mutations of each parser's inputs; ``make campaign`` looks for what they do not reach."""
    seeds, read = PARSERS[name](tmp_path)
    for seed in seeds[:4]:
        read(seed)
    rng = random.Random(name)
    for number in range(20):
        data = mutated(rng, seeds[number % len(seeds)])
        try:
            read(data)
        except Exception as error:
            assert plain_line(error) == "", data[:2000]


@pytest.fixture(scope="module")
def layer(tmp_path_factory):
    from benchmarks.campaign.faults import layer

    if sys.platform != "linux" or shutil.which("cc") is None:
        pytest.skip("needs Linux and a C compiler")
    return layer(tmp_path_factory.mktemp("layer"))


def faults(layer: Path, name: str, plant: str = "") -> dict:
    """What ``benchmarks.campaign.faults`` says about one work, with ``plant`` executed before."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
        start = f"faults.main({name!r}, faults.Path({folder!r}), 3, 1)"
        code = f"from benchmarks.campaign import faults\n{plant}\n{start}"
        done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "LD_PRELOAD": str(layer)},
                              capture_output=True, text=True, timeout=600)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


LONG = (
    "disk_cache",
    "run_store",
    "new_store",
    "save",
    "export",
    "quantize",
    "capture",
    "kernel_cache",
    "model_cache",
    "atomic_file",
)


@pytest.mark.parametrize(
    "name",
    ["eval_log", "new_log", "results_csv", *(pytest.param(n, marks=pytest.mark.thorough) for n in LONG)],
)
def test_what_is_there_is_the_old_or_the_new_whatever_call_fails(name, layer):
    found = faults(layer, name)
    assert found["kinds"] == {}, found["examples"]
    assert found["calls: kill"] == found["calls: no space"] > 3 and found["kills"] > 3


PLANTED = {
    "written in place": """
import contextlib, ds4ref.files
def bad(path):
    with open(path, "wb") as out:
        yield out
ds4ref.files.atomic_write = contextlib.contextmanager(bad)
""",
    "no line": """
import ds4ref.files
def bad(fd, real=ds4ref.files.flush_to_disk):
    try:
        real(fd)
    except OSError:
        raise ValueError
ds4ref.files.flush_to_disk = bad
""",
    "not removed": "import ds4ref.files\nds4ref.files._remove_unlocked = lambda path: None",
}


@pytest.mark.parametrize("mistake", PLANTED)
def test_planted_mistakes_are_seen(mistake, layer):
    assert faults(layer, "atomic_file", plant=PLANTED[mistake])["kinds"]


def test_failures_are_told_by_kind_and_place():
    from ds4ref.errors import DataError

    def fails() -> None:
        {}["x"]

    for error, kind in ((DataError("a\nb\0"), ""), (DataError("x" * 2000), "no line")):
        assert kind in plain_line(error)
    with pytest.raises(KeyError) as caught:
        fails()
    assert plain_line(caught.value) == "KeyError: test_campaign.py:fails"
    assert "does not name the file" in plain_line(DataError("a"), "b")


@pytest.mark.parametrize("name", ["disk cache", "eval log", pytest.param("answers", marks=pytest.mark.thorough)])
def test_any_order_gives_what_a_fresh_run_gives(name):
    steps, failures, last = counted(name, 300, 300, 1)
    assert not failures and steps >= 300, last


def test_a_log_that_is_resumed_one_byte_late_is_seen(monkeypatch):
    scan = logs._scan
    monkeypatch.setattr(logs, "_scan", lambda path: (*scan(path)[:3], path.stat().st_size))
    assert counted("eval log", 1500, 300, 1, shrink=False)[1]


@pytest.mark.thorough
def test_a_server_under_hostile_clients_answers_and_holds_its_bounds():
    requests, failures, figures = under_load(40, 120, 1)
    assert requests >= 40 and not failures and figures["nonsense"] > 50 and figures["left"] > 50
