"""What is asked, how often and how: everything that decides what a sample is worth, fixed before the first one."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields

import msgspec

from ds4ref.errors import UsageError
from ds4ref.text.chat import MODES

from .packs import Header, Question
from .prompt import SYSTEM


@dataclass(frozen=True)
class Settings:
    """Of every sample alike.

    think        "none", "high" or "max"
    tokens       most tokens of an answer, reasoning included
    soft_limit   tokens left at which reasoning is closed if </think> is among the best ``close_rank`` tokens anyway
    hard_limit   tokens left at which it is closed whatever the model would say
    temperature, top_p, min_p, seed   of sampling; 0 is greedy
    shuffle      choices in an order drawn for each question and epoch
    """

    think: str = "high"
    tokens: int = 16000
    soft_limit: int = 1024
    hard_limit: int = 512
    close_rank: int = 3
    temperature: float = 0.0
    top_p: float = 1.0
    min_p: float = 0.05
    seed: int = 0
    shuffle: bool = False
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

    def digest(self, question: Question) -> str:
        """Of one question under these settings: samples of one digest may stand for each other."""
        said = msgspec.json.encode([question.digest, asdict(self)])
        return hashlib.sha256(said).hexdigest()[:32]

    def sample_seed(self, question: Question, epoch: int) -> int:
        """Of one sample, whatever was drawn before it."""
        said = f"{self.seed} {epoch} {question.digest}".encode()
        return int.from_bytes(hashlib.sha256(said).digest()[:7], "little")


def settings_of(header: Header, given: dict[str, object]) -> Settings:
    """A pack's own settings, under what the user gave."""
    known = {field.name for field in fields(Settings)}
    own = {name: value for name, value in header.settings.items() if name in known}
    return Settings(**{**own, **given})  # type: ignore[arg-type]


@dataclass(frozen=True, order=True)
class Key:
    """One sample: the epoch (from 1) of a question."""

    epoch: int
    question: str


def keys(questions: Sequence[Question], epochs: int) -> list[Key]:
    """All samples: every question once before any comes again."""
    return [Key(epoch, q.id) for epoch, q in itertools.product(range(1, epochs + 1), questions)]


def chosen(questions: Sequence[Question], only: str | None = None, limit: int | None = None) -> list[Question]:
    """The questions that are asked: those whose id, source or domain holds one of the words in ``only`` (separated by
    commas), the first ``limit`` of them. UsageError if none is left."""
    words = [word.strip().lower() for word in (only or "").split(",") if word.strip()]
    found = [q for q in questions if not words or any(w in f"{q.id} {q.source} {q.domain}".lower() for w in words)]
    if not found:
        raise UsageError(f"no question has {only!r} in its id, source or domain")
    return found[:limit]
