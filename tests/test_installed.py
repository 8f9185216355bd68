"""What a user installs: the wheel holds everything, works from any folder, and knows its own ``kernels``."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ("ds4ref", "kernels", "speed_bench", "test_vectors", "reports", "eval")
TOOLS = (
    *("ds4ref.cli.ds4", "ds4ref.cli.server", "ds4ref.cli.kv", "ds4ref.cli.quantize"),
    *("speed_bench.cli", "test_vectors.cli", "reports.cli", "eval.cli"),
)


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
        if name.partition("/")[0] in (*ROOMS, "pyproject.toml", "README.md", "LICENSE") and (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
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


@pytest.mark.slow
def test_the_wheel_holds_every_file_of_the_rooms(installed):
    source, site = installed
    results = Path("speed_bench", "results")
    wanted = {path.relative_to(source) for room in ROOMS for path in (source / room).rglob("*") if path.is_file()}
    wanted = {path for path in wanted if results not in path.parents}
    assert len(wanted) > 200 and not {path for path in wanted if not (site / path).is_file()}


@pytest.mark.slow
def test_data_is_found_from_another_folder(installed, tmp_path):
    code = """
import ds4ref, sys
from reports.build import Report, render
from test_vectors.cli_vectors import read_prompts
from test_vectors.diagnosis import calibration
from test_vectors.doctor import page
from test_vectors.trace import names
from eval import grading, packs
from eval.verify.security import CASES
assert ds4ref.__file__.startswith(sys.argv[1]), ds4ref.__file__
for template in ("report.html.j2", "report.md.j2"):
    assert len(render(template, Report("a title"), **({"figure": None} if "md" in template else {}))) > 20
print(len(read_prompts(None)), calibration.PATH.exists(), len(packs.load("ds4ref").questions), packs.names(),
      CASES.is_dir())
""".replace("sys.argv[1]", repr(str(installed[1])))
    done = run(code, installed[1], tmp_path)
    assert (done.returncode, done.stdout) == (0, "4 True 93 ['ds4ref', 'nano'] True\n"), done.stderr


@pytest.mark.parametrize("kind", ["package", "module", "folder"])
def test_another_kernels_fails_in_one_line(tmp_path, kind):
    """Hugging Face's package of that name, or a user's own, which comes first on the path."""
    if kind == "module":
        (tmp_path / "kernels.py").write_text("raise SystemExit('imported')")
    else:
        (tmp_path / "kernels").mkdir()
        if kind == "package":
            (tmp_path / "kernels" / "__init__.py").write_text("raise SystemExit('imported')")
    for tool in TOOLS:
        code = f"import sys; from {tool} import main; sys.exit(main(['--version']))"
        done = run(code, ROOT, tmp_path, tmp_path)
        if kind == "folder":  # what is no package hides none
            assert done.returncode == 0, done.stderr
            continue
        assert done.returncode == 1 and done.stdout == "" and done.stderr.count("\n") == 1
        assert "the package kernels is another project's: " in done.stderr and str(tmp_path) in done.stderr
    done = run(
        "import ds4ref\ntry: ds4ref.open\nexcept ds4ref.Ds4Error as error: print(error)", ROOT, tmp_path, tmp_path
    )
    assert done.returncode == 0 and ("another project" in done.stdout) == (kind != "folder"), done.stderr


def test_one_that_was_installed_over_ours_is_noticed(tmp_path, monkeypatch):
    import kernels
    from ds4ref.backends import check_kernels
    from ds4ref.errors import BackendError

    check_kernels()
    monkeypatch.delattr(kernels, "DISTRIBUTION")
    with pytest.raises(BackendError, match="another project's: .*kernels.__init__.py"):
        check_kernels()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(BackendError, match="the package kernels is missing"):
        check_kernels()
