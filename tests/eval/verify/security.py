"""Prove the answers of the security items by compiling and running them.

Every item shows one numbered function. Its folder ``cases/<verifier>/`` has ``case.c`` or ``case.cpp`` (the code around
the function, a unit test ``show``, and a ``fuzz`` loop that compares with an independent reference) and ``fix.json``
(new text for exactly the lines of the answer). For a defect, the shown function must fail its unit test, and the fixed
one must pass it and a short fuzz run, too. For an item without a defect, the function as shown must pass both.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from ds4ref.eval.packs import Question

CASES = Path(__file__).with_name("cases")
MARK = "//@FUNCTION@"
SANITIZE = ["-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
REPORT = re.compile(r"AddressSanitizer|runtime error:")
EXIT_WRONG_RESULT = 77  # what a case's main returns when the function's result differs from the right one


def shown_lines(question: str) -> list[str]:
    """Return the lines of the question's only code block, which are numbered 1, 2, 3 ..., without their numbers."""
    (block,) = re.findall(r"^```c\n(.*?)^```", question, re.M | re.S)
    lines = [re.fullmatch(r" ?(\d+)(?:  (.*))?", line) for line in block.splitlines()]
    assert [line and int(line[1]) for line in lines] == list(range(1, len(lines) + 1))
    return [(line and line[2]) or "" for line in lines]


def build(lines: list[str], folder: Path, into: Path, name: str) -> Path:
    """Compile the case with the given function text under both sanitizers; return the program's path."""
    (source,) = folder.glob("case.*")
    compiler, standard = ("cc", "-std=c11") if source.suffix == ".c" else ("g++", "-std=c++17")
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler}")
    case, text, program = source.read_text(), into / (name + source.suffix), into / name
    assert case.count(MARK) == 1
    text.write_text(case.replace(MARK, "\n".join(lines)))
    command = [compiler, standard, *SANITIZE, "-o", str(program), str(text)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if re.search(r"cannot find .*[at]san|cannot find .*ubsan|libclang_rt", done.stderr):
        pytest.skip(f"{compiler} without the sanitizers' libraries")
    assert done.returncode == 0, done.stderr
    return program


def run(program: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run one mode of the case ("show" or "fuzz"), without the leak checker, which needs ptrace."""
    environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": ""}
    command = [str(program), *arguments]
    return subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=60, env=environment)


def silent(program: Path, *arguments: str) -> bool:
    """Return whether the program exits 0 without a sanitizer's report."""
    done = run(program, *arguments)
    return done.returncode == 0 and not REPORT.search(done.stderr)


def fails(program: Path) -> bool:
    """Return whether the unit test notices the defect; other failures, as of the case itself, do not count."""
    done = run(program, "show")
    return done.returncode == EXIT_WRONG_RESULT or (done.returncode != 0 and REPORT.search(done.stderr) is not None)


def answer(question: Question) -> str:
    """Return the lines of ``fix.json``, "0" for none, after compiler and sanitizers have confirmed them."""
    folder = CASES / question.verifier
    lines = shown_lines(question.question)
    fix = {int(number): text for number, text in json.loads((folder / "fix.json").read_text()).items()}
    with tempfile.TemporaryDirectory() as temporary:
        into = Path(temporary)

        def changed(numbers: set[int], name: str) -> Path:
            return build([fix[n] if n in numbers else text for n, text in enumerate(lines, 1)], folder, into, name)

        shown = changed(set(), "shown")
        if not fix:
            assert silent(shown, "show")
            # On a busy machine the time is up after one run, so a few runs are made in any case.
            end, seed = time.monotonic() + 1.5, 1
            while seed <= 3 or time.monotonic() < end:
                assert silent(shown, "fuzz", "20000", str(seed))
                seed += 1
            return "0"
        assert max(fix) <= len(lines) and fails(shown)
        fixed = changed(set(fix), "fixed")
        assert silent(fixed, "show") and silent(fixed, "fuzz", "20000", "1")
        # The set of lines has to be the smallest: with any of them left as shown, the unit test must still fail.
        assert all(fails(changed(set(fix) - {kept}, f"kept_{kept}")) for kept in fix if len(fix) > 1)
    return ",".join(map(str, sorted(fix)))
