"""Recorded vectors on disk: one directory per model checkpoint, versioned, schema-checked, hashed.

    vectors/<name>/manifest.json        source, model, request parameters, the cases with their hashes and state
    vectors/<name>/prompts/<id>.txt     the user's text, byte for byte
    vectors/<name>/cases/<id>.json      all answers of the source (the engine that was recorded) to that prompt

Case files are written atomically, and the manifest holds their SHA-256, so a file that is not in the manifest or does
not match it is never read. A complete directory is never changed: a new checkpoint gets a new directory.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ds4ref.errors import DataError
from ds4ref.files import atomic_write
from ds4ref.targets import Step, Token

MANIFEST_SCHEMA = "ds4-vectors-manifest-v1"
CASE_SCHEMA = "ds4-vectors-case-v1"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,94}")
"""Pattern of valid case ids, limited by what ds4's official.vec can hold."""


class TokenRecord(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """A token by its bytes; ``logprob`` is None if the source gave none, or a placeholder such as -9999."""

    data: list[int] = msgspec.field(name="bytes")
    logprob: float | None = None
    id: int | None = None

    @property
    def raw(self) -> bytes:
        """Return the token's bytes."""
        return bytes(self.data)


class StepRecord(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """One step of an answer.

    token  the chosen token
    top    alternatives with the chosen token among them, best first
    rest   alternatives that are not compared, as they have no usable log probability (-9999) or no bytes
    """

    token: TokenRecord
    top: list[TokenRecord] = []
    rest: list[TokenRecord] = []


class Repetition(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """One answer of the recorded engine to a prompt, with the token counts that it reported."""

    steps: list[StepRecord]
    finish: str
    model: str = ""
    created: str = ""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None


class RecordedCase(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """One prompt with all recorded answers: the first is the expected one, the others show the run-to-run spread."""

    schema: str
    id: str
    prompt_sha256: str
    repetitions: list[Repetition]


class ExpectedDivergence(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """The reason why correct engines are known to diverge on a case, and at which ``step`` (None: at any)."""

    reason: str
    step: int | None = None


class CaseEntry(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """A case as listed in the manifest; ``sha256``: digest of the case file, None until the case is captured."""

    id: str
    prompt_file: str
    prompt_sha256: str
    ctx: int
    case_file: str | None = None
    sha256: str | None = None
    repetitions: int = 0
    expected_divergence: ExpectedDivergence | None = None


class Manifest(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """Contents of a directory of vectors; ``complete`` is False until every case is captured."""

    schema: str
    name: str
    source: dict[str, Any]
    max_tokens: int
    top_logprobs: int
    repetitions: int
    system: str
    created: str
    complete: bool
    cases: list[CaseEntry]


T = TypeVar("T")


def sha256(data: bytes) -> str:
    """Return the SHA-256 as hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def decode(data: bytes, kind: type[T], schema: str, where: str) -> T:
    """Decode and validate JSON as ``kind``, whose "schema" field must be ``schema``; DataError names the invalid field.

    ``where``: name of the file, for messages.
    """
    try:
        value = msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DataError(f"{where}: {error}") from None
    if getattr(value, "schema", schema) != schema:
        raise DataError(f"{where}: schema is {getattr(value, 'schema', None)!r}, expected {schema!r}")
    return value


def encode(value: msgspec.Struct) -> bytes:
    """Encode a record as indented JSON with a final newline."""
    return msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n"


class Vectors:
    """A directory of vectors with its manifest."""

    def __init__(self, folder: str | os.PathLike[str], manifest: Manifest):
        self.folder, self.manifest = Path(folder), manifest

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> Vectors:
        """Read and check the manifest; DataError if there is none, or if a path in it leaves the directory."""
        path = Path(folder, "manifest.json")
        manifest = decode(_read(path), Manifest, MANIFEST_SCHEMA, str(path))
        ids: set[str] = set()
        for entry in manifest.cases:
            if not NAME.fullmatch(entry.id) or entry.id in ids:
                raise DataError(f"{path}: case id {entry.id!r} is malformed or listed twice")
            ids.add(entry.id)
            for file in (entry.prompt_file, entry.case_file):
                if file is not None and (os.path.isabs(file) or ".." in Path(file).parts):
                    raise DataError(f"{path}: {file!r} points outside the directory")
        return cls(folder, manifest)

    @staticmethod
    def exists(folder: str | os.PathLike[str]) -> bool:
        """Return whether the folder already has a manifest, that is, holds vectors."""
        return Path(folder, "manifest.json").is_file()

    def save(self) -> None:
        """Write the manifest atomically."""
        self._write("manifest.json", encode(self.manifest))

    def prompt(self, entry: CaseEntry) -> str:
        """Read the user's text of a case; DataError if it was changed after it was recorded."""
        data = _read(self.folder / entry.prompt_file)
        if sha256(data) != entry.prompt_sha256:
            raise DataError(f"{self.folder / entry.prompt_file}: the prompt was changed after it was recorded")
        return data.decode("utf-8", "surrogateescape")

    def case(self, entry: CaseEntry) -> RecordedCase:
        """Read a recorded case; DataError if it is missing, altered or malformed."""
        if entry.case_file is None or entry.sha256 is None:
            raise DataError(f"{self.folder}: case {entry.id} has not been captured (partial capture)")
        path = self.folder / entry.case_file
        data = _read(path)
        if sha256(data) != entry.sha256:
            raise DataError(f"{path}: checksum differs from the manifest")
        case = decode(data, RecordedCase, CASE_SCHEMA, str(path))
        if case.id != entry.id or case.prompt_sha256 != entry.prompt_sha256 or not case.repetitions:
            raise DataError(f"{path}: this is not case {entry.id} of the manifest")
        return case

    def add_prompt(self, entry: CaseEntry, text: bytes) -> None:
        """Write the prompt file of a case."""
        self._write(entry.prompt_file, text)

    def add_case(self, entry: CaseEntry, case: RecordedCase) -> None:
        """Write a case file, then the manifest with its SHA-256."""
        data = encode(case)
        name = f"cases/{entry.id}.json"
        self._write(name, data)
        entry.case_file, entry.sha256 = name, sha256(data)
        entry.repetitions = len(case.repetitions)
        self.save()

    def _write(self, name: str, data: bytes) -> None:
        """Write the file ``name`` of the directory atomically."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as out:
            out.write(data)


def record(step: Step, degenerate: float = -1000.0) -> StepRecord:
    """Convert a target's step for storage; alternatives with a log probability up to ``degenerate`` go to ``rest``."""

    def useful(t: Token) -> bool:
        return t.logprob is not None and t.logprob > degenerate

    chosen = TokenRecord(list(step.token.raw), step.token.logprob if useful(step.token) else None, step.token.id)
    top = [TokenRecord(list(t.raw), t.logprob, t.id) for t in step.top if useful(t) and t.raw]
    rest = [TokenRecord(list(t.raw), t.logprob, t.id) for t in step.top if not (useful(t) and t.raw)]
    return StepRecord(chosen, top, rest)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None
