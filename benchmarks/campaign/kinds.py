"""What counts as a failure: anything but success or one of our own exceptions with a line for the user."""

from __future__ import annotations

import traceback
from pathlib import Path


def plain_line(error: BaseException, *names: str) -> str:
    """Return "" for one of our exceptions with a line that has all ``names`` in it, else what is wrong, and where."""
    from ds4ref.errors import Ds4Error
    from ds4ref.server.api import Refused

    if isinstance(error, Ds4Error | Refused):
        text = error.message if isinstance(error, Refused) else str(error)
        if "\n" in text or not text.isprintable() or len(text) > 1000:
            return f"{type(error).__name__} whose text is no line: {place(error)}"
        missing = [name for name in names if name not in text]
        return f"{type(error).__name__} that does not name the file: {place(error)}" if missing else ""
    return f"{type(error).__name__}: {place(error)}"


def place(error: BaseException) -> str:
    """Return where an exception was raised in our code: the module and function of the last such frame."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "site-packages" not in f.filename]
    ours = [f for f in frames if "campaign" not in f.filename] or frames
    return f"{Path(ours[-1].filename).name}:{ours[-1].name}" if ours else "?"
