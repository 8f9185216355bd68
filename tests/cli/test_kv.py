"""``ds4-kv`` as a user runs it: in folders with sound, foreign, damaged and left-over files."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import pytest

from ds4ref.cli import kv
from ds4ref.session import kvc
from ds4ref.session.directory import Directory
from ds4ref.session.kvc import Header
from tests.session.fake_kv import FakeSession, Remembered, store

TALK = "<｜begin▁of▁sentence｜>Be brief.<｜User｜>What's\n\x1b[31m up?<｜Assistant｜></think>Nothing.".encode()
BLOCK = "\n\n<｜DSML｜tool_calls>x</｜DSML｜tool_calls>"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint of ours, one of ds4's, a damaged one, one of a later version, one put aside, one left over."""
    calls = Remembered()
    calls.blocks = {"call_1": BLOCK}
    path = tmp_path / "kv"
    assert store(path, calls=calls).save(FakeSession(TALK + BLOCK.encode()), (), "cold")  # type: ignore[arg-type]
    session, output = FakeSession(b"their own"), io.BytesIO()
    kvc.write(
        output, Header(4, 3, 0, 9, 4096, 1_700_000_000, session.payload_bytes(), hits=2), b"their own", session.save
    )
    (path / kvc.key_name(b"their own")).write_bytes(output.getvalue())
    (path / kvc.key_name(b"damaged")).write_bytes(output.getvalue()[:-1])
    later = bytearray(output.getvalue())
    later[3] = 9
    (path / kvc.key_name(b"later")).write_bytes(later)
    (path / f"{kvc.key_name(b'aside')}.bad").write_bytes(b"x" * 500)
    (path / f"{kvc.key_name(b'left')}.tmp.1.ab").write_bytes(b"x" * 300)
    (path / "notes.txt").write_text("mine")
    return path


OURS, THEIRS = kvc.key_name(TALK + BLOCK.encode()), kvc.key_name(b"their own")
DAMAGED, LATER = kvc.key_name(b"damaged"), kvc.key_name(b"later")
ASIDE, LEFT = f"{kvc.key_name(b'aside')}.bad", f"{kvc.key_name(b'left')}.tmp.1.ab"


def run(capsys, *argv: object) -> tuple[int, str, str]:
    code = kv.main([str(arg) for arg in argv])
    out = capsys.readouterr()
    return code, out.out, out.err


def there(folder: Path) -> set[str]:
    return {name for name in os.listdir(folder) if name != ".lock"}


def test_list(capsys, folder: Path) -> None:
    code, out, err = run(capsys, "list", folder)
    lines = out.splitlines()
    assert code == 0 and lines[0].split() == ["name", "tokens", "MiB", "reason", "hits", "used", "state", "begins"]
    by_name = {line.split()[0]: line for line in lines[1:]}
    assert by_name[OURS[:12]].split()[1:4] == [str(len(TALK + BLOCK.encode())), "0.0", "cold"]
    assert by_name[OURS[:12]].endswith("ds4ref   What's [31m up?"), "no escape sequence reaches the terminal"
    assert by_name[THEIRS[:12]].endswith("ds4      their own") and " evict " in by_name[THEIRS[:12]]
    assert "damaged" in by_name[DAMAGED[:12]] and "version 9" in by_name[LATER[:12]]
    assert "4 checkpoint(s), 4 other file(s), 1 damaged" in err
    found = {entry["file"]: entry for entry in json.loads(run(capsys, "list", folder, "--json")[1])}
    assert {name: entry["state"] for name, entry in found.items()} == {
        OURS: "ds4ref", THEIRS: "ds4", DAMAGED: "damaged", LATER: "unknown"}  # fmt: skip
    assert list(found)[:2] == [OURS, THEIRS], "worth most first: one is small, and used just now"
    assert list(by_name) == [name[:12] for name in found]
    assert found[OURS]["computed_with"] == {"model": "fake"} and found[THEIRS]["hits"] == 2


def test_one_in_full(capsys, folder: Path) -> None:
    code, out, _ = run(capsys, "list", folder, OURS[:6])
    found = json.loads(out)
    assert code == 0 and (found["reason"], found["computed_with"]) == ("cold", {"model": "fake"})
    assert found["calls"] == ["call_1"] and found["text"] == (TALK + BLOCK.encode()).decode() and "\x1b" not in out
    code, out, _ = run(capsys, "list", folder, DAMAGED)
    assert code == 0 and "truncated file" in out


def test_verify(capsys, folder: Path) -> None:
    def states(*argv: object) -> tuple[int, dict[str, str]]:
        code, out, _ = run(capsys, "list", folder, *argv, "--verify", "--json")
        return code, {entry["file"]: entry["state"] for entry in json.loads(out)}

    assert states() == (1, {OURS: "sound", THEIRS: "plausible", DAMAGED: "damaged", LATER: "other"})
    assert states(OURS[:8], THEIRS)[0] == 0 and there(folder) >= {DAMAGED}, "looking changes nothing"
    data = bytearray((folder / OURS).read_bytes())
    data[300] ^= 1
    (folder / OURS).write_bytes(data)
    assert states(OURS) == (1, {OURS: "damaged"}), "which looking does not find"


def test_prune_takes_what_is_of_no_use(capsys, folder: Path) -> None:
    code, out, err = run(capsys, "prune", folder, "--dry-run")
    would = dict(line.split("  ")[::2] for line in out.splitlines())
    assert (
        code == 0 and would == {DAMAGED: "damaged", ASIDE: "damaged", LEFT: "left behind"} and "would be deleted" in err
    )
    before = there(folder)
    code, out, _ = run(capsys, "prune", folder, "--json")
    told = json.loads(out)
    assert set(told["gone"]) == set(would) == before - there(folder)
    assert told["left"] == sum(path.stat().st_size for path in folder.iterdir())


def test_prune_what_nobody_uses(capsys, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, _ = run(capsys, "prune", folder, "--unused-days", "30")
    assert code == 0 and f"{THEIRS}  0.0 MiB  unused" in out.splitlines()
    assert there(folder) == {OURS, LATER, "notes.txt"}
    opened: list[Directory] = []
    monkeypatch.setattr(kv, "_open", lambda args, real=kv._open: opened.append(real(args)) or opened[-1])
    assert run(capsys, "prune", folder, "--space-mb", "3")[0] == 0 and opened[0].budget == 3 << 20
    assert run(capsys, "prune", folder, "--space-mb", "0")[0] == 0 and there(folder) == {"notes.txt"}


@pytest.mark.parametrize(
    ("argv", "code", "says"),
    [
        (["list"], 2, "name a folder"),
        (["list", "nowhere"], 1, "cannot read nowhere: No such file"),
        (["prune", "{}", "more"], 2, "unexpected argument: more"),
        (["list", "{}", "zz"], 2, "no checkpoints in"),
        (["list", "{}", ""], 2, "4 checkpoints in"),
        (["prune", "{}", "--space-mb", "-1"], 2, "invalid value for --space-mb"),
        (["lst", "{}"], 2, "did you mean list?"),
    ],
)
def test_mistakes(capsys, folder: Path, argv: list[str], code: int, says: str) -> None:
    done, out, err = run(capsys, *(arg.format(folder) for arg in argv))
    assert (done, out) == (code, "") and says in err and err.count("\n") == 1
