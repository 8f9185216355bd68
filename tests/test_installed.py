"""What a user installs: the wheel holds everything, works from any folder, and clashes with nobody's names."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ("ds4ref", "kernels", "speed_bench", "test_vectors", "reports", "eval")


def run(code: str, path: Path, cwd: Path, *more: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (*more, path)))}
    return subprocess.run([sys.executable, "-c", code], env=env, cwd=cwd, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A wheel of this tree, unpacked. Built in a copy: a build leaves folders behind."""
    pytest.importorskip("setuptools", reason="the wheel is built without fetching anything", minversion="77")
    source, folder = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    for name in listed.stdout.splitlines():
        if name.partition("/")[0] in (*ROOMS, "pyproject.toml", "README.md", "LICENSE") and (ROOT / name).exists():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, source / name, follow_symlinks=False)
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        str(source),
        "--no-deps",
        "--no-build-isolation",
        "-q",
        "-w",
        folder,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        wheel.extractall(folder / "site")
    return source, folder / "site"


@pytest.mark.thorough
def test_the_wheel_holds_every_file_of_the_rooms_and_one_name(installed):
    source, site = installed
    wanted = set()
    for room in ROOMS:
        home = Path("ds4ref") if room == "ds4ref" else Path("ds4ref", room)
        for folder, _, files in os.walk(source / room):
            wanted |= {home / Path(folder, file).relative_to(source / room) for file in files}
    wanted = {path for path in wanted if Path("ds4ref", "speed_bench", "results") not in path.parents}
    assert len(wanted) > 400 and not {str(path) for path in wanted if not (site / path).is_file()}
    assert {path.name for path in site.iterdir() if not path.name.endswith(".dist-info")} == {"ds4ref"}


@pytest.mark.thorough
def test_data_is_found_from_another_folder(installed, tmp_path):
    code = """
import ds4ref, sys
from ds4ref.console.page import Page, render
from ds4ref.test_vectors.cases import read_prompts
from ds4ref.test_vectors.diagnosis import calibration
from ds4ref.test_vectors.doctor import page
from ds4ref.test_vectors.trace import names
from ds4ref.eval import library
assert ds4ref.__file__.startswith(sys.argv[1]), ds4ref.__file__
for suffix in (".html", ".md"):
    assert len(render(Page("a title", []), suffix)) > 20
print(len(read_prompts(None)), calibration.PATH.exists(), len(library.load("ds4ref").questions), *library.files())
""".replace("sys.argv[1]", repr(str(installed[1])))
    done = run(code, installed[1], tmp_path)
    assert (done.returncode, done.stdout) == (0, "4 True 93 ds4ref nano recall\n"), done.stderr


@pytest.mark.oracle
def test_beside_hugging_faces_package_kernels(installed, tmp_path):
    """Both in one folder, in either order: each is whole, and one process imports both."""
    wheel = next(installed[1].parent.glob("*.whl"))
    code = "import kernels, ds4ref.kernels.formats as f; print(hasattr(kernels, 'get_kernel'), len(f.FORMATS) > 20)"
    for name, order in {"first": (wheel, "kernels"), "last": ("kernels", wheel)}.items():
        for package in order:
            command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", tmp_path / name, package]
            subprocess.run(command, check=True, capture_output=True)
        done = run(code, tmp_path / name, tmp_path)
        assert (done.returncode, done.stdout) == (0, "True True\n"), done.stderr
