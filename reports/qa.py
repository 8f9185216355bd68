"""``ds4-report qa``: the sections of ds4's release checklist that apply here, run one after the other, on one page.

A section is a few commands of ours, or tests of the checkout; it passes if all of them exit with 0. What they write is
kept in a file beside the page. The page is written anew after every section, so an interrupted run leaves what it has.

    ds4-report qa -o qa                      everything, on the embedded model: qa/qa.md and qa/qa.json
    ds4-report qa --only bench,vectors -m model.gguf

Left out: Metal, ROCm and power, which this engine does not have; which release may leave, which a person decides.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from ctypes.util import find_library
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ds4ref.backends import lacks_cuda
from ds4ref.console.common import EXIT_INTERRUPTED, duration, say, visible
from ds4ref.errors import DataError, UsageError
from ds4ref.files import atomic_write
from ds4ref.runs.provenance import stamp

PROG = "ds4-report"
EXIT_INCOMPLETE = 4
PAGE, FACTS = "qa.md", "qa.json"
ROOM = 15.0
"""Seconds that a stopped section has to end by itself."""

MODULES = {
    "ds4": "ds4ref.cli.ds4",
    "ds4-bench": "ds4ref.speed_bench.cli",
    "ds4-eval": "ds4ref.eval.cli",
    "ds4-server": "ds4ref.cli.server",
    "ds4-vectors": "ds4ref.test_vectors.cli",
}
PASSED, FAILED, NOT_RUN, ABSENT = "passed", "failed", "not run", "does not apply"
PASS, FAIL, INCOMPLETE = "pass", "fail", "incomplete"


@dataclass(frozen=True)
class Section:
    """One section of the page.

    name      what --only and --skip call it
    about     what it shows
    steps     commands, run in order until one fails; {model} and {out} are filled in
    needs     packages to import, and "checkout" for tests and configuration that no wheel has
    applies   returns "" where the section applies to this machine, else why it does not
    """

    name: str
    about: str
    steps: tuple[tuple[str, ...], ...] = ()
    needs: tuple[str, ...] = ()
    applies: Callable[[], str] = lambda: ""


@dataclass
class Outcome:
    """What became of a section: a state, why, the last line of its output, seconds, and the file with all of it."""

    name: str
    about: str
    state: str = NOT_RUN
    why: str = "not reached"
    says: str = ""
    seconds: float = 0.0
    commands: list[str] = field(default_factory=list)
    file: str = ""


def never(why: str) -> Callable[[], str]:
    """Return an ``applies`` that always answers ``why``."""
    return lambda: why


def _vectors(folder: str, backend: str) -> tuple[tuple[str, ...], ...]:
    """Return the steps that record answers of the reference backend, and compare ``backend`` with them."""
    where, local = "{out}/" + folder, ("--target", "local:{model}")
    return (
        ("ds4-vectors", "capture", where, "--backend", "reference", "-n", "8", "--repeat", "1", *local),
        ("ds4-vectors", "check", where, "--backend", backend, "--no-store", *local),
    )


def _lacks_cuda() -> str:
    """Return why CUDA does not apply to this machine; a device whose driver cannot be used is a failure, not that."""
    if shutil.which("nvidia-smi") is None and find_library("cuda") is None:
        return "no NVIDIA driver"
    reason = lacks_cuda() if find_spec("numba_cuda") else ""
    return "" if reason.startswith("numba.cuda cannot be loaded") else reason


APART = "tests/session", "tests/agent", "tests/cluster", "tests/residency"
"""Tests that are sections of their own."""
TESTS = ("pytest", "-q", "-p", "no:cacheprovider")
SECTIONS = (
    Section("build", "kernels are compiled for this processor, the model opens and answers",
            (("ds4", "--inspect", "{model}"), ("ds4", "-m", "{model}", "-p", "Hello", "-n", "8", "--temp", "0"))),
    Section("repository", "style and types of the source tree",
            (("ruff", "check", "."), ("ruff", "format", "--check", "."), ("mypy",)), ("checkout", "ruff", "mypy")),
    Section("tests", "core tests: those of make test that no section below has",
            ((*TESTS, "-n", "auto", "--maxprocesses", "4", "--dist", "worksteal",
              *(f"--ignore={folder}" for folder in APART)),),
            ("checkout", "pytest", "xdist")),
    Section("vectors", "compiled kernels answer as plain NumPy does", _vectors("vectors", "cpu")),
    Section("eval", "graded answers, none left out",
            (("ds4-eval", "-m", "{model}", "--pack", "{pack}", "--plain", "-o", "{out}/eval.jsonl", "--no-store"),)),
    Section("bench", "speed against context depth",
            (("ds4-bench", "-m", "{model}", "--depths", "256,1024", "-n", "16", "-r", "2", "--csv",
              "{out}/bench.csv", "--no-store"),)),
    Section("server", "the server's APIs over plain HTTP, on the embedded model",
            (("ds4-server", "smoke", "--client", "http"),)),
    Section("disk-cache", "timelines on disk: stored, damaged, restored",
            ((*TESTS, APART[0]),), ("checkout", "pytest")),
    Section("agent", "the agent and its tools", ((*TESTS, APART[1]),), ("checkout", "pytest")),
    Section("experts", "experts read from disk when they are chosen: the same bits, errors, damaged files",
            ((*TESTS, APART[3]),), ("checkout", "pytest")),
    Section("cuda", "kernels on an NVIDIA GPU answer as plain NumPy does", _vectors("cuda-vectors", "cuda"),
            ("numba_cuda",), _lacks_cuda),
    Section("distributed", "layers over machines",
            ((*TESTS, "-m", "not slow", APART[2]),), ("checkout", "pytest", "distributed", "ds4ref.cluster")),
    Section("metal", "Flash and Pro on Metal", applies=never("this engine has no such backend")),
    Section("rocm", "AMD GPUs", applies=never("this engine has no such backend")),
)  # fmt: skip


class Checklist:
    """Runs sections into the folder ``out``, and keeps its page up to date.

    model     file that the sections use, None for the embedded one
    seconds   longest time of one section
    """

    def __init__(self, out: str, model: str | None, seconds: float, sections: Sequence[Section] = SECTIONS):
        self.out, self.model, self.seconds = Path(out).resolve(), model, seconds
        self.sections = sections
        self.outcomes = [Outcome(section.name, section.about) for section in sections]
        self.facts: dict[str, Any] = stamp()
        self.root = Path(__file__).resolve().parents[1]  # of the checkout, or of the installed package
        if not (self.root / "pyproject.toml").is_file():
            self.root = self.root.parent
        self.checkout = (self.root / "tests" / "conftest.py").is_file()

    def run(self, only: Sequence[str] = (), skip: Sequence[str] = ()) -> str:
        """Run the sections that are wanted; return the verdict. Ctrl-C: what ran is on the page, and it is raised."""
        names = [section.name for section in self.sections]
        unknown = [name for name in (*only, *skip) if name not in names]
        if unknown:
            raise UsageError(f"unknown section {unknown[0]!r}: choose from {', '.join(names)}")
        self._prepare()
        wanted = [name for name in names if (not only or name in only) and name not in skip]
        try:
            for number, (section, outcome) in enumerate(zip(self.sections, self.outcomes, strict=True), 1):
                self._section(section, outcome, section.name in wanted, f"[{number}/{len(names)}] {section.name}")
                self.write()
        except BaseException:
            self.write()
            raise
        return self.verdict()

    def _prepare(self) -> None:
        """Make the folder, and find the model; raise DataError or UsageError if either cannot be had."""
        if self.model is None:
            from ds4ref.nano.trained import embedded_path

            self.pack, path = "nano", embedded_path()
        else:
            self.pack, path = "ds4ref", os.path.abspath(self.model)
            if not os.path.exists(path):
                raise UsageError(f"no model file {self.model}")
        self.facts["model"] = path
        try:
            self.out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DataError(f"cannot make {self.out}: {error.strerror}") from None
        if any(self.out.iterdir()):
            raise UsageError(f"{self.out} is not empty: results of two runs would mix")

    def _section(self, section: Section, outcome: Outcome, wanted: bool, label: str) -> None:
        if reason := section.applies():
            outcome.state, outcome.why = ABSENT, reason
        elif not wanted:
            outcome.why = "left out by --only or --skip"
        elif lacks := [need for need in section.needs if not self._has(need)]:
            outcome.why = f"not here: {', '.join(lacks)}"
        else:
            say(PROG, f"{label}: {section.about}")
            self._steps(section, outcome)
        if wanted:
            took = f" in {duration(outcome.seconds)}" if outcome.file else ""
            say(PROG, f"{label}: {outcome.state}{took}" + (f": {outcome.why}" if outcome.why else ""))

    def _has(self, need: str) -> bool:
        return self.checkout if need == "checkout" else find_spec(need) is not None

    def _steps(self, section: Section, outcome: Outcome) -> None:
        began = time.monotonic()
        outcome.file, outcome.why = f"{section.name}.txt", "interrupted"
        try:
            with open(self.out / outcome.file, "wb") as log:
                for step in section.steps:
                    outcome.why = self._step(step, log, began + self.seconds, outcome)
                    if outcome.why:
                        break
            outcome.state = FAILED if outcome.why else PASSED
        finally:
            outcome.seconds = time.monotonic() - began
            lines = (self.out / outcome.file).read_text(encoding="utf-8", errors="replace").splitlines()
            outcome.says = next((visible(line.strip()) for line in reversed(lines) if line.strip()), "")[:200]

    def _step(self, step: Sequence[str], log: Any, until: float, outcome: Outcome) -> str:
        """Run one command, its output appended to ``log``; return why it failed, "" if it did not."""
        values = {"model": self.facts["model"], "out": str(self.out), "pack": self.pack}
        program, *rest = (word.format(**values) for word in step)
        outcome.commands.append(" ".join([program, *rest]))
        log.write(f"$ {outcome.commands[-1]}\n".encode())
        log.flush()
        path = os.pathsep.join(filter(None, [str(self.root), os.environ.get("PYTHONPATH")]))
        command = [sys.executable, "-m", "ds4ref.console.unit", MODULES.get(program, program), *rest]
        # a unit ends when its standard input does
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT,
                                 cwd=self.root if self.checkout else self.out,
                                 env={**os.environ, "PYTHONPATH": path, "NO_COLOR": "1"})  # fmt: skip
        try:
            code = child.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            return f"{program} was stopped after {duration(self.seconds)}"
        finally:
            assert child.stdin is not None
            child.stdin.close()
            try:
                child.wait(ROOM)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        return f"{program} exited with {code}" if code else ""

    def verdict(self) -> str:
        """Return "fail" if a section failed, "incomplete" if one that applies did not run to its end, else "pass"."""
        states = {outcome.state for outcome in self.outcomes}
        return FAIL if FAILED in states else INCOMPLETE if NOT_RUN in states else PASS

    def headline(self) -> str:
        """Return the verdict with the sections that decided it."""
        verdict = self.verdict()
        state = {FAIL: FAILED, INCOMPLETE: NOT_RUN, PASS: ABSENT}[verdict]
        names = ", ".join(outcome.name for outcome in self.outcomes if outcome.state == state)
        return verdict + (f": {state}: {names}" if names else "")

    def write(self) -> None:
        """Write the page and the same as JSON."""
        outcomes = [asdict(outcome) for outcome in self.outcomes]
        document = {**self.facts, "verdict": self.verdict(), "headline": self.headline(), "sections": outcomes}
        for name, text in ((FACTS, json.dumps(document, indent=1, ensure_ascii=False)), (PAGE, self._page())):
            with atomic_write(self.out / name) as file:
                file.write((text + "\n").encode())

    def _page(self) -> str:
        f, machine = self.facts, self.facts["machine"]
        lines = [
            "# Release check", "", f"**{self.headline()}**", "",
            f"- {f['created']}, ds4ref commit {f['commit'] or 'unknown'}, `{' '.join(f['command'])}`",
            f"- {machine['cpu'] or 'unknown processor'}, {machine['cores']} cores; "
            + ", ".join(f"{name} {version}" for name, version in f["versions"].items() if version),
            f"- model `{f['model']}`", "",
            "| section | shows | outcome | took | last line of its output |", "|---|---|---|---:|---|",
        ]  # fmt: skip
        for o in self.outcomes:
            name = f"[{o.name}]({o.file})" if o.file else o.name
            took = duration(o.seconds) if o.file else ""
            state = f"{o.state}: {o.why}" if o.why else o.state
            cells = (name, o.about, state, took, o.says)
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        lines += ["", "## Commands", "", *(f"    {line}" for o in self.outcomes for line in o.commands)]
        return "\n".join(lines)


def run_checklist(out: str, model: str | None, seconds: float, only: Sequence[str], skip: Sequence[str]) -> int:
    """Run ``ds4-report qa``; return 0 for pass, 1 for fail, 4 for incomplete, 130 for Ctrl-C."""
    checklist = Checklist(out, model, seconds)
    try:
        verdict = checklist.run(only, skip)
    except KeyboardInterrupt:
        verdict = ""
    print(checklist.headline())
    print(checklist.out / PAGE)
    return {PASS: 0, FAIL: 1, INCOMPLETE: EXIT_INCOMPLETE}.get(verdict, EXIT_INTERRUPTED)
