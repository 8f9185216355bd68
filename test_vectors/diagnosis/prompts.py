"""Mistakes in turning a prompt into token ids: wrong splitting by the tokenizer, wrong framing by the template.

Each mistake gives the ids that another engine would have evaluated in place of ours. Positions in both are matched by
the text that follows them, as after a mistake at the start of the prompt the rest of the text is still the same.

    for mistake in MISTAKES:
        wrong = mistake.make(tokenizer, ids)        other ids, or equal ones where the mistake has no effect
        at = places(tokenizer, ids, wrong)          (T,): position in ``wrong`` for each position in ids, -1 for none
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ds4ref.errors import TextError
from ds4ref.text.tokenizer import Tokenizer

Make = Callable[[Tokenizer, list[int]], list[int]]


@dataclass(frozen=True)
class PromptBug:
    """One mistake of a tokenizer or template; ``make`` maps right token ids to wrong ones."""

    name: str
    says: str
    make: Make


def places(tokenizer: Tokenizer, ids: Sequence[int], wrong: Sequence[int]) -> np.ndarray:
    """Return for each position of ``ids`` (T,) the position of ``wrong`` that the same bytes follow, -1 for none."""
    ours, theirs = (np.array([len(tokenizer.token_bytes(i)) for i in each], np.int64) for each in (ids, wrong))
    place = {int(n): j for j, n in enumerate(theirs.sum() - np.cumsum(theirs))}
    text, other = tokenizer.decode(ids), tokenizer.decode(wrong)
    at = np.full(len(ours), -1, np.int64)
    for t, n in enumerate((ours.sum() - np.cumsum(ours)).tolist()):
        if n in place and (not n or text[-n:] == other[-n:]):
            at[t] = place[n]
    return at


def _texts(change: Callable[[Tokenizer, bytes], list[int]]) -> Make:
    """Return a function of (tokenizer, ids) that tokenizes plain text by ``change`` and keeps control tokens."""

    def make(tokenizer: Tokenizer, ids: list[int]) -> list[int]:
        control = _control(tokenizer)
        out: list[int] = []
        span: list[int] = []
        for token in [*ids, None]:
            if token is not None and token not in control:
                span.append(token)
                continue
            out += change(tokenizer, tokenizer.decode(span)) if span else []
            span = []
            out += [] if token is None else [token]
        return out

    return make


def _unmerged(tokenizer: Tokenizer, text: bytes) -> list[int]:
    return _split_by(tokenizer, lambda data: [bytes([byte]) for byte in data], text)


def _split_by(tokenizer: Tokenizer, pieces: Callable[[bytes], list[bytes]], text: bytes) -> list[int]:
    """Return the ids of a text if ``pieces`` replaced the rule that cuts it before the merges (pre-tokenization).

    A tokenizer without such a rule (sentencepiece) gives its right ids.
    """
    try:
        return tokenizer.with_split(pieces).encode(text)
    except TextError:
        return tokenizer.encode(text)


def _digits_apart(tokenizer: Tokenizer, text: bytes) -> list[int]:
    def pieces(data: bytes) -> list[bytes]:
        whole = tokenizer.pieces(data)
        return [part for piece in whole for part in (re.findall(rb"\d", piece) if piece.isdigit() else [piece])]

    return _split_by(tokenizer, pieces, text)


def _control(tokenizer: Tokenizer) -> set[int]:
    t = tokenizer
    return {t.bos, t.eos, t.user, t.assistant, t.think_open, t.think_close}


def _think(after: Callable[[Tokenizer], list[int]]) -> Make:
    """Return a function of (tokenizer, ids) that replaces the end of the chat template, "Assistant, </think>".

    ``after`` gives the ids that follow the Assistant token instead.
    """

    def make(tokenizer: Tokenizer, ids: list[int]) -> list[int]:
        frame = [tokenizer.assistant, tokenizer.think_close]
        at = next((i for i in reversed(range(len(ids) - 1)) if ids[i : i + 2] == frame), None)
        return ids if at is None else ids[:at] + after(tokenizer) + ids[at + 2 :]

    return make


def _as_text(tokenizer: Tokenizer, ids: list[int]) -> list[int]:
    return tokenizer.encode(tokenizer.decode(ids)) if _control(tokenizer) & set(ids) else ids


MISTAKES = [
    PromptBug("space_added", "tokenizer: a space was put before the text",
               _texts(lambda t, text: t.encode(b" " + text))),
    PromptBug("digits_apart", "tokenizer: digits one by one, not in groups of three", _texts(_digits_apart)),
    PromptBug("no_merges", "tokenizer: bytes are not merged", _texts(_unmerged)),
    PromptBug("markers_as_text", "template: control tokens were fed as plain text", _as_text),
    PromptBug("think_open", "template: <think> where thinking is off", _think(lambda t: [t.assistant, t.think_open])),
    PromptBug("think_missing", "template: </think> missing", _think(lambda t: [t.assistant])),
    PromptBug("newline_added", "template: a line feed before the assistant marker",
            _think(lambda t: [*t.encode(b"\n"), t.assistant, t.think_close])),
]  # fmt: skip
