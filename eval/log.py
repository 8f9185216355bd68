"""The log of a run as JSON Lines: a header, then one line per sample (one answer to one question), on disk as soon as
it is finished.

A line is synced before the next sample begins, so that a crash loses only the sample that was being generated. An
incomplete last line is cut off when the log is resumed. A sample that is asked again (``--retry-incomplete``, key r on
the screen) adds another line, and the last one counts. Lines with a note are for people: tools skip them.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Literal

import msgspec

from ds4ref.environment import data_dir
from ds4ref.errors import DataError, UsageError
from ds4ref.files import flush_to_disk
from ds4ref.runs.results import check_objects

from .packs import Pack, Question
from .plan import Key, Settings, settings_of

SCHEMA = "ds4-eval-log-v1"
NOTE = b'{"note":'
"""The first bytes of a line with a note."""
Status = Literal["done", "failed", "stopped"]
Outcome = Literal["right", "wrong", "ambiguous", "missing"]


class Grade(msgspec.Struct, frozen=True):
    """Grade of an answer.

    outcome  "right", "wrong", "ambiguous" or "missing"
    given    the answer that was read ("" if missing)
    why      where the answer was read, or why it is ambiguous or missing
    """

    outcome: Outcome
    given: str = ""
    why: str = ""


class Sample(msgspec.Struct, omit_defaults=True):
    """One answer to one question.

    id           id of the question
    epoch        number from 1; each question is asked once per epoch
    digest       digest of question and settings (``plan.Settings.digest``)
    status       "done" (graded), "failed" (engine error, no grade) or "stopped" (by the user)
    expected     the right answer
    started      time at which it was sent
    prompt       the user's message
    output       generated text, including thinking that the target does not report separately
    reasoning    thinking that the target reports separately from the answer
    grade        grade of the answer, None if there is none to grade
    prompt_tokens, cached_tokens    tokens of the prompt, and how many of them came from a cache; None if not reported
    tokens, reasoning_tokens        generated tokens, and how many of them were thinking; None if not reported
    ttft         seconds to the first token
    seconds      seconds to the last token
    finish       why generation ended: "stop", "length" ...
    close        how thinking ended: "natural" (by the model), "soft" or "hard" (by that limit), "open" (not at all), ""
                 without thinking
    model        model name that the target reports
    error        message of a failed sample
    target       name of the target that answered
    """

    id: str
    epoch: int
    digest: str
    status: Status
    expected: str
    started: str
    prompt: str = ""
    output: str = ""
    reasoning: str = ""
    grade: Grade | None = None
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
        """Return epoch and question id, which identify the sample."""
        return Key(self.epoch, self.id)

    @property
    def right(self) -> bool:
        """Return whether the grade is "right"."""
        return self.grade is not None and self.grade.outcome == "right"


class LogHeader(msgspec.Struct):
    """First line of a log.

    schema     version of the format
    pack       name, version and digest of the pack
    settings   fields of ``plan.Settings``
    epochs     number of times that each question is asked
    target     the engine's identity
    facts      provenance of the run: command, machine, software, which questions were selected
    questions  the whole pack, so that a log can be resumed, graded again and viewed without it
    """

    schema: str
    pack: dict[str, Any]
    settings: dict[str, Any]
    epochs: int
    target: dict[str, Any]
    facts: dict[str, Any]
    questions: list[Question]

    @property
    def plan(self) -> Settings:
        """Return the settings of the run."""
        return settings_of(self.settings, {})


class Log(msgspec.Struct):
    """A log, read into memory.

    path     the file
    header   its first line
    samples  the last line of each sample, in the order in which they were finished
    torn     whether the file ends with an incomplete line
    """

    path: str
    header: LogHeader
    samples: list[Sample]
    torn: bool = False

    @property
    def questions(self) -> dict[str, Question]:
        """Return the questions of the pack by id."""
        return {q.id: q for q in self.header.questions}

    @property
    def done(self) -> list[Sample]:
        """Return the graded samples."""
        return [sample for sample in self.samples if sample.status == "done"]


def read(path: str | os.PathLike[str]) -> Log:
    """Read a log, ignoring an incomplete last line; DataError if another line is damaged."""
    header, samples, torn, _ = _scan(Path(path))
    return Log(os.fspath(path), header, list(samples.values()), torn)


def begun(path: Path) -> bool:
    """Return whether a log has its header; one that was cut off within it is removed."""
    if path.exists() and b"\n" not in path.read_bytes():
        path.unlink()
    return path.exists()


def folder() -> Path:
    """Return the folder where logs go unless the user names a path."""
    return data_dir() / "evals"


def latest() -> Path:
    """Return the path of the newest log in the data folder; DataError if there is none."""
    paths = sorted(folder().glob("*.jsonl"), key=lambda path: path.stat().st_mtime)
    if not paths:
        raise DataError(f"no log in {folder()}")
    return paths[-1]


def _scan(path: Path) -> tuple[LogHeader, dict[Key, Sample], bool, int]:
    """Return (header, samples by key, whether the last line is incomplete, offset of the end of the last complete
    line)."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from None
    lines = data.split(b"\n")
    torn = bool(lines.pop())  # the bytes after the last line feed
    end = data.rfind(b"\n") + 1
    if not lines:
        raise DataError(f"{path}: not a log of ds4-eval")
    header = _decode(path, 1, lines[0], LogHeader)
    if header.schema != SCHEMA:
        raise DataError(f"{path}: not a log of ds4-eval, or of another version ({header.schema[:40]})")
    if header.settings.get("shuffle"):
        raise DataError(f"{path}: an older version shuffled its choices (--shuffle-choices), which is no longer read")
    check_objects(header.facts, path)
    samples: dict[Key, Sample] = {}
    known = {question.id for question in header.questions}
    for number, line in enumerate(lines[1:], 2):
        if not line.strip() or line.startswith(NOTE):
            continue
        sample = _decode(path, number, line, Sample)
        if sample.id not in known:
            raise DataError(f"{path}:{number}: a damaged line: no question of the log is called {sample.id[:40]!r}")
        samples.pop(sample.key, None)  # the last line of a sample counts
        samples[sample.key] = sample
    return header, samples, torn, end


