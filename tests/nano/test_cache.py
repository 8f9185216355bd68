"""The model cache: where it is, and that it survives damage, crowds, crashes and full disks."""

import errno
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ds4ref.errors import DataError, ModelFileError
from ds4ref.nano import cache, random_path, recipe
from ds4ref.nano.cache import NANO_SHA256, building, cache_dir, file_sha256, slice_path
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


def test_location(monkeypatch, tmp_path):
    monkeypatch.delenv("DS4_CACHE_DIR")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache_dir() == Path("/xdg/ds4ref")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/ignored")
    monkeypatch.setattr(cache.sys, "platform", "linux")
    assert cache_dir() == tmp_path / ".cache/ds4ref"
    monkeypatch.setattr(cache.sys, "platform", "darwin")
    assert cache_dir() == tmp_path / "Library/Caches/ds4ref"
    monkeypatch.setenv("DS4_CACHE_DIR", "/mine")
    assert cache_dir() == Path("/mine")


def test_built_once(folder, builds):
    path = random_path()
    assert file_sha256(Path(path)) == NANO_SHA256
    before = os.stat(path)
    assert random_path() == path
    assert os.stat(path).st_mtime_ns == before.st_mtime_ns and os.stat(path).st_ino == before.st_ino
    assert len(builds) == 1
    assert {p.suffix for p in folder.iterdir()} == {".gguf", ".lock"}


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


def test_a_read_only_cache_that_holds_the_model_is_enough(folder, monkeypatch):
    path = random_path()

    def refuse(*args, **kwargs):
        raise AssertionError("nothing may be written")

    monkeypatch.setattr(cache, "building", refuse)
    assert random_path() == path


def test_a_full_disk_leaves_nothing(folder, monkeypatch):
    real, room = os.write, [3_000_000]

    def write(fd, data):
        room[0] -= len(data)
        if room[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(fd, data)

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write)
        with pytest.raises(ModelFileError, match="cannot write: No space left"):
            random_path()
    assert [p.suffix for p in folder.iterdir()] == [".lock"]
    assert file_sha256(Path(random_path())) == NANO_SHA256


@pytest.mark.thorough
def test_leftovers_of_killed_builds_are_removed(folder):
    path = Path(random_path())
    leftover = folder / f".{path.name}.123.abcd.part"
    leftover.write_bytes(b"half")
    other = folder / ".slice-q2.gguf.9.ef.part"
    other.write_bytes(b"someone else's")
    path.unlink()
    random_path()
    assert not leftover.exists() and other.exists()


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
        with pytest.raises(DataError, match="another process has been building"), building(folder / "m.gguf", wait=0.2):
            pass
    finally:
        release.set()
        thread.join()
    assert "waiting for it" in capsys.readouterr().err
    with building(folder / "m.gguf", wait=0.2):
        pass


@pytest.mark.thorough
def test_a_generator_that_went_astray_is_reported(folder, monkeypatch):
    monkeypatch.setattr(cache, "NANO_SHA256", "f" * 64)
    with pytest.raises(DataError, match="came out as .* please report"):
        random_path()
    assert not list(folder.glob("*.gguf"))


def test_slices_are_kept_and_rebuilt_if_truncated(folder, builds, monkeypatch):
    small = recipe.replace(recipe.NANO, n_layers=1, n_hash_layers=1, ratios=(0,), swiglu_limit=(10.0,), vocab=300)
    monkeypatch.setattr(recipe, "slice_shape", lambda *args: small)
    path = Path(slice_path(1, 16, 300, "q4"))
    size = path.stat().st_size
    assert slice_path(1, 16, 300, "q4") == str(path) and len(builds) == 1
    os.truncate(path, size - 4096)
    slice_path(1, 16, 300, "q4")
    assert path.stat().st_size == size and len(builds) == 2


def command(*arguments, **env):
    return subprocess.run(
        [sys.executable, "-m", "ds4ref.cli.ds4", "nano", *arguments],
        cwd=ROOT,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_command_prints_the_path(nano_path):
    done = command("random")
    assert (done.returncode, done.stdout, done.stderr) == (0, nano_path + "\n", "")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["slice", "--layers", "99"], 2, "layers must be 1 to 43"),
        (["slice", "--recipe", "q3"], 2, "choose from q2, q4"),
        (["slice", "/absent/m.gguf"], 1, "cannot write /absent/m.gguf: no folder /absent"),
        (["slice", "--layers", "many"], 2, "invalid value for --layers: many"),
        (["slice", "a", "b"], 2, "unexpected argument: b"),
        (["checkpoint"], 2, "needs an output folder"),
        ([], 2, "missing command"),
        (["fetch"], 2, "choose from"),
    ],
)
def test_command_refuses_in_one_line(arguments, code, message):
    done = command(*arguments)
    assert done.returncode == code
    assert done.stdout == "" and message in done.stderr and done.stderr.count("\n") == 1
