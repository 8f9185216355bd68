"""Pages that tools write as reports: one self-contained HTML file, and the same page as Markdown.

    table = Table(("stage", "result"), [("Tokenizer", Toned("wrong", "bad")), ("Template", Toned("right", "good"))])
    page = Page("Is it right?", [Section("Stages", ["Two checks.", table])], headline=["a bug was found"])
    write_page("out/page.html", page, by="ds4-vectors doctor")           # and out/page.md

A page is data: a title, sentences at its top, and sections of blocks. A block is a string (a paragraph), or one of the
classes below; a section may contain sections, which get smaller headings, or can be folded if ``open`` is set. Text
need not be trusted: it is made printable and escaped for its format here. The layout is in ``templates/page.*.j2``.
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
    """A text with a colour: tone "good", "bad", "unsure", "soft" or ""; ``title``: a tooltip in HTML; ``to``: the
    anchor of the section that it links to."""

    text: str
    tone: str = ""
    title: str = ""
    to: str = ""


Text = str | Toned


@dataclass(frozen=True)
class Table:
    """A table: rows of cells under headings (which may be empty, for a list of names and values); columns of numbers
    are aligned right."""

    headings: Sequence[str]
    rows: Sequence[Sequence[Text]]

    @property
    def numeric(self) -> list[bool]:
        """For each column, whether all its cells that are not empty begin like numbers (and not all are empty)."""
        columns = zip(*self.rows, strict=True)
        texts = [[str(cell[0] if isinstance(cell, tuple) else cell) for cell in column] for column in columns]
        return [any(column) and all(re.match(r"[-+<\d]|$", cell) for cell in column) for column in texts]


@dataclass(frozen=True)
class Listing:
    """A list of items, numbered if ``ordered``."""

    items: Sequence[Text]
    ordered: bool = False


@dataclass(frozen=True)
class Picture:
    """A drawing: an <svg> element that uses the colours defined by the page, a text for readers who cannot see it, and
    a caption.

    ``file``: name of an image file beside the page, which the Markdown page shows; without it that page has only the
    text.
    """

    svg: str
    alt: str
    caption: str = ""
    file: str = ""


@dataclass(frozen=True)
class Code:
    """A text that is shown unchanged, with its line breaks, like source code."""

    text: str


@dataclass(frozen=True)
class Tokens:
    """A row of tokens with a label in front; tokens to be noticed have a tone (colour)."""

    label: str
    tokens: Sequence[Toned]


@dataclass(frozen=True)
class Section:
    """Blocks under a heading; with ``open`` True or False they can be folded away, and are shown or hidden at first.

    ``anchor``: what links to it name, of letters, digits and hyphens.
    """

    title: Text
    blocks: Sequence[Any]
    open: bool | None = None
    anchor: str = ""


@dataclass(frozen=True)
class Page:
    """The content of a page.

    headline   what matters most, at the top
    tone       colour of the headline, as in ``Toned``
    footer     remarks on the whole page
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
    """Write the page to ``path``, which ends in .html, the same page beside it as .md, and the files of its pictures.

    ``by``: the command that writes it. ``secret``: an API key, which is blanked out in case a server sent it back. Each
    file is written atomically. Return the paths, the HTML first; raise DataError, before any file is written, if one
    cannot be.
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
    """Return the pictures among blocks and in their sections, in order."""
    inner = [pictures(block.blocks) if isinstance(block, Section) else [block] for block in blocks]
    return [block for several in inner for block in several if isinstance(block, Picture)]


def without(text: str, secret: str) -> str:
    """Return text with the key ``secret`` replaced by ***, also where it is escaped for HTML, JSON or Markdown."""
    from markupsafe import escape

    for form in {secret, str(escape(secret)), json.dumps(secret)[1:-1], cell(secret)} if secret else ():
        text = text.replace(form, "***")
    return text


def standalone(svg: str) -> str:
    """Return a page's picture as the text of an SVG file, on white and with the colours of light pages."""
    style = (Path(__file__).parent / "templates/page.css").read_text()
    colours = style[style.index("--paper") : style.index("}")]
    names = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    start, _, inside = svg.partition(">")
    return f"{start} {names}><style>svg {{ background: #fff; {colours}}}</style>{inside}"


def line(value: object) -> str:
    """Return ``value`` as one line of printable text."""
    return " ".join(printable(value).split())


def printable(value: object) -> str:
    """Return ``value`` as text, with blanks instead of non-printing characters, line feeds included."""
    return "".join(c if c.isprintable() else " " for c in str(value))


def cell(value: object) -> str:
    """Return ``value`` as one line of text, escaped for Markdown, also for use inside a table."""
    return re.sub(r"([\\`*_{}\[\]<>|~#!&])", r"\\\1", line(value))


def code(value: object) -> str:
    """Return a Markdown code span, fenced by one more backtick than the longest run in the text."""
    text = line(value).replace("|", "\u2223") or " "
    fence = "`" * (max((len(run) for run in re.findall("`+", text)), default=0) + 1)
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{pad}{text}{pad}{fence}"
