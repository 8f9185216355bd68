"""Weights, wherever they lie: ``open_source`` opens a model of any container that is known here."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .source import TensorSource


def open_source(path: str | os.PathLike[str]) -> TensorSource:
    """The model at ``path``, told by what it is and not by its name. ModelFileError if it is none that is known."""
    from .gguf import GGUFFile

    return GGUFFile.open(path)


__all__ = ["open_source"]
