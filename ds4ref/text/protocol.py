"""The control strings and DSML tags of DeepSeek V4's chat formats (docs/explanation/text.md 1, 3, 4).

``｜`` is U+FF5C and ``▁`` is U+2581. DSML is the markup for tool calls. Its marker is a token without angle brackets: a
tag starts with ``<`` or ``</``, followed by the marker.
"""

from __future__ import annotations

from typing import NamedTuple

BOS = "<｜begin▁of▁sentence｜>"
EOS = "<｜end▁of▁sentence｜>"
USER = "<｜User｜>"
SYSTEM = "<｜System｜>"
REMINDER = "<｜latest_reminder｜>"
ASSISTANT = "<｜Assistant｜>"
THINK_OPEN = "<think>"
THINK_CLOSE = "</think>"
DSML = "｜DSML｜"

SPECIALS = (BOS, EOS, USER, ASSISTANT, THINK_OPEN, THINK_CLOSE, DSML)
"""The strings that each encode to one control token; none is a prefix of another."""
LATER = (SYSTEM, REMINDER)
"""Control strings that were added after the first checkpoints of May 2026."""

DEFAULT_SYSTEM = "You are a helpful assistant"
"""ds4's default system text; it has no final period there either."""

TOOL_RESULT_OPEN = "<tool_result>"
TOOL_RESULT_CLOSE = "</tool_result>"

WHITESPACE = " \t\n\v\f\r"
"""Characters that count as white space in this protocol: ASCII only."""


class Dialect(NamedTuple):
    """One spelling of the DSML tags: of a block of calls, a call ("invoke") and a parameter.

    ``invoke_open`` and ``param_open`` lack the final ``>``, because attributes follow.
    """

    block_open: str
    block_close: str
    invoke_open: str
    invoke_close: str
    param_open: str
    param_close: str


def dialect(prefix: str, block: str = "tool_calls") -> Dialect:
    """Return the tags with ``prefix`` before their names; ``block`` is the name of the block's tag."""

    def pair(name: str, end: str) -> tuple[str, str]:
        return f"<{prefix}{name}{end}", f"</{prefix}{name}>"

    return Dialect(*pair(block, ">"), *pair("invoke", ""), *pair("parameter", ""))


CANONICAL = dialect(DSML)
DIALECTS = (CANONICAL, dialect("DSML｜"), dialect(""))
"""Spellings that models write: the canonical one, one without the first bar of the marker, and plain XML."""
