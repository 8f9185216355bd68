"""Nothing outside the workspace is reached, and a file is replaced whole or not at all."""

from __future__ import annotations

import errno
import json
import os
import socket
import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds4ref.agent import workspace as module
from ds4ref.agent.workspace import FileError, ToolError, Workspace, shown_name
from ds4ref.errors import UsageError


def read(workspace: Workspace, path: str) -> bytes:
    with workspace.place(path) as place:
        return workspace.read(place).data


def put(workspace: Workspace, path: str, data: bytes) -> None:
    with workspace.place(path) as place:
        workspace.replace(place, data, workspace.find(place))


def leftovers(folder) -> list[str]:
    return [name for name in os.listdir(folder) if name.startswith(".ds4-")]


# --- the way there


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
    }.items():  # fmt: skip
        os.symlink(target, folder / name)
    return folder


ESCAPES = [
    "..", "../secret.txt", "sub/../../secret.txt", "./../secret.txt", "sub/deep/../../../secret.txt",
    "{root}/../secret.txt", "{root}x/secret.txt", "{root}/sub/../../secret.txt", "out_file", "out_abs",
    "out_dir/secret.txt", "out_dir_abs/secret.txt", "chain", "up/secret.txt", "up", "sub/up2/secret.txt",
    "in_dir/../../secret.txt", "out_dir/../work/sub/a.txt", "dangling_out", "sub//..//..//secret.txt",
    "{outside}/secret.txt",
]  # fmt: skip
SYSTEM = ["/", "/etc/passwd", "//etc/passwd", "/proc/self/root/etc/passwd", "/proc/self/environ",
          "/proc/self/cwd/../secret.txt", "proc/etc/passwd", "cwd/pyproject.toml", "etc/passwd"]  # fmt: skip


