"""The page of an examination: HTML that needs nothing else, the same as Markdown, and JSON.

Everything that came from the target is foreign text: it is escaped, made printable, and the API key is taken out should
a server have sent it back.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ds4ref import __version__
from ds4ref.cli.common import atomic_output, check_output
from ds4ref.errors import DataError

from .findings import Examination, Outcome, Piece, plain

FILES = ("doctor.html", "doctor.md", "doctor.json")
SIGNS = {
    Outcome.WRONG: "\u2717", Outcome.UNEXPLAINED: "?!", Outcome.FAILED: "!", Outcome.UNSURE: "?",
    Outcome.OK: "\u2713", Outcome.IMPOSSIBLE: "\u2013", Outcome.SKIPPED: "\u00b7",
}  # fmt: skip


def prepare(folder: str) -> None:
    """Make the folder and fail early where nothing could be written later."""
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"cannot write {folder}: {error.strerror}") from None
    for name in FILES:
        check_output(str(Path(folder, name)))


def write(found: Examination, folder: str, secret: str = "") -> list[str]:
    """All three files, each whole or not at all; their paths."""
    whole = json.dumps(found.to_json(), ensure_ascii=False, indent=1)
    texts = (render("doctor.html.j2", found), render("doctor.md.j2", found), whole + "\n")
    written = []
    for name, text in zip(FILES, texts, strict=True):
        path = str(Path(folder, name))
        with atomic_output(path) as out:
            out.write(without(text, secret).encode("utf-8", "replace"))
        written.append(path)
    return written


def without(text: str, secret: str) -> str:
    """The text without the API key, as it stands or as HTML or JSON would write it."""
    from markupsafe import escape

    for form in {secret, str(escape(secret)), json.dumps(secret)[1:-1], cell(secret)} if secret else ():
        text = text.replace(form, "***")
    return text


def render(template: str, found: Examination) -> str:
    """A template of this package, filled."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    env = Environment(
        loader=PackageLoader("test_vectors.doctor"),
        autoescape=template.endswith(".html.j2"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    env.filters |= {"line": line, "cell": cell, "figure": figure, "code": code, "pieces": pieces}
    return env.get_template(template).render(e=found, signs=SIGNS, version=__version__, outcomes=list(Outcome))


def line(value: Any) -> str:
    """Foreign text as one printable line."""
    return " ".join("".join(c if c.isprintable() else " " for c in str(value)).split())


def cell(value: Any) -> str:
    """A printable line in Markdown, also inside a table: nothing in it is markup."""
    return re.sub(r"([\\`*_{}\[\]<>|~#!&])", r"\\\1", line(value))


def code(value: Any) -> str:
    """Markdown's code span around any text: one more backtick than it holds in a row."""
    text = line(value).replace("|", "\u2223") or " "
    fence = "`" * (max((len(run) for run in re.findall("`+", text)), default=0) + 1)
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{pad}{text}{pad}{fence}"


def pieces(row: Sequence[Piece]) -> str:
    """Tokens in Markdown; the marked one is bold."""
    return " ".join(f"**{code(p.text)}**" if p.marked else code(p.text) for p in row)


def figure(value: Any) -> str:
    """A figure for people."""
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
