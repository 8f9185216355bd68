"""Tables for people that fit their terminal: nothing wraps, whatever its width.

What has no room is cut where a column may be cut (texts), and left out where it may not (numbers), least important
columns first. rich measures characters; its Table is not used here: it takes 3 ms a line, and logs have thousands.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

GAP = 2
"""Blanks between columns."""


@dataclass(frozen=True)
class Column:
    """``rank`` 0 is always shown; of the others the highest is the first to go. ``least``: cells to which it may be
    cut, None if it may not. ``right``: numbers."""

    heading: str
    rank: int = 0
    least: int | None = None
    right: bool = False


def fitted(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> str:
    """The table in lines of at most ``width`` characters, without the last line feed. Columns of which every cell is
    empty are left out."""
    from rich.cells import set_cell_size

    kept, widths = choose(columns, rows, width)
    shown = [columns[index] for index in kept]
    lines = []
    for cells in ([column.heading for column in shown], *([row[index] for index in kept] for row in rows)):
        fields = [_field(cell, size, c.right) for cell, size, c in zip(cells, widths, shown, strict=True)]
        lines.append((" " * GAP).join(fields).rstrip())
    # A terminal narrower than the columns that always stay gets their beginning.
    least = sum(widths) + GAP * (len(widths) - 1)
    return "\n".join(lines if least <= width else (set_cell_size(line, width).rstrip() for line in lines))


def _field(text: str, width: int, right: bool) -> str:
    """``text`` in exactly so many cells, with an ellipsis where it is cut."""
    from rich.cells import cell_len, set_cell_size

    room = width - cell_len(text)
    if room < 0:
        return set_cell_size(text, width - 1) + "\u2026"
    return " " * room + text if right else text + " " * room


def choose(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> tuple[list[int], list[int]]:
    """Which columns are shown, and how wide."""
    from rich.cells import cell_len

    natural = [max(cell_len(cell) for cell in (c.heading, *(r[i] for r in rows))) for i, c in enumerate(columns)]
    kept = [i for i in range(len(columns)) if not rows or any(row[i] for row in rows)]

    def room(widths: Sequence[int]) -> int:
        return width - sum(widths) - GAP * (len(widths) - 1)

    def least(i: int) -> int:
        bound = columns[i].least
        return natural[i] if bound is None else min(natural[i], bound)

    while room([least(i) for i in kept]) < 0:
        droppable = [i for i in kept if columns[i].rank]
        if not droppable:
            break
        kept.remove(max(droppable, key=lambda i: (columns[i].rank, i)))
    widths = {i: natural[i] for i in kept}
    while room(list(widths.values())) < 0:
        spare = {i: widths[i] - least(i) for i in kept if widths[i] > least(i)}
        if not spare:  # narrower than the figures are: something has to go
            spare = {i: widths[i] for i in kept if widths[i] > 1}
            if not spare:
                break
        widths[max(spare, key=lambda i: (spare[i], i))] -= 1
    return kept, [widths[i] for i in kept]
