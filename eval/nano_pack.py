"""Make the pack for the random model: multiple-choice questions whose keys are the model's own answers.

The model's weights are random (``ds4 nano random``), so that it knows nothing; but it is a function, and a sensitive
one. Whether an engine computes this function can be tested in the form of an examination. Every item is a
multiple-choice question about a passage of generated prose. Its options are drawn until the model, greedy and in mode
qat, answers with the letter of one of them; that letter is the key. The letter's margin is left to chance, down to the
size of float noise.

So a score of 100 % says that an engine decodes like ours, and nothing about knowledge. A trained model wins most items
by a wide margin; these have narrow ones, so that a broken engine loses more of them.

    python -m ds4ref.eval.nano_pack eval/questions/nano.jsonl      takes an hour; makes the same file every time
"""

from __future__ import annotations

import multiprocessing
import random
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ds4ref.engine import Engine
from ds4ref.nano import random_path
from ds4ref.nano.prose import prose
from ds4ref.text.chat import render

from . import packs
from .packs import LETTERS, Header, Pack, Question
from .prompt import prompt

ITEMS, CHOICES = 93, 10
MARGIN = 0.01
"""Nats by which the letter must be the best token: float noise between correct implementations is far below."""
GLANCE, PROMISING, TRIES, SLOTS = 6, -1.5, 40, 4
"""Search for options: a passage is given up if after GLANCE tries no letter is within -PROMISING nats of the best
token; else the last SLOTS options are replaced one after the other, with TRIES words each, keeping the best."""
TAIL = 96
"""Number of tokens at the end of a prompt that may change with its last option."""
SETTINGS: dict[str, int | float | str] = {"think": "none", "tokens": 1, "temperature": 0.0}
CANARY = "ds4ref-eval nano canary 5f0c8d34-7a8e-4b1c-9c35-0f6a1be0d7b2: not for training data"


def item(engine: Engine, number: int) -> Question | None:
    """Return the question about passage ``number``; None if no options make the model answer with a letter."""
    walk, tokenizer = _Walk(engine.session(2048)), engine.tokenizer
    spelt = {i: tokenizer.token_bytes(i).decode("utf-8", "replace").strip() for i in range(len(tokenizer))}
    letters = np.array([i for i, text in spelt.items() if text and text in LETTERS[:CHOICES]])
    draw = random.Random(number)
    passage = " ".join(re.split(r"(?<=[.!?]) ", prose(400, number))[:2])
    words = sorted(set(re.findall(r"[a-z]{4,10}", prose(4000, number + 1_000_000))))
    draw.shuffle(words)
    best, rest = words[:CHOICES], words[CHOICES:]
    lead = -np.inf
    for slot in range(1, SLOTS + 1):
        for turn in range(TRIES):
            if turn == GLANCE and slot == 1 and lead < PROMISING:
                return None
            tried = best.copy()
            tried[-slot] = rest[(TRIES * slot + turn) % len(rest)]
            if tried[-slot] in best:
                continue
            asked = prompt(_question(passage, tried, "A"), "none")
            logits = walk.logits(render(asked.messages, asked.tools, asked.thinking).encode(tokenizer))
            letter = letters[logits[letters].argmax()]
            now = float(logits[letter] - np.delete(logits, letter).max())
            if now > MARGIN:
                return _question(passage, tried, spelt[int(letter)])
            if now > lead:
                lead, best = now, tried
    return None


class _Walk:
    """Evaluates prompts that share their beginnings, up to ``TAIL`` tokens before the end, once."""

    def __init__(self, session: Any):
        self.session = session
        self.kept: Any = None

    def logits(self, ids: list[int]) -> np.ndarray:
        """(V,) after ``ids``."""
        if self.kept is None or list(self.kept.tokens) != ids[: len(self.kept.tokens)]:
            self.session.invalidate()
            self.session.sync(ids[:-TAIL])
            self.kept = self.session.snapshot()
        self.session.restore(self.kept)
        self.session.sync(ids)
        return self.session.logits


def _question(passage: str, choices: Sequence[str], answer: str) -> Question:
    text = f"{passage}\n\nWhich of these words would the narrator have used next?"
    bare = Question(
        "-", "words", "language/continuation", "generated", "choice", text, tuple(choices), answer,
        "What the embedded model itself says, greedy, in mode qat.", "", "MIT",
    )  # fmt: skip
    return msgspec.structs.replace(bare, id=packs.stamped(bare))


def make(workers: int = 2, report: Callable[[str], None] = lambda text: None) -> Pack:
    """Make the pack with several processes; the result does not depend on their number."""
    found: list[Question] = []
    with multiprocessing.get_context("spawn").Pool(workers, _open) as pool:
        for number, question in enumerate(pool.imap(_item, range(10_000))):
            found += [] if question is None else [question]
            report(f"{len(found)} of {ITEMS} after {number + 1} passages")
            if len(found) == ITEMS:
                break
    about = "questions that the embedded model answers: for trying out ds4-eval, and for finding broken engines"
    return Pack(Header(packs.NANO, 1, CANARY, "MIT", about, SETTINGS), tuple(found))


_engines: list[Engine] = []


def _open() -> None:
    _engines.append(Engine.open(random_path(), numerics="qat", threads=1))


def _item(number: int) -> Question | None:
    return item(_engines[0], number)


if __name__ == "__main__":
    packs.write(make(report=lambda text: print(text, file=sys.stderr)), Path(sys.argv[1]))
