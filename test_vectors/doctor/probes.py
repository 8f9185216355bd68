"""Prompts of a wanted number of tokens with something to repeat, and what a target makes of them.

    prober = Prober(case, Constants(...))
    prober.ask("word", 203, 150, seed=1)     appends to prober.records

A prompt is simple prose around one fact, "Ana keeps the lamp.", and ends in a question about it, or it ends in digits
to copy. If the target serves our model, our engine answers the same prompt: whether it is right there, and how far the
log probabilities are from the target's, is recorded, too.
"""

from __future__ import annotations

import math
import random
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ds4ref.engine import Engine
from ds4ref.errors import Ds4Error
from ds4ref.nano.diagnostic import diagnostic_path
from ds4ref.nano.skills.base import rough_size
from ds4ref.nano.skills.english import filler
from ds4ref.nano.skills.lexicon import NAMES, OBJECTS
from ds4ref.targets import Completion, Prompt, Request, Step
from ds4ref.targets.local import LocalTarget
from ds4ref.variants import MODE_NAMES

from .case import ExamContext
from .repeat import compare_answers, ids_of
from .yardstick import level

TOKENS = 20
KINDS = ("word", "code", "words", "digits")
"""What is to be repeated: a word or an identifier that a sentence states, or words or digits at the prompt's end."""
COPIES = ("words", "digits")
TRIES = 3
"""Requests for one prompt until the target counts the wanted number of tokens, if its tokenizer is unknown."""
SPARE = 0.2
"""Share of the time of the stage that is kept for trials of known bugs."""
FEW = 0.8
"""If a target counts less than this share of the tokens sent, it did not see the others."""
PAD = "red"
"""A word of one token, repeated at the start of a prompt to reach a length."""


@dataclass(frozen=True)
class Record:
    """One answer.

    kind      one of ``KINDS``
    length    tokens of the prompt, as the target counts them if that is plausible, else by our count or estimate
    exact     whether the length is known, not estimated
    counted   tokens of the prompt as the target counts them; None: it does not
    distance  tokens after the item up to the end of the prompt
    item      what was to be repeated
    text      the answer
    match     whether the answer has the item
    expected  whether our engine's answer has it; None: unknown
    gaps      differences from our engine's log probabilities (nats rms) by token of the answer, NaN: unknown
    """

    kind: str
    length: int
    exact: bool
    counted: int | None
    distance: int
    item: str
    text: str
    match: bool
    expected: bool | None = None
    gaps: tuple[float, ...] = ()

    @property
    def first(self) -> float | None:
        """Return the difference at the first token; None: unknown."""
        return self.gaps[0] if self.gaps and math.isfinite(self.gaps[0]) else None

    @property
    def later(self) -> float | None:
        """Return the level of the differences at all later tokens; None: unknown."""
        known = np.array([gap for gap in self.gaps[1:] if math.isfinite(gap)])
        return level(known) if len(known) else None

    def figure(self) -> dict[str, Any]:
        """Return the record for the report."""
        mod = {"mod 4": self.length % 4, "mod 128": self.length % 128} if self.exact else {}
        gaps = {"gaps": [None if math.isnan(gap) else float(f"{gap:.3g}") for gap in self.gaps]}
        return {key: value for key, value in (vars(self) | mod | gaps).items() if value is not None}


def matches(kind: str, item: str, text: str) -> bool:
    """Return whether an answer repeats the item; digits may be separated in another way."""
    if kind in COPIES:
        return item.replace(" ", "") in re.sub(r"[\s,]", "", text)
    return re.search(rf"(?<![A-Za-z0-9]){re.escape(item)}(?![A-Za-z0-9])", text, re.IGNORECASE) is not None