def _decode(path: Path, number: int, line: bytes, kind: Any) -> Any:
    try:
        return msgspec.json.decode(line, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        what = "not a log of ds4-eval" if number == 1 else "a damaged line"
        raise DataError(f"{path}:{number}: {what}: {error}") from None


class Writer:
    """Appends samples to a log file; ``samples`` are those that it holds already, by key."""

    def __init__(self, path: Path, file: IO[bytes], header: LogHeader, samples: dict[Key, Sample]):
        self.path, self.header, self.samples, self._file = path, header, samples, file
        self._end = 0

    @classmethod
    def create(cls, path: str | os.PathLike[str], header: LogHeader) -> Writer:
        """Create a log that starts with ``header``; raise UsageError if the file exists."""
        writer = cls._open(Path(path), "xb", header, {})
        try:
            writer._line(header)
        except BaseException:
            writer.close()
            writer.path.unlink(missing_ok=True)
            raise
        return writer

    @classmethod
    def resume(cls, path: str | os.PathLike[str], header: LogHeader) -> Writer:
        """Open an existing log to append to it; raise UsageError if its settings, pack or engine differ from those in
        ``header``, or if it has more epochs."""
        goal = Path(path)
        old, samples, _, end = _scan(goal)
        _refuse_others(goal, old, header)
        writer = cls._open(goal, "r+b", old, samples)
        writer._end = end
        return writer

    @classmethod
    def _open(cls, path: Path, mode: str, header: LogHeader, samples: dict[Key, Sample]) -> Writer:
        """Open the file and lock it, so that two runs cannot write to the same log."""
        try:
            file = open(path, mode, buffering=0)
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except FileExistsError:
            raise UsageError(f"{path} exists: resume it with --resume, or choose another --output") from None
        except BlockingIOError:
            file.close()
            raise UsageError(f"{path} is being written by another run") from None
        except OSError as error:
            raise DataError(f"cannot write {path}: {error.strerror or error}") from None
        return cls(path, file, header, samples)

    def add(self, sample: Sample) -> None:
        """Append a sample and flush it to disk; raise DataError, with the log unchanged, if it cannot be written."""
        self._line(sample)
        self.samples.pop(sample.key, None)
        self.samples[sample.key] = sample

    def note(self, text: str) -> None:
        """Append a note, unless the same note is the last line already."""
        if not self.path.read_bytes().endswith(msgspec.json.encode({"note": text}) + b"\n"):
            self._line({"note": text})

    def _line(self, entry: Any) -> None:
        """Append one line and flush it to disk; if that fails, restore the log's previous end and raise DataError."""
        line = msgspec.json.encode(entry) + b"\n"
        try:
            self._file.truncate(self._end)  # a line that broke off may be there
            self._file.seek(self._end)
            while line:
                line = line[self._file.write(line) :]
            flush_to_disk(self._file.fileno())
        except OSError as error:
            with suppress(OSError):
                self._file.truncate(self._end)
            raise DataError(f"cannot write {self.path}: {error.strerror or error}") from None
        self._end = self._file.tell()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def header_of(pack: Pack, settings: Settings, epochs: int, target: dict[str, Any], facts: dict[str, Any]) -> LogHeader:
    """Return the header of a new run; ``target``: the engine's identity, ``facts``: provenance of the run."""
    about = {"pack": pack.name, "version": pack.header.version, "digest": pack.digest, "canary": pack.header.canary}
    return LogHeader(SCHEMA, about, asdict(settings), epochs, target, facts, list(pack.questions))


VOLATILE = ("name", "threads", "url", "file")
"""Fields of an engine's identity that may differ when a log is resumed."""


def _refuse_others(path: Path, old: LogHeader, new: LogHeader) -> None:
    """Raise UsageError, naming the differences, if a log cannot be resumed with the settings of the header ``new``."""
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
        raise UsageError(f"{path} has other settings: {', '.join(differing)}")


def _short(value: Any) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= 40 else f"{text[:37]}..."
