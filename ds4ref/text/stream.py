"""Streaming text: emit only whole characters, and nothing that may become a stop string (text.md 2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Bytes(Protocol):
    """A vocabulary that provides the bytes of each token."""

    def token_bytes(self, token: int) -> bytes: ...


def utf8_safe_len(data: bytes) -> int:
    """Return the length of the longest prefix that can be decoded now: all but an incomplete character at the end."""
    at = len(data)
    while at > 0 and len(data) - at < 4 and 0x80 <= data[at - 1] <= 0xBF:
        at -= 1
    if at == 0:
        return 0  # nothing but continuation bytes, or nothing at all: their lead may be elsewhere
    if 0x80 <= data[at - 1] <= 0xBF:
        return len(data)  # five continuation bytes are no character
    lead = at - 1
    return lead if len(data) - lead < _char_len(data[lead]) else len(data)


def _char_len(lead: int) -> int:
    if 0xC2 <= lead <= 0xDF:
        return 2
    if 0xE0 <= lead <= 0xEF:
        return 3
    return 4 if 0xF0 <= lead <= 0xF4 else 1


class StreamDecoder:
    """Decoder of token ids to text in whole characters; invalid UTF-8 becomes U+FFFD.

    The concatenation of everything returned equals ``tokenizer.decode(ids).decode("utf-8", "replace")``.
    """

    def __init__(self, tokenizer: Bytes):
        self._tokenizer = tokenizer
        self._held = b""

    def feed(self, token: int) -> str:
        """Return the text that this token completes, possibly empty."""
        data = self._held + self._tokenizer.token_bytes(token)
        safe = utf8_safe_len(data)
        if safe == 0 and data and 0x80 <= data[0] <= 0xBF:
            safe = len(data)  # everything before was shown, so these continue nothing
        self._held = data[safe:]
        return data[:safe].decode("utf-8", "replace")

    def finish(self) -> str:
        """Return the pending bytes as text and reset the decoder."""
        pending, self._held = self._held, b""
        return pending.decode("utf-8", "replace")

    def reset(self) -> None:
        """Drop pending bytes."""
        self._held = b""


class StopHolder:
    """Filter that cuts text at the first stop string and withholds text that may still become one.

    The stop that starts earliest wins, on a tie the one listed first, as if the whole text were searched at once: a
    match waits while a longer stop that began before it may still match. Empty strings are ignored. After the cut,
    ``stopped`` is the matching stop string, and all further text is dropped.
    """

    def __init__(self, stops: Sequence[str]):
        self._stops = [stop for stop in stops if stop]
        self._held = ""
        self.stopped: str | None = None

    def feed(self, text: str) -> str:
        """Append text; return the part of the withheld text that can no longer belong to a stop string."""
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


def partial_suffix(text: str, word: str) -> int:
    """Return the length of the longest proper prefix of ``word`` that ``text`` ends with, 0 if none."""
    for length in range(min(len(word) - 1, len(text)), 0, -1):
        if text.endswith(word[:length]):
            return length
    return 0
