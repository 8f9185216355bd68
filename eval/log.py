"""Every sample on disk as soon as it is finished: JSON Lines, one header and then one line a sample.

A line is written, flushed and synced before the next sample begins, so that a kill or a crash costs what was being
generated and nothing else. A torn last line is what such an end leaves; it is cut off when the log goes on. A sample
that is done again (``--retry-incomplete``, the screen's r) is another line, and the last one counts.
"""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Literal

import msgspec

from ds4ref.errors import DataError, UsageError

from .packs import Pack, Question
from .plan import Key, Settings

SCHEMA = "ds4-eval-log-v1"
Status = Literal["done", "failed", "stopped"]
Outcome = Literal["right", "wrong", "ambiguous", "missing"]


class Grade(msgspec.Struct, frozen=True):
    """What an answer is worth. ``given`` is what was found in it ("" if nothing), ``why`` says how it was found or why
    it counts as ambiguous or missing."""

    outcome: Outcome
    given: str = ""
    why: str = ""


class Sample(msgspec.Struct, omit_defaults=True):
    """One answer to one question.

    digest       of question and settings (``plan.Settings.digest``)
    status       "done" with a grade; "failed" with an error and none: it says nothing about the model; "stopped" by
                 the user
    order        which choice stood at each letter, empty where they stood as they are
    expected     the right answer as it was to be given
    tokens       generated, ``reasoning_tokens`` of them thought; None where the target does not count
    ttft         seconds to the first token, ``seconds`` to the last
    finish       why it ended: "stop", "length" ...
    close        how thinking ended: "natural", "soft", "hard", "open" (it did not), "" without thinking
    ds4          how ds4's own extractor grades it
    """

    id: str
    epoch: int
    digest: str
    status: Status
    expected: str
    started: str
    order: tuple[int, ...] = ()
    prompt: str = ""
    output: str = ""
    reasoning: str = ""
    grade: Grade | None = None
    ds4: Grade | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    tokens: int | None = None
    reasoning_tokens: int | None = None
    ttft: float | None = None
    seconds: float = 0.0
    finish: str = ""
    close: str = ""
    model: str = ""
    error: str = ""
    target: str = ""

    @property
    def key(self) -> Key:
        """Which sample it is."""
        return Key(self.epoch, self.id)

    @property
    def right(self) -> bool:
        """Whether it was graded so."""
        return self.grade is not None and self.grade.outcome == "right"


class LogHeader(msgspec.Struct):
    """What all samples of a log have in common. ``questions`` are those of the whole pack, asked or not, so that a log
    can go on, be graded again and be looked at without it; ``target`` is the engine's identity, ``facts`` where the run
    comes from."""

    schema: str
    pack: dict[str, Any]
    settings: dict[str, Any]
    epochs: int
    target: dict[str, Any]
    facts: dict[str, Any]
    questions: list[Question]

    @property
    def plan(self) -> Settings:
        """The settings; DataError if they are none of this version's."""
        try:
            return Settings(**self.settings)
        except TypeError as error:
            raise DataError(f"settings of another version: {error}") from None


class Log(msgspec.Struct):
    """A log that was read: the samples that count, in the order in which they were made."""

    path: str
    header: LogHeader
    samples: list[Sample]
    torn: bool = False

    @property
    def questions(self) -> dict[str, Question]:
        """By id."""
        return {q.id: q for q in self.header.questions}

    @property
    def done(self) -> list[Sample]:
        """The graded ones."""
        return [sample for sample in self.samples if sample.status == "done"]


def read(path: str | os.PathLike[str]) -> Log:
    """The log in a file, a torn last line left out. DataError says what is wrong with another one."""
    header, found, torn, _ = _scan(Path(path))
    return Log(os.fspath(path), header, list(found.values()), torn)


