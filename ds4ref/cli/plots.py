"""What all plots of the tools have in common: the colours of text and grid, line styles, how a number is written."""

from __future__ import annotations

INK, GRID = "#333333", "#DDDDDD"
STYLES = ("-", "--", "-.", ":")


def tick(value: float) -> str:
    """Tick label: thousands with a ``k``."""
    return f"{value / 1000:g}k" if abs(value) >= 1000 else f"{value:g}"
