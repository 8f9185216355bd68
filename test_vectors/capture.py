"""Recording vectors from any engine: greedy, thinking off, with repetitions, resumable.

Every case is written when it is complete, so a killed capture loses one case at most; running it again goes on. The
directory stays marked partial until every case is there, and is never changed after that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ds4ref.errors import DataError, TargetError, UsageError
from ds4ref.targets import Ability, Prompt, Request, Target

from .schema import (
    CASE_SCHEMA,
    MANIFEST_SCHEMA,
    NAME,
    Case,
    Entry,
    Manifest,
    Repetition,
    Vectors,
    record,
    sha256,
)


@dataclass(frozen=True)
class PromptCase:
    """A prompt to record."""

    id: str
    text: str
    ctx: int = 16384


def start(
    folder: str, target: Target, prompts: Sequence[PromptCase], *,
    max_tokens: int = 4, top_logprobs: int = 20, repetitions: int = 3, system: str = "",
) -> Vectors:  # fmt: skip
    """The directory to record into: new, or a partial one of the same prompts and parameters. UsageError otherwise."""
    target.require(Ability.CHAT, Ability.TOP_LOGPROBS, what="capture")
    if top_logprobs > target.max_top_logprobs:
        raise UsageError(f"{target.name} gives at most {target.max_top_logprobs} alternatives, not {top_logprobs}")
    bad = [p.id for p in prompts if not NAME.fullmatch(p.id)]
    if bad or not prompts or len({p.id for p in prompts}) != len(prompts):
        raise UsageError(f"prompt ids must be distinct words of letters, digits and _.-: {bad[:1] or 'none given'}")
    wanted = Manifest(
        MANIFEST_SCHEMA, _leaf(folder), target.identity(), max_tokens, top_logprobs, repetitions, system, _now(), False,
        [Entry(p.id, f"prompts/{p.id}.txt", sha256(_data(p.text)), p.ctx) for p in prompts],
    )  # fmt: skip
    if not Vectors.exists(folder):
        vectors = Vectors(folder, wanted)
        for entry, prompt in zip(wanted.cases, prompts, strict=True):
            vectors.add_prompt(entry, _data(prompt.text))
        vectors.save()
        return vectors
    vectors = Vectors.open(folder)
    found = vectors.manifest
    if found.complete:
        raise UsageError(f"{folder} is complete: vectors are never refreshed in place, choose a new directory")
    asked = (max_tokens, top_logprobs, repetitions, system, [(e.id, e.prompt_sha256, e.ctx) for e in wanted.cases])
    have = (found.max_tokens, found.top_logprobs, found.repetitions, found.system,
            [(e.id, e.prompt_sha256, e.ctx) for e in found.cases])  # fmt: skip
    if asked != have or _source(found.source) != _source(wanted.source):
        raise UsageError(f"{folder} holds a partial capture with other prompts, parameters or source")
    return vectors


def record_missing(vectors: Vectors, target: Target, progress: Callable[[int, int], None] | None = None) -> int:
    """Record what is missing; returns how many cases were recorded. TargetError leaves everything recorded so far."""
    manifest, done = vectors.manifest, 0
    for at, entry in enumerate(manifest.cases):
        if progress is not None:
            progress(at, len(manifest.cases))
        if entry.case_file is not None and _whole(vectors, entry):
            continue
        prompt = Prompt.chat(vectors.prompt(entry), manifest.system)
        ask = Request(prompt, manifest.max_tokens, top_logprobs=manifest.top_logprobs, ctx=entry.ctx)
        answers = []
        for _ in range(manifest.repetitions):
            answer = target.complete(ask)
            if not answer.steps:
                raise TargetError(f"case {entry.id}: {target.name} returned no log probabilities")
            steps = [record(step) for step in answer.steps]
            used = answer.usage
            counts = (used.prompt, used.completion, used.cached)
            answers.append(Repetition(steps, answer.finish, answer.model, _now(), *counts))
        vectors.add_case(entry, Case(CASE_SCHEMA, entry.id, entry.prompt_sha256, answers))
        done += 1
    manifest.source = target.identity()
    manifest.complete = True
    vectors.save()
    return done


def spread(case: Case) -> float | None:
    """The source's own run-to-run spread: the largest difference of a token's log probability between repetitions,
    over steps before their first fork; None with fewer than two repetitions or no probabilities."""
    worst: float | None = None
    first = case.repetitions[0]
    for other in case.repetitions[1:]:
        for a, b in zip(first.steps, other.steps, strict=False):
            values = {t.raw: t.logprob for t in b.top}
            for token in a.top:
                found = values.get(token.raw)
                if found is not None and token.logprob is not None:
                    worst = max(worst or 0.0, abs(found - token.logprob))
            if a.token.raw != b.token.raw:
                break
    return worst


def forks(case: Case) -> int | None:
    """First step at which repetitions chose different tokens, None if they never did."""
    chains = [[step.token.raw for step in r.steps] for r in case.repetitions]
    for i in range(max(map(len, chains))):
        if len({chain[i] if i < len(chain) else None for chain in chains}) > 1:
            return i
    return None


def _whole(vectors: Vectors, entry: Entry) -> bool:
    try:
        vectors.case(entry)
        return True
    except DataError:
        return False


def _source(identity: dict) -> dict:
    """What must not change between the parts of a capture."""
    return {key: value for key, value in identity.items() if key != "served"}


def _data(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _leaf(folder: str) -> str:
    return folder.rstrip("/").rpartition("/")[2] or folder


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
