"""All errors a user can meet, in one hierarchy.

A command prints ``prog: what failed: why`` for any ``Ds4Error`` and exits with its ``exit_code``: 2 for wrong usage,
1 for everything else. Any other exception is a bug; ``DS4_DEBUG=1`` shows its traceback.

    Ds4Error
      UsageError            wrong flags or arguments                         exit 2
      ModelFileError        an unusable model file: path, byte offset, reason
        ShapeError          metadata or tensors do not describe this model
      TextError             tokenizer tables, prompts, malformed markup
      SessionError          an impossible request to a session
        ContextError        more tokens than the context holds
        TokenError          a token id outside the vocabulary
        PayloadError        a saved session that cannot be loaded
      Cancelled             stopped by the caller; the session is still consistent
      BackendError          a backend that is unknown or cannot run here
      TransientError        a failure that changed nothing: try again
        ClusterError        a worker that died, hangs or has another file; sessions continue when it is back
      TargetError           an engine reached over HTTP or a command failed
      DataError             results, vectors or stores that cannot be read or written
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any


def one_line(text: str) -> str:
    """Return ``text`` with line ends and characters that command a terminal escaped."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


class Ds4Error(Exception):
    """Base of all expected failures; ``str(error)`` is one line for the user, whatever a damaged file has in it."""

    exit_code = 1

    def __str__(self) -> str:
        return one_line(" ".join(super().__str__().split("\n")))


class UsageError(Ds4Error):
    """Wrong flags or arguments."""

    exit_code = 2


class ModelFileError(Ds4Error):
    """A model file that cannot be used, with path, reason and byte offset.

    ``offset`` is the byte position of the invalid field, None if the problem has no single position.
    """

    def __init__(self, path: str | os.PathLike[str], reason: str, offset: int | None = None):
        self.path, self.reason, self.offset = os.fspath(path), reason, offset
        where = "" if offset is None else f" at byte {offset}"
        super().__init__(f"{self.path}: {reason}{where}")


class ShapeError(ModelFileError):
    """A well-formed file that is not a model this engine can run; the message names the first mismatches."""


class TextError(Ds4Error):
    """Tokenizer tables or markup that cannot be used."""


class SessionError(Ds4Error):
    """An impossible request to a session."""


class ContextError(SessionError):
    """More tokens than the context holds."""


class TokenError(SessionError):
    """A token id outside the vocabulary."""


class PayloadError(SessionError):
    """A saved session that cannot be loaded here; the target session is then unchanged or invalid, never half
    loaded."""


class PayloadMismatch(PayloadError):
    """A saved session of another model or with a larger context; the file itself is not damaged."""


class Cancelled(Ds4Error):
    """Work stopped by the caller; results finished before stay usable."""

    exit_code = 130


class BackendError(Ds4Error):
    """A backend that is unknown or cannot run on this machine."""


class TransientError(Ds4Error):
    """A failure after which everything is as it was before, so that the same call may be tried again."""


class ClusterError(TransientError):
    """A worker of a cluster that died, does not answer or cannot take its layers.

    Sessions stay at their last finished pass; the next use of a session connects to the workers again.
    ``Session.tokens`` says whether the token of an ``eval`` was appended: its logits may have been lost afterwards.
    """


class TargetError(Ds4Error):
    """An engine behind HTTP or a command that did not answer properly.

    ``partial`` is the part of the answer that arrived (a ``targets.Completion``), None if unknown.
    """

    partial: Any = None


class DataError(Ds4Error):
    """Results, vectors or stores that cannot be read or written."""


def closest(word: str, names: Iterable[str]) -> str | None:
    """Return the name that ``word`` was probably meant to be, or None.

    Case, leading dashes, and underscores instead of dashes are ignored. A name that differs by a typing error comes
    first, then a name with which the word begins or ends (--tokens for --max-tokens), then a less similar one.
    """
    from difflib import get_close_matches

    bare = {_bare(name): name for name in names}
    wanted = _bare(word)
    within = [name for name in bare if len(name) > 2 and (wanted.startswith(name) or wanted.endswith(f"-{name}"))]
    found = [
        *get_close_matches(wanted, bare, 1, 0.8),
        *sorted(within, key=len, reverse=True),
        *get_close_matches(wanted, bare, 1, 0.65),
    ]
    return bare[found[0]] if found else None


def did_you_mean(word: object, names: Iterable[str]) -> str:
    """Return `` (did you mean NAME?)`` for the ``closest`` name, "" if no name is close or ``word`` is not a text."""
    near = closest(word, names) if isinstance(word, str) else None
    return "" if near is None else f" (did you mean {near}?)"


def _bare(name: str) -> str:
    return name.lstrip("-").lower().replace("_", "-")
