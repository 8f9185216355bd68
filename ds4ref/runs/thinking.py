"""Checks whether the answers of a run show thinking if, and only if, it was asked for.

Servers expect the thinking mode in different request fields and ignore fields that they do not know, so that a run may
measure another mode than its settings say. Answers that cannot tell are not counted: those that are cut off, empty, or
have more tokens than their text can account for, because the server hides some.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

FEW = 4
"""Number of reasoning tokens up to which an answer without reasoning text does not show thinking: empty think tags."""
SLACK = 16
"""Number of generated tokens that may be missing from the text without suspecting hidden ones."""
REMEDIES = ("vllm", "openai", "deepseek")
"""Values of --dialect to suggest if the log does not say which ones may fit the server."""
_OPEN = re.compile(
    r"\s*(?:<(?:think(?:ing)?|thought|reasoning|seed:think)>|\[THINK\]|\u25c1think\u25b7|<\|START_THINKING\|>"
    r"|<\|channel\|?>(?:analysis|thought))"
)
_CLOSE = re.compile(
    r"</(?:think(?:ing)?|thought|reasoning|seed:think)>|\[/THINK\]|\u25c1/think\u25b7|<\|END_THINKING\|>"
)


def seen(sample: Mapping[str, Any]) -> bool | None:
    """Return whether the answer in a sample of a log shows thinking; None if it cannot tell."""
    output, reasoning = sample.get("output") or "", sample.get("reasoning") or ""
    tokens, counted = sample.get("tokens"), sample.get("reasoning_tokens") or 0
    if reasoning.strip() or _inline(output) or counted > FEW:
        return True
    hidden = tokens is not None and tokens > SLACK + len(output.encode("utf-8", "replace")) / 2
    silent = sample.get("status") != "done" or not output.strip() or sample.get("finish") == "length"
    return None if silent or hidden or counted else False


def _inline(output: str) -> bool:
    """Return whether a text begins with thinking between tags, such as <think> and </think>.

    The opening tag may be missing, because some chat templates put it into the prompt.
    """
    begin = _OPEN.match(output)
    end = _CLOSE.search(output, begin.end() if begin else 0)
    if begin is None and (end is None or end[0] != "</think>"):
        return False
    return bool(output[begin.end() if begin else 0 : end.start() if end else None].strip())


def notes(rows: Iterable[Mapping[str, Any]], facts: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each way in which the answers of a run contradict the thinking mode that was asked for.

    rows    the samples of the run (``store.rows.eval_row``)
    facts   its metadata
    """
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