def refused(action, path: str) -> None:
    with pytest.raises(ToolError, match="outside the workspace") as error:
        action(path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("path", ESCAPES)
def test_no_way_leads_outside(workspace, links, tmp_path, path) -> None:
    path = path.format(root=workspace.root, outside=tmp_path / "outside")
    refused(lambda path: read(workspace, path), path)
    refused(lambda path: put(workspace, path, b"x"), path)
    assert (tmp_path / "secret.txt").read_text() == "secret\n" and not (tmp_path / "new.txt").exists()
    assert (tmp_path / "outside" / "secret.txt").read_text() == "secret\n"


@pytest.mark.parametrize("path", SYSTEM)
def test_nor_into_the_system(workspace, links, path) -> None:
    """Only read: a test that fails must do no harm."""
    refused(lambda path: read(workspace, path), path)


@pytest.mark.parametrize("path", ["sub/a.txt", "./sub//a.txt", "sub/deep/../a.txt", "in", "in_abs", "in_dir/a.txt",
                                  "{root}/sub/a.txt", "//{root}/sub/a.txt", "sub/a.txt/"])  # fmt: skip
def test_every_way_inside_does(workspace, links, path) -> None:
    path = path.format(root=workspace.root.lstrip("/") if path.startswith("//") else workspace.root)
    with workspace.place(path) as place:
        assert workspace.read(place).data == b"inside\n"
        assert place.path == "sub/a.txt", "one file, one path"


def test_a_link_that_stays_inside_stays_a_link(workspace, links) -> None:
    put(workspace, "in", b"new\n")
    put(workspace, "dangling_in", b"made\n")
    assert (links / "sub" / "a.txt").read_text() == "new\n" and (links / "sub" / "new.txt").read_text() == "made\n"
    assert (links / "in").is_symlink() and (links / "dangling_in").is_symlink()


@pytest.mark.parametrize("path", ["", "a\0b", "x" * 5000, "\ud800", "a/\udfff"])
def test_what_is_no_path(workspace, path) -> None:
    with pytest.raises(ToolError, match="is not a path"):
        read(workspace, path)


@pytest.mark.parametrize("path, why", [
    ("missing", "No such file"), ("missing/x", "No such file"), ("x" * 300, "too long"), ("file/x", "Not a directory"),
    ("file/../file", "Not a directory"), ("~/x", "No such file"), ("loop", "symbolic links"),
    ("loop/x", "symbolic links"), ("link41", "symbolic links"),
])  # fmt: skip
def test_the_systems_own_refusals_are_one_line(workspace, folder, path, why) -> None:
    (folder / "file").write_text("x")
    os.symlink("loop", folder / "loop")
    os.symlink("file", folder / "link0")
    for i in range(41):
        os.symlink(f"link{i}", folder / f"link{i + 1}")
    with pytest.raises(FileError, match=f"{why}[^\n]*$"):
        read(workspace, path)
    assert read(workspace, "link39") == b"x"


def test_a_root_that_is_a_link_goes_by_both_names(folder, tmp_path) -> None:
    (folder / "a").write_text("x")
    os.symlink(folder, tmp_path / "alias")
    with Workspace(str(tmp_path / "alias")) as workspace:
        assert workspace.root == os.path.realpath(folder)
        assert read(workspace, str(tmp_path / "alias" / "a")) == read(workspace, str(folder / "a")) == b"x"


def test_the_root_stays_the_folder_that_it_was(workspace, folder, tmp_path) -> None:
    """Whoever puts a link in its place afterwards redirects nothing."""
    (folder / "a").write_text("x")
    os.rename(folder, tmp_path / "moved")
    os.symlink(tmp_path / "outside", folder)
    assert read(workspace, "a") == b"x"
    with pytest.raises(FileError):
        read(workspace, "secret.txt")


@pytest.mark.parametrize("root", ["/", "/proc", "/proc/self", "/sys", "missing", "file", "\0"])
def test_what_is_no_root(folder, monkeypatch, root) -> None:
    monkeypatch.chdir(folder)
    (folder / "file").write_text("x")
    with pytest.raises(UsageError) as error:
        Workspace(root)
    assert "\n" not in str(error.value)


def test_no_descriptor_is_left(workspace, links) -> None:
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else None
    for path in ["in_abs", "sub/deep/../deep/../a.txt", "out_dir_abs/x", "missing/x", "loop", "in_dir/a.txt"]:
        for action in (lambda path=path: read(workspace, path), lambda path=path: put(workspace, path, b"x")):
            try:
                action()
            except ToolError:
                pass
    with workspace.place(".") as place:
        assert len(list(workspace.files(place))) and workspace.entries(place)
    if before is None:
        pytest.skip("no /proc to count descriptors in")
    assert len(os.listdir("/proc/self/fd")) == before


# --- races: what was looked at is exchanged before it is used


@pytest.fixture
def exchanged(monkeypatch):
    """Runs an action once, right after the status of ``name`` was asked for."""

    def arrange(name: str, action) -> None:
        lstat, done = os.lstat, []

        def first(path, **where):
            found = lstat(path, **where)
            if path == name and not done:
                done.append(1)
                action()
            return found

        monkeypatch.setattr(module.os, "lstat", first)

    return arrange


def test_a_folder_exchanged_for_a_link_is_not_followed(workspace, folder, tmp_path, exchanged) -> None:
    (folder / "sub").mkdir()

    def swap() -> None:
        os.rename(folder / "sub", folder / "old")
        os.symlink(tmp_path / "outside", folder / "sub")

    exchanged("sub", swap)
    with pytest.raises(FileError):
        read(workspace, "sub/secret.txt")


@pytest.mark.parametrize("made", ["link", "pipe", "folder"])
def test_a_file_exchanged_for_something_else_is_not_opened(workspace, folder, tmp_path, exchanged, made) -> None:
    (folder / "a").write_text("x")

    def swap() -> None:
        os.unlink(folder / "a")
        if made == "link":
            os.symlink(tmp_path / "secret.txt", folder / "a")
        elif made == "pipe":
            os.mkfifo(folder / "a")
        else:
            os.mkdir(folder / "a")

    with workspace.place("a") as place:
        exchanged("a", swap)
        with pytest.raises((OSError, ToolError)):
            workspace.read(place)


def test_a_link_put_where_a_file_is_to_be_is_replaced_and_not_followed(
    workspace, folder, tmp_path, monkeypatch
) -> None:
    (folder / "a").write_text("x")
    with workspace.place("a") as place:
        before = workspace.read(place)
        os.unlink(folder / "a")
        os.symlink(tmp_path / "secret.txt", folder / "a")
        with pytest.raises(ToolError, match="changed while it was edited"):
            workspace.replace(place, b"y", before)
    assert (tmp_path / "secret.txt").read_text() == "secret\n"
    with workspace.place("b") as place:
        os.symlink(tmp_path / "secret.txt", folder / "b")
        with pytest.raises(ToolError, match="made by somebody else"):
            workspace.replace(place, b"y", None)
    assert (tmp_path / "secret.txt").read_text() == "secret\n" and not leftovers(folder)


# --- what can be opened


def test_only_regular_files_are_opened(workspace, folder) -> None:
    os.mkfifo(folder / "pipe")
    (folder / "dir").mkdir()
    with socket.socket(socket.AF_UNIX) as made:
        home = os.getcwd()
        os.chdir(folder)  # the path of a socket must be short
        try:
            made.bind("socket")
        finally:
            os.chdir(home)
        for name, why in (("pipe", "regular"), ("socket", "regular"), ("dir", "is a folder"), (".", "is a folder")):
            with pytest.raises(ToolError, match=why):
                read(workspace, name)
            with pytest.raises(ToolError, match=why):
                put(workspace, name, b"x")


def test_large_files_are_refused(workspace, folder, monkeypatch) -> None:
    monkeypatch.setattr(module, "MAX_FILE", 1 << 20)
    (folder / "a").write_bytes(b"x" * (1 << 20))
    (folder / "b").write_bytes(b"x" * ((1 << 20) + 1))
    assert len(read(workspace, "a")) == 1 << 20
    with pytest.raises(ToolError, match="b is larger than 1 MiB"):
        read(workspace, "b")
    with pytest.raises(ToolError, match="would become larger"):
        put(workspace, "a", b"x" * ((1 << 20) + 1))
    assert (folder / "a").stat().st_size == 1 << 20 and not leftovers(folder)


# --- replacing


@pytest.mark.parametrize("mode", [0o644, 0o755, 0o600, 0o640, 0o666, 0o200])
def test_permission_bits_stay(workspace, folder, mode) -> None:
    (folder / "a").write_text("x")
    os.chmod(folder / "a", mode)
    if mode == 0o200 and os.geteuid():
        pytest.skip("not readable for anybody but root")
    put(workspace, "a", b"y")
    assert stat.S_IMODE((folder / "a").stat().st_mode) == mode and (folder / "a").read_bytes() == b"y"


def test_a_program_does_not_keep_the_right_to_run_as_its_owner(workspace, folder) -> None:
    (folder / "a").write_text("x")
    os.chmod(folder / "a", 0o4755)
    put(workspace, "a", b"y")
    assert stat.S_IMODE((folder / "a").stat().st_mode) == 0o755


def test_a_new_file_gets_what_the_umask_leaves(workspace, folder) -> None:
    before = os.umask(0o027)
    try:
        put(workspace, "a", b"y")
    finally:
        os.umask(before)
    assert stat.S_IMODE((folder / "a").stat().st_mode) == 0o640
    assert (folder / "a").stat().st_nlink == 1 and not leftovers(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_the_owner_stays(workspace, folder) -> None:
    (folder / "a").write_text("x")
    os.chown(folder / "a", 1234, 2345)
    put(workspace, "a", b"y")
    assert ((folder / "a").stat().st_uid, (folder / "a").stat().st_gid) == (1234, 2345)


def test_an_owner_that_cannot_be_kept_is_no_obstacle(workspace, folder, monkeypatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, "no")

    (folder / "a").write_text("x")
    monkeypatch.setattr(module.os, "fchown", refuse)
    put(workspace, "a", b"y")
    assert (folder / "a").read_bytes() == b"y"


def test_a_second_name_of_a_file_keeps_the_old_content(workspace, folder, tmp_path) -> None:
    """It might be outside."""
    os.link(tmp_path / "secret.txt", folder / "a")
    put(workspace, "a", b"y")
    assert (tmp_path / "secret.txt").read_text() == "secret\n" and (folder / "a").read_bytes() == b"y"


def test_read_only_files_and_gits_own_are_left_alone(workspace, folder) -> None:
    (folder / "a").write_text("x")
    os.chmod(folder / "a", 0o444)
    (folder / ".git" / "hooks").mkdir(parents=True)
    (folder / ".git" / "config").write_text("x")
    with pytest.raises(ToolError, match="a is read-only"):
        put(workspace, "a", b"y")
    for path in (".git/config", ".git/hooks/pre-commit", ".GIT/config", ".git"):
        with pytest.raises(ToolError, match="git's own|No such file|is a folder"):
            put(workspace, path, b"y")
    assert read(workspace, ".git/config") == b"x" and not os.listdir(folder / ".git" / "hooks")
    put(workspace, ".gitignore", b"y")


def _in_place(path) -> None:
    with open(path, "r+b") as file:
        file.write(b"z")


def _replaced(path) -> None:
    path.with_name("t").write_bytes(b"x")
    os.replace(path.with_name("t"), path)


@pytest.mark.parametrize(
    "change", [_in_place, _replaced, os.unlink], ids=["in place", "same bytes, other file", "gone"]
)
def test_a_change_while_it_is_edited_is_noticed(workspace, folder, monkeypatch, change) -> None:
    """At the last moment: when the new content lies beside the file already."""
    (folder / "a").write_bytes(b"x")
    fsync = os.fsync

    def meanwhile(fd: int) -> None:
        fsync(fd)
        monkeypatch.setattr(module.os, "fsync", fsync)
        change(folder / "a")

    monkeypatch.setattr(module.os, "fsync", meanwhile)
    with pytest.raises(ToolError, match="a changed while it was edited; read it again"):
        put(workspace, "a", b"y")
    assert not (folder / "a").exists() or (folder / "a").read_bytes() != b"y"
    assert not leftovers(folder)


@pytest.mark.parametrize("links_work", [True, False])
def test_a_new_file_never_takes_anothers_place(workspace, folder, monkeypatch, links_work) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, "no hard links here")

    if not links_work:
        monkeypatch.setattr(module.os, "link", refuse)
    with workspace.place("a") as place:
        (folder / "a").write_text("somebody's")
        with pytest.raises(ToolError, match="made by somebody else"):
            workspace.replace(place, b"y", None)
    assert (folder / "a").read_text() == "somebody's"
    put(workspace, "b", b"y")
    assert (folder / "b").read_bytes() == b"y" and not leftovers(folder)


@pytest.mark.parametrize("call", ["write", "fsync", "fchmod", "rename"])
def test_failures_leave_the_file_as_it_was(workspace, folder, monkeypatch, call) -> None:
    def full(*_: object, **__: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (folder / "a").write_text("x")
    monkeypatch.setattr(module.os, call, full)
    with pytest.raises(FileError, match="a: No space left on device"):
        put(workspace, "a", b"y" * 100)
    assert (folder / "a").read_text() == "x" and not leftovers(folder)


def test_short_writes_are_gone_on_with(workspace, folder, monkeypatch) -> None:
    write = os.write
    monkeypatch.setattr(module.os, "write", lambda fd, data: write(fd, bytes(data)[:3]))
    put(workspace, "a", b"0123456789")
    assert (folder / "a").read_bytes() == b"0123456789"


# --- folders and names


def test_files_below_a_folder(workspace, folder, links) -> None:
    for name in (".git/x", "sub/.git/x", "b.txt"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("x")
    os.mkfifo(folder / "pipe")
    with workspace.place(".") as place:
        assert [file.path for file in workspace.files(place)] == ["b.txt", "sub/a.txt"]
    with workspace.place("in") as place:
        assert [file.path for file in workspace.files(place)] == ["sub/a.txt"]


def test_files_too_deep_are_left_out(workspace, folder) -> None:
    deep = folder
    for _ in range(26):
        deep = deep / "d"
        deep.mkdir()
        (deep / "f").write_text("x")
    with workspace.place(".") as place:
        assert max(file.path.count("/") for file in workspace.files(place)) == 24


@given(st.text(max_size=30) | st.binary(max_size=20).map(os.fsdecode))
def test_a_shown_name_is_one_plain_line_and_can_be_given_back(name) -> None:
    shown = shown_name(name)
    assert shown.isprintable() and shown.strip() == shown and shown
    assert (json.loads(shown) if shown.startswith('"') else shown) == name


def test_hostile_names_are_files_like_others(workspace, folder) -> None:
    for name in (b"a\nb", b"\x1b[2J", b"\xff\xfe", b"- 5 fake", "\u202egpj".encode(), b"a b ", b'"q"', b"..."):
        with open(os.path.join(os.fsencode(folder), name), "wb") as file:
            file.write(name)
    with workspace.place(".") as place:
        names = [name for name, _ in workspace.entries(place)]
    assert len(names) == 8
    for name in names:
        assert read(workspace, name) == os.fsencode(name)
        put(workspace, name, b"new")
        assert read(workspace, name) == b"new"
