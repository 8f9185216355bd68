"""A rename says that files are whole: their bytes are on the disk first, else a power cut leaves names without them.

At every rename, all files of the folder that are said to be whole must have been synced as they are now.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ds4ref.files import atomic_write
from ds4ref.session import kvc
from ds4ref.session.directory import Directory
from ds4ref.weights.container import TensorSpec
from ds4ref.weights.quantize.part import PartFile


def a_file(folder: Path) -> None:
    with atomic_write(folder / "a") as out:
        out.write(b"x")


def a_checkpoint(folder: Path) -> None:
    with Directory(folder).writing(kvc.key_name(b"text"), 1) as output:
        output.write(b"x")


def a_quantized_file(folder: Path) -> None:
    """Its journal says up to where it is whole, and does so before the end, too."""
    with PartFile(folder / "a", [], [TensorSpec("t", "F32", (4, 2))], 32, "plan") as part:
        for row in (b"abcd", b"efgh"):
            part.write(1, row * 4)
            part.sync()


@pytest.mark.parametrize("write", [a_file, a_checkpoint, a_quantized_file])
def test_bytes_are_on_the_disk_before_the_name_that_says_so(
    write: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: dict[int, bytes] = {}
    renamed = []

    def fsync(fd: int) -> None:
        for path in tmp_path.rglob("*"):
            if path.is_file() and os.path.samestat(path.stat(), os.fstat(fd)):
                synced[os.fstat(fd).st_ino] = path.read_bytes()

    def checked(rename: Callable[..., None]) -> Callable[..., None]:
        def renaming(source: str, target: str) -> None:
            for path in Path(source).parent.iterdir():
                if path.is_file() and path.stat().st_size:
                    assert synced.get(path.stat().st_ino) == path.read_bytes(), path.name
            renamed.append(target)
            rename(source, target)

        return renaming

    monkeypatch.setattr(os, "fsync", fsync)
    for name in ("replace", "rename"):
        monkeypatch.setattr(os, name, checked(getattr(os, name)))
    write(tmp_path)
    assert renamed
