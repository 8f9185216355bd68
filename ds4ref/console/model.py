"""The engine's options (``engine_options``) as command line flags, the choice of a model file, and how commands open
the engine."""

from __future__ import annotations

import fcntl
import logging
import os
import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..engine_options import ClusterSettings, Drafting, EngineOptions, Steering, dest, flags
from ..errors import ModelFileError, UsageError
from ..files import models_near
from .common import Progress, say
from .flags import Group, add
from .options import Parser, integer

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
    folder = choice.path.is_dir()
    try:
        open(choice.path / "config.json" if folder else choice.path, "rb").close()
    except OSError as error:
        why = "a folder without config.json" if folder else error.strerror
        near = models_near(choice.path) if isinstance(error, FileNotFoundError) else ""
        raise ModelFileError(str(choice.path), f"cannot open the model: {why}{near}") from None
    if choice.why != "given":
        say(prog, f"model: {choice}")
    return choice


@contextmanager
def single_instance(prog: str) -> Iterator[None]:
    """Context manager: hold the lock file named by DS4_LOCK_FILE. Raise UsageError if another process holds it.

    ds4 always locks, because two 80 GB models do not fit one machine. Here it is optional.
    """
    path = os.environ.get("DS4_LOCK_FILE")
    if not path:
        yield
        return
    try:
        file = open(path, "a+", encoding="ascii", errors="replace")
    except OSError as error:
        raise UsageError(f"cannot open lock file {path}: {error.strerror}") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            holder = file.read(32).strip() or "unknown"
            raise UsageError(f"another {prog} is running (pid {holder} holds {path})") from None
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


def threads(prog: str, requested: int | None) -> int | None:
    """Return the number of threads: ``--threads``, else DS4_THREADS, else None for the engine's default.

    As in ds4 there are at most 32; a note on stderr says so if more were requested.
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


# --- flags

SHARED = "--backend", "--gpu-memory", "--expert-cache", "--numerics", "--threads"
OWN = "--cpu", "--cuda", "--warm-weights", "--strict", "--template", "--template-escapes"
"""Flags of commands that run one model, rather than compare it."""
PARTS = {
    "steering": ("directional steering", Steering),
    "cluster": ("several machines (docs/how-to/cluster.md)", ClusterSettings),
    "drafts": ("speculative decoding", Drafting),
}


def add_engine(parser: Parser, *parts: str, group: Group | None = None, **own: dict[str, Any]) -> None:
    """Add the flags of an engine.

    parts   optional features whose flags are added too: "steering", "cluster", "drafts"
    group   heading of the help under which the flags are listed, for a command that runs one model; ``parts`` get
            headings of their own. None: add to ``parser`` itself, without the flags ``OWN``.
    own     by the name of an option: arguments of ``flags.add`` that differ in this command
    """
    for name in SHARED if group is None else (*SHARED, *OWN):
        add(parser if group is None else group, name, **own.get(dest(name), {}))
    for part in parts:
        add_part(parser if group is None else parser.add_argument_group(PARTS[part][0]), part, **own)


def add_part(group: Group, part: str, **own: dict[str, Any]) -> None:
    """Add the flags of one optional feature, a key of ``PARTS``."""
    for each in flags(PARTS[part][1]):
        add(group, each.metadata["flag"], **own.get(dest(each.metadata["flag"]), {}))
    if part == "drafts":
        group.add_argument("--dspark", action="store_const", const="dspark", dest="draft", help="as --draft dspark")


def _given(kind: type, args: Namespace) -> dict[str, Any]:
    """Return by name the fields of a class of options for which the command line has a value."""
    values = {each.name: getattr(args, dest(each.metadata["flag"]), None) for each in flags(kind)}
    return {name: value for name, value in values.items() if value is not None}


def engine_options(args: Namespace, embedded: bool = False) -> dict[str, Any]:
    """Return the keywords of ``Engine.open`` that the flags ask for.

    embedded: the model is the embedded one, which has drafters of its own.
    """
    parts = {"drafts": drafting(args, embedded), "steering": steering(args), "cluster": clustering(args)}
    return _given(EngineOptions, args) | {name: part for name, part in parts.items() if part is not None}


def drafting(args: Namespace, embedded: bool = False) -> Drafting | None:
    """Return the settings of speculative decoding that the flags ask for, None if it is off.

    As in ds4, ``--mtp FILE`` alone drafts nothing, and ``--mtp-draft N`` of 2 or more turns drafts on. Raise UsageError
    for flags that contradict each other. ``embedded``: the model is the embedded one.
    """
    given = _given(Drafting, args)
    most, kind = given.get("most"), given.get("kind")
    if most == 1 and kind not in (None, "off"):
        raise UsageError(
            f"--mtp-draft 1 turns drafting off and conflicts with --draft {kind}: use 2 to 16, or drop one"
        )
    given.setdefault("kind", "auto" if most is not None and most > 1 else "off")
    if given["kind"] == "off":
        return None
    if embedded and given["kind"] != "lookup" and "mtp" not in given:
        from ..nano.trained import dspark_path, mtp_path

        given["mtp"] = dspark_path() if given["kind"] == "dspark" else mtp_path()
    return Drafting(**given)


def steering(args: Namespace) -> Steering | None:
    """Return the steering that the flags ask for, None without any.

    As in ds4, a file without a scale is applied with scale 1 after the FFN. Raise UsageError for a scale without a
    file.
    """
    given = _given(Steering, args)
    if "directions" not in given:
        for name, scale in given.items():
            if scale:
                raise UsageError(f"--dir-steering-{name} needs --dir-steering-file")
        return None
    return Steering(**given) if len(given) == 1 else Steering(**{"attn": 0.0, "ffn": 0.0, **given})


def clustering(args: Namespace) -> ClusterSettings | None:
    """Return the cluster settings that the flags give, None without ``--cluster``; raise UsageError for other cluster
    flags without it."""
    given = _given(ClusterSettings, args)
    if "where" not in given:
        for each in flags(ClusterSettings):
            if each.name in given and hasattr(args, "cluster"):
                raise UsageError(f"{each.metadata['flag']} needs --cluster")
        return None
    with suppress(ImportError):  # if it is not installed, ``connect`` reports that
        import distributed  # noqa: F401 - importing it sets its log level

    logging.getLogger("distributed").setLevel(logging.CRITICAL)  # a lost worker is reported in one line of ours
    return ClusterSettings(**given, tell=lambda line: say("cluster", line))


def announce(prog: str, engine: Engine | None) -> None:
    """Print the engine's steering, if any, on stderr; None stands for an engine that is not in this process."""
    s = None if engine is None else engine.steering
    if s is not None:
        say(prog, f"directional steering enabled: {s.file} attn={s.attn:g} ffn={s.ffn:g}")


# --- opening


@contextmanager
def open_engine(prog: str, args: Namespace) -> Iterator[Engine]:
    """Context manager: open the engine that the flags describe, holding the lock file if one is configured."""
    args.threads = threads(prog, args.threads)
    engine_options(args)  # report mistakes in flags before waiting for the lock
    with single_instance(prog):
        choice = choose_model(prog, args.model)
        from ..engine import Engine

        with Engine.open(choice.path, **engine_options(args, choice.why == "embedded")) as engine:
            announce(prog, engine)
            if getattr(args, "warm_weights", False):
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
