"""Settings of a run, and the list of samples to ask, which are fixed before the first one is asked."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields

import msgspec

from ds4ref.errors import UsageError
from ds4ref.text.chat import MODES

from .packs import Question
from .prompt import SYSTEM


@dataclass(frozen=True)
class Settings:
    """Settings that all samples of a run share.

    think        "none", "high" or "max"
    tokens       maximum number of tokens of an answer, thinking included
    soft_limit   when so few tokens are left, thinking is ended if </think> is likely (``budget``)
    hard_limit   when so few tokens are left, thinking is ended in any case
    temperature, top_p, min_p, seed   sampling; temperature 0 is greedy
    system       system prompt
    """

    think: str = "high"
    tokens: int = 16000
    soft_limit: int = 1024
    hard_limit: int = 512
    temperature: float = 0.0
    top_p: float = 1.0
    min_p: float = 0.05
    seed: int = 0
    system: str = SYSTEM

    def __post_init__(self) -> None:
        if self.think not in MODES:
            raise UsageError(f"unknown thinking mode {self.think!r}: choose from {', '.join(MODES)}")
        if self.think != "none":
            if self.soft_limit < self.hard_limit:
                raise UsageError(
                    f"the soft limit ({self.soft_limit}) must not be below the hard one ({self.hard_limit})"
                )
            if self.hard_limit >= self.tokens:
                raise UsageError(
                    f"the hard limit ({self.hard_limit}) must be below the tokens of an answer ({self.tokens})"
                )

    def thinking(self, question: Question) -> str:
        """Return the thinking mode for a question: the question's own, if it has one, else that of the run."""
        return question.think or self.think

    def digest(self, question: Question) -> str:
        """Return a digest of a question and these settings; samples with the same digest are interchangeable."""
        encoded = msgspec.json.encode([question.digest, asdict(self)])
        return hashlib.sha256(encoded).hexdigest()[:32]

    def sample_seed(self, question: Question, epoch: int) -> int:
        """Return the sampling seed of one sample, which does not depend on the order of the run."""
        encoded = f"{self.seed} {epoch} {question.digest}".encode()
        return int.from_bytes(hashlib.sha256(encoded).digest()[:7], "little")


def settings_of(settings: Mapping[str, object], given: Mapping[str, object]) -> Settings:
    """Return the settings of a pack or a log, overridden by those that the user gave (``given``); unknown settings of
    the pack or log are ignored."""
    known = {field.name for field in fields(Settings)}
    own = {name: value for name, value in settings.items() if name in known}
    return Settings(**{**own, **given})  # type: ignore[arg-type]


@dataclass(frozen=True, order=True)
class Key:
    """Identifies a sample of a run by its epoch (from 1) and the question's id."""

    epoch: int
    question: str


def keys(questions: Sequence[Question], epochs: int) -> list[Key]:
    """Return the keys of all samples, epoch by epoch."""
    return [Key(epoch, q.id) for epoch, q in itertools.product(range(1, epochs + 1), questions)]


def chosen(questions: Sequence[Question], only: str | None = None, limit: int | None = None) -> list[Question]:
    """Return the first ``limit`` questions that match ``only``; raise UsageError if there are fewer, or if a word
    matches none.

    ``only``: comma-separated words. A word that is a source, or the part of a source before a slash, selects the
    questions of these sources; any other word selects those that have it in id, source or domain.
    """
    words = [word.strip().lower() for word in (only or "").split(",") if word.strip()]
    wanted = set(itertools.chain.from_iterable(_matching(questions, word) for word in words))
    matching = [q for q in questions if not words or q.id in wanted]
    if limit is not None and limit > len(matching):
        raise UsageError(f"there are {len(matching)} questions{f' of {only}' if words else ''}, not {limit}")
    return matching[:limit]


def _matching(questions: Sequence[Question], word: str) -> list[str]:
    """Return the ids of the questions that ``word`` selects."""
    matching = [q.id for q in questions if word in (q.source.lower(), q.source.lower().partition("/")[0])]
    matching = matching or [q.id for q in questions if word in f"{q.id} {q.source} {q.domain}".lower()]
    if not matching:
        raise UsageError(f"no question has {word!r} in its id, source or domain")
    return matching
