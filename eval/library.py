"""The packs that come with the program: files beside it, and ``long``, which is made when it is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ds4ref.errors import UsageError

from . import long_pack, packs
from .packs import Pack


def names() -> list[str]:
    """Return the names of all packs, in alphabetical order."""
    return sorted((*packs.names(), long_pack.NAME))


def load(
    name: str, depths: Sequence[int] | None = None, seed: int | None = None, count: long_pack.Count | None = None
) -> Pack:  # fmt: skip
    """Return a pack by its name, or by the path of a pack or of a file of questions (``own``).

    UsageError if there is none, DataError if it is damaged.

    ``depths``, ``seed`` and ``count`` are those of ``long_pack.make``; UsageError if another pack is given one.
    """
    if name == long_pack.NAME:
        return long_pack.make(depths or long_pack.SIZES, count, seed or 0)
    if depths is not None or seed is not None:
        raise UsageError(f"--long-tokens and --long-seed are for --pack {long_pack.NAME}, not for {name}")
    path = Path(name)
    if name not in packs.names() and path.is_file():
        from . import own

        return packs.read(path) if own.is_pack(path) else own.read(path)
    return packs.load(name)
