"""Pages that tools write: one self-contained HTML file, and the same as Markdown.

    table = Table(("stage", "result"), [("Tokenizer", Toned("wrong", "bad")), ("Template", Toned("right", "good"))])
    page = Page("Is it right?", [Section("Stages", ["Two checks.", table])], headline=["a bug was found"])
    write_page("out/page.html", page, by="ds4-vectors doctor")           # and out/page.md

A page is data: a title, sentences at its top, and sections of blocks. A block is a string (a paragraph), or one of the
classes below; a section may hold sections, which become smaller headings, or folds with ``open`` set. All text may come
from anywhere: it is made printable and escaped for its format here. ``templates/page.*.j2`` have the looks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ..version import __version__
from .common import atomic_output, check_output


class Toned(NamedTuple):
    """A text with a colour: tone "good", "bad", "unsure", "soft" or ""; ``title``: what HTML shows on hovering."""

    text: str
    tone: str = ""
    title: str = ""


Text = str | Toned


@dataclass(frozen=True)
class Table:
    """Rows of cells under headings, none for a list of facts; columns of numbers are aligned right."""

    headings: Sequence[str]
    rows: Sequence[Sequence[Text]]

    @property
    def numeric(self) -> list[bool]:
        """Whether the cells of each column begin like numbers, or are empty."""
        columns = zip(*self.rows, strict=True)
        texts = [[str(cell[0] if isinstance(cell, tuple) else cell) for cell in column] for column in columns]
        return [any(column) and all(re.match(r"[-+<\d]|$", cell) for cell in column) for column in texts]


@dataclass(frozen=True)
class Listing:
    """Points of a list, numbered ones if ``ordered``."""

    items: Sequence[Text]
    ordered: bool = False


@dataclass(frozen=True)
class Picture:
    """A drawing: an <svg> element whose colours are the page's variables, a text that says the same, and a caption.

    ``file``: name of a file beside the page that Markdown shows; without it Markdown has the text alone.
    """

    svg: str
    alt: str
    caption: str = ""
    file: str = ""


@dataclass(frozen=True)
class Code:
    """A text shown as it is, in lines."""

    text: str


@dataclass(frozen=True)
class Tokens:
    """A row of tokens after its label; those that matter have a tone."""

    label: str
    tokens: Sequence[Toned]


@dataclass(frozen=True)
class Section:
    """Blocks under a heading; with ``open`` not None they fold under it, shown at first if it is true."""

    title: Text
    blocks: Sequence[Any]
    open: bool | None = None


@dataclass(frozen=True)
class Page:
    """All that a page shows.

    headline   what matters most, at the top
    tone       of the headline
    footer     what to know about all of it
    """

    title: str
    sections: Sequence[Section]
    headline: Sequence[str] = ()
    tone: str = ""
    footer: str = ""


FORMS = {".html": "page.html.j2", ".md": "page.md.j2"}


def render(page: Page, suffix: str, by: str = "ds4ref") -> str:
    """Return the page as text, ``suffix`` being ".html" or ".md"; ``by``: the command that makes it."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    env = Environment(
        loader=PackageLoader("ds4ref.console"), autoescape=suffix == ".html", undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    env.filters |= {
        "kind": lambda block: type(block).__name__,
        "line": line,
        "cell": cell,
        "code": code,
        "printable": printable,
    }
    return env.get_template(FORMS[suffix]).render(page=page, by=by, version=__version__)


def write_page(path: str, page: Page, by: str = "ds4ref", secret: str = "") -> list[str]:
    """Write the page to ``path``, which ends in .html, the same beside it as .md, and the files of its pictures.

    ``secret``: a key that may not appear, in case a server sent it back. Each file appears complete or not at all.
    Return their paths, the HTML first; DataError if one cannot be written, before any is.
    """
    html = Path(path)
    texts = {html.with_suffix(suffix): render(page, suffix, by) for suffix in FORMS}
    texts |= {html.with_name(p.file): standalone(p.svg) for p in pictures(page.sections) if p.file}
    for file in texts:
        check_output(str(file))
    for file, text in texts.items():
        with atomic_output(str(file)) as out:
            out.write(without(text, secret).encode("utf-8", "replace"))
    return [str(file) for file in texts]


def pictures(blocks: Sequence[Any]) -> list[Picture]:
    """Return the pictures among blocks, in order."""
    inner = [pictures(block.blocks) if isinstance(block, Section) else [block] for block in blocks]
    return [block for several in inner for block in several if isinstance(block, Picture)]


def without(text: str, secret: str) -> str:
    """Return text with a key replaced by ***, also in its forms escaped for HTML, JSON and Markdown."""
    from markupsafe import escape

    for form in {secret, str(escape(secret)), json.dumps(secret)[1:-1], cell(secret)} if secret else ():
        text = text.replace(form, "***")
    return text


def standalone(svg: str) -> str:
    """Return a picture of a page as a file, on white and with the colours of light pages."""
    style = (Path(__file__).parent / "templates/page.css").read_text()
    colours = style[style.index("--paper") : style.index("}")]
    names = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    start, _, inside = svg.partition(">")
    return f"{start} {names}><style>svg {{ background: #fff; {colours}}}</style>{inside}"


def line(value: object) -> str:
    """Return text as one line of printable characters."""
    return " ".join(printable(value).split())


def printable(value: object) -> str:
    """Return text with blanks for what cannot be printed, line feeds included."""
    return "".join(c if c.isprintable() else " " for c in str(value))


def cell(value: object) -> str:
    """Return text as one line escaped for Markdown, also inside a table."""
    return re.sub(r"([\\`*_{}\[\]<>|~#!&])", r"\\\1", line(value))


def code(value: object) -> str:
    """Return a Markdown code span, fenced by one more backtick than the longest run in the text."""
    text = line(value).replace("|", "\u2223") or " "
    fence = "`" * (max((len(run) for run in re.findall("`+", text)), default=0) + 1)
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{pad}{text}{pad}{fence}"
