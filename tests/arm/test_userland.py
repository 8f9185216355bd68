"""What ``make arm`` says where something is missing, and what it makes; the user space itself is made by hand only."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from . import drawn, suite, userland
from .userland import MACHINES, ROOT, UserlandError


def test_without_qemu_one_line_says_what_to_install(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", "from pathlib import Path; from tests.arm import userland\n"
         "try: userland.make(Path('out'))\nexcept userland.UserlandError as error: print(error)"],
        cwd=tmp_path, env={"PATH": str(tmp_path), "PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
    )  # fmt: skip
    assert run.stdout == "no qemu-aarch64-static (Debian and Ubuntu: apt install qemu-user-static)\n", run.stderr
    assert not any(tmp_path.iterdir())


def test_without_apt_one_line_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserlandError, match="^no apt-get: "):
        userland.unpack(tmp_path / "apt", tmp_path / "root")


def test_a_command_that_fails_is_told_by_its_last_line() -> None:
    script = "import sys; print('first\\nlast', file=sys.stderr); sys.exit(3)"
    with pytest.raises(UserlandError, match="^fetching failed: last$"):
        userland.run([sys.executable, "-c", script], "fetching")
    assert userland.run([sys.executable, "-c", "print(5)"], "") == "5\n"


def test_compilers_there_have_the_versions_of_those_here() -> None:
    wanted = userland.required()
    for name in ("numba", "llvmlite", "numpy"):
        assert [line for line in wanted if line.startswith(name)] == [f"{name}=={importlib.metadata.version(name)}"]
    assert any(line.startswith("pytest>=") for line in wanted) and any(line.startswith("gguf>=") for line in wanted)
    assert not any(line.startswith(("mypy", "ruff", "pandas")) for line in wanted)


@pytest.mark.parametrize(
    ("tier", "has", "lacks"), [("C", "", "asimddp"), ("N", "asimddp", "i8mm"), ("I", "i8mm", "sve")]
)
def test_the_machine_of_a_tier(
    tier: str, has: str, lacks: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dot products begin with N, matrix products with I: LLVM and we read that; on C and N qemu refuses the rest."""
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    (tmp_path / "root").mkdir()
    environment = userland.enter(tmp_path, tier)
    assert (environment["QEMU_CPU"], environment["DS4_SIMD_TIER"]) == (MACHINES[tier].qemu, tier)
    assert "PYTHONDONTWRITEBYTECODE" not in environment  # an emulator compiles modules slowly
    lines = dict(
        line.split("\t: ", 1) for line in (tmp_path / "root/proc/cpuinfo").read_text().splitlines() if "\t" in line
    )
    features = lines["Features"].split()
    assert set(has.split()) <= set(features) and lacks not in features and "asimd" in features
    assert lines["CPU part"] == f"{MACHINES[tier].part:#x}"


def test_the_interpreter_is_a_script_that_names_itself(tmp_path: Path) -> None:
    """``sys.executable`` is what stands behind -0, so that child processes are emulated, too."""
    (tmp_path / "venv").mkdir()
    userland.interpreter(tmp_path, "/bin/echo")
    python = tmp_path / "venv/bin/python"
    shown = subprocess.run([str(python), "-c", "a b"], capture_output=True, text=True).stdout
    real = (tmp_path / "root").joinpath("usr", "bin", f"python{userland.PYTHON}")
    assert shown == f"-L {tmp_path}/root -0 {python} {real} -c a b\n"


def test_the_suite_names_files_that_exist() -> None:
    for name in suite.FILES:
        assert (ROOT / name).is_file(), name
    for name in suite.SINGLE:
        path, _, test = name.partition("::")
        assert f"def {test.partition('[')[0]}(" in (ROOT / path).read_text(), name


def test_every_file_of_its_folders_runs_there_or_is_left_out_for_a_reason() -> None:
    left_out = [
        f"{at}/{name}.py" for files in suite.LEFT_OUT.values() for at, all_ in files.items() for name in all_.split()
    ]
    folders = {Path(name).parent for name in suite.FILES}
    present = sorted(str(path.relative_to(ROOT)) for folder in folders for path in (ROOT / folder).glob("test_*.py"))
    assert sorted([*suite.FILES, *left_out]) == present


def test_a_difference_is_in_standard_deviations() -> None:
    wanted = np.float32([[1, 3, -1], [5, -1, -1]])
    got = wanted + np.float32([[0, 0, 0], [0, 0, 12]])
    largest, same = drawn.difference(wanted, got)
    assert largest == pytest.approx(12 / wanted.std()) and same == 0.5
