"""The model cache: where it is, and that it survives damage, crowds, crashes and full disks."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ds4ref.errors import DataError
from ds4ref.nano import random_path, recipe
from ds4ref.nano.cache import NANO_SHA256, building, file_sha256, kept, slice_path
from tests.marking import sampled

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("DS4_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def builds(monkeypatch):
    """Every build that happens, by path."""
    paths, build = [], recipe.write_model
    monkeypatch.setattr(recipe, "write_model", lambda path, *a, **k: (paths.append(Path(path)), build(path, *a, **k)))
    return paths


@pytest.mark.parametrize("damage", sampled(["flip", "truncate", "empty", "grow"], ["truncate"]))
def test_damage_is_repaired(folder, builds, damage):
    path = Path(random_path())
    with open(path, "r+b") as file:
        if damage == "flip":
            file.seek(path.stat().st_size // 2)
            byte = file.read(1)[0]
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte ^ 1]))
        else:
            file.truncate({"truncate": 1000, "empty": 0, "grow": path.stat().st_size + 1}[damage])
    assert file_sha256(Path(random_path())) == NANO_SHA256
    assert len(builds) == 2


def test_an_unusable_folder_is_one_clear_line(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("DS4_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with pytest.raises(DataError, match="cannot write to the model cache .* set DS4_CACHE_DIR") as error:
        random_path()
    assert "\n" not in str(error.value)


@pytest.mark.thorough
def test_a_crowd_builds_once(folder):
    """Six processes at once: all get the same file, and the file is written once."""
    code = (
        "import os\n"
        "from ds4ref.nano import recipe, random_path\n"
        "real = recipe.write_model\n"
        "def noted(path, *a, **k):\n"
        "    open(os.path.join(os.environ['NOTES'], str(os.getpid())), 'w').close()\n"
        "    real(path, *a, **k)\n"
        "recipe.write_model = noted\n"
        "print(random_path())\n"
    )
    notes = folder.parent / "notes"
    notes.mkdir()
    env = {**os.environ, "NOTES": str(notes)}
    crowd = [
        subprocess.Popen(
            [sys.executable, "-c", code], cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for _ in range(6)
    ]
    outputs = [process.communicate(timeout=60) for process in crowd]
    assert all(process.returncode == 0 for process in crowd), outputs
    assert len({out for out, _ in outputs}) == 1
    assert file_sha256(Path(outputs[0][0].decode().strip())) == NANO_SHA256
    assert len(list(notes.iterdir())) == 1


def test_waiting_in_vain_is_one_clear_line(folder, capsys):
    held, release = threading.Event(), threading.Event()

    def holder():
        with building(folder / "m.gguf"):
            held.set()
            release.wait(300)

    thread = threading.Thread(target=holder)
    thread.start()
    try:
        assert held.wait(300)
        with pytest.raises(DataError, match="another process has been building .* for 0 s"):
            kept(folder / "m.gguf", Path.exists, Path.touch, wait=0.2)
    finally:
        release.set()
        thread.join()
    assert "waiting for it" in capsys.readouterr().err
    with building(folder / "m.gguf", wait=0.2):
        pass


def test_slices_are_kept_and_rebuilt_if_truncated(folder, builds, monkeypatch):
    small = recipe.replace(recipe.NANO, n_layers=1, n_hash_layers=1, ratios=(0,), swiglu_limit=(10.0,), vocab=300)
    monkeypatch.setattr(recipe, "slice_shape", lambda *args: small)
    path = Path(slice_path(1, 16, 300, "q4"))
    size = path.stat().st_size
    assert slice_path(1, 16, 300, "q4") == str(path) and len(builds) == 1
    os.truncate(path, size - 4096)
    slice_path(1, 16, 300, "q4")
    assert path.stat().st_size == size and len(builds) == 2
