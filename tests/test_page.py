"""Pages of tools: complete, self-contained, escaped in both forms, and the same in both."""

from html.parser import HTMLParser

import pytest

from ds4ref.console import page as pages
from ds4ref.console.page import Code, Listing, Page, Picture, Section, Table, Tokens, Toned, code, render, write_page
from ds4ref.errors import DataError

EVIL = '<script>alert("1")</script> [a](http://x) `b` | \x1b[31m'
SVG = '<svg viewBox="0 0 9 9" aria-hidden="true"><path fill="var(--ink)"/></svg>'
VOID = {"meta", "link", "br", "hr", "img"}


class Parsed(HTMLParser):
    """Every tag and text of a page; complains about tags that do not close."""

    def __init__(self, text):
        super().__init__()
        self.stack, self.tags, self.texts = [], [], []
        self.feed(text)
        assert not self.stack

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def page(text):
    blocks = [
        text,
        Table((text, "n", "m"), [(Toned(text, "bad", text), "1.5", "x"), (text, "", "2")]), Table((), [(text, "v")]),
        Listing([text, Toned(text, "good")], ordered=True), Code(f"{text}\n{text}"), Picture(SVG, text, text, "p.svg"),
        Picture(SVG, text), Tokens(text, [Toned(text), Toned(text, "bad", text)]),
        Section(text, [Table(("only",), []), Section(text, [text])], open=False),
    ]  # fmt: skip
    return Page(text, [Section(text, blocks)], [text], "bad", text)


@pytest.mark.parametrize("text", ["plain", EVIL])
def test_text_from_anywhere_stays_text(text):
    html, markdown = render(page(text), ".html", "ds4-x"), render(page(text), ".md", "ds4-x")
    parsed = Parsed(html)
    assert not {"script", "img", "iframe", "object"} & {tag for tag, _ in parsed.tags}
    assert not [attrs for _, attrs in parsed.tags if attrs.get("src") or attrs.get("href", "data:,") != "data:,"]
    assert "\x1b" not in html + markdown
    if text == EVIL:  # a code span and an indented block show it as it is
        lines = [line for line in markdown.splitlines() if "script" in line and not line.startswith("    ")]
        assert not [line for line in lines if "`` <script" not in line and r"\<script\>" not in line]


def test_both_forms_say_the_same():
    html, markdown = Parsed(render(page("plain"), ".html")), render(page("plain"), ".md")
    tags = [tag for tag, _ in html.tags]
    assert (tags.count("table"), tags.count("figure"), tags.count("details"), tags.count("h2")) == (3, 2, 1, 1)
    assert "| plain | n | m |\n|---|---:|---|\n| plain | 1.5 | x |\n| plain |  | 2 |\n" in markdown
    assert "1. plain\n" in markdown and "![plain](p.svg)" in markdown and "**`plain`**" in markdown
    assert [attrs.get("class") for tag, attrs in html.tags if tag == "th"][:3] == [None, "number", None]


@pytest.mark.parametrize("text, span", [("a", "`a`"), ("", "` `"), ("`", "`` ` ``"), ("a``b", "```a``b```")])
def test_code_spans_of_markdown_hold_any_text(text, span):
    assert code(text) == span


def test_files_are_whole_without_the_key_and_with_their_pictures(tmp_path):
    files = write_page(str(tmp_path / "out.html"), page("sk-a&b_c"), "ds4-x", secret="sk-a&b_c")
    assert files == [str(tmp_path / name) for name in ("out.html", "out.md", "p.svg")]
    texts = [(tmp_path / name).read_text() for name in ("out.html", "out.md", "p.svg")]
    assert not [text for text in texts if "sk-a" in text] and "***" in texts[0] and "***" in texts[1]
    assert pages.without('{"a": "k\\"1"}', 'k"1') == '{"a": "***"}'
    assert 'xmlns="http://www.w3.org/2000/svg"' in texts[2] and "--ink: #222426" in texts[2]


def test_a_folder_that_is_not_there_is_one_line_and_nothing_is_written(tmp_path):
    (tmp_path / "out.md").mkdir()
    with pytest.raises(DataError, match="cannot write"):
        write_page(str(tmp_path / "out.html"), page("x"))
    assert not (tmp_path / "out.html").exists()
