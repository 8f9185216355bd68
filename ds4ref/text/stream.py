"""Text as it is generated: emit only whole characters, and nothing that may become a stop string.

Also ``Cursor``, the input of a streaming parser. See docs/explanation/text.md 2.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Protocol


class Bytes(Protocol):
    """Interface of a tokenizer as ``StreamDecoder`` needs it: it returns the bytes of each token."""

    def token_bytes(self, token: int) -> bytes: ...


class StreamDecoder:
    """Decoder of token ids to text in whole characters; invalid UTF-8 becomes U+FFFD.

    The concatenation of everything returned equals ``tokenizer.decode(ids).decode("utf-8", "replace")``.
    """

    def __init__(self, tokenizer: Bytes):
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token: int) -> str:
        """Return the text that this token completes, possibly empty."""
        return self._decoder.decode(self._tokenizer.token_bytes(token))

    def finish(self) -> str:
        """Return the pending bytes as text and reset the decoder."""
        return self._decoder.decode(b"", final=True)


class StopHolder:
    """Filter that cuts text at the first stop string and withholds text that may still become one.

    The stop string that starts earliest wins, and of several the one listed first, as if the whole text were searched
    at once: a match is not final while another stop string that began before it may still be completed. Empty stop
    strings are ignored. After the cut, ``stopped`` is the matching stop string, and all further text is dropped.
    """

    def __init__(self, stops: Sequence[str]):
        self._stops = [stop for stop in stops if stop]
        self._held = ""
        self.stopped: str | None = None

    def feed(self, text: str) -> str:
        """Add text; return the text that can no longer become part of a stop string and was not yet returned."""
        return self._advance(text, final=False)

    def finish(self) -> str:
        """Return the text still withheld, at the end of the input."""
        return self._advance("", final=True)

    def _advance(self, text: str, final: bool) -> str:
        if self.stopped is not None:
            return ""
        text = self._held + text
        candidates = []  # (start, rank in the list, complete)
        for rank, stop in enumerate(self._stops):
            start = text.find(stop)
            if start >= 0:
                candidates.append((start, rank, True))
            if not final:
                partial = partial_suffix(text, stop)
                if partial:
                    candidates.append((len(text) - partial, rank, False))
        if not candidates:
            self._held = ""
            return text
        start, rank, complete = min(candidates)
        if complete:
            self.stopped = self._stops[rank]
            self._held = ""
        else:
            self._held = text[start:]
        return text[:start]


class Cursor:
    """Input of a streaming parser: ``text``, of which everything before index ``at`` has been consumed."""

    def __init__(self) -> None:
        self.text, self.at = "", 0

    def append(self, chunk: str) -> None:
        """Append input; text that was consumed is dropped, and indexes start anew."""
        self.text, self.at = self.text[self.at :] + chunk, 0

    def take(self, end: int | None = None) -> str:
        """Consume and return the text up to index ``end``; None: all of it."""
        start, self.at = self.at, len(self.text) if end is None else end
        return self.text[start : self.at]

    @property
    def rest(self) -> str:
        """Return the text that is not consumed."""
        return self.text[self.at :]

    def first(self, *words: str) -> tuple[int, str] | None:
        """Return (index, word) of the first of ``words`` in the text not yet consumed; None if there is none."""
        found = [(at, word) for word in words if (at := self.text.find(word, self.at)) >= 0]
        return min(found, default=None)

    def possible_start(self, *words: str) -> int:
        """Return the index from which the text may be the beginning of one of ``words``: where its rest is a proper
        prefix of one. If there is none, return the end of the text."""
        tail = self.text[max(self.at, len(self.text) - max(map(len, words))) :]
        return len(self.text) - max(partial_suffix(tail, word) for word in words)


def partial_suffix(text: str, word: str) -> int:
    """Return the length of the longest proper prefix of ``word`` that ``text`` ends with, 0 if none."""
    for length in range(min(len(word) - 1, len(text)), 0, -1):
        if text.endswith(word[:length]):
            return length
    return 0
