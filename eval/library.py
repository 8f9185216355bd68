"""The packs of questions that come with the program: files beside this one, and ``long``, which is generated when it is
needed."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from ds4ref.errors import UsageError

from . import long_pack, own, packs
from .packs import Pack


def files() -> dict[str, Path]:
    """Return the packs that are files, by name."""
    folder = Path(str(resources.files("ds4ref.eval") / "questions"))
    return {path.stem: path for path in sorted(folder.glob("*.jsonl"))}


def names() -> list[str]:
    """Return the names of all packs, in alphabetical order."""
    return sorted((*files(), long_pack.NAME))


def load(name: str, depths: Sequence[int] | None = None) -> Pack:
    """Return a pack by its name, or read it from the path of a pack or of a file of the user's questions (``own``).

    Raise UsageError if there is none, DataError if it is damaged. ``depths``: distances in tokens, for pack ``long``
    only.
    """
    if name == long_pack.NAME:
        return long_pack.make(depths or long_pack.SIZES)
    if depths is not None:
        raise UsageError(f"--long-tokens is for --pack {long_pack.NAME}, not for {name}")
    path = files().get(name, Path(name))
    if not path.is_file():
        raise UsageError(f"no pack {name}: choose from {', '.join(names())}, or name a file")
    return packs.read(path) if own.is_pack(path) else own.read(path)
