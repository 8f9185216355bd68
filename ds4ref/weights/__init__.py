"""Model files of all known formats; ``open_source`` opens any of them.

    GGUF                      gguf.GGUFFile
    llama2.c                  llama2c.Llama2cFile: a legacy checkpoint, or one of version 1 or 2
    safetensors               published.PublishedSource: a folder with config.json and shards, its index, or one file

docs/reference/weights.md says what each may hold.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .source import TensorSource


def open_source(path: str | os.PathLike[str], check: bool = True) -> TensorSource:
    """Open the model at ``path``, recognised by its contents; raise ModelFileError for an unknown format.

    check: refuse a safetensors folder with config keys or tensors that are neither used in the computation nor known to
    have no effect. (For GGUF and llama2.c files the reader of the architecture makes this check later.)
    """
    location = Path(path)
    if location.is_dir() or location.suffix == ".json":
        from .published import PublishedSource

        return PublishedSource.open(path, check=check)
    from .mapped import MappedFile

    file = MappedFile(path)
    try:
        head = file.read(0, min(file.size, 9))
        from .llama2c import Llama2cFile, is_llama2c

        if not head.startswith(b"GGUF") and is_llama2c(file):
            return Llama2cFile.open(path)
    finally:
        file.close()
    if not head.startswith(b"GGUF") and (location.suffix == ".safetensors" or head[8:] == b"{"):
        from .published import PublishedSource

        return PublishedSource.open(path, check=check)
    from .gguf import GGUFFile

    return GGUFFile.open(path)


__all__ = ["open_source"]
