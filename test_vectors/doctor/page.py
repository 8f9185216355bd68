"""Write the report of an examination: self-contained HTML, and JSON.

Text from the target is untrusted: it is escaped, made printable, and the API key is removed in case a server sent it
back.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ds4ref.console.common import atomic_output, check_output
from ds4ref.errors import DataError
from ds4ref.version import __version__

from ..finding import OPEN, Outcome, plain
from .examination import Examination

FILES = ("doctor.html", "doctor.json")
SIGNS = dict(zip(Outcome, "\u2717\u203d!?~\u2713\u2013\u00b7", strict=True))


def prepare(folder: str) -> None:
    """Create the folder; DataError at once if the files could not be written there later."""
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"cannot write {folder}: {error.strerror}") from None
    for name in FILES:
        check_output(str(Path(folder, name)))


def write(examination: Examination, folder: str, secret: str = "") -> list[str]:
    """Write both files, each atomically, without the API key ``secret``; return their paths."""
    whole = json.dumps(examination.to_json(), ensure_ascii=False, indent=1)
    written = []
    for name, text in zip(FILES, (render(examination), whole + "\n"), strict=True):
        path = str(Path(folder, name))
        with atomic_output(path) as out:
            out.write(without(text, secret).encode("utf-8", "replace"))
        written.append(path)
    return written


def without(text: str, secret: str) -> str:
    """Return the text with the API key replaced by ***, also in its forms escaped for HTML and JSON."""
    from markupsafe import escape

    for form in {secret, str(escape(secret)), json.dumps(secret)[1:-1]} if secret else ():
        text = text.replace(form, "***")
    return text


def render(examination: Examination) -> str:
    """Render the page of the examination."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    env = Environment(loader=PackageLoader("ds4ref.test_vectors.doctor"), autoescape=True, undefined=StrictUndefined,
                      trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)  # fmt: skip
    env.filters |= {"line": line, "figure": figure}
    template = env.get_template("doctor.html.j2")
    return template.render(e=examination, signs=SIGNS, version=__version__, unseen=list(examination.checks(*OPEN)))


def line(value: Any) -> str:
    """Return untrusted text as one line of printable characters."""
    return " ".join("".join(c if c.isprintable() else " " for c in str(value)).split())


def figure(value: Any) -> str:
    """Format a measured value for the report: yes or no, four significant digits, or a comma-separated list."""
    value = plain(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        return ", ".join(map(figure, value)) or "none"
    if isinstance(value, dict):
        return ", ".join(f"{key} {figure(each)}" for key, each in value.items()) or "none"
    return "none" if value is None else line(value)
