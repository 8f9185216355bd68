"""Style shared by all plots: colours of text and grid, line styles, number format."""

from __future__ import annotations

INK, GRID = "#333333", "#DDDDDD"
STYLES = ("-", "--", "-.", ":")


def tick(value: float) -> str:
    """Format an axis tick's number, thousands with a ``k``."""
    return f"{value / 1000:g}k" if abs(value) >= 1000 else f"{value:g}"
