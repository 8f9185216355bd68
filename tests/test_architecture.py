"""docs/explanation/architecture.md: one token's way is what the page says, for prefill and decode."""

from __future__ import annotations

import gc
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ds4ref.engine import Engine

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "explanation" / "architecture.md"
PROMPT = 300
"""Tokens; so many that the indexer has to choose."""


def listed(*kinds: str) -> list[str]:
    """Files under ds4ref that the page lists, in its order."""
    block = re.search(r"```text\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert block
    lines = [line.split() for line in block.group(1).splitlines()]
    return [name for kind, *names in lines if kind in kinds for name in names]


def entered(work: Callable[[], Any]) -> list[str]:
    """Files of ours whose functions ``work`` calls, by first entry."""
    found: dict[str, None] = {}

    def seen(frame: Any, event: str, _: Any) -> None:
        if event == "call":
            found.setdefault(frame.f_code.co_filename)

    before = sys.getprofile()
    gc.collect()  # what earlier tests left behind is not entered on our behalf
    gc.disable()
    sys.setprofile(seen)
    try:
        work()
    finally:
        sys.setprofile(before)
        gc.enable()
    rooms = (ROOT / "ds4ref", ROOT / "kernels")
    files = dict.fromkeys(Path(f).resolve() for f in found)  # rooms are links inside ds4ref
    return [str(f.relative_to(ROOT)) for f in files if any(f.is_relative_to(room) for room in rooms)]


def of_the_engine(files: list[str]) -> list[str]:
    """Those of ds4ref, without the dimensions."""
    return [f.removeprefix("ds4ref/") for f in files if f.startswith("ds4ref/") and not f.endswith("/shape.py")]


@pytest.fixture(scope="module")
def engine(nano_path) -> Engine:
    return Engine.open(nano_path, threads=1)


def test_prefill_and_decode_enter_what_the_page_lists(engine):
    session = engine.session(PROMPT + 20)
    prefill = entered(lambda: session.sync(list(range(60, 60 + PROMPT))))
    decode = entered(lambda: [session.eval(token) for token in range(4)])  # one of them closes a window
    assert of_the_engine(prefill) == listed("prefill", "both")
    assert of_the_engine(decode) == listed("decode", "both")
    kernels = [
        {f for f in files if f.startswith("kernels/cpu/")} - {"kernels/cpu/library.py"} for files in (prefill, decode)
    ]
    recorded = {f"kernels/cpu/{name}.py" for name in ("recording", "schedule", "ranking")}
    assert kernels[1] == kernels[0] - {"kernels/cpu/reuse.py"} | recorded  # a token's results are in its recording


def test_a_replayed_token_computes_nothing_in_python(engine):
    session = engine.session(PROMPT + 20)
    session.sync(list(range(60, 60 + PROMPT)))
    for token in range(8):
        session.eval(token)
    files = entered(lambda: [session.eval(token) for token in range(4)])
    page = PAGE.read_text(encoding="utf-8")
    told = page[page.index("A replayed token enters") :].partition("\n\n")[0]
    names = set(re.findall(r"(\w+\.py)", told))
    assert {Path(f).name for f in of_the_engine(files)} == names - {"recording.py", "workers.py"}
    assert {Path(f).name for f in files if f.startswith("kernels/cpu/")} == {"recording.py", "workers.py", "backend.py"}


@pytest.mark.parametrize("page", [PAGE, ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_the_files_that_a_page_names_exist(page):
    text = page.read_text(encoding="utf-8")
    names = set(re.findall(r"`([\w/]+(?:\.py|/))`", text)) | set(re.findall(r"`((?:ds4ref|kernels)/[\w/.]+)`", text))
    rooms = ("ds4ref", "kernels", "speed_bench", "test_vectors", "reports", "benchmarks", "findings", "tests", "docs")
    ours = [f"/{path.relative_to(ROOT)}" for room in rooms for path in (ROOT / room, *(ROOT / room).rglob("*"))]
    missing = {
        name for name in names if "NAME" not in name and not any(f.endswith("/" + name.rstrip("/")) for f in ours)
    }
    assert len(names) > 12 and not missing
