"""Generated models: the embedded one that runs everywhere, and slices of Flash's real dimensions.

    ds4 nano path                                  prints the embedded model's file, built if need be
    ds4 nano slice [OUT] --layers 4 --n-experts 256  writes a slice (8.5 GB; 0.9 GB with --n-experts 8)

``prose`` generates the text for benchmarks and recall tests, ``vocab`` the tokenizer tables, ``recipe`` the model
files; ``cache`` stores generated models on disk.
"""

from __future__ import annotations

__all__ = ["embedded_path"]


def embedded_path() -> str:
    """Return the path of the embedded model in the user's cache, built or repaired first if necessary.

    Raise DataError or ModelFileError with one line that says what to do when the cache cannot be written.
    """
    from .cache import embedded_path

    return embedded_path()
