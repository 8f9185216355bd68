"""Files of saved sessions, for every family: opening them by path or as a stream, and reading with checks whose errors
name the section of the file."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

import numpy as np

from ..errors import PayloadError
from ..files import atomic_write

File = str | os.PathLike[str] | BinaryIO


@contextmanager
def writing(file: File) -> Iterator[BinaryIO]:
    """Open a file for writing; if it is given by its path, it is replaced atomically when writing is done."""
    if isinstance(file, str | os.PathLike):
        with atomic_write(file) as stream:
            yield stream
    else:
        yield file


@contextmanager
def reading(file: File) -> Iterator[Reader]:
    """Open a file for reading; raise PayloadError if it is given by its path and cannot be read."""
    if isinstance(file, str | os.PathLike):
        try:
            with open(file, "rb") as stream:
                yield Reader(stream)
        except OSError as error:
            raise PayloadError(f"{os.fspath(file)}: {error.strerror or error}") from error
    else:
        yield Reader(file)


class Reader:
    """Reads the sections of a saved session; raises PayloadError, naming the section ``label``, if the file ends too
    early or holds bad values."""

    def __init__(self, stream: BinaryIO):
        self.stream = stream
        self.size: int | None = None
        """Bytes from the current position to the end of the file, None for a stream that cannot seek."""
        if stream.seekable():
            position = stream.tell()
            self.size = stream.seek(0, io.SEEK_END) - position
            stream.seek(position)

    def expect(self, total: int) -> None:
        """Raise PayloadError if the file is not ``total`` bytes long; called before arrays are allocated."""
        if self.size is not None and self.size != total:
            raise PayloadError(f"saved session is {self.size} bytes long, should be {total}")

    def array(self, label: str, shape: int | tuple[int, ...], kind: str) -> np.ndarray:
        """Read an array of numpy type ``kind``."""
        array = np.empty(shape, kind)
        view = memoryview(array).cast("B") if array.size else memoryview(b"")
        done = 0
        while done < len(view):
            got = self.stream.readinto(view[done:])  # type: ignore[attr-defined]
            if not got:
                raise PayloadError(f"saved session ends inside its {label}")
            done += got
        return array

    def words(self, label: str, count: int) -> np.ndarray:
        """Read ``count`` little-endian u32 words."""
        return self.array(label, count, "<u4")

    def tokens(self, count: int, vocab: int) -> np.ndarray:
        """Read ``count`` token ids, each of which must be below ``vocab``."""
        tokens = self.words("tokens", count)
        if count and tokens.max() >= vocab:
            raise PayloadError(f"saved token id {tokens.max()} is outside the vocabulary of {vocab}")
        return tokens

    def finite(self, label: str, shape: tuple[int, ...], kind: str = "<f4") -> np.ndarray:
        """Read an array of numpy type ``kind`` without NaN and infinity."""
        return check_finite(label, self.array(label, shape, kind))

    def logits(self, vocab: int) -> np.ndarray:
        """Read logits (V,): finite, or -inf for tokens that are excluded."""
        logits = self.array("logits", vocab, "<f4")
        check_finite("logits", logits[~np.isneginf(logits)])
        return logits

    def end(self) -> None:
        """Raise PayloadError if bytes follow the last section."""
        if self.stream.read(1):
            raise PayloadError("saved session has bytes after its end")


def check_finite(label: str, array: np.ndarray) -> np.ndarray:
    """Return the array; raise PayloadError naming the section ``label`` if a value is not finite."""
    if not np.isfinite(array).all():
        raise PayloadError(f"saved session has a value that is not finite in its {label}")
    return array
