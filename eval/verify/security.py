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

from ..packs import Question, line_set
from .unverified import Unverified

CASES = Path(__file__).with_name("cases")
MARK = "//@FUNCTION@"
SANITIZE = ["-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
LANGUAGES = {"case.c": ("cc", "-std=c11"), "case.cpp": ("g++", "-std=c++17")}
REPORT = re.compile(r"AddressSanitizer|runtime error:")
EXIT_WRONG_RESULT = 77  # what a case's main returns when the function's result differs from the right one


class NoCompiler(Exception):
    """Raised if there is no C or C++ compiler with sanitizers."""


def shown_lines(question: str) -> list[str]:
    """Return the lines of the question's code block without their numbers; Unverified unless numbered 1, 2, 3 ..."""
    blocks = re.findall(r"^```c\n(.*?)^```", question, re.M | re.S)
    if len(blocks) != 1:
        raise Unverified(f"expected one code block, found {len(blocks)}")
    lines = []
    for number, text in enumerate(blocks[0].splitlines(), 1):
        match = re.fullmatch(r" ?(\d+)(?:  (.*))?", text)
        if match is None or int(match[1]) != number:
            raise Unverified(f"line {number} of the code block is not numbered as it should be: {text!r}")
        lines.append(match[2] or "")
    return lines


def build(lines: list[str], folder: Path, into: Path, name: str) -> Path:
    """Compile the case with the given function text under both sanitizers; return the program's path."""
    source = next((folder / file for file in LANGUAGES if (folder / file).exists()), None)
    if source is None:
        raise Unverified(f"{folder} has neither case.c nor case.cpp")
    compiler, standard = LANGUAGES[source.name]
    if shutil.which(compiler) is None:
        raise NoCompiler(compiler)
    case = source.read_text()
    if case.count(MARK) != 1:
        raise Unverified(f"{source} needs exactly one line {MARK}")
    text = into / (name + source.suffix)
    text.write_text(case.replace(MARK, "\n".join(lines)))
    program = into / name
    command = [compiler, standard, *SANITIZE, "-o", str(program), str(text)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if re.search(r"cannot find .*[at]san|cannot find .*ubsan|libclang_rt", done.stderr):
        raise NoCompiler(f"{compiler} without the sanitizers' libraries")
    if done.returncode != 0:
        raise Unverified(f"{name} does not compile:\n{done.stderr}")
    return program


def run(program: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run one mode of the case ("show" or "fuzz"), without the leak checker, which needs ptrace."""
    environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": ""}
    command = [str(program), *arguments]
    return subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=60, env=environment)


def expect_silence(program: Path, *arguments: str) -> None:
    """Raise Unverified unless the program exits 0 without a sanitizer's report."""
    done = run(program, *arguments)
    if done.returncode != 0 or REPORT.search(done.stderr):
        raise Unverified(f"{program.name} {arguments} ended with {done.returncode}:\n{done.stderr[:2000]}")


def expect_failure(program: Path) -> None:
    """Raise Unverified unless the unit test notices the defect.

    Other failures, such as a mistake in the case itself, do not count.
    """
    done = run(program, "show")
    if done.returncode != EXIT_WRONG_RESULT and not (done.returncode != 0 and REPORT.search(done.stderr)):
        raise Unverified(f"{program.name} show ended with {done.returncode}, no defect seen:\n{done.stderr[:2000]}")


def check(question: Question) -> None:
    """Raise Unverified unless compiler and sanitizers confirm the answer; NoCompiler if there is none."""
    folder = CASES / question.verifier
    lines = shown_lines(question.question)
    answer = (line_set(question.answer) or frozenset()) - {0}
    fix = {int(number): text for number, text in json.loads((folder / "fix.json").read_text()).items()}
    if set(fix) != answer or not answer <= set(range(1, len(lines) + 1)):
        raise Unverified(f"{question.id}: fix.json changes lines {sorted(fix)}, the answer is {question.answer}")
    with tempfile.TemporaryDirectory() as temporary:
        into = Path(temporary)
        shown = build(lines, folder, into, "shown")
        if not answer:
            expect_silence(shown, "show")
            # On a busy machine the time is up after one run, so a few runs are made in any case.
            end, seed = time.monotonic() + 1.5, 1
            while seed <= 3 or time.monotonic() < end:
                expect_silence(shown, "fuzz", "20000", str(seed))
                seed += 1
            return
        expect_failure(shown)
        fixed = build([fix.get(number, text) for number, text in enumerate(lines, 1)], folder, into, "fixed")
        expect_silence(fixed, "show")
        expect_silence(fixed, "fuzz", "20000", "1")
        # A set of lines has to be the smallest one: with any of its lines left as shown, the unit test must still fail.
        if len(fix) > 1:
            for kept in sorted(fix):
                partial = [fix[n] if n in fix and n != kept else text for n, text in enumerate(lines, 1)]
                expect_failure(build(partial, folder, into, f"kept_{kept}"))
