"""What the kept commands print, from first to last line: ``transcripts/*.txt``, each run in a folder of its own.

A line ``$ command`` is run; what follows is its stdout, then its stderr with ``! `` before each line, then ``[exit N]``
if that is not 0. ``...`` stands for anything (figures, times), as in doctest. ``< FILE`` at the end is its stdin.
"""

from __future__ import annotations

import doctest
import shlex
from pathlib import Path

import pytest

from ds4ref.nano import embedded_path

from .running import run

FILES = sorted((Path(__file__).parent / "transcripts").glob("*.txt"))
ALIKE = doctest.OutputChecker()
LANTERN = "The old lantern stood in the harbour. "


def steps(text: str) -> list[tuple[str, str]]:
    """Commands and what is wanted of each."""
    blocks = ("\n" + text).split("\n$ ")[1:]
    return [(command, wanted) for command, _, wanted in (block.partition("\n") for block in blocks)]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_transcript(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    Path("lantern.txt").write_text(LANTERN * 12)
    Path("ids.json").write_text(str([*range(5, 45)]))
    Path("model.gguf").symlink_to(embedded_path())
    wrong = []
    for command, wanted in steps(file.read_text()):
        words, stdin = shlex.split(command), b""
        if words[-2] == "<":
            stdin, words = Path(words[-1]).read_bytes(), words[:-2]
        ran = run(words[0], *words[1:], stdin=stdin)
        compiled = "ds4ref: compil"  # said by whoever comes first
        shown = ran.out + "".join(f"! {line}\n" for line in ran.err.splitlines() if not line.startswith(compiled))
        shown += f"[exit {ran.code}]\n" if ran.code else ""
        if not ALIKE.check_output(wanted, shown, doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE):
            wrong.append(f"$ {command}\nwanted:\n{wanted}\nshown:\n{shown}")
    assert not wrong, "\n".join(wrong)


def test_every_command_has_a_transcript() -> None:
    from .running import SCRIPTS

    told = {command.split()[0] for file in FILES for command, _ in steps(file.read_text())}
    assert told == set(SCRIPTS) - {"ds4-server"}  # which the SDKs talk to