class Prober:
    """Asks a target about prompts of wanted lengths.

    records    all answers so far
    reference  our engine with the target's model; None if the model is unknown
    longest    (tokens, seconds) of the longest prompt answered
    spare      seconds that no prompt may take
    compared   (record, token ids of the prompt, steps of the answer) where our engine answered, too
    """

    def __init__(self, case: ExamContext):
        self.case, self.longest = case, (1, 0.0)
        self.spare = SPARE * min(case.limit.seconds_left, case.budget)
        self.records: list[Record] = []
        self.compared: list[tuple[Record, list[int], Sequence[Step]]] = []
        self.chat = "chat" in case.kinds
        known = case.tokenizer is not None and (case.same_model is True or given(case))
        self._ours = case.tokenizer if known else None
        self.reference: LocalTarget | None = None
        if known and case.same_model is not False:
            self.reference = LocalTarget(self._engine(), 1)
        self._ours_longest = (1, 0.0)
        self._shift: int | None = None  # tokens that the target counts in addition to ours
        self._seen: list[tuple[int, int]] = []  # (``rough_size`` of a short text, tokens that the target counted)

    def _engine(self) -> Engine:
        mode, engine = self.case.rounding, self.case.engine
        if mode in MODE_NAMES and engine.model.numerics.name != mode:
            return Engine.open(engine.path, numerics=mode, threads=engine.threads)
        return engine

    def prompt(self, text: str) -> Prompt:
        """Return the prompt that asks with a text, in a form that the target accepts."""
        return Prompt.chat(text) if self.chat else Prompt.plain(text + "\n")

    def count(self, text: str) -> int:
        """Return the number of tokens of the prompt made of ``text``, an estimate without a tokenizer."""
        if self._ours is not None:
            ids = ids_of(replace(self.case, same_model=True), self.prompt(text))
            return len(ids or ()) + (self._shift or 0)
        sizes, counts = zip(*(self._seen or [(0, 8)]), strict=True)
        slope = np.polyfit(sizes, counts, 1)[0] if len(set(sizes)) > 1 else 1.0
        return round(np.mean(counts) + slope * (rough_size(text) - np.mean(sizes)))

    def compose(self, kind: str, length: int, distance: int, seed: int) -> tuple[str, str, str]:
        """Return (text up to the item, the rest, the item) of a prompt of ``length`` tokens, or fewer by some words.

        It is longer than ``length`` only if the question alone is.
        """
        after, before = max(distance - 12, 0), max(length - distance, 0)
        for _ in range(40):
            head, tail, item = written(kind, before, after, seed)
            more = self.count(head + tail) - length
            if more <= 0 or not before + after:
                break
            before, after = max(before - more, 0), max(after - max(more - before, 0), 0)
        return head, tail, item

    def ask(self, kind: str, length: int, distance: int, seed: int) -> None:
        """Send a prompt of a wanted length and record the answer; send it again if the target counts other tokens.

        Raise Ds4Error if the target refuses it, OutOfTime if the stage ends.
        """
        # without a tokenizer the estimate may be too large, and only padding changes a count by single tokens
        head, tail, item = self.compose(kind, length - (0 if self._ours else 3), distance, seed)
        apart = 0 if kind in COPIES else max(self.count(tail) - self.count(""), 0)
        pad = length - self.count(head + tail) if self._ours else 0
        for _ in range(1 if self._ours else TRIES):
            text = f"{' '.join([PAD] * max(pad, 0))} {head}".strip() + tail
            start = time.monotonic()
            answer = self.case.ask(self.prompt(text), TOKENS)
            sent, counted = self.count(text), answer.usage.prompt
            self.longest = max(self.longest, (sent, time.monotonic() - start))
            if self._shift is None and self._ours is not None and counted is not None:
                self._shift, sent = counted - sent, counted
            if counted is not None and self._ours is None and sent < 300:
                self._seen.append((rough_size(text), counted))
            exact = counted is not None or self._ours is not None
            cut = counted is not None and counted < FEW * sent and sent > 300
            record = Record(kind, sent if cut or not counted else counted, exact, counted, apart, item, answer.text,
                            matches(kind, item, answer.text))  # fmt: skip
            self.records.append(self._compared(record, self.prompt(text), answer))
            if counted in (None, length) or abs(counted - sent) > 0.1 * sent + 40:
                break
            pad += length - counted if counted < length else (length - counted) % 4
            if counted > length and counted % 4 == length % 4:
                break

    def _compared(self, record: Record, prompt: Prompt, answer: Completion) -> Record:
        """Return the record with what our engine makes of the same prompt, if it is known and fast enough."""
        if self.reference is None or self.seconds(record.length) > self.case.limit.seconds_left / 4:
            return record
        start = time.monotonic()
        room = record.length + TOKENS + 8
        try:
            ours = self.reference.complete(
                Request(prompt, TOKENS, top_logprobs=self.case.top, ctx=room, cancel=self.case.limit)
            )
        except Ds4Error:
            return record
        self.case.limit.check()
        self._ours_longest = max(self._ours_longest, (record.length, time.monotonic() - start))
        record = replace(record, expected=matches(record.kind, record.item, ours.text))
        ids = ids_of(self.case, prompt) or []
        if self.case.same_model is not True or record.counted not in (None, len(ids)) or not answer.steps:
            return record
        gaps = compare_answers(ours, answer).rms
        record = replace(record, gaps=tuple(np.where(np.isfinite(gaps), gaps, math.nan).tolist()))
        self.compared.append((record, ids, answer.steps))
        return record

    def seconds(self, length: int) -> float:
        """Return the seconds that our engine is expected to take for a prompt of ``length`` tokens."""
        return expected(self._ours_longest, length)

    def agrees(self) -> bool:
        """Return whether our engine's answers suggest that it has the target's model: right and wrong where it is."""
        known = [r.expected == r.match for r in self.records if r.expected is not None]
        return bool(known) and sum(known) >= 0.75 * len(known)


def expected(longest: tuple[int, float], length: int) -> float:
    """Return the expected seconds of a prompt of ``length`` tokens; ``longest``: tokens and seconds of another one.

    Between short prompts most of the time does not depend on the length; between long ones attention grows faster.
    """
    tokens, seconds = longest
    return seconds * max(1.0, length / tokens if tokens >= 150 else 1.0) ** 1.2


def given(case: ExamContext) -> bool:
    """Return whether the user named the target's model, so that the engine is not the diagnostic model."""
    return case.engine.path != diagnostic_path()


def written(kind: str, before: int, after: int, seed: int) -> tuple[str, str, str]:
    """Return (text up to the item, the rest, the item); ``before`` and ``after``: about how many tokens of prose.

    The same seed gives the same item and the same prose, shorter or longer.
    """
    rng = random.Random(seed)
    name, thing = rng.choice(NAMES), rng.choice(OBJECTS)
    names, things = [n for n in NAMES if n != name], [t for t in OBJECTS if t != thing]
    code = f"{''.join(rng.choice('BCDFGHKLMNPRSTVWX') for _ in range(2))}-{rng.randrange(10000, 100000)}"
    copy = " ".join(rng.sample(OBJECTS, 4) if kind == "words" else rng.choices("0123456789", k=6))
    head = " ".join(filler(random.Random(seed + 1), before, names, things))
    rest = " ".join(filler(random.Random(seed + 2), after, names, things))
    if kind in COPIES:
        return head, f"{' ' * bool(head and rest)}{rest}\n\nCopy: {copy}", copy
    item = thing if kind == "word" else code
    fact = f"{name} keeps the {thing if kind == 'word' else f'code {code}'}"
    return f"{head} {fact}".strip(), f".{' ' * bool(rest)}{rest}\n\nWhat does {name} keep?", item