def _scan(path: Path) -> tuple[LogHeader, dict[Key, Sample], bool, int]:
    """Header, samples by key, whether the last line is torn, bytes up to its beginning."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from None
    lines = data.split(b"\n")
    torn = bool(lines.pop())  # what is behind the last line feed
    end = data.rfind(b"\n") + 1
    if not lines:
        raise DataError(f"{path}: not a log of ds4-eval")
    header = _decode(path, 1, lines[0], LogHeader)
    if header.schema != SCHEMA:
        raise DataError(f"{path}: not a log of ds4-eval, or of another version ({header.schema[:40]})")
    found: dict[Key, Sample] = {}
    for number, line in enumerate(lines[1:], 2):
        if not line.strip():
            continue
        sample = _decode(path, number, line, Sample)
        found.pop(sample.key, None)  # the one that counts is the last one made
        found[sample.key] = sample
    return header, found, torn, end


def _decode(path: Path, number: int, line: bytes, kind: Any) -> Any:
    try:
        return msgspec.json.decode(line, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        what = "not a log of ds4-eval" if number == 1 else "a damaged line"
        raise DataError(f"{path}:{number}: {what}: {error}") from None


class Writer:
    """A log that grows. ``samples`` are those it holds already."""

    def __init__(self, path: Path, file: IO[bytes], header: LogHeader, samples: dict[Key, Sample]):
        self.path, self.header, self.samples, self._file = path, header, samples, file

    @classmethod
    def create(cls, path: str | os.PathLike[str], header: LogHeader) -> Writer:
        """A new log; UsageError if the file exists."""
        goal = Path(path)
        try:
            file = open(goal, "xb", buffering=0)
        except FileExistsError:
            raise UsageError(f"{goal} exists: --resume goes on with it, another --output leaves it alone") from None
        except OSError as error:
            raise DataError(f"cannot write {goal}: {error.strerror or error}") from None
        writer = cls(goal, file, header, {})
        try:
            writer._lock()
            writer._line(header)
        except BaseException:
            file.close()
            goal.unlink(missing_ok=True)
            raise
        return writer

    @classmethod
    def resume(cls, path: str | os.PathLike[str], header: LogHeader) -> Writer:
        """Go on with a log; UsageError if it was made with other settings, another pack or another engine than
        ``header`` says. Epochs may be more than there were."""
        goal = Path(path)
        old, found, _, end = _scan(goal)
        _refuse_others(goal, old, header)
        try:
            file = open(goal, "r+b", buffering=0)
        except OSError as error:
            raise DataError(f"cannot write {goal}: {error.strerror or error}") from None
        writer = cls(goal, file, old, found)
        try:
            writer._lock()
            file.truncate(end)
            file.seek(end)
        except BaseException:
            file.close()
            raise
        return writer

    def add(self, sample: Sample) -> None:
        """One more; it is on disk when this returns. DataError if it cannot be, and then none of it is."""
        self._line(sample)
        self.samples.pop(sample.key, None)
        self.samples[sample.key] = sample

    def _line(self, entry: Any) -> None:
        start, line = self._file.tell(), msgspec.json.encode(entry) + b"\n"
        try:
            while line:
                line = line[self._file.write(line) :]
            os.fsync(self._file.fileno())
        except OSError as error:
            self._file.truncate(start)
            self._file.seek(start)
            raise DataError(f"cannot write {self.path}: {error.strerror or error}") from None

    def _lock(self) -> None:
        """Two runs into one log would tear each other's lines."""
        try:
            import fcntl
        except ImportError:  # Windows
            return
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UsageError(f"{self.path} is being written by another run") from None

    def close(self) -> None:
        """Release the file."""
        self._file.close()

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def header_of(pack: Pack, settings: Settings, epochs: int, target: dict[str, Any], facts: dict[str, Any]) -> LogHeader:
    """The header of a run."""
    about = {"pack": pack.name, "version": pack.header.version, "digest": pack.digest, "canary": pack.header.canary}
    return LogHeader(SCHEMA, about, asdict(settings), epochs, target, facts, list(pack.questions))


VOLATILE = ("name", "threads", "url", "file")
"""What may differ in the identity of the engine that goes on: where it is and how many threads it has."""


def _refuse_others(path: Path, old: LogHeader, new: LogHeader) -> None:
    differing = [
        f"{name} ({_short(old.settings.get(name))} there, {_short(value)} now)"
        for name, value in new.settings.items()
        if old.settings.get(name) != value
    ]
    if old.pack.get("digest") != new.pack.get("digest"):
        differing.append(f"pack ({old.pack.get('pack')} {old.pack.get('version')} there)")
    if old.epochs > new.epochs:
        differing.append(f"epochs ({old.epochs} there, {new.epochs} now)")
    for name in old.target.keys() | new.target.keys():
        if name not in VOLATILE and old.target.get(name) != new.target.get(name):
            differing.append(
                f"target's {name} ({_short(old.target.get(name))} there, {_short(new.target.get(name))} now)"
            )
    if differing:
        raise UsageError(f"{path} was made with other settings: {', '.join(differing)}")


def _short(value: Any) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= 40 else f"{text[:37]}..."
