"""Colours of the screen; every state is also shown as a word, for terminals without colours."""

from __future__ import annotations

from textual.theme import Theme

from .board import State

THEME = Theme(
    "ds4", primary="#7aa2f7", secondary="#bb9af7", accent="#7dcfff", warning="#e0af68", error="#f7768e",
    success="#9ece6a", foreground="#c8d0e8", background="#16171f", surface="#1b1d28", panel="#262a3a", dark=True,
)  # fmt: skip
QUIET = "#8a90ab"
STATE_STYLES = {
    State.PEND: "#5d6380",
    State.FILL: "#7dcfff",
    State.THINK: "#bb9af7",
    State.ANS: "bold #7aa2f7",
    State.PASS: "#9ece6a",
    State.FAIL: "bold #f7768e",
    State.AMBIG: "#e0af68",
    State.MISS: "#e0af68",
    State.ERR: "bold #ff79c6",
    State.STOP: "bold #e0af68",
}
