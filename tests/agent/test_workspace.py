"""Nothing outside the workspace is reached, and a file is replaced whole or not at all."""

from __future__ import annotations

import errno
import json
import os
import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds4ref.agent import workspace as module
from ds4ref.agent.workspace import ToolError, Workspace, shown_name
from ds4ref.errors import UsageError


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


@pytest.mark.parametrize("path", ["loop/../out_file", "loop/../out_dir/secret.txt", "loop/../sub/a.txt", "loop/x",
                                  "missing/../in", "missing/x", "dangling_in", "sub/new/", "sub/a.txt/x"])  # fmt: skip
def test_nor_does_one_behind_a_loop_or_through_nothing(workspace, links, path) -> None:
    # Python 3.13 walks past a loop when asked without strictness, and so knows that the way leads outside.
    with pytest.raises((OSError, ToolError), match="symbolic links|No such file|Not a directory|outside the workspace"):
        workspace.resolve(path)


@pytest.mark.parametrize("path", ["sub/a.txt", "./sub//a.txt", "sub/deep/../a.txt", "in", "in_abs", "in_dir/a.txt",
                                  "{root}/sub/a.txt", "/{root}/sub/a.txt", "out_dir/../work/sub/a.txt"])  # fmt: skip
def test_every_path_inside_is_one(workspace, links, path) -> None:
    real = workspace.resolve(path.format(root=workspace.root))
    assert workspace.read(real).data == b"inside\n"
    assert workspace.shown(real) == "sub/a.txt", "one file, one path"
    assert workspace.shown(workspace.resolve("sub/..")) == "."


@pytest.mark.parametrize("path", ["", "a\0b", "x" * 4097, "\u20ac" * 1366, "\ud800"])
def test_what_is_no_path(workspace, path) -> None:
    with pytest.raises(ToolError, match="^[^\n]* is not a path$"):
        workspace.resolve(path)
    with pytest.raises(OSError, match="too long"):
        workspace.resolve("x" * 256)
    assert workspace.resolve("x" * 255).endswith("/" + "x" * 255)


def test_a_root_that_is_a_link_goes_by_both_names(folder, tmp_path) -> None:
    (folder / "a").write_text("x")
    os.symlink(folder, tmp_path / "alias")
    workspace = Workspace(str(tmp_path / "alias"))
    assert workspace.root == os.path.realpath(folder)
    assert read(workspace, str(tmp_path / "alias" / "a")) == read(workspace, str(folder / "a")) == b"x"


@pytest.mark.parametrize("root", ["/", "/proc", "/proc/self", "/sys", "missing", "file", "\0"])
def test_what_is_no_root(folder, monkeypatch, root) -> None:
    monkeypatch.chdir(folder)
    (folder / "file").write_text("x")
    with pytest.raises(UsageError, match="^[^\n]*$"):
        Workspace(root)


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


def test_large_files_are_refused(workspace, folder, monkeypatch) -> None:
    monkeypatch.setattr(module, "MAX_FILE", 1 << 20)
    (folder / "a").write_bytes(b"x" * (1 << 20))
    (folder / "b").write_bytes(b"x" * ((1 << 20) + 1))
    assert len(read(workspace, "a")) == 1 << 20
    with pytest.raises(ToolError, match="b is larger than 1 MiB"):
        read(workspace, "b")
    with pytest.raises(ToolError, match="a would become larger than 1 MiB"):
        put(workspace, "a", b"x" * ((1 << 20) + 1))
    assert (folder / "a").stat().st_size == 1 << 20 and not leftovers(folder)


def test_files_below_a_folder(workspace, folder, links) -> None:
    for name in (".git/x", "sub/.git/x", "b.txt", "sub/deep/c"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("x")
    paths = [workspace.shown(real) for real in workspace.files(workspace.root) if not os.path.islink(real)]
    assert paths == ["b.txt", "sub/a.txt", "sub/deep/c"]
    assert list(workspace.files(workspace.resolve("in"))) == [workspace.resolve("sub/a.txt")]


# --- replacing


@pytest.mark.parametrize("mode, kept", [(0o644, 0o644), (0o755, 0o755), (0o600, 0o600), (0o666, 0o666),
                                        (0o4755, 0o755)])  # fmt: skip
def test_permission_bits_stay(workspace, folder, mode, kept) -> None:
    (folder / "a").write_text("x")
    os.chmod(folder / "a", mode)
    put(workspace, "a", b"y")
    assert stat.S_IMODE((folder / "a").stat().st_mode) == kept and (folder / "a").read_bytes() == b"y"


def test_a_new_file_gets_what_the_umask_leaves(workspace, folder) -> None:
    before = os.umask(0o027)
    try:
        put(workspace, "a", b"y")
    finally:
        os.umask(before)
    assert stat.S_IMODE((folder / "a").stat().st_mode) == 0o640 and not leftovers(folder)


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


def test_a_new_file_never_takes_anothers_place(workspace, folder) -> None:
    (folder / "a").write_text("somebody's")
    with pytest.raises(ToolError, match="a changed while it was edited"):
        workspace.replace(workspace.resolve("a"), b"y", None)
    assert (folder / "a").read_text() == "somebody's" and not leftovers(folder)


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


@given(st.text(max_size=30) | st.binary(max_size=20).map(os.fsdecode))
def test_a_shown_name_is_one_plain_line_and_can_be_given_back(name) -> None:
    shown = shown_name(name)
    assert shown.isprintable() and shown.strip() == shown and shown
    assert (json.loads(shown) if shown.startswith('"') else shown) == name


@pytest.mark.parametrize("name", [b"a\nb", b"\x1b[2J", b"\xff\xfe", b"- 5 fake", "\u202egpj".encode(), b"a b ", b'"q"',
                                  b"..."])  # fmt: skip
def test_hostile_names_are_files_like_others(workspace, folder, name) -> None:
    put(workspace, os.fsdecode(name), b"new")
    assert os.listdir(os.fsencode(folder)) == [name] and read(workspace, os.fsdecode(name)) == b"new"
