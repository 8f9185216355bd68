"""Tables fit: no line is longer than the terminal, numbers stay whole, and what is cut is texts."""

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from ds4ref.console.tables import Column, fitted

COLUMNS = (Column("#", right=True), Column("name", least=4), Column("p", 2, right=True), Column("why", 1, least=6))
ROWS = [["1", "alpha-beta-gamma", "0.0042", "it was so"], ["12", "x", "1", "nobody knows why it was not so"]]


def test_texts_are_cut_before_columns_go_and_numbers_never():
    lines = fitted(COLUMNS, ROWS, 40).splitlines()
    assert all(len(line) <= 40 for line in lines) and "0.0042" in lines[1] and "\u2026" in lines[2]
    narrow = fitted(COLUMNS, ROWS, 16).splitlines()
    assert "0.0042" not in "".join(narrow) and "why" in narrow[0], "the highest rank goes first"
    assert fitted(COLUMNS, ROWS, 10).splitlines()[0].split() == ["#", "name"]


def test_markup_and_wide_characters_are_characters():
    text = fitted(
        (Column("a", least=4), Column("b")), [["[red]x[/] :smile:", "1"], ["\u6f22\u5b57\u6f22\u5b57", "2"]], 30
    )
    assert "[red]x[/] :smile:" in text and text.splitlines()[2].endswith("2")
    cut = fitted((Column("a", least=4), Column("b")), [["\u6f22\u5b57\u6f22\u5b57", "2"]], 8)
    assert all(cell_len(line) <= 8 for line in cut.splitlines())


@given(
    st.lists(st.lists(st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z")), max_size=30),
                      min_size=4, max_size=4), max_size=5),
    st.integers(1, 90),
)  # fmt: skip
def test_no_line_is_ever_too_long(rows, width):
    for line in fitted(COLUMNS, rows, width).splitlines():
        assert cell_len(line) <= width
