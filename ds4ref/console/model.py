"""Choice of a command's model file, and opening the engine on it."""

from __future__ import annotations

import os
import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import ModelFileError, UsageError
from ..files import models_near
from .cluster import clustering
from .common import Progress, say
from .drafts import drafting
from .options import integer
from .steering import announce, steering

if TYPE_CHECKING:
    from ..engine import Engine
    from ..weights.source import TensorSource

LOCAL_MODEL = "ds4flash.gguf"
MAX_THREADS = 32
GIB = 1 << 30


@dataclass(frozen=True)
class ModelChoice:
    """A model file or folder, and where it comes from: "given" (-m), "found" (./ds4flash.gguf) or "embedded"."""

    path: Path
    why: str

    def __str__(self) -> str:
        if self.why == "embedded":
            from ..nano.trained import ABOUT

            return f"the embedded model, {ABOUT} ({self.path}; no ./{LOCAL_MODEL} here)"
        return str(self.path)


def choose_model(prog: str, requested: str | None) -> ModelChoice:
    """Return the file of ``-m``, else ./ds4flash.gguf, else the embedded model, which is built on first use.

    Prints the choice on stderr unless the user made it. Raises ModelFileError if the file cannot be opened, or the
    folder holds no model.
    """
    if requested is not None:
        choice = ModelChoice(Path(requested), "given")
    elif os.path.lexists(LOCAL_MODEL):
        choice = ModelChoice(Path(LOCAL_MODEL), "found")
    else:
        from ..nano import embedded_path

        choice = ModelChoice(Path(embedded_path()), "embedded")
    try:
        if choice.path.is_dir():
            if not (choice.path / "config.json").is_file():
                raise ModelFileError(
                    str(choice.path), "cannot open the model: a folder without config.json" + models_near(choice.path)
                )
        else:
            with open(choice.path, "rb"):
                pass
    except OSError as error:
        near = models_near(choice.path) if isinstance(error, FileNotFoundError) else ""
        raise ModelFileError(str(choice.path), f"cannot open the model: {error.strerror}{near}") from None
    if choice.why != "given":
        say(prog, f"model: {choice}")
    return choice


@contextmanager
def single_instance(prog: str) -> Iterator[None]:
    """Hold the lock file named by DS4_LOCK_FILE during the block; UsageError names the process that already holds it.

    ds4 always locks, because two 80 GB models do not fit one machine. Here it is optional.
    """
    path = os.environ.get("DS4_LOCK_FILE")
    if not path:
        yield
        return
    import fcntl  # not on every platform

    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise UsageError(f"cannot open lock file {path}: {error.strerror}") from None
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
            raise UsageError(f"another {prog} is running (pid {holder} holds {path})") from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(fd)


def threads(prog: str, requested: int | None) -> int | None:
    """Return the number of threads: ``--threads``, else DS4_THREADS, else None for the engine's default.

    As in ds4 there are at most 32; stderr says so if more were asked for.
    """
    text = os.environ.get("DS4_THREADS")
    if requested is None and text:
        try:
            requested = integer()(text)
        except Exception as error:
            raise UsageError(f"invalid value for DS4_THREADS: {text}: {error}") from None
    if requested is not None and requested > MAX_THREADS:
        say(prog, f"{MAX_THREADS} threads is the maximum; requested {requested}")
        return MAX_THREADS
    return requested


@contextmanager
def open_engine(prog: str, args: Namespace) -> Iterator[Engine]:
    """Open the engine as the command line options say, holding the instance lock if one is configured."""
    n = threads(prog, args.threads)
    steered = steering(args) if hasattr(args, "dir_steering_file") else None
    with single_instance(prog):
        choice = choose_model(prog, args.model)
        from ..engine import Engine

        with Engine.open(
            choice.path,
            backend=args.backend,
            numerics=args.numerics,
            threads=n,
            strict=args.strict,
            split=getattr(args, "split", "unicode"),
            gpu_memory=getattr(args, "gpu_memory", None),
            expert_cache=getattr(args, "expert_cache", None),
            drafts=drafting(args, choice.why == "embedded") if hasattr(args, "draft") else None,
            steering=steered,
            cluster=clustering(args) if hasattr(args, "cluster") else None,
        ) as engine:
            announce(prog, engine)
            if args.warm_weights:
                warm(prog, engine.source)
            yield engine


def warm(prog: str, source: TensorSource) -> None:
    """Load the weights into memory by reading a byte of every page; print size and time on stderr."""
    total = sum(info.nbytes for info in source.tensors.values())
    say(prog, f"warming {total / GIB:.2f} GiB of {source.path}")
    start, done, checksum = time.perf_counter(), 0, 0
    with Progress("warming weights") as progress:
        for size, part in source.touch():
            done, checksum = done + size, checksum + part
            progress(done, total)
    say(prog, f"warmed in {time.perf_counter() - start:.1f} s (checksum {checksum:08x})")
