"""Writes a GGUF file that can be resumed: after an interruption, the next run with the same plan continues the file.

Bytes are written in order to ``NAME.part`` next to the target. Periodically they are synced to disk, and a journal,
``NAME.part.json``, records the plan and the position (tensor, row) up to which everything is safe; the next run
continues there, so a resumed file equals one that was never interrupted. The finished file is renamed to its final
name; until then an older file of that name stays untouched.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import msgspec

from ...errors import DataError, ModelFileError
from ...files import atomic_write, flush_to_disk
from ..container import TensorSpec, require_posix
from ..writer import laid_out

SYNC_SECONDS = 20.0


class _Entry(msgspec.Struct):
    """Contents of the journal: the digest of the plan, and the index of the tensor and row to write next."""

    plan: str
    tensor: int
    row: int


class PartFile:
    """A GGUF file under construction; ``tensor`` and ``row`` are the index of the tensor and row to write next.

    path       final name of the file
    metadata   (key, type, value) of each entry, as in ``write_gguf``
    specs      all tensors, in file order
    alignment  of tensor data, in bytes
    digest     hash of the plan (``Plan.digest``); a partial file with another one is not continued
    fresh      discard the partial file of an earlier run

    Raise DataError if another process is writing the file or a partial file of another plan exists, ModelFileError if
    writing fails. Leaving the ``with`` block normally puts the file in place; an exception keeps the partial file.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        metadata: Sequence[tuple[str, str, Any]],
        specs: Sequence[TensorSpec],
        alignment: int,
        digest: str,
        fresh: bool = False,
    ):
        require_posix()
        self.path = Path(path)
        self.part = self.path.with_name(self.path.name + ".part")
        self.journal = self.path.with_name(self.path.name + ".part.json")
        self._specs, self._digest = list(specs), digest
        directory, self._starts, self.size = laid_out(metadata, self._specs, alignment)
        self.tensor = self.row = 0
        self.resumed = False
        self._fd = -1
        self._synced = time.monotonic()
        if self.part.is_symlink():
            raise DataError(f"{self.part}: is a symbolic link; refusing to write through it")
        try:
            with self._explained():
                self._fd = os.open(self.part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
                self._lock()
                self._resume(fresh)
                if not self.resumed:
                    os.ftruncate(self._fd, 0)
                    self._write_at(0, directory)
                    self.sync()
        except BaseException:
            self._release()
            raise

    def write(self, rows: int, data: Any) -> None:
        """Write ``data``, the bytes of the next ``rows`` weight rows of the current tensor."""
        spec = self._specs[self.tensor]
        row_bytes = spec.nbytes // spec.rows
        view = memoryview(data).cast("B")
        if view.nbytes != rows * row_bytes or self.row + rows > spec.rows:
            raise ValueError(f"{rows} rows of {spec.name} are {rows * row_bytes} bytes, not {view.nbytes}")
        with self._explained():
            self._write_at(self._starts[self.tensor] + self.row * row_bytes, view)
            self.row += rows
            if self.row == spec.rows:
                self.tensor, self.row = self.tensor + 1, 0
            if time.monotonic() - self._synced > SYNC_SECONDS:
                self.sync()

    def sync(self) -> None:
        """Sync the written bytes to disk and record the position in the journal."""
        flush_to_disk(self._fd)
        with atomic_write(self.journal) as out:
            out.write(msgspec.json.encode(_Entry(self._digest, self.tensor, self.row)))
        self._synced = time.monotonic()

    def finish(self) -> None:
        """Sync the file and rename it to its final name; raise ValueError if a tensor is missing."""
        if self.tensor < len(self._specs):
            raise ValueError(f"{self._specs[self.tensor].name} was not written")
        with self._explained():
            os.ftruncate(self._fd, self.size)
            flush_to_disk(self._fd)
            os.replace(self.part, self.path)
            self.journal.unlink(missing_ok=True)
            folder = os.open(self.path.parent, os.O_RDONLY)
            with suppress(OSError):
                flush_to_disk(folder)
            os.close(folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self.finish()
            else:
                with suppress(OSError):
                    self.sync()
        finally:
            self._release()

    # --- helpers

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn errors of the system into ModelFileError, with a hint if the run can be resumed."""
        try:
            yield
        except OSError as error:
            hint = "; the finished part is saved, run again to resume" if self.part.exists() else ""
            raise ModelFileError(self.path, f"cannot write: {error.strerror or error}{hint}") from error

    def _lock(self) -> None:
        import fcntl

        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DataError(f"{self.part}: another process is writing it") from None
        except OSError:
            pass  # a file system without locks

    def _resume(self, fresh: bool) -> None:
        if fresh or not os.fstat(self._fd).st_size:  # of a part that got its final name just before a crash
            self.journal.unlink(missing_ok=True)
            return
        try:
            entry = msgspec.json.decode(self.journal.read_bytes(), type=_Entry)
        except FileNotFoundError:
            return
        except (OSError, ValueError):
            raise DataError(f"{self.journal}: cannot be read; use --restart to start over") from None
        if entry.plan != self._digest:
            raise DataError(
                f"{self.part}: belongs to another run (source, formats, importance or quantizers differ); "
                "--restart discards it"
            )
        tensor, row = entry.tensor, entry.row
        rows = [*(spec.rows for spec in self._specs), 1]
        if not (0 <= tensor < len(rows) and 0 <= row < rows[tensor]):
            raise DataError(f"{self.journal}: is damaged; use --restart to start over")
        needed = self._starts[tensor - 1] + self._specs[tensor - 1].nbytes if tensor else 0
        if row:
            needed = self._starts[tensor] + row * (self._specs[tensor].nbytes // rows[tensor])
        if os.fstat(self._fd).st_size < needed:
            raise DataError(f"{self.part}: is shorter than its journal says; use --restart to start over")
        self.tensor, self.row, self.resumed = tensor, row, tensor > 0 or row > 0
        if self.resumed:
            os.ftruncate(self._fd, needed)  # bytes after the recorded position may never have reached the disk

    def _write_at(self, position: int, data: Any) -> None:
        view = memoryview(data).cast("B")
        while view:
            count = os.pwrite(self._fd, view[: 1 << 30], position)
            position, view = position + count, view[count:]

    def _release(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
