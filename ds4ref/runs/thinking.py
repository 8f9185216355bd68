"""Whether answers show thinking, against whether it was asked for.

Servers take the wish to think in different fields and pass over those that they do not know, so that a run may measure
another mode than its settings say. What an answer cannot show (it is cut off, empty, or has more tokens than its text
can hold, because the server hides some) counts on neither side.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

FEW = 4
"""Reasoning tokens that are no thinking when no text comes with them: a pair of empty tags."""
SLACK = 16
"""Generated tokens that text need not account for."""
REMEDIES = ("vllm", "openai", "deepseek")
"""Dialects to try where the log does not say which the server may be."""
_OPEN = re.compile(
    r"\s*(?:<(?:think(?:ing)?|thought|reasoning|seed:think)>|\[THINK\]|\u25c1think\u25b7|<\|START_THINKING\|>"
    r"|<\|channel\|?>(?:analysis|thought))"
)
_CLOSE = re.compile(
    r"</(?:think(?:ing)?|thought|reasoning|seed:think)>|\[/THINK\]|\u25c1/think\u25b7|<\|END_THINKING\|>"
)


def seen(sample: Mapping[str, Any]) -> bool | None:
    """Return whether a sample of a log shows thinking; None if it cannot tell."""
    output, reasoning = sample.get("output") or "", sample.get("reasoning") or ""
    tokens, counted = sample.get("tokens"), sample.get("reasoning_tokens") or 0
    if reasoning.strip() or _inline(output) or counted > FEW:
        return True
    hidden = tokens is not None and tokens > SLACK + len(output.encode("utf-8", "replace")) / 2
    silent = sample.get("status") != "done" or not output.strip() or sample.get("finish") == "length"
    return None if silent or hidden or counted else False


def _inline(output: str) -> bool:
    """Return whether a text begins with thinking between tags; chat templates may have written the opening one."""
    begin = _OPEN.match(output)
    end = _CLOSE.search(output, begin.end() if begin else 0)
    if begin is None and (end is None or end[0] != "</think>"):
        return False
    return bool(output[begin.end() if begin else 0 : end.start() if end else None].strip())


def notes(rows: Iterable[Mapping[str, Any]], facts: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each way in which the rows of a run (``store.rows.eval_row``) contradict its settings."""
    mode = (facts.get("settings") or {}).get("think")
    sides: dict[bool, list[bool | None]] = {True: [], False: []}
    for row in rows:
        if (asked := row.get("think") or mode) and row.get("status") == "done":
            sides[asked != "none"].append(row.get("thought"))
    return [note for asked, shown in sides.items() if (note := _note(asked, shown, facts))]


def _note(asked: bool, shown: list[bool | None], facts: Mapping[str, Any]) -> str:
    known = [thought for thought in shown if thought is not None]
    count, total = sum(known), len(known)
    if not total or (count == total if asked else not count):
        return ""
    answers = f"{total} answer{'' if total == 1 else 's'}"
    if (silent := len(shown) - total) > 0:
        answers += f" ({silent} more cannot show it)"
    if asked and count:
        return f"thinking: asked for, and seen in {count} of {answers}"
    outcome = (
        f"asked for, but seen in none of {answers}" if asked else f"switched off, but seen in {count} of {answers}"
    )
    if (facts.get("target") or {}).get("kind") != "http":
        return f"thinking: {outcome}"
    server = facts.get("server") or {}
    how = f" (--dialect {server['dialect']})" if server.get("dialect") else ""
    first, *more = server.get("likely", REMEDIES) or [""]
    other = "hides its thinking, or its model does not think" if asked else "its model always thinks"
    if not first:
        return f"thinking: {outcome}. The server was asked in its own way{how}: {'it ' * asked}{other}"
    why = f"The server ignores how it was asked{how}, {'or ' * (not asked)}{other}"
    return f"thinking: {outcome}. {why}. Try --dialect {first}" + (f" (or {', '.join(more)})" if more else "")
