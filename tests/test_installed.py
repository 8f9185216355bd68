"""What a user installs: source archive and wheel hold everything and nothing else, work from any folder, and clash with
nobody's names."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
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
        if (
            name.partition("/")[0] in (*ROOMS, "pyproject.toml", "README.md", "LICENSE", "MANIFEST.in")
            and (ROOT / name).exists()
        ):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, source / name, follow_symlinks=False)
    build(source, "sdist", folder)
    with tarfile.open(next(folder.glob("*.tar.gz"))) as archive:
        archive.extractall(folder, filter="data")
    build(next(path for path in folder.iterdir() if path.is_dir()), "wheel", folder)
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        wheel.extractall(folder / "site")
    return source, folder / "site"


def build(tree: Path, what: str, out: Path) -> None:
    """Build an ``sdist`` or a ``wheel`` of a tree without fetching anything."""
    code = f"from setuptools import build_meta; build_meta.build_{what}({str(out)!r})"
    done = subprocess.run([sys.executable, "-c", code], cwd=tree, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.thorough
def test_source_archive_and_wheel_hold_every_file_of_the_rooms_and_nothing_else(installed):
    """The wheel is built from the archive, which has the rooms where the links are."""
    source, site = installed
    wanted = set()
    for room in ROOMS:
        home = "ds4ref" if room == "ds4ref" else f"ds4ref/{room}"
        wanted |= {f"{home}/{name}" for name in files(source / room) if not (source / room / name).is_symlink()}
    wanted = {name for name in wanted if not name.startswith("ds4ref/speed_bench/results/")}
    assert len(wanted) > 400
    assert {name for name in files(site) if ".dist-info/" not in name} == wanted
    assert {path.name for path in site.iterdir() if not path.name.endswith(".dist-info")} == {"ds4ref"}
    (archive,) = (path for path in site.parent.glob("ds4ref-*") if path.is_dir())
    more = {"LICENSE", "MANIFEST.in", "PKG-INFO", "README.md", "pyproject.toml", "setup.cfg"}
    assert {name for name in files(archive) if not name.startswith(("ds4ref.egg-info/", "build/"))} == wanted | more


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
