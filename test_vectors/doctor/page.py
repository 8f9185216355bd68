"""Write the report of an examination: self-contained HTML, the same as Markdown, and JSON.

Text from the target is untrusted: it is escaped, made printable, and the API key is removed in case a server sent it
back.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ds4ref.console.common import atomic_output, check_output
from ds4ref.errors import DataError
from ds4ref.version import __version__

from .findings import Examination, Outcome, ShownToken, plain

FILES = ("doctor.html", "doctor.md", "doctor.json")
SIGNS = {
    Outcome.WRONG: "\u2717", Outcome.UNEXPLAINED: "?!", Outcome.FAILED: "!", Outcome.UNSURE: "?",
    Outcome.DEPENDS: "~", Outcome.OK: "\u2713", Outcome.IMPOSSIBLE: "\u2013", Outcome.SKIPPED: "\u00b7",
}  # fmt: skip


def prepare(folder: str) -> None:
    """Create the folder; DataError at once if the files could not be written there later."""
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"cannot write {folder}: {error.strerror}") from None
    for name in FILES:
        check_output(str(Path(folder, name)))


def write(examination: Examination, folder: str, secret: str = "") -> list[str]:
    """Write all three files, each atomically, without the API key ``secret``; return their paths."""
    whole = json.dumps(examination.to_json(), ensure_ascii=False, indent=1)
    texts = (render("doctor.html.j2", examination), render("doctor.md.j2", examination), whole + "\n")
    written = []
    for name, text in zip(FILES, texts, strict=True):
        path = str(Path(folder, name))
        with atomic_output(path) as out:
            out.write(without(text, secret).encode("utf-8", "replace"))
        written.append(path)
    return written


def without(text: str, secret: str) -> str:
    """Return the text with the API key replaced by ***, also in its forms escaped for HTML, JSON and Markdown."""
    from markupsafe import escape

    for form in {secret, str(escape(secret)), json.dumps(secret)[1:-1], cell(secret)} if secret else ():
        text = text.replace(form, "***")
    return text


def render(template: str, examination: Examination) -> str:
    """Render a template of this package for the examination."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    env = Environment(
        loader=PackageLoader("ds4ref.test_vectors.doctor"),
        autoescape=template.endswith(".html.j2"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    env.filters |= {"line": line, "cell": cell, "figure": figure, "code": code, "shown_tokens": shown_tokens}
    return env.get_template(template).render(e=examination, signs=SIGNS, version=__version__, outcomes=list(Outcome))


def line(value: Any) -> str:
    """Return untrusted text as one line of printable characters."""
    return " ".join("".join(c if c.isprintable() else " " for c in str(value)).split())


def cell(value: Any) -> str:
    """Return untrusted text as one line escaped for Markdown, also inside a table."""
    return re.sub(r"([\\`*_{}\[\]<>|~#!&])", r"\\\1", line(value))


def code(value: Any) -> str:
    """Return a Markdown code span, fenced by one more backtick than the longest run in the text."""
    text = line(value).replace("|", "\u2223") or " "
    fence = "`" * (max((len(run) for run in re.findall("`+", text)), default=0) + 1)
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{pad}{text}{pad}{fence}"


def shown_tokens(row: Sequence[ShownToken]) -> str:
    """Return tokens as Markdown code spans; the marked one is bold."""
    return " ".join(f"**{code(p.text)}**" if p.marked else code(p.text) for p in row)


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
