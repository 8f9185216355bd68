"""Cases to check: our vectors, or ds4's official.vec."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec

from ds4ref.console.common import read_text
from ds4ref.errors import DataError, UsageError
from ds4ref.targets import Prompt, Target

from . import official
from .schema import CASE_SCHEMA, MANIFEST_SCHEMA, ExpectedDivergence, RecordedCase, Vectors, sha256

T = TypeVar("T")
STANDARD = "standard.jsonl"
"""File of the default prompts, in this package."""


class PromptCase(msgspec.Struct, frozen=True):
    """A prompt to record; ``ctx``: context size in tokens."""

    id: str
    text: Annotated[str, msgspec.Meta(min_length=1)] = msgspec.field(name="prompt")
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
        if line.strip():
            try:
                prompts.append(msgspec.convert(json.loads(line), PromptCase))
            except (ValueError, RecursionError, msgspec.ValidationError) as error:
                raise UsageError(f'{path}: line {number} is not {{"id": ..., "prompt": ...}}: {error}') from None
    if not prompts:
        raise UsageError(f"{path}: no prompt")
    return prompts


def read_cases(path: str, partial: bool = False) -> list[VectorCase]:
    """Read the cases of a directory of vectors, of an official.vec, or of a folder that holds one.

    DataError for a partial capture unless ``partial``.
    """
    vec = _vec_of(path)
    if vec is not None:
        return [_from_vec(case, vec) for case in official.read_vec(vec)]
    vectors = Vectors.open(path)
    manifest = vectors.manifest
    if not manifest.complete and not partial:
        raise DataError(f"{path} is a partial capture: run capture again to complete it")
    return [
        VectorCase(vectors.case(e), vectors.prompt(e), manifest.system, e.ctx, e.expected_divergence)
        for e in manifest.cases
        if e.case_file is not None or manifest.complete
    ]


def _vec_of(path: str) -> str | None:
    """Return the official.vec that ``path`` is or, as ds4's tests/test-vectors, holds; None for vectors of ours."""
    listed, manifest = Path(path, "official.vec"), Path(path, "manifest.json")
    ours = manifest.is_file() and MANIFEST_SCHEMA.encode() in manifest.read_bytes()
    return path if path.endswith(".vec") else str(listed) if listed.is_file() and not ours else None


def refuse_other_checkpoint(paths: Sequence[str], target: Target) -> None:
    """Raise UsageError if a directory of vectors was recorded from another checkpoint than the target's.

    A checkpoint that is unknown on either side is accepted.
    """
    for path in paths:
        recorded = Vectors.open(path).manifest.source.get("checkpoint") if _vec_of(path) is None else None
        known = recorded and target.identity().get("checkpoint")
        if known and known != recorded:
            raise UsageError(f"{path}: these vectors are of {recorded}, the model is {known}")


def _from_vec(case: official.VecCase, path: str) -> VectorCase:
    """Convert a case of the official.vec at ``path``, reading its prompt's file.

    The case names that file relative to ds4's working directory, so it is also looked for beside and above the .vec.
    """
    base = Path(path).resolve().parent
    candidates = [Path(case.prompt_path), *(folder / case.prompt_path for folder in (base, *base.parents)),
                  base / "prompts" / Path(case.prompt_path).name]  # fmt: skip
    file = next((f for f in candidates if f.is_file()), None)
    if file is None:
        raise DataError(f"{path}: prompt {case.prompt_path} of case {case.id} was not found")
    prompt = file.read_bytes()
    record = RecordedCase(CASE_SCHEMA, case.id, sha256(prompt), [case.repetition()])
    reason = official.KNOWN_DIVERGENCE.get(case.id)
    divergence = None if reason is None else ExpectedDivergence(reason)
    return VectorCase(record, prompt.decode("utf-8", "surrogateescape"), "", case.ctx, divergence)


def selected(cases: Sequence[T], only: Sequence[str], name: Callable[[T], str]) -> list[T]:
    """Return the cases whose id (``name(case)``) is in ``only``, all of them if it is empty.

    UsageError for an id that does not exist.
    """
    unknown = set(only) - set(map(name, cases))
    if unknown:
        raise UsageError(f"no case {', '.join(sorted(unknown))}: there are {', '.join(map(name, cases))}")
    return [case for case in cases if not only or name(case) in only]


def single_path(values: Sequence[str], wanted: str) -> str:
    """Return the only path of a command line; UsageError, which names the ``wanted`` argument, unless there is one."""
    if len(values) != 1:
        raise UsageError(f"{wanted} is needed" if not values else f"only one path, not {len(values)}")
    return values[0]
