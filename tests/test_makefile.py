"""What a newcomer meets first: the two commands, and clear words when they cannot work."""

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import ds4ref

ROOT = Path(__file__).resolve().parents[1]
MARK = "pytest.mark." + "cuda"

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="no make here")


def make(*arguments, folder=ROOT):
    return subprocess.run(["make", *arguments], cwd=folder, capture_output=True, text=True, timeout=60)


@pytest.fixture
def copy(tmp_path):
    """The Makefile without the rest of the tree."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def interpreter(folder: Path, name: str, script: str) -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def test_help_lists_every_target():
    text = make("help").stdout
    targets = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE).group(1).split()
    assert {"run", "test", "lint", "oracle", "bench", "mutants", "clean", "help"} <= set(targets)
    assert all(f"make {target}" in text for target in targets)


def test_the_same_pythons_are_named_everywhere():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [line.rpartition(" ")[2] for line in project["classifiers"] if re.search(r":: Python :: 3\.\d+$", line)]
    assert named == ["3.11", "3.12", "3.13", "3.14"] and project["requires-python"] == f">={named[0]}"
    assert f"Python {', '.join(named[:-1])} or {named[-1]}" in (ROOT / "README.md").read_text()
    tried = re.search(r"^PYTHON \?= .*in ([^;]*);", (ROOT / "Makefile").read_text(), re.MULTILINE).group(1).split()
    assert {f"python{version}" for version in named} <= set(tried)


def test_make_cuda_runs_every_test_of_compiled_kernels():
    text = (ROOT / "Makefile").read_text()
    compiled = re.search(r"^COMPILED := ((?:.*\\\n)*.*)$", text, re.MULTILINE).group(1).replace("\\", "").split()
    assert all((ROOT / place).exists() for place in compiled)
    marked = [path for path in (ROOT / "tests").rglob("test_*.py") if MARK in path.read_text()]
    inside = [path for path in marked if any(path.is_relative_to(ROOT / place) for place in compiled)]
    assert marked == inside and len(marked) >= 3


def test_an_old_python_is_refused_in_one_line(copy):
    old = interpreter(copy, "python-old", "exit 1")
    done = make("run", f"PYTHON={old}", folder=copy)
    assert done.returncode != 0 and f"make: {old} is not a Python >= 3.11\n" in done.stderr
    assert not (copy / ".venv").exists()


@pytest.mark.parametrize("python", ["3.11", "3.13"])
def test_every_requirement_is_pinned_once_and_within_its_range(python):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    here = {"python_version": python, "python_full_version": f"{python}.4", "sys_platform": "linux"}
    pins: dict[str, str] = {}
    for line in (ROOT / "constraints.txt").read_text().splitlines()[1:]:
        pin = Requirement(line)
        if pin.marker is None or pin.marker.evaluate(here):
            assert pins.setdefault(pin.name, str(pin.specifier)[2:]) == str(pin.specifier)[2:]
    for wanted in map(Requirement, [*project["dependencies"], *extras["test"], *extras["oracle"]]):
        assert wanted.specifier.contains(pins[canonicalize_name(wanted.name)]), wanted


def test_where_pins_cannot_be_had_the_ranges_are_installed(copy):
    pip = interpreter(copy, "python-fake", 'echo "$@" >> calls; case "$*" in *constraints*) exit 1;; esac')
    (copy / "venv/bin").mkdir(parents=True)
    pip.rename(copy / "venv/bin/python")
    for pins in (False, True):
        if pins:
            (copy / "constraints.txt").write_text("numpy==0.0.1\n")
        done = make("venv/.test", "VENV=venv", folder=copy)
        assert done.returncode == 0 and ("not to be had here" in done.stderr) == pins
    calls = [line.partition("--no-compile ")[2] for line in (copy / "calls").read_text().splitlines()]
    assert calls == ["-e .[test]", "-c constraints.txt -e .[test]", "-e .[test]"]


def test_version_and_scripts_agree():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["tool"]["setuptools"]["dynamic"]["version"]["attr"] == "ds4ref.version.__version__"
    assert re.fullmatch(r"\d+\.\d+\.\d+", ds4ref.__version__)
    for target in project["project"]["scripts"].values():
        module, function = target.split(":")
        text = ROOT.joinpath(*module.split(".")).with_suffix(".py").read_text()
        assert f"def {function}(" in text


def test_the_changelog_begins_with_this_version():
    newest = (ROOT / "CHANGELOG.md").read_text().split("\n## ")[1]
    assert newest.startswith(ds4ref.__version__ + " ")
