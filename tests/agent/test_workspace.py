"""Nothing outside the workspace is reached, and a file is replaced whole or not at all."""

from __future__ import annotations

import errno
import os
import stat

import pytest

from ds4ref.agent import workspace as module
from ds4ref.agent.workspace import ToolError, Workspace


def read(workspace: Workspace, path: str) -> bytes:
    return workspace.read(workspace.resolve(path)).data


def put(workspace: Workspace, path: str, data: bytes) -> None:
    real = workspace.resolve(path)
    before = workspace.find(real)
    workspace.check_writable(real, before)
    workspace.replace(real, data, before)


def leftovers(folder) -> list[str]:
    return [name for name in os.listdir(folder) if name.startswith(".ds4-")]


# --- paths


@pytest.fixture
def links(folder, tmp_path):
    """Links of all kinds, into the folder and out of it."""
    (folder / "sub" / "deep").mkdir(parents=True)
    (folder / "sub" / "a.txt").write_text("inside\n")
    for name, target in {
        "out_file": "../secret.txt", "out_abs": str(tmp_path / "secret.txt"), "out_dir": "../outside",
        "out_dir_abs": str(tmp_path / "outside"), "chain": "out_file", "up": "..", "sub/up2": "../..",
        "proc": "/proc/self/root", "cwd": "/proc/self/cwd", "etc": "/etc", "in": "sub/a.txt", "in_dir": "sub/deep/..",
        "in_abs": str(folder / "sub" / "a.txt"), "dangling_out": "../new.txt", "dangling_in": "sub/new.txt",
        "loop": "loop",
    }.items():  # fmt: skip
        os.symlink(target, folder / name)
    return folder


@pytest.mark.parametrize("path", [
    "..", "../secret.txt", "../missing/x", "sub/../../secret.txt", "sub/deep/../../../secret.txt",
    "{root}/../secret.txt", "{root}x/secret.txt", "{root}/sub/../../secret.txt", "out_file", "out_abs",
    "out_dir/secret.txt", "out_dir_abs/secret.txt", "out_dir/missing", "chain", "up/secret.txt", "up",
    "sub/up2/secret.txt", "in_dir/../../secret.txt", "dangling_out", "sub//..//..//secret.txt", "{outside}/secret.txt",
    "/", "/etc/passwd", "//etc/passwd", "/proc/self/root/etc/passwd", "/proc/self/environ", "proc/etc/passwd",
    "cwd/pyproject.toml", "etc/passwd", "etc/nosuch",
])  # fmt: skip
def test_no_path_leads_outside(workspace, links, tmp_path, path) -> None:
    path = path.format(root=workspace.root, outside=tmp_path / "outside")
    with pytest.raises(ToolError, match=r"^[^\n]* is outside the workspace [^\n]*; use paths inside it$"):
        workspace.resolve(path)


# --- reading


def test_only_regular_files_are_opened(workspace, folder, tmp_path) -> None:
    os.mkfifo(folder / "pipe")
    (folder / "dir").mkdir()
    for name, why in (("pipe", "pipe is not a regular file"), ("dir", "dir is a folder"), (".", r"\. is a folder")):
        with pytest.raises(ToolError, match=why):
            read(workspace, name)
    real = workspace.resolve("later")
    os.symlink(tmp_path / "secret.txt", real)
    with pytest.raises(OSError, match="symbolic links"):
        workspace.read(real)


# --- replacing


@pytest.mark.parametrize("mode, kept", [(0o644, 0o644), (0o755, 0o755), (0o600, 0o600), (0o666, 0o666),
                                        (0o4755, 0o755)])  # fmt: skip
def test_permission_bits_stay(workspace, folder, mode, kept) -> None:
    (folder / "a").write_text("x")
    os.chmod(folder / "a", mode)
    put(workspace, "a", b"y")
    assert stat.S_IMODE((folder / "a").stat().st_mode) == kept and (folder / "a").read_bytes() == b"y"


def test_other_names_of_a_file(workspace, links, tmp_path) -> None:
    """A link stays one; behind a second name, which might lie outside, the old content stays."""
    os.link(tmp_path / "secret.txt", links / "hard")
    for name in ("hard", "in"):
        put(workspace, name, b"y")
    assert (tmp_path / "secret.txt").read_text() == "secret\n" and (links / "hard").read_bytes() == b"y"
    assert (links / "in").is_symlink() and (links / "sub" / "a.txt").read_bytes() == b"y"


def test_read_only_files_and_gits_own_are_left_alone(workspace, folder) -> None:
    (folder / "a").write_text("x")
    os.chmod(folder / "a", 0o444)
    (folder / ".git" / "hooks").mkdir(parents=True)
    (folder / ".git" / "config").write_text("x")
    with pytest.raises(ToolError, match="a is read-only"):
        put(workspace, "a", b"y")
    (folder / ".GIT").mkdir(exist_ok=True)
    for path in (".git/config", ".git/hooks/pre-commit", ".GIT/config"):
        with pytest.raises(ToolError, match="git's own"):
            put(workspace, path, b"y")
    assert read(workspace, ".git/config") == b"x" and not os.listdir(folder / ".git" / "hooks")
    put(workspace, ".gitignore", b"y")


@pytest.mark.parametrize("change", ["write", "unlink", "link"])
def test_a_change_while_it_is_edited_is_noticed(workspace, folder, tmp_path, monkeypatch, change) -> None:
    """At the last moment: when the new content lies beside the file already."""
    file, fsync = folder / "a", os.fsync
    file.write_bytes(b"x")

    def meanwhile(fd: int) -> None:
        fsync(fd)
        file.unlink()
        if change == "write":
            file.write_bytes(b"z")
        elif change == "link":
            os.symlink(tmp_path / "secret.txt", file)

    monkeypatch.setattr(module.os, "fsync", meanwhile)
    with pytest.raises((ToolError, OSError), match="a changed while it was edited; read it again|symbolic links"):
        put(workspace, "a", b"y")
    assert (tmp_path / "secret.txt").read_text() == "secret\n" and not leftovers(folder)
    assert os.path.lexists(file) is (change != "unlink") and (change != "write" or file.read_bytes() == b"z")


@pytest.mark.parametrize("call", ["fsync", "fchmod", "rename"])
def test_failures_leave_the_file_as_it_was(workspace, folder, monkeypatch, call) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (folder / "a").write_text("x")
    monkeypatch.setattr(module.os, call, full)
    with pytest.raises(OSError, match="No space left on device"):
        put(workspace, "a", b"y" * 100)
    assert (folder / "a").read_text() == "x" and not leftovers(folder)


# --- names
