"""Files that appear whole, with the permissions of any other file, and what tells two of them apart."""

from __future__ import annotations

import errno
import hashlib
import os
import tempfile

import pytest

from ds4ref import files
from ds4ref.cancellation import Cancellation


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_a_new_file_has_the_permissions_of_the_user(tmp_path, mask):
    """mkstemp's 0600 would keep a shared folder of checkpoints from everybody else."""
    before = os.umask(mask)
    try:
        with files.atomic_write(tmp_path / "a") as out:
            out.write(b"whole")
            assert not (tmp_path / "a").exists()
        assert os.umask(mask) == mask, "the process keeps its mask"
    finally:
        os.umask(before)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o666 & ~mask
    with pytest.raises(KeyError), files.atomic_write(tmp_path / "a") as out:
        out.write(b"half")
        raise KeyError
    assert (tmp_path / "a").read_bytes() == b"whole" and os.listdir(tmp_path) == ["a"]


def test_digests_of_files_and_folders(tmp_path, monkeypatch):
    """A folder's changes with a file's name and with its content, and not with what is no part of the model."""
    (tmp_path / "m").mkdir()
    for name, text in (("a.json", b"{}"), ("b.safetensors", b"xyz")):
        (tmp_path / "m" / name).write_bytes(text)
    lines = "".join(
        f"{name} sha256:{hashlib.sha256(text).hexdigest()}\n"
        for name, text in (("a.json", b"{}"), ("b.safetensors", b"xyz"))
    )
    assert files.file_digest(tmp_path / "m") == f"folder:{hashlib.sha256(lines.encode()).hexdigest()}"
    found = {files.file_digest(tmp_path / "m")}
    (tmp_path / "m" / "README.md").write_text("more")
    assert {files.file_digest(tmp_path / "m")} == found
    os.rename(tmp_path / "m" / "a.json", tmp_path / "m" / "aa.json")
    found.add(files.file_digest(tmp_path / "m"))
    (tmp_path / "m" / "b.safetensors").write_bytes(b"xyZ")
    found.add(files.file_digest(tmp_path / "m"))
    assert len(found) == 3
    monkeypatch.setattr(files, "WHOLE", 99)
    monkeypatch.setattr(files, "ENDS", 10)
    data = bytes(range(100))
    (tmp_path / "big").write_bytes(data[:99])
    assert files.file_digest(tmp_path / "big") == f"sha256:{hashlib.sha256(data[:99]).hexdigest()}"
    (tmp_path / "big").write_bytes(data)
    assert files.file_digest(tmp_path / "big") == f"ends:{hashlib.sha256(b'100 ' + data[:10] + data[-10:]).hexdigest()}"


def test_an_action_belongs_to_its_block():
    """The connection of an answer that is over must not be cut by the next Ctrl-C."""
    cancel, done = Cancellation(), []
    with cancel.does(lambda: done.append("first")):
        pass
    with cancel.does(lambda: done.append("second")), cancel.does(lambda: done.append("third")):
        cancel.press()
    assert done == ["second", "third"]
    with cancel.does(lambda: done.append("late")):
        assert done[2:] == ["late"]
    assert cancel() and cancel.wait(100)


@pytest.mark.parametrize(
    ("system", "fault", "expected"),
    [
        ("linux", errno.EIO, ["fsync"]),
        ("darwin", 0, ["fsync", 51]),
        ("darwin", errno.ENOTSUP, ["fsync", 51]),
        ("darwin", errno.EIO, None),
    ],
)
def test_on_a_mac_the_disks_own_cache_is_flushed_too(system, fault, expected, monkeypatch):
    """Its fsync hands bytes to the disk, which may lose them in a power cut; network file systems know nothing else."""
    fcntl, calls = pytest.importorskip("fcntl", reason="no fcntl on this system"), []

    def control(fd, command):
        calls.append(command)
        if fault:
            raise OSError(fault, os.strerror(fault))

    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", control)
    monkeypatch.setattr(os, "fsync", lambda fd: calls.append("fsync"))
    monkeypatch.setattr(files.sys, "platform", system)
    if expected is None:
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            files.flush_to_disk(7)
    else:
        files.flush_to_disk(7)
        assert calls == expected


def test_an_error_without_a_name_names_the_file(tmp_path):
    with pytest.raises(OSError) as caught, files.atomic_write(tmp_path / "a"):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert caught.value.filename == str(tmp_path / "a") and os.listdir(tmp_path) == []


def test_what_killed_writers_left_goes_and_what_others_write_stays(tmp_path, monkeypatch):
    path, left = tmp_path / "rows.csv", tmp_path / ".rows.csv.old.tmp"
    left.write_bytes(b"cut off")
    with files.atomic_write(path) as slow:
        slow.write(b"slow")
        with files.atomic_write(path) as fast:
            fast.write(b"fast")
        assert path.read_bytes() == b"fast" and not left.exists()
    assert [p.name for p in tmp_path.iterdir()] == ["rows.csv"] and path.read_bytes() == b"slow"
    real = tempfile.mkstemp
    taken: list[str] = []

    def mkstemp(**options):
        """Lose the first file to another writer, before it is locked."""
        handle, name = real(**options)
        if not taken:
            taken.append(name)
            files._remove_unlocked(name)
        return handle, name

    monkeypatch.setattr(tempfile, "mkstemp", mkstemp)
    with files.atomic_write(path) as out:
        out.write(b"again")
    assert taken and path.read_bytes() == b"again" and len(list(tmp_path.iterdir())) == 1
    monkeypatch.setattr(tempfile, "mkstemp", real)
    left.write_bytes(b"cut off")
    with monkeypatch.context() as patch:  # locks are missing: who can tell?
        patch.setattr("fcntl.flock", lambda *_: (_ for _ in ()).throw(OSError(95, "not supported")))
        with files.atomic_write(path) as out:
            out.write(b"more")
    assert left.exists()
