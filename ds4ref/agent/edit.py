"""A file's text as lines, and edits of it. Nothing here reads or writes files.

Lines end with ``\\n``. In a file whose every line ends with ``\\r\\n``, the ``\\r`` is hidden from the model and
restored on writing; in any other file ``\\r`` is an ordinary character.
"""

from __future__ import annotations

import hashlib
import io
from dataclasses import dataclass

from .workspace import ToolError

DIFF_LINES, DIFF_WIDTH = 20, 200


@dataclass(frozen=True)
class Text:
    """The text of a file.

    lines     its lines, each with its ``\\n``
    crlf      whether every line of the file ends with ``\\r\\n``
    version   SHA-256 of the file's bytes
    """

    lines: list[str]
    crlf: bool
    version: bytes

    @classmethod
    def parse(cls, data: bytes) -> Text:
        """Return the text of a file's bytes; invalid UTF-8 becomes U+FFFD."""
        text = data.decode("utf-8", "replace")
        crlf = 0 < text.count("\n") == text.count("\r\n")
        lines = io.StringIO(text.replace("\r\n", "\n") if crlf else text, newline="\n")
        return cls(list(lines), crlf, hashlib.sha256(data).digest())

    def encode(self, text: str) -> bytes:
        """Return ``text`` as bytes with this file's line endings."""
        return (text.replace("\n", "\r\n") if self.crlf else text).encode()

    def fitted(self, text: str) -> str:
        """Return a text that the model wrote, with line endings as in ``lines``."""
        return text.replace("\r\n", "\n") if self.crlf else text


@dataclass(frozen=True)
class Change:
    """A replacement of consecutive lines: ``removed``, from line ``start`` (counted from 0), by ``added``."""

    start: int
    removed: list[str]
    added: list[str]

    @classmethod
    def between(cls, old: list[str], new: list[str]) -> Change:
        """Return the smallest replacement of consecutive lines that turns ``old`` into ``new``."""
        most = min(len(old), len(new))
        start = next((n for n in range(most) if old[n] != new[n]), most)
        behind = next((n for n in range(most - start) if old[-1 - n] != new[-1 - n]), most - start)
        return cls(start, old[start : len(old) - behind], new[start : len(new) - behind])

    def diff(self, limit: int | None = None, width: int | None = None) -> str:
        """Return the change as a unified diff without context lines.

        limit   maximum number of lines of each side, None for all
        width   maximum characters of a line, None for all
        """
        old, new = (f"{self.start + bool(part)},{len(part)}" for part in (self.removed, self.added))
        lines = [f"@@ -{old} +{new} @@"]
        for sign, part in (("-", self.removed), ("+", self.added)):
            lines += [sign + line.removesuffix("\n")[:width] for line in part[:limit]]
            if limit is not None and len(part) > limit:
                lines.append(f"... {len(part) - limit} more {sign} lines ...")
            elif part and not part[-1].endswith("\n"):
                lines.append("\\ No newline at end of file")
        return "\n".join(lines)


def replaced(text: Text, old: str, new: str) -> str:
    """Return the file's content with ``old`` replaced by ``new``; raises ToolError unless ``old`` occurs exactly once.

    Overlapping occurrences count.
    """
    content, old = "".join(text.lines), text.fitted(old)
    at = content.find(old)
    if at < 0:
        raise ToolError("old text not found")
    again = content.find(old, at + 1)
    if again >= 0:
        first, second = (content.count("\n", 0, place) + 1 for place in (at, again))
        raise ToolError(f"old text is not unique (it starts in lines {first} and {second}); give more of the text")
    return content[:at] + text.fitted(new) + content[at + len(old) :]
