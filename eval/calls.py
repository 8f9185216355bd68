"""Tool calls in the form in which question packs and logs write them.

A call is written as {"name":"set_timer","arguments":{"minutes":5,"loud":true}}. A call is graded right if name and
arguments are right: types matter (5, "5" and true differ), the order of the arguments does not.
"""

from __future__ import annotations

import json
from typing import Any

from ds4ref.text.dsml import ToolCall


def call_of(text: str) -> ToolCall:
    """Return the tool call that the JSON ``text`` describes."""
    call = json.loads(text)
    return ToolCall(call["name"], _compact(call["arguments"]))


def call_text(call: ToolCall) -> str:
    """Return a call as ``call_of`` reads it; arguments that are not valid JSON are written as a string."""
    try:
        arguments = json.loads(call.arguments)
    except ValueError:
        arguments = call.arguments
    return _compact({"name": call.name, "arguments": arguments})


def call_parts(given: str, right: str) -> tuple[bool, bool]:
    """Return whether the call ``given`` has the name of the call ``right``, and whether it has its arguments. ``given``
    may be "" for no call."""
    if not given:
        return False, False
    one, other = json.loads(given), json.loads(right)
    same = [json.dumps(call["arguments"], sort_keys=True) for call in (one, other)]
    return one["name"] == other["name"], same[0] == same[1]


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
