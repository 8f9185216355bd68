"""Text tables fitted to the terminal: no line wraps at any width.

Texts that do not fit are cut; columns of numbers are never cut but dropped, the least important first. rich measures
the width of characters; its Table class is not used, since it takes 3 ms a line and logs have thousands of lines.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from .common import columns, is_tty

UNBOUNDED = 1000
"""Width of tables in characters when no terminal limits it."""
GAP = 2
"""Number of blanks between columns."""


@dataclass(frozen=True)
class Column:
    """A column of a table.

    heading   text of the header
    rank      0 for a column that is always shown; of the others the highest rank is dropped first
    least     width in terminal cells to which the column may be cut, None if it may not be cut
    right     right-aligned, for numbers
    """

    heading: str
    rank: int = 0
    least: int | None = None
    right: bool = False


def stdout_width(piped: int = UNBOUNDED) -> int:
    """Return the width of the terminal on stdout, ``piped`` if stdout is not a terminal."""
    return columns(sys.stdout) if is_tty(sys.stdout) else piped


def fitted(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> str:
    """Format a table in lines of at most ``width`` terminal cells, without the last line feed. ``rows`` have a text for
    each column.

    Columns whose cells are all empty are left out.
    """
    from rich.cells import set_cell_size

    indices, widths = choose(columns, rows, width)
    visible = [columns[index] for index in indices]
    lines = []
    for cells in ([column.heading for column in visible], *([row[index] for index in indices] for row in rows)):
        fields = [_field(cell, size, c.right) for cell, size, c in zip(cells, widths, visible, strict=True)]
        lines.append((" " * GAP).join(fields).rstrip())
    # If the terminal is narrower than the columns that are never dropped, cut the lines.
    least = sum(widths) + GAP * (len(widths) - 1)
    return "\n".join(lines if least <= width else (set_cell_size(line, width).rstrip() for line in lines))


def _field(text: str, width: int, right: bool) -> str:
    """Return ``text`` padded or cut to ``width`` cells, with an ellipsis if cut."""
    from rich.cells import cell_len, set_cell_size

    room = width - cell_len(text)
    if room < 0:
        return set_cell_size(text, width - 1) + "\u2026"
    return " " * room + text if right else text + " " * room


def choose(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> tuple[list[int], list[int]]:
    """Return (indices, widths) of the columns that fit into ``width`` terminal cells."""
    from rich.cells import cell_len

    natural = [max(cell_len(cell) for cell in (c.heading, *(r[i] for r in rows))) for i, c in enumerate(columns)]
    indices = [i for i in range(len(columns)) if not rows or any(row[i] for row in rows)]

    def room(widths: Sequence[int]) -> int:
        return width - sum(widths) - GAP * (len(widths) - 1)

    def least(i: int) -> int:
        bound = columns[i].least
        return natural[i] if bound is None else min(natural[i], bound)

    while room([least(i) for i in indices]) < 0:
        droppable = [i for i in indices if columns[i].rank]
        if not droppable:
            break
        indices.remove(max(droppable, key=lambda i: (columns[i].rank, i)))
    widths = {i: natural[i] for i in indices}
    while room(list(widths.values())) < 0:
        # the column with most to spare; if none has any, the widest
        widest = max(indices, key=lambda i: (widths[i] - least(i), widths[i], i))
        if widths[widest] <= 1:
            break
        widths[widest] -= 1
    return indices, [widths[i] for i in indices]
