"""Cases to check, read from any kind of file: our vectors, ds4's official.vec and its fetcher's JSON captures."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TypeVar

from ds4ref.console.common import read_text
from ds4ref.errors import DataError, UsageError
from ds4ref.targets import Prompt, Target

from . import official
from .schema import CASE_SCHEMA, ExpectedDivergence, RecordedCase, Repetition, Vectors, sha256

T = TypeVar("T")
STANDARD = "standard.jsonl"
"""File of the default prompts, in this package."""


@dataclass(frozen=True)
class PromptCase:
    """A prompt to record; ``ctx``: context size in tokens."""

    id: str
    text: str
    ctx: int = official.CTX


@dataclass(frozen=True)
class VectorCase:
    """One case to check.

    case        the recorded answers
    prompt      the user's text
    system      the system prompt
    ctx         context size in tokens
    divergence  known divergence of correct engines on this case; None without one
    """

    case: RecordedCase
    prompt: str
    system: str
    ctx: int
    divergence: ExpectedDivergence | None = None

    @property
    def chat(self) -> Prompt:
        """Return the prompt as a chat."""
        return Prompt.chat(self.prompt, self.system)

    @property
    def tokens(self) -> list[bytes]:
        """Return the bytes of the expected tokens."""
        return [step.token.raw for step in self.case.repetitions[0].steps]


def read_prompts(path: str | None) -> list[PromptCase]:
    """Read prompts from JSON lines, by default those of this package; UsageError names an invalid line."""
    if path is None:
        path, text = STANDARD, resources.files(__package__).joinpath("prompts", STANDARD).read_text("utf-8")
    else:
        text = read_text(path, "prompts")
    prompts = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            case = PromptCase(entry["id"], entry["prompt"], entry.get("ctx", official.CTX))
        except (ValueError, KeyError, TypeError, RecursionError):
            raise UsageError(f'{path}: line {number} is not {{"id": ..., "prompt": ...}}') from None
        if not (isinstance(case.id, str) and isinstance(case.text, str) and type(case.ctx) is int and case.text):
            raise UsageError(f"{path}: line {number}: id and prompt must be text, ctx an integer")
        prompts.append(case)
    if not prompts:
        raise UsageError(f"{path}: no prompt")
    return prompts


def read_cases(path: str, partial: bool = False) -> list[VectorCase]:
    """Read the cases of a directory of vectors, an official.vec, or official JSON captures (a file, or a folder).

    DataError for a partial capture unless ``partial``.
    """
    if Vectors.exists(path) and not official.is_manifest(path):
        vectors = Vectors.open(path)
        manifest = vectors.manifest
        if not manifest.complete and not partial:
            raise DataError(f"{path} is a partial capture: run capture again to complete it")
        return [
            VectorCase(vectors.case(e), vectors.prompt(e), manifest.system, e.ctx, e.expected_divergence)
            for e in manifest.cases
            if e.case_file is not None or manifest.complete
        ]
    if path.endswith(".vec"):
        return [_from_vec(case, path) for case in official.read_vec(path)]
    files = [Path(path)]
    if os.path.isdir(path):
        files = sorted(file for file in Path(path).rglob("*.json") if file.name != "manifest.json")
        if not files:
            raise DataError(f"{path}: no manifest.json and no JSON captures in this folder")
    captures = [official.read_capture(str(file)) for file in files]
    return [_case(c.id, c.repetition(), c.prompt, c.context, c.system) for c in captures]


def refuse_other_checkpoint(paths: Sequence[str], target: Target) -> None:
    """Raise UsageError if a directory of vectors is of another checkpoint than the target's; unknown ones may be the
    same."""
    known = target.identity().get("checkpoint")
    for path in paths:
        if Vectors.exists(path) and not official.is_manifest(path):
            recorded = Vectors.open(path).manifest.source.get("checkpoint")
            if None not in (known, recorded) and known != recorded:
                raise UsageError(f"{path}: these vectors are of {recorded}, the model is {known}")


def _from_vec(case: official.VecCase, path: str) -> VectorCase:
    """Find a case's prompt, whose path is relative to ds4's working directory, also beside and above the .vec file."""
    base = Path(path).resolve().parent
    candidates = [Path(case.prompt_path), *(folder / case.prompt_path for folder in (base, *base.parents)),
                  base / "prompts" / Path(case.prompt_path).name]  # fmt: skip
    file = next((f for f in candidates if f.is_file()), None)
    if file is None:
        raise DataError(f"{path}: prompt {case.prompt_path} of case {case.id} was not found")
    return _case(case.id, case.repetition(), file.read_bytes().decode("utf-8", "surrogateescape"), case.ctx)


def _case(name: str, answer: Repetition, prompt: str, ctx: int, system: str = "") -> VectorCase:
    reason = official.KNOWN_DIVERGENCE.get(name)
    record = RecordedCase(CASE_SCHEMA, name, sha256(prompt.encode("utf-8", "surrogateescape")), [answer])
    return VectorCase(record, prompt, system, ctx, None if reason is None else ExpectedDivergence(reason))


def selected(cases: Sequence[T], only: Sequence[str], name: Callable[[T], str]) -> list[T]:
    """Return the cases with the ids ``only``, all of them if it is empty; UsageError for an id that does not exist."""
    unknown = set(only) - set(map(name, cases))
    if unknown:
        raise UsageError(f"no case {', '.join(sorted(unknown))}: there are {', '.join(map(name, cases))}")
    return [case for case in cases if not only or name(case) in only]


def single_path(values: Sequence[str], wanted: str) -> str:
    """Return the only path of a command line; UsageError unless there is exactly one."""
    if len(values) != 1:
        raise UsageError(f"{wanted} is needed" if not values else f"only one path, not {len(values)}")
    return values[0]
